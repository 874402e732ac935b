"""Verdicts over the folders that the engine keeps beside segments: what their names say, by the
grammar of each.

`checkpoints/`, `stores/`, `probe/`, `catalog/`, `mailbox/`, `metadata/` hold no byte of a segment.
What lies there is foreign unless the grammar of the folder makes its name (docs/reconciliation.md).
Rules of this file:

- a name of another store, by its tag, is that store's, and nothing here;
- what the engine itself deletes later is a leftover, and information: the user has nothing to do;
- what only the bytes can know is handed on to be read: markers, and unanswered messages.

Pure: rows of a listing in, findings out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple

import pyarrow as pa

from segmentstore.contracts.findings import Severity
from tier2.object_names import (
    CATALOG_PREFIX,
    CATALOG_TABLES,
    CHECKPOINT_PREFIX,
    MAILBOX_PREFIX,
    MARKER_PREFIX,
    METADATA_PREFIX,
    PROBE_PREFIX,
    MessageKey,
    message_name,
    parse_catalog_name,
    parse_checkpoint_name,
    parse_mailbox_name,
    parse_manifest_name,
    parse_marker_name,
    parse_metadata_name,
    parse_probe_name,
)
from tier2.spark.reconcile.findings import FindingKind, FindingRow, StoreFacts
from tier2.unique_ids import STORE_TAG_BYTES

ANSWERED_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""Messages and their answers stay so long (storagewriter/request_processor.py)."""


class Listed(NamedTuple):
    """A row of a listing."""

    name: str
    size: int
    modified_ms: int | None


class CheckedNames(NamedTuple):
    """What names alone show, and what has to be read."""

    findings: list[FindingRow]
    markers: list[Listed]
    messages: list[MessageKey]
    """That have no answer."""
    torn: list[str]
    """Manifests of snapshots that lack a table, unless they were deleted meanwhile."""


def check_names(prefix: str, listed: Iterable[pa.Table], place: StoreFacts) -> CheckedNames:
    """Check all that is listed below `prefix`, one of `object_names.ENGINE_PREFIXES`. O(rows)."""
    result = CheckedNames([], [], [], [])
    rows = sorted(_rows(listed))
    _CHECKS[prefix](rows, place, result)
    return result


def _rows(listed: Iterable[pa.Table]) -> Iterator[Listed]:
    for table in listed:
        columns = (table[name].to_pylist() for name in ("key", "size", "modified_ms"))
        yield from (Listed(*row) for row in zip(*columns, strict=True))


def _copies(rows: list[Listed], place: StoreFacts, result: CheckedNames) -> None:
    for row in rows:
        named = parse_checkpoint_name(row.name)
        if named is None:
            result.findings.append(_foreign(row))
        else:
            result.findings.extend(_of_container(row, named.container_id, named.store_mark, place))


def _markers(rows: list[Listed], _place: StoreFacts, result: CheckedNames) -> None:
    for row in rows:
        if parse_marker_name(row.name) is not None:
            result.markers.append(row)
        else:
            result.findings.append(_foreign(row))


def _probes(rows: list[Listed], place: StoreFacts, result: CheckedNames) -> None:
    for row in rows:
        if parse_probe_name(row.name) is None:
            result.findings.append(_foreign(row))
        elif _is_old(row, place):
            result.findings.append(
                _leftover(row, place, "a probe of a store's opening, which a later one sweeps away")
            )


def _snapshots(rows: list[Listed], place: StoreFacts, result: CheckedNames) -> None:
    for named, group in groupby(rows, key=lambda row: parse_catalog_name(row.name)):
        files = list(group)
        if named is None:
            result.findings.extend(map(_foreign, files))
            continue
        found = [
            each
            for row in files
            for each in _of_container(row, named.container_id, named.store_mark, place)
        ]
        if found or named.store_mark != place.tag:
            result.findings.extend(found)
            continue
        manifest = [row.name for row in files if parse_manifest_name(row.name) is not None]
        if manifest and len(files) <= len(CATALOG_TABLES):
            result.torn.append(manifest[0])
        elif not manifest and all(_is_old(row, place) for row in files):
            evidence = "of an export that did not end: the next one deletes it"
            result.findings.extend(
                [_leftover(row, place, evidence, named.container_id) for row in files]
            )


def _messages(rows: list[Listed], place: StoreFacts, result: CheckedNames) -> None:
    there: dict[MessageKey, dict[bool, Listed]] = {}
    for row in rows:
        parsed = parse_mailbox_name(row.name)
        if parsed is None:
            result.findings.append(_foreign(row))
        elif parsed.key.container_id not in place.epochs:
            result.findings.append(_of_no_container(row, parsed.key.container_id))
        else:
            there.setdefault(parsed.key, {})[parsed.is_answer] = row
    for key, each in there.items():
        answer = each.get(True)
        if answer is None:
            result.messages.append(key)
        elif _is_old(answer, place, ANSWERED_KEPT_MS):
            evidence = "answered long ago: its owner deletes it at its next polls"
            result.findings.append(_leftover(answer, place, evidence, key.container_id))


