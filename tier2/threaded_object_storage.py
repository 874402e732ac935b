"""ThreadedObjectStorage: an object storage whose files block, made of them and of threads of its
own.

What file systems have in common, wherever they are: each call is run to its end by one of a few
threads. Rules:

- a call that is cancelled while it runs goes on in its thread, and `close` waits for it;
- what a thread's work raises is an ObjectStorageError, or becomes one in `_understood`;
- no name may be a folder of another's, and a part of a name has at most 255 characters (names of
  ours never come near).
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import islice
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import note_end
from tier2.object_names import check_object_name
from tier2.object_storage import (
    NO_METADATA,
    ObjectStorage,
    ObjectStorageError,
    PartSizes,
    StorageUnavailableError,
    StoredObject,
    check_metadata,
)
from tier2.request_meter import RequestMeter
from tier2.request_statistics import ObjectStorageStatistics
from tier2.unique_ids import check_unique_id

PAGE_OBJECTS: Final = 1000
PART_CHARACTERS_MAX: Final = 255

_P = ParamSpec("_P")
_T = TypeVar("_T")


class GrowingObject(Protocol):
    """The blocking half of one upload, by any threads. Making one touches nothing."""

    def add(self, part: Buffer) -> None:
        """One more part."""

    def finish(self) -> None:
        """Give the object its name, as a put does. Nothing is held behind."""

    def abandon(self) -> None:
        """Remove what there is of it, but for an object that is finished; from then on `add` and
        `finish` do nothing. What cannot be removed stays.
        """


class BlockingFiles(Protocol):
    """The blocking half: what one thread does for one call. Arguments have been checked."""

    def put(
        self, name: str, parts: Sequence[Buffer], unique_id: bytes, metadata: Mapping[str, str]
    ) -> None:
        """As `ObjectStorage.put`."""

    def grow(self, name: str, unique_id: bytes, metadata: Mapping[str, str]) -> GrowingObject:
        """An `ObjectStorage.upload` that begins."""

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        """As `ObjectStorage.get_range`."""

    def head(self, name: str) -> StoredObject | None:
        """As `ObjectStorage.head`."""

    def delete(self, name: str) -> None:
        """As `ObjectStorage.delete`."""

    def walk(self, prefix: str, start_after: str) -> Iterator[StoredObject]:
        """Objects in code point order of their names. Continued by another thread, perhaps."""

    def close(self) -> None:
        """Release everything."""


FilesT = TypeVar("FilesT", bound=BlockingFiles)


class ThreadedObjectStorage(ObjectStorage, Generic[FilesT]):
    """Objects by way of `files`, `threads` calls at a time; what is beyond waits.

    Nothing is touched before the first call.

    A close waits for calls under way for `close_timeout_s`, after which their threads are left to
    themselves; None: to the end.
    """

    def __init__(
        self,
        files: FilesT,
        url: str,
        runtime: Runtime,
        name: str,
        *,
        threads: int,
        page_objects: int,
        close_timeout_s: float | None = None,
    ) -> None:
        self._files = files
        self._url = url
        self._executor = runtime.executor(name, threads)
        self._page_objects = page_objects
        self._close_timeout_s = close_timeout_s
        self._meter = RequestMeter()
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    @property
    def url(self) -> str:
        return self._url

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        _check_name(name)
        check_unique_id(unique_id)
        metadata = check_metadata(metadata)
        size = sum(map(len, parts))
        if not size:
            raise ValueError(f"object {name} would be empty")
        with self._meter.request("put") as request:
            await self._run(name, self._files.put, name, parts, unique_id, metadata)
            request.sent(size)

    async def upload(
        self,
        name: str,
        parts: AsyncGenerator[Buffer, None],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        async with aclosing(parts):
            _check_name(name)
            check_unique_id(unique_id)
            metadata = check_metadata(metadata)
            growing = self._files.grow(name, unique_id, metadata)
            try:
                await self._add_parts(name, growing, parts)
                with self._meter.request("complete_upload"):
                    await self._run(name, growing.finish)
            except BaseException:
                await self._abandon(name, growing)
                raise

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

    async def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Sequence[StoredObject]]:
        found = self._files.walk(prefix, start_after)
        while page := await self._next_page(prefix, found):
            yield page

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        waiting = tuple(self._running)
        if waiting and (await asyncio.wait(waiting, timeout=self._close_timeout_s))[1]:
            self._executor.shutdown(wait=False, cancel_futures=True)
            return
        await asyncio.get_running_loop().run_in_executor(self._executor, self._files.close)
        self._executor.shutdown()

    def statistics(self) -> ObjectStorageStatistics:
        return self._meter.snapshot()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url}: {len(self._running)} calls running>"

    @abstractmethod
    def _understood(self, name: str, error: Exception) -> StorageUnavailableError:
        """What an error of the file system means. One that is a bug of ours is raised again."""

    def _cause(self, error: Exception) -> Exception | None:
        """The error as the cause that a traceback shows; None to keep it to ourselves."""
        return error

    async def _add_parts(
        self, name: str, growing: GrowingObject, parts: AsyncGenerator[Buffer, None]
    ) -> None:
        sizes = PartSizes(name, self.upload_bytes_min)
        async for part in parts:
            sizes.add(len(part))
            with self._meter.request("put_part") as request:
                await self._run(name, growing.add, part)
                request.sent(len(part))
        sizes.end()

    async def _abandon(self, name: str, growing: GrowingObject) -> None:
        with self._meter.request("abort_upload"), suppress(ObjectStorageError):
            await self._run(name, growing.abandon)

    async def _next_page(
        self, prefix: str, found: Iterator[StoredObject]
    ) -> Sequence[StoredObject]:
        with self._meter.request("list"):
            return await self._run(prefix, _take, found, self._page_objects)

    async def _run(
        self, name: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        if self._closed:
            raise StorageUnavailableError(name, "the storage is closed", "closed")
        running = asyncio.wrap_future(self._executor.submit(call, *args, **kwargs))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(note_end)
        try:
            # Shielded: cancelling the caller must not lose sight of what its thread still does.
            return await asyncio.shield(running)
        except ObjectStorageError:
            raise
        except Exception as error:  # noqa: BLE001 - every back end has errors of its own
            understood = self._understood(name, error)
            raise understood from self._cause(error)


def _take(found: Iterator[StoredObject], count: int) -> list[StoredObject]:
    return list(islice(found, count))


def _check_name(name: str) -> None:
    check_object_name(name)
    if any(len(part) > PART_CHARACTERS_MAX for part in name.split("/")):
        raise ValueError(f"{name!r} has a part of more than {PART_CHARACTERS_MAX} characters")
