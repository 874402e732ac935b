"""The rows that carry reconciliation's work to its tasks, and what comes back; and the functions
Spark runs over them.

Rules of this file:

- a row of work is whole: a task reads Tier 2 and needs nothing of the driver but its row and a
  `Site`;
- results are findings, and counts beside them, in rows of one schema: each pass is one query, and
  one action;
- storages are opened in the task and closed by it; nothing that has a thread or a socket is ever
  sent.

No pyspark: the functions take and give Arrow batches.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.spark.common.arrow_rows import pack, unpack
from tier2.spark.reconcile.coverage import Border
from tier2.spark.reconcile.coverage_tasks import cover_range, cover_segment
from tier2.spark.reconcile.findings import FINDINGS, StoreFacts, Suspects, find_suspects
from tier2.spark.reconcile.findings_files import write_part
from tier2.spark.reconcile.folder_tasks import check_copies, check_folders
from tier2.spark.reconcile.found_classes import count_classes, sample
from tier2.spark.reconcile.listing import list_rest, list_shard
from tier2.spark.reconcile.listing_table import LISTING
from tier2.spark.reconcile.marks import (
    HASHES,
    HashedNames,
    hashes_of,
    marks_of,
    names_of,
    pack_shards,
    unpack_shards,
)
from tier2.spark.reconcile.orphan_requests import Asking, ask_owners
from tier2.spark.reconcile.owners import NEWEST, Owners
from tier2.spark.reconcile.shard_rows import no_objects
from tier2.spark.reconcile.staleness import moved_on
from tier2.spark.reconcile.tasks import (
    COMPARED,
    CheckInputs,
    Lister,
    Surveyed,
    check_missing,
    check_objects,
    check_suspects,
    found_by_checks,
    passed_over,
    read_shard,
    sample_waiting,
    scan,
)

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
    pa.field("waiting", pa.string()),
    pa.field("absent", pa.binary()),
    pa.field("moved", pa.string()),
]
SURVEYED: Final = pa.schema(_SURVEYED)
"""Of shards [first, end), 0 to 0 for what is in none: suspects as bytes, how many rows were
compared, and how many that wait for their deletion are no rows (`sample_waiting`), by container, as
JSON. More than SUSPECTS_HELD suspects are not there: `before` is null then, nothing of them waits,
and `moved` says which containers have moved on, and why. `absent` is `marks` of what was not
listed.
"""

SUSPECTS_HELD: Final = 1024
"""Of a range of shards so many suspects come to the driver, 200 bytes each."""

_WORK: Final[list[pa.Field[Any]]] = [
    pa.field("bin", pa.int32()),
    pa.field("item", pa.string()),
    pa.field("container_id", pa.int64()),
    pa.field("first", pa.int64()),
    pa.field("end", pa.int64()),
    pa.field("before", pa.binary()),
    pa.field("listed", pa.binary()),
    pa.field("names", pa.binary()),
]
WORK: Final = pa.schema(_WORK)
"""`judge` suspects of shards, `cover` a range of a container's chunks (number `first` of `end`),
`walk` a segment of a container (`first`), `look` into the objects of shards, `missing` names of
some that were not there, `folders` of the engine's own, `copies` of the metadata of containers
[first, end).
"""

RESULTS: Final = pa.schema([*FINDINGS, ("counter", pa.string()), ("count", pa.int64())])
"""A finding; or, with a counter, so many of something.

