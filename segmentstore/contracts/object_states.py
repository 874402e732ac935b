"""What a container knows of the objects of its segments in Tier 2: live ones, garbage, and how long
that has waited.
"""

from __future__ import annotations

from typing import NamedTuple

from segmentstore.contracts.chunks import ObjectRecord


class LiveObject:
    """A Tier-2 object and how much of this container's segments lies in it."""

    __slots__ = ("live_bytes", "live_chunks", "record")

    def __init__(self, record: ObjectRecord, live_chunks: int = 0, live_bytes: int = 0) -> None:
        self.record = record
        self.live_chunks = live_chunks
        self.live_bytes = live_bytes
        """Sum of the lengths of these chunks: bytes of segments, as callers see them."""


class GarbageObject(NamedTuple):
    """A Tier-2 object no chunk refers to any more; deleted once the deletion lag has passed."""

    record: ObjectRecord
    unreferenced_ms: int
    """Wall time, for people: no age is counted from it."""
    sequence_number: int = 0
    """Of the operation that released it; 0 if that is not known."""
    since_ms: int | None = None
    """By the deletion clock, when it was garbage already; None until the log has a reading of that
    clock.
    """


class DeletionClockReading(NamedTuple):
    """The newest reading in the log of the clock that counts how long garbage has waited
    (docs/decisions/0032).
    """

    clock_ms: int = 0
    """Milliseconds that owners of the container are known to have counted; 0 at the first."""
    boot_id: bytes = bytes(16)
    """Of the machine that it was read on, 16 bytes."""
    boot_ms: int = 0
    """Of that machine's time since its start, at the same moment."""
