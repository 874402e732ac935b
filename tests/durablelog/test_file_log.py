"""The file log against the contract, and what only a file log can do."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from durablelog.durable_data_log import DurableDataLog
from durablelog.file.file_log import FileLog
from durablelog.file.frame_reports import read_only_frames
from durablelog.file.log_state import lock_log, read_state
from durablelog.file.room import RESERVE_FRAMES
from recovery.harness.simulation.virtual_loop import VirtualLoop, inline_executor
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.errors import (
    ConfigError,
    NotPrimaryError,
    StoreInUseError,
    TierUnavailableError,
)
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import (
    PAYLOAD_BYTES_MAX,
    DurableDataLogContract,
    LogWorld,
    append_all,
    payload,
    read_all,
    read_payloads,
)
from tests.durablelog.faulty_disk import FaultyDisk
from tests.support.fake_kernel import syncs_by  # noqa: F401 - each test runs both ways

FILE_BYTES = 8192


class FileWorld(LogWorld):
    def __init__(self, folder: Path) -> None:
        self.directory = str(folder / "log")
        self.disk = FaultyDisk()

    def make_log(self) -> FileLog:
        runtime = Runtime(disk=self.disk)
        return FileLog(
            self.directory, 0, runtime, file_bytes=FILE_BYTES, payload_bytes_max=PAYLOAD_BYTES_MAX
        )

    def usurp(self) -> None:
        os.unlink(os.path.join(self.directory, "LOCK"))

    def fail_append_after(self, appends: int) -> None:
        self.disk.fail_after("append", appends)


class TestFileLog(DurableDataLogContract):
    def make_world(self, tmp_path: Path) -> LogWorld:
        return FileWorld(tmp_path)


class RoomyWorld(FileWorld):
    """Files that none of the contract's logs fills: no roll comes between."""

    def make_log(self) -> FileLog:
        runtime = Runtime(disk=self.disk)
        return FileLog(
            self.directory, 0, runtime, file_bytes=1 << 20, payload_bytes_max=PAYLOAD_BYTES_MAX
        )


class TestFileLogWithRoom(DurableDataLogContract):
    def make_world(self, tmp_path: Path) -> LogWorld:
        return RoomyWorld(tmp_path)


class InlineWorld(FileWorld):
    """Executors that run at once, as the simulated world has them."""

    def make_log(self) -> FileLog:
        runtime = Runtime(disk=self.disk, executor=inline_executor)
        return FileLog(
            self.directory, 0, runtime, file_bytes=FILE_BYTES, payload_bytes_max=PAYLOAD_BYTES_MAX
        )


class TestFileLogInline(DurableDataLogContract):
    def make_world(self, tmp_path: Path) -> LogWorld:
        return InlineWorld(tmp_path)

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(asyncio.wait_for(coroutine, 30))


@pytest.fixture
def world(tmp_path: Path) -> FileWorld:
    return FileWorld(tmp_path)


async def opened(world: FileWorld) -> FileLog:
    log = world.make_log()
    await log.open()
    return log


def names(world: FileWorld) -> list[str]:
    return sorted(name for name in os.listdir(world.directory) if name.endswith(".log"))


def test_a_live_owner_is_distinguished_from_another_object_and_another_process(
    world: FileWorld,
) -> None:
    async def scenario() -> None:
        log = await opened(world)
        await append_all(log, range(3))
        with pytest.raises(StoreInUseError):
            await world.make_log().open()
        with pytest.raises(StoreInUseError):
            lock_log(world.directory, OsDisk())
        program = (
            "import sys\nfrom durablelog.file.log_state import lock_log\n"
            "from segmentstore.contracts.disk import OsDisk\n"
            "from segmentstore.contracts.errors import StoreInUseError\n"
            "try:\n    lock_log(sys.argv[1], OsDisk())\nexcept StoreInUseError:\n    sys.exit(4)\n"
        )
        child = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program, world.directory], check=False
        )
        assert child.returncode == 4
        await append_all(log, range(3, 5))
        await log.close()
        lock_log(world.directory, OsDisk()).close()
        await (await opened(world)).close()

    asyncio.run(scenario())


