"""Rows of shards of several containers: by name whatever is decoded together, and however many
containers there are.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tests.tier2.spark.reconcile_world import World
from tier2.spark.common.storages import with_storage
from tier2.spark.reconcile.shard_rows import ShardRows, shard_rows


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tier2", containers=3, objects=120)


@pytest.mark.parametrize("held", [2, 3])
@pytest.mark.parametrize("rows_together", [1, 10, 1000])
def test_shards_give_their_rows_by_name_in_whatever_order_they_are_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch, held: int, rows_together: int
) -> None:
    monkeypatch.setattr("tier2.spark.reconcile.shard_rows.CONTAINERS_AT_ONCE", 2)
    monkeypatch.setattr("tier2.spark.reconcile.shard_rows.CONTAINERS_HELD", held)
    monkeypatch.setattr("tier2.spark.reconcile.shard_rows.BLOCK_ROWS", rows_together)
    manifests = world.snapshot()
    every = pa.concat_tables([world.objects(number) for number in manifests]).select(
        ["name", "state"]
    )
    every = every.sort_by("name")
    for shards in (range(256), range(16, 19), [1, 2, 200, 255], [7]):
        work = partial(shard_rows, manifests=manifests, shards=shards, columns=("name", "state"))
        rows = with_storage(world.url, work)
        for shard in [*shards, *reversed(shards)]:
            wanted = [str(name).startswith(f"{shard:02x}/") for name in every["name"].to_pylist()]
            assert asyncio.run(rows.of(shard)).equals(every.filter(pa.array(wanted, pa.bool_())))


def test_no_container_has_no_rows() -> None:
    rows = ShardRows([], range(2), ("name", "size"))
    assert asyncio.run(rows.of(0)).column_names == ["name", "size"]
    assert asyncio.run(rows.of(1)).num_rows == 0
