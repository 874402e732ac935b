"""What a restore from Tier 2 alone found and made: the records of its report, and of what was
surveyed. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from segmentstore.contracts.findings import Finding
from segmentstore.contracts.metadata import ContainerMetadata
from tier2.object_names import METADATA_PREFIX


class FoundBlock(NamedTuple):
    """A block met in an object: what its header says, and where it lies.

    Lengths and offsets in bytes.
    """

    object_name: str
    block_offset: int
    segment_id: int
    start_offset: int
    length: int
    segment_name: str
    """As the segment was called when the block was written; empty in blocks that do not say, or say
    `no_name`.
    """
    no_name: str = ""
    """What the header says where no segment may be called so; it may hold anything."""

    @property
    def end_offset(self) -> int:
        """Place in the segment behind the last byte, exclusive."""
        return self.start_offset + self.length


class Gap(NamedTuple):
    """Bytes [start_offset, end_offset) of a segment that no object in Tier 2 holds."""

    start_offset: int
    end_offset: int


class Loss(NamedTuple):
    """Bytes [start_offset, end_offset) of a segment that were in Tier 2, and that nothing there
    holds now.
    """

    container_id: int
    segment_id: int
    segment: str
    """What the segment is called in the new store."""
    start_offset: int
    end_offset: int
    object_name: str
    """The object that held them; empty where nothing says which."""
    reason: str

    @property
    def length(self) -> int:
        """Bytes lost."""
        return self.end_offset - self.start_offset


class Damage(NamedTuple):
    """An object that could not be walked to its end."""

    object_name: str
    position: int
    """Place in the object where the walk ended."""
    detail: str
    cut: FoundBlock | None = None
    """The block whose end is missing, where its header could be read: what was lost with it is
    known.
    """

    def __str__(self) -> str:
        return f"object {self.object_name} from {self.position} on: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRestore:
    """One segment of the new store, and what it lacks."""

    container_id: int
    segment_id: int
    name: str
    start_offset: int
    restored_to: int
    """Its length now: every byte from the start offset to here is in Tier 2."""
    known_length: int | None
    """Length that the checkpoint knows of; None for a segment made after it.

    It may have been longer in the end.
    """
    gaps: Sequence[Gap] = ()
    """Below `restored_to`, or below what the checkpoint or a cut block says Tier 2 had."""
    losses: Sequence[Loss] = ()
    """The gaps again, by the objects that held them; without `unclear_bytes`."""
    unclear_bytes: int = 0
    """Of the gaps: before all that was found of a segment no checkpoint knows.

    Truncated, or lost.
    """
    notes: Sequence[str] = ()

    @property
    def lost_bytes(self) -> int:
        """That were in Tier 2 and are not there any more."""
        return sum(loss.length for loss in self.losses)

    @property
    def unflushed_bytes(self) -> int:
        """Known to have been acknowledged, and never seen in Tier 2: they were lost with the
        log.
        """
        stored = max((loss.end_offset for loss in self.losses), default=0)
        return max(0, (self.known_length or 0) - max(self.restored_to, stored))

    @property
    def missing_bytes(self) -> int:
        """Known to have been acknowledged, and not restored: what Tier 2 has lost, and what it
        never had.
        """
        return self.lost_bytes + self.unflushed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUsed:
    """The metadata a container was rebuilt from."""

    name: str
    store_id: str
    containers: int
    epoch: int
    sequence_number: int
    time_ms: int
    metadata: ContainerMetadata = field(repr=False)

    @property
    def kind(self) -> str:
        """What it is called: a copy of the metadata, or a metadata snapshot."""
        return "metadata snapshot" if self.name.startswith(METADATA_PREFIX) else "checkpoint"


@dataclass(slots=True, kw_only=True)
class ContainerRestore:
    """One container."""

    container_id: int
    checkpoint: CheckpointUsed | None
    """None: rebuilt from the headers of the blocks alone."""
    objects: int = 0
    """In Tier 2, of this container."""
    surveyed: int = 0
    """Of these, walked from header to header, since the checkpoint does not know them."""
    passed_over: int = 0
    """Objects left out: of an older epoch and unknown to the checkpoint, or none of their blocks
    wanted.
    """
    segments: list[SegmentRestore] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Objects that could not be read, a sentence each."""
    unreadable: list[str] = field(default_factory=list)
    """Names of damaged objects that the checkpoint does not know: what else they held is
    unknown.
    """


@dataclass(slots=True, kw_only=True)
class RestoreReport:
    """What was restored, what is missing, what cannot be known."""

    url: str
    location: str
    dry_run: bool
    old_store_id: str | None
    """None if no checkpoint says."""
    store_id: str | None = None
    """Of the new store; None after a dry run."""
    epoch: int = 0
    """First of the new store: above all in the bucket."""
    containers: list[ContainerRestore] = field(default_factory=list)
    foreign_objects: int = 0
    """Objects of other names than ours."""
    stores_there: list[str] = field(default_factory=list)
    """Ids of all stores that have a marker in Tier 2."""
    others_objects: int = 0
    """Objects left alone because they are not of the store that was asked for."""
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Of the check of the new store."""

    @property
    def segments(self) -> list[SegmentRestore]:
        """Of all containers."""
        return [segment for container in self.containers for segment in container.segments]

    @property
    def restored_bytes(self) -> int:
        """That can be read from the new store."""
        return sum(segment.restored_to - segment.start_offset for segment in self.segments)

    @property
    def losses(self) -> list[Loss]:
        """Every stretch that Tier 2 has lost, of all segments."""
        return [loss for segment in self.segments for loss in segment.losses]

    @property
    def lost_bytes(self) -> int:
        """That were in Tier 2 and are not there any more."""
        return sum(segment.lost_bytes for segment in self.segments)

    @property
    def unflushed_bytes(self) -> int:
        """Known to have been acknowledged, and lost with the log."""
        return sum(segment.unflushed_bytes for segment in self.segments)

    @property
    def unclear_bytes(self) -> int:
        """Of which nothing says whether they were truncated or lost."""
        return sum(segment.unclear_bytes for segment in self.segments)

    @property
    def missing_bytes(self) -> int:
        """Known to have been acknowledged and not restored: `lost_bytes` and `unflushed_bytes`."""
        return self.lost_bytes + self.unflushed_bytes

    @property
    def has_loss(self) -> bool:
        """Whether Tier 2 does not hold any more what it held, be it countable or not."""
        return self.lost_bytes > 0 or any(container.unreadable for container in self.containers)
