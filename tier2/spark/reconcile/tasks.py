"""What the tasks of reconciliation do, each for a range of shards or of segments: Spark only hands
out rows and takes rows.

Two passes. The *survey* puts snapshot A beside the listing, shard by shard, and gives the few rows
where they differ. After snapshot B the *verdicts*: those suspects are checked, missing ones asked
for once more, the chunks of all segments followed, and objects inspected if that was asked for.
Rules of this file:

- a task holds one range at a time: the rows of its shards, never those of the store;
- whatever it does may be done again, also at the same time: nothing is written.

Coroutines over ObjectStorage; no pyspark.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.findings import Severity
from tier2.catalog.catalog_manifest import Manifest
from tier2.catalog.catalog_reading import read_table
from tier2.catalog.catalog_schema import GARBAGE, LIVE, OBJECTS
from tier2.object_names import parse_object_name
from tier2.object_storage import ObjectStorage
from tier2.spark.common.arrow_rows import is_text
from tier2.spark.reconcile.coverage import check_sharing
from tier2.spark.reconcile.findings import (
    FINDINGS,
    FindingKind,
    FindingRow,
    StoreFacts,
    Suspects,
    check_shard,
    find_suspects,
    findings_table,
)
from tier2.spark.reconcile.listing import SHARDS
from tier2.spark.reconcile.listing_table import LISTING
from tier2.spark.reconcile.marks import marks_of
from tier2.spark.reconcile.shard_rows import no_objects, shard_rows, stretches
from tier2.spark.reconcile.verify import OBJECT_COLUMNS, ObjectsCheck, verify_objects

HEADS_AT_ONCE: Final = 16
CHECKED_AT_ONCE: Final = 16_384
"""Suspects that are Python values at a time: some 2,000 bytes each."""
WAITING_SHOWN: Final = 64
"""Of what waits for its deletion so many of each task are rows; all are counted."""
COMPARED: Final = ("name", "size", "state")
"""What is needed of a snapshot's `objects` to compare it with a listing."""


class Lister(NamedTuple):
    """Where the listing of shards comes from."""

    listed: Callable[[range], Iterable[pa.Table]]
    """LISTING of neighbouring shards, and of nothing else; blocking."""
    pieces: Callable[[range], Sequence[range]]
    """A task's shards as they are asked for, one piece after another."""
    ahead: int
    """So many pieces are asked for before they are needed."""


class Surveyed(NamedTuple):
    """What the survey of some shards found, and how much it checked."""

    suspects: Suspects
    objects: int
    """In snapshot A."""
    listed: int
    absent: Mapping[int, bytes] = {}
    """Marks, over snapshot A, of what is live there and was not listed, by shard."""


# --- the survey -----------------------------------------------------------------------------------


async def scan(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    shards: range,
    lister: Lister,
    executor: Executor,
    *,
    unresponsive: Sequence[int] = (),
    mark: bool = False,
) -> Surveyed:
    """Snapshot A beside the listing of `shards`, which are listed at once as far as lister and
    executor go.

    With `mark` also the marks of what is absent: two small reads for each shard where something is.
    """
    loop = asyncio.get_running_loop()
    pieces = lister.pieces(shards)
    left = iter(pieces)
    listings: deque[asyncio.Future[pa.Table]] = deque()

    def ask(count: int) -> None:
        listings.extend(
            loop.run_in_executor(executor, _list, lister, piece) for piece in islice(left, count)
        )

    ask(lister.ahead)
    try:
        before = await shard_rows(storage, manifests, shards, COMPARED)
        found: list[Suspects] = []
        objects = listed = 0
        for piece in pieces:
            table = await listings[0]
            del listings[0]
            ask(1)
            rows = [await before.of(shard) for shard in piece]
            objects += sum(each.num_rows for each in rows)
            listed += table.num_rows
            found += [
                passed_over(suspects, unresponsive) for suspects in _suspects(rows, table, piece)
            ]
    finally:
        for waiting in listings:
            waiting.cancel()
        await asyncio.gather(*listings, return_exceptions=True)
    suspects = Suspects(
        pa.concat_tables([each.before for each in found] or [no_objects(COMPARED)]),
        pa.concat_tables([each.listed for each in found] or [LISTING.empty_table()]),
    )
    return Surveyed(
        suspects,
        objects,
        listed,
        await marks_of(storage, manifests, _absent_array(suspects)) if mark else {},
    )


