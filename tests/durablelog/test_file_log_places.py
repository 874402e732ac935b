"""Readings by place, which may be many at a time, and the other work of a file log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from durablelog.durable_data_log import LogRange
from durablelog.file.file_log import FileLog
from durablelog.file.log_layout import FILE_SUFFIX
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import (
    PAYLOAD_BYTES_MAX,
    append_all,
    payload,
    read_all,
)

FILE_BYTES = 8192
TIMEOUT_S = 60.0
"""Longer than a machine with other work takes; what it bounds hangs when it fails."""


class GatedDisk(OsDisk):
    """Holds what opens a file of a kind (`holds`) at a gate; counts open readers of log files."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.held = threading.Event()
        self.holds: Callable[[str, bool], bool] = lambda _path, _write: False
        self.readings = 0
        self.open_now: list[OsFile] = []
        self.open_most = 0

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        if self.holds(path, write):
            self.held.set()
            assert self.gate.wait(TIMEOUT_S)
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        if path.endswith(FILE_SUFFIX) and not write:
            self.readings += 1
            self.open_now = [each for each in self.open_now if each._descriptor >= 0]
            self.open_now.append(file)
            self.open_most = max(self.open_most, len(self.open_now))
        return file


def reading_by_place(path: str, write: bool) -> bool:
    return path.endswith(FILE_SUFFIX) and not write


def preparing(path: str, write: bool) -> bool:
    return write and not path.endswith(FILE_SUFFIX)


async def opened(folder: Path, disk: OsDisk, frames: int) -> tuple[FileLog, list[LogRange]]:
    """A log, and the places of so many payloads."""
    runtime = Runtime(disk=disk)
    log = FileLog(
        str(folder), 0, runtime, file_bytes=FILE_BYTES, payload_bytes_max=PAYLOAD_BYTES_MAX
    )
    await log.open()
    await append_all(log, range(frames))
    places = [
        (frame.payload_address, len(frame.payload), crc32c(frame.payload))
        for frame in await read_all(log)
        if frame.payload_address is not None
    ]
    assert len(places) == frames
    return log, list(places)


async def held(disk: GatedDisk) -> None:
    assert await asyncio.to_thread(disk.held.wait, TIMEOUT_S)


def test_a_reading_does_not_wait_for_the_next_file(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        log, places = await opened(tmp_path, disk, 2)
        disk.holds = preparing
        appends = [log.append([payload(number)]) for number in range(2, 80)]
        await held(disk)
        assert await asyncio.wait_for(log.read_ranges(places), TIMEOUT_S) == [
            payload(0),
            payload(1),
        ]
        disk.gate.set()
        await asyncio.gather(*appends)
        await log.close()

    asyncio.run(main())


def test_appends_do_not_wait_for_readings(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        log, places = await opened(tmp_path, disk, 2)
        disk.holds = reading_by_place
        readings = [asyncio.create_task(log.read_ranges(places)) for _ in range(3)]
        await held(disk)
        # More than one file holds.
        await asyncio.wait_for(append_all(log, range(2, 80)), TIMEOUT_S)
        disk.gate.set()
        assert await asyncio.gather(*readings) == [[payload(0), payload(1)]] * 3
        await log.close()

    asyncio.run(main())


def test_a_close_waits_for_the_reading_under_way_alone(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        log, places = await opened(tmp_path, disk, 2)
        disk.holds = reading_by_place
        before = disk.readings
        readings = [asyncio.create_task(log.read_ranges(places)) for _ in range(5)]
        await held(disk)
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        disk.gate.set()
        first, *others = await asyncio.gather(*readings, return_exceptions=True)
        assert first == [payload(0), payload(1)]
        assert all(isinstance(each, ContainerStoppedError) for each in others)
        assert disk.readings == before + 1
        await closing
        with pytest.raises(ContainerStoppedError):
            await log.read_ranges(places)

    asyncio.run(main())


def test_a_reading_in_many_files_holds_one_open(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk()
        log, places = await opened(tmp_path, disk, 200)
        disk.open_now, disk.open_most = [], 0
        before = disk.readings
        assert await log.read_ranges(places) == [payload(number) for number in range(200)]
        assert disk.readings - before > 3
        assert disk.open_most == 1
        await log.close()

    asyncio.run(main())
