"""The bytes of uploads: whatever memory and cache have lost of all their blocks comes by one pass
over the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest

from readindex import unflushed_reads
from readindex.memory_cache import MemoryCache
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    SegmentNotFoundError,
    SegmentTruncatedError,
    TierUnavailableError,
)
from tests.readindex.world import World

SEGMENTS = 20
LENGTH = 40


async def lost_world() -> tuple[World, list[int]]:
    """Segments that lie all over the log, of which the cache has lost nearly everything."""
    world = await World(cache=MemoryCache(10_000)).open()
    ids = [world.create() for _ in range(SEGMENTS)]
    for number in range(LENGTH // 5):
        for segment_id in ids:
            world.append(segment_id, bytes([segment_id, number]) + b"abc")
        await world.index.wait_trimmed()
    world.cache.wipe()
    return world, ids


def scenario(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


def test_an_upload_is_given_the_pieces_that_are_there_from_memory_and_cache() -> None:
    """Each was joined with its neighbours, and so every byte of a backlog copied."""

    async def main() -> None:
        world = await World(cache=MemoryCache(10_000)).open()
        segment_id = world.create()
        for number in range(10):
            world.append(segment_id, bytes([number]) * 16)
            await world.index.wait_trimmed()
        assert len(world.cache.addresses()) == 6
        (pieces,) = await world.index.read_unflushed([(segment_id, 5, 148)])
        assert not isinstance(pieces, Exception)
        assert [len(piece) for piece in pieces] == [11, *[16] * 8, 9]
        assert b"".join(pieces) == world.truth[segment_id][5:153]
        await world.index.close()

    scenario(main())


@pytest.mark.parametrize("turns", range(12))
@pytest.mark.parametrize("change", ["none", "append", "truncate", "delete"])
def test_a_large_block_is_taken_in_turns_whatever_comes_between(
    monkeypatch: pytest.MonkeyPatch, change: str, turns: int
) -> None:
    monkeypatch.setattr(unflushed_reads, "BYTES_PER_TURN", 8)

    async def main() -> None:
        world = await World(cache=MemoryCache(10_000)).open()
        segment_id = world.create()
        for number in range(4):
            world.append(segment_id, bytes([number]) * 16)
        before = bytes(world.truth[segment_id])
        reading = asyncio.create_task(world.index.read_unflushed([(segment_id, 3, 60)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        if change == "append":
            # Some of the others leave memory for it.
            world.append(segment_id, bytes(60))
        elif change == "truncate":
            world.truncate(segment_id, 30)
        elif change == "delete":
            world.delete(segment_id)
        (read,) = await reading
        if isinstance(read, Exception):
            expected = {"truncate": SegmentTruncatedError, "delete": SegmentNotFoundError}
            assert isinstance(read, expected[change])
        else:
            assert b"".join(read) == before[3:63]
            assert change != "none" or turns == 0 or len(read) > 4
        await world.index.close()

    scenario(main())


def test_one_pass_serves_every_block_of_every_upload() -> None:
    async def main() -> None:
        world, ids = await lost_world()
        uploads = [
            [(each, 0, LENGTH) for each in ids[first : first + 5]]
            for first in range(0, SEGMENTS, 5)
        ]
        reads = await asyncio.gather(*[world.index.read_unflushed(upload) for upload in uploads])
        for upload, read in zip(uploads, reads, strict=True):
            for (segment_id, _, _), pieces in zip(upload, read, strict=True):
                assert not isinstance(pieces, Exception)
                assert b"".join(pieces) == world.truth[segment_id]
        # The cache reports its losses when it is asked: a second pass searches for them.
        assert world.refills <= 2
        await world.index.close()

    scenario(main())


def test_a_pass_that_has_not_come_to_them_yet_serves_those_who_ask_late() -> None:
    async def main() -> None:
        world, ids = await lost_world()
        world.index._cached.release_lost()
        first = asyncio.ensure_future(world.index.read_unflushed([(ids[0], 0, LENGTH)]))
        await asyncio.sleep(0)
        late = asyncio.ensure_future(world.index.read_unflushed([(ids[-1], 0, LENGTH)]))
        await asyncio.gather(first, late)
        assert world.refills == 1
        await world.index.close()

    scenario(main())


def test_what_is_missing_stands_in_its_place_and_the_others_are_read() -> None:
    async def main() -> None:
        world, ids = await lost_world()
        world.delete(ids[0])
        world.truncate(ids[1], 20)
        gone, truncated, read = await world.index.read_unflushed(
            [(each, 0, LENGTH) for each in ids[:3]]
        )
        assert isinstance(gone, SegmentNotFoundError)
        assert isinstance(truncated, SegmentTruncatedError)
        assert not isinstance(read, Exception)
        assert b"".join(read) == world.truth[ids[2]]
        await world.index.close()

    scenario(main())


def test_bytes_that_no_pass_finds_are_corruption() -> None:
    async def main() -> None:
        world, ids = await lost_world()
        world.log_lost = True
        with pytest.raises(DataCorruptionError, match="did not find them"):
            await world.index.read_unflushed([(each, 0, LENGTH) for each in ids])
        await world.index.close()

    scenario(main())


def test_a_log_that_does_not_answer_is_reported_to_all_and_nothing_is_left_behind() -> None:
    async def main() -> None:
        world, ids = await lost_world()

        async def away(_: Mapping[int, int]) -> None:
            raise TierUnavailableError("tier1", "not now")

        refill, world.index._log_rescanner._refill = world.index._log_rescanner._refill, away
        with pytest.raises(TierUnavailableError):
            await world.index.read_unflushed([(each, 0, LENGTH) for each in ids])
        assert world.index._log_rescanner._by_segment == {}
        world.index._log_rescanner._refill = refill
        assert await world.unflushed(ids[0], 0, LENGTH) == world.truth[ids[0]]
        await world.index.close()

    scenario(main())


def test_an_upload_that_is_cancelled_asks_for_nothing_any_more() -> None:
    async def main() -> None:
        world, ids = await lost_world()
        hold = asyncio.Event()

        async def stuck(_: Mapping[int, int]) -> None:
            await hold.wait()

        world.index._log_rescanner._refill = stuck
        reading = asyncio.ensure_future(
            world.index.read_unflushed([(each, 0, LENGTH) for each in ids])
        )
        waiting = asyncio.ensure_future(world.index.read(ids[3], 0, LENGTH))
        await asyncio.sleep(1)
        reading.cancel()
        await asyncio.sleep(1)
        assert sum(map(len, world.index._log_rescanner._by_segment.values())) == 1
        await world.index.close()
        with pytest.raises(ContainerStoppedError):
            await waiting

    scenario(main())


def test_a_reader_cancelled_in_the_turn_in_which_the_bytes_come_harms_no_other() -> None:
    """The future of a cancelled reader is cancelled at once, its want is withdrawn a turn later: a
    pass goes on between.
    """

    async def main() -> None:
        world, ids = await lost_world()
        world.index._cached.release_lost()
        refill = world.index._log_rescanner._refill

        async def cancels(wanted: Mapping[int, int]) -> None:
            await asyncio.sleep(1)
            reading.cancel()
            # In the same turn of the loop.
            for segment_id, offset, data in world.log:
                if segment_id == ids[0]:
                    world.index.insert_refilled(segment_id, offset, data)
            await refill(wanted)

        world.index._log_rescanner._refill = cancels
        reading = asyncio.ensure_future(world.index.read(ids[0], 0, LENGTH))
        upload = asyncio.ensure_future(
            world.index.read_unflushed([(each, 0, LENGTH) for each in ids])
        )
        for segment_id, pieces in zip(ids, await upload, strict=True):
            assert not isinstance(pieces, Exception)
            assert b"".join(pieces) == world.truth[segment_id]
        assert reading.cancelled()
        assert world.index._log_rescanner._by_segment == {}
        await world.index.close()

    scenario(main())


def test_refilled_bytes_never_push_out_others() -> None:
    """What is kept beside fits into memory and cache; more would only be searched again."""

    async def main() -> None:
        world, ids = await lost_world()
        for segment_id in ids:
            await world.index.read(segment_id, 0, LENGTH)
            await world.index.wait_trimmed()
        numbers = world.index.statistics()
        config = world.index._config
        assert numbers.tail_bytes_unflushed + numbers.cached_bytes_unflushed <= (
            config.tail_bytes_max + config.cache_bytes_max
        )
        world.index.check()
        await world.index.close()

    scenario(main())
