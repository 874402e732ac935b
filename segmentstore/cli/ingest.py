"""Files into segments, a line an event, exactly once: many files at a time, each pipelined within a
bound.

A line's event number is its index in its file, so a run that was cut goes on behind the last line
the store has acknowledged. What an earlier run left is compared by length with the lines it stands
for: a file that has changed since is refused, not continued.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from segmentstore.cli.exit_codes import CommandError
from segmentstore.cli.ingest_plan import PlannedFile, writer_id_for
from segmentstore.contracts.errors import AppendTooLargeError, SegmentExistsError
from segmentstore.contracts.runtime import thread_executor

if TYPE_CHECKING:
    from segmentstore import StoreApi

WRITERS = 8
"""Files written at once, if not said otherwise."""
OUTSTANDING_LINES_MAX = 1000
OUTSTANDING_BYTES_MAX = 1 << 20
"""Unacknowledged lines of one file: whichever bound is reached first; one line is always let
through.
"""
ALL_OUTSTANDING_BYTES_MAX = 16 << 20
"""Of all files together: well below what a store takes before it refuses (`queue_bytes_max`)."""
WRITERS_MAX = 256
_READ_BYTES = 256 * 1024
_LINE_BYTES_MAX = 64 << 20
"""A line longer than this is refused before it is held in memory whole."""
_READERS = 2


@dataclass(slots=True)
class IngestProgress:
    """Numbers that only grow while an ingest runs."""

    files: int = 0
    """Finished ones."""
    lines: int = 0
    """Acknowledged in this run."""
    bytes: int = 0
    """Of these lines."""
    lines_before: int = 0
    """Already in the store from an earlier run."""
    bytes_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What an ingest did."""

    files: int
    lines: int
    bytes: int
    lines_before: int
    bytes_before: int
    seconds: float

    @property
    def appends_per_second(self) -> float:
        """Acknowledged lines of this run, per second."""
        return self.lines / self.seconds if self.seconds else 0.0


