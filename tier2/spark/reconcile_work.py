"""The rows that carry reconciliation's work to its tasks, and what comes back; and the functions Spark runs over them.

Rules of this file:

- a row of work is whole: a task reads Tier 2 and needs nothing of the driver but its row and a `Site`;
- results are findings, and counts beside them, in rows of one schema: each pass is one query, and one action;
- storages are opened in the task and closed by it; nothing that has a thread or a socket is ever sent.

No pyspark: the functions take and give Arrow batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.spark.arrow_rows import pack, unpack
from tier2.spark.findings import FINDINGS, Suspects, find_suspects
from tier2.spark.listing import LISTING, list_rest, list_shard
from tier2.spark.reconcile_tasks import (
    COMPARED,
    Judge,
    Lister,
    Surveyed,
    cover,
    judge,
    look_into,
    passed_over,
    read_shard,
    survey,
)
from tier2.spark.shard_rows import no_objects

_T = TypeVar("_T")
_Batches = Iterator[pa.RecordBatch]

_SURVEYED: Final[list[pa.Field[Any]]] = [
    pa.field("first", pa.int64()),
    pa.field("end", pa.int64()),
    pa.field("before", pa.binary()),
    pa.field("listed", pa.binary()),
    pa.field("suspects", pa.int64()),
    pa.field("objects", pa.int64()),
    pa.field("listing", pa.int64()),
]
SURVEYED: Final = pa.schema(_SURVEYED)
"""Of shards [first, end), 0 to 0 for what is in none: suspects as bytes, and how many rows were compared."""

_WORK: Final[list[pa.Field[Any]]] = [
    pa.field("bin", pa.int32()),
    pa.field("item", pa.string()),
    pa.field("container_id", pa.int64()),
    pa.field("first", pa.int64()),
    pa.field("end", pa.int64()),
    pa.field("before", pa.binary()),
    pa.field("listed", pa.binary()),
]
WORK: Final = pa.schema(_WORK)
"""`judge` suspects of shards, `cover` segments of a container (in `before`), `look` into the objects of shards."""

RESULTS: Final = pa.schema([*FINDINGS, ("counter", pa.string()), ("count", pa.int64())])
"""A finding; or, with a counter, so many of something. The counter `gone` names an object."""

REST: Final = range(0)
"""The shards of what is in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What every task of a run is told."""

    url: str
    run_id: str
    listings_at_once: int
    objects_at_once: int
    bodies: bool
    untold: tuple[int, ...] = ()
    """Containers without a snapshot A: what is listed of them is passed over, and they are told of as a whole."""


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


def with_storage(url: str, work: Callable[[ObjectStorage], Awaitable[_T]]) -> _T:
    """What `work` gives, with the object storage at `url` open meanwhile; in an event loop of its own."""

    async def run() -> _T:
        storage = open_object_storage(url, Runtime())
        try:
            return await work(storage)
        finally:
            await storage.close()

    return asyncio.run(run())


# --- the survey --------------------------------------------------------------------------------------------------------


def survey_task(
    site: Site, manifests: Mapping[int, Manifest], parts: int, listers: Listers | None = None
) -> Callable[[_Batches], _Batches]:
    """Over batches with the numbers of parts of the shards: SURVEYED. The part `parts` is what lies in no shard."""

    def run(batches: _Batches) -> _Batches:
        for batch in batches:
            parts_here: list[Any] = batch.column(0).to_pylist()
            for part in parts_here:
                yield _survey_part(site, manifests, part, parts, listers)

    return run


def shards_of_part(part: int, parts: int) -> range:
    """The shards of one of `parts`; of the one behind the last: none."""
    return range(256 * part // parts, 256 * (part + 1) // parts) if part < parts else REST


def _survey_part(
    site: Site, manifests: Mapping[int, Manifest], part: int, parts: int, listers: Listers | None
) -> pa.RecordBatch:
    shards = shards_of_part(part, parts)
    if not shards:
        table = pa.concat_tables([LISTING.empty_table(), *(list_rest(site.url) if listers is None else listers.rest())])
        return surveyed_row(REST, Surveyed(find_suspects(no_objects(COMPARED), table), 0, table.num_rows))
    by = Lister(partial(_list_shards, site.url), _each, min(site.listings_at_once, len(shards)))
    if listers is not None:
        by = Lister(listers.shards, listers.pieces, 1)
    executor = Runtime().executor("listing", by.ahead)
    try:
        found = with_storage(
            site.url, lambda storage: survey(storage, manifests, shards, by, executor, untold=site.untold)
        )
    finally:
        executor.shutdown()
    return surveyed_row(shards, found)


def _each(shards: range) -> list[range]:
    return [range(shard, shard + 1) for shard in shards]


def _list_shards(url: str, shards: range) -> Iterator[pa.Table]:
    for shard in shards:
        yield from list_shard(url, shard)


def surveyed_row(shards: range, found: Surveyed) -> pa.RecordBatch:
    """A row of SURVEYED."""
    before, listed = found.suspects
    row = {
        "first": shards.start,
        "end": shards.stop,
        "before": pack(before),
        "listed": pack(listed),
        "suspects": before.num_rows + listed.num_rows,
        "objects": found.objects,
        "listing": found.listed,
    }
    return pa.RecordBatch.from_pylist([row], schema=SURVEYED)


def survey_group(
    site: Site, manifests: Mapping[int, Manifest], prepare: Callable[[pa.Table], pa.Table]
) -> Callable[[Any, Any], Any]:
    """Over groups of a prepared listing by shard (`shard`, and the columns of LISTING): SURVEYED."""

    def run(key: tuple[Any, ...], group: pa.Table) -> pa.Table:
        listed = prepare(group)
        shard: str = key[0].as_py()
        if not shard:
            found = Surveyed(find_suspects(no_objects(COMPARED), listed), 0, listed.num_rows)
            return pa.Table.from_batches([surveyed_row(REST, found)])
        number = int(shard, 16)
        before = with_storage(site.url, lambda storage: read_shard(storage, manifests, number))
        suspects = passed_over(find_suspects(before, listed), site.untold)
        found = Surveyed(suspects, before.num_rows, listed.num_rows)
        return pa.Table.from_batches([surveyed_row(range(number, number + 1), found)])

    return run


# --- verdicts ----------------------------------------------------------------------------------------------------------


def verdict_task(site: Site, by: Judge) -> Callable[[_Batches], _Batches]:
    """Over batches of WORK: RESULTS. One storage for all rows: its connections are opened once, and what speaks S3 loaded."""

    def run(batches: _Batches) -> _Batches:
        with asyncio.Runner() as runner:
            executor = Runtime().executor("checksums", 1)
            storage = runner.run(_opened(site.url))
            try:
                for batch in batches:
                    for row in batch.to_pylist():
                        yield from runner.run(_one(storage, site, by, row, executor)).to_batches()
            finally:
                runner.run(storage.close())
                executor.shutdown()

    return run


async def _opened(url: str) -> ObjectStorage:
    return open_object_storage(url, Runtime())


async def _one(storage: ObjectStorage, site: Site, by: Judge, row: Mapping[str, Any], executor: Executor) -> pa.Table:
    shards = range(row["first"] or 0, row["end"] or 0)
    if row["item"] == "judge":
        suspects = Suspects(unpack(row["before"]), unpack(row["listed"]))
        findings, gone = await judge(storage, suspects, shards, by)
        return _results(findings, gone=gone)
    if row["item"] == "cover":
        manifest = by.after[row["container_id"]]
        findings, chunks = await cover(storage, manifest, unpack(row["before"]), site.run_id)
        return _results(findings, {"chunks": chunks}, container_id=row["container_id"])
    findings, checked = await look_into(
        storage,
        by.after,
        shards,
        site.run_id,
        bodies=site.bodies,
        at_once=site.objects_at_once,
        executor=executor,
    )
    counts = {"looked_into": checked.objects, "blocks": checked.blocks, "bytes_read": checked.bytes_read}
    return _results(findings, counts, checked.gone)


def _results(
    findings: pa.Table,
    counts: Mapping[str, int] | None = None,
    gone: Iterable[str] = (),
    *,
    container_id: int | None = None,
) -> pa.Table:
    rows = findings
    for name in ("counter", "count"):
        rows = rows.append_column(name, pa.nulls(findings.num_rows, RESULTS.field(name).type))
    more: list[dict[str, Any]] = [
        {"counter": name, "count": count, "container_id": container_id} for name, count in (counts or {}).items()
    ]
    more += [{"counter": "gone", "count": 1, "object": name} for name in gone]
    return pa.concat_tables([rows.cast(RESULTS), pa.Table.from_pylist(more, schema=RESULTS)])