def test_a_fenced_owner_that_rolls_never_disturbs_the_new_one(world: FileWorld) -> None:
    async def scenario() -> None:
        old = await opened(world)
        await append_all(old, range(5))
        world.usurp()
        new = await opened(world)
        await append_all(new, range(5, 40))
        results = await asyncio.gather(
            *[old.append([payload(900)]) for _ in range(60)], return_exceptions=True
        )
        assert all(isinstance(result, NotPrimaryError) for result in results)
        await append_all(new, range(40, 60))
        await old.close()
        assert await read_payloads(new) == [payload(number) for number in range(60)]
        await new.close()
        again = await opened(world)
        assert await read_payloads(again) == [payload(number) for number in range(60)]
        await again.close()

    asyncio.run(scenario())


def test_a_chain_of_usurpers_keeps_every_acknowledged_frame_and_no_late_one(
    world: FileWorld,
) -> None:
    async def scenario() -> None:
        rng = random.Random(7)
        owners: list[FileLog] = []
        acknowledged: list[bytes] = []
        for generation in range(12):
            if owners:
                world.usurp()
            owner = await opened(world)
            assert await read_payloads(owner) == acknowledged
            for number in range(rng.randrange(12)):
                data = payload(generation * 100 + number, rng.randrange(10, PAYLOAD_BYTES_MAX))
                await owner.append([data])
                acknowledged.append(data)
            for stale in owners:
                with pytest.raises(NotPrimaryError):
                    await stale.append([payload(999_999)])
            owners.append(owner)
        for owner in owners:
            await owner.close()

    asyncio.run(scenario())


def test_rolling_over_many_files_and_truncating_whole_ones(world: FileWorld) -> None:
    async def scenario() -> None:
        log = await opened(world)
        addresses = []
        for start in range(0, 300, 20):
            addresses += await append_all(log, range(start, start + 20))
        assert len(names(world)) >= 10
        assert await read_payloads(log) == [payload(number) for number in range(300)]
        await log.truncate(addresses[290])
        await asyncio.sleep(0)
        assert len(names(world)) <= 3
        assert log.statistics().files <= 4
        await log.close()
        log = await opened(world)
        assert await read_payloads(log) == [payload(number) for number in range(290, 300)]
        await log.close()

    asyncio.run(scenario())


def test_idle_openings_leave_no_files_behind(world: FileWorld) -> None:
    async def scenario() -> None:
        for _ in range(10):
            await (await opened(world)).close()
        assert len(names(world)) == 1
        log = await opened(world)
        await append_all(log, range(2))
        await log.close()
        for _ in range(10):
            await (await opened(world)).close()
        assert len(names(world)) <= 3
        assert not [name for name in os.listdir(world.directory) if name.endswith(".tmp")]

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["append", "commit"])
def test_a_failed_write_or_sync_finishes_the_file_for_good(world: FileWorld, kind: str) -> None:
    async def scenario() -> None:
        log = await opened(world)
        await append_all(log, range(2))
        world.disk.fail_after(kind, 0)
        results = await asyncio.gather(
            *[log.append([payload(9)]) for _ in range(5)], return_exceptions=True
        )
        assert all(isinstance(result, TierUnavailableError) for result in results)
        with pytest.raises(TierUnavailableError):
            await log.truncate((await read_all(log))[1].address)
        await log.close()
        log = await opened(world)
        assert (await read_payloads(log))[:2] == [payload(0), payload(1)]
        await append_all(log, range(2, 4))
        await log.close()
        assert world.disk.synced_after_failure == []

    asyncio.run(scenario())


def test_what_was_read_back_after_a_failed_sync_is_written_again_before_it_counts(
    world: FileWorld,
) -> None:
    async def scenario() -> None:
        log = await opened(world)
        await log.append([payload(0)])
        world.disk.fail_after("commit", 0)
        with pytest.raises(TierUnavailableError):
            await log.append([payload(1)])
        await log.close()
        log = await opened(world)
        frames = await read_all(log)
        assert [bytes(frame.payload) for frame in frames] == [payload(0), payload(1)]
        assert frames[1].epoch == 1
        assert frames[1].address >> 32 > 1
        await log.close()
        state = read_state(world.directory, OsDisk())
        assert state is not None
        assert state.epoch == 2

    asyncio.run(scenario())


