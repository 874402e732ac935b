"""Tier-1 service of a simulated world: ledgers that outlive processes, and one process's log on one
of them.

The service is right: it numbers frames, keeps them, and takes them from the owner of the highest
epoch alone. What goes wrong is on the way. Rules of this file:

- a frame becomes durable in the service some time before its acknowledgement is there, frames of
  one owner in order. Nothing its process does after it was sent takes it back;
- of a dead owner's frames in flight a prefix of any length has arrived, which chance decides once;
- opening fences at one moment: what is durable by then is in the log for the new owner, anything
  later is refused. Once the opening has returned, an earlier owner is notified of no frame any
  more, durable or not;
- what lies ahead is kept in the service with the time it is due, and applied before anything is
  checked.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from durablelog.data_frame import FRAME_HEADER_LENGTH
from durablelog.durable_data_log import (
    DataLogStatistics,
    DurableDataLog,
    LogAddress,
    LogFrame,
    SealedPart,
)
from durablelog.memory_parts import MemoryParts
from recovery.harness.simulation.clock import BEGINNING_MS
from recovery.harness.simulation.storage_process import StorageProcess
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import ReadHandle

LATENCY_US: Final = (200, 5_000)
SLOW_US: Final = (1_000_000, 10_000_000)
_FIRST_ADDRESS: Final = 4096
PART_BYTES: Final = 16 * 1024
"""Of a container's log; tiny, so that short runs have many parts."""
_BATCH_FRAMES: Final = 64


@dataclass(slots=True, eq=False)
class _PendingFrame:
    """A frame from `append` to its acknowledgement."""

    payload: Sequence[Buffer]
    length: int
    future: asyncio.Future[LogAddress]
    announced: bool = False
    """Its effect has been reported; the process was stopped between that and the sending."""
    due_us: int = 0
    """When it is durable in the service."""
    answered_us: int = 0
    """When its owner is notified of it."""
    lost: bool = False
    in_doubt: bool = False
    repeated: bool = False
    data: bytes = b""
    address: LogAddress | None = None
    """Where it is in the log; None as long as it is not durable, or if it was refused."""


