"""What is to be written into the catalog, as of one moment, and how it is encoded: in parts, while
operations go on. Pure.

Values by key are immutable. Records of segments are not, and are copied on write: one that is not
encoded yet is taken as it is, before the segment changes (`keep`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from durablelog.catalog.catalog_keys import (
    CatalogAttributeKey,
    DeletionClockKey,
    GarbageKey,
    NameKey,
    ObjectKey,
    TotalsKey,
    attribute_range,
    chunk_page_key,
    chunk_page_range,
    chunk_place_key,
    segment_id_key,
    unflushed_key,
)
from durablelog.catalog.catalog_records import (
    CatalogTotals,
    LiveObjectRecord,
    LongChunks,
    SegmentRecord,
    encode_attribute,
    encode_chunk_page,
    encode_chunk_place,
    encode_deletion_clock,
    encode_garbage,
    encode_object,
    encode_segment,
    encode_segment_id,
    encode_totals,
)
from durablelog.catalog.key_store import KeyBatch
from segmentstore.contracts.attribute_pages import AttributePage
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeKey
from segmentstore.contracts.chunk_list import PageContent
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject

_CHUNKS_OF_A_STEP: Final = 4
"""Chunks of a page that take about as long to encode as a key of another table."""


class WholeSegment(NamedTuple):
    """A segment with everything that has its id in its key, as it was at one moment."""

    record: SegmentRecord
    attributes: list[AttributePage]
    pages: list[tuple[int, PageContent]]


FrozenSegment: TypeAlias = SegmentMetadata | SegmentRecord | WholeSegment | None
"""A segment that did not change since, or what it was; None: deleted."""


def segment_record(segment: SegmentMetadata) -> SegmentRecord:
    """The segment's record in the catalog. O(merges)."""
    chunks = segment.chunks
    return SegmentRecord(
        segment.segment_id,
        segment.name,
        segment.created_ms,
        segment.last_modified_ms,
        segment.start_offset,
        segment.length,
        segment.storage_length,
        segment.sealed,
        segment.merged_into,
        len(segment.attributes),
        tuple(segment.merges),
        LongChunks(len(chunks), chunks.start_offset) if chunks.paged else None,
        segment.releasing,
        segment.deleted,
    )


def _whole(segment: SegmentMetadata) -> WholeSegment:
    return WholeSegment(
        segment_record(segment), segment.attributes.pages(), segment.chunks.page_contents()
    )


class ChangedRecords:
    """Last values by key; None, or ATTRIBUTE_UNSET, where the key is deleted."""

    __slots__ = (
        "attributes",
        "clock",
        "emptied",
        "garbage",
        "names",
        "objects",
        "pages",
        "places",
        "segments",
        "unflushed",
    )

    def __init__(self) -> None:
        self.segments: dict[int, FrozenSegment] = {}
        self.unflushed: set[int] = set()
        """Of the segments above: those that the catalog listed as unflushed before."""
        self.emptied: set[int] = set()
        """Deleted segments whose pages and attributes go by ranges."""
        self.names: dict[str, int | None] = {}
        self.attributes: dict[int, dict[AttributeKey, int]] = {}
        """By segment."""
        self.pages: dict[tuple[int, int], PageContent | None] = {}
        self.places: dict[tuple[str, int, int], ChunkRecord | None] = {}
        self.objects: dict[str, LiveObjectRecord | None] = {}
        self.garbage: dict[tuple[int, str], GarbageObject | None] = {}
        self.clock: DeletionClockReading | None = None


