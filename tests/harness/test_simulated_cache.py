"""The simulated cache: the contract, and its three faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from readindex.cache_storage import CacheStorage
from recovery.harness.simulation.cache import SimulatedCache
from recovery.harness.simulation.virtual_loop import run_virtual
from tests.contracts.cache_storage_contract import BOUND, CacheStorageContract, block
from tests.harness.fake_process import FakeWorld, fake_world


@pytest.fixture
def world() -> Iterator[FakeWorld]:
    with fake_world() as made:
        yield made


class TestSimulatedCache(CacheStorageContract):
    @pytest.fixture(autouse=True)
    def _virtual(self, monkeypatch: pytest.MonkeyPatch, world: FakeWorld) -> None:
        monkeypatch.setattr(asyncio, "run", run_virtual)
        self.world = world

    def make(self, folder: Path) -> CacheStorage:
        return SimulatedCache(self.world.process(), BOUND)

    async def damage(self, cache: CacheStorage, folder: Path) -> None:
        self.world.plan("cache.block.lost", 100, after=50)


def test_a_refused_insert_leaves_nothing_and_the_next_one_works(world: FakeWorld) -> None:
    async def case() -> None:
        world.plan("cache.insert.refused")
        assert not await cache.insert([(1, block(1))])
        assert await cache.get([1]) == [None]
        assert await cache.insert([(1, block(1))])
        assert await cache.get([1]) == [block(1)]

    process = world.process()
    cache = SimulatedCache(process, BOUND)
    process.run(cache.open())
    process.run(case())
    assert world.time.now_us > 0


def test_a_lost_block_stays_lost_and_is_a_miss(world: FakeWorld) -> None:
    async def case() -> None:
        await cache.insert([(n, block(n)) for n in range(4)])
        world.plan("cache.block.lost")
        first = await cache.get(range(4))
        assert first.count(None) == 1
        assert await cache.get(range(4)) == first
        assert all(found in {None, block(n)} for n, found in enumerate(first))
        numbers = cache.statistics()
        assert (numbers.hits, numbers.misses) == (6, 2)

    process = world.process()
    cache = SimulatedCache(process, BOUND)
    process.run(cache.open())
    process.run(case())


def test_no_block_is_lost_where_none_is_found(world: FakeWorld) -> None:
    async def case() -> None:
        world.plan("cache.block.lost")
        await cache.insert([(7, b"")])
        assert await cache.get([1, 7]) == [None, b""]
        assert world.struck == []

    process = world.process()
    cache = SimulatedCache(process, BOUND)
    process.run(cache.open())
    process.run(case())


def test_a_wipe_takes_everything_and_what_comes_later_is_kept(world: FakeWorld) -> None:
    async def case() -> None:
        await cache.insert([(n, block(n)) for n in range(4)])
        world.plan("cache.wiped")
        assert await cache.get(range(4)) == [None] * 4
        assert cache.statistics().bytes_stored == 0
        await cache.insert([(9, block(9))])
        assert await cache.get([3, 9]) == [None, block(9)]
        cache.delete([3, 9])
        assert await cache.get([9]) == [None]
        await cache.close()

    process = world.process()
    cache = SimulatedCache(process, BOUND)
    process.run(cache.open())
    process.run(case())
