"""What a file log does about a full disk: what it keeps in reserve, and how it says that there is
no room.

The reserve is a file of zeros. When the disk is full it is given up, so that the log can still
write what frees room. That is state records (a truncation, the claim of an opening) and the few
frames of storage updates and a checkpoint. Rules of this file:

- the last `STATE_BYTES` of the reserve are for state records alone; frames never take them;
- a full disk is `NoRoomError` only where nothing that counts was changed and no file that counts
  was touched. An error in the middle of a write of frames, or of a sync, stays what it is;
- blocking; used on one thread at a time, but for what says otherwise.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from durablelog.data_frame import FRAME_HEADER_LENGTH
from durablelog.file.log_layout import FILE_HEADER_LENGTH, RESERVE_NAME
from segmentstore.contracts.disk import Disk, DiskFile, is_full, remove_if_there

STATE_BYTES: Final = 32 * 1024
"""For state records, and blocks of the folder itself. The least a log goes on with."""
STATE_STEP: Final = 8 * 1024
"""Given up at a time for a state record: other operations that wait for room take what is not
needed.
"""
CHECKPOINT_BYTES: Final = 64 * 1024
"""The least that is kept for a checkpoint, and for one before it that was cut off."""
RESERVE_FRAMES: Final = 2
"""Frames, of the largest size, the reserve has room for: what was on its way when the disk became
full.
"""


class NoRoomError(Exception):
    """The disk is full.

    Nothing that counts was changed: the same can be tried again when there is room.
    """


@contextlib.contextmanager
def unless_full(doing: str) -> Iterator[None]:
    """Raises NoRoomError in the place of a full disk's OSError; the body leaves nothing behind that
    counts.
    """
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise NoRoomError(f"{doing}: {error.strerror}") from error


class Reserve:
    """The reserve of one log."""

    def __init__(self, directory: str, disk: Disk, payload_bytes_max: int) -> None:
        self._path = os.path.join(directory, RESERVE_NAME)
        self._disk = disk
        self._payload_bytes_max = payload_bytes_max
        self._bytes = STATE_BYTES + self._frame_bytes(
            RESERVE_FRAMES * payload_bytes_max + CHECKPOINT_BYTES
        )
        """Read and raised on the event loop, like `whole`."""
        self._created = 0

    @property
    def sound(self) -> bool:
        """There is enough of it to go on."""
        return self._created >= STATE_BYTES

    @property
    def whole(self) -> bool:
        """It is as large as it should be, and nothing of it was given up, as far as we know."""
        return self._created >= self._bytes

    def keep_room_for(self, length: int) -> None:
        """Of frames that hold a checkpoint of `length` bytes: twice, since the last one may have
        been cut off.

        What is missing is made by the next `make`.
        """
        wanted = STATE_BYTES + self._frame_bytes(
            RESERVE_FRAMES * self._payload_bytes_max + 2 * length
        )
        if wanted > self._bytes:
            # Some more, so that metadata that grow slowly do not have it made again with each
            # checkpoint.
            self._bytes = wanted + wanted // 2

    def _frame_bytes(self, length: int) -> int:
        frames = length // self._payload_bytes_max + 1
        return 2 * FILE_HEADER_LENGTH + length + frames * FRAME_HEADER_LENGTH

    def make(self) -> None:
        """Make what is missing, as much as there is room for.

        Raises NoRoomError if that is not `sound`, OSError.
        """
        wanted = self._bytes
        if self._created >= wanted:
            return
        try:
            self._fill(wanted)
        except NoRoomError:
            if self.sound:
                return
            wanted = STATE_BYTES
            self._fill(wanted)
        self._created = wanted

    def _fill(self, wanted: int) -> None:
        with unless_full(f"keeping {wanted} bytes in reserve"):
            file = self._disk.open(self._path, write=True, create=True)
        try:
            there = file.size()
            if there < wanted:
                with unless_full(f"keeping {wanted} bytes in reserve"):
                    self._extend(file, there, wanted)
        finally:
            file.close()

    def _extend(self, file: DiskFile, there: int, wanted: int) -> None:
        try:
            file.allocate(there, wanted - there)
        except OSError:
            # ext4 and XFS leave what there was room for, XFS behind the end of the file.
            file.truncate(there)
            raise
        try:
            file.pwrite([bytes(wanted - there)], there)
            file.sync()
        except OSError:
            # Finished: the next one is another file.
            self._created = 0
            remove_if_there(self._disk, self._path)
            raise

    def give_to_frames(self) -> bool:
        """Give up all that frames may take; whether there was any. Raises OSError."""
        return self._shrink(lambda length: min(length, STATE_BYTES))

    def give_to_state(self) -> bool:
        """Give up enough for a state record; whether there was any. Raises OSError."""
        return self._shrink(lambda length: max(0, length - STATE_STEP))

    def give_all(self) -> None:
        """Give up all of it, its name as well: a disk may have room and no name left.

        Raises OSError.
        """
        self._created = 0
        remove_if_there(self._disk, self._path)

    def _shrink(self, to: Callable[[int], int]) -> bool:
        try:
            file = self._disk.open(self._path, write=True)
        except FileNotFoundError:
            self._created = 0
            return False
        try:
            length = file.size()
            self._created = to(length)
            if self._created == length:
                return False
            file.truncate(self._created)
        finally:
            file.close()
        return True
