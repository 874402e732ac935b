"""Walks a file log from its truncation point to its end and distinguishes end, torn tail and
corruption apart.

Blocking, read-only. The rules (docs/decisions/0002-durable-through.md):

- a frame counts only if its number is below the `first_sequence` of every younger file; from there
  on the older file is stale;
- frames below a younger file's `first_sequence` were there when that file was begun: missing or
  invalid now, they are corruption;
- what lay in a file before it was written over is not there (`is_leftover` in log_layout.py);
- in the youngest file an invalid or missing frame n is corruption exactly when there is proof that
  n was durable. The proof is the state, the file's own header, or a frame behind it; otherwise the
  log ends before n.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from durablelog.data_frame import (
    FRAME_HEADER_LENGTH,
    FrameFormatError,
    FrameHeader,
    FrameVersionError,
)
from durablelog.file.frame_pieces import (
    FramePiece,
    PlacedFrame,
    find_frames,
    frame_around,
    read_piece,
)
from durablelog.file.log_layout import (
    FILE_HEADER_LENGTH,
    FileHeader,
    LogState,
    file_name,
    file_number,
    is_leftover,
    parse_file_header,
    split_address,
)
from segmentstore.contracts.disk import Disk, DiskFile
from segmentstore.contracts.errors import ConfigError, DataCorruptionError

FIRST_SEQUENCE = 1
"""Number of the first frame of every log."""


@dataclass(slots=True)
class LogFile:
    """One file of the log as far as it counts: frames [first_sequence, end_sequence)."""

    number: int
    path: str
    first_sequence: int
    """Of the first frame that counts: of the truncation point in the file that holds it."""
    end_sequence: int
    start_position: int
    end_position: int
    rolled: bool = False
    """Begun by a roll of this very opening: no other process can have it open for writing."""
    begin_sequence: int = 0
    """Of the first frame in it, wherever the truncation point is."""
    epoch: int = 0
    """Of the owner that began it."""
    taken_ms: int = 0
    """When it took its last frame, milliseconds since 1970 UTC; known once it is sealed."""

    @property
    def log_bytes(self) -> int:
        """Bytes of the frames that count, headers included."""
        return self.end_position - self.start_position


@dataclass(slots=True)
class LogScan:
    """What a walk found."""

    files: list[LogFile] = field(default_factory=list)
    """Files that hold a frame that counts, oldest first."""
    others: list[str] = field(default_factory=list)
    """Names of log files that hold none: below the truncation point, superseded, or empty."""
    number_max: int = 0
    """The highest file number in use, whatever the file holds."""
    next_sequence: int = FIRST_SEQUENCE
    durable_through: int = 0
    """Highest frame sequence that is proven durable; what lies above was only found."""
    unconfirmed_position: int | None = None
    """Where, in the last of `files`, the first frame above `durable_through` lies; None if there is
    none.
    """
    tail: tuple[str, int, FileHeader] | None = None
    """The youngest file with a whole header, the place in it where its frames end, its header; None
    if there is none.
    """


class ScanStep(NamedTuple):
    """A stretch of one file on the walk: its frames, which of them count, and what is wrong behind
    them.
    """

    path: str
    number: int
    frames: Sequence[PlacedFrame]
    counted: int
    """So many of `frames` count; the rest is stale."""
    position: int
    """Behind the last frame."""
    torn: str | None = None
    corrupt: DataCorruptionError | None = None
    expected: int = 0
    """The frame that should lie at `position`."""


class _File(NamedTuple):
    number: int
    path: str
    header: FileHeader
    limit: int | None
    """Lowest first_sequence of the younger files; None for the youngest."""


class LogWalk:
    """One walk over the log; a generator of steps that stops at the first corruption.

    Raises ConfigError (a newer format), OSError. Everything found so far is in `scan`.
    """

    def __init__(self, directory: str, disk: Disk, state: LogState) -> None:
        self._directory = directory
        self._disk = disk
        self._state = state
        self._expected = state.truncation_sequence
        self._epoch = 0
        self.scan = LogScan(next_sequence=state.truncation_sequence)
        self.scan.durable_through = state.truncation_sequence if state.truncation_address else 0

    def steps(self) -> Iterator[ScanStep]:
        """The walk."""
        truncation_number, truncation_position = split_address(self._state.truncation_address)
        try:
            files = self._files(truncation_number)
        except DataCorruptionError as error:
            yield ScanStep(error.where, 0, (), 0, 0, corrupt=error, expected=self._expected)
            return
        for file in files:
            header = file.header
            if file.limit is not None and file.limit <= header.first_sequence:
                self.scan.others.append(file_name(file.number))
                yield from self._stale(file, FILE_HEADER_LENGTH)
                continue
            start = truncation_position if file.number == truncation_number else FILE_HEADER_LENGTH
            if start == FILE_HEADER_LENGTH and header.first_sequence != self._expected:
                detail = (
                    f"the file begins with frame {header.first_sequence}; what was there is missing"
                )
                yield self._corrupt(file, FILE_HEADER_LENGTH, detail)
                return
            self.scan.durable_through = max(self.scan.durable_through, header.first_sequence - 1)
            if file.limit is None:
                self.scan.durable_through = max(self.scan.durable_through, header.durable_through)
            for step in self._walk_file(file, start):
                yield step
                if step.corrupt is not None:
                    return

    def _files(self, truncation_number: int) -> list[_File]:
        """The files from the truncation point on, their headers checked, with their limits."""
        numbers: list[int] = []
        for name in self._disk.list_directory(self._directory):
            number = file_number(name)
            if number is None:
                continue
            self.scan.number_max = max(self.scan.number_max, number)
            if number < truncation_number:
                self.scan.others.append(name)
            else:
                numbers.append(number)
        headers = [self._header(number, last=number == max(numbers)) for number in sorted(numbers)]
        files: list[_File] = []
        limit: int | None = None
        for number, header in zip(sorted(numbers, reverse=True), reversed(headers), strict=True):
            if header is None:
                self.scan.others.append(file_name(number))
                continue
            files.append(_File(number, self._path(number), header, limit))
            limit = header.first_sequence if limit is None else min(limit, header.first_sequence)
        files.reverse()
        if truncation_number and (not files or files[0].number != truncation_number):
            raise DataCorruptionError(
                f"{self._path(truncation_number)} frame {self._expected}",
                "the file of the truncation point is missing",
            )
        return files

    def _header(self, number: int, *, last: bool) -> FileHeader | None:
        """None for a last file that holds nothing: its making was not finished."""
        path = self._path(number)
        file = self._disk.open(path)
        try:
            header = parse_file_header(file.pread(0, FILE_HEADER_LENGTH))
            if (header.number, header.container_id) == (number, self._state.container_id):
                return header
            reason = f"it is file {header.number} of container {header.container_id}"
        except FrameVersionError as error:
            raise ConfigError("log format", f"{path}: {error.reason}") from error
        except FrameFormatError as error:
            reason = error.reason
            if last and next(find_frames(file, 0), None) is None:
                return None
        finally:
            file.close()
        raise DataCorruptionError(f"{path} offset 0", reason)

    def _walk_file(self, file: _File, start: int) -> Iterator[ScanStep]:
        handle = self._disk.open(file.path)
        try:
            entry = LogFile(
                file.number,
                file.path,
                self._expected,
                self._expected,
                start,
                start,
                begin_sequence=file.header.first_sequence,
                epoch=file.header.epoch,
            )
            unconfirmed: deque[tuple[int, int]] = deque()
            position = start
            while True:
                piece = read_piece(handle, file.path, position, file_header=file.header)
                counted, wrong = self._count(file, piece, unconfirmed)
                if counted and entry.end_sequence == entry.first_sequence:
                    self.scan.files.append(entry)
                if counted:
                    entry.end_sequence = self._expected
                    entry.end_position = piece.frames[counted - 1].end_position
                    self.scan.next_sequence = self._expected
                if wrong is not None:
                    place = piece.frames[counted].position
                    yield ScanStep(
                        file.path,
                        file.number,
                        piece.frames[:counted],
                        counted,
                        place,
                        expected=self._expected,
                    )
                    yield self._corrupt(file, place, wrong)
                    return
                position = piece.next_position
                if piece.ended or piece.fault is not None or counted < len(piece.frames):
                    yield self._last_step(file, handle, piece, counted)
                    break
                yield ScanStep(
                    file.path, file.number, piece.frames, counted, position, expected=self._expected
                )
            if file.limit is None:
                self.scan.tail = (file.path, position, file.header)
                self.scan.unconfirmed_position = unconfirmed[0][1] if unconfirmed else None
            if not entry.log_bytes:
                self.scan.others.append(file_name(file.number))
        finally:
            handle.close()

    def _count(
        self, file: _File, piece: FramePiece, unconfirmed: deque[tuple[int, int]]
    ) -> tuple[int, str | None]:
        """How many frames of the piece count, and what is wrong with the next one."""
        scan = self.scan
        for index, (position, header, _) in enumerate(piece.frames):
            if file.limit is not None and header.sequence >= file.limit:
                return index, None
            if header.container_id != self._state.container_id:
                return index, f"it belongs to container {header.container_id}"
            if header.sequence != self._expected:
                return index, f"frame {header.sequence} lies there"
            if header.epoch < self._epoch or header.epoch > file.header.epoch:
                return (
                    index,
                    f"its epoch {header.epoch} is not in {self._epoch} to {file.header.epoch}",
                )
            self._epoch = header.epoch
            self._expected += 1
            scan.durable_through = max(
                scan.durable_through, min(header.durable_through, header.sequence)
            )
            unconfirmed.append((header.sequence, position))
            while unconfirmed and unconfirmed[0][0] <= scan.durable_through:
                unconfirmed.popleft()
        return len(piece.frames), None

    def _last_step(
        self, file: _File, handle: DiskFile, piece: FramePiece, counted: int
    ) -> ScanStep:
        """The step at whose end this file's frames end, one way or another."""
        place = (
            piece.frames[counted].position if counted < len(piece.frames) else piece.next_position
        )
        step = ScanStep(
            file.path, file.number, piece.frames, counted, place, expected=self._expected
        )
        reason = piece.fault or "nothing is there"
        if file.limit is not None:
            if self._expected < file.limit:
                return step._replace(
                    corrupt=self._error(
                        file, place, f"{reason}, and a later file begins with frame {file.limit}"
                    )
                )
            return step
        proof = self._proof(file, handle, piece)
        if proof is not None:
            return step._replace(corrupt=self._error(file, place, f"{reason}, {proof}"))
        if piece.fault is None or (piece.damaged is None and _holds_leftovers(file, handle, place)):
            return step
        return step._replace(torn=piece.fault)

    def _proof(self, file: _File, handle: DiskFile, piece: FramePiece) -> str | None:
        """What shows that the frame missing at the end of the youngest file had been durable.

        Leftovers never do: what they say was durable is below the first frame of the file.
        """
        expected = self._expected
        if self.scan.durable_through >= expected:
            return "but it was durable when the file was begun or the log truncated"
        start = piece.next_position
        damaged = piece.damaged
        ours = damaged is not None and (damaged.sequence, damaged.container_id) == (
            expected,
            file.header.container_id,
        )
        search: int | None = start + (damaged.frame_length if damaged is not None and ours else 0)
        while search is not None:
            for position, header in find_frames(handle, search, durable_from=expected):
                if self._plausible(file, header, position - start):
                    search = frame_around(handle, search, position)
                    if search is None:
                        return (
                            f"but frame {header.sequence} at offset {position} was written "
                            "after it was durable"
                        )
                    break
            else:
                search = None
        return None

    def _plausible(self, file: _File, header: FrameHeader, distance: int) -> bool:
        """False for what only looks like a frame of this log, such as a copy of another one kept as
        data.
        """
        ahead = header.sequence - self._expected
        return (
            header.container_id == self._state.container_id
            and self._epoch <= header.epoch <= file.header.epoch
            and 0 < ahead <= distance // FRAME_HEADER_LENGTH
            and header.durable_through < header.sequence
        )

    def _stale(self, file: _File, start: int) -> Iterator[ScanStep]:
        """Whole frames of a file of which none counts."""
        handle = self._disk.open(file.path)
        try:
            piece = read_piece(handle, file.path, start, file_header=file.header)
            yield ScanStep(
                file.path,
                file.number,
                piece.frames,
                0,
                piece.next_position,
                expected=self._expected,
            )
        finally:
            handle.close()

    def _corrupt(self, file: _File, position: int, detail: str) -> ScanStep:
        error = self._error(file, position, detail)
        return ScanStep(
            file.path, file.number, (), 0, position, corrupt=error, expected=self._expected
        )

    def _error(self, file: _File, position: int, detail: str) -> DataCorruptionError:
        return DataCorruptionError(f"{file.path} offset {position} frame {self._expected}", detail)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, file_name(number))


