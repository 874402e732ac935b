"""What Spark runs over batches before the verdicts: the scan of the shards, and the names of open
proposals.

The rules are those of `work`. No pyspark: the functions take and give Arrow batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.object_storage import ObjectStorage
from tier2.spark.common.arrow_rows import pack
from tier2.spark.common.storages import with_storage
from tier2.spark.reconcile.findings import find_suspects
from tier2.spark.reconcile.listing import list_rest, list_shard
from tier2.spark.reconcile.listing_table import LISTING
from tier2.spark.reconcile.marks import HASHES, hashes_of, pack_shards
from tier2.spark.reconcile.owners import NEWEST, Owners
from tier2.spark.reconcile.shard_rows import no_objects
from tier2.spark.reconcile.staleness import moved_on
from tier2.spark.reconcile.tasks import (
    COMPARED,
    Lister,
    Surveyed,
    passed_over,
    read_shard,
    sample_waiting,
    scan,
)
from tier2.spark.reconcile.work import REST, SURVEYED, Site

_Batches = Iterator[pa.RecordBatch]


def _together(shards: range) -> list[range]:
    return [shards]


class Listers(NamedTuple):
    """Where a listing comes from that was made before."""

    shards: Callable[[range], Iterable[pa.Table]]
    """LISTING of neighbouring shards."""
    rest: Callable[[], Iterable[pa.Table]]
    """What lies in no shard."""
    pieces: Callable[[range], Sequence[range]] = _together
    """A task's shards as they are read best, one piece after another; as it is, all at once."""


def scan_task(
    site: Site, manifests: Mapping[int, Manifest], parts: int, listers: Listers | None = None
) -> Callable[[_Batches], _Batches]:
    """Over batches with the numbers of parts of the shards: SURVEYED.

    The part `parts` is what lies in no shard.
    """

    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            parts_here: list[Any] = batch.column(0).to_pylist()
            for part in parts_here:
                yield _scan_part(site, manifests, part, parts, listers)

    return run


def shards_of_part(part: int, parts: int) -> range:
    """The shards of one of `parts`; of the one behind the last: none."""
    return range(256 * part // parts, 256 * (part + 1) // parts) if part < parts else REST


def _scan_part(
    site: Site, manifests: Mapping[int, Manifest], part: int, parts: int, listers: Listers | None
) -> pa.RecordBatch:
    shards = shards_of_part(part, parts)
    if not shards:
        table = pa.concat_tables(
            [LISTING.empty_table(), *(list_rest(site.url) if listers is None else listers.rest())]
        )
        surveyed = Surveyed(find_suspects(no_objects(COMPARED), table), 0, table.num_rows)
        return surveyed_row(site, manifests, REST, surveyed)
    by = lister_of(site, shards, listers)
    executor = Runtime().executor("listing", by.ahead)
    try:
        found = with_storage(
            site.url,
            lambda storage: scan(
                storage,
                manifests,
                shards,
                by,
                executor,
                unresponsive=site.unresponsive,
                mark=not site.confirms,
            ),
        )
    finally:
        executor.shutdown()
    return surveyed_row(site, manifests, shards, found)


def lister_of(site: Site, shards: range, listers: Listers | None) -> Lister:
    """How these shards are listed."""
    if listers is not None:
        return Lister(listers.shards, listers.pieces, 1)
    return Lister(partial(_list_shards, site.url), _each, min(site.listings_at_once, len(shards)))


def _each(shards: range) -> list[range]:
    return [range(shard, shard + 1) for shard in shards]


def _list_shards(url: str, shards: range) -> Iterator[pa.Table]:
    for shard in shards:
        yield from list_shard(url, shard)


def surveyed_row(
    site: Site, manifests: Mapping[int, Manifest], shards: range, found: Surveyed
) -> pa.RecordBatch:
    """A row of SURVEYED."""
    (before, listed), waiting = sample_waiting(found.suspects)
    suspects = before.num_rows + listed.num_rows
    held = suspects <= site.held
    moved = {} if held or site.place is None else moved_on([found.suspects], manifests, site.place)
    row = {
        "first": shards.start,
        "end": shards.stop,
        "before": pack(before) if held else None,
        "listed": pack(listed) if held else None,
        "suspects": suspects,
        "objects": found.objects,
        "listing": found.listed,
        # What is surveyed again is counted then.
        "waiting": json.dumps(waiting if held else {}),
        "absent": pack_shards(found.absent.items()) if found.absent else None,
        "moved": json.dumps(moved),
    }
    return pa.RecordBatch.from_pylist([row], schema=SURVEYED)


def scan_shards(
    site: Site, manifests: Mapping[int, Manifest], prepare: Callable[[pa.Table], pa.Table]
) -> Callable[[_Batches], _Batches]:
    """Over a prepared listing (`shard`, and the columns of LISTING), each shard's rows together:
    SURVEYED. Holds a shard.
    """

    def run(batches: _Batches) -> _Batches:
        for shard, group in by_shard(batches):
            yield _scan_shard(site, manifests, shard, prepare(group))

    return run


def by_shard(batches: _Batches) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each shard, of batches with a column `shard` that is sorted."""
    held: list[pa.RecordBatch] = []
    shard = ""
    for batch in batches:
        # It is not in the stubs.
        runs = pc.run_end_encode(batch.column("shard"))  # type: ignore[attr-defined]
        start = 0
        for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            if held and value != shard:
                yield shard, pa.Table.from_batches(held)
                held = []
            shard = value
            held.append(batch.slice(start, end - start))
            start = end
    if held:
        yield shard, pa.Table.from_batches(held)


def _scan_shard(
    site: Site, manifests: Mapping[int, Manifest], shard: str, listed: pa.Table
) -> pa.RecordBatch:
    if not shard:
        surveyed = Surveyed(find_suspects(no_objects(COMPARED), listed), 0, listed.num_rows)
        return surveyed_row(site, manifests, REST, surveyed)
    number = int(shard, 16)
    before = with_storage(site.url, lambda storage: read_shard(storage, manifests, number))
    suspects = passed_over(find_suspects(before, listed), site.unresponsive)
    surveyed = Surveyed(suspects, before.num_rows, listed.num_rows)
    return surveyed_row(site, manifests, range(number, number + 1), surveyed)


def proposals_task(site: Site) -> Callable[[_Batches], _Batches]:
    """Over batches of MAILBOXES: HASHES of the names of the objects of open proposals."""

    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            numbers: list[Any] = batch.column("container_id").to_pylist()

            async def read(
                storage: ObjectStorage, numbers: list[int] = numbers
            ) -> frozenset[str] | None:
                return await Owners(storage, Runtime(), site.run_id, NEWEST, 0.0).open_names(
                    numbers
                )

            names = with_storage(site.url, read)
            hashes = hashes_of(names or ())
            rows = [{"shard": shard, "bits": each} for shard, each in hashes.items()]
            yield pa.RecordBatch.from_pylist(rows, schema=HASHES)

    return run
