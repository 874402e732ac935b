"""FsspecObjectStorage: any file system of fsspec as Tier 2. One object, one file, byte for byte, at root/name.

Not every back end can give what an object storage promises; docs/tier2.md says for each what it cannot. What remains
true on all of them: names are unique and the log is the only authority, so an object is read only after its put has
returned. Rules of this file:

- put-if-absent is the back end's own where it has one, else a look before writing: of two *processes* that put one name
  at the same moment the later may win. Of one process, one wins;
- "one's own object" is recognised by its size and bytes, for there is no place for the unique id. Where a cut upload
  can leave a part under the final name, a part of one's own is replaced by the put that is tried again, and sizes
  are compared after every put;
- that a put survives a crash of the server's machine is the back end's word, and nothing here can make it true:
  an SFTP server, for one, syncs nothing;
- no name may be a folder of another's, and a part of a name has at most 255 characters (names of ours never come near);
- a call is counted as one request: what fsspec makes of it is not known.

All blocking work is done by `threads` threads of this storage's own; each holds at most one object in memory.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, ParamSpec, TypeVar

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tier2.fsspec_files import FsspecFiles
from tier2.fsspec_location import parse_fsspec_url
from tier2.object_names import check_object_name, check_unique_id, new_unique_id
from tier2.object_storage import (
    ObjectExistsError,
    ObjectStorage,
    ObjectStorageError,
    StorageRefusedError,
    StorageUnavailableError,
    StoredObject,
)
from tier2.request_meter import ObjectStorageStatistics, RequestMeter

PAGE_OBJECTS: Final = 1000
THREADS: Final = 8
PART_CHARACTERS_MAX: Final = 255
PROBE_FOLDER: Final = "probe"
CLOSE_PATIENCE_S: Final = 75.0
"""At a close: for calls under way. Not every back end gives up a server that says nothing; their threads are left then."""

_FORBIDDEN_STATUS: Final = frozenset((401, 403))
_STATUS_FIELDS: Final = ("status", "status_code", "code")

_P = ParamSpec("_P")
_T = TypeVar("_T")


def check_fsspec_url(url: str) -> None:
    """Raise ConfigError("tier2", ...) unless fsspec can reach what the URL names; connects nowhere.

    Also for a scheme whose package is not installed, and for S3 and folders, which have adapters of their own.
    """
    parse_fsspec_url(url)


class FsspecObjectStorage(ObjectStorage):
    """Objects below the URL's path; the query's parameters are options of the file system. Connects at the first call.

    `threads` bounds the calls under way at once; what is beyond waits. A call that is cancelled while it
    runs goes on to its end in its thread, and `close` waits for it, for a while.
    """

    def __init__(self, url: str, runtime: Runtime, *, page_objects: int = PAGE_OBJECTS, threads: int = THREADS) -> None:
        location = parse_fsspec_url(url)
        self._url = location.shown
        self._files = FsspecFiles(location, runtime)
        self._executor = runtime.executor("tier2-fsspec", threads)
        self._random = runtime.random
        self._page_objects = page_objects
        self._meter = RequestMeter()
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    @property
    def url(self) -> str:
        return self._url

    async def put(self, name: str, parts: Sequence[Buffer], unique_id: bytes) -> None:
        _check_name(name)
        check_unique_id(unique_id)
        data = b"".join(parts)
        if not data:
            raise ValueError(f"object {name} would be empty")
        with self._meter.request("put") as request:
            await self._run(name, self._files.put, name, data)
            request.sent(len(data))

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
        found = self._files.walk(prefix, start_after)
        while page := await self._next_page(prefix, found):
            yield page

    async def check(self) -> None:
        """Write, write again, read, list and delete a probe. Raises StorageRefusedError, StorageUnavailableError."""
        unique_id = new_unique_id(self._random)
        name = f"{PROBE_FOLDER}/{unique_id.hex()}"
        await self.put(name, [unique_id], unique_id)
        try:
            if await self.get_range(name, 4, 8) != unique_id[4:12]:
                raise self._broken(name, "a range of an object comes back as other bytes")
            there = await self.head(name)
            if there is None or there.size != len(unique_id):
                raise self._broken(name, "an object that was written is not there, or of another size")
            try:
                await self.put(name, [bytes(len(unique_id))], unique_id)
            except ObjectExistsError:
                pass
            else:
                raise self._broken(name, "an object that is there is overwritten by another")
            if [each.name async for page in self.list(name) for each in page] != [name]:
                raise self._broken(name, "an object that is there is not listed")
        finally:
            await self.delete(name)
        if await self.head(name) is not None:
            raise self._broken(name, "a deleted object is still there")

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            waiting = tuple(self._running)
            if waiting and (await asyncio.wait(waiting, timeout=CLOSE_PATIENCE_S))[1]:
                self._executor.shutdown(wait=False, cancel_futures=True)
                return
            await asyncio.get_running_loop().run_in_executor(self._executor, self._files.close)
            self._executor.shutdown()

    def statistics(self) -> ObjectStorageStatistics:
        return self._meter.snapshot()

    def __repr__(self) -> str:
        return f"<FsspecObjectStorage {self._url}: {len(self._running)} calls running>"

    async def _next_page(self, prefix: str, found: Iterator[StoredObject]) -> Sequence[StoredObject]:
        with self._meter.request("list"):
            return await self._run(prefix, _take, found, self._page_objects)

    async def _run(self, name: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `call` in a thread; what the back end says against it becomes our error here."""
        if self._closed:
            raise StorageUnavailableError(name, "the storage is closed", "closed")
        running = asyncio.wrap_future(self._executor.submit(call, *args, **kwargs))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(_look_at)
        try:
            # Shielded: cancelling the caller must not lose sight of what its thread still does.
            return await asyncio.shield(running)
        except ObjectStorageError:
            raise
        except Exception as error:  # every back end has errors of its own
            raise self._understood(name, error) from error

    def _understood(self, name: str, error: Exception) -> StorageUnavailableError:
        number = error.errno if isinstance(error, OSError) else None
        kind = errno.errorcode.get(number or 0, type(error).__name__)
        detail = f"{str(error) or 'no reason given'} ({kind})"
        if _is_refusal(error):
            return StorageRefusedError(name, f"{self._url} refuses: {detail}; mend its permissions or options", kind)
        return StorageUnavailableError(name, detail, kind)

    def _broken(self, name: str, what: str) -> StorageRefusedError:
        return StorageRefusedError(name, f"{self._url} cannot be Tier 2: {what}", "check")


def _is_refusal(error: Exception) -> bool:
    """Whether a person has to change something: permissions, credentials, as far as back ends tell."""
    if isinstance(error, PermissionError) or "Authentication" in type(error).__name__:
        return True
    return any(getattr(error, field, None) in _FORBIDDEN_STATUS for field in _STATUS_FIELDS)


def _take(found: Iterator[StoredObject], count: int) -> list[StoredObject]:
    return list(islice(found, count))


def _check_name(name: str) -> None:
    check_object_name(name)
    if any(len(part) > PART_CHARACTERS_MAX for part in name.split("/")):
        raise ValueError(f"{name!r} has a part of more than {PART_CHARACTERS_MAX} characters")


def _look_at(running: asyncio.Future[Any]) -> None:
    """Take note of how a call ended whose caller was cancelled meanwhile, or asyncio complains that nobody did."""
    if not running.cancelled():
        running.exception()