def test_a_crash_between_any_two_steps_loses_nothing_acknowledged(tmp_path: Path) -> None:
    async def life(world: FileWorld, acknowledged: list[bytes]) -> None:
        log = world.make_log()
        try:
            await log.open()
            for start in range(0, 60, 6):
                batch = [payload(start + number) for number in range(6)]
                addresses = await asyncio.gather(*[log.append([data]) for data in batch])
                acknowledged += batch
                if start % 18 == 0:
                    await log.truncate(addresses[0])
                    del acknowledged[:-6]
        finally:
            await log.close()

    async def scenario() -> None:
        counting = FileWorld(tmp_path / "counting")
        await life(counting, [])
        calls = len(counting.disk.calls)
        for crash_at in range(calls):
            world = FileWorld(tmp_path / str(crash_at))
            world.disk.crash_at = crash_at
            acknowledged: list[bytes] = []
            try:
                await life(world, acknowledged)
            except (TierUnavailableError, OSError):
                pass
            world.disk.crash_at = None
            log = await opened(world)
            payloads = await read_payloads(log)
            # A truncation that crashed may have happened or not; nothing behind its address may be
            # missing.
            assert contains_run(payloads, acknowledged), (crash_at, world.disk.calls[crash_at])
            await log.append([b"after"])
            await log.close()
            log = await opened(world)
            assert await read_payloads(log) == [*payloads, b"after"]
            await log.close()

    asyncio.run(scenario())


def contains_run(payloads: list[bytes], run: list[bytes]) -> bool:
    """True if `run`, or (truncated in the crash) an end of it that is no shorter than six, lies in
    `payloads`.
    """
    for first in range(max(1, len(run) - 5)):
        end = run[first:]
        if any(payloads[at : at + len(end)] == end for at in range(len(payloads) - len(end) + 1)):
            return True
    return False


def test_reports_say_what_lies_in_a_stopped_log(world: FileWorld) -> None:
    async def scenario() -> None:
        log = await opened(world)
        addresses = await append_all(log, range(50))
        await log.truncate(addresses[7])
        await log.close()
        before = snapshot(world.directory)
        reports = list(read_only_frames(world.directory, OsDisk()))
        assert [report.sequence for report in reports] == list(range(8, 51))
        assert {report.status for report in reports} == {"ok"}
        assert [report.address for report in reports] == addresses[7:]
        assert [bytes(report.payload) for report in reports] == [
            payload(number) for number in range(7, 50)
        ]
        later = list(read_only_frames(world.directory, OsDisk(), start=addresses[20]))
        assert [report.address for report in later] == addresses[20:]
        assert snapshot(world.directory) == before

    asyncio.run(scenario())


def snapshot(directory: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in Path(directory).iterdir() if path.name != "LOCK"
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: FileLog(folder, 0, Runtime(), file_bytes=4096, payload_bytes_max=100),
        lambda folder: FileLog(folder, 0, Runtime(), file_bytes=2**33),
        lambda folder: FileLog(folder, 0, Runtime(), payload_bytes_max=0),
    ],
)
def test_sizes_that_cannot_work_are_refused(
    tmp_path: Path, make: Callable[[str], DurableDataLog]
) -> None:
    with pytest.raises(ConfigError):
        make(str(tmp_path))


def test_the_log_of_another_container_is_refused(world: FileWorld) -> None:
    async def scenario() -> None:
        await (await opened(world)).close()
        with pytest.raises(ConfigError, match="container 0, not 5"):
            await FileLog(world.directory, 5, Runtime()).open()

    asyncio.run(scenario())


def test_a_reader_that_leaves_early_gives_its_file_back(world: FileWorld) -> None:
    async def scenario() -> None:
        log = await opened(world)
        addresses = await append_all(log, range(200))
        batches = log.read()
        await anext(batches)
        await log.truncate(addresses[199])
        assert len(names(world)) > 3
        await batches.aclose()
        await log.close()
        await (await opened(world)).close()
        assert len(names(world)) <= 3

    asyncio.run(scenario())


class _CountedReads(OsDisk):
    def __init__(self) -> None:
        self.reads = 0
        self.second = threading.Event()

    def _opened(self, descriptor: int) -> OsFile:
        disk = self

        class File(OsFile):
            def pread(self, offset: int, length: int) -> bytes:
                disk.reads += 1
                if disk.reads == 2:
                    disk.second.set()
                return super().pread(offset, length)

        return File(descriptor)


