"""A complete Tier-1 log in memory: for tests, demos, and stores that may forget.

The `MemoryLogStore` plays the disk: it outlives the logs opened on it. Epochs and fencing are real;
an acknowledgement comes from a later turn of the event loop, as a disk's would. Rules of this file:

- a frame enters the store at the moment it is acknowledged, after a check whether the log is still
  ours;
- the first failure fails all that waits and all that comes, until the log is opened anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import NamedTuple

from durablelog.data_frame import FRAME_HEADER_LENGTH
from durablelog.durable_data_log import (
    DataLogStatistics,
    DurableDataLog,
    LogAddress,
    LogFrame,
    SealedPart,
)
from durablelog.memory_parts import PART_BYTES, MemoryParts
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.runtime import Clock, SystemClock

PAYLOAD_BYTES_MAX = 1024 * 1024 - 1024
_FIRST_ADDRESS = 4096
_BATCH_FRAMES = 256


class _Contents:
    """What one container's log holds."""

    __slots__ = (
        "epoch",
        "fail_after",
        "fail_error",
        "frames",
        "keep_failed",
        "next_address",
        "next_sequence",
        "parts",
    )

    def __init__(self, part_bytes: int) -> None:
        self.epoch = 0
        self.frames: list[LogFrame] = []
        self.parts = MemoryParts(LogAddress(_FIRST_ADDRESS), part_bytes)
        self.next_sequence = 1
        self.next_address = _FIRST_ADDRESS
        self.fail_after: int | None = None
        self.fail_error: BaseException | None = None
        self.keep_failed = False


class MemoryLogStore:
    """The logs of any number of containers, in parts of `part_bytes` at most, or of one frame.

    Belongs to one thread at a time. `clock` says when a part took a frame.
    """

    def __init__(self, part_bytes: int = PART_BYTES, clock: Clock | None = None) -> None:
        self._contents: dict[int, _Contents] = {}
        self._part_bytes = part_bytes
        self.clock = SystemClock() if clock is None else clock

    def contents(self, container_id: int) -> _Contents:
        """What the container's log holds; for the logs themselves."""
        return self._contents.setdefault(container_id, _Contents(self._part_bytes))

    @property
    def has_logs(self) -> bool:
        """Whether any log was ever opened."""
        return any(contents.epoch for contents in self._contents.values())

    def frames(self, container_id: int) -> list[LogFrame]:
        """The frames from the truncation point on, as a tool would see them."""
        return list(self.contents(container_id).frames)

    def fail_append_after(
        self,
        appends: int,
        error: BaseException | None = None,
        *,
        container_id: int = 0,
        keep: bool = False,
    ) -> None:
        """Let `appends` (>= 0) further appends of the container succeed and fail the next one,
        once.

        `error` is what its future gets, TierUnavailableError by default. With `keep` the frame is
        in the log all the same: the outcome of a failed append is unknown, and both must be lived
        with.
        """
        contents = self.contents(container_id)
        contents.fail_after = appends
        contents.fail_error = error
        contents.keep_failed = keep


class _Waiting(NamedTuple):
    payload: Sequence[Buffer]
    length: int
    future: asyncio.Future[LogAddress]


