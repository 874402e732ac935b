"""SeenLosses: bytes of one container that reads found lost in Tier 2, until they are there again or
nobody wants them. Pure.

Rules of this file:

- a place is what one fetch asked for: an object, a block and a range of the segment it belongs to;
- it is forgotten when a fetch of it succeeds, or when the metadata do not know its object any more.
  It is also forgotten when the segment does not have those bytes there any more (truncated,
  deleted, replaced). Nothing else ends it: not time, and not a restart;
- places are bounded; those beyond are counted, and found again by reads of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError

PLACES_MAX: Final = 1000
"""Of one container."""
EXAMPLES_MAX: Final = 3
"""Named in health."""
DETAIL_MAX: Final = 300

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
    """What reads of one container found lost. `metadata` is the container's, and is only read."""

    def __init__(self, metadata: ContainerMetadata) -> None:
        self._metadata = metadata
        self.places: dict[PlaceKey, LostPlace] = {}
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
        """Note a fetch that failed; whether that was a loss: not of what nobody wants any more, or
        of a tier that is away.
        """
        if not isinstance(error, DataCorruptionError | ObjectNotFoundError | InvalidRangeError):
            return False
        detail = "it is gone" if isinstance(error, ObjectNotFoundError) else str(error)
        place = LostPlace(segment_id, chunk, start_offset, end_offset, detail[:DETAIL_MAX], now_ms)
        if not self._is_wanted(place):
            return False
        self.seen += 1
        known = self.places.get(place.key)
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
        """Forget what nobody wants any more; whether that was anything.

        O(places), and O(chunks) after a merge.
        """
        gone = [key for key, place in self.places.items() if not self._is_wanted(place)]
        moved = self._owners({self.places[key] for key in gone})
        for key in gone:
            del self.places[key]
        self.places.update({place.key: place for place in moved})
        return bool(gone)

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
            segment = self._metadata.segments.get(place.segment_id)
            called = repr(segment.name) if segment is not None else f"id {place.segment_id}"
            yield (
                f"object {name}, segment {called} offsets {place.start_offset} to "
                f"{place.end_offset}: {place.detail}"
            )

    def _is_wanted(self, place: LostPlace) -> bool:
        segment = self._metadata.segments.get(place.segment_id)
        if segment is None or place.chunk.object_name not in self._metadata.objects:
            return False
        start = max(place.start_offset, segment.start_offset)
        if start >= place.end_offset or start >= segment.storage_length:
            return False
        chunk = segment.find_chunk(start)
        return chunk is not None and _block(chunk) == _block(place.chunk)

    def _owners(self, places: set[LostPlace]) -> list[LostPlace]:
        """Those of the places that another segment has by now: a merge gives a source's chunks to
        its target.
        """
        metadata, blocks = self._metadata, defaultdict[tuple[str, int], list[LostPlace]](list)
        for place in places:
            if (
                place.segment_id not in metadata.segments
                and place.chunk.object_name in metadata.objects
            ):
                blocks[_block(place.chunk)].append(place)
        if not blocks:
            return []
        return [
            moved
            for segment in metadata.segments.values()
            for chunk in segment.chunks
            if _block(chunk) in blocks
            for place in blocks[_block(chunk)]
            if (moved := _moved(place, segment, chunk)) is not None
        ]


def _moved(place: LostPlace, segment: SegmentMetadata, chunk: ChunkRecord) -> LostPlace | None:
    """The place in the segment that has the chunk now; None if its bytes are not in this chunk."""
    start = place.key[2] - chunk.block_start_offset + chunk.start_offset
    end = start + place.end_offset - place.start_offset
    if start < chunk.start_offset or end > chunk.end_offset:
        return None
    return place._replace(
        segment_id=segment.segment_id, chunk=chunk, start_offset=start, end_offset=end
    )


def _block(chunk: ChunkRecord) -> tuple[str, int]:
    return chunk.object_name, chunk.block_offset
