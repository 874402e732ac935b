"""Groups of a file log that the kernel syncs: what may come between a write and its report."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import segmentstore.contracts.disk as disk_module
from durablelog.durable_data_log import LogAddress
from durablelog.file import file_log, group_commit
from durablelog.file.file_log import FileLog
from durablelog.file.group_commit import (
    LOAD_GROUPS,
    SLOW_PAUSE_MS,
    SLOW_WRITE_MS,
    SMALL_GROUP_BYTES,
)
from recovery.harness.simulation.virtual_loop import VirtualLoop, inline_executor
from segmentstore.contracts.aio_syncs import AioSyncs
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
from segmentstore.contracts.runtime import BootTime, Runtime
from tests.contracts.durable_data_log_contract import append_all, payload, read_payloads
from tests.durablelog.faulty_disk import FaultyDisk
from tests.store.harness import run, until
from tests.support.fake_kernel import FakeKernel, use

PAYLOAD_BYTES_MAX = 200_000


def make_log(folder: Path, disk: OsDisk | None = None) -> FileLog:
    return FileLog(
        str(folder / "log"),
        0,
        Runtime(disk=disk or FaultyDisk()),
        file_bytes=1 << 20,
        payload_bytes_max=PAYLOAD_BYTES_MAX,
    )


async def opened(folder: Path, disk: OsDisk | None = None) -> FileLog:
    log = make_log(folder, disk)
    await log.open()
    return log


async def content(folder: Path) -> list[bytes]:
    log = await opened(folder)
    found = await read_payloads(log)
    await log.close()
    return found


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def warm(log: FileLog, fake: FakeKernel) -> None:
    """The log has left its first file, which grows, for a prepared one: the kernel syncs."""
    await log.append([payload(0)])
    await until(lambda: log._preparer.prepared is not None)
    await log.append([payload(1)])
    begun = fake.begun
    await log.append([payload(2)])
    assert fake.begun == begun + 1


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    return use(monkeypatch)


def test_a_group_is_acknowledged_behind_its_sync(tmp_path: Path, kernel: FakeKernel) -> None:
    async def scenario() -> None:
        log = await opened(tmp_path)
        await warm(log, kernel)
        kernel.holds, before = True, kernel.begun
        appended = [log.append([payload(number)]) for number in range(5)]
        await turns()
        assert kernel.begun == before + 1
        assert not any(future.done() for future in appended)
        kernel.release()
        assert (await appended[0]) < (await appended[4])
        assert kernel.begun == before + 2, "the second group is all that waited"
        await log.close()

    run(scenario())


def test_another_owner_meanwhile_fences_what_is_synced_later(
    tmp_path: Path, kernel: FakeKernel
) -> None:
    async def scenario() -> None:
        old = await opened(tmp_path)
        await warm(old, kernel)
        durable = await read_payloads(old)
        kernel.holds = True
        late = [old.append([payload(900 + number)]) for number in range(3)]
        (tmp_path / "log" / "LOCK").unlink()
        new = await opened(tmp_path)
        found = await read_payloads(new)
        assert found[: len(durable)] == durable
        assert kernel.held
        kernel.release()
        for future in late:
            with pytest.raises(NotPrimaryError):
                await future
        await append_all(new, range(50, 53))
        assert await read_payloads(new) == [*found, *map(payload, range(50, 53))]
        await old.close()
        await new.close()

    run(scenario())


def test_a_truncation_meanwhile_changes_nothing_for_the_group(
    tmp_path: Path, kernel: FakeKernel
) -> None:
    async def scenario() -> None:
        log = await opened(tmp_path)
        await warm(log, kernel)
        addresses = await append_all(log, range(50, 54))
        kernel.holds = True
        late = log.append([payload(54)])
        for address in addresses:
            await log.truncate(address)
        assert not late.done()
        kernel.release()
        await late
        await log.close()
        assert await content(tmp_path) == [payload(53), payload(54)]

    run(scenario())


def test_a_cancelled_truncation_meanwhile_changes_nothing_for_the_group(
    tmp_path: Path, kernel: FakeKernel
) -> None:
    async def scenario() -> None:
        log = await opened(tmp_path)
        await warm(log, kernel)
        addresses = await append_all(log, range(50, 54))
        kernel.holds = True
        late = log.append([payload(54)])
        truncating = asyncio.ensure_future(log.truncate(addresses[3]))
        await asyncio.sleep(0)
        truncating.cancel()
        await asyncio.wait((truncating,))
        kernel.release()
        await late
        await log.append([payload(55)])
        await log.close()
        # Carried out or not: it may have been cancelled before its turn came.
        assert (await content(tmp_path))[-3:] == list(map(payload, (53, 54, 55)))

    run(scenario())


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_close_waits_for_the_kernel(tmp_path: Path, kernel: FakeKernel, cancelled: bool) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await opened(tmp_path, disk)
        await warm(log, kernel)
        kernel.holds = True
        late = [log.append([payload(900 + number)]) for number in range(3)]
        closing = asyncio.ensure_future(log.close())
        for future in late:
            with pytest.raises(ContainerStoppedError):
                await future
        await until(lambda: log._commit._settled is not None)
        assert not closing.done()
        if cancelled:
            closing.cancel()
            await asyncio.wait((closing,))
            closing = asyncio.ensure_future(log.close())
            await turns(20)
            assert not closing.done()
        kernel.release()
        await closing
        await log.close()
        calls = len(disk.calls)
        await turns()
        assert len(disk.calls) == calls
        # The one under way was written; nothing behind it was.
        assert (await content(tmp_path))[-1] == payload(900)

    run(scenario())


def test_a_report_of_a_sync_that_failed_comes_behind_a_close(
    tmp_path: Path, kernel: FakeKernel
) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await opened(tmp_path, disk)
        await warm(log, kernel)
        kernel.holds = True
        disk.fail_after("commit", 0)
        late = log.append([payload(900)])
        closing = asyncio.ensure_future(log.close())
        with pytest.raises(ContainerStoppedError):
            await late
        kernel.release()
        await closing
        assert not disk.synced_after_failure

    run(scenario())


def test_a_lock_that_is_released_meanwhile_leaves_nothing_acknowledged(
    tmp_path: Path, kernel: FakeKernel
) -> None:
    async def scenario() -> None:
        log = await opened(tmp_path)
        await warm(log, kernel)
        kernel.holds = True
        late = log.append([payload(900)])
        log.release_lock()
        kernel.release()
        await turns()
        assert not late.done()
        await log.close()
        with pytest.raises(ContainerStoppedError):
            await late

    run(scenario())


@pytest.mark.parametrize("kind", ["append", "commit"])
def test_a_failed_write_or_sync_fails_all_and_begins_nothing(
    tmp_path: Path, kernel: FakeKernel, kind: str
) -> None:
    async def scenario() -> None:
        disk = FaultyDisk()
        log = await opened(tmp_path, disk)
        await warm(log, kernel)
        durable = await read_payloads(log)
        disk.fail_after(kind, 0)
        late = [log.append([payload(900 + number)]) for number in range(5)]
        assert all(
            isinstance(result, TierUnavailableError)
            for result in await asyncio.gather(*late, return_exceptions=True)
        )
        begun = kernel.begun
        with pytest.raises(TierUnavailableError):
            await log.append([payload(990)])
        assert kernel.begun == begun
        await log.close()
        assert not disk.synced_after_failure
        assert (await content(tmp_path))[: len(durable)] == durable

    run(scenario())


def test_what_the_kernel_refuses_the_thread_syncs_in_its_order(
    tmp_path: Path, kernel: FakeKernel
) -> None:
    async def scenario() -> None:
        log = await opened(tmp_path)
        await warm(log, kernel)
        before = await read_payloads(log)
        appended = list[asyncio.Future[LogAddress]]()
        for number in range(100, 300):
            kernel.refuses = number % 7 > 3
            appended.append(log.append([payload(number)]))
            if number % 3:
                await asyncio.sleep(0)
            if number % 11 == 0:
                await appended[-1]
        addresses = await asyncio.gather(*appended)
        assert addresses == sorted(addresses)
        await log.close()
        assert await content(tmp_path) == [*before, *map(payload, range(100, 300))]

    run(scenario())


def test_a_group_of_more_than_64_kib_is_the_threads(tmp_path: Path, kernel: FakeKernel) -> None:
    async def scenario() -> None:
        log = await opened(tmp_path)
        await warm(log, kernel)
        for length, by_kernel in ((SMALL_GROUP_BYTES - 100, 1), (SMALL_GROUP_BYTES, 0)):
            begun = kernel.begun
            await log.append([bytes(length)])
            assert kernel.begun == begun + by_kernel
        await log.close()

    run(scenario())


class SlowDisk(OsDisk):
    """Each write of frames takes so long, by the clock of a virtual loop."""

    ms = 0

    def _opened(self, descriptor: int) -> OsFile:
        disk = self

        class File(OsFile):
            def pwrite(self, buffers: Sequence[Buffer], offset: int) -> None:
                super().pwrite(buffers, offset)
                loop = asyncio.get_running_loop()
                assert isinstance(loop, VirtualLoop)
                loop.virtual_time.now_us += 1000 * disk.ms

        return File(descriptor)


def test_behind_a_slow_write_the_thread_writes_for_a_while(
    tmp_path: Path, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "SLOW_WRITE_MS", SLOW_WRITE_MS)

    async def scenario() -> None:
        disk = SlowDisk()
        loop = asyncio.get_running_loop()

        def now_ms() -> int:
            return int(loop.time() * 1000)

        runtime = Runtime(
            disk=disk, executor=inline_executor, boot=lambda: BootTime(bytes(16), now_ms())
        )
        log = FileLog(str(tmp_path / "log"), 0, runtime)
        await log.open()
        await warm(log, kernel)

        async def by_kernel() -> bool:
            begun = kernel.begun
            await log.append([b"x"])
            return kernel.begun > begun

        disk.ms = SLOW_WRITE_MS
        assert [await by_kernel() for _ in range(3)] == [True] * 3
        disk.ms = SLOW_WRITE_MS + 1
        began = now_ms()
        assert await by_kernel(), "the slow one itself"
        disk.ms = 0
        assert [await by_kernel() for _ in range(20)] == [False] * 20
        left = began + SLOW_WRITE_MS + 1 + SLOW_PAUSE_MS - now_ms()
        assert left > 0
        await asyncio.sleep(left / 1e3 - 1e-3)
        assert not await by_kernel()
        await asyncio.sleep(2e-3)
        assert [await by_kernel() for _ in range(3)] == [True] * 3
        await log.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())


# --- interrupts -----------------------------------------------------------------------------------


class InterruptError(KeyboardInterrupt):
    """What a signal handler raises."""


Place = tuple[str, int, str]
TRACED = {file_log.__file__, group_commit.__file__}


class Interrupts:
    """Raises where `place` is first reached; `places` are all that were, before.

    As the interpreter has it: where a function begins, and behind a call of a built-in one.
    """

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self.places: dict[Place, None] = {}

    def __enter__(self) -> None:
        sys.setprofile(self._step)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _step(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        # Whether a close that is interrupted has its lock is asyncio's.
        if code.co_filename in TRACED and code.co_name != "close" and event in {"call", "c_return"}:
            place = (code.co_filename, frame.f_lineno, event)
            self.places[place] = None
            if place == self.place:
                self.place = None
                raise InterruptError


def interrupted(folder: Path, place: Place | None, *, closes: bool) -> list[Place]:
    """One log that is interrupted there: all callers are answered, and it closes."""
    fake = FakeKernel()

    class Disk(FaultyDisk):
        def kernel_syncs(self, path: str) -> Any:
            return fake.syncs(path)

    loop = asyncio.SelectorEventLoop()
    log = make_log(folder, Disk(quick=True))
    interrupts = Interrupts(place)
    appended = list[asyncio.Future[LogAddress]]()

    async def begin() -> None:
        await log.open()
        await warm(log, fake)

    async def work() -> None:
        for _ in range(2):
            appended.append(log.append([payload(100 + len(appended))]))
            await appended[-1]
        fake.holds = closes
        for _ in range(4):
            appended.append(log.append([payload(100 + len(appended))]))
        if closes:
            closing = asyncio.ensure_future(log.close())
            await until(lambda: log._commit._settled is not None or closing.done())
            fake.release()
            await closing
        else:
            await asyncio.gather(*appended)
            appended.append(log.append([bytes(SMALL_GROUP_BYTES)]))
            await appended[-1]

    async def end() -> None:
        fake.release()
        async with asyncio.timeout(20):
            await log.close()
        assert all(future.done() for future in appended), "no caller may wait for ever"

    loop.run_until_complete(begin())
    with suppress(InterruptError, ContainerStoppedError), interrupts:
        loop.run_until_complete(work())
    ending = loop.create_task(end())
    while not ending.done():
        # A task that waited for the interrupted one gets its error, and the loop that once more.
        with suppress(InterruptError):
            loop.run_until_complete(ending)
    ending.result()
    loop.close()
    acknowledged = sum(future.exception() is None for future in appended)
    written = [each for each in run(content(folder)) if each[:3] == b"000"][-7:]
    assert [each for each in written if each >= payload(100)][: min(acknowledged, 6)] == [
        payload(100 + number) for number in range(min(acknowledged, 6))
    ]
    return list(interrupts.places)


@pytest.mark.parametrize("closes", [False, True])
def test_an_interrupt_anywhere_leaves_no_caller_waiting(
    tmp_path: Path, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "SLOW_WRITE_MS", 3_600_000)
    places = interrupted(tmp_path / "none", None, closes=closes)
    assert len(places) > 15
    for number, place in enumerate(places):
        try:
            interrupted(tmp_path / str(number), place, closes=closes)
        except BaseException as error:
            error.add_note(f"interrupted at {os.path.basename(place[0])}:{place[1]} {place[2]}")
            raise


@pytest.mark.parametrize("report", ["_writer_idle", "_written"])
def test_a_report_of_the_thread_that_is_lost_fails_the_log(
    report: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each later group would answer the callers of the one before it."""
    whole = getattr(group_commit.GroupCommit, report)
    left = [1]

    def interrupted(self: object, *arguments: object) -> object:
        if left:
            left.pop()
            raise SystemError
        return whole(self, *arguments)

    async def scenario() -> None:
        log, failures = await opened(tmp_path), list[object]()
        log.on_failed = failures.append
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        monkeypatch.setattr(group_commit.GroupCommit, report, interrupted)
        lost = log.append([payload(1)])
        with pytest.raises(TierUnavailableError, match="acknowledging"):
            await asyncio.wait_for(lost, 60)
        with pytest.raises(TierUnavailableError, match="acknowledging"):
            await asyncio.wait_for(log.append([payload(2)]), 60)
        assert len(failures) == 1
        await log.close()

    run(scenario())


def test_a_log_on_a_disk_of_this_machine_has_its_groups_synced_by_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else of it is set up: as in a program that uses the store."""
    monkeypatch.setattr(disk_module, "is_of_one_host", lambda path: path == str(tmp_path / "log"))
    assert OsDisk().kernel_syncs("elsewhere") is None
    assert FaultyDisk().kernel_syncs(str(tmp_path / "log")) is None, "it syncs in its own way"
    begun, begin = [0], AioSyncs.begin

    def counted(self: AioSyncs, file: object, done: Callable[[OSError | None], None]) -> bool:
        begun[0] += 1
        return begin(self, file, done)

    monkeypatch.setattr(AioSyncs, "begin", counted)
    monkeypatch.setattr(group_commit, "SLOW_WRITE_MS", 3_600_000)

    async def scenario() -> None:
        log = FileLog(str(tmp_path / "log"), 0, Runtime(), file_bytes=2 << 20)
        await log.open()
        number = 0
        while begun[0] < 10:
            await log.append([payload(number)])
            number += 1
            assert number < 4_000, "the kernel has none of the groups"
        assert number > LOAD_GROUPS
        await log.close()

    asyncio.run(scenario())