The counter `missing` names an object, the counter FOUND a class; ASKED and NOT_ASKED are those of
`orphan_requests`.
"""

FOUND: Final = "found"
"""The counter of a row that says how many findings of its kind, severity and container there are,
shown or not.
"""

MISSING_MARKS: Final = "gone_marks"
"""The counter of a row whose evidence are marks over snapshot B, of more than MISSING_SHOWN objects
that were gone.
"""
MISSING_SHOWN: Final = 64

_MAILBOXES: Final[list[pa.Field[Any]]] = [
    pa.field("bin", pa.int32()),
    pa.field("container_id", pa.int64()),
]
MAILBOXES: Final = pa.schema(_MAILBOXES)
"""Containers whose open proposals are read."""

BORDER: Final = "border"
"""The counter of a row whose evidence is a `coverage.Border`: at most two of a range."""

REST: Final = range(0)
"""The shards of what is in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What every task of a run is told."""

    url: str = field(repr=False)
    run_id: str
    listings_at_once: int
    objects_at_once: int
    bodies: bool
    unresponsive: tuple[int, ...] = ()
    """Containers without a snapshot A: what is listed of them is passed over, and they are told of
    as a whole.
    """
    checks_objects: bool = False
    """Objects are looked into: what that tells of them no listing needs to tell."""
    shown: int | None = None
    """Findings that a row of work hands on; None: all. All are counted."""
    asking: Asking | None = None
    """Owners are asked to delete the orphans that are found; None: nobody is."""
    findings_url: str = field(default="", repr=False)
    """Where each row of work writes all it found; empty: nowhere."""
    place: StoreFacts | None = None
    """Tags and time, for `moved_on`; None: owners were asked, and their snapshots are the last
    word.
    """
    confirms: bool = False
    """The listing is of another time: what it lacks is marked nowhere."""
    held: int = SUSPECTS_HELD
    missing_shown: int = MISSING_SHOWN


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
    """What `work` gives, with the object storage at `url` open meanwhile; in an event loop of its
    own.
    """

    async def run() -> _T:
        storage = open_object_storage(url, Runtime())
        try:
            return await work(storage)
        finally:
            await storage.close()

    return asyncio.run(run())


# --- the survey -----------------------------------------------------------------------------------


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
        runs = pc.run_end_encode(batch.column("shard"))  # type: ignore[attr-defined] # not in the stubs
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


# --- proposals ------------------------------------------------------------------------------------


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


# --- verdicts -------------------------------------------------------------------------------------


def verdict_task(site: Site, by: CheckInputs) -> Callable[[_Batches], _Batches]:
    """Over batches of WORK: RESULTS.

    One storage for all rows: its connections are opened once, and what speaks S3 loaded.
    """

    def run(batches: _Batches) -> _Batches:
        with asyncio.Runner() as runner:
            executor = Runtime().executor("checksums", 1)
            storage = runner.run(opened(site.url))
            try:
                for batch in batches:
                    for row in batch.to_pylist():
                        results = runner.run(_one(storage, site, by, row, executor))
                        yield from shown(site, row, results).to_batches()
            finally:
                runner.run(storage.close())
                executor.shutdown()

    return run


def shown(site: Site, row: Mapping[str, Any], results: pa.Table) -> pa.Table:
    """RESULTS of a row of work, the findings counted by class and as many of them as may be shown;
    all are written.
    """
    counted = pc.is_valid(results["counter"])
    findings = results.filter(pc.invert(counted))
    if not findings.num_rows:
        return results
    if site.findings_url:
        write_part(
            site.findings_url, site.run_id, row, findings.select(FINDINGS.names).cast(FINDINGS)
        )
    classes = [
        {**each._asdict(), "counter": FOUND, "count": number}
        for each, number in count_classes(findings).items()
    ]
    if site.shown is not None:
        findings = sample(findings, site.shown)
    return pa.concat_tables(
        [findings, results.filter(counted), pa.Table.from_pylist(classes, schema=RESULTS)]
    )


async def opened(url: str) -> ObjectStorage:
    """The object storage at `url`, open; whoever asked closes it, in the same event loop."""
    return open_object_storage(url, Runtime())


async def _one(
    storage: ObjectStorage, site: Site, by: CheckInputs, row: Mapping[str, Any], executor: Executor
) -> pa.Table:
    shards = range(row["first"] or 0, row["end"] or 0)
    if row["item"] == "judge":
        suspects = Suspects(unpack(row["before"]), unpack(row["listed"]))
        if row["names"] is not None:
            names = HashedNames(each for _, each in unpack_shards(row["names"]))
            by = by._replace(place=by.place._replace(open_names=names))
        return await results_of_suspects(storage, site, by, suspects, shards, executor)
    if row["item"] == "gone":
        return _results(await _check_again(storage, row, by))
    if row["item"] == "cover":
        manifest = by.after[row["container_id"]]
        covered = await cover_range(storage, manifest, row["first"], row["end"], site.run_id)
        counts = {"chunks": covered.chunks}
        return _results(
            covered.findings, counts, container_id=row["container_id"], borders=covered.borders
        )
    if row["item"] == "folders":
        return _results(await check_folders(storage, site.url, by.place, site.run_id, executor))
    if row["item"] == "copies":
        return _results(
            await check_copies(storage, shards, by.place, site.run_id, bodies=site.bodies)
        )
    if row["item"] == "walk":
        return _results(
            await cover_segment(storage, by.after[row["container_id"]], row["first"], site.run_id)
        )
    findings, checked = await check_objects(
        storage,
        by.after,
        shards,
        site.run_id,
        bodies=site.bodies,
        at_once=site.objects_at_once,
        executor=executor,
    )
    counts = {
        "looked_into": checked.objects,
        "blocks": checked.blocks,
        "bytes_read": checked.bytes_read,
    }
    return await _with_missing(
        storage, by, _results(findings, counts), checked.missing, site.missing_shown
    )


async def results_of_suspects(
    storage: ObjectStorage,
    site: Site,
    by: CheckInputs,
    suspects: Suspects,
    shards: range,
    executor: Executor,
) -> pa.Table:
    """RESULTS of `judge` over the suspects of some shards, which objects need a third look, and
    what owners are asked.
    """
    findings, missing = await check_suspects(storage, suspects, shards, by)
    if site.checks_objects:
        findings = await found_by_checks(
            storage,
            findings,
            shards,
            by,
            bodies=site.bodies,
            at_once=site.objects_at_once,
            executor=executor,
        )
    results = await _with_missing(storage, by, _results(findings), missing, site.missing_shown)
    if site.asking is None:
        return results
    asked = await ask_owners(storage, site.asking, site.run_id, findings, shards)
    return pa.concat_tables([results, pa.Table.from_pylist(asked, schema=RESULTS)])


async def _with_missing(
    storage: ObjectStorage, by: CheckInputs, results: pa.Table, missing: Collection[str], most: int
) -> pa.Table:
    """RESULTS, with the names of what was gone; of many with marks of them."""
    if len(missing) <= most:
        return pa.concat_tables([results, _results(FINDINGS.empty_table(), missing=missing)])
    marks = pack_shards(
        (await marks_of(storage, by.after, pa.array(sorted(missing), pa.string()))).items()
    )
    row = {
        "counter": MISSING_MARKS,
        "count": len(missing),
        "evidence": base64.b64encode(marks).decode(),
    }
    return pa.concat_tables([results, pa.Table.from_pylist([row], schema=RESULTS)])


async def _check_again(storage: ObjectStorage, row: Mapping[str, Any], by: CheckInputs) -> pa.Table:
    """FINDINGS of a row `missing`: marks over B, those over A that were judged before, and names.

    A shard at a time.
    """
    named: list[str] = json.loads(row["names"])
    findings = [FINDINGS.empty_table()]
    for shard in range(row["first"], row["end"]):
        missing = await _marked(storage, by.before, shard, row["before"])
        checked = await _marked(storage, by.first, shard, row["listed"])
        left = sorted(
            (missing | {name for name in named if name.startswith(f"{shard:02x}/")}) - checked
        )
        if left:
            findings.append(await check_missing(storage, left, by))
    return pa.concat_tables(findings)


async def _marked(
    storage: ObjectStorage, manifests: Mapping[int, Manifest], shard: int, marks: bytes
) -> set[str]:
    some = [bits for each, bits in unpack_shards(marks) if each == shard]
    return set(map(str, (await names_of(storage, manifests, shard, some)).to_pylist()))


def borders_of(counters: Iterable[Mapping[str, Any]]) -> dict[int, list[Border]]:
    """The borders in rows of RESULTS, by container."""
    found: dict[int, list[Border]] = {}
    for row in counters:
        if row["counter"] == BORDER:
            found.setdefault(row["container_id"], []).append(Border(*json.loads(row["evidence"])))
    return found


def _results(
    findings: pa.Table,
    counts: Mapping[str, int] | None = None,
    missing: Iterable[str] = (),
    *,
    container_id: int | None = None,
    borders: Iterable[Border] = (),
) -> pa.Table:
    rows = findings
    for name in ("counter", "count"):
        rows = rows.append_column(name, pa.nulls(findings.num_rows, RESULTS.field(name).type))
    more: list[dict[str, Any]] = [
        {"counter": name, "count": count, "container_id": container_id}
        for name, count in (counts or {}).items()
    ]
    more += [{"counter": "gone", "count": 1, "object": name} for name in missing]
    more += [
        {
            "counter": BORDER,
            "count": 1,
            "container_id": container_id,
            "evidence": json.dumps(border),
        }
        for border in borders
    ]
    return pa.concat_tables([rows.cast(RESULTS), pa.Table.from_pylist(more, schema=RESULTS)])
