"""SeenLosses: bytes of one container that reads found lost in Tier 2, until they are there again or
no longer needed. Pure, but for `settle`.

Rules of this file:

- a place is what one fetch asked for: an object, a block and a range of the segment it belongs to;
- it is forgotten when a fetch of it succeeds, or when the metadata do not know its object any more.
  It is also forgotten when the segment does not have those bytes there any more (truncated,
  deleted, replaced). Nothing else ends it: not time, and not a restart;
- a segment that is not in memory may be idle: its places are kept until `settle`, which holds
  few segments at a time;
- places are bounded; those beyond are counted, and found again by reads of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from durablelog.metadata_needs import ChunkNeed
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import SegmentMetadata
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError

if TYPE_CHECKING:
    from recovery.open_container import OpenContainer

PLACES_MAX: Final = 1000
"""Of one container."""
EXAMPLES_MAX: Final = 3
"""Named in health."""
DETAIL_MAX: Final = 300
PLACES_HELD: Final = 64
"""Whose segments are held in memory at once."""

_Block = tuple[str, int]
"""Object, and where in it the block begins."""
PlaceKey = tuple[str, int, int]
"""Object, block, and the offset in the block's payload where the lost bytes begin."""


class LostPlace(NamedTuple):
    """Bytes [start_offset, end_offset) of a segment that a fetch did not get, or got damaged."""

    segment_id: int
    chunk: ChunkRecord
    """As it was when they were asked for."""
    start_offset: int
    end_offset: int
    detail: str
    first_seen_ms: int
    """Milliseconds since 1970 UTC."""

    @property
    def key(self) -> PlaceKey:
        """Stays the same when the chunk passes to another segment."""
        chunk = self.chunk
        return (
            chunk.object_name,
            chunk.block_offset,
            chunk.block_start_offset + self.start_offset - chunk.start_offset,
        )


