"""A wall clock that is years off: nothing goes early, nothing stays for ever, times of segments
come back, and it is reported.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime, SystemClock
from tests.store.harness import open_lazy, run, until
from tests.support.folders import files_below
from tier2.object_names import parse_object_name

YEAR_MS = 365 * 24 * 3600 * 1000
AHEAD_MS = 10 * YEAR_MS


class OffClock(SystemClock):
    """The operating system's clock, and how far it is off."""

    offset_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.offset_ms


def objects(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder / "tier2")) for path in files_below(folder / "tier2")}
    return {name for name in names if parse_object_name(name) is not None}


def told(store: SegmentStore) -> list[str]:
    stats: Any = store.stats()
    return list(stats["health"])


async def modified_ms(store: SegmentStore) -> float:
    return (await store.get_info("x")).last_modified.timestamp() * 1000


async def filled_and_deleted(store: SegmentStore, clock: OffClock, ahead_ms: int) -> None:
    """One segment becomes garbage while the clock is off."""
    await store.create_segment("kept")
    await store.create_segment("gone")
    await store.append("gone", b"x" * 50)
    await store.flush()
    store.stats()
    clock.offset_ms = ahead_ms
    await store.append("kept", b"y")
    await store.delete("gone")
    await store.append("kept", b"y")


@pytest.mark.parametrize("ahead_ms", [AHEAD_MS, -AHEAD_MS])
@pytest.mark.parametrize("restarted", [False, True])
def test_one_operation_at_a_wrong_time_keeps_no_garbage(
    tmp_path: Path, ahead_ms: int, restarted: bool
) -> None:
    async def main() -> None:
        clock = OffClock()
        runtime = Runtime(clock=clock)
        folder = tmp_path / "s"
        async with open_lazy(
            folder, runtime=runtime, deletion_lag_s=0.3 if not restarted else 3600.0
        ) as store:
            await filled_and_deleted(store, clock, ahead_ms)
            clock.offset_ms = 0
            if not restarted:
                await until(lambda: not objects(folder))
        if restarted:
            assert objects(folder)
            async with open_lazy(folder, runtime=runtime, deletion_lag_s=0.3) as store:
                await until(lambda: not objects(folder))

    run(main())


@pytest.mark.parametrize("when", ["before", "during", "between"])
def test_no_jump_deletes_before_the_lag(tmp_path: Path, when: str) -> None:
    async def main() -> None:
        clock = OffClock()
        runtime = Runtime(clock=clock)
        folder = tmp_path / "s"
        clock.offset_ms = -AHEAD_MS if when == "before" else 0
        async with open_lazy(folder, runtime=runtime, deletion_lag_s=3600.0) as store:
            await filled_and_deleted(store, clock, clock.offset_ms)
            clock.offset_ms = AHEAD_MS if when == "during" else 0
            before = objects(folder)
            report = await store.collect_garbage()
            assert report.count("waiting") == report.count() > 0
        clock.offset_ms = AHEAD_MS
        async with open_lazy(folder, runtime=runtime, deletion_lag_s=3600.0) as store:
            report = await store.collect_garbage()
            assert report.count("waiting") == report.count() > 0
        assert objects(folder) == before

    run(main())


def test_times_of_segments_come_back_with_the_clock(tmp_path: Path) -> None:
    async def main() -> None:
        clock = OffClock()
        async with open_lazy(tmp_path / "s", runtime=Runtime(clock=clock)) as store:
            await store.create_segment("x")
            clock.offset_ms = AHEAD_MS
            await store.append("x", b"y")
            assert await modified_ms(store) > clock.time_ms() - YEAR_MS
            clock.offset_ms = 0
            await store.append("x", b"y")
            assert await modified_ms(store) < clock.time_ms() + YEAR_MS
        clock.offset_ms = 0
        async with open_lazy(tmp_path / "s", runtime=Runtime(clock=clock)) as store:
            await store.append("x", b"y")
            assert await modified_ms(store) < clock.time_ms() + YEAR_MS

    run(main())


def test_a_jump_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = OffClock()
        async with open_lazy(tmp_path / "s", runtime=Runtime(clock=clock)) as store:
            assert told(store) == []
            clock.offset_ms = AHEAD_MS
            assert any("the wall clock jumped ahead by 3650 days" in each for each in told(store))
            stats: Any = store.stats()
            assert stats["containers"][0]["storage_writer"]["wall_clock_jumps"] == 1
            clock.offset_ms = 0
            assert any("the wall clock jumped back by 3650 days" in each for each in told(store))

    with caplog.at_level(logging.WARNING):
        run(main())
    assert sum("the wall clock jumped" in record.message for record in caplog.records) == 2
