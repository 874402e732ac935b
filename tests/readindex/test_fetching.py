"""What is asked of Tier 2, how much ahead, and what is kept of it: scenario by scenario, in tiny
sizes.

A piece has 32 bytes, a GET at most 96, a window at most 256, memory 320. Tier 2 answers after a
millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from readindex.config import ReadIndexConfig
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import ContainerStoppedError, SegmentTruncatedError
from segmentstore.contracts.metadata import MergeRecord
from tests.readindex.test_read_index import cold
from tests.readindex.world import TINY, World

WIDE = replace(TINY, fetched_bytes_max=4096, fetches_in_flight_max=16)


def scenario(
    config: ReadIndexConfig = TINY,
) -> Callable[[Callable[[World, int], Awaitable[None]]], Callable[[], None]]:
    def decorate(test: Callable[[World, int], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                world = await World(config).open()
                await test(world, world.create())
                world.index.check()
                await world.index.close()

            run_virtual(main())

        run.__name__ = test.__name__
        return run

    return decorate


async def read_on(world: World, segment_id: int, offset: int, end: int, size: int = 32) -> bytes:
    """Read [offset, end) in sequence."""
    data = b""
    while offset + len(data) < end:
        data += await world.index.read(
            segment_id, offset + len(data), min(size, end - offset - len(data))
        )
        world.index.check()
    return data


def numbers(world: World) -> Any:
    return world.index.statistics()


def asked(world: World) -> list[tuple[int, int]]:
    """Offset and length of every request, in order."""
    return [(offset, length) for _, offset, length in world.source.reads]


# --- reads that continue no other ---


@scenario()
async def test_a_read_anywhere_fetches_the_extents_it_touches_in_one_request(
    world: World, s: int
) -> None:
    data = await cold(world, s, 640)
    assert await world.index.read(s, 100, 5) == data[100:105]
    assert await world.index.read(s, 301, 8) == data[301:309]
    assert asked(world) == [(96, 16), (296, 16)]
    assert numbers(world).fetches_random == 2
    assert numbers(world).fetch_bytes == 32


@scenario()
async def test_random_reads_are_never_read_ahead_for(world: World, s: int) -> None:
    data = await cold(world, s, 3200)
    for i in range(100):
        offset = i * 1237 % 3192
        got = await world.index.read(s, offset, 4)
        assert got == data[offset : offset + len(got)]
    assert numbers(world).prefetches == numbers(world).sequential_readers == 0
    assert len(asked(world)) <= 100


@scenario()
async def test_a_long_read_anywhere_fetches_at_most_a_piece(world: World, s: int) -> None:
    data = await cold(world, s, 640)
    assert await world.index.read(s, 104, 500) == data[104:136]
    assert asked(world) == [(104, 32)]


@scenario(replace(TINY, random_bytes=64))
async def test_a_piece_is_fetched_where_it_is_smaller_than_what_is_fetched_anywhere(
    world: World, s: int
) -> None:
    data = await cold(world, s, 640)
    assert await world.index.read(s, 40, 8) == data[40:48]
    assert asked(world) == [(32, 32)]


@scenario()
async def test_what_is_held_is_not_fetched_again(world: World, s: int) -> None:
    data = await cold(world, s, 640)
    await world.index.read(s, 112, 6)
    await world.index.read(s, 128, 6)
    assert await world.index.read(s, 104, 32) == data[104:112]
    assert await world.index.read(s, 120, 32) == data[120:128]
    assert asked(world) == [(112, 8), (128, 8), (104, 8), (120, 8)]


@scenario()
async def test_requests_on_their_way_are_not_overlapped(world: World, s: int) -> None:
    data = await cold(world, s, 640)
    world.source.gate = asyncio.Event()
    reads = [asyncio.ensure_future(world.index.read(s, offset, 20)) for offset in (120, 100, 90)]
    await asyncio.sleep(1)
    world.source.gate.set()
    assert [await read for read in reads] == [data[120:140], data[100:120], data[90:96]]
    assert asked(world) == [(120, 24), (96, 24), (88, 8)]


# --- sequential readers ---


@scenario(WIDE)
async def test_a_sequential_reader_is_read_ahead_for_more_and_more(world: World, s: int) -> None:
    data = await cold(world, s, 3200)
    ahead = []
    for offset in range(0, 1280, 32):
        assert await world.index.read(s, offset, 32) == data[offset : offset + 32]
        await asyncio.sleep(0)
        ahead.append(max(o + n for o, n in asked(world)) - offset - 32)
    assert ahead[:4] == [0, 32, 64, 128]
    assert max(ahead) == 256
    assert min(ahead[6:]) >= 256 - 96
    assert numbers(world).fetches_random == 1
    # Only the first read and the first that went on found nothing on its way.
    assert numbers(world).fetches - numbers(world).prefetches == 2
    assert numbers(world).read_ahead_wasted_bytes == 0


@scenario(WIDE)
async def test_a_reader_well_under_way_gets_its_pieces_in_large_requests(
    world: World, s: int
) -> None:
    data = await cold(world, s, 6400)
    assert await read_on(world, s, 0, 6400) == data
    assert max(length for _, length in asked(world)) == 64
    assert len(asked(world)) < 6400 // 32 * 0.6
    assert sum(length for _, length in asked(world)) == 6400


async def seconds_to_read(config: ReadIndexConfig, pieces: int) -> float:
    world = await World(config).open()
    s = world.create()
    data = await cold(world, s, pieces * 32)
    world.source.latency_s = 0.05
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await read_on(world, s, 0, pieces * 32) == data
    await world.index.close()
    return loop.time() - begun


def test_far_from_tier_2_read_ahead_is_ten_times_as_fast_and_in_long_reads_thirty() -> None:
    async def main() -> None:
        config = replace(
            WIDE, read_ahead_bytes_max=64 * 32, get_bytes_max=8 * 32, fetched_bytes_max=128 * 32
        )
        for pieces, times in ((64, 10), (640, 30)):
            alone = await seconds_to_read(replace(config, read_ahead_bytes_max=0), pieces)
            assert alone == pytest.approx(0.05 * pieces, rel=0.01)
            assert alone / await seconds_to_read(config, pieces) >= times

    run_virtual(main())


@scenario(WIDE)
async def test_small_sequential_reads_become_pieces(world: World, s: int) -> None:
    data = await cold(world, s, 640)
    assert await read_on(world, s, 3, 640, size=5) == data[3:]
    assert asked(world)[0] == (0, 8)
    assert sum(length for _, length in asked(world)) == 640
    assert len(asked(world)) <= 20


@scenario(WIDE)
async def test_read_ahead_crosses_the_borders_of_chunks_and_objects(world: World, s: int) -> None:
    for size in (40, 7, 1, 90, 33, 200):
        world.append(s, bytes(i % 251 for i in range(size)))
        world.flush(s)
    truth = bytes(world.truth[s])
    world.index._cache_manager.drop_segment(s)
    world.source.gate = asyncio.Event()
    reading = asyncio.ensure_future(read_on(world, s, 0, len(truth), size=20))
    for _ in range(40):
        await asyncio.sleep(0.01)
        world.source.gate.set()
        await asyncio.sleep(0)
    assert await reading == truth
    assert len({name for name, _, _ in world.source.reads}) == 6
    assert sum(length for _, length in asked(world)) == len(truth)
    assert numbers(world).prefetches >= 6


@scenario(replace(WIDE, read_ahead_bytes_max=0))
async def test_read_ahead_can_be_turned_off(world: World, s: int) -> None:
    data = await cold(world, s, 640)
    assert await read_on(world, s, 0, 640) == data
    assert numbers(world).prefetches == 0


@scenario(replace(TINY, fetched_bytes_max=64))
async def test_memory_for_two_pieces_is_enough(world: World, s: int) -> None:
    data = await cold(world, s, 640)
    assert await read_on(world, s, 0, 640) == data
    assert sum(length for _, length in asked(world)) == 640


@scenario(WIDE)
async def test_a_sequential_reader_of_a_merged_source_is_read_ahead_for(
    world: World, s: int
) -> None:
    a = world.create()
    await cold(world, s, 20)
    data = await cold(world, a, 640)
    world.merge(s, a)
    assert world.segment(s).merges == [MergeRecord(20, 640, a)]
    assert await read_on(world, s, 20, 340) == data[:320]
    assert numbers(world).prefetches > 0
    await asyncio.sleep(1)
    # Linked in the middle: the reader and what was fetched for it move to the target.
    world.link(s)
    before = numbers(world)
    assert before.sequential_readers == 1
    assert await read_on(world, s, 340, 660) == data[320:]
    assert numbers(world).fetches - numbers(world).prefetches == before.fetches - before.prefetches
    assert sum(length for _, length in asked(world)) == 640


# --- what is kept ---


@scenario()
async def test_what_a_sequential_reader_has_consumed_goes_and_does_not_reach_the_cache(
    world: World, s: int
) -> None:
    data = await cold(world, s, 3200)
    assert await read_on(world, s, 0, 1600) == data[:1600]
    assert numbers(world).fetched_bytes <= 256 + 40 + 64
    await asyncio.sleep(TINY.stream_idle_s * 2)
    assert numbers(world).fetched_bytes <= 40 + 32
    await world.index.wait_trimmed()
    assert world.cache.addresses() == []


@scenario()
async def test_what_was_fetched_ahead_of_a_reader_that_left_is_dropped(
    world: World, s: int
) -> None:
    await cold(world, s, 3200)
    await read_on(world, s, 0, 320)
    await asyncio.sleep(1)
    assert numbers(world).fetched_bytes > 100
    assert numbers(world).sequential_readers == 1
    await asyncio.sleep(2 * TINY.stream_idle_s)
    assert numbers(world).sequential_readers == 0
    assert numbers(world).read_ahead_wasted_bytes > 100
    assert numbers(world).fetched_bytes <= 40 + 32


@scenario()
async def test_a_reader_that_comes_once_in_a_while_is_not_read_ahead_for(
    world: World, s: int
) -> None:
    await cold(world, s, 3200)
    for offset in range(0, 640, 32):
        await world.index.read(s, offset, 32)
        await asyncio.sleep(2 * TINY.stream_idle_s)
    assert numbers(world).read_ahead_wasted_bytes <= 10 * 32
    assert sum(length for _, length in asked(world)) <= 640 + 10 * 32


@scenario()
async def test_what_is_read_twice_reaches_the_cache_when_it_has_to_go(world: World, s: int) -> None:
    data = await cold(world, s, 6400)
    await world.index.read(s, 480, 20)
    await world.index.read(s, 480, 20)
    for offset in range(800, 6400, 40):
        await world.index.read(s, offset, 5)
    await world.index.wait_trimmed()
    assert numbers(world).cached_bytes == 24
    reads = len(world.source.reads)
    assert await world.index.read(s, 485, 10) == data[485:495]
    assert len(world.source.reads) == reads


@scenario(replace(TINY, fetched_bytes_max=1280))
async def test_readers_at_different_places_share_the_memory_and_keep_their_read_ahead(
    world: World, s: int
) -> None:
    data = await cold(world, s, 12800)
    places = [0, 3200, 6400, 9600]
    results = await asyncio.gather(*(read_on(world, s, place, place + 3200) for place in places))
    assert b"".join(results) == data
    assert sum(length for _, length in asked(world)) <= 12800 + 4 * 64
    assert numbers(world).read_ahead_wasted_bytes <= 4 * 64


@scenario(replace(TINY, fetched_bytes_max=640))
async def test_a_sequential_reader_does_not_stop_random_ones_nor_they_it(
    world: World, s: int
) -> None:
    data = await cold(world, s, 12800)

    async def jump() -> None:
        for i in range(300):
            offset = 6400 + i * 1237 % 6390
            got = await world.index.read(s, offset, 4)
            assert got == data[offset : offset + len(got)]

    _, got = await asyncio.gather(jump(), read_on(world, s, 0, 6400))
    assert got == data[:6400]
    sequential = [length for offset, length in asked(world) if offset < 6400]
    assert sum(sequential) <= 6400 + 96


@scenario(replace(TINY, fetched_bytes_max=1280))
async def test_readers_in_step_share_every_fetch(world: World, s: int) -> None:
    data = await cold(world, s, 6400)
    results = await asyncio.gather(*(read_on(world, s, 0, 6400) for _ in range(5)))
    assert all(result == data for result in results)
    assert sum(length for _, length in asked(world)) == 6400


@scenario(replace(TINY, fetched_bytes_max=1280))
async def test_a_second_reader_close_behind_finds_what_the_first_has_consumed(
    world: World, s: int
) -> None:
    data = await cold(world, s, 6400)
    lead = 128

    front, got = 0, b""
    while len(got) < 3200:
        if front < 3200:
            front += len(await world.index.read(s, front, 32))
        if front >= min(3200, len(got) + lead):
            got += await world.index.read(s, len(got), 32)
        await asyncio.sleep(0.002)
        world.index.check()
    assert got == data[:3200]
    fetched = sum(length for offset, length in asked(world) if offset < 3200)
    assert fetched <= 3200 + 6 * 32, (
        "what the first has read is fetched again only until the second is known"
    )


@scenario()
async def test_bytes_handed_out_outlive_the_piece_they_came_from(world: World, s: int) -> None:
    data = await cold(world, s, 3200)
    kept = [await world.index.read(s, offset, 32) for offset in range(0, 640, 32)]
    world.truncate(s, 3000)
    assert b"".join(kept) == data[:640]


# --- budget and turns ---


@scenario(replace(WIDE, catch_up_bytes_per_s=320))
async def test_sequential_readers_keep_to_their_budget(world: World, s: int) -> None:
    data = await cold(world, s, 6400)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    results = await asyncio.gather(read_on(world, s, 0, 3200), read_on(world, s, 3200, 6400))
    assert b"".join(results) == data
    seconds = loop.time() - begun
    assert 6400 / 320 * 0.9 <= seconds <= 6400 / 320 * 1.1 + 1


@scenario(replace(WIDE, catch_up_bytes_per_s=32))
async def test_readers_of_the_tail_and_of_single_places_do_not_wait_for_the_budget(
    world: World, s: int
) -> None:
    await cold(world, s, 6400)
    loop = asyncio.get_running_loop()
    catching_up = asyncio.ensure_future(read_on(world, s, 0, 320))
    await asyncio.sleep(0.5)
    begun = loop.time()
    world.append(s, b"tail")
    assert await world.index.read(s, 6400, 10) == b"tail"
    assert loop.time() == begun
    await world.index.read(s, 4000, 8)
    assert loop.time() - begun < 0.01
    await catching_up
    assert loop.time() - begun > 5


@scenario(replace(WIDE, catch_up_bytes_per_s=32))
async def test_a_read_of_a_single_place_does_not_wait_for_a_fetch_that_waits_for_the_budget(
    world: World, s: int
) -> None:
    data = await cold(world, s, 6400)
    loop = asyncio.get_running_loop()
    catching_up = asyncio.ensure_future(read_on(world, s, 0, 96))
    await asyncio.sleep(0.5)
    begun = loop.time()
    assert await world.index.read(s, 36, 4) == data[36:40]
    assert loop.time() - begun < 0.01
    assert await catching_up == data[:96]
    assert len(asked(world)) == 3


@scenario(replace(WIDE, catch_up_bytes_per_s=320))
async def test_reads_of_single_places_do_not_run_a_sequential_reader_into_debt(
    world: World, s: int
) -> None:
    data = await cold(world, s, 64000)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for i in range(10_000):
        await world.index.read(s, i * 1237 % 63000, 16)
    assert numbers(world).fetch_bytes > 100 * 320 * (loop.time() - begun) / 10
    begun = loop.time()
    assert await read_on(world, s, 63000, 63320) == data[63000:63320]
    assert loop.time() - begun < 3


@scenario(WIDE)
async def test_fetched_bytes_in_memory_leave_the_loop_to_others(world: World, s: int) -> None:
    await cold(world, s, 3200)
    await read_on(world, s, 0, 640)
    await asyncio.sleep(1)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    held = await read_on(world, s, 640, 640 + 160)
    counting.cancel()
    assert len(held) == 160
    assert turns >= 160 // WIDE.turn_bytes
    assert numbers(world).delivery_pauses > 0


@scenario(WIDE)
async def test_a_reader_that_gave_way_is_reported_a_truncation(world: World, s: int) -> None:
    await cold(world, s, 3200)
    await read_on(world, s, 0, 640)
    await asyncio.sleep(1)
    reads = [asyncio.ensure_future(world.index.read(s, 640 + i * 32, 32)) for i in range(4)]
    await asyncio.sleep(0)
    world.truncate(s, 3000)
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert isinstance(results[0], bytes)
    assert isinstance(results[-1], SegmentTruncatedError)


def test_closing_lets_go_who_waits_for_a_turn_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        world = await World(WIDE).open()
        s = world.create()
        await cold(world, s, 3200)
        await read_on(world, s, 0, 640)
        await asyncio.sleep(1)
        reads = [
            asyncio.ensure_future(world.index.read(s, 640 + i % 4 * 32, 32)) for i in range(40)
        ]
        await asyncio.sleep(0)
        await world.index.close()
        results = await asyncio.gather(*reads, return_exceptions=True)
        assert {type(result) for result in results} <= {bytes, ContainerStoppedError}
        assert isinstance(results[-1], ContainerStoppedError)

    run_virtual(main())


@scenario()
async def test_a_fetch_begun_before_the_chunk_moved_says_nothing_of_where_it_is_now(
    world: World, s: int
) -> None:
    data = await cold(world, s, 640)
    world.source.gate = asyncio.Event()
    before = asyncio.ensure_future(world.index.read(s, 0, 8))
    await asyncio.sleep(0.5)
    world.consolidate(s)
    after = asyncio.ensure_future(world.index.read(s, 0, 8))
    await asyncio.sleep(0.5)
    world.source.gate.set()
    assert [await before, await after] == [data[:8]] * 2


@scenario()
async def test_a_failed_read_ahead_fails_no_read_and_the_reader_tries_again(
    world: World, s: int
) -> None:
    data = await cold(world, s, 640)
    assert await read_on(world, s, 0, 64) == data[:64]
    world.source.unavailable = 12
    await asyncio.sleep(0)
    await asyncio.sleep(2)
    world.source.unavailable = 0
    assert await read_on(world, s, 64, 640) == data[64:]


@scenario(WIDE)
async def test_a_reader_that_comes_to_where_another_has_stopped_takes_over_what_it_held(
    world: World, s: int
) -> None:
    data = await cold(world, s, 3200)
    assert await read_on(world, s, 320, 640) == data[320:640]
    await asyncio.sleep(0.1)
    assert await read_on(world, s, 0, 960) == data[:960]
    assert numbers(world).sequential_readers == 1
    assert numbers(world).read_ahead_wasted_bytes == 0
    assert sum(length for offset, length in asked(world) if offset < 960) <= 960 + 64 + 320


@scenario()
async def test_what_is_on_its_way_has_room_in_memory_before_it_is_asked_for(
    world: World, s: int
) -> None:
    data = await cold(world, s, 6400)
    for offset in range(3200, 6400, 40):
        await world.index.read(s, offset, 8)
    assert numbers(world).fetched_bytes > 300
    for offset in range(0, 1280, 32):
        assert await world.index.read(s, offset, 32) == data[offset : offset + 32]
        on_its_way = world.index._fetcher.fetches.bytes_in_flight
        assert (
            numbers(world).fetched_bytes + on_its_way <= TINY.fetched_bytes_max + TINY.piece_bytes
        )
        await asyncio.sleep(0.0003)


# --- what is held ---


@scenario(WIDE)
async def test_what_was_read_ahead_is_held_and_nothing_else_is_fetched_for_it(
    world: World, s: int
) -> None:
    data = await cold(world, s, 640)
    await read_on(world, s, 0, 96)
    await asyncio.sleep(0.1)
    before = asked(world)
    held = b""
    while piece := await world.index.read_held(s, 96 + len(held), 1000):
        held += piece
    assert len(held) >= 32
    assert held == data[96 : 96 + len(held)]
    assert len(await world.index.read_held(s, 97, 3)) == 3
    at = 96 + len(held)
    assert await world.index.read_held(s, at, 8) == b""
    assert at == 640 or asked(world)[: len(before)] == before


@scenario()
async def test_nothing_is_held_of_what_was_not_read_nor_behind_the_end(
    world: World, s: int
) -> None:
    data = await cold(world, s, 640)
    assert [await world.index.read_held(s, at, 8) for at in (0, 639, 640, 700)] == [b""] * 4
    assert asked(world) == []
    await world.index.read(s, 100, 5)
    assert await world.index.read_held(s, 101, 2) == data[101:103]
    world.truncate(s, 200)
    with pytest.raises(SegmentTruncatedError):
        await world.index.read_held(s, 101, 2)
