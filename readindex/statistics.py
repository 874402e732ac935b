"""The read index's numbers, as a snapshot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndexStatistics:
    """A container's read index as of now. Sizes in bytes; counts since it was made where the name is a verb."""

    segments: int
    """Segments with an index: those that had an append, a merge or a fetch."""
    tail_bytes: int
    tail_bytes_unflushed: int
    cached_bytes: int
    cached_bytes_unflushed: int
    fetched_bytes: int
    readers_waiting: int
    fetches_in_flight: int
    fetches: int
    prefetches: int
    """Of `fetches`, those begun ahead of a sequential reader."""
    refills: int
    cache_misses: int
    """Blocks the cache did not have any more when they were asked for."""
    spilled_bytes: int
    dropped_unflushed_bytes: int
    """Un-flushed bytes dropped from memory and cache by their bounds; a refill brings them back when wanted."""
    pressure: float
