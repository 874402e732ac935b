"""Shards where so much differs that the driver has no room for it: surveyed once more, behind
snapshot B, and checked there.

The first survey kept of them which objects of snapshot A were absent, a bit each (`marks`). Rules
of this file:

- what the second listing lacks counts if the first one lacked it too: names are never used again,
  so that was before B;
- what it has and A has not is checked by B as it is. It may have been put since, and then it is too
  young for an orphan;
- a prepared listing is of another time in any case: all it says is confirmed, and needs no marks;
- suspects are checked a slice at a time. The slice of a name depends on no other name, nor on how
  often a task is run. Another attempt at a slice finds as its own what the slice has written, or
  asked for.

No pyspark: the functions take and give Arrow batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final, NamedTuple

import mmh3
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentstore.contracts.findings import Severity
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorage
from tier2.spark.common.storages import opened
from tier2.spark.reconcile import found_classes
from tier2.spark.reconcile.findings import FindingKind, Suspects, find_suspects
from tier2.spark.reconcile.listing import list_rest
from tier2.spark.reconcile.listing_table import LISTING
from tier2.spark.reconcile.marks import HashedNames, names_of
from tier2.spark.reconcile.scan_work import Listers, by_shard, lister_of, shards_of_part
from tier2.spark.reconcile.shard_rows import no_objects
from tier2.spark.reconcile.tasks import (
    COMPARED,
    CheckInputs,
    absent_shards,
    passed_over,
    read_shard,
    sample_waiting,
    scan,
    still_absent,
)
from tier2.spark.reconcile.verdict_work import results_of_suspects, shown
from tier2.spark.reconcile.work import FOUND, REST, RESULTS, Site

_Batches = Iterator[pa.RecordBatch]

SLICE_SUSPECTS: Final = 32_768
"""Suspects that are checked together, and their findings held: some 2 KiB each, with all that is
read of them.
"""
HASHED_AT_ONCE: Final = 65_536


class Again(NamedTuple):
    """What a second survey has of the first, and the verdicts' snapshots."""

    by: CheckInputs
    ranges: Mapping[tuple[int, int], int]
    """First and end of the shards that are surveyed again, and how many suspects they had."""
    marks: Mapping[int, bytes]
    """Of the shards in them what was absent, over snapshot A."""
    hashes: Mapping[int, bytes]
    """Of names of open proposals, by shard; those of `by.place` count as well."""

    def snapshots_of(self, shards: range) -> CheckInputs:
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
    """Over batches with the numbers of parts of the shards, as `scan_task`: RESULTS of those in
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
    """Over a prepared listing as `scan_shards` takes it: RESULTS of the shards in `again`.

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
            surveyed = await scan(
                storage, again.by.before, shards, by, executor, unresponsive=site.unresponsive
            )
        finally:
            executor.shutdown()
        if again.by.confirm_all:
            return surveyed.suspects
        absent = absent_shards(surveyed.suspects)
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
        return passed_over(find_suspects(before, listed), site.unresponsive)

    return found


def _again(
    site: Site, again: Again, shards: range, find: Callable[[ObjectStorage], Any]
) -> Iterator[pa.RecordBatch]:
    slices = -(-again.ranges[shards.start, shards.stop] // SLICE_SUSPECTS) or 1
    by = again.snapshots_of(shards)
    with asyncio.Runner() as runner:
        executor = Runtime().executor("checksums", 1)
        storage = runner.run(opened(site.url))
        try:
            suspects, waiting = sample_waiting(runner.run(find(storage)))
            for number, some in enumerate(_sliced(suspects, slices)):
                part = _part_site(site, number, slices)
                results = runner.run(results_of_suspects(storage, part, by, some, shards, executor))
                row = {"item": f"again{number:03d}", "first": shards.start, "end": shards.stop}
                yield from shown(part, row, results).to_batches()
        finally:
            runner.run(storage.close())
            executor.shutdown()
    rows = [
        {
            "counter": FOUND,
            "count": number,
            "kind": str(FindingKind.WAITING_FOR_DELETION),
            "severity": str(Severity.INFORMATION),
            "container_id": int(container, 16),
        }
        for container, number in waiting.items()
    ]
    yield pa.RecordBatch.from_pylist(rows, schema=RESULTS)


def _sliced(suspects: Suspects, slices: int) -> Iterator[Suspects]:
    """Suspects by a hash of their names: an object's rows stay together, and are in the same slice
    whatever else there is.
    """
    if slices == 1:
        yield suspects
        return
    before = _slice_of(suspects.before["name"], slices)
    listed = _slice_of(suspects.listed["key"], slices)
    for number in range(slices):
        yield Suspects(
            suspects.before.filter(pa.array(before == number)),
            suspects.listed.filter(pa.array(listed == number)),
        )


def _slice_of(names: pa.ChunkedArray[Any], slices: int) -> NDArray[np.int32]:
    """In which slice each name is. A chunk's names are Python values at a time."""
    found = [np.empty(0, np.int32)]
    for chunk in names.chunks:
        for first in range(0, len(chunk), HASHED_AT_ONCE):
            some = chunk.slice(first, HASHED_AT_ONCE).to_pylist()
            found.append(
                np.array([mmh3.hash(str(name), signed=False) % slices for name in some], np.int32)
            )
    return np.concatenate(found)


def _part_site(site: Site, number: int, slices: int) -> Site:
    """What a slice may hand on, and ask for: its share."""
    most = (
        None if site.shown is None else max(site.shown // slices, found_classes.FINDINGS_SHOWN_MIN)
    )
    asking = site.asking
    if asking is not None:
        share = max(asking.names // slices, 1)
        asking = asking._replace(token=f"{asking.token}-{number:03d}", names=share)
    return replace(site, shown=most, asking=asking)
