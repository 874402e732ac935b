"""What tasks of reconciliation do with the folders that the engine keeps beside segments: list
them, and read what has to be.

Rules of this file:

- what looks wrong and may have changed while it was listed (a copy, a snapshot) is checked once
  more before it becomes a finding;
- of the copies of a container's metadata the newest is read to its last byte: `restore` lives from
  it. The others are read too when bodies are checked, else by their headers;
- at most MESSAGES_MAX messages are read, and it is said how many were not.

Coroutines over ObjectStorage; no pyspark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Final

import pyarrow as pa

from segmentstore.contracts.findings import Severity
from tier2.block_reader import FETCHES_MAX
from tier2.checkpoint_object import (
    HEADER_BYTES_MAX,
    CheckpointFormatError,
    parse_checkpoint_header,
    parse_checkpoint_object,
)
from tier2.mailbox.mailbox import read_message
from tier2.mailbox.messages import MessageFormatError
from tier2.metadata_snapshots import MetadataSnapshotError, read_snapshot_manifest
from tier2.object_names import (
    ENGINE_PREFIXES,
    MARKER_PREFIX,
    CheckpointName,
    MessageKey,
    MetadataManifestName,
    checkpoint_prefix,
    marker_name,
    metadata_manifest_name,
    metadata_prefix,
    parse_checkpoint_name,
    parse_metadata_name,
)
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError, ObjectStorage, StoredObject
from tier2.spark.reconcile.findings import FindingKind, FindingRow, StoreFacts, findings_table
from tier2.spark.reconcile.folders import (
    CheckedNames,
    Listed,
    bad_marker,
    check_names,
    malformed,
    missing_marker,
    torn_snapshot,
)
from tier2.spark.reconcile.listing import list_folder
from tier2.store_markers import marker_text
from tier2.unique_ids import store_tag

READS_AT_ONCE: Final = 16
MESSAGES_MAX: Final = 10_000
AGAIN_S: Final = 1.0
"""Before a container without a copy of now is checked once more: an owner that has just begun
puts one at once.
"""
PIECE_BYTES: Final = 16 * 1024 * 1024
COPIES_CONTAINERS: Final = 64
"""Containers whose copies are one row of work."""

_Copy = tuple[CheckpointName, StoredObject]


async def check_folders(
    storage: ObjectStorage, url: str, place: StoreFacts, run_id: str, executor: Executor
) -> pa.Table:
    """FINDINGS over names in the engine's folders, and over markers and unanswered messages.

    A listing of each folder, and a GET for each marker and message.
    """
    loop = asyncio.get_running_loop()
    findings: list[FindingRow] = []
    for prefix in ENGINE_PREFIXES:
        listed = await loop.run_in_executor(executor, _listed, url, prefix)
        checked = check_names(prefix, listed, place)
        findings += checked.findings
        findings += await _read(storage, prefix, checked, place)
    return findings_table(findings, run_id)


def _listed(url: str, prefix: str) -> list[pa.Table]:
    return list(list_folder(url, prefix))


async def _read(
    storage: ObjectStorage, prefix: str, checked: CheckedNames, place: StoreFacts
) -> list[FindingRow]:
    findings = [found for row in checked.markers for found in await _check_marker(storage, row)]
    if prefix == MARKER_PREFIX and place.store_id:
        own = marker_name(place.store_id)
        if own not in {row.name for row in checked.markers} and await storage.head(own) is None:
            findings.append(missing_marker(own))
    # The manifest of a snapshot is the first of it to be deleted.
    findings += [
        torn_snapshot(name) for name in checked.torn if await storage.head(name) is not None
    ]
    findings += await _check_messages(storage, checked.messages[:MESSAGES_MAX])
    left = len(checked.messages) - MESSAGES_MAX
    if left > 0:
        evidence = f"{left} more messages without an answer were not read"
        findings.append(FindingRow(FindingKind.LEFTOVER, evidence, None, prefix))
    return findings


async def _check_marker(storage: ObjectStorage, row: Listed) -> list[FindingRow]:
    wanted = marker_text(row.name)
    if row.size != len(wanted):
        return [bad_marker(row.name, f"a marker of {row.size} bytes, where it has {len(wanted)}")]
    for _ in range(FETCHES_MAX):
        try:
            data = await storage.get_range(row.name, 0, row.size)
        except (ObjectNotFoundError, InvalidRangeError):
            return []
        if data == wanted:
            return []
    return [bad_marker(row.name, "a marker that says something else than its name")]


async def _check_messages(storage: ObjectStorage, keys: Sequence[MessageKey]) -> list[FindingRow]:
    findings: list[FindingRow] = []
    left = iter(keys)

    async def work() -> None:
        for key in left:
            try:
                await read_message(storage, key)
            except MessageFormatError as error:
                findings.append(malformed(key, error))

    await asyncio.gather(*(work() for _ in range(READS_AT_ONCE)))
    return findings


# --- copies of the metadata -----------------------------------------------------------------------


def copies_work(containers: int) -> Iterator[dict[str, object]]:
    """Rows `copies`: containers [first, end)."""
    for first in range(0, containers, COPIES_CONTAINERS):
        yield {"item": "copies", "first": first, "end": min(first + COPIES_CONTAINERS, containers)}


async def check_copies(
    storage: ObjectStorage, containers: range, place: StoreFacts, run_id: str, *, bodies: bool
) -> pa.Table:
    """FINDINGS over the copies of these containers' metadata.

    A listing for each, the newest copy, headers of the others.
    """
    findings: list[FindingRow] = []
    for number in containers:
        epoch = place.epochs.get(number)
        if epoch is None:
            continue  # Reported as a whole: perhaps it never began.
        found = await _check_container(storage, number, epoch, place, bodies=bodies)
        if found:
            await asyncio.sleep(AGAIN_S)
            found = await _check_container(storage, number, epoch, place, bodies=bodies)
        findings += found
    return findings_table(findings, run_id)


async def _check_container(
    storage: ObjectStorage, number: int, epoch: int, place: StoreFacts, *, bodies: bool
) -> list[FindingRow]:
    findings: list[FindingRow] = []
    newest: CheckpointName | None = None
    for named, stored in reversed(await _copies_of(storage, number, place.tag)):
        try:
            await _check_copy(storage, stored, place, whole=bodies or newest is None)
        except ObjectNotFoundError:
            continue  # The owner keeps three, and has put another.
        except (CheckpointFormatError, InvalidRangeError) as error:
            findings.append(
                FindingRow(
                    FindingKind.UNREADABLE,
                    f"a copy of the metadata, which a restore needs: {error}",
                    number,
                    stored.name,
                    actual=f"{stored.size} bytes",
                    last_modified_ms=stored.modified_ms,
                )
            )
        else:
            newest = newest or named
    if newest is not None and newest.epoch >= epoch:
        return findings + _check_newest(number, epoch, newest, place)
    snapshot = await _newest_snapshot(storage, number, place.tag)
    if snapshot is None or (newest is not None and snapshot[1:3] < newest[1:3]):
        return findings + _check_newest(number, epoch, newest, place)
    # Its log names it, or there were a copy behind it: the owner need not have put another yet.
    return findings + (
        _opened_later(number, snapshot.epoch, place) if snapshot.epoch > epoch else []
    )


def _check_newest(
    number: int, epoch: int, newest: CheckpointName | None, place: StoreFacts
) -> list[FindingRow]:
    where = checkpoint_prefix(number)
    if newest is None:
        evidence = (
            "no whole copy of the metadata, which a restore needs if the log is lost: "
            "the owner puts one when it opens the"
            " store, or at a checkpoint (segmentstore checkpoint)"
        )
        return [
            FindingRow(
                FindingKind.MISSING, evidence, number, where, f"a copy of epoch {epoch}", "none"
            )
        ]
    if newest.epoch < epoch:
        evidence = (
            "the newest whole copy of the metadata is of an earlier owner: a restore would "
            "know less than it could"
        )
        actual = f"of epoch {newest.epoch}"
        return [
            FindingRow(
                FindingKind.MISSING,
                evidence,
                number,
                where,
                f"a copy of epoch {epoch}",
                actual,
                severity=Severity.NOTE,
            )
        ]
    return _opened_later(number, newest.epoch, place) if newest.epoch > epoch else []


def _opened_later(number: int, copied_epoch: int, place: StoreFacts) -> list[FindingRow]:
    if place.asked:
        return []
    evidence = (
        f"a copy of the metadata of epoch {copied_epoch} shows that the store was "
        "opened after its snapshot: what is"
        " missing or orphaned in this run may be as it should be. Export the "
        "catalog, or leave out --stopped"
    )
    where = checkpoint_prefix(number)
    return [FindingRow(FindingKind.IN_FLIGHT, evidence, number, where, severity=Severity.UNKNOWN)]


async def _newest_snapshot(
    storage: ObjectStorage, number: int, tag: bytes
) -> MetadataManifestName | None:
    """The newest of the store's own metadata snapshots that has all its files.

    One listing, and two requests a manifest from the newest on.
    """
    manifests: list[MetadataManifestName] = []
    sizes: dict[str, int] = {}
    async for page in storage.list(metadata_prefix(number)):
        for stored in page:
            named = parse_metadata_name(stored.name)
            if isinstance(named, MetadataManifestName):
                if named.unique_id.startswith(tag):
                    manifests.append(named)
            elif named is not None:
                sizes[stored.name] = stored.size
    for each in sorted(manifests, reverse=True):
        try:
            manifest = await read_snapshot_manifest(storage, metadata_manifest_name(*each))
        except MetadataSnapshotError:
            continue
        if store_tag(manifest.store_id) == tag and all(
            sizes.get(name) == file.content.size
            for file in manifest.files
            if (name := file.object_name(number)) is not None
        ):
            return each
    return None


async def _copies_of(storage: ObjectStorage, number: int, tag: bytes) -> list[_Copy]:
    """The store's own, in the order of their writing."""
    found: list[_Copy] = []
    async for page in storage.list(checkpoint_prefix(number)):
        for stored in page:
            named = parse_checkpoint_name(stored.name)
            if named is not None and named.store_mark == tag:
                found.append((named, stored))
    return sorted(found)


async def _check_copy(
    storage: ObjectStorage, stored: StoredObject, place: StoreFacts, *, whole: bool
) -> None:
    """Raises CheckpointFormatError, ObjectNotFoundError, InvalidRangeError."""
    if not whole:
        data = (
            await storage.get_range(stored.name, 0, min(stored.size, HEADER_BYTES_MAX))
            if stored.size
            else b""
        )
        header = parse_checkpoint_header(data)
        if header.header_length + header.blob_length != stored.size:
            raise CheckpointFormatError(
                f"{stored.size} bytes, and its header says {header.blob_length} of metadata"
            )
    else:
        pieces = [
            await storage.get_range(stored.name, start, min(PIECE_BYTES, stored.size - start))
            for start in range(0, stored.size, PIECE_BYTES)
        ]
        header, _ = parse_checkpoint_object(b"".join(pieces), stored.name)
    if store_tag(header.store_id) != place.tag:
        raise CheckpointFormatError(f"its header says that it is of store {header.store_id}")
