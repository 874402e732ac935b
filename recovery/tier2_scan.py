"""What a bucket holds of a store whose log is missing: listed once, checkpoints read, unknown
objects walked by their headers.

Only reads. Rules of this file:

- a call that is not answered is made again a few times, then the restore ends with
  TierUnavailableError: an outage is never taken for an absent object;
- of an object that cannot be read to its end what was read before counts, and the place is said;
- what does not pass its checks is fetched again, twice, before it counts as damaged;
- headers are walked in windows that grow where blocks are small: one GET for a large block, one for
  thousands of small ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from durablelog.checkpoint_codec import decode_checkpoint
from durablelog.operation_codec import OperationFormatError
from recovery.restore_report import CheckpointUsed, Damage, FoundBlock
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.owned_tasks import gather_owned
from segmentstore.contracts.segments import may_name_a_segment
from tier2.archive_places import ArchivedName
from tier2.block_header import BlockFormatError, BlockHeader, BlockTooShortError, parse_block_header
from tier2.block_reader import FETCHES_MAX
from tier2.checkpoint_object import CheckpointFormatError, parse_checkpoint_object
from tier2.metadata_snapshots import MetadataSnapshotError, SnapshotObjectMissingError
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
    is_of_store,
    parse_checkpoint_name,
    parse_metadata_manifest_name,
    parse_object_name,
)
from tier2.object_storage import (
    InvalidRangeError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
)
from tier2.retried_reads import tried_again
from tier2.unique_ids import store_tag

OBJECTS_AT_ONCE: Final = 8
"""Objects walked together; each holds one window."""
WINDOW_BYTES: Final = 4096
"""Fetched to read one header."""
WIDE_WINDOW_BYTES: Final = 256 * 1024
"""Fetched where blocks are small, for the headers of many."""
PIECE_BYTES: Final = 16 * 1024 * 1024
"""A checkpoint is fetched in pieces of this size."""
COMMITTED_WITHIN_MS: Final = 10 * 60 * 1000
"""From the first to the last of the operations that commit one object; in truth milliseconds."""
LISTINGS_MAX: Final = 3
"""Of a bucket whose store runs, and deletes copies of its metadata."""

_T = TypeVar("_T")


class MetadataRemovedError(TierUnavailableError):
    """A copy of the metadata, or a metadata snapshot, was deleted since the bucket was listed.

    The caller's move: list it again. A younger one is there.
    """

    def __init__(self, name: str) -> None:
        detail = "was deleted while the bucket was read, so a store runs there: try again"
        super().__init__("tier2", f"{name} {detail}")


@dataclass(slots=True)
class Bucket:
    """The listing, sorted by container."""

    objects: dict[int, dict[str, StoredObject]] = field(default_factory=dict)
    checkpoints: dict[int, list[StoredObject]] = field(default_factory=dict)
    """In the order of their writing."""
    snapshots: dict[int, list[StoredObject]] = field(default_factory=dict)
    """Manifests of metadata snapshots, in the order of their states."""
    epoch: int = 0
    """The highest in any name."""
    stores: list[str] = field(default_factory=list)
    """Ids of the stores that have a marker here, sorted."""
    foreign: int = 0
    others: dict[int, dict[str, StoredObject]] = field(default_factory=dict)
    """After `narrow`: objects without the tag of the store."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing in it is ours."""
        return not self.objects and not self.checkpoints and not self.snapshots

    @property
    def containers(self) -> list[int]:
        """Of which there is anything."""
        return sorted({*self.objects, *self.checkpoints, *self.snapshots})

    def narrow(self, store_id: uuid.UUID) -> None:
        """Leave what carries the tag of one store, in all but `others`."""
        tag = store_tag(store_id)
        for container_id, objects in self.objects.items():
            self.others[container_id] = {
                name: each for name, each in objects.items() if not is_of_store(name, tag)
            }
        self.objects = {
            container_id: mine
            for container_id, objects in self.objects.items()
            if (mine := {name: each for name, each in objects.items() if is_of_store(name, tag)})
        }
        self.checkpoints = {
            container_id: copies
            for container_id, checkpoints in self.checkpoints.items()
            if (copies := [each for each in checkpoints if _is_copy_of(each.name, store_id)])
        }
        self.snapshots = {
            container_id: kept
            for container_id, snapshots in self.snapshots.items()
            if (kept := [each for each in snapshots if _manifest(each).unique_id.startswith(tag)])
        }

    def claim(self, container_id: int, names: Iterable[str]) -> None:
        """Take back objects that the store's own metadata name: of a store it was restored from, or
        an older version.
        """
        others = self.others.get(container_id)
        if others:
            mine = self.objects.setdefault(container_id, {})
            mine.update({name: others.pop(name) for name in names if name in others})

    def add(self, stored: StoredObject) -> None:
        """Sort in one object."""
        match classify_name(stored.name):
            case ObjectName() as named:
                self.objects.setdefault(named.container_id, {})[stored.name] = stored
                self.epoch = max(self.epoch, named.epoch)
            case CheckpointName() as copy:
                self.checkpoints.setdefault(copy.container_id, []).append(stored)
                self.epoch = max(self.epoch, copy.epoch)
            case SnapshotFileName(snapshot):
                # Of no use here; but those of the store to be must sort behind them.
                self.epoch = max(self.epoch, snapshot.epoch)
            case MetadataManifestName() as manifest:
                self.snapshots.setdefault(manifest.container_id, []).append(stored)
                self.epoch = max(self.epoch, manifest.epoch)
            case MetadataFileName() as written:
                self.epoch = max(self.epoch, written.epoch)
            case MarkerName(store_id):
                self.stores.append(str(store_id))
            case ForeignName():
                self.foreign += 1
            case ProbeName() | MailboxName() | ArchivedName():
                pass


