"""The read index's numbers, as a snapshot."""

from __future__ import annotations

from typing import NamedTuple


class Pressure(NamedTuple):
    """How full the residences of un-flushed bytes are, for the throttler.

    Un-flushed bytes that memory and cache had no room for count as if they were held: more of them
    only costs more rescans. A tail that grows faster than it is spilled counts against its hard
    bound, where bytes would be dropped; so do flushed bytes that a slow cache holds there.
    """

    unflushed: int
    """Un-flushed bytes."""
    bound: int
    """Of them, by what memory and cache hold together; by memory while the cache refuses."""
    tail: float
    """Share of the hard bound of memory that is used; 0.0 while the cache refuses."""

    @property
    def share(self) -> float:
        """0 empty, 1 at the nearest bound, above 1 beyond it."""
        return max(self.unflushed / self.bound, self.tail)


class ReadIndexStatistics(NamedTuple):
    """A container's read index as of now.

    Sizes in bytes; counts since it was made where the name is a verb.
    """

    segments: int
    """Segments with an index: those that had an append, a merge or a fetch."""
    tail_bytes: int
    tail_bytes_unflushed: int
    cached_bytes: int
    cached_bytes_unflushed: int
    logged_bytes: int
    """Un-flushed, and neither in memory nor in the cache: read from the log by place."""
    fetched_bytes: int
    readers_waiting: int
    fetches_in_flight: int
    fetches: int
    """Requests to Tier 2 for bytes, retries not counted."""
    fetches_random: int
    """Of `fetches`, those for reads that continued no other."""
    prefetches: int
    """Of `fetches`, those begun ahead of a sequential reader.

    The rest are what sequential readers had to wait for.
    """
    fetch_bytes: int
    """Brought by all fetches that succeeded."""
    prefetch_bytes: int
    """Of `fetch_bytes`, those fetched ahead."""
    read_ahead_hits: int
    """Extents fetched ahead that were read."""
    read_ahead_wasted_bytes: int
    """Fetched ahead, and dropped unread."""
    sequential_readers: int
    """Places being read in sequence now: how many share the memory of fetched bytes."""
    delivery_pauses: int
    """Reads of fetched bytes that gave way to others in the loop."""
    refills: int
    cache_misses: int
    """Blocks the cache did not have any more when they were asked for, or the log where it is read
    by place.
    """
    spilled_bytes: int
    dropped_unflushed_bytes: int
    """Un-flushed bytes dropped from memory and cache by their bounds; a refill brings them back
    when wanted.
    """
    pressure: float