def sample_waiting(suspects: Suspects) -> tuple[Suspects, dict[str, int]]:
    """Without most of what is listed and garbage in A; and how many were left out of each
    container, 8 hex digits.

    WAITING_SHOWN of them stay, as a sample.

    That they wait for their deletion is as it should be, whatever B says, and after a compaction
    they are as many as all objects.
    """
    garbage = is_text(suspects.before["state"], GARBAGE)
    waits = pc.and_(
        garbage, pc.is_in(suspects.before["name"], value_set=_array(suspects.listed["key"]))
    )
    names = _array(suspects.before["name"].filter(waits))[WAITING_SHOWN:]
    if not len(names):
        return suspects, {}
    containers = Counter(map(str, pc.utf8_slice_codeunits(names, 3, 11).to_pylist()))
    return Suspects(
        suspects.before.filter(pc.invert(pc.is_in(suspects.before["name"], value_set=names))),
        suspects.listed.filter(pc.invert(pc.is_in(suspects.listed["key"], value_set=names))),
    ), dict(containers)


def _suspects(before: Sequence[pa.Table], listed: pa.Table, shards: range) -> Iterator[Suspects]:
    """Shard by shard where the listing is sorted: the fewer differences there are at once, the
    quicker they are found.
    """
    if len(shards) == 1 or not _is_sorted(listed["key"]):
        yield find_suspects(pa.concat_tables(before), listed)
        return
    prefixes = [f"{SHARDS[shard]}/" for shard in shards]
    for rows, (start, end) in zip(before, stretches(listed["key"], prefixes), strict=True):
        yield find_suspects(rows, listed.slice(start, end - start))


def _is_sorted(column: pa.ChunkedArray[Any]) -> bool:
    names = _array(column)
    return len(names) < 2 or pc.all(pc.less(names[:-1], names[1:])).as_py() is True


def passed_over(suspects: Suspects, unresponsive: Sequence[int]) -> Suspects:
    """Without listed objects of containers nothing can be said of: their names, not their number,
    are left out.
    """
    if not unresponsive:
        return suspects
    foreign = pa.array([f"/{number:08x}/" for number in unresponsive])
    of_them = pc.is_in(pc.utf8_slice_codeunits(suspects.listed["key"], 2, 12), value_set=foreign)
    return Suspects(suspects.before, suspects.listed.filter(pc.invert(of_them)))


def _list(lister: Lister, shards: range) -> pa.Table:
    return pa.concat_tables([LISTING.empty_table(), *lister.listed(shards)])


async def read_shard(
    storage: ObjectStorage, manifests: Mapping[int, Manifest], shard: int
) -> pa.Table:
    """What is compared of the rows of one shard, in all containers, by name."""
    return await (await shard_rows(storage, manifests, [shard], COMPARED)).of(shard)


# --- verdicts -------------------------------------------------------------------------------------


class CheckInputs(NamedTuple):
    """All that verdicts over suspects need beside them."""

    before: Mapping[int, Manifest]
    """Snapshot A."""
    after: Mapping[int, Manifest]
    place: StoreFacts
    run_id: str
    confirm_all: bool
    """The listing is of another time: what it says is asked once more, of every object that is not
    as it should be.
    """
    first: Mapping[int, Manifest] = {}
    """Snapshot A, where `before` is a later one: of a third check."""


async def check_suspects(
    storage: ObjectStorage, suspects: Suspects, shards: Sequence[int], by: CheckInputs
) -> tuple[pa.Table, list[str]]:
    """FINDINGS over the suspects of `shards`, after snapshot B; the missing ones confirmed by a
    HEAD each.

    And what is not there though the listing, of another time, does not prove that it was missing
    before B: for a third check.
    """
    names = pa.concat_arrays([_array(suspects.before["name"]), _array(suspects.listed["key"])])
    after = suspects.before if is_same(by) else await _rows(storage, by.after, shards, names)
    missing = _array(suspects.before["name"].filter(_absent(suspects)))
    blocks = None
    if len(missing):
        # Blocks are most of the table, and few shards have something to report.
        blocks = await _rows_by_owner(storage, by.before, shards, missing, ("name", "blocks"))
    findings, absent = [FINDINGS.empty_table()], []
    for some in _slices(suspects):
        before = some.before if blocks is None else _with_blocks(some.before, blocks)
        checked = check_shard(before, some.listed, after, by.place, run_id=by.run_id)
        confirmed, away = await _confirmed(storage, checked, by)
        findings.append(confirmed)
        absent += away
    return pa.concat_tables(findings), absent


def _slices(suspects: Suspects) -> Iterator[Suspects]:
    """So many suspects at a time as may be Python values together; an object's rows stay
    together.
    """
    if suspects.before.num_rows + suspects.listed.num_rows <= CHECKED_AT_ONCE:
        yield suspects
        return
    before, listed = suspects.before.sort_by("name"), suspects.listed.sort_by("key")
    names = pc.unique(pa.concat_arrays([_array(before["name"]), _array(listed["key"])]))
    borders = [*names.take(pc.array_sort_indices(names))[::CHECKED_AT_ONCE].to_pylist(), None]
    for first, end in pairwise(borders):
        yield Suspects(_from(before, "name", first, end), _from(listed, "key", first, end))


