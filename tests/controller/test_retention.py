"""Retention: by time, by size, and by what subscribers have read; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.controller.controller import Controller
from segmentstore.controller.controller_rows import (
    ControllerRows,
    FoundRow,
    RowPut,
    subscriber_key,
)
from segmentstore.controller.deadlines import FIRST_S
from segmentstore.controller.group_model import GroupConfiguration
from segmentstore.controller.names import ScopedName, make_segment_id
from segmentstore.controller.retention_rules import RecordedCut, truncation
from segmentstore.controller.stream_history import StreamHistory
from segmentstore.controller.stream_model import (
    EpochRecord,
    ScalingPolicy,
    StreamConfiguration,
    StreamCut,
    StreamRetention,
    StreamSegment,
)
from tests.controller.controller_world import STREAM, running, with_stream
from tests.controller.fake_store import FakeDisk, FakeProcess, FakeTables
from tests.support.loop_clock import LoopBoot, LoopClock

PERIOD_S = 1800
HOUR_MS = 3_600_000
SEGMENT = "s/a/0.#epoch.0"


@asynccontextmanager
async def retained(kind: int, param: int, most: int) -> AsyncIterator[tuple[Controller, FakeDisk]]:
    configuration = StreamConfiguration(retention=StreamRetention(kind, param, most))
    async with with_stream(configuration) as (controller, disk):
        # Passes are half a period after the writes.
        await asyncio.sleep(PERIOD_S / 2)
        yield controller, disk


async def periods(disk: FakeDisk, count: int) -> int:
    """Write 10 bytes in each; gives where the stream begins then."""
    for _ in range(count):
        disk.write(SEGMENT, bytes(10))
        await asyncio.sleep(PERIOD_S)
    return disk.segments[SEGMENT].start


def test_by_time() -> None:
    async def main() -> None:
        async with retained(1, HOUR_MS, 0) as (_, disk):
            assert await periods(disk, 2) == 0
            assert await periods(disk, 1) == 10
            assert await periods(disk, 4) == 50
            assert len([key for key in disk.rows if key.startswith(b"cut/")]) == 3

    run_virtual(main())


JUMP_MS = 10 * 365 * 24 * HOUR_MS


@pytest.mark.parametrize("jump_ms", [JUMP_MS, -JUMP_MS])
@pytest.mark.parametrize("at_start", [False, True])
def test_a_wall_clock_that_jumps_makes_nothing_older_or_younger(
    jump_ms: int, at_start: bool
) -> None:
    """While a Controller runs, or from the start of the next one on, on another machine."""

    async def main() -> None:
        clock, disk = LoopClock(), FakeDisk()
        configuration = StreamConfiguration(retention=StreamRetention(1, HOUR_MS, 0))
        async with running(FakeProcess(disk), clock=clock) as controller:
            await controller.scopes.create(STREAM.scope)
            await controller.streams.create(STREAM, configuration)
            await asyncio.sleep(PERIOD_S / 2)
            assert await periods(disk, 2) == 0
            if not at_start:
                clock.offset_ms += jump_ms
                assert await periods(disk, 2) == 20
        if at_start:
            clock.offset_ms += jump_ms
            boot = LoopBoot()
            boot.start_anew()
            async with running(FakeProcess(disk), clock=clock, boot=boot):
                await asyncio.sleep(PERIOD_S / 2)
                assert await periods(disk, 1) == 10
                assert await periods(disk, 1) == 20
                clock.offset_ms -= jump_ms
                assert await periods(disk, 2) == 40

    run_virtual(main())


def test_a_pass_that_fails_makes_nothing_older(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lost the times of all streams: those of the whole run were added to their ages."""

    async def main() -> None:
        async with retained(1, 4 * HOUR_MS, 0) as (_, disk):
            start = await periods(disk, 20)
            scan, failed = ControllerRows.scan, list[str]()

            async def fails_once(rows: ControllerRows, prefix: str) -> AsyncIterator[FoundRow]:
                if prefix == "retention/" and not failed:
                    failed.append(prefix)
                    raise TierUnavailableError("tier1", "away")
                async for row in scan(rows, prefix):
                    yield row

            monkeypatch.setattr(ControllerRows, "scan", fails_once)
            assert await periods(disk, 2) == start + 20
            assert failed == ["retention/"]

    run_virtual(main())


