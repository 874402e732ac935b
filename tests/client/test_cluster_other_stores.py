"""The address of a host that has ended is another store's by now: a client sends it nothing."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest

from segmentstore import StoreUnreachableError
from segmentstore.client.cluster_store import cluster_store
from tests.client.cluster_world import ClusterWorld, run_cluster
from tests.store.bookkeeper_world import name_in
from tests.store.harness import read_all


async def other_store(folder: Path, name: str) -> ClusterWorld:
    """One host, which has a segment of this name, too."""
    other = ClusterWorld(folder / "other", ports=100)
    await other.start("one")
    await other.until_served()
    async with other.client() as store:
        await store.create_segment(name)
    return other


def test_what_is_sent_stays_in_the_store(tmp_path: Path) -> None:
    async def body(world: ClusterWorld) -> None:
        name = name_in(world.hosts["one"].store.served[0], world.containers)
        other = await other_store(tmp_path, name)
        async with world.client() as store, other.client() as elsewhere:
            await store.create_segment(name)
            await store.append(name, b"a")
            there = other.hosts["one"]
            there.address = world.kill("one").address
            world.hosts["of another store"] = there
            await store.append(name, b"b")
            writer = await store.writer(name, UUID(int=1)).open()
            await writer.append(b"c")
            assert await read_all(store, name) == b"abc"
            assert (await elsewhere.get_info(name)).length == 0
        del world.hosts["of another store"]
        await other.close()

    (tmp_path / "other").mkdir()
    run_cluster(tmp_path, body, "one", "two")


def test_a_store_that_was_found_is_the_one_that_is_meant(tmp_path: Path) -> None:
    async def body(world: ClusterWorld) -> None:
        other = await other_store(tmp_path, "x")
        async with world.client() as store:
            store_id = store.store_id
        address, rng = other.hosts["one"].address, random.Random(1)
        with pytest.raises(StoreUnreachableError, match=f"another store, .* and not {store_id}"):
            await cluster_store("zoo", [address], other.reach, rng, 60.0, None, store_id)
        await other.close()

    (tmp_path / "other").mkdir()
    run_cluster(tmp_path, body, "one", shared=False)
