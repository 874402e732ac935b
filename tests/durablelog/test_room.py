"""The reserve of a log: what it says it has is there."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from durablelog.file.log_layout import RESERVE_NAME
from durablelog.file.room import STATE_BYTES, Reserve
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import OsDisk, OsFile


class CopyingDisk(OsDisk):
    """As btrfs when it is full: what was allocated may find no room when it is written."""

    write_bytes_max = 1 << 30

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        pwrite = file.pwrite

        def pwrite_if_room(buffers: Sequence[Buffer], offset: int) -> None:
            if sum(map(len, buffers)) > self.write_bytes_max:
                raise OSError(errno.ENOSPC, "no room")
            pwrite(buffers, offset)

        file.pwrite = pwrite_if_room  # type: ignore[method-assign]
        return file


def test_a_reserve_that_was_removed_is_not_taken_for_one(tmp_path: Path) -> None:
    disk = CopyingDisk()
    reserve = Reserve(str(tmp_path), disk, 1000)
    reserve.make()
    assert reserve.whole
    reserve.keep_room_for(1 << 20)
    disk.write_bytes_max = STATE_BYTES
    reserve.make()
    # The write that failed has ended the old file: the least is made anew.
    assert (tmp_path / RESERVE_NAME).stat().st_size == STATE_BYTES
    assert (reserve.sound, reserve.whole) == (True, False)