def _copy(stored: StoredObject) -> CheckpointName:
    named = parse_checkpoint_name(stored.name)
    assert named is not None, stored
    return named


def _manifest(stored: StoredObject) -> MetadataManifestName:
    named = parse_metadata_manifest_name(stored.name)
    assert named is not None, stored
    return named


def _is_copy_of(name: str, store_id: uuid.UUID) -> bool:
    named = parse_checkpoint_name(name)
    return named is not None and named.is_of(store_id)


async def list_bucket(storage: ObjectStorage) -> Bucket:
    """Everything in the bucket. Raises TierUnavailableError. Costs one LIST a page."""
    bucket = Bucket()
    last = ""

    async def go_on() -> None:
        nonlocal last
        async for page in storage.list("", last):
            for stored in page:
                bucket.add(stored)
                last = stored.name

    await retried(go_on)
    for checkpoints in bucket.checkpoints.values():
        checkpoints.sort(key=lambda stored: stored.name)
    for snapshots in bucket.snapshots.values():
        snapshots.sort(key=lambda stored: stored.name)
    return bucket


ReadSnapshot = Callable[[str], Awaitable[CheckpointUsed]]
"""As `SnapshotReader.read`."""


async def newest_metadata(
    storage: ObjectStorage,
    checkpoints: Sequence[StoredObject],
    snapshots: Sequence[StoredObject],
    read_snapshot: ReadSnapshot,
) -> tuple[CheckpointUsed | None, list[str]]:
    """The newest that can be read of the copies of the metadata and the metadata snapshots, by
    epoch and sequence number; and a sentence for each younger one that cannot.

    Of two of one state the copy is read: it is one object.
    Raises MetadataRemovedError, TierUnavailableError, and what `read_snapshot` raises but for
    damage.
    """
    damaged: list[str] = []
    there: list[tuple[CheckpointName | MetadataManifestName, int, StoredObject]] = [
        (_copy(each), 1, each) for each in checkpoints
    ]
    there += [(_manifest(each), 0, each) for each in snapshots]
    for named, is_copy, stored in sorted(
        there, key=lambda one: (one[0].epoch, one[0].sequence_number, one[1]), reverse=True
    ):
        if is_copy:
            try:
                return await _read_checkpoint(storage, stored), damaged
            except (
                CheckpointFormatError,
                OperationFormatError,
                ObjectNotFoundError,
                InvalidRangeError,
            ) as error:
                if isinstance(error, ObjectNotFoundError):
                    await _check_listed(storage, stored.name)
                damaged.append(f"checkpoint {stored.name}: {error}")
        else:
            try:
                return await retried(partial(read_snapshot, stored.name)), damaged
            except MetadataSnapshotError as error:
                if isinstance(error, SnapshotObjectMissingError):
                    await _check_listed(storage, stored.name)
                damaged.append(f"metadata snapshot of {named.sequence_number}: {error}")
    return None, damaged


