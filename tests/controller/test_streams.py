"""Streams over a fake store: what each change does, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.controller.controller import Controller
from segmentstore.controller.key_value_tables import KeyValueTableConfiguration
from segmentstore.controller.names import (
    ScopedName,
    make_segment_id,
    mark_stream,
    number_of,
)
from segmentstore.controller.refusals import Reason
from segmentstore.controller.stream_model import (
    ScalingPolicy,
    StreamConfiguration,
    StreamRetention,
    StreamSegment,
)
from segmentstore.controller.streams import FINISH_REPEATED_S, FINISH_S
from tests.controller.controller_world import (
    ONE,
    STREAM,
    TWO,
    refused,
    running,
    with_stream,
)
from tests.controller.fake_store import FakeDisk, FakeProcess

TABLE = ScopedName("s", "t")
PARTITIONS = KeyValueTableConfiguration(2, 4, 4, 0)
SECOND = make_segment_id(1, 1)
THIRD = make_segment_id(2, 1)


def test_a_stream_has_its_segments_and_a_stream_of_watermarks() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            assert await controller.streams.current(STREAM) == (
                StreamSegment(0, 0.0, 0.5),
                StreamSegment(1, 0.5, 1.0),
            )
            assert len(await controller.streams.current(mark_stream(STREAM))) == 1
            assert set(disk.segments) == {
                "s/a/0.#epoch.0",
                "s/a/1.#epoch.0",
                "s/_MARKa/0.#epoch.0",
            }
            assert await controller.streams.page("s", "", 10) == [
                ScopedName("s", "_MARKa"),
                STREAM,
            ]
            assert await controller.streams.page("s", "a", 10) == []

    run_virtual(main())


async def fail_creations(controller: Controller, process: FakeProcess, succeed: int) -> None:
    """Of a stream and a table: so many of their segments succeed before the others fail."""
    process.creations_left = succeed
    with pytest.raises(TierUnavailableError):
        await controller.streams.create(STREAM, TWO)
    with pytest.raises(TierUnavailableError):
        await controller.key_value_tables.create(TABLE, PARTITIONS)
    process.creations_left = None


@pytest.mark.parametrize("succeed", [0, 1])
def test_a_creation_that_failed_half_way_is_no_stream_that_exists(succeed: int) -> None:
    """As a container of its segments moves: the client calls once more, and is to get its stream,
    but no other one.
    """

    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await controller.scopes.create(STREAM.scope)
            for _ in range(2):
                await fail_creations(controller, process, succeed)
            await asyncio.sleep(20)
            await controller.streams.create(STREAM, TWO)
            await controller.key_value_tables.create(TABLE, PARTITIONS)
            assert len(await controller.streams.current(STREAM)) == 2
            assert len(await controller.key_value_tables.segments(TABLE)) == 2
            async with refused(Reason.STREAM_EXISTS):
                await controller.streams.create(STREAM, TWO)
            async with refused(Reason.TABLE_EXISTS):
                await controller.key_value_tables.create(TABLE, PARTITIONS)

    run_virtual(main())


def test_a_creation_that_failed_half_way_waits_for_its_client_behind_a_restart() -> None:
    """A container of its segments moves, and the Controller with it."""

    async def main() -> None:
        disk = FakeDisk()
        process = FakeProcess(disk)
        async with running(process) as controller:
            await controller.scopes.create(STREAM.scope)
            await fail_creations(controller, process, 1)
        async with running(FakeProcess(disk)) as controller:
            await asyncio.sleep(20)
            await controller.streams.create(STREAM, TWO)
            await controller.key_value_tables.create(TABLE, PARTITIONS)
            await asyncio.sleep(FINISH_REPEATED_S)
            async with refused(Reason.STREAM_EXISTS):
                await controller.streams.create(STREAM, TWO)
            async with refused(Reason.TABLE_EXISTS):
                await controller.key_value_tables.create(TABLE, PARTITIONS)

    run_virtual(main())


@pytest.mark.parametrize("restarts", [False, True])
def test_an_abandoned_creation_is_carried_on_after_a_minute(restarts: bool) -> None:
    async def carried_on(controller: Controller) -> None:
        assert not await controller.streams.exists(STREAM)
        await asyncio.sleep(FINISH_REPEATED_S + 1)
        assert len(await controller.streams.current(STREAM)) == 2
        assert len(await controller.key_value_tables.segments(TABLE)) == 2

    async def main() -> None:
        disk = FakeDisk()
        process = FakeProcess(disk)
        async with running(process) as controller:
            await controller.scopes.create(STREAM.scope)
            await fail_creations(controller, process, 1)
            if not restarts:
                await carried_on(controller)
        if restarts:
            async with running(FakeProcess(disk)) as controller:
                await carried_on(controller)

    run_virtual(main())


def test_a_change_behind_a_creation_that_failed_is_carried_on_soon() -> None:
    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            streams = controller.streams
            await controller.scopes.create(STREAM.scope)
            process.creations_left = 0
            with pytest.raises(TierUnavailableError):
                await streams.create(STREAM, ONE)
            process.creations_left = None
            await streams.create(STREAM, ONE)
            process.creations_left = 0
            with pytest.raises(TierUnavailableError):
                await streams.scale(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
            process.creations_left = None
            await asyncio.sleep(FINISH_S + 1)
            assert len(await streams.current(STREAM)) == 2

    run_virtual(main())


def test_a_creation_that_failed_half_way_refuses_another_one() -> None:
    """It is carried on as it was begun."""

    async def main() -> None:
        process = FakeProcess(FakeDisk())
        async with running(process) as controller:
            await controller.scopes.create(STREAM.scope)
            await fail_creations(controller, process, 0)
            async with refused(Reason.STREAM_EXISTS):
                await controller.streams.create(STREAM, ONE)
            async with refused(Reason.TABLE_EXISTS):
                await controller.key_value_tables.create(TABLE, PARTITIONS._replace(partitions=3))
            assert len(await controller.streams.current(STREAM)) == 2
            assert len(await controller.key_value_tables.segments(TABLE)) == 2

    run_virtual(main())


def test_what_is_refused_of_a_stream() -> None:
    async def main() -> None:
        async with with_stream() as (controller, _):
            streams = controller.streams
            async with refused(Reason.STREAM_EXISTS):
                await streams.create(STREAM, ONE)
            async with refused(Reason.SCOPE_NOT_FOUND):
                await streams.create(ScopedName("none", "a"), ONE)
            for bad in ("", "a/b", "a_b", "__a", "ä", "a" * 251):
                async with refused(Reason.BAD_NAME):
                    await streams.create(ScopedName("s", bad), ONE)
            for configuration in (
                StreamConfiguration(scaling=ScalingPolicy(segments=0)),
                StreamConfiguration(scaling=ScalingPolicy(segments=4001)),
                StreamConfiguration(scaling=ScalingPolicy(kind=3)),
                StreamConfiguration(retention=StreamRetention(3, 1, 1)),
                StreamConfiguration(tags=("",)),
                StreamConfiguration(rollover_bytes=-1),
            ):
                async with refused(Reason.BAD_ARGUMENT):
                    await streams.create(ScopedName("s", "b"), configuration)
            async with refused(Reason.STREAM_NOT_SEALED):
                await streams.delete(STREAM)
            async with refused(Reason.STREAM_NOT_FOUND):
                await streams.seal(ScopedName("s", "b"))
            async with refused(Reason.SCOPE_NOT_FOUND):
                await streams.current(ScopedName("none", "a"))

    run_virtual(main())


def test_an_update_gives_segments_the_new_policy() -> None:
    async def main() -> None:
        async with with_stream() as (controller, disk):
            policy = ScalingPolicy(kind=2, rate=100, factor=2, segments=1)
            await controller.streams.update(
                STREAM, StreamConfiguration(scaling=policy, tags=("x",))
            )
            assert disk.segments["s/a/0.#epoch.0"].policy == policy
            assert await controller.streams.page("s", "", 10, "x") == [STREAM]
            assert await controller.streams.page("s", "", 10, "y") == []

    run_virtual(main())


def test_a_scale_makes_segments_that_follow_and_seals_the_former() -> None:
    async def main() -> None:
        async with with_stream() as (controller, disk):
            streams = controller.streams
            halves = [(0.5, 1.0), (0.0, 0.5)]
            epoch, created = await streams.scale(STREAM, [0], halves)
            assert epoch == 0
            assert created == (StreamSegment(SECOND, 0.0, 0.5), StreamSegment(THIRD, 0.5, 1.0))
            assert await streams.current(STREAM) == created
            assert await streams.successors(STREAM, 0) == [(each, [0]) for each in created]
            assert await streams.successors(STREAM, SECOND) == []
            assert disk.segments["s/a/0.#epoch.0"].sealed
            merged = make_segment_id(3, 2)
            await streams.scale(STREAM, [SECOND, THIRD], [(0.0, 1.0)])
            joined = [(StreamSegment(merged, 0.0, 1.0), [SECOND, THIRD])]
            assert await streams.successors(STREAM, SECOND) == joined
            assert await streams.epoch(STREAM, 1) == created
            assert await streams.epoch(STREAM, 0) == (StreamSegment(0, 0.0, 1.0),)
            async with refused(Reason.BAD_ARGUMENT):
                await streams.epoch(STREAM, 3)
            async with refused(Reason.SEGMENT_NOT_FOUND):
                await streams.successors(STREAM, 77)

    run_virtual(main())


def test_each_successor_has_only_what_it_follows_itself() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, _):
            streams = controller.streams
            await streams.scale(STREAM, [0, 1], [(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)])
            lower = [make_segment_id(2, 1), make_segment_id(3, 1)]
            found = await streams.successors(STREAM, 0)
            assert [(each.segment_id, before) for each, before in found] == [
                (each, [0]) for each in lower
            ]

    run_virtual(main())


def test_a_truncation_keeps_a_segment_that_the_cut_is_before_for_some_keys() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            streams = controller.streams
            await streams.scale(STREAM, [0, 1], [(0.0, 1.0)])
            joined = make_segment_id(2, 1)
            await streams.scale(STREAM, [joined], [(0.0, 0.5), (0.5, 1.0)])
            # At the lower keys before the joined segment, at the upper ones behind it.
            await streams.truncate(STREAM, {0: 0, make_segment_id(4, 2): 0})
            assert "s/a/1.#epoch.0" not in disk.segments
            assert "s/a/2.#epoch.1" in disk.segments

    run_virtual(main())


def test_a_scale_with_other_keys_is_refused() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            there = set(disk.segments)
            for sealed, ranges in (
                ([], [(0.0, 0.5)]),
                ([0], []),
                ([0], [(0.0, 0.4)]),
                ([0], [(0.0, 0.3), (0.2, 0.5)]),
                ([0], [(0.5, 1.0)]),
                ([0, 0], [(0.0, 0.5)]),
                ([7], [(0.0, 0.5)]),
                ([0], [(0.5, 0.0)]),
                ([0], [(0.0, float("nan"))]),
            ):
                async with refused(Reason.PRECONDITION_FAILED):
                    await controller.streams.scale(STREAM, sealed, ranges)
            assert set(disk.segments) == there

    run_virtual(main())


def test_a_truncation_deletes_what_ended_and_truncates_the_rest() -> None:
    async def main() -> None:
        async with with_stream() as (controller, disk):
            streams = controller.streams
            disk.write("s/a/0.#epoch.0", b"0123456789")
            await streams.truncate(STREAM, {0: 4})
            assert disk.segments["s/a/0.#epoch.0"].start == 4
            assert await streams.head(STREAM) == {0: 4}
            async with refused(Reason.BAD_CUT):
                await streams.truncate(STREAM, {0: 3})
            async with refused(Reason.BAD_CUT):
                await streams.truncate(STREAM, {0: 11})
            await streams.scale(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
            # Half of the keys are behind the old segment, the other half is in it: no cut.
            async with refused(Reason.BAD_CUT):
                await streams.truncate(STREAM, {0: 5, THIRD: 0})
            await streams.truncate(STREAM, {SECOND: 0, THIRD: 0})
            assert "s/a/0.#epoch.0" not in disk.segments
            assert await streams.head(STREAM) == {SECOND: 0, THIRD: 0}
            assert await streams.is_cut_valid(STREAM, {0: 5})
            assert not await streams.is_cut_valid(STREAM, {SECOND: 0})
            assert not await streams.is_cut_valid(STREAM, {SECOND: -1, THIRD: 0})

    run_virtual(main())


def test_the_head_is_where_a_client_has_truncated_by_itself() -> None:
    async def main() -> None:
        async with with_stream() as (controller, disk):
            disk.write("s/a/0.#epoch.0", b"0123456789")
            disk.segments["s/a/0.#epoch.0"].start = 6
            assert await controller.streams.head(STREAM) == {0: 6}
            await controller.streams.truncate(STREAM, {0: 2})
            assert await controller.streams.head(STREAM) == {0: 6}

    run_virtual(main())


def test_segments_between_two_cuts() -> None:
    async def main() -> None:
        async with with_stream() as (controller, _):
            streams = controller.streams
            await streams.scale(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
            await streams.scale(STREAM, [SECOND], [(0.0, 0.5)])
            fourth = make_segment_id(3, 2)

            async def ids(first: dict[int, int], last: dict[int, int]) -> list[int]:
                found = await streams.between(STREAM, first, last)
                return [segment.segment_id for segment in found]

            assert await ids({}, {}) == [0, SECOND, THIRD, fourth]
            assert await ids({}, {0: 5}) == [0]
            assert await ids({SECOND: 0, THIRD: 0}, {}) == [SECOND, THIRD, fourth]
            assert await ids({fourth: 0, THIRD: 0}, {}) == [THIRD, fourth]
            async with refused(Reason.BAD_CUT):
                await ids({fourth: 0}, {})

    run_virtual(main())


def test_a_sealed_stream_has_no_segments_and_can_be_deleted() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            streams = controller.streams
            # A byte stream's writer seals its segment by itself.
            disk.segments["s/a/0.#epoch.0"].sealed = True
            await streams.seal(STREAM)
            await streams.seal(STREAM)
            assert await streams.current(STREAM) == ()
            assert await streams.successors(STREAM, 1) == []
            assert not await streams.is_segment_valid(STREAM, 0)
            async with refused(Reason.STREAM_SEALED):
                await streams.update(STREAM, ONE)
            async with refused(Reason.STREAM_SEALED):
                await streams.scale(STREAM, [0], [(0.0, 0.5)])
            await streams.delete(STREAM)
            assert not await streams.exists(STREAM)
            assert disk.segments == {}
            assert [bytes(key) for key in disk.rows] == [b"controller", b"numbers", b"scope/s"]
            await streams.create(STREAM, ONE)
            assert len(await streams.current(STREAM)) == 1

    run_virtual(main())


def test_what_is_left_of_a_deletion_does_not_meet_a_stream_that_is_created_again() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            streams, tables = controller.streams, controller.key_value_tables
            table = ScopedName(STREAM.scope, "t")
            of_table = KeyValueTableConfiguration(2, 4, 0, 0)
            await tables.create(table, of_table)
            await streams.scale(STREAM, [0], [(0.0, 0.25), (0.25, 0.5)])
            former = set(disk.segments)
            await streams.seal(STREAM)
            await streams.delete(STREAM)
            await tables.delete(table)
            assert disk.segments == {}
            await streams.create(STREAM, TWO)
            await tables.create(table, of_table)
            assert len(disk.segments) == 5
            assert not former & set(disk.segments)
            # The numbers go on in the stream, and a second deletion finds all of it.
            assert {number_of(each.segment_id) for each in await streams.current(STREAM)} == {4, 5}
            assert [each.segment_id for each in await tables.segments(table)] == [4, 5]
            await streams.scale(STREAM, [4], [(0.0, 0.5)])
            await streams.seal(STREAM)
            await streams.delete(STREAM)
            await tables.delete(table)
            assert disk.segments == {}

    run_virtual(main())


def test_numbers_begin_anew_before_clients_have_no_bits_for_them() -> None:
    async def main() -> None:
        async with with_stream(TWO) as (controller, disk):
            disk.rows[b"numbers"] = (1, b'{"next":%d}' % ((1 << 30) + 1))
            other = ScopedName(STREAM.scope, "b")
            await controller.streams.create(other, TWO)
            assert [each.segment_id for each in await controller.streams.current(other)] == [0, 1]

    run_virtual(main())


def test_scopes() -> None:
    async def main() -> None:
        async with running(FakeProcess(FakeDisk())) as controller:
            scopes = controller.scopes
            for name in ("b", "a", "_system"):
                await scopes.create(name)
            async with refused(Reason.SCOPE_EXISTS):
                await scopes.create("a")
            async with refused(Reason.BAD_NAME):
                await scopes.create("a/b")
            assert await scopes.page("", 2) == ["_system", "a"]
            assert await scopes.page("a", 2) == ["b"]
            assert await scopes.page("b", 2) == []
            await controller.streams.create(ScopedName("a", "x"), ONE)
            async with refused(Reason.SCOPE_NOT_EMPTY):
                await scopes.delete("a")
            await scopes.delete("b")
            async with refused(Reason.SCOPE_NOT_FOUND):
                await scopes.delete("b")
            await scopes.delete_recursively("a")
            assert not await scopes.exists("a")

    run_virtual(main())
