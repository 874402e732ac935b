"""The file log: Tier 1 on a local disk, one folder per container (docs/formats/file-log.md).

How an append goes: `append` hands the frame to the group commit, with its payload's checksum. That
writes and syncs groups, on the loop or on the *writer thread* (group_commit.py), and reports each.
A second executor prepares files, reads in sequence, and removes. A third reads by place, for
callers without number: appends must not wait behind them for a file, nor they behind the zeros of
one. All else is the event loop's.

A full disk is no failure: frames wait in the queue until there is room, which is searched for again
and again, at growing intervals (docs/decisions/0030-full-log-disk.md).

Rules of this file: futures are resolved in the order of the appends, on the loop. The first failure
fails all in flight and all that comes; after `close` nothing of ours touches the folder.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from durablelog.data_frame import FRAME_HEADER_LENGTH
from durablelog.durable_data_log import (
    DataLogStatistics,
    DurableDataLog,
    LogAddress,
    LogFrame,
    LogRange,
    SealedPart,
)
from durablelog.file.file_parts import FileParts
from durablelog.file.file_preparer import FilePreparer
from durablelog.file.file_truncation import FileTruncation
from durablelog.file.group_commit import GroupCommit
from durablelog.file.group_writer import (
    GROUP_BYTES_MAX,
    WaitingFrame,
    WrittenGroup,
)
from durablelog.file.log_folder import LogFolder
from durablelog.file.log_layout import (
    FILE_BYTES_MAX,
    FILE_HEADER_LENGTH,
    PAYLOAD_BYTES_MAX,
    split_address,
)
from durablelog.file.log_reading import LogReading, read_ranges
from segmentstore.contracts.checksum import Buffer, crc32c_parts
from segmentstore.contracts.errors import (
    ConfigError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
    TierUnavailableError,
    describe,
)
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.runtime import Runtime

FILE_BYTES: Final = 64 * 1024 * 1024
KEPT_SHARE: Final = 4
"""While there is no room for the next file, this part (a quarter) of the present one is left to
operations that free room. A file is prepared from its half on, so appends continue for another
quarter.
"""


class FileLog(DurableDataLog):
    """One opening of the log in `directory`, which is made if it is not there.

    `file_bytes`: size of a log file, at most 4 GiB; must hold a frame of `payload_bytes_max`
    (ConfigError). `epoch_min`: the least epoch of this opening, for a log that follows one that was
    lost (recovery/restore.py). An object is opened once; after `close` make a new one.
    """

    def __init__(
        self,
        directory: str,
        container_id: int,
        runtime: Runtime,
        *,
        file_bytes: int = FILE_BYTES,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        epoch_min: int = 1,
    ) -> None:
        least = FILE_HEADER_LENGTH + FRAME_HEADER_LENGTH + payload_bytes_max
        if payload_bytes_max < 1 or not least <= file_bytes <= FILE_BYTES_MAX:
            raise ConfigError(
                "file_bytes", f"{file_bytes}: it must be {least} (one frame) to {FILE_BYTES_MAX}"
            )
        self._container_id = container_id
        self._runtime = runtime
        self._file_bytes = file_bytes
        self._payload_bytes_max = payload_bytes_max
        tag = f"{runtime.random.getrandbits(64):016x}"
        self._folder = LogFolder(
            directory, container_id, runtime.disk, tag, epoch_min, payload_bytes_max
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer_thread: Executor | None = None
        self._helper: Executor | None = None
        self._place_reader: Executor | None = None  # made when something is read by place
        self._failure: Callable[[], SegmentStoreError] | None = self._stopped
        self._closed = False
        self._closing = asyncio.Lock()
        self._in_flight: deque[tuple[asyncio.Future[LogAddress], int]] = deque()
        self._stopping: list[bool] = []  # grows once; checked from the executors
        self._said_full = False
        self._room = 0
        """Bytes behind the last acknowledged frame that need no more room of the disk."""
        self._prefers_roll = True
        """The file of that frame is left early: its room and that of the next are not both used."""
        self._preparer = FilePreparer(
            self._folder,
            file_bytes,
            self._stopping,
            on_ready=self._file_ready,
            on_file=self._room_changed,
            on_failure=lambda error: self._running()[1].submit(self._commit.no_file, error),
            on_room=self._room_changed,
        )
        self._truncation = FileTruncation(
            self._folder, self._preparer, self._running, self._give_up
        )
        self._commit = GroupCommit(
            self._folder,
            self._preparer,
            self._stopping,
            room_wanted=self._room_wanted,
            on_written=self._written,
            on_full=self._file_full,
            on_failed=self._stop,
            now_ms=lambda: runtime.boot().elapsed_ms,
        )
        self._parts = FileParts(
            self._folder, container_id, runtime, self.check_primary, self._truncation.unpinned
        )
        self._bytes_in_flight = 0
        self._frames_appended = 0
        self._bytes_appended = 0
        self._groups = 0

    @property
    def epoch(self) -> int:
        return self._folder.epoch

    @property
    def short(self) -> bool:
        return bool(self._preparer.shortage)

    @property
    def full(self) -> bool:
        # What is on its way must have its place: were the disk full the next moment, nothing behind
        # it could make room.
        self._said_full = self._free < (
            self._kept if self._preparer.limited else FRAME_HEADER_LENGTH
        )
        return self._said_full

    @property
    def relief_bytes(self) -> int:
        # The other half of what is kept is for storage updates and a checkpoint.
        return max(0, self._free - self._kept // 2)

    @property
    def _free(self) -> int:
        """Bytes that are known to have room, behind all that is on its way."""
        ready = self._preparer.ready_bytes
        room = max(self._room, ready) if self._prefers_roll else self._room + ready
        return room - self._bytes_in_flight

    @property
    def _kept(self) -> int:
        """Bytes that are left to operations that make room."""
        return self._preparer.file_bytes // KEPT_SHARE

    def _room_wanted(self) -> int:
        """So that what comes behind what is on its way still has room that is known."""
        return self._kept + min(self._bytes_in_flight, GROUP_BYTES_MAX)

    @property
    def payload_bytes_max(self) -> int:
        return self._payload_bytes_max

    async def open(self) -> None:
        if self._closed or self._writer_thread is not None:
            raise ContainerStoppedError(self._container_id)
        self._writer_thread = self._runtime.executor(f"log-{self._container_id}", 1)
        self._helper = self._runtime.executor(f"log-{self._container_id}-files", 1)
        self._loop = asyncio.get_running_loop()
        self._commit.open(self._writer_thread, self._helper)
        opened = False
        try:
            await self._loop.run_in_executor(
                self._writer_thread, self._folder.open, self._file_bytes, self._kept
            )
            opened = True
        except OSError as error:
            raise TierUnavailableError(
                "tier1", f"opening the log in {self._folder.directory}: {error}"
            ) from error
        finally:
            if not opened:
                await self.close()
        self._failure = None
        self._parts.begin()
        self._commit.begin(self._folder.kernel_syncs)
        self._room = self._folder.writer.room
        self._preparer.begin(self._loop, self._helper, short=not self._folder.found_room)

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
        # Here, beside the sync of the group before: the writer thread would make the disk wait. And
        # first: it takes long, and a signal handler that raises does so behind it.
        frame = WaitingFrame(payload, length, crc32c_parts(payload))
        self._in_flight.append((future, length))
        self._bytes_in_flight += length
        self._commit.add(frame)
        return future

    def read(self, start: LogAddress | None = None) -> AsyncGenerator[Sequence[LogFrame], None]:
        return self._read(start)

    def last_address(self) -> LogAddress | None:
        return self._folder.last_address or None

    def place_of(self, address: LogAddress) -> str:
        number, position = split_address(address)
        return f"{self._folder.path_of(number)} offset {position}"

    @property
    def reads_ranges(self) -> bool:
        return True

    def payload_address(self, address: LogAddress) -> LogAddress:
        return LogAddress(address + FRAME_HEADER_LENGTH)

    async def read_ranges(self, ranges: Sequence[LogRange]) -> list[bytes | None]:
        loop, _, _ = self._running()
        if self._place_reader is None:
            self._place_reader = self._runtime.executor(f"log-{self._container_id}-places", 1)
        return await loop.run_in_executor(self._place_reader, self._read_places, ranges)

    async def truncate(self, address: LogAddress, retain_from: int | None = None) -> None:
        if address <= self._folder.truncation_address:
            return
        if self._failure is not None:
            raise self._failure()
        if address > self._folder.last_address:
            raise ValueError(f"{address:#x} is behind the last acknowledged frame")
        await self._truncation.truncate(address, retain_from)

    @property
    def first_retained(self) -> int | None:
        return self._folder.truncated.first_retained

    async def delete_retained(self, below: int | None = None) -> None:
        if self._failure is not None:
            raise self._failure()
        if self.first_retained is not None:
            await self._truncation.delete_retained(below)

    def sealed_parts(self, above: int = 0) -> Sequence[SealedPart]:
        return self._parts.sealed(above)

    async def open_part(self, number: int) -> ReadHandle:
        return await self._parts.open(number)

    async def close(self) -> None:
        self._closed = True
        if not self._stopping:
            self._stopping.append(True)
        self._failure = self._stopped
        self._preparer.end()
        self._fail_all(self._stopped)
        async with self._closing:
            await self._parts.close()
            writer_thread, helper, reader = self._writer_thread, self._helper, self._place_reader
            if writer_thread is None or helper is None or self._loop is None:
                return
            # Each executor is serial: when its turn comes, what it was doing has ended.
            if reader is not None:
                await self._loop.run_in_executor(reader, _nothing)
                reader.shutdown(wait=False)
                self._place_reader = None
            await self._loop.run_in_executor(helper, _nothing)
            await self._commit.settle()
            await self._loop.run_in_executor(writer_thread, self._release)
            self._commit.close()
            self._writer_thread = self._helper = None
            helper.shutdown(wait=False)
            writer_thread.shutdown(wait=False)

    def release_lock(self) -> None:
        self._stopping.append(True)
        self._folder.unlock()

    def statistics(self) -> DataLogStatistics:
        return DataLogStatistics(
            epoch=self._folder.epoch,
            frames_in_flight=len(self._in_flight),
            bytes_in_flight=self._bytes_in_flight,
            frames_appended=self._frames_appended,
            bytes_appended=self._bytes_appended,
            syncs=self._groups,
            log_bytes=self._folder.log_bytes,
            files=self._folder.file_count + (self._preparer.prepared is not None),
            held_bytes=self._folder.truncated.held_bytes,
            retained_bytes=self._folder.truncated.retained_bytes,
        )

    # --- reports, on the loop ---------------------------------------------------------------------

    def _file_ready(self) -> None:
        self._commit.start()

    def _room_changed(self) -> None:
        self.on_room()

    def _file_full(self) -> None:
        self._room = 0

    def _written(self, group: WrittenGroup) -> None:
        try:
            self._acknowledge(group)
        except BaseException as error:
            # A signal handler's, too: an acknowledgement that is lost here comes never again.
            self._stop("acknowledging what was written to", error)
            raise

    def _acknowledge(self, group: WrittenGroup) -> None:
        if self._failure is not None:
            return
        self._folder.grow(group, self._runtime.clock.time_ms())
        self._room = group.room
        self._prefers_roll = group.prefers_roll
        self._preparer.ready_bytes -= group.entered_bytes
        self._groups += 1
        for address in group.addresses:
            # Answered, then forgotten: an interrupt between the two leaves no caller waiting.
            future, length = self._in_flight[0]
            if not future.done():
                future.set_result(address)
            self._in_flight.popleft()
            self._bytes_in_flight -= length
            self._frames_appended += 1
            self._bytes_appended += length
        if self._said_full and not self.full:
            self._room_changed()
        # Nothing is written while the log is full: only here can the next file be asked for.
        if group.wants_prepared or self.full:
            self._preparer.wrote(self._groups, self._bytes_appended)
            self._preparer.want()
        self.on_settled()

    def _fail(self, failure: Callable[[], SegmentStoreError]) -> None:
        """For good: nothing is written any more."""
        if self._failure is not None:
            return
        self._failure = failure
        self._stopping.append(True)
        self._preparer.end()
        self._fail_all(failure)

    def _fail_all(self, failure: Callable[[], SegmentStoreError]) -> None:
        self._commit.drop()
        had_any = bool(self._in_flight)
        while self._in_flight:
            # Answered, then forgotten: `close` goes on with those that an interrupt leaves.
            future, _ = self._in_flight[0]
            if not future.done():
                future.set_exception(failure())
            self._in_flight.popleft()
        self._bytes_in_flight = 0
        if had_any:
            self.on_settled()

    def _stop(self, doing: str, error: BaseException) -> None:
        """Fail, and notify the engine, though nothing may be in flight."""
        if self._failure is None:
            self.on_failed(self._give_up(doing, error))

    def _give_up(self, doing: str, error: BaseException) -> SegmentStoreError:
        failure = self._failure_of(doing, error)
        self._fail(failure)
        return failure()

    def _failure_of(self, doing: str, error: BaseException) -> Callable[[], SegmentStoreError]:
        """A function that makes an error of its own for each caller that waits."""
        if isinstance(error, NotPrimaryError):
            return lambda: NotPrimaryError(
                self._container_id, "its log was opened by another owner"
            )
        detail = f"{doing} the log in {self._folder.directory}: {describe(error)}"
        if isinstance(error, TierUnavailableError):
            detail = error.detail
        return lambda: TierUnavailableError("tier1", detail)

    def _stopped(self) -> ContainerStoppedError:
        return ContainerStoppedError(self._container_id)

    # --- the other executors ----------------------------------------------------------------------

    def _read_places(self, ranges: Sequence[LogRange]) -> list[bytes | None]:
        """On the third executor."""
        # However many wait here, a close does not wait for them to be read.
        if self._closed:
            raise self._stopped()
        return read_ranges(self._runtime.disk, self._folder.path_of, ranges)

    def _release(self) -> None:
        """On the writer thread, which alone takes the prepared file: give everything back."""
        prepared = self._preparer.take()
        if prepared is not None:
            prepared.file.close()
            self._folder.remove([prepared.path])
        self._folder.remove_spares()
        self._folder.restore_reserve()
        self._folder.close()

    def keep_room_for(self, length: int) -> None:
        self._folder.reserve.keep_room_for(length)

    def health(self) -> str | None:
        full = f"the disk of the log is full, appends wait for room: {self._preparer.shortage}"
        return "; ".join(filter(None, (full if self.short else "", self._parts.health()))) or None

    async def check_primary(self) -> None:
        loop, writer_thread, _ = self._running()
        try:
            await loop.run_in_executor(writer_thread, self._folder.check_ours)
        except OSError as error:
            raise TierUnavailableError(
                "tier1", f"reading the log in {self._folder.directory}: {error}"
            ) from error

    async def _read(self, start: LogAddress | None) -> AsyncGenerator[Sequence[LogFrame], None]:
        reading = LogReading(self._runtime.disk, self._container_id, self._folder.stretches(start))
        self._truncation.begin_reading()
        step: asyncio.Future[list[LogFrame] | None] | None = None
        try:
            while True:
                loop, writer_thread, helper = self._running()
                try:
                    frames = await (step or _begin(loop, helper, reading))
                except OSError as error:
                    reason = await loop.run_in_executor(writer_thread, self._folder.reason, error)
                    failure = self._failure_of("reading", reason)
                    raise failure() from error
                if frames is None:
                    return
                # While the caller works on these; a log that was closed meanwhile begins nothing.
                step = None if self._closed else _begin(loop, helper, reading)
                yield frames
        finally:
            if self._helper is None:
                reading.close()
            else:
                # A cancelled reader's last step may still be under way: its file is closed behind
                # it.
                self._helper.submit(reading.close)
            self._truncation.end_reading()

    def _running(self) -> tuple[asyncio.AbstractEventLoop, Executor, Executor]:
        if (
            self._closed
            or self._loop is None
            or self._writer_thread is None
            or self._helper is None
        ):
            raise ContainerStoppedError(self._container_id)
        return self._loop, self._writer_thread, self._helper


def _begin(
    loop: asyncio.AbstractEventLoop, helper: Executor, reading: LogReading
) -> asyncio.Future[list[LogFrame] | None]:
    step = loop.run_in_executor(helper, reading.step)
    # A reader that stops before its end never asks what became of the last one.
    step.add_done_callback(lambda done: done.cancelled() or done.exception())
    return step


def _nothing() -> None:
    """Submitted to a serial executor to wait for what is before it."""
