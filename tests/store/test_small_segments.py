"""A writer that Tier 2 cannot follow is held back; one that appends a little beside it is not."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore import SegmentStore
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.store_adapters import DefaultAdapters
from tests.store.harness import read_all
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_storage import NO_METADATA, ObjectStorage

BOUND = 1 << 20
PUT_S = 5.0
OPTIONS: dict[str, Any] = {
    "tier1": "memory",
    "frame_bytes_max": 16 * 1024,
    "in_flight_bytes_max": 32 * 1024,
    "unflushed_bytes_max": BOUND,
    "flush_bytes": 64 * 1024,
    "object_bytes": 64 * 1024,
    "upload_bytes_max": 64 * 1024,
    "uploads_max": 1,
    "unflushed_target_bytes": 64 * 1024,
    "consolidation": False,
    "mailbox_poll_interval_s": 0.0,
}


class SlowStorage(MemoryObjectStorage):
    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        await asyncio.sleep(PUT_S)
        await super().put(name, parts, unique_id, metadata)


class SlowTier2(DefaultAdapters):
    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        return SlowStorage(runtime)


async def time_of(call: asyncio.Future[int]) -> float:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await call
    return loop.time() - begun


def test_small_appends_do_not_wait_for_the_heavy_segment(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = Runtime(executor=inline_executor)
        store = SegmentStore(
            await open_store(str(tmp_path / "s"), OPTIONS, {}, runtime, SlowTier2())
        )
        writer = store._parts.containers[0]._writer
        await store.create_segment("heavy")
        for number in range(100):
            await store.create_segment(f"small-{number}")
        heavy = [store.append("heavy", bytes([number % 250]) * 8192) for number in range(400)]
        while writer.unflushed_bytes < 0.8 * BOUND:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        assert any("held back by" in each for each in store.stats()["health"]), store.stats()[
            "health"
        ]
        took: list[float] = []
        for _ in range(3):
            took += await asyncio.gather(
                *(time_of(store.append(f"small-{n}", b"x" * 100)) for n in range(100))
            )
            await asyncio.sleep(1.7)
            assert writer.unflushed_bytes <= BOUND
        assert statistics.median(took) < 0.05
        assert max(took) < 0.05
        assert not heavy[-1].done()
        # Nor does the heavy one starve: it goes on as Tier 2 takes bytes, and in its order.
        before = sum(append.done() for append in heavy)
        await asyncio.sleep(20 * PUT_S)
        assert sum(append.done() for append in heavy) > before
        assert [await append for append in heavy] == [8192 * number for number in range(400)]
        assert await read_all(store, "small-7") == b"x" * 300
        await store.close()

    run_virtual(main())


def test_the_heavy_one_goes_on_evenly_while_tier2_takes_objects(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = Runtime(executor=inline_executor)
        store = SegmentStore(
            await open_store(str(tmp_path / "s"), OPTIONS, {}, runtime, SlowTier2())
        )
        await store.create_segment("heavy")
        heavy = [store.append("heavy", bytes(8192)) for _ in range(300)]
        loop = asyncio.get_running_loop()
        ends: list[float] = []
        for append in heavy:
            append.add_done_callback(lambda _: ends.append(loop.time()))
        await asyncio.sleep(30 * PUT_S)
        # An object has the bytes of eight appends.
        pauses = [later - earlier for earlier, later in pairwise(ends) if earlier > 6 * PUT_S]
        assert len(pauses) > 150
        assert max(pauses) < 2 * PUT_S / 8
        await store.close()

    run_virtual(main())
