"""Verdicts over objects: what the catalog says and what the bucket lists, compared as Arrow tables.

A shard is checked three times: catalog snapshot A, then the listing, then snapshot B
(docs/reconciliation.md). Rules of this file:

- `find_suspects` costs the same for every object and makes no Python value of any; rows are checked
  one by one only where the two sides differ;
- judging suspects gives what judging the whole shard gives, so a task needs A and the listing, and
  B only sees suspects;
- beside a live owner nothing is called missing or an orphan that could be under way: in doubt it is
  in flight;
- what cannot be known for want of a snapshot has the severity `unknown`, and never becomes a
  finding.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentstore.contracts.findings import Finding, Severity
from tier2.archive_places import parse_archive_place
from tier2.object_names import ObjectName, engine_folder, parse_object_name
from tier2.spark.reconcile.name_matching import match_names

_TEXTS: Final = frozenset(
    ("kind", "severity", "object", "expected", "actual", "evidence", "run_id")
)
_COLUMNS: Final = (
    "kind",
    "severity",
    "container_id",
    "segment_id",
    "start_offset",
    "length",
    "object",
    "expected",
    "actual",
    "last_modified_ms",
    "age_seconds",
    "evidence",
    "run_id",
)

FINDINGS: Final = pa.schema(
    {name: pa.string() if name in _TEXTS else pa.int64() for name in _COLUMNS}
)
"""One row per thing found; docs/reconciliation.md says what stands in each column."""

LIVE: Final = "live"
"""State of an object that chunks refer to; the other is garbage, which waits for its deletion."""

BLOCKS_SHOWN: Final = 3
"""Of the blocks of a missing object so many are named in the evidence."""


CLOCKS_MS: Final = 300_000
"""So far, in milliseconds, the clocks of a storage and of an owner may be apart."""


class FindingKind(enum.StrEnum):
    """The classes of findings."""

    MISSING = "missing"
    WRONG_SIZE = "wrong_size"
    WRONG_IDENTITY = "wrong_identity"
    OVERLAP = "overlap"
    GAP = "gap"
    BAD_CHECKSUM = "bad_checksum"
    UNREADABLE = "unreadable"
    ORPHAN = "orphan"
    IN_FLIGHT = "in_flight"
    WAITING_FOR_DELETION = "waiting_for_deletion"
    FOREIGN = "foreign"
    LEFTOVER = "leftover"


SEVERITIES: Final[Mapping[FindingKind, Severity]] = {
    **dict.fromkeys(FindingKind, Severity.HARMFUL),
    FindingKind.ORPHAN: Severity.NOTE,
    FindingKind.FOREIGN: Severity.NOTE,
    FindingKind.IN_FLIGHT: Severity.INFORMATION,
    FindingKind.WAITING_FOR_DELETION: Severity.INFORMATION,
    FindingKind.LEFTOVER: Severity.INFORMATION,
}
"""Of each kind; an object in flight is `unknown` instead where its container has no snapshot."""


class FindingRow(NamedTuple):
    """One row of FINDINGS without its run: a `Finding` whose place is in columns."""

    kind: FindingKind
    evidence: str
    container_id: int | None = None
    object: str | None = None
    expected: str | None = None
    actual: str | None = None
    segment_id: int | None = None
    start_offset: int | None = None
    length: int | None = None
    last_modified_ms: int | None = None
    age_seconds: int | None = None
    severity: Severity | None = None
    """None: that of the kind."""


class Suspects(NamedTuple):
    """Where catalog and listing differ: all that the verdict over a shard needs of them."""

    before: pa.Table
    """Rows of snapshot A: live and not listed, listed with another size, listed and garbage."""
    listed: pa.Table
    """Rows of the listing: named in those, or not in A."""


class StoreFacts(NamedTuple):
    """What verdicts need to know about the whole store, the same for every shard."""

    epochs: Mapping[int, int | None]
    """Every container of the store, with the epoch of its snapshot B; None where A or B lacks."""
    listed_at_ms: int
    """When the listing began, milliseconds since 1970 UTC: ages are counted from here."""
    older_than_ms: int
    """An orphan is at least so old: a duration in milliseconds."""
    open_names: Collection[str] = frozenset()
    """Objects named in proposals that no owner has answered yet. Something with a quick `in`."""
    shared_with: str = ""
    """A sentence that names the other stores whose objects lie here (`StoreMarkers.shared_with`);
    empty: none.
    """
    tag: bytes = b""
    """Of the store: what does not carry it may be another's. Empty: unknown."""
    taken_ms: Mapping[int, int] = {}
    """When snapshot B of some containers was taken, milliseconds since 1970 UTC: those whose owners
    were not asked for it, and might have had them open.
    """
    outdated: Mapping[int, str] = {}
    """Containers that have moved on since snapshot B, and why: what is missing or orphaned cannot
    be known.
    """
    others: Mapping[bytes, str] = {}
    """Tags of the other stores that have their markers here, and their ids."""
    store_id: str = ""
    """A UUID; empty: unknown, or the store has no object yet, and perhaps no marker."""
    asked: bool = True
    """Snapshot B is of owners that were asked for it, not the newest there was."""


