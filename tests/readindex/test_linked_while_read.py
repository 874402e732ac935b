"""A merge that is linked while a reader waits for the cache."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from readindex.memory_cache import MemoryCache
from recovery.harness.simulation.virtual_loop import run_virtual
from tests.readindex.world import TINY, World


class _SlowCache(MemoryCache):
    async def get(self, addresses: Sequence[int]) -> list[bytes | None]:
        await asyncio.sleep(1.0)
        return await super().get(addresses)


def test_a_reader_that_waits_for_the_cache_gets_its_bytes_though_the_merge_is_linked() -> None:
    async def main() -> None:
        config = dataclasses.replace(TINY, tail_bytes_max=16, cache_bytes_max=1000)
        world = await World(config, _SlowCache(2000)).open()
        target, source = world.create(), world.create()
        world.append(target, b"abc")
        world.flush(target)
        for start in range(0, 64, 16):
            world.append(source, bytes(range(start, start + 16)))
            await world.index.wait_trimmed()
        assert world.index.statistics().cached_bytes
        world.seal(source)
        world.merge(target, source)
        world.flush(source)
        reading = asyncio.ensure_future(world.index.read(target, 8, 8))
        await asyncio.sleep(0.5)
        world.link(target)
        assert await reading == world.truth[target][8:16]
        await world.index.close()

    run_virtual(main())
