"""MemoryObjectStorage: a complete object storage in this process, for tests and demos.

Semantics are real: put-if-absent by unique id, exact ranges, ordered listing, and every call gives
way to the event loop before it takes effect. What it lacks is durability. `fail` makes chosen calls
fail, before or after their effect, to play an outage or a lost reply.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Literal, NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from tier2.object_names import check_object_name
from tier2.object_storage import (
    NO_METADATA,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectRange,
    ObjectStorage,
    PartSizes,
    StorageUnavailableError,
    StoredObject,
    UnfinishedUpload,
    check_metadata,
    check_ranges,
    exact_range,
)
from tier2.request_meter import RequestMeter
from tier2.request_statistics import ObjectStorageStatistics
from tier2.unique_ids import check_unique_id

PAGE_OBJECTS = 1000

Method = Literal[
    "put", "compose", "get_range", "head", "delete", "list",
    "begin_upload", "upload_part", "complete_upload", "abort_upload", "list_uploads",
]  # fmt: skip


class MemoryObject(NamedTuple):
    """An object with what the store keeps beside it."""

    data: bytes
    unique_id: bytes
    modified_ms: int
    metadata: Mapping[str, str] = NO_METADATA


class MemoryBucket:
    """The objects themselves; outlives the storages opened on it."""

    def __init__(self) -> None:
        self.objects: dict[str, MemoryObject] = {}
        self.unfinished: dict[str, UnfinishedUpload] = {}
        """Uploads in parts that were neither completed nor aborted, by their id."""
        self.uploads = 0
        """Begun so far."""


class _Fault:
    __slots__ = ("after_effect", "error", "left")

    def __init__(
        self, times: int, error: Callable[[str], Exception], *, after_effect: bool
    ) -> None:
        self.left = times
        self.error = error
        self.after_effect = after_effect


class MemoryObjectStorage(ObjectStorage):
    """An object storage over a `MemoryBucket`; without one it makes its own, lost with it."""

    def __init__(
        self,
        runtime: Runtime,
        bucket: MemoryBucket | None = None,
        *,
        name: str = "",
        page_objects: int = PAGE_OBJECTS,
        compose_bytes_min: int = 1,
        upload_bytes_min: int = 1,
    ) -> None:
        self.bucket = bucket if bucket is not None else MemoryBucket()
        self._clock = runtime.clock
        self._name = name
        self._page_objects = page_objects
        self._compose_bytes_min = compose_bytes_min
        self._upload_bytes_min = upload_bytes_min
        self._meter = RequestMeter()
        self._faults: dict[Method, deque[_Fault]] = {}
        self._closed = False

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def fail(
        self,
        method: Method,
        times: int = 1,
        error: Callable[[str], Exception] | None = None,
        *,
        after_effect: bool = False,
    ) -> None:
        """Make the next `times` calls of `method` fail, once what was asked for earlier is used up.

        `error` makes the exception from the name the call is about; StorageUnavailableError by
        default. With `after_effect` the call does its work first and only its reply is lost.
        """
        make = error if error is not None else _unavailable
        self._faults.setdefault(method, deque()).append(
            _Fault(times, make, after_effect=after_effect)
        )

    def heal(self) -> None:
        """Forget every failure asked for."""
        self._faults.clear()

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        check_object_name(name)
        check_unique_id(unique_id)
        metadata = check_metadata(metadata)
        data = b"".join(parts)
        if not data:
            raise ValueError(f"object {name} would be empty")
        with self._meter.request("put") as request:
            lost = await self._enter("put", name)
            self._store(name, data, unique_id, metadata)
            _leave(lost)
            request.sent(len(data))

    @property
    def upload_bytes_min(self) -> int:
        return self._upload_bytes_min

    async def upload(
        self,
        name: str,
        parts: AsyncGenerator[Buffer, None],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        async with aclosing(parts):
            check_object_name(name)
            check_unique_id(unique_id)
            metadata = check_metadata(metadata)
            self.bucket.uploads += 1
            begun = UnfinishedUpload(name, str(self.bucket.uploads), self._clock.time_ms())
            with self._meter.request("begin_upload"):
                _leave(await self._enter("begin_upload", name))
            self.bucket.unfinished[begun.upload_id] = begun
            try:
                data = await self._gathered(name, parts)
                with self._meter.request("complete_upload"):
                    lost = await self._enter("complete_upload", name)
                    self._store(name, data, unique_id, metadata)
                    del self.bucket.unfinished[begun.upload_id]
                    _leave(lost)
            except BaseException:
                if begun.upload_id in self.bucket.unfinished:
                    with suppress(StorageUnavailableError):
                        await self.abort_unfinished(begun)
                raise

    async def list_unfinished(self, prefix: str = "") -> Sequence[UnfinishedUpload]:
        if not self.bucket.unfinished:
            return ()  # Known without a request.
        with self._meter.request("list_uploads"):
            lost = await self._enter("list_uploads", prefix)
            found = [
                each for each in self.bucket.unfinished.values() if each.name.startswith(prefix)
            ]
            _leave(lost)
        return found

    async def abort_unfinished(self, upload: UnfinishedUpload) -> None:
        with self._meter.request("abort_upload"):
            lost = await self._enter("abort_upload", upload.name)
            self.bucket.unfinished.pop(upload.upload_id, None)
            _leave(lost)

    @property
    def compose_bytes_min(self) -> int | None:
        return self._compose_bytes_min

    async def compose(self, name: str, ranges: Sequence[ObjectRange], unique_id: bytes) -> None:
        check_object_name(name)
        check_unique_id(unique_id)
        check_ranges(ranges, self._compose_bytes_min)
        with self._meter.request("copy_part"):
            lost = await self._enter("compose", name)
            self._store(name, b"".join(self._range(*each) for each in ranges), unique_id)
            _leave(lost)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        check_object_name(name)
        if offset < 0 or length < 1:
            raise ValueError(f"range of {length} bytes at {offset}")
        with self._meter.request("get") as request:
            lost = await self._enter("get_range", name)
            data = self._range(name, offset, length)
            _leave(lost)
            request.received(length)
        return data

    async def head(self, name: str) -> StoredObject | None:
        check_object_name(name)
        with self._meter.request("head"):
            lost = await self._enter("head", name)
            there = self.bucket.objects.get(name)
            _leave(lost)
        if there is None:
            return None
        return StoredObject(name, len(there.data), there.modified_ms, there.metadata)

    async def delete(self, name: str) -> None:
        check_object_name(name)
        with self._meter.request("delete"):
            lost = await self._enter("delete", name)
            self.bucket.objects.pop(name, None)
            _leave(lost)

    async def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Sequence[StoredObject]]:
        while True:
            with self._meter.request("list"):
                lost = await self._enter("list", prefix)
                objects = self.bucket.objects
                names = sorted(name for name in objects if name.startswith(prefix))
                first = bisect_right(names, start_after)
                page = [
                    StoredObject(name, len(objects[name].data), objects[name].modified_ms)
                    for name in names[first : first + self._page_objects]
                ]
                _leave(lost)
            if not page:
                return
            yield page
            start_after = page[-1].name

    async def close(self) -> None:
        self._closed = True

    def statistics(self) -> ObjectStorageStatistics:
        return self._meter.snapshot()

    def __repr__(self) -> str:
        return f"<MemoryObjectStorage {self.url}: {len(self.bucket.objects)} objects>"

    async def _enter(self, method: Method, name: str) -> Exception | None:
        """Give way; raise the failure due before the effect, return the one due after it."""
        if self._closed:
            raise StorageUnavailableError(name, "the storage is closed", "closed")
        fault = self._next_fault(method)
        await asyncio.sleep(0)
        if fault is None:
            return None
        error = fault.error(name)
        if not fault.after_effect:
            raise error
        return error

    async def _gathered(self, name: str, parts: AsyncGenerator[Buffer, None]) -> bytes:
        sizes = PartSizes(name, self._upload_bytes_min)
        kept: list[bytes] = []
        async for part in parts:
            sizes.add(len(part))
            with self._meter.request("put_part") as request:
                lost = await self._enter("upload_part", name)
                kept.append(bytes(part))
                _leave(lost)
                request.sent(len(part))
        sizes.end()
        return b"".join(kept)

    def _store(
        self,
        name: str,
        data: bytes,
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        there = self.bucket.objects.get(name)
        if there is None:
            self.bucket.objects[name] = MemoryObject(
                data, bytes(unique_id), self._clock.time_ms(), metadata
            )
        elif there.unique_id != unique_id:
            raise ObjectExistsError(name, "taken by an object with another unique id")

    def _range(self, name: str, offset: int, length: int) -> bytes:
        there = self.bucket.objects.get(name)
        if there is None:
            raise ObjectNotFoundError(name, "no such object")
        return exact_range(name, there.data, offset, length)

    def _next_fault(self, method: Method) -> _Fault | None:
        waiting = self._faults.get(method)
        while waiting:
            fault = waiting[0]
            if fault.left > 0:
                fault.left -= 1
                return fault
            waiting.popleft()
        return None


def _leave(lost: Exception | None) -> None:
    if lost is not None:
        raise lost


def _unavailable(name: str) -> Exception:
    return StorageUnavailableError(name, "made to fail")
