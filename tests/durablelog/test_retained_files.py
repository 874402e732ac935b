"""Retained files of a log: their names, what openings make of them, and what crashes leave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from durablelog.durable_data_log import LogAddress, LogFullError
from durablelog.file.file_log import FileLog
from durablelog.file.log_layout import (
    RetainedName,
    file_name,
    maker_epoch,
    parse_retained_name,
    retained_name,
)
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.runtime import Runtime
from tests.contracts.log_parts_contract import entries_of_parts
from tests.contracts.log_world import append_all, read_all
from tests.contracts.retained_parts_contract import oldest
from tests.support.fake_kernel import syncs_by  # noqa: F401 - each test runs both ways

PAYLOAD = 400
FILE_BYTES = 4096 + 2500


class WatchedDisk(OsDisk):
    """Notes what is opened; refuses links of retained files while it is `full`."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.full = 0
        self.dies_at_state = False

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        self.opened.append(os.path.basename(path))
        return super().open(path, write=write, create=create, exclusive=exclusive)

    def link(self, source: str, target: str) -> None:
        name = os.path.basename(target)
        if self.full and name.startswith("retained-"):
            self.full -= 1
            raise OSError(28, "full", target)
        if self.dies_at_state and name.startswith("state-"):
            raise OSError(5, "dead", target)
        super().link(source, target)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 240))


class Logs:
    """Logs in one folder, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = WatchedDisk()

    async def opened(self) -> FileLog:
        log = FileLog(
            str(self.folder),
            3,
            Runtime(disk=self.disk),
            file_bytes=FILE_BYTES,
            payload_bytes_max=PAYLOAD,
        )
        await log.open()
        return log

    async def filled(self) -> tuple[FileLog, LogAddress]:
        """Several files, and the address of the last frame."""
        log = await self.opened()
        for first in range(0, 100, 5):
            await append_all(log, range(first, first + 5))
        return log, (await read_all(log))[-1].address

    def names(self, prefix: str = "retained-") -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if name.startswith(prefix))

    def numbers(self) -> list[int]:
        known = [parse_retained_name(name) for name in self.names()]
        return sorted(each.number for each in known if each is not None)


def test_a_name_says_what_a_part_needs() -> None:
    known = RetainedName(5, 26, 4, 100, 0x1FF, 0x4000000, 0x1A21ACD1A6E)
    name = retained_name(known)
    assert name == "retained-5-1a-4-64-1ff-4000000-1a21acd1a6e.tmp"
    assert parse_retained_name(name) == known
    assert maker_epoch(name) == 5
    for other in (name[:-4], name[1:], name.replace("-5-", "-"), name.replace("4", "G"), ""):
        assert parse_retained_name(other) is None


def test_an_opening_opens_no_retained_file(tmp_path: Path) -> None:
    async def main() -> None:
        logs = Logs(tmp_path)
        log, last = await logs.filled()
        expected = await entries_of_parts(log)
        await log.truncate(last, retain_from=1)
        kept = logs.numbers()
        assert len(kept) > 5
        assert not {file_name(number) for number in kept} & set(os.listdir(tmp_path))
        await log.close()
        logs.disk.opened.clear()
        log = await logs.opened()
        assert len(await read_all(log)) == 1
        assert not [name for name in logs.disk.opened if name.startswith("retained-")]
        found = await entries_of_parts(log)
        assert all(found[number] == expected[number] for number in kept)
        await log.close()

    run(main())


def test_what_a_crash_left_before_the_state_moved_is_of_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        logs = Logs(tmp_path)
        log, last = await logs.filled()
        frames = [bytes(frame.payload) for frame in await read_all(log)]
        logs.disk.dies_at_state = True
        with pytest.raises(Exception, match="dead"):
            await log.truncate(last, retain_from=2)
        logs.disk.dies_at_state = False
        assert logs.numbers()[0] == 2, "they have second names"
        await log.close()
        log = await logs.opened()
        assert oldest(log) is None
        assert not logs.names(), "left over"
        assert [bytes(frame.payload) for frame in await read_all(log)] == frames
        await log.close()

    run(main())


def test_first_names_that_a_crash_left_behind_are_removed_and_retained_files_stay(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        logs = Logs(tmp_path)
        log, last = await logs.filled()
        expected = await entries_of_parts(log)
        await log.truncate(last, retain_from=1)
        kept = logs.numbers()
        await log.close()
        for name, number in zip(logs.names(), kept, strict=True):
            known = parse_retained_name(name)
            assert known is not None
            os.link(tmp_path / name, tmp_path / file_name(known.number))
            assert number
        log = await logs.opened()
        assert logs.numbers() == kept
        assert not {file_name(number) for number in kept} & set(os.listdir(tmp_path))
        found = await entries_of_parts(log)
        assert all(found[number] == expected[number] for number in kept)
        await log.close()

    run(main())


def test_names_of_a_later_owner_count_and_are_left_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        logs = Logs(tmp_path)
        log, last = await logs.filled()
        await log.truncate(last, retain_from=1)
        await log.close()
        (name, *_) = logs.names()
        known = parse_retained_name(name)
        assert known is not None
        behind = known._replace(number=1 << 20)
        for epoch in (1 << 20, 2):
            os.link(tmp_path / name, tmp_path / retained_name(known._replace(maker_epoch=epoch)))
            os.link(tmp_path / name, tmp_path / retained_name(behind._replace(maker_epoch=epoch)))
        log = await logs.opened()
        mine = [parse_retained_name(name) for name in logs.names()]
        assert [each for each in mine if each and each.number == known.number] == [
            known._replace(maker_epoch=1 << 20)
        ]
        assert [each for each in mine if each and each.number == behind.number] == [
            behind._replace(maker_epoch=1 << 20)
        ], "of an owner that may live"
        await log.close()

    run(main())


def test_a_retained_file_becomes_a_spare_only_when_it_is_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        logs = Logs(tmp_path)
        log, last = await logs.filled()
        expected = await entries_of_parts(log)
        await log.truncate(last, retain_from=1)
        await log.delete_retained(2)
        for first in range(100, 160, 5):
            await append_all(log, range(first, first + 5))
        assert not logs.names("spare-"), "the opening's own first file is none"
        found = await entries_of_parts(log)
        assert all(found[number] == expected[number] for number in logs.numbers())
        await log.delete_retained()
        assert len(logs.names("spare-")) == 2
        assert not logs.names()
        await log.close()

    run(main())


def test_a_disk_without_room_for_a_name_deletes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        logs = Logs(tmp_path)
        log, last = await logs.filled()
        parts = [part.number for part in log.sealed_parts()]
        logs.disk.full = 2
        with pytest.raises(LogFullError, match="retaining a log file"):
            await log.truncate(last, retain_from=1)
        assert [part.number for part in log.sealed_parts()] == parts
        assert oldest(log) is None
        logs.disk.full = 1
        await log.truncate(last, retain_from=1)  # the reserve had some
        assert oldest(log) == parts[0]
        await append_all(log, range(200, 205))
        await log.close()

    run(main())