def finding_of(row: Mapping[str, Any]) -> Finding:
    """A row of FINDINGS as every check has it: the place in words, empty where it has none."""
    place = row["object"] or (
        f"segment {row['segment_id']}" if row["segment_id"] is not None else ""
    )
    if row["kind"] in {FindingKind.GAP, FindingKind.OVERLAP}:
        place = (
            f"container {row['container_id']} segment {row['segment_id']} at "
            f"{row['start_offset']}, {row['length']} bytes"
        )
    return Finding(Severity(row["severity"]), row["kind"], place, row["evidence"])


def findings_table(findings: Iterable[FindingRow], run_id: str = "") -> pa.Table:
    """The findings as rows of FINDINGS, in their order."""
    rows = list(findings)
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows]
        for name in FINDINGS.names
        if name not in {"severity", "run_id"}
    }
    columns["severity"] = [row.severity or SEVERITIES[row.kind] for row in rows]
    columns["run_id"] = [run_id] * len(rows)
    return pa.table(
        {field.name: pa.array(columns[field.name], field.type) for field in FINDINGS},
        schema=FINDINGS,
    )


def check_shard(
    before: pa.Table, listed: pa.Table, after: pa.Table, place: StoreFacts, *, run_id: str = ""
) -> pa.Table:
    """FINDINGS over one shard, or any other set of objects: of `listing_table.LISTING` between two
    snapshots' `objects`.

    `before` and `after` have the columns name, size and state, and blocks if the evidence is to
    name them. Sorted by object. What is called missing here still has to be confirmed by a HEAD.
    O(rows), without a Python value for rows that are as they should be.
    """
    suspects = find_suspects(before, listed)
    return findings_table(_checks(suspects, after, place), run_id)


def find_suspects(before: pa.Table, listed: pa.Table) -> Suspects:
    """Where snapshot A and the listing differ.

    Sizes are compared too. In the tables' own order; O(rows).

    In any order, and quicker by ten times where both are by name and differ little.
    """
    same = match_names(_strings(before, "name"), _strings(listed, "key"))
    sizes, listed_sizes, live = _numbers(before, "size"), _numbers(listed, "size"), _live(before)
    differs = (sizes[same.places] != listed_sizes[same.known]) | ~live[same.places]
    bad_before = live & ~same.listed
    bad_before[same.places[differs]] = True
    bad_listed = ~same.known
    bad_listed[same.known] = differs
    return Suspects(_rows(before, bad_before), _rows(listed, bad_listed))


class _Known(NamedTuple):
    """An object as a snapshot has it."""

    live: bool
    size: int


def _checks(suspects: Suspects, after: pa.Table, place: StoreFacts) -> Iterator[FindingRow]:
    earlier = _known(suspects.before)
    later = _known(_named(after, suspects))
    findings = [
        *_check_absent(suspects, earlier, later, place),
        *_check_listed(suspects, earlier, later, place),
    ]
    yield from sorted(findings, key=lambda finding: finding.object or "")


def _check_absent(
    suspects: Suspects,
    earlier: Mapping[str, _Known],
    later: Mapping[str, _Known],
    place: StoreFacts,
) -> Iterator[FindingRow]:
    """Live in A and not listed: missing if B still needs it."""
    listed = set(_strings(suspects.listed, "key").to_pylist())
    blocks = _blocks(suspects.before)
    for name, known in earlier.items():
        if not known.live or name in listed:
            continue
        parts = parse_object_name(name)
        now = later.get(name)
        if parts is not None and place.epochs.get(parts.container_id) is None:
            yield _undetermined(parts, name)
        elif (
            parts is not None
            and parts.container_id in place.outdated
            and now is not None
            and now.live
        ):
            evidence = (
                f"not listed, and perhaps deleted since: {place.outdated[parts.container_id]}"
            )
            yield _unconfirmed(parts, name, evidence, f"{known.size} bytes", "not listed")
        elif now is not None and now.live:
            yield _missing(parts, name, known.size, blocks.get(name, ()))


