"""The read index's numbers. Settings only: the clock, the cache and the storage are arguments of their own."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndexConfig:
    """Sizes in bytes, times in seconds. The defaults suit one container of a store on one machine."""

    small_bytes: int = 4 * KIB
    """Appends shorter than this are gathered in a buffer; longer ones are kept as they came. At most `block_bytes`."""
    block_bytes: int = 64 * KIB
    """Gathered appends are cut into blocks of about this size; also the largest block given to the cache."""
    tail_bytes_max: int = 256 * MIB
    """Bound of what appends hold in memory; beyond it the oldest goes, to the cache if Tier 2 lacks it. Never over twice this."""
    cache_bytes_max: int = 1024 * MIB
    """This container's share of the cache. Larger serves a longer backlog without reading the log again."""
    spill_batch_bytes: int = 1 * MIB
    """One insert into the cache gathers about so much."""
    spill_retry_s: float = 1.0
    """Pause after the cache refused an insert."""
    piece_bytes: int = 1 * MIB
    """Tier 2 is read in pieces of this size, aligned within the chunk."""
    fetched_bytes_max: int = 32 * MIB
    """Bound of the pieces kept in memory after a fetch. At least two pieces."""
    read_ahead_pieces_max: int = 4
    """Pieces asked for ahead of a sequential reader; 0 turns read-ahead off."""
    fetches_in_flight_max: int = 16
    """Fetches from Tier 2 at one time; the others wait their turn."""
    fetch_attempts: int = 3
    """Tries of one fetch before its readers are told that Tier 2 is not available."""
    fetch_backoff_s: float = 0.05
    """Pause before the second try; doubles from try to try, with jitter."""

    def __post_init__(self) -> None:
        assert 1 <= self.small_bytes <= self.block_bytes
        assert self.tail_bytes_max >= 1
        assert self.cache_bytes_max >= 0
        assert self.spill_batch_bytes >= 1
        assert self.spill_retry_s > 0
        assert self.piece_bytes >= 1
        # A piece just fetched and one fetched ahead must both have room, or reading ahead throws away what it fetched.
        assert self.fetched_bytes_max >= 2 * self.piece_bytes
        assert self.read_ahead_pieces_max >= 0
        assert self.fetches_in_flight_max >= 1
        assert self.fetch_attempts >= 1
        assert self.fetch_backoff_s >= 0
