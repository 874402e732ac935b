"""A backlog over many segments: what waits for Tier 2 gets there by few passes over the log, and is
never dropped twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from readindex.cache_storage import CacheStorage
from readindex.memory_cache import MemoryCache
from segmentstore import SegmentStore
from segmentstore.config import StoreConfig
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.stats_types import ReadIndexStats
from segmentstore.store_adapters import DefaultAdapters
from tests.store.harness import read_all, run, until

KIB = 1024
SEGMENTS = 200
ROUNDS = 6
PIECE = 700
"""What a segment gets in a round: each segment lies all over the log, as with many writers."""
BACKLOG = SEGMENTS * ROUNDS * PIECE

SIZES: Mapping[str, Any] = {
    "frame_bytes_max": 8 * KIB,
    "log_file_bytes": 64 * KIB,
    "in_flight_bytes_max": 8 * KIB,
    "flush_age_s": 1000.0,
    "flush_bytes": 64 * KIB,
    "object_bytes": 64 * KIB,
    "upload_bytes_max": 256 * KIB,
    "uploads_max": 4,
    "tail_bytes_max": 64 * KIB,
    "cache_bytes_max": 4 * 1024 * KIB,
}
PUT_OFF: Mapping[str, Any] = {**SIZES, "unflushed_target_bytes": 1 << 30, "tail_bytes_max": 1 << 24}


def piece(segment: int, number: int) -> bytes:
    return b"%04d%03d" % (segment, number) * (PIECE // 7)


def name(segment: int) -> str:
    return f"s{segment}"


def reading(store: SegmentStore) -> ReadIndexStats:
    return store.stats()["containers"][0]["read_index"]


async def leave_backlog(folder: Path) -> None:
    """A store whose owner is missing, and whose log alone has everything."""
    store = await segmentstore.open(folder, **PUT_OFF)
    for segment in range(SEGMENTS):
        await store.create_segment(name(segment))
    for number in range(ROUNDS):
        futures = [
            store.append(name(segment), piece(segment, number)) for segment in range(SEGMENTS)
        ]
        await asyncio.gather(*futures)
    assert store._containers[0]._writer.unflushed_bytes == BACKLOG
    await store.close()


class GatedCache(MemoryCache):
    """Takes blocks only while its gate is open."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.gate = asyncio.Event()
        self.gate.set()

    async def insert(self, blocks: Sequence[tuple[int, Buffer]]) -> bool:
        await self.gate.wait()
        return await super().insert(blocks)


class CacheAdapters(DefaultAdapters):
    """As production's, with a cache of the test's own."""

    def __init__(self, held: GatedCache) -> None:
        super().__init__()
        self._held = held

    def cache(self, location: str, config: StoreConfig, runtime: Runtime) -> CacheStorage:
        return self._held


async def opened(folder: Path, held: GatedCache, **changes: Any) -> SegmentStore:
    options = {**SIZES, **changes}
    return SegmentStore(await open_store(str(folder), options, {}, Runtime(), CacheAdapters(held)))


def content(segment: int) -> bytes:
    return b"".join(piece(segment, number) for number in range(ROUNDS))


async def check_all_in_tier2(store: SegmentStore) -> None:
    await store.flush()
    for segment in range(SEGMENTS):
        assert (await store.get_info(name(segment))).storage_length == ROUNDS * PIECE
    for segment in range(0, SEGMENTS, 37):
        assert await read_all(store, name(segment)) == content(segment)


def test_recovery_waits_for_the_spiller_and_drops_nothing(tmp_path: Path) -> None:
    """Thirteen times what memory holds; the cache has room for it.

    Nothing has to be searched for in the log again.
    """

    async def main() -> None:
        await leave_backlog(tmp_path / "s")
        async with segmentstore.open(
            tmp_path / "s", **SIZES, unflushed_target_bytes=1 << 30
        ) as store:
            numbers = reading(store)
            assert numbers["dropped_unflushed_bytes"] == 0
            assert numbers["tail_bytes"] + numbers["cached_bytes"] == BACKLOG
            await check_all_in_tier2(store)
            assert reading(store)["refills"] == 0

    run(main())


@pytest.mark.parametrize("cache", ["sound", "broken"])
def test_large_appends_stay_in_the_log_until_they_are_wanted(tmp_path: Path, cache: str) -> None:
    """Each was copied to memory, to the cache, and from there to Tier 2."""

    async def main() -> None:
        put_off = dict.fromkeys(("flush_bytes", "object_bytes", "upload_bytes_max"), 1 << 20)
        sizes = {**PUT_OFF, **put_off, "log_file_bytes": 256 * KIB, "frame_bytes_max": 32 * KIB}
        store = await segmentstore.open(tmp_path / "s", **sizes)
        pieces = [bytes([number]) * 5000 for number in range(120)]
        await store.create_segment("x")
        await store.create_segment("y")
        for number, data in enumerate(pieces):
            await store.append("xy"[number % 2], data)
        await store.close()
        held = GatedCache(SIZES["cache_bytes_max"])
        held.broken = cache == "broken"
        async with await opened(tmp_path / "s", held, **put_off) as store:
            numbers = reading(store)
            assert numbers["logged_bytes"] > 400_000
            assert numbers["tail_bytes"] + numbers["logged_bytes"] == 600_000
            assert numbers["spilled_bytes"] == 0
            assert await read_all(store, "x") == b"".join(pieces[::2])
            await store.append("x", b"more")
            await store.flush()
            await store.checkpoint()
            for segment, content in (("x", pieces[::2]), ("y", pieces[1::2])):
                expected = b"".join(content) + (b"more" if segment == "x" else b"")
                assert await read_all(store, segment) == expected
            numbers = reading(store)
            assert (numbers["logged_bytes"], numbers["refills"]) == (0, 0)

    run(main())