def _from(rows: pa.Table, column: str, first: str | None, end: str | None) -> pa.Table:
    wanted = pc.greater_equal(rows[column].cast(pa.string()), pa.scalar(first, pa.string()))
    if end is not None:
        wanted = pc.and_(
            wanted, pc.less(rows[column].cast(pa.string()), pa.scalar(end, pa.string()))
        )
    return rows.filter(wanted)


def absent_names(suspects: Suspects) -> set[str]:
    """Live in A and not listed."""
    return set(map(str, _absent_array(suspects).to_pylist()))


def absent_shards(suspects: Suspects) -> set[int]:
    """The shards of those."""
    prefixes: list[Any] = pc.unique(
        pc.utf8_slice_codeunits(_absent_array(suspects), 0, 2)
    ).to_pylist()
    return {int(prefix, 16) for prefix in prefixes}


def _absent_array(suspects: Suspects) -> pa.Array[Any]:
    return _array(suspects.before["name"].filter(_absent(suspects)))


def _absent(suspects: Suspects) -> Any:
    listed = pc.is_in(suspects.before["name"], value_set=_array(suspects.listed["key"]))
    return pc.and_(pc.invert(listed), is_text(suspects.before["state"], LIVE))


def still_absent(suspects: Suspects, names: pa.Array[Any]) -> Suspects:
    """Of a later listing: without what is absent from it and was not from the first one, which had
    all but `names`.
    """
    was = pc.is_in(suspects.before["name"], value_set=names)
    return Suspects(
        suspects.before.filter(pc.or_(was, pc.invert(_absent(suspects)))), suspects.listed
    )


