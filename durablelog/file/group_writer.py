"""The writing end of a file log: groups of frames into the current file, one write and one sync
each.

Blocking; used on the log's writer thread, `put` and `finish` on the event loop as well. Rules of
this file:

- an acknowledgement is due only after the sync *and* a check of the state file that finds it still
  ours;
- a file gets its name (a link, which never replaces another owner's file) only when its header is
  durable, and the directory is synced before its first frame is acknowledged;
- a group lies in one file, and a file is begun only when everything before it is durable.
  `durable_through` of a frame is the last frame of the group before, whichever file that lies in;
- a prepared file may hold frames of a truncated one (spare_files.py): nothing is read from it but
  what was written since it got its name;
- after an OSError the writer is finished: nothing is written or synced again. A full disk is none
  while nothing was changed that counts. Room for a group is found before it is written (`secure`),
  and a roll that finds none leaves the current file as it was.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from durablelog.data_frame import FRAME_HEADER_LENGTH, pack_header
from durablelog.durable_data_log import LogAddress
from durablelog.file.log_layout import (
    FILE_HEADER_LENGTH,
    FileHeader,
    file_name,
    make_address,
    pack_file_header,
    prepared_name,
)
from durablelog.file.log_scanner import LogFile, LogScan
from durablelog.file.log_state import StateFile
from durablelog.file.room import NoRoomError, unless_full
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import Disk, DiskFile, create_own, is_full

ZERO_PIECE_BYTES = 256 * 1024
"""A file is prepared in pieces of this size, each synced: an append waits behind the sync of one.
"""
GROW_BYTES = 4 * 1024 * 1024
"""A file that grows finds room for so much more at a time, where the disk has it."""
GROUP_BYTES_MAX: Final = 16 * 1024 * 1024
"""A group is one write and one sync; a larger one would only make its first frames wait."""
_JOIN_PARTS_MIN = 64
_JOIN_AVERAGE_MAX = 4096


class WaitingFrame(NamedTuple):
    """A frame that is to be written: its payload in parts, their length and CRC32C."""

    payload: Sequence[Buffer]
    length: int
    checksum: int


def take_group(queue: deque[WaitingFrame], room: int) -> list[WaitingFrame]:
    """All that waits, as far as it fits into `room` bytes; at least one."""
    room = min(room, GROUP_BYTES_MAX)
    group = [queue.popleft()]
    room -= FRAME_HEADER_LENGTH + group[0].length
    while queue and queue[0].length + FRAME_HEADER_LENGTH <= room:
        waiting = queue.popleft()
        room -= FRAME_HEADER_LENGTH + waiting.length
        group.append(waiting)
    return group


@dataclass(slots=True)
class PreparedFile:
    """A file of zeros, synced, or an empty one that grows, or a spare; under a temporary name."""

    path: str
    file: DiskFile
    allocated: int = 0
    """Bytes from the beginning whose writing needs no more room."""
    short: bool = False
    """Made empty for want of room: to be followed by another as soon as there is one."""

    @property
    def room(self) -> int:
        """Bytes for frames, headers included, whose writing needs no more room of the disk."""
        return max(0, self.allocated - FILE_HEADER_LENGTH)


class UnsyncedGroup(NamedTuple):
    """A group that is in a file, and may not be durable yet."""

    file: DiskFile
    addresses: list[LogAddress]
    end_position: int
    end_sequence: int


class WrittenGroup(NamedTuple):
    """A durable group: addresses of its frames, and the file they lie in (shared; read on the
    loop).
    """

    addresses: list[LogAddress]
    file: LogFile
    end_position: int
    end_sequence: int
    wants_prepared: bool
    """The next file should be on its way."""
    room: int
    """Bytes behind the group whose writing needs no more room of the disk."""
    prefers_roll: bool
    """The file is left as soon as a prepared one has as much room."""
    entered_bytes: int
    """Room that the prepared files had which the writer rolled to since the last group."""


def prepare_file(
    path: str, disk: Disk, length: int, enough: Callable[[], bool] | None = None
) -> PreparedFile:
    """Make the next file ahead of need, with room for `length` bytes.

    Zero-written as well until `enough` says so, if it is given. Raises NoRoomError, OSError; no
    file is left then.
    """
    with unless_full(f"preparing a log file of {length} bytes"):
        file = create_own(disk, path)
        try:
            if length:
                # A full disk shows before anything is written.
                file.allocate(0, length)
            piece = memoryview(bytes(0 if enough is None else min(ZERO_PIECE_BYTES, length)))
            position = 0
            while enough is not None and position < length and not enough():
                part = piece[: length - position]
                file.pwrite([part], position)
                file.sync()
                position += len(part)
        except BaseException:
            _throw_away(disk, PreparedFile(path, file))
            raise
    return PreparedFile(path, file, allocated=length)


def _throw_away(disk: Disk, prepared: PreparedFile) -> None:
    """Close and remove a file without a name of its own; one that cannot be removed goes with the
    next opening.
    """
    prepared.file.close()
    with contextlib.suppress(OSError):
        disk.unlink(prepared.path)


class GroupWriter:
    """Writes behind the end a scan found. `begin` once, then `write` and `roll`."""

    def __init__(
        self, directory: str, disk: Disk, state: StateFile, file_bytes: int, scan: LogScan
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._state = state
        self._container_id = state.state.container_id
        self._epoch = state.state.epoch
        self._file_bytes = file_bytes
        self._number = scan.number_max
        self._next_sequence = scan.next_sequence
        self._file: DiskFile | None = None
        self._entry = LogFile(0, "", 0, 0, 0, 0)
        self._position = 0
        self._limit = 0
        self._allocated = 0
        self._began = True
        self._entered_bytes = 0

    def begin(self, scan: LogScan) -> LogFile:
        """Begin this owner's first file, which bars every older file from growing.

        Raises what `write` raises.

        Frames that were found but are not proven durable (a process died before its sync, or the
        sync failed) are copied into it. Bytes that were read back from a cache must not count as
        being on the disk. The file grows as it is written to; the prepared ones follow when there
        is something to write.
        """
        copied = _unconfirmed_frames(self._disk, scan)
        path = os.path.join(self._directory, prepared_name(self._epoch, 0))
        with unless_full("beginning a log file"):
            file = create_own(self._disk, path)
        first = scan.durable_through + 1 if copied else self._next_sequence
        self._enter(PreparedFile(path, file), first, copied)
        self._limit = max(self._file_bytes, self._position)
        return self._entry

    def fits(self, length: int) -> bool:
        """True if a frame with `length` bytes of payload fits into the current file."""
        return self._position + FRAME_HEADER_LENGTH + length <= self._limit

    @property
    def room(self) -> int:
        """Bytes left in the current file that need no more room of the disk, headers included."""
        return min(self._limit, self._allocated) - self._position

    def has_room(self, size: int, kept: int) -> bool:
        """True if frames of `size` bytes, headers included, need nothing of `secure`."""
        room = self.room
        return size <= room and (room >= kept or self._allocated >= self._limit)

    @property
    def prefers_roll(self) -> bool:
        """The current file is one that was begun without preparation, and grows: a prepared one
        serves better.
        """
        return self._began

    def roll(self, prepared: PreparedFile) -> None:
        """Go on in a prepared file.

        Raises what `write` raises, and NoRoomError: the current file is still that.
        """
        before = self._file
        self._enter(prepared, self._next_sequence, [])
        if before is not None:
            before.close()
        self._entry.rolled = True
        self._limit = self._file_bytes if prepared.short else prepared.allocated
        self._began = prepared.short
        self._entered_bytes += prepared.room

    def secure(self, least: int, kept: int) -> bool:
        """Find room behind the end for `least` bytes, which fit; False if there is none for `kept`,
        as far as that fits.

        Raises NoRoomError; OSError.
        """
        ahead = self.room
        if ahead >= max(least, kept) or self._allocated >= self._limit:
            return True
        try:
            self._allocate(
                min(
                    self._position + max(least, kept) + GROW_BYTES,
                    max(self._limit, self._position + least),
                )
            )
        except NoRoomError:
            if ahead < least:
                self._allocate(self._position + least)
            return False
        return True

    def _allocate(self, end: int) -> None:
        assert self._file is not None
        with unless_full("growing a log file"):
            self._file.allocate(self._allocated, end - self._allocated)
        self._allocated = end

    def write(self, group: Sequence[WaitingFrame]) -> WrittenGroup:
        """Write and sync frames that fit.

        Raises OSError (outcome unknown), and what `StateFile.loss` gives: the log is not ours any
        more.
        """
        return self.commit(self.put(group))

    def put(self, group: Sequence[WaitingFrame]) -> UnsyncedGroup:
        """Write frames that fit. Nothing else is written before `commit`, or `finish`.

        Raises OSError (outcome unknown).
        """
        assert self._file is not None
        sequence = self._next_sequence
        durable_through = sequence - 1
        start = position = self._position
        addresses: list[LogAddress] = []
        buffers: list[Buffer] = []
        container_id, epoch = self._container_id, self._epoch
        for payload, length, checksum in group:
            buffers.append(
                pack_header(container_id, epoch, sequence, durable_through, length, checksum)
            )
            buffers += payload
            addresses.append(make_address(self._number, position))
            position += FRAME_HEADER_LENGTH + length
            sequence += 1
        if len(buffers) > _JOIN_PARTS_MIN and position - start < len(buffers) * _JOIN_AVERAGE_MAX:
            buffers = [b"".join(buffers)]
        self._file.pwrite(buffers, start)
        return UnsyncedGroup(self._file, addresses, position, sequence)

    def commit(self, group: UnsyncedGroup) -> WrittenGroup:
        """Sync what was put. Raises what `write` does."""
        group.file.sync()
        return self.finish(group)

    def finish(self, group: UnsyncedGroup) -> WrittenGroup:
        """Count what was put, and is synced. Raises what `write` does."""
        self._check_ownership()
        position = self._position = group.end_position
        self._next_sequence = group.end_sequence
        wants = (
            self.prefers_roll
            or position - FILE_HEADER_LENGTH > (self._limit - FILE_HEADER_LENGTH) // 2
        )
        entered, self._entered_bytes = self._entered_bytes, 0
        return WrittenGroup(
            group.addresses,
            self._entry,
            position,
            group.end_sequence,
            wants,
            self.room,
            self.prefers_roll,
            entered,
        )

    def close(self) -> None:
        """Close the current file; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _enter(self, prepared: PreparedFile, first_sequence: int, copied: list[bytes]) -> None:
        try:
            self._name(prepared, first_sequence, copied)
        except Exception:
            _throw_away(self._disk, prepared)
            raise
        self._file = prepared.file

    def _name(self, prepared: PreparedFile, first_sequence: int, copied: list[bytes]) -> None:
        """Header (and copied frames) durable first, then the name, then the directory."""
        number = self._number + 1
        length = FILE_HEADER_LENGTH + sum(map(len, copied))
        while True:
            header = FileHeader(
                self._container_id, number, self._epoch, first_sequence, self._next_sequence - 1
            )
            with unless_full("beginning a log file"):
                if prepared.allocated < length:
                    prepared.file.allocate(0, length)
                    prepared.allocated = length
                prepared.file.pwrite([pack_file_header(header), *copied], 0)
                prepared.file.sync()
            self._check_ownership()
            path = os.path.join(self._directory, file_name(number))
            try:
                self._link(prepared, path)
                break
            except FileExistsError:
                # A fenced owner rolled between our scan and now (we are in `begin`); its file is
                # stale by our first_sequence. If it is we who are fenced, the check above finds
                # out.
                number += 1
        self._disk.unlink(prepared.path)
        self._disk.sync_directory(self._directory)
        self._number = number
        self._position = length
        self._allocated = prepared.allocated
        self._entry = LogFile(
            number,
            path,
            first_sequence,
            self._next_sequence,
            FILE_HEADER_LENGTH,
            self._position,
            begin_sequence=first_sequence,
            epoch=self._epoch,
        )

    def _link(self, prepared: PreparedFile, path: str) -> None:
        try:
            self._disk.link(prepared.path, path)
        except OSError as error:
            if not is_full(error) or prepared.file.is_at(path):
                # With the name given, frames that went on into the file before would not count.
                raise
            raise NoRoomError(f"naming a log file: {error.strerror}") from error

    def _check_ownership(self) -> None:
        if not self._state.is_ours():
            raise self._state.loss()


def _unconfirmed_frames(disk: Disk, scan: LogScan) -> list[bytes]:
    """The frames above the proven end, as they are; bounded by one group and its frames."""
    if scan.unconfirmed_position is None:
        return []
    last = scan.files[-1]
    file = disk.open(last.path)
    try:
        return [
            file.pread(scan.unconfirmed_position, last.end_position - scan.unconfirmed_position)
        ]
    finally:
        file.close()
