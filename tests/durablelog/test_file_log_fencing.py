"""Two owners in the windows between looking and doing; the lock was taken away, as an operator might."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from durablelog.data_frame import seal_header
from durablelog.durable_data_log import LogAddress
from durablelog.file.file_log import FileLog
from durablelog.file.frame_reports import read_only_frames
from durablelog.file.log_folder import LogFolder
from durablelog.file.log_layout import STATE_LOCK_NAME, FileHeader, file_name, pack_file_header
from segmentstore.contracts.disk import OsDisk
from segmentstore.contracts.errors import NotPrimaryError, StoreInUseError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import PAYLOAD_BYTES_MAX, append_all, payload, read_all, read_payloads
from tests.durablelog.faulty_disk import FaultyDisk

FILE_BYTES = 8192


def make_log(folder: Path, disk: OsDisk | None = None) -> FileLog:
    runtime = Runtime(disk=disk or OsDisk())
    return FileLog(str(folder), 0, runtime, file_bytes=FILE_BYTES, payload_bytes_max=PAYLOAD_BYTES_MAX)


def test_an_owner_usurped_between_its_look_and_its_roll(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        old = make_log(tmp_path, disk)
        await old.open()
        usurper = LogFolder(str(tmp_path), 0, OsDisk())

        def usurp() -> None:
            disk.before_link = lambda: None
            (tmp_path / "LOCK").unlink()
            usurper.open(FILE_BYTES)

        disk.before_link = usurp
        acknowledged = 0

        async def append_for_ever() -> None:
            nonlocal acknowledged
            while True:
                await old.append([payload(acknowledged)])
                acknowledged += 1

        with pytest.raises(NotPrimaryError):
            await append_for_ever()
        await old.close()
        assert usurper.epoch == 2
        usurper.close()
        log = make_log(tmp_path)
        await log.open()
        assert await read_payloads(log) == [payload(number) for number in range(acknowledged)]
        await log.close()

    asyncio.run(scenario())


def test_a_stale_file_under_the_number_the_new_owner_wanted(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        await append_all(log, range(5))
        await log.close()
        stale = tmp_path / file_name(2)

        def roll_late() -> None:
            disk.before_link = lambda: None
            frame = seal_header(0, 1, 6, 5, [payload(900)]) + payload(900)
            stale.write_bytes(pack_file_header(FileHeader(0, 2, 1, 6, 5)) + frame + bytes(1000))

        disk = FaultyDisk()
        disk.before_link = roll_late
        log = make_log(tmp_path, disk)
        await log.open()
        assert await read_payloads(log) == [payload(number) for number in range(5)]
        addresses = await append_all(log, range(5, 8))
        assert min(addresses) >> 32 == 3
        await log.close()
        reports = list(read_only_frames(str(tmp_path), OsDisk()))
        assert [bytes(report.payload) for report in reports if report.status == "stale"].count(payload(900)) == 1
        assert [report.sequence for report in reports if report.status == "ok"] == list(range(1, 9))
        log = make_log(tmp_path)
        await log.open()
        assert await read_payloads(log) == [payload(number) for number in range(8)]
        await log.close()
        assert not stale.exists()

    asyncio.run(scenario())


def test_frames_acknowledged_between_the_first_look_and_the_fence_are_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make_log(tmp_path)
        await old.open()
        await append_all(old, range(3))
        (tmp_path / "LOCK").unlink()
        loop = asyncio.get_running_loop()

        class LateDisk(OsDisk):
            """The old owner goes on until the very moment of the fence."""

            def rename(self, source: str, target: str) -> None:
                asyncio.run_coroutine_threadsafe(self.last_words(), loop).result(20)
                super().rename(source, target)

            @staticmethod
            async def last_words() -> None:
                for start in range(3, 150, 7):
                    await append_all(old, range(start, start + 7))

        new = make_log(tmp_path, LateDisk())
        await new.open()
        assert await read_payloads(new) == [payload(number) for number in range(150)]
        with pytest.raises(NotPrimaryError):
            await old.append([payload(900)])
        await append_all(new, range(150, 152))
        assert len(await read_all(new)) == 152
        await old.close()
        await new.close()

    asyncio.run(scenario())


def test_a_truncation_of_the_old_owner_just_before_the_fence_counts(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make_log(tmp_path)
        await old.open()
        addresses: list[LogAddress] = []
        for start in range(0, 150, 10):
            addresses += await append_all(old, range(start, start + 10))
        (tmp_path / "LOCK").unlink()
        loop = asyncio.get_running_loop()

        class LateDisk(OsDisk):
            """The old owner truncates after the new one has looked, before it takes the state's lock."""

            def lock(self, path: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
                if path.endswith(STATE_LOCK_NAME):
                    asyncio.run_coroutine_threadsafe(old.truncate(addresses[140]), loop).result(20)
                return super().lock(path)

        new = make_log(tmp_path, LateDisk())
        await new.open()
        assert await read_payloads(new) == [payload(number) for number in range(140, 150)]
        await new.close()
        await old.close()

    asyncio.run(scenario())


def test_two_openings_at_once_do_not_both_win(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        addresses = await append_all(log, range(3))
        held = OsDisk().lock(str(tmp_path / STATE_LOCK_NAME))
        (tmp_path / "LOCK").unlink()
        with pytest.raises(StoreInUseError):
            await make_log(tmp_path).open()
        with pytest.raises(NotPrimaryError):
            await log.truncate(addresses[2])
        held.close()
        await log.close()

    asyncio.run(scenario())
