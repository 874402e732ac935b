"""A store whose maker takes it back, the place of its objects being none, while another owner has
come: the lock was lost.
"""

from __future__ import annotations

import asyncio

import pytest

from recovery.harness.simulation.object_storage import SimulatedObjectStorage
from recovery.harness.simulation.store_world import StoreWorld
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.service import SegmentStore
from tier2.object_storage import StorageUnavailableError


def test_the_store_stays_with_who_has_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[asyncio.Future[None]] = []

    async def check(_: SimulatedObjectStorage) -> None:
        if not asked:
            asked.append(asyncio.get_running_loop().create_future())
            await asked[0]
            raise StorageUnavailableError("probe", "connection reset")

    monkeypatch.setattr(SimulatedObjectStorage, "check", check)
    world = StoreWorld(
        "taken back", settings={"containers": 1, "tier2": "s3://bucket/prefix"}, tier1="file"
    )
    maker, owner, next_owner = (world.process(name) for name in ("maker", "owner", "next owner"))
    making = maker.start(world.open_store(maker))
    world.run(lambda: bool(asked))
    maker.pause()
    world.image.expire_locks(maker.name)

    async def write() -> SegmentStore:
        store = await world.open_store(owner)
        await store.create_segment("a")
        await store.append("a", b"one")
        return store

    store = world.run_task(owner, write())
    maker.resume()
    asked[0].set_result(None)
    world.run(making.done)
    assert isinstance(making.exception(), TierUnavailableError)

    async def close() -> None:
        await store.append("a", b"two")
        await store.close()

    async def read() -> bytes:
        async with await world.open_store(next_owner) as again:
            return b"".join([piece async for piece in again.reader("a")])

    world.run_task(owner, close())
    assert world.run_task(next_owner, read()) == b"onetwo"
    world.close()
