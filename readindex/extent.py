"""Extent: a stretch of one segment whose bytes are in memory or in the cache; and the sequential
reader that one from Tier 2 is kept for.

The bytes of a segment at an offset never change, so an extent is right for as long as it exists,
whatever happens to chunks and objects in Tier 2. What moves is its home:

    TAIL ──► SPILLING ──► CACHED ──► REMOVED        appended or refilled bytes
      ├────────────────────────────►
      └──► LOGGED ──► REMOVED                       larger appends, where the log finds them
    FETCHED ──► SPILLING ──► CACHED ──► REMOVED     bytes that came from Tier 2
    LOGGED ──► REMOVED                              replayed bytes
"""

from __future__ import annotations

import enum
from array import array
from collections import OrderedDict
from collections.abc import Sequence

LogPlaces = Sequence[tuple[int, int]]
"""Address in the log and length of each stretch of an append, in order."""


class Home(enum.Enum):
    """The account of the extent, and which of its fields are in use."""

    TAIL = "tail"
    """In memory, counted by TailMemory."""
    FETCHED = "fetched"
    """In memory, counted by FetchedExtents; Tier 2 has it."""
    SPILLING = "spilling"
    """In memory still, on its way into the cache."""
    CACHED = "cached"
    """In the cache under `address`; `data` is None."""
    LOGGED = "logged"
    """In the log alone, at `places`; `data` is None. Removed once Tier 2 has it."""
    REMOVED = "removed"
    """Removed from its index; any other holder must release it."""


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
        "pieces",
        "places",
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
        """All its bytes, while in memory and not in `pieces`."""
        self.pieces: list[bytes] | None = None
        """TAIL: its bytes as they were appended, until they are needed in one."""
        self.places: array[int] | None = None
        """LOGGED: address in the log, length and CRC32C of each piece, one after another; the
        first may begin before the extent. TAIL: the same of exactly its bytes, the checksum 0
        until it is needed; None if the log cannot give all of them back by place.
        """
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
        """FETCHED: it was fetched before a reader asked for it, and none has yet."""
        self.owner: SequentialReader | None = None
        """FETCHED: the sequential reader it is held for; set by that alone."""

    @property
    def end_offset(self) -> int:
        """Place in the segment, exclusive."""
        return self.start_offset + self.length

    @property
    def in_memory(self) -> bool:
        """Whether its bytes are here."""
        return self.data is not None or self.pieces is not None

    def grow(self, data: bytes) -> None:
        """Take the bytes that follow, by reference. Only at home in TAIL."""
        if self.pieces is None:
            assert self.data is not None, self
            self.pieces, self.data = [self.data], None
        self.pieces.append(data)
        self.length += len(data)

    def places_from(self, offset: int) -> array[int] | None:
        """TAIL: the places of its bytes from `offset` on, if they are known."""
        if self.places is None:
            return None
        skip = offset - self.start_offset
        rest = array("Q")
        for at in range(0, len(self.places), 3):
            address, length = self.places[at], self.places[at + 1]
            dropped = min(skip, length)
            skip -= dropped
            if length > dropped:
                rest.extend((address + dropped, length - dropped, 0))
        return rest

    def joined(self) -> bytes:
        """All its bytes in one, kept so. Only while in memory."""
        if self.data is None:
            assert self.pieces is not None, self
            self.data, self.pieces = b"".join(self.pieces), None
        return self.data

    def slice(self, offset: int, length: int) -> bytes:
        """At most `length` bytes from `offset`; the very object when that is all of it.

        Only while in memory.
        """
        parts = self.parts(offset, length)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def parts(self, offset: int, length: int) -> list[bytes]:
        """The same, in the pieces it has: what is wanted wholly is not copied."""
        begin = offset - self.start_offset
        data = self.data
        if data is not None:
            return [data if begin == 0 and length >= self.length else data[begin : begin + length]]
        assert self.pieces is not None, self
        parts: list[bytes] = []
        for piece in self.pieces:
            if begin < len(piece) and length > 0:
                part = (
                    piece if begin == 0 and length >= len(piece) else piece[begin : begin + length]
                )
                parts.append(part)
                length -= len(part)
                begin += len(part)
            begin -= len(piece)
        return parts

    def __repr__(self) -> str:
        return (
            f"<Extent {self.segment_id}:[{self.start_offset},{self.end_offset}) {self.home.value}>"
        )


class SequentialReader:
    """One reader, or several in step. Compared by identity."""

    __slots__ = (
        "advanced_s",
        "ahead_end",
        "continued",
        "held",
        "position",
        "run_bytes",
        "segment_id",
        "sequential",
        "window",
    )

    def __init__(self, segment_id: int) -> None:
        self.segment_id = segment_id
        self.position = 0
        """Where its next read is expected to begin."""
        self.ahead_end = 0
        """Everything from `position` to here was asked for, or was there."""
        self.continued = False
        """It has had a second read: not a read at a place of its own any more."""
        self.sequential = False
        self.window = 0
        """Bytes to be asked for ahead; its share may allow less."""
        self.run_bytes = 0
        """Read since the window was last doubled."""
        self.advanced_s = 0.0
        """Loop time of its last read."""
        self.held: OrderedDict[Extent, None] = OrderedDict()
        """Extents kept for it, the nearest first as far as they came in order."""

    def hold(self, extent: Extent) -> None:
        """Keep an extent for this reader."""
        extent.owner = self
        self.held[extent] = None

    def release(self, extent: Extent) -> None:
        """Keep a held extent no more."""
        del self.held[extent]
        extent.owner = None

    def release_all(self) -> list[Extent]:
        """Keep nothing any more; what was held, the nearest first."""
        extents = list(self.held)
        for extent in extents:
            extent.owner = None
        self.held.clear()
        return extents

    def lost_ahead(self, offset: int) -> None:
        """What was fetched ahead is evicted from `offset` on."""
        self.ahead_end = max(self.position, min(self.ahead_end, offset))

    def __repr__(self) -> str:
        return (
            f"<SequentialReader {self.segment_id}:{self.position} window {self.window}, "
            f"{len(self.held)} held>"
        )