async def _check_listed(storage: ObjectStorage, name: str) -> None:
    """Raise MetadataRemovedError unless a listing shows it still."""

    async def is_listed() -> bool:
        return name in [each.name async for page in storage.list(name) for each in page]

    if not await retried(is_listed):
        raise MetadataRemovedError(name)


async def listed_again(call: Callable[[], Awaitable[_T]]) -> _T:
    """What the call gives, which lists a bucket; repeated while a store there deletes metadata.

    Raises MetadataRemovedError, and what the call raises.
    """
    for _ in range(LISTINGS_MAX - 1):
        try:
            return await call()
        except MetadataRemovedError:
            pass
    return await call()


async def _read_checkpoint(storage: ObjectStorage, stored: StoredObject) -> CheckpointUsed:
    for left in reversed(range(FETCHES_MAX)):
        pieces = [
            await _get(storage, stored, position, min(PIECE_BYTES, stored.size - position))
            for position in range(0, stored.size, PIECE_BYTES)
        ]
        try:
            return _parsed_checkpoint(stored.name, b"".join(pieces))
        except (CheckpointFormatError, OperationFormatError):
            if not left:
                raise
    raise AssertionError


def _parsed_checkpoint(name: str, content: bytes) -> CheckpointUsed:
    header, blob = parse_checkpoint_object(content, name)
    metadata = decode_checkpoint(blob)
    if metadata.container_id != header.container_id:
        raise CheckpointFormatError(f"its metadata are of container {metadata.container_id}")
    return CheckpointUsed(
        name=name,
        store_id=str(header.store_id),
        containers=header.containers,
        epoch=header.epoch,
        sequence_number=header.sequence_number,
        time_ms=header.time_ms,
        metadata=metadata,
    )


def unknown_objects(
    objects: dict[str, StoredObject], checkpoint: CheckpointUsed | None
) -> tuple[list[StoredObject], int]:
    """The objects whose blocks have to be checked, by name, and how many are orphans that need
    not be.

    The owner of an epoch had replayed the whole log: an older epoch's object that its checkpoint
    does not name was never committed, and never will be. Not so that of a job: it has the epoch of
    the catalog the job worked from, and any later owner may have committed it. An object of many
    segments is committed by several operations, one soon after the other. If the object is as young
    as the checkpoint, the checkpoint may know only a part of it. One that is there in another size
    than recorded is checked for the blocks that are whole. Where the checkpoint names objects that
    are not there as they were, its garbage and orphans may hold the same bytes, and are checked as
    well.
    """
    if checkpoint is None:
        return list(objects.values()), 0
    known = checkpoint.metadata
    unknown: list[StoredObject] = []
    spare: list[StoredObject] = []
    orphans = 0
    for name, stored in objects.items():
        live = known.objects.get(name)
        if live is not None:
            young = live.record.created_ms >= checkpoint.time_ms - COMMITTED_WITHIN_MS
            if (young and _may_be_of(name, checkpoint.epoch)) or stored.size != live.record.size:
                unknown.append(stored)
        elif name in known.garbage:
            spare.append(stored)
        elif _may_be_of(name, checkpoint.epoch):
            unknown.append(stored)
        else:
            orphans += 1
            spare.append(stored)
    if all(_is_whole(live.record, objects) for live in known.objects.values()):
        return unknown, orphans
    return unknown + spare, 0


