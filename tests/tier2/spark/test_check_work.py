"""How the check of objects is cut, and that a task opens one storage for all that it does, and
closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.contracts.runtime import Runtime
from tests.tier2.spark.reconcile_world import World
from tier2.catalog.catalog_manifest import Manifest
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.spark.reconcile.findings import StoreFacts
from tier2.spark.reconcile.plan import (
    BYTES_PER_TASK,
    TASKS_MAX,
    WEIGHED_COLUMNS,
    check_count,
    check_work,
    shard_bytes,
)
from tier2.spark.reconcile.tasks import CheckInputs
from tier2.spark.reconcile.verdict_work import verdict_task
from tier2.spark.reconcile.work import WORK, Site

Batches = Iterator[pa.RecordBatch]
WEIGHTS = st.lists(st.integers(0, 1 << 40) | st.just(0), min_size=256, max_size=256)


def shards(parts: int, weights: Sequence[int] | None = None) -> list[range]:
    return [range(row["first"], row["end"]) for row in check_work(parts, weights)]


@settings(deadline=None)
@given(WEIGHTS | st.none(), st.integers(1, TASKS_MAX))
def test_every_shard_is_inspected_once_and_no_part_has_much_more_than_its_share(
    weights: list[int] | None, parts: int
) -> None:
    cut = shards(parts, weights)
    assert [shard for some in cut for shard in some] == list(range(256))
    assert 1 <= len(cut) <= parts
    held = [1] * 256 if weights is None else weights
    share = sum(held) / parts
    assert all(
        sum(held[some.start : some.stop]) <= (share + max(held)) * (1 + 1e-9) for some in cut
    )


@pytest.mark.parametrize("parts", [1, 2, 8, 64, 256])
def test_parts_without_weights_have_as_many_shards(parts: int) -> None:
    assert {len(some) for some in shards(parts)} == {256 // parts}


def test_objects_in_few_shards_are_spread_by_their_bytes() -> None:
    weights = [0] * 256
    for shard in (3, 5, 6, 7, 9, 200, 250, 251):
        weights[shard] = 64
    assert [sum(weights[some.start : some.stop]) for some in shards(4, weights)] == [128] * 4


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (0, 1),
        (1, 1),
        (BYTES_PER_TASK + 1, 1),
        (2 * BYTES_PER_TASK + 1, 2),
        (5 * BYTES_PER_TASK, 5),
        (1 << 50, TASKS_MAX),
    ],
)
def test_little_that_is_left_makes_no_task(size: int, count: int) -> None:
    assert check_count(size) == count


def test_what_is_weighed_is_what_is_inspected(tmp_path: Path) -> None:
    world = World(tmp_path / "tier2")
    world.garbage(0)
    sizes = [0] * 256
    for metadata in world.metadata.values():
        for name, live in metadata.objects.items():
            sizes[int(name[:2], 16)] += live.record.size
    assert (
        shard_bytes([world.objects(number).select(list(WEIGHED_COLUMNS)) for number in (0, 1)])
        == sizes
    )
    assert sum(sizes) > 0


class Opened:
    """Counts what is opened, and what is closed of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self.closed = 0
        monkeypatch.setattr("tier2.spark.common.storages.open_object_storage", self)

    def __call__(self, url: str, runtime: Runtime) -> ObjectStorage:
        storage = open_object_storage(url, runtime)
        self.opened += 1
        close = storage.close

        async def counted() -> None:
            self.closed += 1
            await close()

        storage.close = counted  # type: ignore[method-assign]
        return storage


def bodies_task(world: World, manifests: Mapping[int, Manifest]) -> Callable[[Batches], Batches]:
    """What a task does that checks the bodies of objects."""
    site = Site(url=world.url, run_id="0" * 16, listings_at_once=1, objects_at_once=2, bodies=True)
    by = CheckInputs(
        manifests,
        manifests,
        StoreFacts({0: 3, 1: 3}, world.now_ms, 0),
        site.run_id,
        confirm_all=False,
    )
    return verdict_task(site, by)


@pytest.mark.parametrize("taken", [1, 3, 100])
def test_a_task_opens_one_storage_for_all_rows_and_closes_it_also_when_the_rest_is_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    world = World(tmp_path / "tier2")
    manifests = world.snapshot()
    judge = bodies_task(world, manifests)
    rows = pa.Table.from_pylist(list(check_work(8)), schema=WORK)
    opened = Opened(monkeypatch)
    results = judge(iter(rows.to_batches(max_chunksize=3)))
    came = [batch for _, batch in zip(range(taken), results, strict=False)]
    results.close()  # type: ignore[attr-defined] # a generator
    assert (opened.opened, opened.closed) == (1, 1)
    if taken == 100:
        table = pa.Table.from_batches(came)
        counts = {row["counter"]: 0 for row in table.to_pylist()}
        for row in table.to_pylist():
            counts[row["counter"]] += row["count"]
        assert counts["looked_into"] == 24


def test_a_task_that_fails_closes_its_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "tier2")
    manifests = world.snapshot()
    for manifest in manifests.values():
        world.lose(manifest.tables["objects"].object)
    judge = bodies_task(world, manifests)
    opened = Opened(monkeypatch)
    rows = pa.Table.from_pylist(list(check_work(1)), schema=WORK)
    with pytest.raises(Exception, match="there is no object"):
        list(judge(iter(rows.to_batches())))
    assert (opened.opened, opened.closed) == (1, 1)
