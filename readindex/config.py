"""The read index's numbers.

Settings only: the clock, the cache and the storage are arguments of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from segmentstore.contracts.byte_sizes import GIB, KIB, MIB
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.settings import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndexConfig:
    """Sizes in bytes, times in seconds.

    The defaults suit one container of a store on one machine.
    """

    small_bytes: int = 4 * KIB
    """Appends shorter than this are gathered in a buffer; longer ones are kept as they came.

    Those that follow each other are one extent while they fit into a block. At most `block_bytes`.
    """
    block_bytes: int = 64 * KIB
    """Gathered appends are cut into blocks of about this size; also the largest block given to the
    cache.
    """
    tail_bytes_max: int = whole(256 * MIB)
    """Bound of what appends hold in memory; beyond it the oldest goes, to the cache if Tier 2 lacks
    it. Never over twice this.
    """
    cache_bytes_max: int = whole(2 * GIB)
    """Of a store: its cache, for all containers together; of a container: its share.

    Larger serves a longer backlog without reading the log again.
    """
    logged_places_max: int = 256 * KIB
    """Appends of at least `small_bytes`, or blocks of larger ones, that are read from the log when
    they are wanted: replayed ones, and those memory has no room for. Each costs 50 to 400 bytes.
    """
    spill_batch_bytes: int = 4 * MIB
    """One insert into the cache gathers about so much."""
    spill_retry_s: float = 1.0
    """Pause after the cache refused an insert."""
    random_bytes: int = 64 * KIB
    """A read that continues no other fetches what it wants, aligned to this within the chunk.

    Best the size of an extent.
    """
    piece_bytes: int = whole(1 * MIB)
    """A read that continues another fetches pieces of this size, aligned within the chunk.

    Random reads fetch no more than this, whatever `random_bytes` is.
    """
    get_bytes_max: int = 8 * MIB
    """Read-ahead asks for neighbouring pieces in one GET of up to so much: a GET costs CPU by the
    request. Never less than a piece.
    """
    read_ahead_bytes_max: int = whole(64 * MIB, 0)
    """What is asked for ahead of one sequential reader at most; 0 turns read-ahead off."""
    fetched_bytes_max: int = whole(128 * MIB)
    """Bound of what is kept in memory after a fetch, and on its way ahead of readers.

    At least two pieces.
    """
    fetches_in_flight_max: int = 16
    """Fetches from Tier 2 at one time, the others wait their turn; three quarters of them may be
    read-ahead.
    """
    fetch_attempts: int = 3
    """Tries of one fetch before its readers get an error that Tier 2 is not available."""
    fetch_backoff_s: float = 0.05
    """Pause before the second try; doubles from try to try, with jitter."""
    stream_idle_s: float = 10.0
    """What was fetched ahead of a reader that has not come on for so long is dropped."""
    catch_up_bytes_per_s: int = whole(0, 0)
    """What sequential readers may fetch from Tier 2, all together; 0: as much as it gives."""
    turn_bytes: int = 1 * MIB
    """Fetched bytes handed out in one turn of the loop; readers that get more wait for another
    (FairDelivery).
    """

    def __post_init__(self) -> None:
        assert 1 <= self.small_bytes <= self.block_bytes
        assert self.tail_bytes_max >= 1
        assert self.cache_bytes_max >= 0
        assert self.logged_places_max >= 0
        assert self.spill_batch_bytes >= 1
        assert self.spill_retry_s > 0
        assert self.random_bytes >= 1
        assert self.get_bytes_max >= 1
        assert self.read_ahead_bytes_max >= 0
        # A piece just fetched and one fetched ahead must both have room, or reading ahead throws
        # away what it fetched.
        if self.fetched_bytes_max < 2 * self.piece_bytes:
            raise ConfigError(
                "fetched_bytes_max", f"it must hold two pieces of {self.piece_bytes} bytes"
            )
        assert self.fetches_in_flight_max >= 1
        assert self.fetch_attempts >= 1
        assert self.fetch_backoff_s >= 0
        assert self.stream_idle_s > 0
        assert self.catch_up_bytes_per_s >= 0
        assert self.turn_bytes >= 1