async def ingest(
    store: StoreApi,
    planned: Sequence[PlannedFile],
    *,
    writers: int = WRITERS,
    on_progress: Callable[[IngestProgress], None] = lambda _: None,
) -> IngestReport:
    """Write the files into their segments, `writers` files at a time; made as they come, continued
    if there.

    `on_progress` is called on the event loop every few thousand lines and at the end of each file.
    The first error ends it all; what was acknowledged stays, and the same call made again goes on
    behind it.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    progress = IngestProgress()
    waiting = iter(planned)
    executor = thread_executor("ingest", _READERS)
    bytes_max = min(OUTSTANDING_BYTES_MAX, ALL_OUTSTANDING_BYTES_MAX // writers)
    run = _Run(store, executor, bytes_max, progress, on_progress)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(writers, len(planned))):
                group.create_task(_write_files(run, waiting))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    finally:
        executor.shutdown(wait=True)
    return IngestReport(
        files=progress.files,
        lines=progress.lines,
        bytes=progress.bytes,
        lines_before=progress.lines_before,
        bytes_before=progress.bytes_before,
        seconds=loop.time() - began,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """What all files of one ingest share."""

    store: StoreApi
    executor: Executor
    outstanding_bytes_max: int
    """Of one file."""
    progress: IngestProgress
    on_progress: Callable[[IngestProgress], None]


async def _write_files(run: _Run, waiting: Iterator[PlannedFile]) -> None:
    loop = asyncio.get_running_loop()
    for planned in waiting:
        try:
            handle = await loop.run_in_executor(run.executor, planned.path.open, "rb")
        except OSError as error:
            raise CommandError(f"{planned.path} cannot be read: {error.strerror}") from error
        try:
            await _FileWriter(run, planned, cast("BinaryIO", handle)).write()
        finally:
            handle.close()


class _FileWriter:
    """One file on its way into its segment."""

    def __init__(self, run: _Run, planned: PlannedFile, handle: BinaryIO) -> None:
        self._run = run
        self._store = run.store
        self._planned = planned
        self._handle = handle
        self._outstanding: deque[tuple[Awaitable[int | None], int]] = deque()
        self._outstanding_bytes = 0

    async def write(self) -> None:
        name = self._planned.segment
        try:
            await self._store.create_segment(name)
        except SegmentExistsError:
            pass  # an earlier run made it
        async with self._store.writer(name, writer_id_for(name)) as writer:
            number = await self._skip(writer.last_event_number + 1)
            try:
                while lines := await self._read():
                    for line in lines:
                        await self._make_room(len(line))
                        self._outstanding.append(
                            (writer.append(line, event_number=number), len(line))
                        )
                        self._outstanding_bytes += len(line)
                        number += 1
                    self._run.on_progress(self._run.progress)
                await self._settle(0, 0)
            except AppendTooLargeError as error:
                raise CommandError(f"{self._planned.path}, line {number + 1}: {error}") from error
            finally:
                # After an error the rest is of no interest, but it must not be left unawaited.
                await asyncio.gather(
                    *(awaitable for awaitable, _ in self._outstanding), return_exceptions=True
                )
        self._run.progress.files += 1
        self._run.on_progress(self._run.progress)

    async def _skip(self, lines: int) -> int:
        """Read past the first `lines` lines, which the segment has already; they must be what it
        has.
        """
        if not lines:
            return 0
        skipped = await asyncio.get_running_loop().run_in_executor(
            self._run.executor, _skip_lines, self._handle, lines
        )
        length = (await self._store.get_info(self._planned.segment)).length
        if skipped != (lines, length):
            raise CommandError(
                f"segment {self._planned.segment!r} holds {lines} lines of {length} "
                f"bytes, but {self._planned.path}"
                f" begins with {skipped[0]} lines of {skipped[1]} bytes: the file has "
                "changed, or the segment was"
                " written to by something else"
            )
        self._run.progress.lines_before += lines
        self._run.progress.bytes_before += length
        return lines

    async def _read(self) -> list[bytes]:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._run.executor, read_lines, self._handle
            )
        except LineTooLongError as error:
            raise CommandError(f"{self._planned.path}: {error}") from error

    async def _make_room(self, length: int) -> None:
        bytes_max = self._run.outstanding_bytes_max
        if (
            len(self._outstanding) >= OUTSTANDING_LINES_MAX
            or self._outstanding_bytes + length > bytes_max
        ):
            # Down to the half: one wake-up for many acknowledgements, which come in groups.
            await self._settle(OUTSTANDING_LINES_MAX // 2, bytes_max // 2)

    async def _settle(self, lines: int, size: int) -> None:
        """Wait until at most so much is outstanding."""
        progress = self._run.progress
        while self._outstanding and (
            len(self._outstanding) > lines or self._outstanding_bytes > size
        ):
            awaitable, length = self._outstanding.popleft()
            self._outstanding_bytes -= length
            await awaitable
            progress.lines += 1
            progress.bytes += length


class LineTooLongError(Exception):
    """A line that would not fit into memory bounds."""


def read_lines(
    handle: BinaryIO, bytes_max: int = _READ_BYTES, line_bytes_max: int = _LINE_BYTES_MAX
) -> list[bytes]:
    """Whole lines, each with its newline (the last one may have none), about `bytes_max` in all; []
    at the end.
    """
    lines: list[bytes] = []
    size = 0
    while size < bytes_max and (line := handle.readline(line_bytes_max + 1)):
        if len(line) > line_bytes_max:
            raise LineTooLongError(f"a line is longer than {line_bytes_max} bytes")
        size += len(line)
        lines.append(line)
    return lines


def _skip_lines(handle: BinaryIO, lines: int) -> tuple[int, int]:
    """Lines and bytes passed over; fewer lines than asked for if the file ends."""
    passed = size = 0
    while passed < lines and (line := handle.readline()):
        passed += 1
        size += len(line)
    return passed, size
