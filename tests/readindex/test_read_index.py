"""ReadIndex, scenario by scenario.

Scenario catalogue, section 3.4: 57 to 70, 72, 73 (without a full cache), 74, 76 and 78 here, the
random lives beside this file for more of them. Parts that have no counterpart in this design:
eviction by age (70) and the essential-only mode (77: fetched bytes have a bound of their own). Also
pending merges and generations (81: a merged source refuses readers at once). Not covered: a cache
insert that fails after a good fetch (67, a fetch does not insert), merging and spilling against a
full cache at the same moment (73). 79, 80 and 82 are about readers above the index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from readindex.memory_cache import MemoryCache
from readindex.segment_read_index import index_of
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerStoppedError,
    DataCorruptionError,
    EndOfSegmentError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    TierUnavailableError,
)
from tests.readindex.world import TINY, Appended, SlowCache, World


def scenario(test: Callable[[World, int], Awaitable[None]]) -> Callable[[], None]:
    """Run a test with a fresh world and one segment, in virtual time; check and close behind it."""

    def run() -> None:
        async def main() -> None:
            world = await World().open()
            await test(world, world.create())
            if not world.index._places.closed:
                world.index.check()
            await world.index.close()

        run_virtual(main())

    run.__name__ = test.__name__
    return run


async def cold(world: World, segment_id: int, size: int) -> bytes:
    """A segment of `size` bytes that only Tier 2 has."""
    data = bytes(i % 251 for i in range(size))
    segment = world.segment(segment_id)
    world.truth[segment_id] += data
    segment.length = size
    world.flush(segment_id)
    return data


@scenario
async def test_many_tiny_appends_read_as_one(world: World, s: int) -> None:
    for i in range(50):
        world.append(s, bytes([i]))
    assert await world.index.read(s, 0, 1000) == bytes(range(50))
    assert await world.index.read(s, 3, 20) == bytes(range(3, 23))


@scenario
async def test_a_read_from_memory_never_awaits(world: World, s: int) -> None:
    world.append(s, b"abc")
    reading = world.index.read(s, 1, 10)
    with pytest.raises(StopIteration) as done:
        reading.send(None)
    assert done.value.value == b"bc"


@scenario
async def test_large_append_is_kept_by_reference_and_split_for_the_cache(
    world: World, s: int
) -> None:
    data = bytes(range(90))
    world.append(s, data)
    assert await world.index.read(s, 0, 90) is data
    await world.index.wait_trimmed()
    assert world.index.statistics().tail_bytes == 0
    assert len(world.cache.addresses()) == 90 // 16
    assert await world.index.read(s, 10, 30) == data[10:40]


@scenario
async def test_appends_that_follow_each_other_make_one_block(world: World, s: int) -> None:
    """Each was a block of its own, in memory, in the cache and in every account, however small
    beside a block.
    """
    pieces = [bytes([i]) * 7 for i in range(16)]
    for piece in pieces:
        world.append(s, piece)
    data = b"".join(pieces)
    await world.index.wait_trimmed()
    # 112 bytes, of which 64 stay; a block holds two appends, and a third would make it larger than
    # a block.
    assert len(world.cache.addresses()) == 4
    for offset in (0, 3, 13, 60, 70, 77, 104):
        assert await world.unflushed(s, offset, 112 - offset) == data[offset:]
    # What is wanted wholly is not copied, from memory.
    assert await world.index.read(s, 105, 7) is pieces[-1]
    assert await world.index.read(s, 99, 3) == data[99:102]
    assert await world.index.read(s, 100, 12) == data[100:]


@scenario
async def test_what_a_flush_took_of_a_block_that_grows_may_go(world: World, s: int) -> None:
    world.append(s, b"flushed")
    world.append(s, b"later on")
    world.flush(s, 7)
    numbers = world.index.statistics()
    assert (numbers.tail_bytes, numbers.tail_bytes_unflushed) == (15, 8)
    world.append(s, b"and more")
    world.index.check()
    assert world.index.statistics().tail_bytes_unflushed == 16
    world.flush(s)
    assert world.index.statistics().tail_bytes_unflushed == 0
    assert await world.index.read(s, 0, 23) == b"flushedlater onand more"


@scenario
async def test_bytes_handed_out_outlive_eviction(world: World, s: int) -> None:
    world.append(s, b"first")
    kept = await world.index.read(s, 0, 5)
    world.append(s, bytes(200))
    world.flush(s)
    world.index.trim()
    world.truncate(s, 100)
    assert kept == b"first"


@scenario
async def test_wrong_offsets_and_ids_are_refused(world: World, s: int) -> None:
    world.append(s, b"abc")
    for offset, data in ((2, b"x"), (4, b"x"), (2, bytes(30)), (4, bytes(30)), (5, b"")):
        with pytest.raises(DataCorruptionError):
            world.index.append([Appended(s, offset, data)])
    with pytest.raises(SegmentNotFoundError):
        world.index.append([Appended(99, 0, b"x")])
    with pytest.raises(SegmentNotFoundError):
        await world.index.read(99, 0, 1)
    with pytest.raises(BadOffsetError) as bad:
        await world.index.read(s, 4, 1)
    assert (bad.value.expected, bad.value.actual) == (4, 3)
    for offset, length in ((-1, 1), (0, 0)):
        with pytest.raises(InvalidArgumentError):
            await world.index.read(s, offset, length)
    assert await world.index.read(s, 0, 9) == b"abc"


@scenario
async def test_tail_reader_is_woken_by_an_append(world: World, s: int) -> None:
    assert await world.index.read(s, 0, 10) == b""
    waiting = asyncio.ensure_future(world.index.changed(s, 60.0))
    await asyncio.sleep(1)
    world.append(s, b"now")
    assert await waiting
    assert await world.index.read(s, 0, 10) == b"now"
    assert world.index.statistics().readers_waiting == 0


@scenario
async def test_waiting_ends_with_nothing_when_the_time_has_passed(world: World, s: int) -> None:
    loop = asyncio.get_running_loop()
    assert not await world.index.changed(s, 5.0)
    assert 5.0 <= loop.time() < 5.01
    assert world.index.statistics().readers_waiting == 0


@scenario
async def test_a_cancelled_reader_unregisters(world: World, s: int) -> None:
    waiting = asyncio.ensure_future(world.index.changed(s, 60.0))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert world.index.statistics().readers_waiting == 0


@pytest.mark.parametrize("what", ["seal", "delete", "merge", "close", "merge_into"])
def test_waiting_readers_learn_of_what_happens_to_their_segment(what: str) -> None:
    async def main() -> None:
        world = await World().open()
        s, other = world.create(), world.create()
        world.append(other, b"of the other")
        waiting = asyncio.ensure_future(world.index.changed(s, 60.0))
        await asyncio.sleep(1)
        if what == "seal":
            world.seal(s)
        elif what == "delete":
            world.delete(s)
        elif what == "merge":
            world.merge(other, s)
        elif what == "merge_into":
            world.merge(s, other)
        else:
            await world.index.close()
        expected = {"seal": EndOfSegmentError, "close": ContainerStoppedError}.get(
            what, SegmentNotFoundError
        )
        assert await waiting
        if what == "merge_into":
            assert await world.index.read(s, 0, 100) == b"of the other"
        else:
            with pytest.raises(expected):
                await world.index.read(s, 0, 100)
        await world.index.close()

    run_virtual(main())


@scenario
async def test_length_known_before_the_bytes_is_still_the_tail(world: World, s: int) -> None:
    world.append(s, b"abc")
    world.segment(s).length = 6
    assert await world.index.read(s, 3, 10) == b""
    waiting = asyncio.ensure_future(world.index.changed(s, 60.0))
    await asyncio.sleep(1)
    world.index.append([Appended(s, 3, b"def")])
    assert await waiting
    assert await world.index.read(s, 3, 10) == b"def"


@scenario
async def test_merged_bytes_are_readable_before_tier_2_has_seen_either(
    world: World, s: int
) -> None:
    a, b = world.create(), world.create()
    world.append(b, b"innermost")
    world.append(a, b"source+")
    world.merge(a, b)
    world.append(s, b"target+")
    world.merge(s, a)
    world.append(s, b"+after")
    got = b""
    while len(got) < world.segment(s).length:
        got += await world.index.read(s, len(got), 100)
    assert got == b"target+source+innermost+after"
    assert await world.unflushed(s, 3, 15) == got[3:18]
    with pytest.raises(SegmentNotFoundError):
        await world.index.read(a, 0, 1)
    assert world.index.missing_ranges(s) == []


@scenario
async def test_linking_moves_what_is_held(world: World, s: int) -> None:
    a = world.create()
    world.append(s, b"0123")
    world.append(a, b"abc")
    world.merge(s, a)
    world.flush(a)
    world.flush(s)
    assert world.can_link(s)
    world.link(s)
    assert await world.index.read(s, 4, 10) == b"abc"
    assert world.source.reads == []
    world.index.check()


@scenario
async def test_linking_while_the_source_is_being_fetched(world: World, s: int) -> None:
    a = world.create()
    await cold(world, s, 20)
    data = await cold(world, a, 50)
    world.merge(s, a)
    world.source.gate = asyncio.Event()
    reads = [asyncio.ensure_future(world.index.read(s, offset, 10)) for offset in (20, 60)]
    await asyncio.sleep(1)
    world.link(s)
    world.source.gate.set()
    assert [await read for read in reads] == [data[:10], data[40:50]]
    assert await world.index.read(s, 25, 5) == data[5:10]


@scenario
async def test_linking_while_the_source_is_being_spilled(world: World, s: int) -> None:
    a = world.create()
    world.append(s, b"0123")
    world.append(a, bytes(range(80)))
    world.merge(s, a)
    world.flush(a)
    world.flush(s)
    world.link(s)
    await world.index.wait_trimmed()
    assert await world.index.read(s, 14, 10) == bytes(range(10, 20))


@scenario
async def test_merging_an_empty_segment_changes_nothing(world: World, s: int) -> None:
    world.append(s, b"abc")
    world.merge(s, world.create())
    world.append(s, b"def")
    assert await world.index.read(s, 0, 10) == b"abcdef"


@scenario
async def test_one_fetch_serves_all_who_want_it(world: World, s: int) -> None:
    data = await cold(world, s, 100)
    world.source.gate = asyncio.Event()
    reads = [asyncio.ensure_future(world.index.read(s, offset, 8)) for offset in (0, 0, 5, 7)]
    await asyncio.sleep(1)
    assert world.index.object_in_use("object-1")
    reads[0].cancel()
    world.source.gate.set()
    assert [await read for read in reads[1:]] == [data[0:8], data[5:8], data[7:8]]
    assert len(world.source.reads) == 1
    await asyncio.sleep(1)
    assert not world.index.object_in_use("object-1")


@scenario
async def test_a_whole_piece_is_not_copied(world: World, s: int) -> None:
    data = await cold(world, s, 64)
    first = await world.index.read(s, 0, 100)
    assert first == data[:32]
    assert await world.index.read(s, 0, 32) is first


@scenario
async def test_tier_2_gets_three_tries(world: World, s: int) -> None:
    data = await cold(world, s, 20)
    world.source.unavailable = 2
    assert await world.index.read(s, 0, 20) == data
    world.index.truncated(s)


@scenario
async def test_an_absent_tier_2_is_named_and_later_reads_try_again(world: World, s: int) -> None:
    data = await cold(world, s, 20)
    world.source.unavailable = 3
    with pytest.raises(TierUnavailableError) as error:
        await world.index.read(s, 0, 20)
    assert error.value.tier == "tier2"
    assert await world.index.read(s, 0, 20) == data


@scenario
async def test_a_lost_object_is_corruption_only_if_the_chunk_is_still_in_it(
    world: World, s: int
) -> None:
    data = await cold(world, s, 20)
    world.source.gate = asyncio.Event()
    reading = asyncio.ensure_future(world.index.read(s, 0, 20))
    await asyncio.sleep(1)
    world.consolidate(s)
    world.source.gate.set()
    assert await reading == data
    other = world.create()
    await cold(world, other, 20)
    name = world.segment(other).chunks.first.object_name
    del world.source.objects[name]
    with pytest.raises(DataCorruptionError, match=name):
        await world.index.read(other, 0, 20)


@scenario
async def test_truncation_during_a_fetch_is_reported(world: World, s: int) -> None:
    await cold(world, s, 60)
    world.source.gate = asyncio.Event()
    reading = asyncio.ensure_future(world.index.read(s, 0, 20))
    await asyncio.sleep(1)
    world.segment(s).start_offset = 40
    world.index.truncated(s)
    world.source.gate.set()
    with pytest.raises(SegmentTruncatedError) as error:
        await reading
    assert error.value.start_offset == 40
    await asyncio.sleep(1)
    world.index._cache_manager.drop_below(index_of(world.index._indexes, s), 40)


@scenario
async def test_unflushed_bytes_lost_from_the_cache_come_back_by_one_refill(
    world: World, s: int
) -> None:
    for i in range(40):
        world.append(s, bytes([i] * 4))
    await world.index.wait_trimmed()
    world.cache.wipe()
    reads = [asyncio.ensure_future(world.index.read(s, offset, 4)) for offset in (0, 8, 16)]
    assert [await read for read in reads] == [bytes([i] * 4) for i in (0, 2, 4)]
    assert world.refills == 1
    assert await world.unflushed(s, 0, 160) == bytes(world.truth[s])


@scenario
async def test_bytes_no_refill_finds_are_corruption(world: World, s: int) -> None:
    world.append(s, bytes(100))
    await world.index.wait_trimmed()
    world.cache.wipe()
    world.log_lost = True
    with pytest.raises(DataCorruptionError):
        await world.index.read(s, 0, 4)


@scenario
async def test_a_smaller_share_of_the_cache_drops_the_oldest_and_a_larger_one_takes_more(
    world: World, s: int
) -> None:
    data = bytes(range(160))

    async def append_all() -> None:
        for offset in range(0, 160, 16):
            world.append(s, data[offset : offset + 16])
            await world.index.wait_trimmed()

    await append_all()
    held, pressure = world.index.statistics().cached_bytes, world.index.pressure.share
    assert held > 32
    assert world.index.resize_cache(32) is False
    world.index.check()
    numbers = world.index.statistics()
    assert numbers.cached_bytes <= 32
    assert numbers.dropped_unflushed_bytes == held - numbers.cached_bytes
    assert world.index.pressure.share > pressure
    # Tier 1 has what was dropped.
    assert await world.unflushed(s, 0, 160) == data
    assert world.index.resize_cache(held) is False
    await append_all()
    assert world.index.statistics().cached_bytes == held


@scenario
async def test_a_refused_spill_keeps_memory_until_twice_the_bound(world: World, s: int) -> None:
    world.cache.broken = True
    for _ in range(30):
        world.append(s, bytes(4))
        await asyncio.sleep(0)
    assert world.index.statistics().tail_bytes == 120
    assert world.index.pressure.share > 1
    for _ in range(30):
        world.append(s, bytes(4))
    numbers = world.index.statistics()
    assert numbers.tail_bytes <= 2 * TINY.tail_bytes_max
    assert numbers.dropped_unflushed_bytes > 0
    assert await world.index.read(s, 0, 10) == bytes(10)
    world.cache.broken = False
    await asyncio.sleep(2)
    assert world.index.statistics().tail_bytes <= TINY.tail_bytes_max


class RaisingCache(MemoryCache):
    """Its inserts end by an error that no cache should raise, while that is set."""

    raising = True

    async def insert(self, blocks: Sequence[tuple[int, Buffer]]) -> bool:
        if self.raising:
            raise KeyError("planted")
        return await super().insert(blocks)


def test_a_cache_that_raises_counts_as_one_that_refuses_and_spilling_goes_on_later() -> None:
    async def main() -> None:
        cache = RaisingCache(1000)
        world = await World(cache=cache).open()
        s = world.create()
        for _ in range(30):
            world.append(s, bytes(4))
            await asyncio.sleep(0)
        assert world.index.statistics().tail_bytes == 120
        cache.raising = False
        await asyncio.sleep(2)
        assert world.index.statistics().tail_bytes <= TINY.tail_bytes_max
        data = await world.index.read(s, 0, 120)
        assert data
        assert data == bytes(len(data))
        await world.index.close()

    run_virtual(main())


def test_flushed_bytes_that_a_slow_cache_holds_in_memory_count_as_pressure() -> None:
    """They did not: writers filled memory beside them, until un-flushed bytes were dropped."""

    async def main() -> None:
        cache = SlowCache(1000)
        cache.latency_s = 1.0
        world = await World(cache=cache).open()
        s = world.create()
        for _ in range(6):
            world.append(s, bytes(16))
        await asyncio.sleep(0.5)
        world.flush(s)
        world.index.check()
        assert world.index.statistics().tail_bytes_unflushed == 0
        spilling = 32
        assert world.index.pressure.share == spilling / (2 * TINY.tail_bytes_max)
        await world.index.wait_trimmed()
        assert world.index.pressure.share == 0
        world.index.check()
        await world.index.close()

    run_virtual(main())


@scenario
async def test_flushed_bytes_are_dropped_and_not_spilled(world: World, s: int) -> None:
    world.append(s, bytes(60))
    world.flush(s)
    assert world.index.pressure.share == 0
    world.append(s, bytes(60))
    assert world.index.statistics().tail_bytes == 60
    await world.index.wait_trimmed()
    assert world.cache.addresses() == []


@scenario
async def test_closing_resolves_fetches_and_refills(world: World, s: int) -> None:
    await cold(world, s, 20)
    other = world.create()
    world.append(other, bytes(100))
    await world.index.wait_trimmed()
    world.cache.wipe()
    world.source.gate = asyncio.Event()
    hold = asyncio.Event()

    async def stuck(_: Mapping[int, int]) -> None:
        await hold.wait()

    world.index._log_rescanner._refill = stuck
    reads = [
        asyncio.ensure_future(world.index.read(segment_id, 0, 10)) for segment_id in (s, other)
    ]
    await asyncio.sleep(1)
    await world.index.close()
    for read in reads:
        with pytest.raises(ContainerStoppedError):
            await read
    with pytest.raises(ContainerStoppedError):
        world.index.append([Appended(s, 20, b"x")])


def test_a_hundred_segments_share_one_bound() -> None:
    async def main() -> None:
        world = World(replace(TINY, cache_bytes_max=10_000), MemoryCache(20_000))
        await world.open()
        ids = [world.create() for _ in range(100)]
        for round_number in range(8):
            for segment_id in ids:
                world.append(segment_id, bytes([round_number] * 5))
                await world.index.wait_trimmed()
        assert world.index.statistics().tail_bytes <= TINY.tail_bytes_max
        for segment_id in ids:
            assert await world.unflushed(segment_id, 0, 40) == bytes(world.truth[segment_id])
        assert world.refills == 0
        world.index.check()
        await world.index.close()

    run_virtual(main())