class _Ledger:
    """One container's ledger in the service."""

    __slots__ = (
        "epoch",
        "epoch_opened",
        "frames",
        "in_flight",
        "next_address",
        "next_sequence",
        "owner",
        "parts",
        "settled_death",
    )

    def __init__(self) -> None:
        self.epoch = 0
        self.epoch_opened = 0
        """The highest epoch whose opening has returned."""
        self.frames: list[LogFrame] = []
        self.parts = MemoryParts(LogAddress(_FIRST_ADDRESS), PART_BYTES)
        self.next_address = _FIRST_ADDRESS
        self.next_sequence = 1
        self.in_flight: deque[_PendingFrame] = deque()
        """Frames of the owner on their way, in the order they are due."""
        self.owner: StorageProcess | None = None
        self.settled_death = False

    def send(self, epoch: int, pending: _PendingFrame) -> None:
        if epoch == self.epoch:
            self.in_flight.append(pending)

    def settle(self, now_us: int) -> None:
        """Apply what has arrived by now."""
        owner, in_flight = self.owner, self.in_flight
        if owner is not None and owner.dead and not self.settled_death:
            self.settled_death = True
            arrived = owner.random.randint(0, len(in_flight))
            for _ in range(arrived):
                self._arrive(in_flight.popleft())
            in_flight.clear()
        while in_flight and in_flight[0].due_us <= now_us:
            self._arrive(in_flight.popleft())

    def fence(self, now_us: int, owner: StorageProcess) -> int:
        """Make `owner` the owner; its epoch."""
        self.settle(now_us)
        self.in_flight.clear()
        self.owner, self.settled_death = owner, False
        self.parts.seal()
        self.epoch += 1
        return self.epoch

    def keep(self, epoch: int, data: bytes, due_us: int, *, repeated: bool) -> LogAddress:
        """Put a frame behind the last one, twice if so asked; the address of the first of them."""
        first = LogAddress(self.next_address)
        for _ in range(1 + repeated):
            frame = LogFrame(
                LogAddress(self.next_address), self.next_sequence, epoch, memoryview(data)
            )
            self.frames.append(frame)
            self.next_address += FRAME_HEADER_LENGTH + len(data)
            self.parts.add(frame, LogAddress(self.next_address), BEGINNING_MS + due_us // 1000)
        self.next_sequence += 1
        return first

    def truncate(self, address: LogAddress, retain_from: int | None) -> None:
        """Drop what is before the frame at `address`, but parts from this number on; ValueError if
        there is none.
        """
        place = bisect_left(self.frames, address, key=_address_of)
        if place == len(self.frames) or self.frames[place].address != address:
            raise ValueError(f"{address:#x} is not the address of a frame of this log")
        self.frames = self.frames[place:]
        self.parts.truncate(address, retain_from)

    def copy(self, arrived: int) -> _Ledger:
        twin = _Ledger()
        twin.epoch, twin.epoch_opened = self.epoch, self.epoch_opened
        twin.frames, twin.parts = list(self.frames), self.parts.copy()
        twin.next_address, twin.next_sequence = self.next_address, self.next_sequence
        for pending in list(self.in_flight)[:arrived]:
            twin.keep(self.epoch, pending.data, pending.due_us, repeated=pending.repeated)
        return twin

    def _arrive(self, pending: _PendingFrame) -> None:
        pending.address = self.keep(
            self.epoch, pending.data, pending.due_us, repeated=pending.repeated
        )


class SimulatedLedgerStore:
    """The service: the ledgers of all containers. One for a world."""

    def __init__(self) -> None:
        self._ledgers: dict[int, _Ledger] = {}

    def ledger(self, container_id: int) -> _Ledger:
        """The container's ledger; for the logs themselves."""
        return self._ledgers.setdefault(container_id, _Ledger())

    @property
    def has_logs(self) -> bool:
        """Whether any container was ever opened."""
        return any(ledger.epoch for ledger in self._ledgers.values())

    def frames(self, container_id: int) -> list[LogFrame]:
        """The frames from the truncation point on that are durable, as of the last check."""
        return list(self.ledger(container_id).frames)

    def in_flight(self, container_id: int) -> int:
        """How many frames are on their way."""
        return len(self.ledger(container_id).in_flight)

    def settle_all(self) -> None:
        """Let everything arrive that is on its way (of dead owners' frames a prefix), as if an hour
        had passed.
        """
        for ledger in self._ledgers.values():
            unanswered = ledger.in_flight
            ledger.settle(unanswered[-1].due_us if unanswered else 0)

    def copy(self, arrived: int = 0) -> SimulatedLedgerStore:
        """The service as it would be if every process died now and `arrived` frames in flight of
        each ledger had come.
        """
        twin = SimulatedLedgerStore()
        twin._ledgers = {
            container_id: ledger.copy(arrived) for container_id, ledger in self._ledgers.items()
        }
        return twin


class SimulatedLedgerLog(DurableDataLog):
    """One opening of a container's ledger by one process, with every fault of the group `ledger.`
    on the way.

    An append takes LATENCY_US of virtual time, more when it is slow; any number may be in flight.
    """

    def __init__(
        self,
        store: SimulatedLedgerStore,
        container_id: int,
        process: StorageProcess,
        payload_bytes_max: int,
    ) -> None:
        if payload_bytes_max < 1:
            raise ValueError(f"payload_bytes_max={payload_bytes_max}: it must be positive")
        self._ledger = store.ledger(container_id)
        self._container_id = container_id
        self._place = f"container-{container_id}"
        self._process = process
        self._world = process.world
        self._random = process.random
        self._payload_bytes_max = payload_bytes_max
        self._epoch = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_PendingFrame] = deque()
        """Not sent yet."""
        self._in_flight: deque[_PendingFrame] = deque()
        """Sent and not answered, in order of their answers."""
        self._bytes_in_flight = 0
        self._last_due_us = self._last_answered_us = 0
        self._lost = False
        """A frame was lost on the way: nothing behind it may arrive."""
        self._timer: asyncio.TimerHandle | None = None
        self._failure: Callable[[], Exception] | None = self._stopped
        self._closed = False
        self._frames_appended = self._bytes_appended = self._groups = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def payload_bytes_max(self) -> int:
        return self._payload_bytes_max

    async def open(self) -> None:
        if self._closed or self._epoch:
            raise self._stopped()
        self._loop = asyncio.get_running_loop()
        await self._travel()
        if self._world.strikes("ledger.open.unavailable"):
            raise TierUnavailableError("tier1", f"{self._place}: the ledger cannot be opened now")
        await self._effect("ledger.open", str(self._ledger.epoch + 1))
        self._epoch = self._ledger.fence(self._now_us(), self._process)
        await self._travel()
        self._ledger.epoch_opened = max(self._ledger.epoch_opened, self._epoch)
        if self._closed:
            raise self._stopped()
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
        self._waiting.append(_PendingFrame(payload, length, future))
        self._bytes_in_flight += length
        if len(self._waiting) == 1:
            loop.call_soon(self._send)
        return future

    def read(self, start: LogAddress | None = None) -> AsyncGenerator[Sequence[LogFrame], None]:
        self._ledger.settle(self._now_us())
        frames = self._ledger.frames
        return self._batches(
            frames[0 if start is None else bisect_left(frames, start, key=_address_of) :]
        )

    def last_address(self) -> LogAddress | None:
        self._ledger.settle(self._now_us())
        frames = self._ledger.frames
        return frames[-1].address if frames else None

    async def truncate(self, address: LogAddress, retain_from: int | None = None) -> None:
        frames = self._ledger.frames
        if frames and address <= frames[0].address:
            return
        await self._reach(f"{address:#x}")
        self._ledger.truncate(address, retain_from)
        await self._travel()

    @property
    def first_retained(self) -> int | None:
        return self._ledger.parts.first_retained

    async def delete_retained(self, below: int | None = None) -> None:
        if self.first_retained is None:
            return
        await self._reach(f"retained below {below}")
        self._ledger.parts.delete_retained(below)
        await self._travel()

    async def _reach(self, detail: str) -> None:
        """The service is about to delete something of the ledger, which is ours."""
        self._check_failure()
        await self._travel()
        self._check_failure()
        await self._effect("ledger.truncate", detail)
        self._ledger.settle(self._now_us())
        if self._ledger.epoch != self._epoch:
            raise self._not_primary()

    async def check_primary(self) -> None:
        await self._travel()
        self._ledger.settle(self._now_us())
        if self._closed:
            raise self._stopped()
        if self._ledger.epoch != self._epoch:
            raise self._not_primary()

    def part_of(self, address: LogAddress) -> int:
        return self._ledger.parts.part_of(address)

    def sealed_parts(self, above: int = 0) -> Sequence[SealedPart]:
        self._check_open()
        self._ledger.settle(self._now_us())
        return self._ledger.parts.sealed(above)

    async def open_part(self, number: int) -> ReadHandle:
        self._check_open()
        await self._travel()
        if self._world.strikes("ledger.read.unavailable"):
            raise TierUnavailableError("tier1", f"{self._place}: the ledger cannot be read now")
        self._check_open()
        return self._ledger.parts.open(number, self._container_id, self._check_open)

    async def close(self) -> None:
        self._closed = True
        self._fail(self._stopped)

    def statistics(self) -> DataLogStatistics:
        frames = self._ledger.frames
        return DataLogStatistics(
            epoch=self._epoch,
            frames_in_flight=len(self._waiting) + len(self._in_flight),
            bytes_in_flight=self._bytes_in_flight,
            frames_appended=self._frames_appended,
            bytes_appended=self._bytes_appended,
            syncs=self._groups,
            log_bytes=self._ledger.next_address - frames[0].address if frames else 0,
            files=len(self._ledger.parts),
            retained_bytes=self._ledger.parts.retained_bytes,
        )

    async def _batches(self, frames: list[LogFrame]) -> AsyncGenerator[Sequence[LogFrame], None]:
        await self._travel()
        if self._world.strikes("ledger.read.unavailable"):
            raise TierUnavailableError("tier1", f"{self._place}: the ledger cannot be read now")
        for start in range(0, len(frames), _BATCH_FRAMES):
            if self._closed:
                raise self._stopped()
            yield frames[start : start + _BATCH_FRAMES]
            await self._travel()

    def _send(self) -> None:
        """Send what waits, frame by frame: the process can die or be stopped before each."""
        assert self._loop is not None
        if not self._waiting:
            return
        self._groups += 1
        while self._waiting:
            pending = self._waiting[0]
            if not pending.announced:
                pending.announced = True
                self._process.effect("ledger.append", self._place, str(pending.length))
                if self._process.paused:
                    self._loop.call_soon(self._send)
                    return
            self._in_flight.append(self._waiting.popleft())
            self._dispatch(pending)
        if self._timer is None:
            self._set_timer()

    def _dispatch(self, pending: _PendingFrame) -> None:
        """Decide a frame's way: when it is durable, when that is known, and what goes wrong."""
        strikes, rng, now_us = self._world.strikes, self._random.random, self._now_us()
        least, most = LATENCY_US
        latency_us = least + int((most - least) * rng())
        if strikes("ledger.append.slow"):
            least, most = SLOW_US
            latency_us += least + int((most - least) * rng())
        pending.answered_us = self._last_answered_us = max(
            self._last_answered_us, now_us + latency_us
        )
        if self._lost or strikes("ledger.append.lost"):
            self._lost = pending.lost = True
            return
        pending.in_doubt = strikes("ledger.append.in-doubt")
        pending.repeated = strikes("ledger.append.repeated")
        pending.due_us = self._last_due_us = max(
            self._last_due_us, now_us + int(latency_us * rng())
        )
        pending.data = b"".join(pending.payload)
        self._ledger.send(self._epoch, pending)

    def _answer(self) -> None:
        """Be notified of the frames whose answers are there."""
        self._timer = None
        now_us = self._now_us()
        self._ledger.settle(now_us)
        while self._in_flight and self._in_flight[0].answered_us <= now_us:
            pending = self._in_flight[0]
            failure = self._failure_of(pending)
            if failure is not None:
                self._fail(failure)
                return
            assert pending.address is not None
            self._in_flight.popleft()
            self._bytes_in_flight -= pending.length
            self._frames_appended += 1
            self._bytes_appended += pending.length
            if not pending.future.done():
                pending.future.set_result(pending.address)
        self._set_timer()
        self.on_settled()

    def _failure_of(self, pending: _PendingFrame) -> Callable[[], Exception] | None:
        if self._ledger.epoch_opened > self._epoch or (
            pending.address is None and not pending.lost
        ):
            return self._not_primary
        if pending.lost or pending.in_doubt:
            return self._append_failed
        return None

    def _set_timer(self) -> None:
        if self._in_flight:
            assert self._loop is not None
            self._timer = self._loop.call_at(
                self._in_flight[0].answered_us / MICROSECONDS, self._answer
            )

    def _fail(self, failure: Callable[[], Exception]) -> None:
        if self._failure is None or self._closed:
            self._failure = failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unanswered = [*self._in_flight, *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        self._bytes_in_flight = 0
        for pending in unanswered:
            if not pending.future.done():
                pending.future.set_exception(failure())
        if unanswered:
            self.on_settled()

    async def _effect(self, kind: str, detail: str) -> None:
        self._process.effect(kind, self._place, detail)
        if self._process.paused:
            # Stopped just before it: it goes on from the next turn it is given.
            await asyncio.sleep(0)

    async def _travel(self) -> None:
        least, most = LATENCY_US
        await asyncio.sleep((least + (most - least) * self._random.random()) / MICROSECONDS)

    def _now_us(self) -> int:
        return self._world.time.now_us

    def _check_open(self) -> None:
        if self._closed or not self._epoch:
            raise self._stopped()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure()

    def _stopped(self) -> Exception:
        return ContainerStoppedError(self._container_id)

    def _not_primary(self) -> Exception:
        return NotPrimaryError(self._container_id, "its log was opened by another owner")

    def _append_failed(self) -> Exception:
        return TierUnavailableError("tier1", f"{self._place}: the append failed")


def _address_of(frame: LogFrame) -> LogAddress:
    return frame.address
