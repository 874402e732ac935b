"""The reserve of a log: what it says it has is there."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from durablelog.file.file_log import FileLog
from durablelog.file.group_writer import prepare_file
from durablelog.file.log_layout import RESERVE_NAME, prepared_name
from durablelog.file.room import STATE_BYTES, NoRoomError, Reserve
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.runtime import Runtime


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


def test_a_disk_that_has_no_name_left_for_the_reserve_has_no_room(tmp_path: Path) -> None:
    class Nameless(OsDisk):
        full = True

        def open(
            self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
        ) -> OsFile:
            if create and self.full:
                raise OSError(errno.ENOSPC, "no room for a name")
            return super().open(path, write=write, create=create, exclusive=exclusive)

    disk = Nameless()
    reserve = Reserve(str(tmp_path), disk, 1000)
    with pytest.raises(NoRoomError):
        reserve.make()
    disk.full = False
    reserve.make()
    assert reserve.whole


def test_a_log_is_opened_where_the_reserve_has_the_last_name(tmp_path: Path) -> None:
    class OneName(OsDisk):
        def open(
            self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
        ) -> OsFile:
            # The state's record has found one more.
            if "next-" in path and (tmp_path / RESERVE_NAME).exists():
                raise OSError(errno.ENOSPC, "no room for a name")
            return super().open(path, write=write, create=create, exclusive=exclusive)

    async def opened(disk: OsDisk) -> None:
        log = FileLog(
            str(tmp_path),
            0,
            Runtime(disk=disk, executor=inline_executor),
            file_bytes=20_000,
            payload_bytes_max=1000,
        )
        await log.open()
        await log.append([b"x"])
        await log.close()

    run_virtual(opened(OsDisk()))
    assert (tmp_path / RESERVE_NAME).exists()
    run_virtual(opened(OneName()))


class Stubborn(CopyingDisk):
    """The first file with `part` in its name finds no room, and is not removed."""

    def __init__(self, part: str) -> None:
        self._part = part
        self.left: str | None = None

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        first = create and self._part in path and self.left is None
        self.write_bytes_max = 0 if first else 1 << 30
        return super().open(path, write=write, create=create, exclusive=exclusive)

    def unlink(self, path: str) -> None:
        if self._part in path and self.left is None:
            self.left = path
            raise OSError(errno.EIO, "not removed")
        super().unlink(path)


def test_a_log_is_opened_where_a_state_that_found_no_room_cannot_be_removed(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        disk = Stubborn("state-")
        log = FileLog(
            str(tmp_path),
            0,
            Runtime(disk=disk, executor=inline_executor),
            file_bytes=20_000,
            payload_bytes_max=1000,
        )
        await log.open()
        await log.append([b"x"])
        await log.close()
        assert disk.left is not None
        assert not disk.exists(disk.left)

    run_virtual(scenario())


def test_a_shorter_file_is_prepared_where_one_that_found_no_room_cannot_be_removed(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / prepared_name(1, 1))
    disk = Stubborn("next-")
    with pytest.raises(NoRoomError):
        prepare_file(path, disk, 20_000, lambda: False)
    assert disk.left == path
    prepared = prepare_file(path, disk, 10_000, lambda: False)
    assert prepared.file.size() == 10_000
    prepared.file.close()
