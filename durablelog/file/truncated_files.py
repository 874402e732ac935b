"""Files in front of a log's truncation point: those that are retained, and those that are to go.

Rules of this file:

- a file is retained under a second name, durable before the state record moves: at any crash it is
  a file of the log, or retained. The name says what its parts need, so no opening reads the file;
- then the first name is removed. It never becomes a spare, for the bytes are those of the second;
- a second name at or behind the truncation point is left over: the file is one of the log;
- names of two owners for one file: the later one counts;
- a file that is pinned is not removed;
- `find`, `link` and `discard` block, on the log's executors; the rest is for the event loop.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from durablelog.file.log_layout import (
    FILE_HEADER_LENGTH,
    RetainedName,
    parse_retained_name,
    retained_name,
)
from durablelog.file.log_scanner import LogFile
from durablelog.file.room import Reserve, unless_full
from durablelog.file.spare_files import SpareFiles
from segmentstore.contracts.disk import Disk, remove_if_there


class TruncatedFiles:
    """Of one opening, or view, of a log."""

    def __init__(
        self, directory: str, disk: Disk, spares: SpareFiles, reserve: Reserve, spare_bytes_min: int
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._spares = spares
        self._reserve = reserve
        self.spare_bytes_min = spare_bytes_min
        """A smaller file is not kept as a spare."""
        self._retained: list[LogFile] = []
        """Oldest first."""
        self._linked: dict[int, LogFile] = {}
        """Have a second name, and are of the log as far as the state record says."""
        self._removable: list[LogFile] = []
        self.pinned: Final[dict[int, int]] = {}
        """Readers of sealed files, by number: such a file is not removed."""
        self.retained_bytes = 0

    def __len__(self) -> int:
        return len(self._retained) + len(self._removable)

    @property
    def first_retained(self) -> int | None:
        """Number of the oldest retained file."""
        return self._retained[0].number if self._retained else None

    def retained(self, above: int) -> list[LogFile]:
        """Those of higher numbers. O(these)."""
        return self._retained[bisect_right(self._retained, above, key=_number_of) :]

    def keeps(self, name: str) -> bool:
        """Whether a file of this name is retained."""
        known = parse_retained_name(name)
        if known is None:
            return False
        place = bisect_left(self._retained, known.number, key=_number_of)
        return place < len(self._retained) and self._retained[place].path == self._path(name)

    @property
    def held_bytes(self) -> int:
        """Of files that are not retained, and pinned."""
        if not self.pinned:
            return 0
        kept = {file.number for file in self._retained}
        going = {file.number: file.log_bytes for file in self._removable}
        return sum(
            size for number, size in going.items() if number in self.pinned and number not in kept
        )

    def find(self, truncation_number: int) -> None:
        """What is retained, by the names in the folder. Raises OSError."""
        found: dict[int, tuple[RetainedName, str]] = {}
        for name in self._disk.list_directory(self._directory):
            known = parse_retained_name(name)
            if known is None or known.number >= truncation_number:
                continue
            if known.number not in found or found[known.number][0] < known:
                found[known.number] = known, name
        self._retained = [
            _file_of(known, self._path(name)) for _, (known, name) in sorted(found.items())
        ]
        self.retained_bytes = sum(file.log_bytes for file in self._retained)

    def link(self, files: Sequence[LogFile], epoch: int) -> None:
        """Give files that are about to be truncated their second names, durably; `epoch` is the
        owner's. Raises NoRoomError, OSError.
        """
        missing = [file for file in files if file.number not in self._linked]
        for file in missing:
            known = RetainedName(
                epoch,
                file.number,
                file.epoch,
                file.begin_sequence,
                file.end_sequence,
                file.end_position,
                file.taken_ms,
            )
            path = self._path(retained_name(known))
            # It may be there: from a try that found no room.
            with unless_full("retaining a log file"), suppress(FileExistsError):
                self._disk.link(file.path, path)
            self._linked[file.number] = replace(_file_of(known, path), rolled=file.rolled)
        if missing:
            self._disk.sync_directory(self._directory)

    def truncated(self, files: Sequence[LogFile]) -> None:
        """The state record has left these behind."""
        for file in files:
            linked = self._linked.pop(file.number, None)
            if linked is None:
                self._removable.append(file)
                continue
            self._removable.append(replace(file, rolled=False))
            self._retained.append(linked)
            self.retained_bytes += linked.log_bytes

    def delete_retained(self, below: int | None) -> None:
        """Those of lower numbers, or all, are to go."""
        end = len(self._retained)
        if below is not None:
            end = bisect_left(self._retained, below, key=_number_of)
        going, self._retained = self._retained[:end], self._retained[end:]
        self.retained_bytes -= sum(file.log_bytes for file in going)
        self._removable += going

    def take_removable(self) -> list[LogFile]:
        """What is to go, and has no reader; the caller discards it."""
        removable = self._removable
        self._removable = [file for file in removable if file.number in self.pinned]
        return [file for file in removable if file.number not in self.pinned]

    def discard(self, files: Sequence[LogFile], epoch: int) -> None:
        """Keep what can serve as a spare and unlink the rest; `epoch` is the owner's.

        What cannot be done now is done by the next opening, or its owner.

        While there is no reserve all are unlinked: its room comes first.
        """
        try:
            for file in files:
                if not self._reserve.whole or not self._spares.keep(
                    file, epoch, self.spare_bytes_min
                ):
                    remove_if_there(self._disk, file.path)
            if files:
                self._disk.sync_directory(self._directory)
        except OSError:
            pass

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _file_of(known: RetainedName, path: str) -> LogFile:
    return LogFile(
        known.number,
        path,
        known.begin_sequence,
        known.end_sequence,
        FILE_HEADER_LENGTH,
        known.end_position,
        begin_sequence=known.begin_sequence,
        epoch=known.epoch,
        taken_ms=known.taken_ms,
    )


def _number_of(file: LogFile) -> int:
    return file.number