def test_the_next_frames_are_read_while_the_caller_works_on_those_he_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = _CountedReads()
        log = FileLog(
            str(tmp_path / "log"), 0, Runtime(disk=disk), file_bytes=8192, payload_bytes_max=2000
        )
        await log.open()
        await append_all(log, range(200))
        frames = log.read()
        disk.reads = 0
        disk.second.clear()
        seen = [frame.sequence for frame in await anext(frames)]
        assert await asyncio.to_thread(disk.second.wait, 60)
        async for batch in frames:
            seen += [frame.sequence for frame in batch]
        assert seen == list(range(1, 201))
        await log.close()

    asyncio.run(scenario())


class _CountsZeros(OsDisk):
    zeros = 0

    def _opened(self, descriptor: int) -> OsFile:
        disk = self

        class File(OsFile):
            def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
                disk.zeros += sum(len(one) for one in buffers if not any(one))
                super().pwrite(buffers, offset)

        return File(descriptor)


@pytest.mark.parametrize(("length", "zeroed"), [(1000, True), (400_000, False)])
def test_files_are_zeroed_ahead_for_small_groups_only(
    tmp_path: Path, length: int, zeroed: bool
) -> None:
    async def scenario() -> None:
        directory, file_bytes = str(tmp_path / "log"), 1 << 23
        disk = _CountsZeros()
        runtime = Runtime(disk=disk, executor=inline_executor)
        log = FileLog(directory, 0, runtime, file_bytes=file_bytes, payload_bytes_max=400_000)
        await log.open()
        data = [bytes([number + 1]) * length for number in range(12)]
        for one in data:
            await log.append([one])
        newest = max(name for name in os.listdir(directory) if name.endswith(".log"))
        assert OsDisk().size(os.path.join(directory, newest)) == file_bytes, (
            "room is found for all of it in any case"
        )
        written = os.stat(os.path.join(directory, newest)).st_blocks * 512
        assert written >= file_bytes
        assert (disk.zeros > file_bytes // 2) is zeroed
        assert await read_payloads(log) == data
        await log.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


class SmallDisk(FaultyDisk):
    """Finds no more room once `full` says so."""

    full = False

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False
    ) -> OsFile:
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        allocate = file.allocate

        def allocate_if_room(offset: int, length: int) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "no room")
            allocate(offset, length)

        file.allocate = allocate_if_room  # type: ignore[method-assign]
        return file


def test_a_full_log_says_how_much_deletions_may_take_of_what_is_kept(world: FileWorld) -> None:
    async def scenario() -> None:
        world.disk = disk = SmallDisk()
        log = await opened(world)
        disk.full = True
        least = log.relief_bytes
        while not log.full:
            await append_all(log, range(1))
            least = log.relief_bytes
        assert 0 < least <= FILE_BYTES // 8
        on_its_way = [log.append([bytes(min(least, PAYLOAD_BYTES_MAX))]) for _ in range(4)]
        assert log.relief_bytes == 0, "what is on its way has its place"
        await asyncio.gather(*on_its_way)
        await log.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_is_shipped_has_its_place_though_the_first_file_is_left_early(
    world: FileWorld,
) -> None:
    async def scenario() -> None:
        world.disk = disk = SmallDisk()
        log = await opened(world)
        prepared = asyncio.Event()
        log.on_room = prepared.set
        await append_all(log, range(1))
        await prepared.wait()
        disk.full = True
        shipped = []
        while not log.full:
            shipped.append(log.append([bytes(PAYLOAD_BYTES_MAX)]))
        assert len(shipped) > RESERVE_FRAMES
        # The reserve has room for the last ones.
        await asyncio.gather(*shipped[:-RESERVE_FRAMES])
        await log.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_prepared_file_that_gets_no_name_has_no_place_for_anything(world: FileWorld) -> None:
    def no_room() -> None:
        raise OSError(errno.ENOSPC, "no room for a name")

    async def scenario() -> None:
        world.disk = disk = SmallDisk()
        log = await opened(world)
        prepared = asyncio.Event()
        log.on_room = prepared.set
        await append_all(log, range(1))
        await prepared.wait()
        disk.full, disk.before_link = True, no_room
        # The present file has room for it.
        await log.append([bytes(1)])
        shipped = []
        while not log.full:
            shipped.append(log.append([bytes(PAYLOAD_BYTES_MAX)]))
        # The reserve has room for the last ones.
        await asyncio.gather(*shipped[:-RESERVE_FRAMES])
        disk.full, disk.before_link = False, lambda: None
        await asyncio.gather(*shipped)
        await log.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
