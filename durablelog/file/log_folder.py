"""The folder of one file log while it is open: ownership, the files that count, the truncation
point.

`open`, `truncate`, `remove` and `close` block and run on the log's executors; the rest is called on
the event loop and costs nothing. Rules of this file:

- opening searches for corruption before it changes anything, and then fences. It checks again then,
  for what the old owner may have acknowledged in between, and begins a file of its own;
- order of a truncation: second names of the files to retain, address durable in the state, then
  the files before it removed or kept as spares (truncated_files.py);
- on a full disk an opening gives up the reserve, then what earlier owners of the log left over, and
  no more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from durablelog.data_frame import FRAME_HEADER_LENGTH
from durablelog.durable_data_log import LogAddress
from durablelog.file.frame_pieces import read_piece
from durablelog.file.group_writer import GroupWriter, PreparedFile, WrittenGroup, prepare_file
from durablelog.file.log_layout import (
    FILE_HEADER_LENGTH,
    PAYLOAD_BYTES_MAX,
    PREPARED_SUFFIX,
    LogState,
    file_name,
    file_number,
    make_address,
    maker_epoch,
    split_address,
)
from durablelog.file.log_reading import FileStretch
from durablelog.file.log_scanner import FIRST_SEQUENCE, LogFile, LogScan, has_grown, scan_log
from durablelog.file.log_state import StateFile, lock_log, read_state
from durablelog.file.room import NoRoomError, Reserve
from durablelog.file.spare_files import SpareFiles
from durablelog.file.truncated_files import TruncatedFiles
from durablelog.log_view import LogChangedError
from segmentstore.contracts.disk import (
    Disk,
    DiskFile,
    KernelSyncs,
    make_directories,
    remove_if_there,
)
from segmentstore.contracts.errors import (
    ConfigError,
    DataCorruptionError,
    NotPrimaryError,
    StoreInUseError,
    TierUnavailableError,
)

FRAMES_MIN: Final = 3
"""Of the largest size, that a file holds which is made small for want of room."""
_SCANS: Final = 8
"""At a log that changes under each of them, before that is reported."""


class LogFolder:
    """What one owner knows of the folder.

    `tag` distinguishes this opening from all others; `writer` is for the writer thread alone.
    """

    def __init__(
        self,
        directory: str,
        container_id: int,
        disk: Disk,
        tag: str,
        epoch_min: int = 1,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
    ) -> None:
        self.directory = directory
        self._tag = tag
        self._epoch_min = epoch_min
        self.disk = disk
        self._container_id = container_id
        self._lock: DiskFile | None = None
        self._state: StateFile | None = None
        self._viewed: LogState | None = None
        """The state as `view` found it."""
        self._writer: GroupWriter | None = None
        self._files: list[LogFile] = []
        self._growing = 0
        """The number of the file that frames go to; of a log that is viewed, that would."""
        self._spares = SpareFiles(directory, disk)
        self.reserve = Reserve(directory, disk, payload_bytes_max)
        self._file_bytes_min = FILE_HEADER_LENGTH + FRAMES_MIN * (
            FRAME_HEADER_LENGTH + payload_bytes_max
        )
        self.truncated = TruncatedFiles(
            directory, disk, self._spares, self.reserve, self._file_bytes_min
        )
        self.found_room = False
        """Whether the opening found the room it searched for."""
        self.kernel_syncs: KernelSyncs | None = None
        """Of the folder, for the loop; from `open` on."""
        self.epoch = 0
        self.truncation_address = LogAddress(0)
        self.last_address = LogAddress(0)
        """Not below that of the last frame acknowledged or found, and below all that come; 0 if
        there is none.
        """
        self.log_bytes = 0

    @property
    def writer(self) -> GroupWriter:
        """The writing end."""
        assert self._writer is not None
        return self._writer

    @property
    def file_count(self) -> int:
        """Files that count, retained ones, those that wait to be removed, and spares."""
        return len(self._files) + len(self.truncated) + len(self._spares)

    def open(self, file_bytes: int, kept: int = 0) -> None:
        """Take ownership and find the end; then make the reserve, and find `kept` bytes of room, as
        far as there are any.

        Raises the errors of DurableDataLog.open, and OSError.
        """
        try:
            with self.explained():
                self._open(file_bytes)
                self._find_room(kept)
                self.kernel_syncs = self.disk.kernel_syncs(self.directory)
        except NotPrimaryError as error:
            raise StoreInUseError(
                self.directory, "another owner opened it at the same time"
            ) from error
        except NoRoomError as error:
            raise TierUnavailableError(
                "tier1", f"opening the log in {self.directory}: {error}"
            ) from error

    def view(self) -> None:
        """Find what there is to read, without owning it: nothing is locked or changed.

        Then `stretches` has it all.

        Raises DataCorruptionError, ConfigError, StoreInUseError (an owner changes the log during
        every scan), OSError.
        """
        if not self.disk.is_directory(self.directory):
            # No process has opened it yet.
            self._viewed = self._read_state()
            return
        state, scan = self._scan()
        self._viewed = state
        self.epoch = state.epoch
        self.truncation_address = state.truncation_address
        self._files = scan.files
        self._growing = scan.tail[2].number if scan.tail is not None else 0
        self._note_times()
        self.truncated.find(split_address(self.truncation_address)[0])
        self.log_bytes = sum(file.log_bytes for file in self._files)
        self.last_address = self._find_last()

    def check_unchanged(self) -> None:
        """Raise LogChangedError if an owner has opened or truncated the log since `view`.

        Raises OSError.
        """
        if self._read_state() != self._viewed:
            raise LogChangedError(
                f"an owner elsewhere opened or truncated the log in {self.directory} while "
                "it was read"
            )

    def _open(self, file_bytes: int) -> None:
        self._file_bytes_min = min(self._file_bytes_min, file_bytes)
        self.truncated.spare_bytes_min = self._file_bytes_min
        make_directories(self.disk, self.directory)
        self._lock = lock_log(self.directory, self.disk)
        before, scan = self._scan()
        self._state = self._claim(before)
        state = self._state.state
        if has_grown(self.directory, self.disk, before, state, scan):
            scan = self._scan_again(state)
        self.epoch = state.epoch
        self.truncation_address = state.truncation_address
        self._writer = GroupWriter(self.directory, self.disk, self._state, file_bytes, scan)
        self.truncated.find(split_address(self.truncation_address)[0])
        self._settle(scan, self._begin(self._writer, scan))
        self._clean(scan.others)

    def _find_room(self, kept: int) -> None:
        # What fails for another reason is tried again by the preparation of the next file.
        with contextlib.suppress(NoRoomError, OSError):
            self.reserve.make()
            self.found_room = self.writer.secure(1, kept)

    def _claim(self, before: LogState) -> StateFile:
        def clean() -> None:
            # We hold the lock. An owner who lost it without knowing, and misses a file, is the one
            # we are about to fence.
            self.epoch = before.epoch
            self.truncated.find(split_address(before.truncation_address)[0])
            self._clean([])

        for make_room in (self.reserve.give_to_state, self.reserve.give_all, clean):
            try:
                return StateFile.claim(
                    self.directory, self.disk, self._container_id, self._tag, self._epoch_min
                )
            except NoRoomError:
                make_room()
        return StateFile.claim(
            self.directory, self.disk, self._container_id, self._tag, self._epoch_min
        )

    def _begin(self, writer: GroupWriter, scan: LogScan) -> LogFile:
        def clean() -> None:
            # What lies before the truncation point is not needed; other files that hold no frame
            # may still say which frames are missing, until the new one says so.
            first, _ = split_address(self.truncation_address)
            self._clean([name for name in scan.others if (file_number(name) or 0) < first])

        for make_room in (
            clean,
            self.reserve.give_to_state,
            self.reserve.give_to_frames,
            self.reserve.give_all,
        ):
            try:
                return writer.begin(scan)
            except NoRoomError:
                make_room()
        return writer.begin(scan)

    def make_truncation_room(self) -> None:
        """Give up of the reserve what a state record takes. Raises OSError."""
        if not self.reserve.give_to_state():
            self.reserve.give_all()

    def _scan(self) -> tuple[LogState, LogScan]:
        """The state, and what lies there.

        No owner is fenced yet: a living one may append, roll and truncate during this scan.

        So apparent corruption, or a missing file, is checked again, and believed if the same place
        shows the same, in the same state. An owner writes in order, so all that a first check saw
        lies before what a second one comes upon.
        """
        seen: tuple[LogState, str] | None = None
        for _ in range(_SCANS):
            state = self._read_state()
            try:
                return state, scan_log(self.directory, self.disk, state)
            except (DataCorruptionError, FileNotFoundError) as error:
                if seen == (state, str(error)):
                    raise
                seen = state, str(error)
        raise StoreInUseError(self.directory, "its owner is alive, and changes it in every scan")

    def _scan_again(self, state: LogState) -> LogScan:
        """What the former owner may have acknowledged between the check and the claim."""
        for _ in range(_SCANS):
            try:
                return scan_log(self.directory, self.disk, state)
            except DataCorruptionError:
                if self.is_fenced():
                    # A later owner has begun to truncate during our scan.
                    raise NotPrimaryError(
                        self._container_id, "its log was opened by another owner"
                    ) from None
                raise
            except FileNotFoundError:
                # The owner we fenced still removes files that hold no frame; or a later one has
                # come.
                self.check_ours()
        return scan_log(self.directory, self.disk, state)

    def is_fenced(self) -> bool:
        """True if another owner has opened the log. Blocks for a stat; for the writer thread."""
        return self._state is not None and not self._state.is_ours()

    def check_ours(self) -> None:
        """Raise NotPrimaryError or TierUnavailableError (the folder is missing) if the log is not
        ours; for the writer thread.
        """
        if self._state is not None and not self._state.is_ours():
            raise self._state.loss()

    def reason(self, error: Exception) -> Exception:
        """What an error says.

        A file that is missing says most often that the log is not ours any more: a later owner
        removes what we have made, truncated or prepared. For the writer thread.
        """
        if not isinstance(error, FileNotFoundError):
            return error
        try:
            self.check_ours()
        except (NotPrimaryError, TierUnavailableError, OSError) as reason:
            return reason
        return error

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the `reason` of an error; for the writer thread."""
        try:
            yield
        except FileNotFoundError as error:
            reason = self.reason(error)
            if reason is error:
                raise
            raise reason from error

    def path_of(self, number: int) -> str:
        """Of a file of this log."""
        return os.path.join(self.directory, file_name(number))

    def grow(self, group: WrittenGroup, now_ms: int) -> None:
        """Take note of a durable group."""
        file = self._files[-1]
        if group.file.number != file.number:
            file = group.file
            self._files.append(file)
            self._growing = file.number
        file.taken_ms = now_ms
        self.log_bytes += group.end_position - file.end_position
        file.end_position = group.end_position
        file.end_sequence = group.end_sequence
        self.last_address = group.addresses[-1]

    def stretches(self, start: LogAddress | None) -> list[FileStretch]:
        """What there is to read now, from `start` (or the truncation point) on.

        ValueError: no frame can be there.
        """
        number, position = (
            split_address(start)
            if start is not None and start > self.truncation_address
            else (0, 0)
        )
        result: list[FileStretch] = []
        for file in self._files:
            if file.number < number or file.first_sequence == file.end_sequence:
                continue
            stretch = FileStretch(
                file.number, file.path, file.start_position, file.first_sequence, file.end_sequence
            )
            if file.number == number and position > file.start_position:
                if position >= file.end_position:
                    continue
                stretch.position, stretch.expected = position, None
            result.append(stretch)
        return result

    def truncate(self, address: LogAddress, retain_from: int | None) -> list[LogFile]:
        """Make `address` the first frame, durably; gives the file that it is in as it counts then.

        Files before it are retained from this number on. On the writer thread.

        Raises ValueError (not a frame's address), OSError, and what `check_ours` raises.
        """
        assert self._state is not None
        number, position = split_address(address)
        self.check_ours()
        if address <= self._state.state.truncation_address:
            return []
        file = next((file for file in self._files if file.number == number), None)
        if file is None or not file.start_position <= position < file.end_position:
            raise ValueError(f"{address:#x} is not the address of a frame of this log")
        with self.explained():
            sequence = self._sequence_at(file, position)
            if retain_from is not None:
                before = [file for file in self._files if retain_from <= file.number < number]
                self.truncated.link(before, self.epoch)
            self._state.truncate(address, sequence)
        return [
            LogFile(number, file.path, sequence, file.end_sequence, position, file.end_position)
        ]

    def forget(self, truncated: Sequence[LogFile]) -> None:
        """After `truncate`, on the loop: what lies before no longer counts."""
        for first in truncated:
            address = make_address(first.number, first.start_position)
            if address <= self.truncation_address:
                continue
            self.truncation_address = address
            kept: list[LogFile] = []
            self.truncated.truncated([file for file in self._files if file.number < first.number])
            for file in self._files:
                if file.number < first.number:
                    self.log_bytes -= file.log_bytes
                    continue
                if file.number == first.number:
                    self.log_bytes -= first.start_position - file.start_position
                    file.start_position = first.start_position
                    file.first_sequence = first.first_sequence
                kept.append(file)
            self._files = kept

    def sealed_files(self, above: int = 0) -> list[LogFile]:
        """The files that take no more frames, and have some, retained ones too: those of higher
        numbers. O(these).
        """
        files: list[LogFile] = []
        for file in reversed(self._files):
            if file.number <= above:
                break
            if file.number != self._growing and file.begin_sequence < file.end_sequence:
                files.append(file)
        files.reverse()
        return self.truncated.retained(above) + files

    def discard_truncated(self, files: Sequence[LogFile]) -> None:
        """What `TruncatedFiles.take_removable` gave."""
        self.truncated.discard(files, self.epoch)

    def next_file(self, path: str, length: int, enough: Callable[[], bool] | None) -> PreparedFile:
        """A file to continue in, at `path`: a spare, or one of `length` bytes, or of a part of that
        on a disk with little room; `enough` as of `prepare_file`. The reserve is created first, if
        it is missing. Raises NoRoomError, OSError.
        """
        self.reserve.make()
        spare = self._spares.take(path)
        if spare is not None:
            return spare
        while True:
            try:
                return prepare_file(path, self.disk, length, enough)
            except NoRoomError:
                length //= 2
                if length < self._file_bytes_min:
                    raise

    def makeshift_file(self, path: str) -> PreparedFile:
        """An empty file to go on in, at `path`, and what room the reserve has for frames.

        Raises NoRoomError, OSError.
        """
        spare = self._spares.take(path)
        if spare is not None:
            return spare
        self.reserve.give_to_frames()
        prepared = prepare_file(path, self.disk, 0)
        prepared.short = True
        return prepared

    def remove_spares(self) -> None:
        """Before `close`: the next opening could not use them."""
        self.remove(self._spares.give_up())

    def restore_reserve(self) -> None:
        """Before `close`: what the log itself has freed is there for the next opening.

        Only if the log is ours.
        """
        if self._writer is None or self.reserve.whole:
            return
        with contextlib.suppress(NoRoomError, OSError):
            if not self.is_fenced():
                self.reserve.make()

    def remove(self, paths: Sequence[str]) -> None:
        """Unlink files. One that cannot be removed now is removed by the next opening."""
        if not paths:
            return
        try:
            for path in paths:
                remove_if_there(self.disk, path)
            self.disk.sync_directory(self.directory)
        except OSError:
            pass

    def close(self) -> None:
        """Give everything back, the lock last; idempotent."""
        if self._writer is not None:
            self._writer.close()
        if self._state is not None:
            self._state.close()
        self.unlock()

    def unlock(self) -> None:
        """Give the lock back; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _read_state(self) -> LogState:
        state = read_state(self.directory, self.disk)
        there = state is None and self.disk.is_directory(self.directory)
        if there and any(map(_is_log_file, self.disk.list_directory(self.directory))):
            # Another owner may have begun the log since the check; its record came before its
            # files.
            state = read_state(self.directory, self.disk)
            if state is None:
                raise DataCorruptionError(
                    self.directory, "the state record is missing beside log files"
                )
        if state is None:
            return LogState(self._container_id, 0, LogAddress(0), FIRST_SEQUENCE)
        if state.container_id != self._container_id:
            detail = (
                f"{self.directory} holds the log of container {state.container_id}, not "
                f"{self._container_id}"
            )
            raise ConfigError("container", detail)
        return state

    def _settle(self, scan: LogScan, own: LogFile) -> None:
        """The files that count are those of the scan, shortened by what was copied into our own."""
        self._files = scan.files
        if scan.unconfirmed_position is not None:
            last = scan.files[-1]
            last.end_position, last.end_sequence = scan.unconfirmed_position, own.first_sequence
            if not last.log_bytes:
                scan.others.append(os.path.basename(last.path))
                self._files.pop()
        self._note_times()
        self._files.append(own)
        self._growing = own.number
        self.log_bytes = sum(file.log_bytes for file in self._files)
        self.last_address = self._find_last()

    def _note_times(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):
                file.taken_ms = self.disk.modified_ms(file.path)

    def _find_last(self) -> LogAddress:
        """Somewhere in the last frame; good enough to bound addresses, which are checked when
        used.
        """
        for file in reversed(self._files):
            if file.log_bytes:
                return make_address(file.number, file.end_position - 1)
        return LogAddress(0)

    def _clean(self, log_files: Sequence[str]) -> None:
        """What crashes and truncations left behind.

        What a later owner has made is not left behind: we are fenced then.
        """
        names = [
            name
            for name in self.disk.list_directory(self.directory)
            if name.endswith(PREPARED_SUFFIX)
            and maker_epoch(name) <= self.epoch
            and not self.truncated.keeps(name)
        ]
        self.remove([os.path.join(self.directory, name) for name in (*log_files, *names)])

    def _sequence_at(self, file: LogFile, position: int) -> int:
        handle = self.disk.open(file.path)
        try:
            frames = read_piece(handle, file.path, position, FILE_HEADER_LENGTH).frames
        finally:
            handle.close()
        if not frames or not file.first_sequence <= frames[0].header.sequence < file.end_sequence:
            raise ValueError(f"{file.path} offset {position} is not the place of a frame")
        return frames[0].header.sequence


def _is_log_file(name: str) -> bool:
    return file_number(name) is not None