def _is_whole(record: ObjectRecord, objects: Mapping[str, StoredObject]) -> bool:
    there = objects.get(record.name)
    return there is not None and there.size == record.size


def _may_be_of(name: str, epoch: int) -> bool:
    """Whether the owner of this epoch, or a later one, may have committed the object."""
    parsed = _parsed(name)
    return parsed.epoch >= epoch or parsed.kind == "compaction"


async def scan(
    storage: ObjectStorage,
    container_id: int,
    objects: list[StoredObject],
    on_progress: Callable[[int], None],
) -> tuple[list[FoundBlock], list[Damage]]:
    """Every whole block of these objects, and what is wrong with each object that could not be read
    to its end.

    `on_progress(n)` is called when n more objects are done. Raises TierUnavailableError.
    """
    blocks: list[FoundBlock] = []
    damaged: list[Damage] = []
    for first in range(0, len(objects), OBJECTS_AT_ONCE):
        some = objects[first : first + OBJECTS_AT_ONCE]
        for found, damage in await gather_owned(
            *(_walk(storage, container_id, stored) for stored in some), name="scan object"
        ):
            blocks += found
            if damage is not None:
                damaged.append(damage)
        on_progress(len(some))
    return blocks, damaged


async def _walk(
    storage: ObjectStorage, container_id: int, stored: StoredObject
) -> tuple[list[FoundBlock], Damage | None]:
    found: list[FoundBlock] = []
    position, window_start, window = 0, 0, b""
    wanted = WINDOW_BYTES
    failures = 0
    try:
        while position < stored.size:
            try:
                header = parse_block_header(memoryview(window)[position - window_start :])
                _check(stored, container_id, header)
            except BlockFormatError as error:
                if isinstance(error, BlockTooShortError) and position + error.needed <= stored.size:
                    length = min(max(wanted, error.needed), stored.size - position)
                    window_start, window = position, await _get(storage, stored, position, length)
                    continue
                failures += 1
                if failures == FETCHES_MAX:
                    raise
                window_start, window = position, b""
                continue
            failures = 0
            block = _block(stored.name, position, header)
            if position + header.block_length > stored.size:
                detail = f"its {header.block_length} bytes reach beyond the object's end"
                return found, Damage(stored.name, position, detail, block)
            found.append(block)
            wanted = (
                WIDE_WINDOW_BYTES if header.block_length <= WIDE_WINDOW_BYTES // 4 else WINDOW_BYTES
            )
            position += header.block_length
    except (BlockFormatError, ObjectNotFoundError, InvalidRangeError) as error:
        return found, Damage(stored.name, position, str(error))
    return found, None


def _check(stored: StoredObject, container_id: int, header: BlockHeader) -> None:
    if header.container_id != container_id:
        raise BlockFormatError(f"it is of container {header.container_id}, not {container_id}")
    if header.epoch > _parsed(stored.name).epoch:
        raise BlockFormatError(f"its epoch {header.epoch} is above that of its object")


def _block(name: str, position: int, header: BlockHeader) -> FoundBlock:
    called = header.segment_name
    found = FoundBlock(
        name, position, header.segment_id, header.start_offset, header.payload_length, called
    )
    # Here foreign names come in: those who know a bucket's key write what they like.
    return (
        found
        if not called or may_name_a_segment(called)
        else found._replace(segment_name="", no_name=called)
    )


def _parsed(name: str) -> ObjectName:
    parsed = parse_object_name(name)
    assert parsed is not None, name
    return parsed


async def _get(storage: ObjectStorage, stored: StoredObject, offset: int, length: int) -> bytes:
    return await retried(lambda: storage.get_range(stored.name, offset, length))


async def retried(call: Callable[[], Awaitable[_T]]) -> _T:
    """What the call gives, made again a few times while Tier 2 does not answer.

    Raises TierUnavailableError.
    """
    try:
        return await tried_again(call)
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
