"""What the preparer of log files says of room, and how the writer thread takes a file from it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from durablelog.file.file_preparer import FilePreparer, Need
from durablelog.file.group_writer import ZERO_PIECE_BYTES, PreparedFile, prepare_file
from durablelog.file.log_folder import LogFolder
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import OsDisk, OsFile
from tests.support.sync_sizes import CountingDisk


def preparer_in(
    folder: Path, said: list[str], make: type[FilePreparer] = FilePreparer
) -> tuple[FilePreparer, PreparedFile]:
    """One that appends to `said` what there is no room for, whenever it says so; and a file."""

    def nothing() -> None: ...

    path = str(folder / "next")
    preparer = make(
        LogFolder(str(folder), 0, OsDisk(), "tag"),
        8192,
        [],
        on_ready=nothing,
        on_file=nothing,
        on_failure=lambda error: said.append(str(error)),
        on_room=lambda: said.append(preparer.shortage),
    )
    return preparer, PreparedFile(
        path, OsDisk().open(path, write=True, create=True), allocated=8192
    )


def test_a_shortage_is_over_by_itself_where_the_next_file_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        said: list[str] = []
        preparer, prepared = preparer_in(tmp_path, said)
        preparer.begin(asyncio.get_running_loop(), inline_executor("files", 1), short=False)
        preparer.prepared = prepared
        # As a truncation does that found no room for its state record.
        preparer.put_off("truncating the log")
        assert preparer.limited
        await asyncio.sleep(60)
        assert (said, preparer.limited) == (["truncating the log", ""], False), (
            "nothing more is reported or tried"
        )
        assert preparer.take() is prepared
        prepared.file.close()

    run_virtual(scenario())


def test_a_file_that_comes_while_the_writer_thread_checks_is_not_lost(tmp_path: Path) -> None:
    class Late(FilePreparer):
        """The loop sets the file just behind the writer thread's first check."""

        coming: PreparedFile | None = None
        there: PreparedFile | None = None

        @property
        def prepared(self) -> PreparedFile | None:
            seen, self.there = self.there, self.there or self.coming
            return seen

        @prepared.setter
        def prepared(self, file: PreparedFile | None) -> None:
            self.there = file

    preparer, prepared = preparer_in(tmp_path, [], Late)
    assert isinstance(preparer, Late)
    preparer.coming = prepared
    assert preparer.take() is None
    preparer.coming = None
    assert preparer.take() is prepared
    assert preparer.take() is None
    prepared.file.close()


def test_zeros_ahead_leave_no_more_than_a_piece_to_one_sync(tmp_path: Path) -> None:
    disk = CountingDisk()
    length = 2 * ZERO_PIECE_BYTES + 100
    prepare_file(str(tmp_path / "next"), disk, length, lambda: False).file.close()
    assert disk.synced == [ZERO_PIECE_BYTES, ZERO_PIECE_BYTES, 100]
    assert (tmp_path / "next").read_bytes() == bytes(length)


class UrgentDisk(OsDisk):
    """An append begins to wait for the next file when the first zeros of that are written."""

    def __init__(self) -> None:
        self.writes = 0
        self.on_write: Callable[[], None] = lambda: None

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        if not os.path.basename(path).startswith("next-"):
            return file
        return UrgentFile(file._descriptor, self)


class UrgentFile(OsFile):
    def __init__(self, descriptor: int, disk: UrgentDisk) -> None:
        super().__init__(descriptor)
        self._disk = disk

    def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
        super().pwrite(buffers, offset)
        self._disk.writes += 1
        self._disk.on_write()


@pytest.mark.parametrize("waits_from_the_start", [False, True])
@pytest.mark.parametrize("needed", ["file", "room"])
def test_an_append_does_not_wait_for_zeros(
    tmp_path: Path, needed: Need, *, waits_from_the_start: bool
) -> None:
    disk, length = UrgentDisk(), 4 * ZERO_PIECE_BYTES
    ready: list[bool] = []

    async def scenario() -> None:
        preparer = FilePreparer(
            LogFolder(str(tmp_path), 0, disk, "tag", payload_bytes_max=1000),
            length,
            [],
            on_ready=lambda: ready.append(True),
            on_file=lambda: None,
            on_failure=lambda error: pytest.fail(str(error)),
            on_room=lambda: None,
        )
        preparer.begin(asyncio.get_running_loop(), inline_executor("files", 1), short=False)
        disk.on_write = lambda: preparer.need(needed)
        if waits_from_the_start:
            preparer.need(needed)
        else:
            preparer.want()
        await asyncio.sleep(1)
        assert ready == [True]
        assert disk.writes == (0 if waits_from_the_start else 1)
        prepared = preparer.take()
        assert prepared is not None
        assert prepared.allocated == prepared.file.size() == length
        prepared.file.close()

    run_virtual(scenario())
