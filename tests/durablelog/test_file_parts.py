"""Sealed files as parts of a log: pinned, whatever happens beside them, and seen by views."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from durablelog.durable_data_log import LogAddress
from durablelog.file.file_log import FileLog
from durablelog.file.file_log_view import FileLogView
from durablelog.file.log_layout import FILE_HEADER_LENGTH, file_name
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    NotPrimaryError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import LedgerNotFoundError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.log_parts_contract import (
    contents,
    entries_of_parts,
    read_by_parts,
    read_entries,
)
from tests.contracts.log_world import payload, read_all
from tests.durablelog.faulty_disk import FaultyDisk

FILE_BYTES = FILE_HEADER_LENGTH + 1000
"""Three frames."""


def make_log(folder: Path, disk: FaultyDisk | None = None) -> FileLog:
    runtime = Runtime(disk=disk or FaultyDisk(quick=True), executor=inline_executor)
    return FileLog(str(folder), 0, runtime, file_bytes=FILE_BYTES, payload_bytes_max=400)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    run_virtual(asyncio.wait_for(coroutine, 60))


async def append(log: FileLog, numbers: range) -> list[LogAddress]:
    return [await log.append([payload(number, 250)]) for number in numbers]


def test_a_file_that_is_read_is_not_written_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        await append(log, range(40))
        before = await entries_of_parts(log)
        handles = {number: await log.open_part(number) for number in before}
        for start in range(40, 200, 10):
            addresses = await append(log, range(start, start + 10))
            await log.truncate(addresses[-1])
        held = log.statistics().held_bytes
        assert held == sum(handle.length for handle in handles.values())
        assert log.health() == f"{held} bytes of truncated log files are kept, for they are read"
        for number, handle in handles.items():
            assert await read_entries(handle) == before[number]
            await handle.close()
            assert not (tmp_path / file_name(number)).exists()
        assert log.health() is None
        await log.close()

    run(scenario())


def test_a_part_that_is_open_when_the_log_is_closed_goes_with_the_next_opening(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        addresses = await append(log, range(20))
        part = log.sealed_parts()[0]
        handle = await log.open_part(part.number)
        await log.truncate(addresses[-1])
        await log.close()
        assert (tmp_path / file_name(part.number)).exists()
        with pytest.raises(ContainerStoppedError):
            await read_entries(handle)
        await handle.close()
        again = make_log(tmp_path)
        await again.open()
        assert not (tmp_path / file_name(part.number)).exists()
        await again.close()

    run(scenario())


def test_frames_that_an_opening_copies_on_are_in_one_part(tmp_path: Path) -> None:
    """Nothing says that the frames of the last group were durable: the next owner has them."""

    async def scenario() -> None:
        for opening in range(4):
            log = make_log(tmp_path)
            await log.open()
            first = opening * 5
            await asyncio.gather(
                *[log.append([payload(number, 120)]) for number in range(first, first + 5)]
            )
            await log.close()
        log = make_log(tmp_path)
        await log.open()
        frames = contents(await read_all(log))
        assert [sequence for _, sequence, _, _ in frames] == list(range(1, 21))
        assert contents(await read_by_parts(log, 0)) == frames
        await log.close()

    run(scenario())


def test_a_fenced_owner_is_not_taken_for_damage(tmp_path: Path) -> None:
    async def scenario() -> None:
        old = make_log(tmp_path)
        await old.open()
        await append(old, range(20))
        handles = [await old.open_part(part.number) for part in old.sealed_parts()]
        (tmp_path / "LOCK").unlink()
        new = make_log(tmp_path)
        await new.open()
        addresses = await append(new, range(20, 22))
        await new.truncate(addresses[-1])
        for handle in handles:
            with pytest.raises(NotPrimaryError):
                await read_entries(handle)
            await handle.close()
        await new.close()
        await old.close()

    run(scenario())


def test_a_view_has_what_is_sealed_and_an_owner_elsewhere_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        await append(log, range(20))
        view = FileLogView(str(tmp_path), 0, Runtime(executor=inline_executor))
        with pytest.raises(ContainerStoppedError):
            view.sealed_parts()
        await view.open()
        parts = [part._replace(sealed_ms=0) for part in view.sealed_parts()]
        assert parts == [part._replace(sealed_ms=0) for part in log.sealed_parts()]
        assert await entries_of_parts(view) == await entries_of_parts(log)
        assert contents(await read_by_parts(view, 0)) == contents(await read_all(log))
        handle = await view.open_part(parts[0].number)
        addresses = await append(log, range(20, 30))
        await log.truncate(addresses[-1])
        with pytest.raises(TierUnavailableError, match="try again"):
            await read_entries(handle)
        await handle.close()
        await view.close()
        await log.close()

    run(scenario())


def test_a_file_that_is_missing_is_not_found_and_damage_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        await append(log, range(20))
        first, second, *_ = log.sealed_parts()
        handle, other = await log.open_part(first.number), await log.open_part(second.number)
        (tmp_path / file_name(first.number)).unlink()
        with pytest.raises(LedgerNotFoundError):
            await read_entries(handle)
        path = tmp_path / file_name(second.number)
        path.write_bytes(path.read_bytes()[: FILE_HEADER_LENGTH + 400])
        with pytest.raises(DataCorruptionError, match=r"frame 4\b"):
            await read_entries(other)
        await handle.close()
        await other.close()
        await log.close()

    run(scenario())


def test_a_whole_frame_at_another_ones_place_is_damage(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = make_log(tmp_path)
        await log.open()
        await append(log, range(20))
        part = max(log.sealed_parts(), key=lambda part: part.length)
        handle = await log.open_part(part.number)
        one, two, *others = await read_entries(handle)
        path = tmp_path / file_name(part.number)
        assert len(one) == len(two)
        swapped = b"".join((two, one, *others))
        header = path.read_bytes()[:FILE_HEADER_LENGTH]
        path.write_bytes(header + swapped)
        with pytest.raises(DataCorruptionError, match="lies there"):
            await read_entries(handle)
        await handle.close()
        await log.close()

    run(scenario())
