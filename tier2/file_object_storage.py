"""FileObjectStorage: an object storage in a folder. One object, one file, byte for byte, at root/name.

A put writes and syncs a staging file, then links it to its name: the link is the put-if-absent, and a
reader never sees a part. Folders get durable as FileTree says. Rules of this file:

- "one's own object" is recognised by its bytes: a file has no place for the unique id that would not make
  it another file. Under one name, equal bytes are the same object; other bytes are ObjectExistsError;
- a name whose durability is in doubt (found there by a retried put) is replaced by the freshly synced copy
  of the same bytes: a failed sync is never repeated on the same file and believed;
- several processes, and several stores, may use one root at the same time;
- a part of a name has at most 255 characters, and no name may be a folder of another's (file systems'
  limits; names of ours never come near).

All blocking work is done by `threads` threads of this storage's own.
"""

from __future__ import annotations

import asyncio
import errno
import os.path
import posixpath
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tier2.file_staging import StagingFolder
from tier2.file_tree import FileTree
from tier2.object_names import check_object_name, check_unique_id, is_name_part
from tier2.object_storage import (
    InvalidRangeError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
)
from tier2.request_meter import ObjectStorageStatistics, RequestMeter

PAGE_OBJECTS = 1000
COMPARE_BYTES = 1024 * 1024
PART_CHARACTERS_MAX = 255

