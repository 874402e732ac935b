"""A read handle with a rate keeps it, on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.paced_reading import PacedReadHandle
from segmentstore.contracts.rate_limiter import RateLimiter
from tests.contracts.log_world import append_all


def test_all_that_share_a_rate_are_as_fast_together() -> None:
    async def main() -> float:
        store = MemoryLogStore(part_bytes=100_000)
        log = MemoryDataLog(store, 0)
        await log.open()
        await append_all(log, range(2000))
        loop, limiter = asyncio.get_running_loop(), RateLimiter(50_000)
        parts = log.sealed_parts()[:2]
        assert len(parts) == 2
        begun = loop.time()

        async def read(number: int) -> int:
            handle = PacedReadHandle(await log.open_part(number), limiter)
            total = 0
            for entry in range(handle.last_entry + 1):
                async for batch in handle.read(entry, entry):
                    total += sum(len(each.data) for each in batch)
            assert total == handle.length
            await handle.close()
            return total

        total = sum(await asyncio.gather(*(read(part.number) for part in parts)))
        assert total > 150_000
        rate = total / (loop.time() - begun)
        await log.close()
        return rate

    assert run_virtual(main()) == pytest.approx(50_000, rel=0.01)
