"""What a restore from Tier 2 alone found and made: the records of its report, and of what was surveyed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from recovery.consistency_check import Finding
from segmentstore.contracts.metadata import ContainerMetadata


class FoundBlock(NamedTuple):
    """A block met in an object: what its header says, and where it lies. Lengths and offsets in bytes."""

    object_name: str
    block_offset: int
    segment_id: int
    start_offset: int
    length: int
    segment_name: str
    """As the segment was called when the block was written; empty in blocks that do not say."""

    @property
    def end_offset(self) -> int:
        """Place in the segment behind the last byte, exclusive."""
        return self.start_offset + self.length


class Gap(NamedTuple):
    """Bytes [start_offset, end_offset) of a segment that no object in Tier 2 holds."""

    start_offset: int
    end_offset: int


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
    """Length that the checkpoint knows of; None for a segment made after it. It may have been longer in the end."""
    gaps: Sequence[Gap] = ()
    """Below `restored_to`, or below what the checkpoint says Tier 2 has."""
    notes: Sequence[str] = ()

    @property
    def missing_bytes(self) -> int:
        """Known to have been acknowledged, and not restored, behind `restored_to`."""
        return max(0, self.known_length - self.restored_to) if self.known_length is not None else 0


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
    """Objects left out: of an older epoch and unknown to the checkpoint, or none of their blocks wanted."""
    segments: list[SegmentRestore] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Objects that could not be read, a sentence each."""


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
    def missing_bytes(self) -> int:
        """Known to have been acknowledged and not restored: behind the segments' ends. Gaps are named by segment."""
        return sum(segment.missing_bytes for segment in self.segments)