class FrozenMetadata:
    """Changes as of one moment, to be written in parts; each is forgotten once it is encoded."""

    def __init__(
        self,
        tables: ChangedRecords,
        totals: CatalogTotals,
        whole: list[SegmentMetadata] | None = None,
    ) -> None:
        """`whole`: the segments there are, to be encoded with their names and all they have."""
        self.done = False
        """Whether all of it was encoded."""
        self._tables = tables
        self._totals: CatalogTotals | None = totals
        self._whole = whole
        self._batch = KeyBatch()
        self._steps = self._encode()

    def __len__(self) -> int:
        """Keys left, about: names, pages and attributes of whole segments are not counted."""
        tables = self._tables
        return (
            len(self._whole or ())
            + sum(map(len, tables.attributes.values()))
            + sum(
                map(
                    len,
                    (
                        tables.segments,
                        tables.emptied,
                        tables.names,
                        tables.pages,
                        tables.places,
                        tables.objects,
                        tables.garbage,
                    ),
                )
            )
            + (tables.clock is not None)
            + (self._totals is not None)
        )

    def keep(self, segment: SegmentMetadata) -> None:
        """Before the first change of a segment: take its record, if it is still to be encoded.

        Of whole segments it is taken while any are left.
        """
        segments = self._tables.segments
        if self._whole:
            segments[segment.segment_id] = _whole(segment)
        elif segments.get(segment.segment_id) is segment:
            segments[segment.segment_id] = segment_record(segment)

    def encode_some(self, keys_max: int) -> KeyBatch | None:
        """The next about `keys_max` keys, fewer of pages; None: that was all.

        Parts are to be applied in their order. The catalog is that of the moment after the last.
        """
        self._batch = KeyBatch()
        left = keys_max
        for weight in self._steps:
            left -= weight
            if left <= 0:
                return self._batch
        self.done = True
        return self._batch if len(self._batch) else None

    def _encode(self) -> Iterator[int]:
        """Encode into the batch of the moment; after each step, about how many keys it was."""
        emptied = frozenset(self._tables.emptied)
        # Ranges first: no later key is in one of them.
        yield from self._encode_emptied()
        if self._whole is not None:
            yield from self._encode_whole(self._whole)
        yield from self._encode_segments()
        yield from self._encode_parts(emptied)
        yield from self._encode_objects()
        assert self._totals is not None
        self._batch.put(TotalsKey().encode(), encode_totals(self._totals))
        self._totals = None
        yield 1

    def _encode_emptied(self) -> Iterator[int]:
        emptied = self._tables.emptied
        while emptied:
            segment_id = emptied.pop()
            self._batch.delete_range(attribute_range(segment_id))
            self._batch.delete_range(chunk_page_range(segment_id))
            yield 2

    def _encode_segments(self) -> Iterator[int]:
        """Their records, whether they are unflushed, and names."""
        tables = self._tables
        while tables.segments:
            segment_id, segment = tables.segments.popitem()
            found = segment_record(segment) if isinstance(segment, SegmentMetadata) else segment
            assert not isinstance(found, WholeSegment)
            value = None if found is None else encode_segment(found)
            self._batch.set(segment_id_key(segment_id), value)
            unflushed = found is not None and not found.flushed
            if unflushed != (segment_id in tables.unflushed):
                self._batch.set(unflushed_key(segment_id), b"" if unflushed else None)
            yield 1
        while tables.names:
            name, named_id = tables.names.popitem()
            self._batch.set(
                NameKey(name).encode(), None if named_id is None else encode_segment_id(named_id)
            )
            yield 1

    def _encode_parts(self, emptied: frozenset[int]) -> Iterator[int]:
        """Attributes, pages and places of chunks; of `emptied` segments the places alone."""
        tables = self._tables
        while tables.attributes:
            segment_id, values = tables.attributes.popitem()
            if segment_id in emptied:
                continue
            for attribute_id, value in values.items():
                self._set_attribute(segment_id, attribute_id, value)
                yield 1
        while tables.pages:
            (segment_id, page_key), content = tables.pages.popitem()
            if segment_id not in emptied:
                yield self._set_page(segment_id, page_key, content)
            else:
                yield 1
        while tables.places:
            (object_name, segment_id, start), chunk = tables.places.popitem()
            self._set_place(object_name, segment_id, start, chunk)
            yield 1

    def _encode_objects(self) -> Iterator[int]:
        """Objects, garbage, and the clock that its age is counted by."""
        tables = self._tables
        while tables.objects:
            name, live = tables.objects.popitem()
            self._batch.set(ObjectKey(name).encode(), None if live is None else encode_object(live))
            yield 1
        while tables.garbage:
            garbage_key, garbage = tables.garbage.popitem()
            value = None if garbage is None else encode_garbage(garbage)
            self._batch.set(GarbageKey(*garbage_key).encode(), value)
            yield 1
        if tables.clock is not None:
            self._batch.put(DeletionClockKey().encode(), encode_deletion_clock(tables.clock))
            tables.clock = None
            yield 1

    def _encode_whole(self, segments: list[SegmentMetadata]) -> Iterator[int]:
        changed = self._tables.segments
        while segments:
            segment = segments.pop()
            found = changed.pop(segment.segment_id, None)
            yield from self._encode_all_of(
                found if isinstance(found, WholeSegment) else _whole(segment)
            )
        # They changed when they had been encoded.
        changed.clear()

    def _encode_all_of(self, found: WholeSegment) -> Iterator[int]:
        record, segment_id = found.record, found.record.segment_id
        self._batch.put(segment_id_key(segment_id), encode_segment(record))
        if not record.flushed:
            self._batch.put(unflushed_key(segment_id), b"")
        yield 1
        if record.has_name:
            self._batch.put(NameKey(record.name).encode(), encode_segment_id(segment_id))
            yield 1
        for page in found.attributes:
            for attribute_id, value in page.values.items():
                self._set_attribute(segment_id, attribute_id, value)
                yield 1
        for page_key, content in found.pages:
            yield self._set_page(segment_id, page_key, content)
            for chunk in _chunks_of(content):
                self._set_place(chunk.object_name, segment_id, chunk.start_offset, chunk)
                yield 1

    def _set_attribute(self, segment_id: int, attribute_id: AttributeKey, value: int) -> None:
        key = CatalogAttributeKey(segment_id, attribute_id).encode()
        self._batch.set(key, None if value == ATTRIBUTE_UNSET else encode_attribute(value))

    def _set_page(self, segment_id: int, page_key: int, content: PageContent | None) -> int:
        chunks = () if content is None else _chunks_of(content)
        key = chunk_page_key(segment_id, page_key)
        self._batch.set(key, encode_chunk_page(chunks) if chunks else None)
        return 1 + len(chunks) // _CHUNKS_OF_A_STEP

    def _set_place(
        self, object_name: str, segment_id: int, start_offset: int, chunk: ChunkRecord | None
    ) -> None:
        key = chunk_place_key(object_name, segment_id, start_offset)
        value = None if chunk is None else encode_chunk_place((chunk.length, *chunk[3:]))
        self._batch.set(key, value)


def _chunks_of(content: PageContent) -> Sequence[ChunkRecord]:
    records, length = content
    return records[:length]
