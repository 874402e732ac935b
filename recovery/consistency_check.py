"""What must hold of a stopped store, as pure checks: they take what was read and say what is wrong.

No I/O.

`recovery.store_check` reads and calls them. Rules of this file:

- a finding is *harmful* when an acknowledged byte is missing, wrong, or not provably right;
  everything else worth reporting (a torn tail, garbage, an orphan) is a *note*;
- one cause gives one finding where it can, with the place an operator has to check;
- nothing is concluded from metadata that could not be rebuilt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeVar

from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.findings import Finding, Severity, harmful, note
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from tier2.archive_places import ArchivedName
from tier2.block_header import BLOCK_BYTES_MIN
from tier2.object_names import (
    CheckpointName,
    ForeignName,
    MailboxName,
    MarkerName,
    MetadataFileName,
    MetadataManifestName,
    ObjectName,
    ProbeName,
    SnapshotFileName,
    classify_name,
)
from tier2.object_storage import StoredObject
from tier2.object_tally import ObjectTally
from tier2.unique_ids import STORE_TAG_BYTES, store_tag

_TAGS_MAX = 256
"""Tags of other stores that are distinguished; forged names may have any number."""

_K = TypeVar("_K", int, str)


def check_metadata(metadata: ContainerMetadata) -> Iterator[Finding]:
    """Chunks without gap or overlap, each inside of an object that is known; then every other
    invariant. O(chunks).
    """
    found = False
    for finding in (*_check_chunks(metadata), *_check_sharing(metadata)):
        found = True
        yield finding
    if found:
        return  # The invariants below would only say the same again, with less of a place.
    try:
        assert_metadata_valid(metadata)
    except (AssertionError, KeyError) as error:
        yield harmful(
            "metadata",
            f"container {metadata.container_id}",
            f"an invariant does not hold: {error!r}",
        )


def note_garbage(metadata: ContainerMetadata) -> Iterator[Finding]:
    """How much waits for its deletion."""
    if metadata.garbage:
        size = sum(garbage.record.size for garbage in metadata.garbage.values())
        detail = f"{len(metadata.garbage):,} objects, {size:,} bytes, wait for their deletion"
        yield note("garbage", f"container {metadata.container_id}", detail)


def differences(recorded: ContainerMetadata, replayed: ContainerMetadata) -> list[str]:
    """Where a checkpoint says something else than the operations before it; empty if it is
    sufficient.
    """
    return [
        *_different("segment", _segments(recorded), _segments(replayed)),
        *_different("name", recorded.names, replayed.names),
        *_different("object", _objects(recorded), _objects(replayed)),
        *_different("garbage object", recorded.garbage, replayed.garbage),
    ]


class Listing:
    """Sorts what Tier 2 lists into what the metadata knows, orphans, and what is not ours.

    `containers` has the metadata of each container of the store, None where it could not be
    rebuilt: nothing is said of that one's objects then. `tag` is the store's: what does not carry
    it is of unknown owner. Empty: all is ours.
    """

    def __init__(
        self, containers: Mapping[int, ContainerMetadata | None], tag: bytes = b""
    ) -> None:
        self._containers = containers
        self._tag = tag
        self._unknown: dict[tuple[int, bytes], ObjectTally] = defaultdict(ObjectTally)
        """By container and by the tag that is not ours."""
        self._stores: dict[bytes, str] = {}
        """By tag, those that have a marker there."""
        self._orphans: dict[int, ObjectTally] = defaultdict(ObjectTally)
        self._foreign = ObjectTally()
        self._own = False
        """Objects with the store's tag, which it puts behind its marker."""

    def add(self, stored: StoredObject) -> None:
        """Check one object of the listing."""
        match classify_name(stored.name):
            case MarkerName(store_id):
                # Of this store or of another: it says where objects are, and holds none.
                self._stores[store_tag(store_id)] = str(store_id)
            case ObjectName() as parts if parts.container_id in self._containers:
                self._add_object(parts, stored)
            case ObjectName() | ForeignName():
                self._foreign.add(stored)
            case (
                CheckpointName()
                | SnapshotFileName()
                | MetadataManifestName()
                | MetadataFileName()
                | MailboxName()
                | ProbeName()
                | ArchivedName()
            ):
                # No chunk lies in them, and their writer deletes them.
                pass

    def _add_object(self, parts: ObjectName, stored: StoredObject) -> None:
        self._own = self._own or (bool(self._tag) and parts.unique_id.startswith(self._tag))
        metadata = self._containers[parts.container_id]
        if (
            metadata is not None
            and stored.name not in metadata.objects
            and stored.name not in metadata.garbage
        ):
            if parts.unique_id.startswith(self._tag):
                self._orphans[parts.container_id].add(stored)
                return
            tag = parts.unique_id[:STORE_TAG_BYTES]
            known = (parts.container_id, tag) in self._unknown or len(self._unknown) < _TAGS_MAX
            self._unknown[parts.container_id, tag if known else b""].add(stored)

    def findings(self) -> Iterator[Finding]:
        """What was found, after the last `add`."""
        for container_id, orphans in sorted(self._orphans.items()):
            place = f"container {container_id}"
            metadata = self._containers[container_id]
            if metadata is not None and not metadata.sequence_number:
                # An upload begins long after the first checkpoint is durable.
                detail = (
                    f"Tier 2 has {orphans} of this container, and its log has no operation: "
                    "the log was lost"
                )
                yield harmful("log-lost", place, detail)
            else:
                yield note("orphans", place, f"{orphans} that no operation of the log names")
        for (container_id, tag), unknown in sorted(self._unknown.items()):
            place = f"container {container_id}"
            if tag in self._stores:
                yield note(
                    "other-store",
                    place,
                    f"{unknown} of store {self._stores[tag]}, which has its marker there",
                )
                continue
            metadata = self._containers[container_id]
            if metadata is not None and not metadata.sequence_number and len(self._stores) <= 1:
                # No other store was ever here: an older version of this store made them.
                detail = (
                    f"Tier 2 has {unknown} of this container, and its log has no operation: "
                    "the log was lost"
                )
                yield harmful("log-lost", place, detail)
            else:
                detail = f"{unknown} without this store's tag, which no operation of the log names"
                yield note(
                    "unknown-owner",
                    place,
                    f"{detail}: of a store that is not known there, or an older version's orphans",
                )
        if self._own and self._tag not in self._stores:
            yield note(
                "marker-missing",
                "Tier 2",
                "this store's marker is missing, so what was there was deleted or lost, objects "
                "perhaps as well; the next opening puts it back",
            )
        if self._foreign.count:
            yield note(
                "foreign-objects",
                "Tier 2",
                f"{self._foreign} that no container of this store can have made",
            )


