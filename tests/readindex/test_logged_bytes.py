"""Bytes that stay in the log: the cache never gets them, nor does memory if they were replayed, and
readers have them from their place.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import DataCorruptionError
from tests.readindex.world import TINY, SlowCache, World


async def replayed_world(count: int = 12, **changes: int) -> tuple[World, int]:
    world = await World(replace(TINY, **changes)).open()
    segment_id = world.create()
    for number in range(count):
        world.append(segment_id, bytes([number]) * 10, replayed=True)
    return world, segment_id


async def close(world: World) -> None:
    world.index.check()
    await world.index.close()


def test_they_are_read_from_their_place_whoever_asks() -> None:
    async def main() -> None:
        world, segment_id = await replayed_world()
        numbers = world.index.statistics()
        assert (numbers.tail_bytes, numbers.cached_bytes, numbers.logged_bytes) == (0, 0, 120)
        truth = bytes(world.truth[segment_id])
        for start, end in ((0, 120), (3, 9), (5, 25), (19, 20), (110, 120)):
            assert await world.unflushed(segment_id, start, end - start) == truth[start:end]
            data = await world.index.read(segment_id, start, end - start)
            assert data
            assert data == truth[start : start + len(data)]
        assert world.refills == 0
        assert world.cache.statistics().inserts == 0
        await close(world)

    run_virtual(main())


def test_live_appends_go_on_behind_them() -> None:
    async def main() -> None:
        world, segment_id = await replayed_world(3)
        world.append(segment_id, b"small")
        world.append(segment_id, b"large enough")
        assert world.index.statistics().logged_bytes == 30
        assert await world.unflushed(segment_id, 0, 47) == world.truth[segment_id]
        await close(world)

    run_virtual(main())


def test_what_is_small_and_what_is_too_much_goes_the_way_of_live_appends() -> None:
    async def main() -> None:
        world, segment_id = await replayed_world(5, logged_places_max=3)
        world.append(segment_id, b"small", replayed=True)
        numbers = world.index.statistics()
        assert (numbers.logged_bytes, numbers.tail_bytes) == (30, 25)
        assert await world.unflushed(segment_id, 0, 55) == world.truth[segment_id]
        await close(world)

    run_virtual(main())


def test_they_are_forgotten_once_tier2_has_them() -> None:
    """The log may be truncated from then on: no read searches there any more."""

    async def main() -> None:
        world, segment_id = await replayed_world()
        world.flush(segment_id, 35)
        world.log_cut = 30
        assert await world.index.read(segment_id, 31, 4) == world.truth[segment_id][31:35]
        assert await world.unflushed(segment_id, 35, 85) == world.truth[segment_id][35:]
        assert world.refills == 0
        world.flush(segment_id)
        assert world.index.statistics().logged_bytes == 0
        await close(world)

    run_virtual(main())


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_what_is_not_there_whole_is_searched_for_by_a_pass(damage: str) -> None:
    async def main() -> None:
        world, segment_id = await replayed_world()
        if damage == "gone":
            world.log_cut = len(world.logged)
        else:
            world.logged[17] ^= 1
        assert await world.unflushed(segment_id, 0, 120) == world.truth[segment_id]
        assert world.refills == 1
        world.log_lost = True
        world.logged[:] = bytes(len(world.logged))
        with pytest.raises(DataCorruptionError, match="a rescan of the log did not find them"):
            await world.unflushed(segment_id, 0, 120)
        await close(world)

    run_virtual(main())


def test_of_a_large_append_only_the_blocks_are_read_that_are_wanted() -> None:
    async def main() -> None:
        world = await World().open()
        segment_id = world.create()
        world.append(segment_id, bytes(range(100)), replayed=True)
        # A block is 16 bytes.
        assert world.index.statistics().logged_bytes == 100
        for offset, length, blocks in ((0, 1, 1), (50, 3, 1), (15, 2, 2), (96, 4, 1), (0, 100, 7)):
            asked = len(world.asked)
            data = await world.index.read(segment_id, offset, length)
            assert data == world.truth[segment_id][offset : offset + length]
            assert sum(length for _, length, _ in world.asked[asked:]) <= 16 * blocks
        assert await world.unflushed(segment_id, 3, 97) == world.truth[segment_id][3:]
        world.flush(segment_id, 37)
        assert world.index.statistics().logged_bytes == 63
        assert await world.unflushed(segment_id, 37, 63) == world.truth[segment_id][37:]
        await close(world)

    run_virtual(main())


def test_many_readers_of_one_place() -> None:
    async def main() -> None:
        world, segment_id = await replayed_world()
        reads = [world.index.read(segment_id, offset, 50) for offset in range(0, 120, 7)]
        world.truncate(segment_id, 0)
        for offset, data in zip(range(0, 120, 7), await asyncio.gather(*reads), strict=True):
            assert data == world.truth[segment_id][offset : offset + len(data)]
        await close(world)

    run_virtual(main())


async def overfull_world(count: int = 12, **changes: int) -> tuple[World, int]:
    """Live appends of 10 bytes, of which memory holds 64."""
    world = await World(replace(TINY, **changes)).open()
    segment_id = world.create()
    for number in range(count):
        world.append(segment_id, bytes([number]) * 10, placed=True)
    return world, segment_id


def test_live_appends_that_memory_cannot_hold_are_left_in_the_log() -> None:
    async def main() -> None:
        world, segment_id = await overfull_world()
        numbers = world.index.statistics()
        assert (numbers.tail_bytes, numbers.logged_bytes) == (60, 60)
        truth = bytes(world.truth[segment_id])
        for start, end in ((0, 120), (3, 9), (55, 70), (110, 120)):
            assert await world.unflushed(segment_id, start, end - start) == truth[start:end]
            data = await world.index.read(segment_id, start, end - start)
            assert data
            assert data == truth[start : start + len(data)]
        assert world.asked
        assert world.refills == 0
        assert world.cache.statistics().inserts == 0
        world.flush(segment_id)
        assert world.index.statistics().logged_bytes == 0
        await close(world)

    run_virtual(main())


def test_an_append_over_two_frames_is_found_at_both_places() -> None:
    async def main() -> None:
        world = await World().open()
        segment_id = world.create()
        world.append(segment_id, bytes(range(50)), placed=True)
        world.append(segment_id, bytes(60), placed=True)
        assert world.index.statistics().logged_bytes == 50
        assert await world.unflushed(segment_id, 0, 50) == bytes(range(50))
        assert await world.index.read(segment_id, 9, 4) == bytes(range(9, 13))
        assert world.refills == 0
        await close(world)

    run_virtual(main())


@pytest.mark.parametrize("flushed", [5, 12, 20, 27])
@pytest.mark.parametrize("block_bytes", [64, 25, 16])
def test_what_is_flushed_in_part_is_left_from_there_on(flushed: int, block_bytes: int) -> None:
    """Tier 2 has a part of an extent, which appends still grow, or not. The log may be truncated up
    to the append that the rest begins in.
    """

    async def main() -> None:
        world = await World(replace(TINY, block_bytes=block_bytes)).open()
        segment_id = world.create()
        for number in range(3):
            world.append(segment_id, bytes([number]) * 10, placed=True)
        world.flush(segment_id, flushed)
        world.log_cut = flushed // 10 * 10
        world.append(segment_id, bytes(64), placed=True)
        assert world.index.statistics().logged_bytes == 30 - flushed
        truth = bytes(world.truth[segment_id])
        assert await world.index.read(segment_id, 0, flushed) == truth[:flushed]
        assert await world.unflushed(segment_id, flushed, 94 - flushed) == truth[flushed:]
        assert world.refills == 0
        assert world.index.statistics().cache_misses == 0
        await close(world)

    run_virtual(main())


def test_live_appends_without_a_place_are_spilled() -> None:
    """Small ones, those that share an extent with one of unknown place, and what is beyond the
    bound of places.
    """

    async def main() -> None:
        world, segment_id = await overfull_world(logged_places_max=3)
        await world.index.wait_trimmed()
        numbers = world.index.statistics()
        assert (numbers.logged_bytes, numbers.spilled_bytes) == (30, 30)
        other = world.create()
        for number in range(20):
            world.append(other, b"small", placed=number % 2 == 0)
        await world.index.wait_trimmed()
        assert world.index.statistics().logged_bytes == 30
        assert await world.unflushed(segment_id, 0, 120) == world.truth[segment_id]
        assert await world.unflushed(other, 0, 100) == world.truth[other]
        await close(world)

        world = await World(replace(TINY, block_bytes=64)).open()
        segment_id = world.create()
        for placed in (True, False, True):
            world.append(segment_id, bytes(10), placed=placed)
        world.append(segment_id, bytes(64), placed=True)
        await world.index.wait_trimmed()
        numbers = world.index.statistics()
        assert (numbers.logged_bytes, numbers.spilled_bytes) == (0, 30)
        assert await world.unflushed(segment_id, 0, 94) == world.truth[segment_id]
        await close(world)

    run_virtual(main())


def slow_cache() -> SlowCache:
    cache = SlowCache(1000)
    cache.latency_s = 1.0
    return cache


def test_much_is_left_to_the_log_in_several_turns() -> None:
    """A checksum takes its time: a turn of the loop has about `spill_batch_bytes` of them."""

    async def main() -> None:
        world = await World(replace(TINY, spill_batch_bytes=10), slow_cache()).open()
        segment_id = world.create()
        world.append(segment_id, b"small")
        for number in range(12):
            # The small one is on its way to the cache; meanwhile the tail may grow.
            world.append(segment_id, bytes([number]) * 10, placed=True)
        assert world.index.statistics().tail_bytes == 125
        await asyncio.sleep(2.0)
        left = [world.index.statistics().logged_bytes]
        while world.index.statistics().tail_bytes > 64:
            await asyncio.sleep(0)
            left.append(world.index.statistics().logged_bytes)
        assert {after - before for before, after in pairwise(left)} <= {0, 10}
        assert left[-1] == 60
        await world.index.wait_trimmed()
        assert await world.unflushed(segment_id, 0, 125) == world.truth[segment_id]
        await close(world)

    run_virtual(main())


def test_small_and_large_appends_in_turns_leave_memory_in_batches() -> None:
    """Neither keeps the other from leaving: nothing is dropped that a rescan has to bring back."""

    async def main() -> None:
        config = replace(
            TINY,
            small_bytes=64,
            block_bytes=256,
            tail_bytes_max=8192,
            cache_bytes_max=1 << 20,
            spill_batch_bytes=2048,
        )
        cache = SlowCache(1 << 20)
        cache.latency_s = 0.001
        world = await World(config, cache).open()
        segment_id = world.create()
        for number in range(500):
            world.append(segment_id, bytes([number % 251]) * 10)
            world.append(segment_id, bytes([number % 251]) * 100, placed=True)
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        numbers = world.index.statistics()
        assert numbers.dropped_unflushed_bytes == 0
        assert numbers.logged_bytes > numbers.spilled_bytes
        assert await world.unflushed(segment_id, 0, 55_000) == world.truth[segment_id]
        assert world.refills == 0
        await close(world)

    run_virtual(main())


def test_a_cache_that_takes_nothing_costs_small_appends_alone() -> None:
    """Beyond the hard bound they are dropped, and brought back by a rescan; the log has the large
    ones at their places.
    """

    async def main() -> None:
        world = await World().open()
        world.cache.broken = True
        segment_id = world.create()
        small = 0
        for number in range(40):
            if number % 5 == 0:
                world.append(segment_id, b"small")
                small += 5
            world.append(segment_id, bytes([number]) * 10, placed=True)
        numbers = world.index.statistics()
        assert numbers.tail_bytes <= 2 * 64
        missing = world.index.missing_ranges(segment_id)
        assert sum(end - start for start, end in missing) == numbers.dropped_unflushed_bytes
        assert numbers.dropped_unflushed_bytes <= small
        assert await world.unflushed(segment_id, 0, 440) == world.truth[segment_id]
        await close(world)

    run_virtual(main())


def test_one_read_of_a_large_append_takes_no_more_than_some_blocks() -> None:
    """Others wait for the thread that reads, and a reader that asks for all would hold all."""

    async def main() -> None:
        world = await World(replace(TINY, spill_batch_bytes=1000)).open()
        segment_id = world.create()
        world.append(segment_id, bytes(range(250)) * 2, placed=True)
        world.append(segment_id, bytes(64), placed=True)
        assert world.index.statistics().logged_bytes == 500
        data = await world.index.read(segment_id, 3, 1000)
        assert len(data) == 16 * TINY.block_bytes
        assert data == world.truth[segment_id][3 : 3 + len(data)]
        assert await world.unflushed(segment_id, 0, 500) == world.truth[segment_id][:500]
        await close(world)

    run_virtual(main())