def _check_listed(
    suspects: Suspects,
    earlier: Mapping[str, _Known],
    later: Mapping[str, _Known],
    place: StoreFacts,
) -> Iterator[FindingRow]:
    """Listed, and not as A has it."""
    columns = (suspects.listed[name].to_pylist() for name in ("key", "size", "modified_ms"))
    for name, size, modified_ms in zip(*columns, strict=True):
        finding = _check_one(name, size, modified_ms, earlier.get(name), later.get(name), place)
        if finding is not None:
            age = None if modified_ms is None else (place.listed_at_ms - modified_ms) // 1000
            yield finding._replace(last_modified_ms=modified_ms, age_seconds=age)


def _check_one(
    name: str,
    size: int,
    modified_ms: int | None,
    was: _Known | None,
    now: _Known | None,
    place: StoreFacts,
) -> FindingRow | None:
    parts = parse_object_name(name)
    container_id = None if parts is None else parts.container_id
    if now is not None and now.live:
        if size == now.size:
            return None  # New since A, and as it should be.
        return FindingRow(
            FindingKind.WRONG_SIZE,
            "size in the listing",
            container_id,
            name,
            f"{now.size} bytes",
            f"{size} bytes",
        )
    if (was is not None and not was.live) or now is not None:
        evidence = "garbage in a snapshot: its owner will delete it"
        return FindingRow(
            FindingKind.WAITING_FOR_DELETION, evidence, container_id, name, actual=f"{size} bytes"
        )
    if was is not None:
        if container_id is not None and place.epochs.get(container_id) is None:
            return _undetermined(parts, name, size)
        return FindingRow(
            FindingKind.IN_FLIGHT,
            "live in snapshot A, missing from snapshot B",
            container_id,
            name,
            actual=f"{size} bytes",
        )
    if parts is None:
        if engine_folder(name) is not None or parse_archive_place(name) is not None:
            return None  # `folders` checks the first, `segmentstore archive verify` the second.
        return FindingRow(
            FindingKind.FOREIGN, "not a name of this engine", None, name, actual=f"{size} bytes"
        )
    return _check_unknown(parts, name, size, modified_ms, place)


def _check_unknown(
    parts: ObjectName, name: str, size: int, modified_ms: int | None, place: StoreFacts
) -> FindingRow:
    """One of our names, in neither snapshot."""
    if parts.container_id not in place.epochs:
        evidence = f"the store has no container {parts.container_id}"
        return FindingRow(
            FindingKind.FOREIGN, evidence, parts.container_id, name, actual=f"{size} bytes"
        )
    epoch = place.epochs[parts.container_id]
    if epoch is None:
        return _undetermined(parts, name, size)
    reason = _whose_else(parts, place)
    if reason is None and parts.container_id in place.outdated:
        evidence = (
            f"of epoch {parts.epoch}, perhaps put since the snapshot: "
            f"{place.outdated[parts.container_id]}"
        )
        return _unconfirmed(parts, name, evidence, "no object", f"{size} bytes")
    stray = "" if reason is not None else _stray(parts, epoch)
    reason = reason or _why_not_orphan(parts, name, modified_ms, place)
    kind = FindingKind.ORPHAN if reason is None else FindingKind.IN_FLIGHT
    evidence = f"{reason or 'in neither snapshot'}{stray}"
    return FindingRow(kind, evidence, parts.container_id, name, "no object", f"{size} bytes")


def _whose_else(parts: ObjectName, place: StoreFacts) -> str | None:
    """Why an object is perhaps not this store's."""
    other = place.others.get(parts.unique_id[: len(place.tag)])
    if other is not None:
        return f"in neither snapshot, and of another store, by the tag in its name: {other}"
    if place.shared_with:
        return f"in neither snapshot, and perhaps of another store: {place.shared_with}"
    if not parts.unique_id.startswith(place.tag):
        return (
            "in neither snapshot, and of unknown owner: another store's, or an orphan that "
            "an older version made"
        )
    return None