def _metadata_snapshots(rows: list[Listed], place: StoreFacts, result: CheckedNames) -> None:
    for row in rows:
        named = parse_metadata_name(row.name)
        if named is None:
            result.findings.append(_foreign(row))
        else:
            mark = named.unique_id[:STORE_TAG_BYTES]
            result.findings.extend(_of_container(row, named.container_id, mark, place))


_CHECKS: Final[Mapping[str, Callable[[list[Listed], StoreFacts, CheckedNames], None]]] = {
    CHECKPOINT_PREFIX: _copies,
    MARKER_PREFIX: _markers,
    PROBE_PREFIX: _probes,
    CATALOG_PREFIX: _snapshots,
    MAILBOX_PREFIX: _messages,
    METADATA_PREFIX: _metadata_snapshots,
}


def malformed(key: MessageKey, why: object) -> FindingRow:
    """A message that its owner will refuse for its form."""
    evidence = f"no message: {why}; its owner refuses it, and a person may delete it"
    return FindingRow(
        FindingKind.UNREADABLE,
        evidence,
        key.container_id,
        message_name(key),
        severity=Severity.NOTE,
    )


def bad_marker(name: str, why: str) -> FindingRow:
    """A marker with other content than a store's: its name is what counts, so nothing is lost."""
    evidence = (
        f"{why}; delete it, if no such store keeps its objects here (segmentstore gc "
        "--forget-store)"
    )
    return FindingRow(FindingKind.UNREADABLE, evidence, None, name, severity=Severity.NOTE)


def missing_marker(name: str) -> FindingRow:
    """The store's own marker is not there."""
    evidence = (
        "the store's marker: another store that is created here does not see this one; "
        "opening the store puts it back"
    )
    return FindingRow(
        FindingKind.MISSING, evidence, None, name, "a marker", "not there", severity=Severity.NOTE
    )


def bad_manifest(name: str, why: str) -> FindingRow:
    """A snapshot that cannot be read."""
    parts = parse_manifest_name(name)
    evidence = f"a snapshot of the catalog that cannot be read, an older one was taken: {why}"
    return FindingRow(
        FindingKind.UNREADABLE,
        evidence,
        None if parts is None else parts.container_id,
        name,
        severity=Severity.NOTE,
    )


def torn_snapshot(name: str) -> FindingRow:
    """A manifest whose tables are not all there."""
    evidence = (
        "a snapshot of the catalog lacks a table; jobs cannot read it, an export makes another"
    )
    return FindingRow(FindingKind.MISSING, evidence, None, name, severity=Severity.NOTE)


def _of_container(
    row: Listed, container_id: int, mark: bytes, place: StoreFacts
) -> list[FindingRow]:
    """What is wrong with an object of a container of a store."""
    if mark != place.tag:
        if mark in place.others:
            return []
        evidence = (
            "of a store that has no marker here: only a restore needs it, and a person may "
            "delete it"
        )
        return [_leftover(row, place, evidence, container_id)]
    return [] if container_id in place.epochs else [_of_no_container(row, container_id)]


def _of_no_container(row: Listed, container_id: int) -> FindingRow:
    evidence = f"the store has no container {container_id}"
    return FindingRow(
        FindingKind.FOREIGN, evidence, container_id, row.name, actual=f"{row.size} bytes"
    )


def _foreign(row: Listed) -> FindingRow:
    evidence = "not a name that the engine makes in this folder"
    return FindingRow(
        FindingKind.FOREIGN,
        evidence,
        None,
        row.name,
        actual=f"{row.size} bytes",
        last_modified_ms=row.modified_ms,
    )


def _leftover(
    row: Listed, place: StoreFacts, evidence: str, container_id: int | None = None
) -> FindingRow:
    age = None if row.modified_ms is None else (place.listed_at_ms - row.modified_ms) // 1000
    return FindingRow(
        FindingKind.LEFTOVER,
        evidence,
        container_id,
        row.name,
        actual=f"{row.size} bytes",
        last_modified_ms=row.modified_ms,
        age_seconds=age,
    )


def _is_old(row: Listed, place: StoreFacts, kept_ms: int = 0) -> bool:
    return (
        row.modified_ms is not None
        and place.listed_at_ms - row.modified_ms > kept_ms + place.older_than_ms
    )