def _array(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    """One array of strings, of the type that others are compared with."""
    return pa.concat_arrays([pa.array([], pa.string()), *column.cast(pa.string()).chunks])


def is_same(by: CheckInputs) -> bool:
    """Whether B is A: no owner has done anything meanwhile, or no process has the store open."""
    return {number: each.name for number, each in by.before.items()} == {
        number: each.name for number, each in by.after.items()
    }


async def _rows(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    shards: Sequence[int],
    names: pa.Array[Any],
    columns: Sequence[str] = COMPARED,
) -> pa.Table:
    """The rows of these names in a snapshot, as far as they are in these shards: no others are
    read.
    """
    prefixes = set(pc.unique(pc.utf8_slice_codeunits(names, 0, 2)).to_pylist())
    some = [shard for shard in shards if SHARDS[shard] in prefixes]
    if not some:
        return no_objects(columns)
    rows = await shard_rows(storage, manifests, some, columns)
    wanted = [no_objects(columns)]
    for shard in some:
        table = await rows.of(shard)
        wanted.append(table.filter(pc.is_in(table["name"], value_set=names)))
    return pa.concat_tables(wanted)


async def _rows_by_owner(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    shards: Sequence[int],
    names: pa.Array[Any],
    columns: Sequence[str],
) -> pa.Table:
    """As `_rows`, and quicker: a name says in whose table it is, and only one that is not there is
    searched for in all.
    """
    tables = [
        await _rows(
            storage, {number: manifests[number]}, shards, pa.array(some, pa.string()), columns
        )
        for number, some in _by_container(names).items()
        if number in manifests
    ]
    found = pa.concat_tables([no_objects(columns), *tables])
    foreign = names.filter(pc.invert(pc.is_in(names, value_set=_array(found["name"]))))
    return pa.concat_tables([found, await _rows(storage, manifests, shards, foreign, columns)])


def _with_blocks(objects: pa.Table, held: pa.Table) -> pa.Table:
    """These rows with what lies in the objects that `held` has: the evidence of what a missing one
    costs.
    """
    places = pc.index_in(_array(objects["name"]), value_set=_array(held["name"]))
    blocks = held["blocks"].cast(OBJECTS.field("blocks").type)
    if not held.num_rows:
        return objects.append_column(
            "blocks", pa.array([[]] * objects.num_rows, OBJECTS.field("blocks").type)
        )
    return objects.append_column("blocks", blocks.take(places))


def _by_container(names: pa.Array[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for name in names.to_pylist():
        parts = parse_object_name(str(name))
        if parts is not None:
            found.setdefault(parts.container_id, []).append(name)
    return found


async def _confirmed(
    storage: ObjectStorage, findings: pa.Table, by: CheckInputs
) -> tuple[pa.Table, list[str]]:
    """Findings that depend on what a listing said, after each of their objects was asked for; and
    those to check again.
    """
    asked = {FindingKind.MISSING, FindingKind.WRONG_SIZE} | (
        {FindingKind.ORPHAN} if by.confirm_all else set()
    )
    to_ask = pc.is_in(findings["kind"], value_set=pa.array([str(kind) for kind in asked]))
    rows = findings.filter(to_ask).to_pylist()
    absent: list[str] = []
    if not rows:
        return findings, absent
    left = iter(range(len(rows)))

    async def work() -> None:
        for index in left:
            stored = await storage.head(rows[index]["object"])
            kind = rows[index]["kind"]
            if stored is None and (
                kind == FindingKind.WRONG_SIZE or (by.confirm_all and kind == FindingKind.MISSING)
            ):
                # Perhaps its owner has replaced and deleted it since B: no listing saw it lacking
                # before.
                absent.append(rows[index]["object"])
                rows[index] = {}
            else:
                rows[index] = _confirm(rows[index], None if stored is None else stored.size)

    await asyncio.gather(*(work() for _ in range(HEADS_AT_ONCE)))
    kept = [row for row in rows if row]
    return pa.concat_tables(
        [findings.filter(pc.invert(to_ask)), pa.Table.from_pylist(kept, schema=FINDINGS)]
    ), absent


def _confirm(row: dict[str, Any], size: int | None) -> dict[str, Any]:
    """What a finding is after its object was asked for: itself, another, or nothing (empty)."""
    if row["kind"] == FindingKind.ORPHAN:
        return row if size is not None else {}
    actual = None if size is None else f"{size} bytes"
    if actual is None:
        return {
            **row,
            "kind": str(FindingKind.MISSING),
            "actual": "not there",
            "evidence": f"{row['evidence']}; a HEAD says that it is not there",
        }
    if actual == row["expected"]:
        return {}
    return {
        **row,
        "kind": str(FindingKind.WRONG_SIZE),
        "actual": actual,
        "evidence": f"{row['evidence']}; a HEAD says {actual}",
    }


async def check_missing(storage: ObjectStorage, names: Sequence[str], by: CheckInputs) -> pa.Table:
    """FINDINGS over objects that were listed and were not there any more when they were inspected.

    `by.before` is the snapshot that had them, `by.after` one taken since.
    """
    by = by._replace(
        confirm_all=False
    )  # `by.after` was taken after they were found missing: it is the last word.
    shards = sorted({int(name[:2], 16) for name in names})
    before = await _rows_by_owner(
        storage, by.before, shards, pa.array(sorted(names), pa.string()), COMPARED
    )
    findings, _ = await check_suspects(storage, Suspects(before, LISTING.empty_table()), shards, by)
    return findings


async def check_objects(
    storage: ObjectStorage,
    manifests: Mapping[int, Manifest],
    shards: range,
    run_id: str,
    *,
    bodies: bool,
    at_once: int,
    executor: Executor | None = None,
) -> tuple[pa.Table, ObjectsCheck]:
    """FINDINGS of the live objects of these shards by their own word, and what was checked."""
    tables: list[pa.Table] = []
    findings: list[pa.Table] = []
    for number, manifest in sorted(manifests.items()):
        table = await read_table(
            storage, manifest, "objects", columns=list(OBJECT_COLUMNS), shard=shards
        )
        tables.append(table)
        findings.append(check_sharing(table, container_id=number, run_id=run_id))
    checked = await verify_objects(
        storage, tables, bodies=bodies, at_once=at_once, executor=executor
    )
    return pa.concat_tables([*findings, findings_table(checked.findings, run_id)]), checked


async def found_by_checks(
    storage: ObjectStorage,
    findings: pa.Table,
    shards: Sequence[int],
    by: CheckInputs,
    *,
    bodies: bool,
    at_once: int,
    executor: Executor | None = None,
) -> pa.Table:
    """Without a wrong size by the listing where a check of the object says it too, and what lies
    at its end.

    Inspects the objects of a wrong size once more than the run does: so no task needs to know
    what another found.
    """
    wrong = is_text(findings["kind"], FindingKind.WRONG_SIZE)
    names = _array(findings["object"].filter(wrong))
    if not len(names):
        return findings
    rows = await _rows_by_owner(storage, by.after, shards, names, OBJECT_COLUMNS)
    looked = await verify_objects(
        storage, [rows], bodies=bodies, at_once=at_once, executor=executor
    )
    told = {
        each.object
        for each in looked.findings
        if each.kind is FindingKind.WRONG_SIZE and each.segment_id is not None
    }
    again = pc.is_in(
        findings["object"], value_set=pa.array(sorted(name for name in told if name), pa.string())
    )
    return findings.filter(pc.invert(pc.and_(wrong, again)))


def unresponsive_findings(unresponsive: Mapping[int, str], run_id: str) -> pa.Table:
    """A row for each container that nothing can be said of."""
    return findings_table(
        (
            FindingRow(
                FindingKind.IN_FLIGHT,
                f"container {number}: {why}",
                number,
                severity=Severity.UNKNOWN,
            )
            for number, why in sorted(unresponsive.items())
        ),
        run_id,
    )