class SeenLosses:
    """What reads of one container found lost. The container is only read."""

    def __init__(self, container: OpenContainer) -> None:
        self._container = container
        self._metadata = container.metadata
        self.places: dict[PlaceKey, LostPlace] = {}
        self._names: dict[int, str] = {}
        """Of segments that places are in, as far as they were met in memory."""
        self.seen = 0
        """Fetches that failed for a loss, since the store was opened."""
        self.beyond = 0
        """Of these, places that were not kept because there were too many."""

    def lost(
        self,
        segment_id: int,
        chunk: ChunkRecord,
        start_offset: int,
        end_offset: int,
        error: Exception,
        now_ms: int,
    ) -> bool:
        """Note a fetch that failed; whether that was a loss: not of bytes that are no longer
        needed, or of a tier that is away.
        """
        if not isinstance(error, DataCorruptionError | ObjectNotFoundError | InvalidRangeError):
            return False
        detail = "it is gone" if isinstance(error, ObjectNotFoundError) else str(error)
        place = LostPlace(segment_id, chunk, start_offset, end_offset, detail[:DETAIL_MAX], now_ms)
        if self._is_wanted(place) is False:
            return False
        self.seen += 1
        known = self.places.get(place.key)
        self._note_names((place,))
        if known is None and len(self.places) >= PLACES_MAX:
            self.prune()
            if len(self.places) >= PLACES_MAX:
                self.beyond += 1
                return True
        self.places[place.key] = (
            place if known is None else place._replace(first_seen_ms=known.first_seen_ms)
        )
        return True

    def found(self, chunk: ChunkRecord, start_offset: int, end_offset: int) -> bool:
        """Forget what a fetch of these bytes has got after all; whether anything was. O(places)."""
        shift = chunk.block_start_offset - chunk.start_offset
        start, end = start_offset + shift, end_offset + shift
        whole = [
            key
            for key, place in self.places.items()
            if key[:2] == (chunk.object_name, chunk.block_offset)
            and start <= key[2]
            and key[2] + place.end_offset - place.start_offset <= end
        ]
        for key in whole:
            del self.places[key]
        return bool(whole)

    def keep(self, place: LostPlace) -> None:
        """Take up a place that an earlier owner has seen, if it is still wanted."""
        if len(self.places) < PLACES_MAX and place.chunk.object_name in self._metadata.objects:
            self.places.setdefault(place.key, place)

    def prune(self) -> bool:
        """Forget what is no longer needed, as far as memory has it; whether anything was.

        O(places), and O(chunks) after a merge while all of them are in memory.
        """
        unwanted = [place for place in self.places.values() if self._is_wanted(place) is False]
        missing = [place for place in unwanted if self._is_missing(place)]
        segments = self._metadata.segments.values() if missing else ()
        self._forget(unwanted, _moved({each.segment_id: each.chunks for each in segments}, missing))
        return bool(unwanted)

    async def settle(self) -> bool:
        """The same of places whose segments are not in memory.

        Raises TierUnavailableError, DataCorruptionError.
        """
        unclear = [place for place in self.places.values() if self._is_wanted(place) is None]
        unwanted: list[LostPlace] = []
        missing: list[LostPlace] = []
        for first in range(0, len(unclear), PLACES_HELD):
            some = unclear[first : first + PLACES_HELD]
            chunks = [
                ChunkNeed(place.segment_id, place.start_offset, place.end_offset) for place in some
            ]
            async with self._container.held({place.segment_id for place in some}, chunks):
                self._note_names(some)
                # What is not in memory now is missing.
                unwanted += (place for place in some if not self._is_wanted(place))
                missing += (place for place in some if self._is_missing(place))
        moved: list[LostPlace] = []
        if missing:
            names = {place.chunk.object_name for place in missing}
            moved = _moved(await self._container.chunks_in(names), missing)
        # Others were read, or lost again, meanwhile.
        still = {place.key: place for place in unwanted if self.places.get(place.key) is place}
        self._forget(still.values(), (place for place in moved if place.key in still))
        return bool(still)

    def _forget(self, unwanted: Iterable[LostPlace], moved: Iterable[LostPlace]) -> None:
        for place in unwanted:
            del self.places[place.key]
        for place in moved:
            self.places.setdefault(place.key, place)
        wanted = {place.segment_id for place in self.places.values()}
        self._names = {each: name for each, name in self._names.items() if each in wanted}

    def _note_names(self, places: Iterable[LostPlace]) -> None:
        for place in places:
            segment = self._metadata.segments.get(place.segment_id)
            if segment is not None:
                self._names[place.segment_id] = segment.name

    @property
    def objects(self) -> list[str]:
        """Names of the objects, in the order they were seen."""
        return list(dict.fromkeys(key[0] for key in self.places))

    def examples(self) -> Iterator[str]:
        """A few of the places in words, each of another object."""
        named: set[str] = set()
        for place in self.places.values():
            name = place.chunk.object_name
            if name in named:
                continue
            if len(named) == EXAMPLES_MAX:
                return
            named.add(name)
            self._note_names((place,))
            segment_name = self._names.get(place.segment_id)
            called = repr(segment_name) if segment_name is not None else f"id {place.segment_id}"
            yield (
                f"object {name}, segment {called} offsets {place.start_offset} to "
                f"{place.end_offset}: {place.detail}"
            )

    def _is_wanted(self, place: LostPlace) -> bool | None:
        """Whether the bytes are still needed; None: memory does not have the segment, or the chunk.

        O(log chunks).
        """
        if place.chunk.object_name not in self._metadata.objects:
            return False
        segment = self._metadata.segments.get(place.segment_id)
        if segment is None or _is_linked(segment, place):
            # A merge may have given its chunks to a segment that is known in part.
            return False if self._metadata.whole else None
        start = max(place.start_offset, segment.start_offset)
        if start >= place.end_offset or start >= segment.storage_length:
            return False
        if not segment.chunks.knows(start, start + 1):
            return None
        chunk = segment.find_chunk(start)
        return chunk is not None and _block(chunk) == _block(place.chunk)

    def _is_missing(self, place: LostPlace) -> bool:
        """Whether the segment is missing, or has given the place away, and its object is not: a
        merge gives a source's chunks to its target.
        """
        segment = self._metadata.segments.get(place.segment_id)
        return (
            segment is None or _is_linked(segment, place)
        ) and place.chunk.object_name in self._metadata.objects


def _is_linked(segment: SegmentMetadata, place: LostPlace) -> bool:
    """Whether a source of a merge, of which a part is linked, has given the place to its target."""
    return segment.merged_into is not None and place.end_offset <= segment.start_offset


def _moved(
    chunks: Mapping[int, Iterable[ChunkRecord]], places: Iterable[LostPlace]
) -> list[LostPlace]:
    """The places in the segments that have their chunks now."""
    blocks = defaultdict[_Block, list[LostPlace]](list)
    for place in places:
        blocks[_block(place.chunk)].append(place)
    return [
        moved
        for segment_id, found in chunks.items()
        for chunk in found
        if _block(chunk) in blocks
        for place in blocks[_block(chunk)]
        if (moved := _moved_to(segment_id, chunk, place)) is not None
    ]


def _moved_to(segment_id: int, chunk: ChunkRecord, place: LostPlace) -> LostPlace | None:
    """The place in the segment that has the chunk now; None if its bytes are not in this chunk."""
    start = place.key[2] - chunk.block_start_offset + chunk.start_offset
    end = start + place.end_offset - place.start_offset
    if start < chunk.start_offset or end > chunk.end_offset:
        return None
    return place._replace(segment_id=segment_id, chunk=chunk, start_offset=start, end_offset=end)


def _block(chunk: ChunkRecord) -> _Block:
    return chunk.object_name, chunk.block_offset