def chunks_by_object(metadata: ContainerMetadata) -> dict[str, list[ChunkRecord]]:
    """Every chunk, under the object it lies in."""
    result: dict[str, list[ChunkRecord]] = defaultdict(list)
    for segment in metadata.all_records():
        for chunk in segment.chunks:
            result[chunk.object_name].append(chunk)
    return result


def _check_chunks(metadata: ContainerMetadata) -> Iterator[Finding]:
    for segment in metadata.all_records():
        place = f"container {metadata.container_id}, segment {segment.name!r}"
        yield from _check_cover(segment, place)
        for chunk in segment.chunks:
            live = metadata.objects.get(chunk.object_name)
            where = f"{place} offset {chunk.start_offset}"
            if live is None:
                yield harmful(
                    "chunk",
                    where,
                    f"it lies in {chunk.object_name}, which the metadata does not know",
                )
            elif chunk.block_offset + BLOCK_BYTES_MIN > live.record.size:
                # No more can be said from outside: how many bytes its payload takes only the block
                # knows.
                detail = (
                    f"{chunk.length} bytes in a block at {chunk.block_offset} of "
                    f"{chunk.object_name}"
                )
                yield harmful("chunk", where, f"{detail}, which has {live.record.size} bytes")


def _check_cover(segment: SegmentMetadata, place: str) -> Iterator[Finding]:
    """The chunks follow one another and hold everything from the start offset to what Tier 2 is
    said to have.
    """
    position = min(segment.start_offset, segment.storage_length)
    for index, chunk in enumerate(segment.chunks):
        if chunk.length < 1:
            yield harmful(
                "chunk", f"{place} offset {chunk.start_offset}", f"it has {chunk.length} bytes"
            )
        if chunk.start_offset > position:
            yield harmful(
                "gap", f"{place} offset {position}", f"no chunk up to {chunk.start_offset}"
            )
        elif index and chunk.start_offset < position:
            yield harmful(
                "overlap", f"{place} offset {chunk.start_offset}", f"two chunks up to {position}"
            )
        position = chunk.end_offset
    if position < segment.storage_length and not segment.detached:
        yield harmful(
            "gap", f"{place} offset {position}", f"no chunk up to {segment.storage_length}"
        )
    elif segment.chunks and position > segment.storage_length:
        detail = f"chunks up to {position}, and Tier 2 should have {segment.storage_length}"
        yield harmful("overlap", f"{place} offset {segment.storage_length}", detail)


def _check_sharing(metadata: ContainerMetadata) -> Iterator[Finding]:
    """No byte of a block belongs to two chunks."""
    for name, chunks in chunks_by_object(metadata).items():
        placed = sorted(
            (chunk.block_offset, chunk.block_start_offset, chunk.length) for chunk in chunks
        )
        for (block, start, length), (next_block, next_start, _) in pairwise(placed):
            if block == next_block and start + length > next_start:
                detail = f"two chunks hold its bytes from {next_start} to {start + length}"
                yield harmful("overlap", f"object {name} block at {block}", detail)


def _different(what: str, one: Mapping[_K, object], other: Mapping[_K, object]) -> Iterator[str]:
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            yield f"{what} {key!r}"


_SEGMENT_FIELDS = tuple(
    field for field in SegmentMetadata.__slots__ if field not in {"encoded", "generation"}
)


def _segments(metadata: ContainerMetadata) -> Mapping[int, tuple[object, ...]]:
    return {
        segment.segment_id: tuple(getattr(segment, name) for name in _SEGMENT_FIELDS)
        for segment in metadata.all_records()
    }


def _objects(metadata: ContainerMetadata) -> Mapping[str, tuple[object, int]]:
    return {name: (live.record, live.live_chunks) for name, live in metadata.objects.items()}


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Harmful ones first, else as they were found."""
    return sorted(findings, key=lambda finding: finding.severity is not Severity.HARMFUL)
