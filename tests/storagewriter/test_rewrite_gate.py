"""Containers of one process hold so many bytes of objects that are written anew, and no more."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from segmentstore.contracts.weighted_gate import WeightedGate
from storagewriter.consolidator import REWRITTEN_AT_ONCE, rewrite_gate
from tests.storagewriter.consolidating import LONG_S, kinds, write
from tests.storagewriter.fake_container import FakeContainer, StorageWithoutCompose, run
from tier2.memory_object_storage import MemoryObjectStorage, Method

REWRITING = partial(StorageWithoutCompose, compose_bytes_min=None)
BYTES = 400
OBJECTS = 4


async def waiting(c: FakeContainer, gate: WeightedGate) -> None:
    """A group that waits at the gate, full of another container's bytes."""
    await gate.enter(BYTES)
    await write(c, c.create("a"), OBJECTS)
    await asyncio.sleep(LONG_S)
    assert kinds(c) == ["flush"] * OBJECTS
    assert c.storage.statistics().requests("get") == 0
    assert gate.inside == BYTES


def test_a_group_is_downloaded_once_there_is_room_for_it() -> None:
    gate = WeightedGate(BYTES)

    async def body(c: FakeContainer) -> None:
        await waiting(c, gate)
        gate.leave(BYTES)
        await asyncio.sleep(LONG_S)
        assert kinds(c) == ["consolidation"]
        assert gate.inside == 0

    run(body, storage_type=REWRITING, rewrites=gate, consolidation_bytes=BYTES)


def test_what_the_storage_copies_waits_for_no_room() -> None:
    gate = WeightedGate(BYTES)

    async def body(c: FakeContainer) -> None:
        await gate.enter(BYTES)
        await write(c, c.create("a"), OBJECTS)
        await asyncio.sleep(LONG_S)
        assert kinds(c) == ["consolidation"]

    run(body, storage_type=MemoryObjectStorage, rewrites=gate, consolidation_bytes=BYTES)


def test_the_weight_is_what_is_held() -> None:
    gate = WeightedGate(10 * BYTES)
    heaviest = 0

    class Weighing(StorageWithoutCompose):
        async def get_range(self, name: str, offset: int, length: int) -> bytes:
            nonlocal heaviest
            heaviest = max(heaviest, gate.inside)
            return await super().get_range(name, offset, length)

    async def body(c: FakeContainer) -> None:
        await write(c, c.create("a"), OBJECTS)
        sizes = sum(live.record.size for live in c.metadata.objects.values())
        await asyncio.sleep(LONG_S)
        assert kinds(c) == ["consolidation"]
        assert OBJECTS * 100 <= heaviest <= sizes

    storage_type = partial(Weighing, compose_bytes_min=None)
    run(body, storage_type=storage_type, rewrites=gate, consolidation_bytes=BYTES)


@pytest.mark.parametrize("method", ["get_range", "put"])
def test_a_group_that_fails_leaves_the_gate(method: Method) -> None:
    gate = WeightedGate(BYTES)

    async def body(c: FakeContainer) -> None:
        await waiting(c, gate)
        c.storage.fail(method, 1)
        gate.leave(BYTES)
        await asyncio.sleep(20 * LONG_S)
        assert kinds(c) == ["consolidation"]
        assert gate.inside == 0

    run(body, storage_type=REWRITING, rewrites=gate, consolidation_bytes=BYTES)


def test_a_writer_that_stops_meanwhile_waits_no_more() -> None:
    gate = WeightedGate(BYTES)
    run(
        partial(waiting, gate=gate),
        storage_type=REWRITING,
        rewrites=gate,
        consolidation_bytes=BYTES,
    )
    assert repr(gate) == f"<WeightedGate {BYTES} of {BYTES}, 0 waiting>"


def test_a_writer_that_drains_meanwhile_writes_nothing() -> None:
    gate = WeightedGate(BYTES)

    async def body(c: FakeContainer) -> None:
        await waiting(c, gate)
        await c.writer.drain(1.0)
        gate.leave(BYTES)
        await asyncio.sleep(LONG_S)
        assert kinds(c) == ["flush"] * OBJECTS
        assert c.storage.statistics().requests("get") == 0
        assert gate.inside == 0

    run(body, storage_type=REWRITING, rewrites=gate, consolidation_bytes=BYTES)


def test_the_gate_of_a_process_is_a_few_groups_wide() -> None:
    async def main() -> None:
        gate = rewrite_gate(BYTES)
        for _ in range(REWRITTEN_AT_ONCE):
            await gate.enter(BYTES)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gate.enter(1), 0)

    asyncio.run(main())
