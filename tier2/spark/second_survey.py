"""Shards where so much differs that the driver has no room for it: surveyed once more, behind
snapshot B, and judged there.

The first survey kept of them which objects of snapshot A were absent, a bit each (`marks`). Rules
of this file:

- what the second listing lacks counts if the first one lacked it too: names are never used again,
  so that was before B;
- what it has and A has not is judged by B as it is. It may have been put since, and then it is too
  young for an orphan;
- a prepared listing is of another time in any case: all it says is confirmed, and needs no marks.

No pyspark: the functions take and give Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple

import pyarrow as pa

from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorage
from tier2.spark.findings import Kind, Severity, Suspects, find_suspects
from tier2.spark.listing import LISTING, list_rest
from tier2.spark.marks import HashedNames, names_of
from tier2.spark.reconcile_tasks import (
    COMPARED,
    Judge,
    absent_names,
    passed_over,
    read_shard,
    sample_waiting,
    still_absent,
    survey,
)
from tier2.spark.reconcile_work import (
    FOUND,
    REST,
    RESULTS,
    Listers,
    Site,
    by_shard,
    lister_of,
    results_of_suspects,
    shards_of_part,
    shown,
    with_storage,
)
from tier2.spark.shard_rows import no_objects

_Batches = Iterator[pa.RecordBatch]


class Again(NamedTuple):
    """What a second survey has of the first, and the verdicts' snapshots."""

    by: Judge
    ranges: frozenset[tuple[int, int]]
    """First and end of the shards that are surveyed again."""
    marks: Mapping[int, bytes]
    """Of the shards in them what was absent, over snapshot A."""
    hashes: Mapping[int, bytes]
    """Of names of open proposals, by shard; those of `by.place` count as well."""

    def judge_of(self, shards: range) -> Judge:
        """`by`, with the open proposals of these shards."""
        some = [self.hashes[shard] for shard in shards if shard in self.hashes]
        return (
            self.by
            if not some
            else self.by._replace(place=self.by.place._replace(open_names=HashedNames(some)))
        )


def again_task(
    site: Site, again: Again, parts: int, listers: Listers | None = None
) -> Callable[[_Batches], _Batches]:
    """Over batches with the numbers of parts of the shards, as `survey_task`: RESULTS of those in
    `again`.
    """

    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            for number in numbers:
                shards = shards_of_part(number, parts)
                if (shards.start, shards.stop) in again.ranges:
                    yield from _again(site, again, shards, _part_of(site, again, shards, listers))

    return run


def again_shards(
    site: Site, again: Again, prepare: Callable[[pa.Table], pa.Table]
) -> Callable[[_Batches], _Batches]:
    """Over a prepared listing as `survey_shards` takes it: RESULTS of the shards in `again`.

    Holds a shard.
    """

    def run(batches: _Batches) -> _Batches:
        for name, group in by_shard(batches):
            number = int(name, 16) if name else 0
            shards = range(number, number + 1) if name else REST
            if (shards.start, shards.stop) in again.ranges:
                yield from _again(
                    site, again, shards, _shard_of(site, again, shards, prepare(group))
                )

    return run


def _part_of(
    site: Site, again: Again, shards: range, listers: Listers | None
) -> Callable[[ObjectStorage], Any]:
    rest: list[pa.Table] = [LISTING.empty_table()]
    if not shards:
        rest += list_rest(site.url) if listers is None else listers.rest()

    async def found(storage: ObjectStorage) -> Suspects:
        if not shards:
            return find_suspects(no_objects(COMPARED), pa.concat_tables(rest))
        by = lister_of(site, shards, listers)
        executor: Executor = Runtime().executor("listing", by.ahead)
        try:
            surveyed = await survey(
                storage, again.by.before, shards, by, executor, untold=site.untold
            )
        finally:
            executor.shutdown()
        if again.by.confirm_all:
            return surveyed.suspects
        absent = {int(name[:2], 16) for name in absent_names(surveyed.suspects)}
        names: list[pa.Array[Any]] = [pa.array([], pa.string())]
        names += [
            await names_of(storage, again.by.before, shard, [again.marks[shard]])
            for shard in shards
            if shard in absent and shard in again.marks
        ]
        return still_absent(surveyed.suspects, pa.concat_arrays(names))

    return found


def _shard_of(
    site: Site, again: Again, shards: range, listed: pa.Table
) -> Callable[[ObjectStorage], Any]:
    async def found(storage: ObjectStorage) -> Suspects:
        if not shards:
            return find_suspects(no_objects(COMPARED), listed)
        before = await read_shard(storage, again.by.before, shards.start)
        return passed_over(find_suspects(before, listed), site.untold)

    return found


def _again(
    site: Site, again: Again, shards: range, find: Callable[[ObjectStorage], Any]
) -> Iterator[pa.RecordBatch]:
    executor = Runtime().executor("checksums", 1)

    async def judged(storage: ObjectStorage) -> tuple[pa.Table, dict[str, int]]:
        suspects, waiting = sample_waiting(await find(storage))
        return await results_of_suspects(
            storage, site, again.judge_of(shards), suspects, shards, executor
        ), waiting

    try:
        results, waiting = with_storage(site.url, judged)
    finally:
        executor.shutdown()
    row = {"item": "again", "first": shards.start, "end": shards.stop}
    yield from shown(site, row, results).to_batches()
    rows = [
        {
            "counter": FOUND,
            "count": number,
            "kind": str(Kind.WAITING_FOR_DELETION),
            "severity": str(Severity.INFORMATION),
            "container_id": int(container, 16),
        }
        for container, number in waiting.items()
    ]
    yield pa.RecordBatch.from_pylist(rows, schema=RESULTS)
