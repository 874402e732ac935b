"""How truncated files come to be written over, and that nothing is lost by it, whatever happens
between.

The rules are those of docs/decisions/0011-recycled-log-files.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.durable_data_log import LogAddress
from durablelog.file.file_log import FileLog
from durablelog.file.log_layout import (
    FILE_HEADER_LENGTH,
    file_name,
)
from durablelog.file.log_scanner import LogFile
from durablelog.file.spare_files import SPARES_MAX, SpareFiles
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.disk import DiskFile, OsDisk, OsFile
from segmentstore.contracts.errors import NotPrimaryError, SegmentStoreError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import payload, read_all, read_payloads
from tests.contracts.log_parts_contract import contents, entries_of_parts, read_by_parts
from tests.durablelog.faulty_disk import FaultyDisk
from tests.support.fake_kernel import syncs_by  # noqa: F401 - each test runs both ways
from tests.support.suites import examples, size, sized

FILE_BYTES = FILE_HEADER_LENGTH + 1000

CRASH_STEP = size("RECYCLING_CRASH_STEP", 5, 1)
"""Calls of the disk from one that it dies in to the next."""


def make_log(folder: Path, disk: OsDisk | None = None, file_bytes: int = FILE_BYTES) -> FileLog:
    runtime = Runtime(disk=disk or FaultyDisk(quick=True), executor=inline_executor)
    return FileLog(str(folder), 0, runtime, file_bytes=file_bytes, payload_bytes_max=400)


def run(coroutine: Coroutine[Any, Any, Any]) -> None:
    run_virtual(asyncio.wait_for(coroutine, 60))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.glob("*.log")}


def temporary(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.tmp")]


def spares(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("spare-*.tmp"))


async def append(log: FileLog, numbers: Iterable[int], length: int = 300) -> list[LogAddress]:
    return [await log.append([payload(number, length)]) for number in numbers]


def test_files_are_written_over_and_reopened_again_and_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyDisk(quick=True)
        kept: list[int] = []
        for opening in range(5):
            log = make_log(tmp_path, disk)
            await log.open()
            assert await read_payloads(log) == [payload(number, 300) for number in kept]
            for start in range(opening * 40, opening * 40 + 40, 4):
                numbers = range(start, start + 4)
                addresses = await append(log, numbers)
                await log.truncate(addresses[1])
                assert len(spares(tmp_path)) <= SPARES_MAX
                assert len(snapshot(tmp_path)) <= 2 + 4 + SPARES_MAX
                kept = list(numbers)[1:]
                assert await read_payloads(log) == [payload(number, 300) for number in kept]
            await log.close()
            assert temporary(tmp_path) == []
        assert sum(call.startswith("rename next-") for call in disk.calls) > 20

    run(scenario())


def test_of_many_truncated_files_only_two_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        addresses = await append(log, range(60))
        assert len(inodes(tmp_path)) > 15
        await log.truncate(addresses[-1])
        assert len(spares(tmp_path)) == SPARES_MAX == 2
        assert len(inodes(tmp_path)) <= 2
        assert log.statistics().files == len(inodes(tmp_path)) + len(temporary(tmp_path))
        await log.close()

    run(scenario())


def test_files_of_an_earlier_opening_are_never_written_over(tmp_path: Path) -> None:
    """A fenced owner may write to its own file whenever it wakes up: that must not be the new
    owner's.
    """

    async def scenario() -> None:
        old = make_log(tmp_path)
        await old.open()
        await append(old, range(20))
        before = inodes(tmp_path).values()
        # While they are open, no new file can get their numbers.
        held = [OsDisk().open(str(tmp_path / name)) for name in inodes(tmp_path)]
        (tmp_path / "LOCK").unlink()
        new = make_log(tmp_path)
        await new.open()
        addresses = await append(new, range(20, 22))
        await new.truncate(addresses[0])
        assert spares(tmp_path) == []
        assert len(inodes(tmp_path)) <= 3
        with pytest.raises(NotPrimaryError):
            await append(old, [900])
        addresses = await append(new, range(22, 60))
        assert not set(before) & set(inodes(tmp_path).values())
        await old.close()
        await new.truncate(addresses[-5])
        await append(new, range(60, 80))
        assert await read_payloads(new) == [payload(number, 300) for number in range(55, 80)]
        await new.close()
        for file in held:
            file.close()

    run(scenario())


def test_a_new_owner_takes_the_spares_away_without_harm(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make_log(tmp_path)
        await old.open()
        addresses = await append(old, range(20))
        await old.truncate(addresses[-1])
        assert spares(tmp_path)
        (tmp_path / "LOCK").unlink()
        new = make_log(tmp_path)
        await new.open()
        assert spares(tmp_path) == []
        with pytest.raises(NotPrimaryError):
            await append(old, range(900, 920))
        await old.close()
        await append(new, range(20, 40))
        assert await read_payloads(new) == [payload(number, 300) for number in range(19, 40)]
        await new.close()

    run(scenario())


def test_a_spare_that_is_missing_is_replaced_by_a_new_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        addresses = await append(log, range(20))
        await log.truncate(addresses[-1])
        for name in spares(tmp_path):
            (tmp_path / name).unlink()
        await append(log, range(20, 40))
        assert await read_payloads(log) == [payload(number, 300) for number in range(19, 40)]
        await log.close()

    run(scenario())


def test_an_opening_beside_an_owner_that_writes_over_what_is_being_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make_log(tmp_path)
        await old.open()
        await append(old, range(12))
        (tmp_path / "LOCK").unlink()
        victim = tmp_path / file_name(3)
        loop = asyncio.get_running_loop()

        class SlowDisk(OsDisk):
            """Between its check of the state and its reading of a file, that file becomes another
            one.
            """

            caught = False

            def open(self, path: str, **options: bool) -> OsFile:
                file = super().open(path, **options)
                if path == str(victim) and not self.caught:
                    self.caught = True
                    asyncio.run_coroutine_threadsafe(go_on(file), loop).result(60)
                return file

        async def go_on(file: DiskFile) -> None:
            before = file.pread(0, FILE_HEADER_LENGTH)
            addresses = await append(old, range(12, 16))
            await old.truncate(addresses[-1])
            await append(old, range(16, 30))
            assert file.pread(0, FILE_HEADER_LENGTH) != before

        disk = SlowDisk()
        new = FileLog(
            str(tmp_path), 0, Runtime(disk=disk), file_bytes=FILE_BYTES, payload_bytes_max=400
        )
        await new.open()
        assert disk.caught
        assert await read_payloads(new) == [payload(number, 300) for number in range(15, 30)]
        with pytest.raises(NotPrimaryError):
            await append(old, [900])
        await old.close()
        await new.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_no_file_is_written_over_while_it_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        addresses = await append(log, range(20))
        batches = log.read()
        seen = [bytes(one.payload) for one in await anext(batches)]
        await log.truncate(addresses[-1])
        await append(log, range(20, 40))
        assert spares(tmp_path) == []
        async for batch in batches:
            seen += [bytes(one.payload) for one in batch]
        assert seen == [payload(number, 300) for number in range(20)]
        assert len(spares(tmp_path)) == SPARES_MAX
        await log.close()

    run(scenario())


# --- crashes --------------------------------------------------------------------------------------


async def life(folder: Path, disk: FaultyDisk, acknowledged: list[int]) -> None:
    """Rolls, truncations and recycling; two openings."""
    number = 0
    for _ in range(2):
        log = make_log(folder, disk)
        try:
            await log.open()
            for _ in range(5):
                addresses = []
                for _ in range(4):
                    addresses.append(await log.append([payload(number, 300)]))
                    acknowledged.append(number)
                    number += 1
                await log.truncate(addresses[2])
                del acknowledged[:-2]
        finally:
            await log.close()


@sized(10)
@pytest.mark.parametrize("torn", [0, 200])
def test_a_crash_at_any_step_of_recycling_loses_nothing_acknowledged(
    tmp_path: Path, torn: int
) -> None:
    async def scenario() -> None:
        counting = FaultyDisk(quick=True)
        await life(tmp_path / "counting", counting, [])
        assert sum(call.startswith("rename spare-") for call in counting.calls) >= 5
        for crash_at in range(0, len(counting.calls), CRASH_STEP):
            folder = tmp_path / str(crash_at)
            disk = FaultyDisk(quick=True)
            disk.crash_at, disk.torn_bytes = crash_at, torn
            acknowledged: list[int] = []
            with contextlib.suppress(TierUnavailableError):
                await life(folder, disk, acknowledged)
            await check(folder, acknowledged, f"{crash_at}: {counting.calls[crash_at]}")

    run(scenario())


async def check(folder: Path, acknowledged: list[int], where: str) -> None:
    """Everything acknowledged and not truncated is there, with at most what was in flight behind
    it.
    """
    log = make_log(folder)
    await log.open()
    assert spares(folder) == [], where
    found = [int(bytes(data[:6])) for data in await read_payloads(log)]
    assert found == list(range(found[0], found[0] + len(found))) if found else not acknowledged, (
        where
    )
    # The truncation that was under way may have happened: it keeps the last two.
    assert set(acknowledged[-2:]) <= set(found), where
    assert not found or found[-1] <= (acknowledged[-1] if acknowledged else -1) + 1, where
    parts = await checked_parts(log)
    await log.append([payload(999, 300)])
    await log.close()
    log = make_log(folder)
    await log.open()
    assert [int(bytes(data[:6])) for data in await read_payloads(log)] == [*found, 999], where
    assert parts.items() <= (await checked_parts(log)).items(), where
    await log.close()


async def checked_parts(log: FileLog) -> dict[int, list[bytes]]:
    """The entries of all sealed parts, once it is sure that they and the tail are the log."""
    frames = contents(await read_all(log))
    by_parts = contents(await read_by_parts(log, 0))
    # The first part has what was truncated in it, too.
    assert by_parts[len(by_parts) - len(frames) :] == frames
    assert [sequence for _, sequence, _, _ in by_parts] == list(
        range(by_parts[0][1], by_parts[0][1] + len(by_parts)) if by_parts else ()
    )
    return await entries_of_parts(log)


Rule = tuple[str, int]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 400)),
            st.tuples(st.just("group"), st.integers(2, 12)),
            st.tuples(st.just("truncate"), st.integers(0, 6)),
            st.tuples(st.just("reopen"), st.just(0)),
            st.tuples(st.just("usurp"), st.just(0)),
            st.tuples(st.just("tear"), st.integers(0, 900)),
            st.tuples(st.just("lose sync"), st.just(0)),
        ),
        min_size=20,
        max_size=80,
    )
)
def test_any_history_of_one_log_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rules: list[Rule]
) -> None:
    run(History(tmp_path_factory.mktemp("log") / "log").play(rules))


class History:
    """A log and the plain list it must equal; after a failed append, that list with some of what
    was in flight.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = FaultyDisk(quick=True)
        self.log = make_log(folder, self.disk)
        self.frames: list[bytes] = []
        self.addresses: list[LogAddress] = []
        self.count = 0
        self.parts: dict[int, list[bytes]] = {}
        """Every part that was ever seen sealed."""

    async def play(self, rules: list[Rule]) -> None:
        await self.log.open()
        for rule, argument in rules:
            await self.step(rule, argument)
            assert len(spares(self.folder)) <= SPARES_MAX
        await self.reopen()
        await self.log.close()

    async def step(self, rule: str, argument: int) -> None:
        if rule == "append":
            await self.append([argument])
        elif rule == "group":
            await self.append([30 * index + 10 for index in range(argument)])
        elif rule == "truncate" and self.addresses:
            # Close to the end, so that files become free.
            first = max(0, len(self.addresses) - 1 - argument)
            await self.log.truncate(self.addresses[first])
            del self.frames[:first], self.addresses[:first]
        elif rule in ("tear", "lose sync"):
            self.disk.torn_bytes = argument
            self.disk.fail_after("append" if rule == "tear" else "commit", 0)
            await self.append([120, 80, 200], fails=True)
            await self.reopen()
        elif rule == "reopen":
            await self.reopen()
        elif rule == "usurp":
            (self.folder / "LOCK").unlink()
            old, self.log = self.log, make_log(self.folder, self.disk)
            await self.log.open()
            await self.compare()
            with pytest.raises(SegmentStoreError):
                await old.append([b"late"])
            await self.append([50])
            await old.close()
            await self.compare()

    async def append(self, lengths: list[int], *, fails: bool = False) -> None:
        data = [
            f"{self.count + index:06d}".encode().ljust(length, b".")
            for index, length in enumerate(lengths)
        ]
        self.count += len(lengths)
        results = await asyncio.gather(
            *[self.log.append([one]) for one in data], return_exceptions=True
        )
        assert any(isinstance(result, BaseException) for result in results) is fails
        self.frames += data
        self.addresses += [result for result in results if isinstance(result, int)]

    async def reopen(self) -> None:
        await self.log.close()
        self.log = make_log(self.folder, self.disk)
        await self.log.open()
        await self.compare()

    async def compare(self) -> None:
        found = [
            (bytes(one.payload), one.address) async for batch in self.log.read() for one in batch
        ]
        assert [data for data, _ in found] == self.frames[: len(found)]
        assert len(found) >= len(self.addresses)
        for number, entries in (await checked_parts(self.log)).items():
            assert self.parts.setdefault(number, entries) == entries
        self.frames = [data for data, _ in found]
        self.addresses = [address for _, address in found]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_file_that_is_too_small_for_frames_is_not_written_over(
    tmp_path: Path, missing: int
) -> None:
    """Begun on a full disk it may have room for one small frame."""
    path = tmp_path / file_name(1)
    path.write_bytes(bytes(FILE_BYTES - missing))
    file = LogFile(1, str(path), 1, 2, FILE_HEADER_LENGTH, FILE_BYTES - missing, rolled=True)
    kept = SpareFiles(str(tmp_path), OsDisk()).keep(file, 1, FILE_BYTES)
    assert (kept, spares(tmp_path) == []) == (not missing, bool(missing))
