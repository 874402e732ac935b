"""Extent: a stretch of one segment whose bytes are in memory or in the cache.

The bytes of a segment at an offset never change, so an extent is right for as long as it exists,
whatever happens to chunks and objects in Tier 2. What moves is its home:

    TAIL ──► SPILLING ──► CACHED ──► GONE        appended or refilled bytes
      └────────────────────────────►
    FETCHED ──► SPILLING ──► CACHED ──► GONE     bytes that came from Tier 2
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from readindex.streams import Stream


class Home(enum.Enum):
    """Who accounts for the extent, and which of its fields are in use."""

    TAIL = "tail"
    """In memory, counted by TailMemory."""
    FETCHED = "fetched"
    """In memory, counted by FetchedPieces; Tier 2 has it."""
    SPILLING = "spilling"
    """In memory still, on its way into the cache."""
    CACHED = "cached"
    """In the cache under `address`; `data` is None."""
    GONE = "gone"
    """Removed from its index; whoever still holds it must let go."""


class Extent:
    """Bytes [start_offset, end_offset) of segment `segment_id`. Compared by identity."""

    __slots__ = (
        "address",
        "ahead",
        "counted_bytes",
        "data",
        "flushed",
        "high_water",
        "home",
        "length",
        "owner",
        "position",
        "reread",
        "segment_id",
        "start_offset",
    )

    def __init__(
        self, segment_id: int, start_offset: int, length: int, data: bytes | None, home: Home
    ) -> None:
        self.segment_id = segment_id
        self.start_offset = start_offset
        self.length = length
        self.data = data
        self.home = home
        self.address = -1
        self.flushed = False
        """True once storage_length of the segment has reached `end_offset`: it may be dropped at
        any time.
        """
        self.position = 0
        """Order of age among all segments of the container: bytes appended before it."""
        self.counted_bytes = 0
        """What TailMemory counts for it: its length while home is TAIL, or SPILLING and from there;
        else 0.
        """
        self.high_water = start_offset
        """FETCHED: end of the furthest read of it."""
        self.reread = False
        """FETCHED: a read that follows no other began below the high-water mark, so keeping it
        pays.
        """
        self.ahead = False
        """FETCHED: it came before anybody asked for it, and nobody has yet."""
        self.owner: Stream | None = None
        """FETCHED: the sequential reader it is kept for; FetchedPieces' own."""

    @property
    def end_offset(self) -> int:
        """Place in the segment, exclusive."""
        return self.start_offset + self.length

    def slice(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; the very object when that is all of it.

        Only while in memory.
        """
        data = self.data
        assert data is not None, self
        begin = offset - self.start_offset
        if begin == 0 and length >= self.length:
            return data
        return data[begin : begin + length]

    def __repr__(self) -> str:
        return (
            f"<Extent {self.segment_id}:[{self.start_offset},{self.end_offset}) {self.home.value}>"
        )