@pytest.mark.parametrize(("same_boot", "start"), [(True, 20), (False, 0)])
def test_the_time_between_two_controllers_counts_where_it_is_known(
    same_boot: bool, start: int
) -> None:
    async def main() -> None:
        boot, disk = LoopBoot(), FakeDisk()
        configuration = StreamConfiguration(retention=StreamRetention(1, 2 * HOUR_MS, 0))
        async with running(FakeProcess(disk), boot=boot) as controller:
            await controller.scopes.create(STREAM.scope)
            await controller.streams.create(STREAM, configuration)
            await asyncio.sleep(PERIOD_S / 2)
            assert await periods(disk, 2) == 0
        await asyncio.sleep(3 * HOUR_MS / 1000)
        if not same_boot:
            boot.start_anew()
        async with running(FakeProcess(disk), boot=boot):
            await asyncio.sleep(PERIOD_S / 2)
            assert await periods(disk, 1) == start

    run_virtual(main())


def test_controllers_that_are_ended_after_minutes_truncate_too() -> None:
    async def main() -> None:
        disk = FakeDisk()
        configuration = StreamConfiguration(retention=StreamRetention(2, 25, 0))
        async with running(FakeProcess(disk)) as controller:
            await controller.scopes.create(STREAM.scope)
            await controller.streams.create(STREAM, configuration)
        boot = LoopBoot()
        for _ in range(100):
            disk.write(SEGMENT, bytes(10))
            boot.start_anew()
            async with running(FakeProcess(disk), boot=boot):
                await asyncio.sleep(2 * FIRST_S)
            assert len([key for key in disk.rows if key.startswith(b"cut/")]) <= 3
        # A tail is kept for each 15 Controllers, so that they are not more than others.
        assert 800 < disk.segments[SEGMENT].start <= 975

    run_virtual(main())


def test_by_size() -> None:
    async def main() -> None:
        async with retained(2, 25, 0) as (_, disk):
            assert await periods(disk, 3) == 0
            assert await periods(disk, 1) == 10
            assert await periods(disk, 3) == 40

    run_virtual(main())


def test_by_size_across_a_scale() -> None:
    async def main() -> None:
        async with retained(2, 25, 0) as (controller, disk):
            await periods(disk, 2)
            await controller.streams.scale(STREAM, [0], [(0.0, 1.0)])
            name = "s/a/1.#epoch.1"
            disk.write(name, bytes(30))
            await asyncio.sleep(PERIOD_S)
            assert disk.segments[SEGMENT].start == 20
            disk.write(name, bytes(30))
            await asyncio.sleep(PERIOD_S)
            assert SEGMENT not in disk.segments
            assert disk.segments[name].start == 30

    run_virtual(main())


def test_subscribers_hold_a_stream_between_the_bounds() -> None:
    async def main() -> None:
        async with retained(2, 15, 45) as (controller, disk):
            group = ScopedName("s", "g")
            wanted = GroupConfiguration(uuid="u", retention=1, starting=((STREAM, {}),))
            await controller.groups.create(group, wanted)
            # Not more than the maximum is kept, whatever the group has read.
            assert await periods(disk, 4) == 0
            assert await periods(disk, 2) == 10

            async def read_to(offset: int) -> None:
                await controller.groups.report_cut(STREAM, group, "u", 0, {0: offset})

            await read_to(42)
            assert await periods(disk, 1) == 42
            # Not less than the minimum is kept, however far it is.
            await read_to(80)
            assert await periods(disk, 1) == 60

    run_virtual(main())


def test_a_subscriber_with_a_cut_of_a_former_stream_has_read_nothing() -> None:
    async def main() -> None:
        async with retained(2, 15, 45) as (controller, disk):
            group = ScopedName("s", "g")
            wanted = GroupConfiguration(uuid="u", retention=1, starting=((STREAM, {}),))
            await controller.groups.create(group, wanted)
            # Earlier versions could leave such a row.
            rows = ControllerRows(FakeTables(FakeProcess(disk)))
            stale = {"uuid": "u", "generation": 0, "cut": [[7, 0]]}
            await rows.put(RowPut(subscriber_key(STREAM, group), stale))
            assert await periods(disk, 4) == 0
            assert await periods(disk, 2) == 10

    run_virtual(main())