_P = ParamSpec("_P")
_T = TypeVar("_T")

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class FileObjectStorage(ObjectStorage):
    """Objects as files under `root`, an existing or new folder. Nothing is touched before the first put.

    `threads` bounds the calls under way at once; what is beyond waits. A call that is cancelled while it
    runs goes on to its end in its thread, and `close` waits for it.
    """

    def __init__(self, root: str, runtime: Runtime, *, threads: int = 4, page_objects: int = PAGE_OBJECTS) -> None:
        self._root = os.path.abspath(root)
        self._executor = runtime.executor("tier2-file", threads)
        self._files = _Files(runtime, self._root, runtime.random.getrandbits(64))
        self._page_objects = page_objects
        self._meter = RequestMeter()
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    async def put(self, name: str, parts: Sequence[Buffer], unique_id: bytes) -> None:
        _check_name(name)
        check_unique_id(unique_id)
        size = sum(map(len, parts))
        if not size:
            raise ValueError(f"object {name} would be empty")
        with self._meter.request("put") as request:
            await self._run(name, self._files.put, name, parts, unique_id)
            request.sent(size)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        _check_name(name)
        if offset < 0 or length < 1:
            raise ValueError(f"range of {length} bytes at {offset}")
        with self._meter.request("get") as request:
            data = await self._run(name, self._files.get_range, name, offset, length)
            request.received(length)
        return data

    async def head(self, name: str) -> StoredObject | None:
        _check_name(name)
        with self._meter.request("head"):
            return await self._run(name, self._files.head, name)

    async def delete(self, name: str) -> None:
        _check_name(name)
        with self._meter.request("delete"):
            await self._run(name, self._files.delete, name)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        found = self._files.walk("", prefix, start_after)
        while page := await self._next_page(prefix, found):
            yield page

    async def _next_page(self, prefix: str, found: Iterator[StoredObject]) -> Sequence[StoredObject]:
        with self._meter.request("list"):
            return await self._run(prefix, _take, found, self._page_objects)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._running:
                await asyncio.wait(tuple(self._running))
            await asyncio.get_running_loop().run_in_executor(self._executor, self._files.close)
            self._executor.shutdown()

    def statistics(self) -> ObjectStorageStatistics:
        return self._meter.snapshot()

    def __repr__(self) -> str:
        return f"<FileObjectStorage {self._root}: {len(self._running)} calls running>"

    async def _run(self, name: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `call` in a thread; what the operating system says against it becomes our error here."""
        if self._closed:
            raise StorageUnavailableError(name, "the storage is closed", "closed")
        running = asyncio.wrap_future(self._executor.submit(call, *args, **kwargs))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(_look_at)
        try:
            # Shielded: cancelling the caller must not lose sight of what its thread still does.
            return await asyncio.shield(running)
        except OSError as error:
            detail = error.strerror or str(error)
            code = errno.errorcode.get(error.errno or 0, "OSError")
            raise StorageUnavailableError(name, f"{detail} ({code})", code) from error


class _Files:
    """The blocking half: what one thread does for one call. Raises ObjectStorageError and OSError."""

    def __init__(self, runtime: Runtime, root: str, tag: int) -> None:
        self._disk = runtime.disk
        self._root = root
        self._staging = StagingFolder(runtime, root, tag)
        self._tree = FileTree(runtime, root)

    def put(self, name: str, parts: Sequence[Buffer], unique_id: bytes) -> None:
        target = self._path(name)
        staged = self._staging.new_path(unique_id)
        try:
            self._write(staged, parts)
            try:
                self._tree.link(staged, target)
            except FileExistsError:
                if not self._same_bytes(staged, target):
                    raise ObjectExistsError(name, "taken by an object with other bytes") from None
                self._tree.replace(staged, target)
            except NotADirectoryError:
                raise ObjectExistsError(name, "a folder of this name is an object") from None
        finally:
            self._staging.discard(staged)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        try:
            file = self._disk.open(self._path(name))
        except _ABSENT:
            raise ObjectNotFoundError(name, "no such object") from None
        try:
            data = file.pread(offset, length)
            if len(data) < length:
                raise InvalidRangeError(name, f"bytes {offset} to {offset + length} of {file.size()}")
        except IsADirectoryError:
            raise ObjectNotFoundError(name, "no such object") from None
        finally:
            file.close()
        return data

    def head(self, name: str) -> StoredObject | None:
        path = self._path(name)
        try:
            if self._disk.is_directory(path):
                return None
            return StoredObject(name, self._disk.size(path), self._disk.modified_ms(path))
        except _ABSENT:
            return None

    def delete(self, name: str) -> None:
        path = self._path(name)
        folder = posixpath.dirname(path)
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            # An earlier delete may have got this far and then failed to sync: absent is not yet durably absent.
            if not self._disk.is_directory(folder):
                return
        except (NotADirectoryError, IsADirectoryError):
            return
        try:
            self._disk.sync_directory(folder)
        except FileNotFoundError:
            return  # Emptied and pruned by another delete meanwhile.
        self._tree.prune(folder)

    def walk(self, folder: str, prefix: str, start_after: str) -> Iterator[StoredObject]:
        """Objects below `folder` ("" or ending in a slash), in code point order of their full names."""
        try:
            parts = self._disk.list_directory(posixpath.join(self._root, folder))
        except _ABSENT:
            return
        names = [folder + part for part in parts if is_name_part(part)]
        # A folder sorts by the slash that follows it in every name inside: "a-b" < "a/b" < "ab".
        for name in sorted(name + "/" if self._disk.is_directory(self._path(name)) else name for name in names):
            if not name.endswith("/"):
                if name.startswith(prefix) and name > start_after:
                    found = self.head(name)
                    if found is not None:
                        yield found
            elif _overlaps(name, prefix) and (name > start_after or start_after.startswith(name)):
                yield from self.walk(name, prefix, start_after)

    def close(self) -> None:
        self._staging.close()

    def _write(self, path: str, parts: Sequence[Buffer]) -> None:
        file = self._disk.open(path, write=True, create=True, exclusive=True)
        try:
            file.pwrite([part for part in parts if len(part)], 0)
            file.sync()
        finally:
            file.close()

    def _same_bytes(self, one_path: str, other_path: str) -> bool:
        if self._disk.is_directory(other_path):
            return False
        one = self._disk.open(one_path)
        try:
            other = self._disk.open(other_path)
            try:
                size = one.size()
                return size == other.size() and all(
                    one.pread(offset, COMPARE_BYTES) == other.pread(offset, COMPARE_BYTES)
                    for offset in range(0, size, COMPARE_BYTES)
                )
            finally:
                other.close()
        finally:
            one.close()

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)


def _take(found: Iterator[StoredObject], count: int) -> list[StoredObject]:
    return list(islice(found, count))


def _overlaps(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)


def _check_name(name: str) -> None:
    check_object_name(name)
    if any(len(part) > PART_CHARACTERS_MAX for part in name.split("/")):
        raise ValueError(f"{name!r} has a part of more than {PART_CHARACTERS_MAX} characters")


def _look_at(running: asyncio.Future[Any]) -> None:
    """Take note of how a call ended whose caller was cancelled meanwhile, or asyncio complains that nobody did."""
    if not running.cancelled():
        running.exception()