def _stray(parts: ObjectName, epoch: int) -> str:
    """More of an object whose name is of an epoch that its store has not come to: no owner put it
    under this name.
    """
    if parts.epoch <= epoch:
        return ""
    return (
        f" (a stray: its name is of epoch {parts.epoch}, and the snapshot, taken since, of "
        f"epoch {epoch})"
    )


def _why_not_orphan(
    parts: ObjectName, name: str, modified_ms: int | None, place: StoreFacts
) -> str | None:
    if name in place.open_names:
        return "named in a proposal that waits for its answer"
    if modified_ms is None:
        return "in neither snapshot, of unknown age"
    taken_ms = place.taken_ms.get(parts.container_id)
    if taken_ms is not None and modified_ms > taken_ms - CLOCKS_MS:
        return "perhaps newer than its container's snapshot"
    if place.listed_at_ms - modified_ms < place.older_than_ms:
        return f"in neither snapshot, younger than {place.older_than_ms // 1000} seconds"
    return None


def _undetermined(parts: ObjectName | None, name: str, size: int | None = None) -> FindingRow:
    container_id = None if parts is None else parts.container_id
    evidence = f"container {container_id} has no snapshot: the state of its objects is unknown"
    actual = "not listed" if size is None else f"{size} bytes"
    return FindingRow(
        FindingKind.IN_FLIGHT,
        evidence,
        container_id,
        name,
        actual=actual,
        severity=Severity.UNKNOWN,
    )


def _unconfirmed(
    parts: ObjectName, name: str, evidence: str, expected: str, actual: str
) -> FindingRow:
    """What only a final snapshot could show."""
    return FindingRow(
        FindingKind.IN_FLIGHT,
        evidence,
        parts.container_id,
        name,
        expected,
        actual,
        severity=Severity.UNKNOWN,
    )


def _missing(
    parts: ObjectName | None, name: str, size: int, blocks: Collection[Mapping[str, int]]
) -> FindingRow:
    container_id = None if parts is None else parts.container_id
    shown = [
        f"segment {block['segment_id']} from {block['start_offset']} to "
        f"{block['start_offset'] + block['length']}"
        for block in list(blocks)[:BLOCKS_SHOWN]
    ]
    more = f" and {len(blocks) - len(shown)} more" if len(blocks) > len(shown) else ""
    evidence = f"live in both snapshots{': holds ' if shown else ''}{', '.join(shown)}{more}"
    finding = FindingRow(
        FindingKind.MISSING, evidence, container_id, name, f"{size} bytes", "not listed"
    )
    if len(blocks) != 1:
        return finding
    (only,) = blocks
    return finding._replace(
        segment_id=only["segment_id"], start_offset=only["start_offset"], length=only["length"]
    )


def _known(objects: pa.Table) -> dict[str, _Known]:
    columns = (objects[name].to_pylist() for name in ("name", "state", "size"))
    return {name: _Known(state == LIVE, size) for name, state, size in zip(*columns, strict=True)}


def _named(objects: pa.Table, suspects: Suspects) -> pa.Table:
    """The rows that are of the suspects."""
    wanted = pa.concat_arrays([_strings(suspects.before, "name"), _strings(suspects.listed, "key")])
    if not len(wanted):
        return objects.slice(0, 0)
    return objects.filter(pc.is_in(_strings(objects, "name"), value_set=wanted))


def _blocks(objects: pa.Table) -> Mapping[str, Collection[Mapping[str, int]]]:
    if "blocks" not in objects.column_names:
        return {}
    names: list[Any] = objects["name"].to_pylist()
    return {
        name: blocks or ()
        for name, blocks in zip(names, objects["blocks"].to_pylist(), strict=True)
    }


def _strings(table: pa.Table, name: str) -> pa.Array[Any]:
    """One array, of the type that others are compared with."""
    chunks = table[name].cast(pa.string()).chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays([pa.array([], pa.string()), *chunks])


def _numbers(table: pa.Table, name: str) -> NDArray[np.int64]:
    return table[name].to_numpy()


def _live(objects: pa.Table) -> NDArray[np.bool_]:
    live: NDArray[np.bool_] = pc.equal(objects["state"], pa.scalar(LIVE)).to_numpy()
    return live


def _rows(table: pa.Table, wanted: NDArray[np.bool_]) -> pa.Table:
    # No slice, which would keep the whole table in memory.
    return table.filter(pa.array(wanted)) if wanted.any() else table.schema.empty_table()