def _holds_leftovers(file: _File, handle: DiskFile, position: int) -> bool:
    """True if a whole one lies behind `position`: then what lies there is taken for the rest of
    one.
    """
    return any(is_leftover(header, file.header) for _, header in find_frames(handle, position))


def has_grown(
    directory: str, disk: Disk, state_before: LogState, state_now: LogState, scan: LogScan
) -> bool:
    """True if anything came or went since the scan; far cheaper than another one.

    Raises OSError, ConfigError.
    """
    if state_before[2:] != state_now[2:]:
        return True
    names = {os.path.basename(file.path) for file in scan.files} | set(scan.others)
    if names != {name for name in disk.list_directory(directory) if file_number(name) is not None}:
        return True
    if scan.tail is None:
        return False
    path, position, header = scan.tail
    file = disk.open(path)
    try:
        return bool(read_piece(file, path, position, file_header=header).frames)
    finally:
        file.close()


def scan_log(directory: str, disk: Disk, state: LogState) -> LogScan:
    """Walk the log to its end. Raises DataCorruptionError, ConfigError, OSError; changes nothing.

    Reads everything from the truncation point on: about 1 GiB/s with the files in memory.
    """
    walk = LogWalk(directory, disk, state)
    for step in walk.steps():
        if step.corrupt is not None:
            raise step.corrupt
    return walk.scan