def test_a_cut_that_is_behind_the_head_at_some_keys_truncates_nothing() -> None:
    async def main() -> None:
        retention = StreamRetention(2, 25, 0)
        two = StreamConfiguration(scaling=ScalingPolicy(segments=2), retention=retention)
        async with with_stream(two) as (controller, disk):
            await asyncio.sleep(PERIOD_S / 2)

            async def write(low: int, high: int) -> None:
                disk.write(SEGMENT, bytes(low))
                disk.write("s/a/1.#epoch.0", bytes(high))
                await asyncio.sleep(PERIOD_S)

            async def head() -> StreamCut:
                return (await controller.streams.record(STREAM)).cut

            def recorded() -> int:
                return len([key for key in disk.rows if key.startswith(b"cut/")])

            group = ScopedName("s", "g")
            wanted = GroupConfiguration(uuid="u", retention=1, starting=((STREAM, {}),))
            await controller.groups.create(group, wanted)
            await write(10, 0)
            await write(10, 10)
            await controller.groups.report_cut(STREAM, group, "u", 0, {0: 12, 1: 8})
            await write(10, 10)
            assert (await head(), recorded()) == ({0: 10, 1: 0}, 3)
            await controller.streams.truncate(STREAM, {0: 15, 1: 0})
            await write(10, 10)
            # The first of the recorded cuts is before the head now.
            assert (await head(), recorded()) == ({0: 15, 1: 0}, 3)
            await controller.groups.report_cut(STREAM, group, "u", 0, {0: 18, 1: 8})
            await write(10, 10)
            assert (await head(), recorded()) == ({0: 18, 1: 8}, 4)

    run_virtual(main())


def test_a_policy_that_is_dropped_ends_the_recording() -> None:
    async def main() -> None:
        async with retained(2, 15, 0) as (controller, disk):
            await periods(disk, 2)
            await controller.streams.update(STREAM, StreamConfiguration())
            await periods(disk, 2)
            kinds = {bytes(key).partition(b"/")[0] for key in disk.rows}
            assert kinds == {b"controller", b"scope", b"stream", b"epoch"}

    run_virtual(main())


def test_subscribers_that_are_not_alike_hold_the_stream_at_a_recorded_cut() -> None:
    old = (StreamSegment(0, 0.0, 0.5), StreamSegment(1, 0.5, 1.0))
    whole = StreamSegment(make_segment_id(2, 1), 0.0, 1.0)
    new = (
        StreamSegment(make_segment_id(3, 2), 0.0, 0.5),
        StreamSegment(make_segment_id(4, 2), 0.5, 1.0),
    )
    history = StreamHistory(
        [
            EpochRecord(0, old, (), 0),
            EpochRecord(1, (whole,), (0, 1), 0),
            EpochRecord(2, new, (whole.segment_id,), 0),
        ]
    )
    low, high = (each.segment_id for each in new)
    recorded = [
        RecordedCut(1, 10, {0: 5, 1: 5}),
        RecordedCut(2, 20, {whole.segment_id: 10}),
        RecordedCut(3, 30, {low: 5, high: 5}),
        RecordedCut(4, 90, {low: 30, high: 30}),
    ]
    policy = StreamRetention(2, 10, 0)
    ahead_low = {low: 9, 1: 7}
    ahead_high = {0: 7, high: 9}
    assert truncation(history, policy, recorded, 9, [ahead_low]) == {low: 5, 1: 7}
    # Together they are at 0 and 1, which is a cut.
    assert truncation(history, policy, recorded, 9, [ahead_low, ahead_high]) == {0: 7, 1: 7}
    # One is in the joined segment, of which the other has read half of the keys.
    within = {whole.segment_id: 3}
    behind = {0: 7, high: 9}
    assert truncation(history, policy, recorded, 9, [within, behind]) == {0: 5, 1: 5}
    assert truncation(history, policy, recorded, 9, []) == {low: 5, high: 5}