def test_what_is_damaged_in_the_log_after_replay_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        store = await segmentstore.open(tmp_path / "s", **PUT_OFF)
        await store.create_segment("x")
        await store.append("x", b"content." * 700)
        await store.close()
        async with await opened(
            tmp_path / "s", GatedCache(64 * KIB), unflushed_target_bytes=1 << 30
        ) as store:
            assert reading(store)["logged_bytes"] == 5600
            # The opening copied the frame, which may never have been synced.
            files = {path: path.read_bytes() for path in (tmp_path / "s" / "log").rglob("*.log")}
            for path, data in files.items():
                if b"content.content." in data:
                    path.write_bytes(data.replace(b"content.", b"cOntent."))
            with pytest.raises(DataCorruptionError, match="checksum"):
                await store.read("x", 0, 100)
            for path, data in files.items():
                if b"content.content." in data:
                    path.write_bytes(data)
            assert await read_all(store, "x") == b"content." * 700

    run(main())


@pytest.mark.parametrize("cache", ["too small", "broken"])
def test_one_pass_over_the_log_serves_whole_objects(tmp_path: Path, cache: str) -> None:
    """Each of 200 blocks took a pass of its own, of everything that is un-flushed."""

    async def main() -> None:
        await leave_backlog(tmp_path / "s")
        held = GatedCache(64 * KIB)
        held.broken = cache == "broken"
        async with await opened(tmp_path / "s", held, cache_bytes_max=64 * KIB) as store:
            assert reading(store)["dropped_unflushed_bytes"] > BACKLOG // 2
            await check_all_in_tier2(store)
            # What uploads hold at a time is what a pass brings at least. Uploads end, and the next
            # begin, at different times: a pass serves one wholly at the least.
            assert 0 < reading(store)["refills"] <= BACKLOG // SIZES["object_bytes"]

    run(main())


def test_a_cache_that_loses_everything_costs_a_few_passes(tmp_path: Path) -> None:
    """Its blocks are found lost one by one; what is found together is searched for together."""

    async def main() -> None:
        await leave_backlog(tmp_path / "s")
        held = GatedCache(SIZES["cache_bytes_max"])
        async with await opened(tmp_path / "s", held, unflushed_target_bytes=1 << 30) as store:
            held.wipe()
            await check_all_in_tier2(store)
            # Uploads find out at different times.
            assert 0 < reading(store)["refills"] <= SIZES["uploads_max"]

    run(main())


def test_a_catch_up_reader_of_lost_bytes_costs_few_passes(tmp_path: Path) -> None:
    """What a pass brings of a segment that is read is kept for the reads that follow."""

    async def main() -> None:
        await leave_backlog(tmp_path / "s")
        held = GatedCache(SIZES["cache_bytes_max"])
        async with await opened(tmp_path / "s", held, unflushed_target_bytes=1 << 30) as store:
            held.wipe()
            for segment in range(0, SEGMENTS, 37):
                assert await read_all(store, name(segment)) == content(segment)
            assert 0 < reading(store)["refills"] <= SEGMENTS // 37 + 1

    run(main())


def test_writers_wait_for_a_spiller_that_falls_behind(tmp_path: Path) -> None:
    async def main() -> None:
        held = GatedCache(SIZES["cache_bytes_max"])
        async with await opened(tmp_path / "s", held, unflushed_target_bytes=1 << 30) as store:
            await store.create_segment("x")
            held.gate.clear()
            futures = [store.append("x", piece(1, number)) for number in range(400)]
            # A flush relieves them, too: they may be through before the test asks.
            await until(
                lambda: (
                    "held back by cache" in "".join(store.stats()["health"])
                    or all(future.done() for future in futures)
                )
            )
            assert reading(store)["tail_bytes"] <= 2 * SIZES["tail_bytes_max"]
            container = store.stats()["containers"][0]
            waited = container["processor"]["throttled_s"] > 0
            # Where Tier 2 is fast, a flush keeps the tail so short that no append has to wait.
            assert waited or container["storage_writer"]["unflushed_bytes"] < 400 * PIECE
            held.gate.set()
            await asyncio.gather(*futures)
            numbers = reading(store)
            assert numbers["dropped_unflushed_bytes"] == 0
            await store.flush()
            assert reading(store)["refills"] == 0

    run(main())


def test_dropped_bytes_count_as_pressure(tmp_path: Path) -> None:
    """They hold the log as those that are held do, and cost more: a store that has dropped much
    holds its writers back.
    """

    async def main() -> None:
        await leave_backlog(tmp_path / "s")
        async with await opened(
            tmp_path / "s",
            GatedCache(64 * KIB),
            cache_bytes_max=64 * KIB,
            unflushed_target_bytes=1 << 30,
        ) as store:
            numbers = reading(store)
            held = numbers["tail_bytes_unflushed"] + numbers["cached_bytes_unflushed"]
            assert held < BACKLOG // 2
            assert numbers["pressure"] == pytest.approx(BACKLOG / (2 * 64 * KIB))

    run(main())