class MemoryDataLog(DurableDataLog):
    """One opening of a container's log in a `MemoryLogStore`."""

    def __init__(
        self,
        store: MemoryLogStore,
        container_id: int,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        *,
        epoch_min: int = 1,
    ) -> None:
        if payload_bytes_max < 1:
            raise ValueError(f"payload_bytes_max={payload_bytes_max}: it must be positive")
        self._store = store
        self._contents = store.contents(container_id)
        self._container_id = container_id
        self._payload_bytes_max = payload_bytes_max
        self._epoch_min = epoch_min
        self._epoch = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._failure: Callable[[], BaseException] | None = self._not_open
        self._closed = False
        self._frames_appended = 0
        self._bytes_appended = 0
        self._groups = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def payload_bytes_max(self) -> int:
        return self._payload_bytes_max

    async def open(self) -> None:
        if self._closed or self._epoch:
            raise ContainerStoppedError(self._container_id)
        self._loop = asyncio.get_running_loop()
        self._epoch = self._contents.epoch = max(self._contents.epoch + 1, self._epoch_min)
        self._contents.parts.seal()
        self._failure = None

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[LogAddress]:
        length = sum(map(len, payload))
        if not 1 <= length <= self._payload_bytes_max:
            raise ValueError(
                f"a payload of {length} bytes: it must be 1 to {self._payload_bytes_max}"
            )
        loop = self._loop or asyncio.get_running_loop()
        future: asyncio.Future[LogAddress] = loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure())
            return future
        self._waiting.append(_Waiting(payload, length, future))
        self._waiting_bytes += length
        if len(self._waiting) == 1:
            loop.call_soon(self._complete)
        return future

    def read(self, start: LogAddress | None = None) -> AsyncGenerator[Sequence[LogFrame], None]:
        frames = self._contents.frames
        return self._batches([frame for frame in frames if start is None or frame.address >= start])

    def last_address(self) -> LogAddress | None:
        frames = self._contents.frames
        return frames[-1].address if frames else None

    async def truncate(self, address: LogAddress, retain_from: int | None = None) -> None:
        frames = self._contents.frames
        if frames and address <= frames[0].address:
            return
        self._check_owner()
        kept = [frame for frame in frames if frame.address >= address]
        if not kept or kept[0].address != address:
            raise ValueError(f"{address:#x} is not the address of a frame of this log")
        self._contents.frames = kept
        self._contents.parts.truncate(address, retain_from)

    @property
    def first_retained(self) -> int | None:
        return self._contents.parts.first_retained

    async def delete_retained(self, below: int | None = None) -> None:
        self._check_owner()
        self._contents.parts.delete_retained(below)

    async def check_primary(self) -> None:
        await asyncio.sleep(0)
        if self._closed:
            raise self._not_open()
        if self._fenced():
            raise self._not_primary()

    def sealed_parts(self, above: int = 0) -> Sequence[SealedPart]:
        self._check_open()
        return self._contents.parts.sealed(above)

    def part_of(self, address: LogAddress) -> int:
        return self._contents.parts.part_of(address)

    async def open_part(self, number: int) -> ReadHandle:
        self._check_open()
        return self._contents.parts.open(number, self._container_id, self._check_open)

    async def close(self) -> None:
        self._closed = True
        self._fail(lambda: ContainerStoppedError(self._container_id))

    def statistics(self) -> DataLogStatistics:
        frames = self._contents.frames
        log_bytes = 0
        if frames:
            log_bytes = self._contents.next_address - frames[0].address
        return DataLogStatistics(
            epoch=self._epoch,
            frames_in_flight=len(self._waiting),
            bytes_in_flight=self._waiting_bytes,
            frames_appended=self._frames_appended,
            bytes_appended=self._bytes_appended,
            syncs=self._groups,
            log_bytes=log_bytes,
            files=len(self._contents.parts),
            retained_bytes=self._contents.parts.retained_bytes,
        )

    async def _batches(self, frames: list[LogFrame]) -> AsyncGenerator[Sequence[LogFrame], None]:
        for start in range(0, len(frames), _BATCH_FRAMES):
            if self._closed:
                raise ContainerStoppedError(self._container_id)
            yield frames[start : start + _BATCH_FRAMES]
            await asyncio.sleep(0)

    def _complete(self) -> None:
        """What waits becomes durable, all in one turn."""
        if self._waiting:
            self._groups += 1
        while self._waiting:
            if self._fenced():
                self._fail(self._not_primary)
                return
            error = self._planned_failure()
            if error is not None:
                if self._contents.keep_failed:
                    self._keep(self._waiting[0])
                self._fail(partial(_itself, error))
                return
            waiting = self._waiting.popleft()
            self._waiting_bytes -= waiting.length
            address = self._keep(waiting)
            self._frames_appended += 1
            self._bytes_appended += waiting.length
            if not waiting.future.done():
                waiting.future.set_result(address)
        self.on_settled()

    def _keep(self, waiting: _Waiting) -> LogAddress:
        contents = self._contents
        address = LogAddress(contents.next_address)
        payload = memoryview(b"".join(waiting.payload))
        frame = LogFrame(address, contents.next_sequence, self._epoch, payload)
        contents.frames.append(frame)
        contents.next_sequence += 1
        contents.next_address += FRAME_HEADER_LENGTH + waiting.length
        contents.parts.add(frame, LogAddress(contents.next_address), self._store.clock.time_ms())
        return address

    def _planned_failure(self) -> BaseException | None:
        contents = self._contents
        if contents.fail_after is None:
            return None
        if contents.fail_after:
            contents.fail_after -= 1
            return None
        contents.fail_after = None
        return contents.fail_error or TierUnavailableError("tier1", "the append was made to fail")

    def _fail(self, failure: Callable[[], BaseException]) -> None:
        if self._failure is None or self._closed:
            self._failure = failure
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        for frame in waiting:
            if not frame.future.done():
                frame.future.set_exception(failure())
        if waiting:
            self.on_settled()

    def _check_open(self) -> None:
        if self._closed or not self._epoch:
            raise ContainerStoppedError(self._container_id)

    def _check_owner(self) -> None:
        if self._failure is not None:
            raise self._failure()
        if self._fenced():
            raise self._not_primary()

    def _fenced(self) -> bool:
        return self._contents.epoch != self._epoch

    def _not_primary(self) -> BaseException:
        return NotPrimaryError(self._container_id, "its log was opened by another owner")

    def _not_open(self) -> BaseException:
        return ContainerStoppedError(self._container_id)


def _itself(error: BaseException) -> BaseException:
    return error
