"""Seen tiers: what lay in Tier 1 and Tier 2 while no process had the store open.

Pure data, part of a `History`.

An observation says what a store shows of itself. This is what is behind it, read without the store:
which bytes the logs hold, what their operations add up to, and what is listed in Tier 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Span = tuple[int, int]
"""Offsets of a segment, the end exclusive."""


@dataclass(frozen=True, slots=True)
class SeenChunk:
    """A stretch of a segment in Tier 2, as the metadata have it."""

    start_offset: int
    end_offset: int
    object_name: str
    content: bytes | None = None
    """What its block holds; None where it was not checked, or could not be read (a check of the
    files reports that).
    """


@dataclass(frozen=True, slots=True)
class LoggedSegment:
    """A segment as the log adds up to it."""

    segment_id: int
    name: str
    start_offset: int
    length: int
    storage_length: int
    merges: Sequence[Span] = ()
    """What of it lies in merged sources that are not linked yet; these are segments of the same
    log.
    """
    chunks: Sequence[SeenChunk] = ()


@dataclass(frozen=True, slots=True)
class SeenLog:
    """The log of one container, and what it adds up to."""

    container_id: int
    epoch: int
    """Of its newest owner, which may have written nothing yet."""
    first: int
    """Sequence number of its first operation."""
    begins_with: str
    """What that is: `CheckpointOperation`, or `SnapshotCheckpointOperation`."""
    lacks: str = ""
    """Why the metadata that the latter names are nowhere whole; empty if they are."""
    segments: Mapping[int, LoggedSegment] = field(default_factory=dict)
    held: Mapping[int, Sequence[Span]] = field(default_factory=dict)
    """By segment id: what appends in the log hold, in order and joined."""
    objects: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the objects that chunks lie in."""
    garbage: Mapping[str, int] = field(default_factory=dict)
    """Sizes of those that wait for their deletion."""


@dataclass(frozen=True, slots=True)
class SeenTiers:
    """Both tiers at one time.

    Containers whose log was never written to, or cannot be read, are left out.
    """

    stamp: int
    logs: Mapping[int, SeenLog]
    listed: Mapping[str, int]
    """Sizes of all objects with names of this program, by name."""
    late_puts: bool = False
    """Puts land late here, also behind the deletion of what they made: what the log has forgotten
    may have come back.
    """
    settled: bool = False
    """The newest owner had no trouble, and all that clients wrote was flushed: it had no flush
    under way when it ended.
    """
    in_doubt: bool = False
    """The ends of the logs may be found again or not: what they name binds no later check.

    Their beginnings are there for good.
    """
