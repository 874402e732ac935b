"""What operations changed in a container's metadata since the catalog was last written, by key.

The metadata updater notes each change, live and in replay. A checkpoint freezes what there is; the
frozen set is encoded later, in parts, while operations go on. Pure.

Values noted by key are immutable. Records of segments are not, and are copied on write: a segment
whose generation is not that of the changes has not changed since they were last frozen. So it is
noted before its first change, and a frozen set that has not encoded it takes its record then.

A store whose catalog is empty needs every key. Nothing is noted then: the first frozen set takes
the segments whole, with their attributes and chunks, in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from durablelog.catalog.catalog_keys import (
    CatalogAttributeKey,
    ChunkPageKey,
    ChunkPlaceKey,
    DeletionClockKey,
    GarbageKey,
    NameKey,
    ObjectKey,
    SegmentIdKey,
    attribute_range,
    chunk_page_range,
)
from durablelog.catalog.catalog_records import (
    ChunkPlace,
    LiveObjectRecord,
    SegmentRecord,
    encode_attribute,
    encode_chunk_page,
    encode_chunk_place,
    encode_deletion_clock,
    encode_garbage,
    encode_object,
    encode_segment,
    encode_segment_id,
)
from durablelog.catalog.key_store import KeyBatch
from segmentstore.contracts.attribute_pages import AttributePage
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeKey
from segmentstore.contracts.chunk_list import PageContent
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import (
    ContainerMetadata,
    DeletionClockReading,
    GarbageObject,
    LiveObject,
    SegmentMetadata,
)

SINGLE_DELETES_MAX: Final = 64
"""A deleted segment with more pages and attributes loses them by ranges of keys."""
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
    )


def _whole(segment: SegmentMetadata) -> WholeSegment:
    return WholeSegment(
        segment_record(segment), segment.attributes.pages(), segment.chunks.page_contents()
    )


class _Tables:
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
    )

    def __init__(self) -> None:
        self.segments: dict[int, FrozenSegment] = {}
        self.emptied: set[int] = set()
        """Deleted segments whose pages and attributes go by ranges."""
        self.names: dict[str, int | None] = {}
        self.attributes: dict[tuple[int, AttributeKey], int] = {}
        self.pages: dict[tuple[int, int], PageContent | None] = {}
        self.places: dict[tuple[str, int, int], ChunkRecord | None] = {}
        self.objects: dict[str, LiveObjectRecord | None] = {}
        self.garbage: dict[tuple[int, str], GarbageObject | None] = {}
        self.clock: DeletionClockReading | None = None


class MetadataChanges:
    """What is to be written into the catalog. It belongs to one container's metadata updater."""

    def __init__(self) -> None:
        self.generation = 1
        """Of the segments that changed since the last freeze; grows with each."""
        self.tracking = False
        """False: nothing is kept of what is noted."""
        self.by_key = False
        """Whether changes are kept by key: the catalog has what was there before them."""
        self._whole: ContainerMetadata | None = None
        self._tables = _Tables()
        self._created: set[int] = set()
        self._frozen: FrozenMetadata | None = None

    def begin(self, metadata: ContainerMetadata) -> None:
        """Track from now on: the catalog is empty, all of `metadata` is to be written. O(1).

        What was frozen before is abandoned.
        """
        self.end()
        self.tracking = True
        self._whole = metadata

    def begin_from(self, metadata: ContainerMetadata) -> None:
        """Track from now on: the catalog has exactly what `metadata` has now."""
        del metadata  # The catalog's keys say all that is known of it.
        self.end()
        self.tracking = self.by_key = True

    def end(self) -> None:
        """Track no more, and forget what is not written."""
        self.tracking = self.by_key = False
        self._whole = self._frozen = None
        self._renew()

    def freeze(self) -> FrozenMetadata:
        """What changed since the last time. The frozen set before is encoded to its end.

        O(1); the first time after `begin`, O(segments) of a pointer each, and O(objects).
        """
        assert self.tracking
        assert self._frozen is None or self._frozen.done, "the set before is not encoded"
        if self._whole is None:
            frozen = FrozenMetadata(self._tables)
        else:
            # Two dictionaries of a million would block the loop ten times as long as a list.
            segments = list(self._whole.segments.values())
            frozen = FrozenMetadata(_beside_segments(self._whole), segments)
        self._whole = None
        self.by_key = True
        self._renew()
        self._frozen = frozen
        return frozen

    def _renew(self) -> None:
        self.generation += 1
        self._tables = _Tables()
        self._created = set()

    # --- what operations change -------------------------------------------------------------------

    def note(self, segment: SegmentMetadata) -> None:
        """Before a change of the segment, if its generation is not this one."""
        segment.generation = self.generation
        if self.by_key:
            if self._frozen is not None:
                self._frozen.keep(segment)
            self._tables.segments[segment.segment_id] = segment

    def create(self, segment: SegmentMetadata) -> None:
        """There is a new segment, with its name. Its attributes are set behind it."""
        segment.generation = self.generation
        if self.by_key:
            self._tables.segments[segment.segment_id] = segment
            self._tables.names[segment.name] = segment.segment_id
            self._created.add(segment.segment_id)

    def remove(self, segment: SegmentMetadata) -> None:
        """The segment is deleted, with its pages and attributes. Before they are taken from it.

        O(pages), and attributes if they are few.
        """
        if segment.generation != self.generation:
            self.note(segment)
        if not self.by_key:
            return
        tables, segment_id = self._tables, segment.segment_id
        page_keys, count = segment.chunks.page_keys, len(segment.attributes)
        tables.segments[segment_id] = None
        if len(page_keys) + count > SINGLE_DELETES_MAX:
            tables.emptied.add(segment_id)
            return
        there = [each for page in segment.attributes.pages() for each in page.values]
        if segment_id in self._created:
            del tables.segments[segment_id]
            self._created.remove(segment_id)
            for key in page_keys:
                tables.pages.pop((segment_id, key), None)
            for attribute_id in there:
                tables.attributes.pop((segment_id, attribute_id), None)
        else:
            self.set_pages(segment_id, dict.fromkeys(page_keys))
            self.set_attributes(segment_id, dict.fromkeys(there, ATTRIBUTE_UNSET))

    def lose_name(self, name: str) -> None:
        """No segment has the name any more."""
        if self.by_key:
            self._tables.names[name] = None

    def set_attributes(self, segment_id: int, values: Mapping[AttributeKey, int]) -> None:
        """Attributes have new values; ATTRIBUTE_UNSET: they are removed."""
        if self.by_key:
            attributes = self._tables.attributes
            for attribute_id, value in values.items():
                attributes[segment_id, attribute_id] = value

    def set_pages(self, segment_id: int, pages: Mapping[int, PageContent | None]) -> None:
        """Pages have new contents, by key; None: they are removed."""
        if self.by_key:
            for key, content in pages.items():
                self._tables.pages[segment_id, key] = content

    def add_chunk(self, segment: SegmentMetadata, chunk: ChunkRecord) -> None:
        """The chunk was added behind the others of the segment."""
        if self.by_key:
            key, content = segment.chunks.last_page
            self._tables.pages[segment.segment_id, key] = content
            self.set_place(segment.segment_id, chunk)

    def set_place(self, segment_id: int, chunk: ChunkRecord) -> None:
        """The segment has the chunk."""
        if self.by_key:
            key = (chunk.object_name, segment_id, chunk.start_offset)
            self._tables.places[key] = chunk

    def lose_place(self, segment_id: int, chunk: ChunkRecord) -> None:
        """The segment no longer has the chunk."""
        if self.by_key:
            key = (chunk.object_name, segment_id, chunk.start_offset)
            self._tables.places[key] = None

    def set_object(self, live: LiveObject) -> None:
        """An object is new, or has more or less of the segments."""
        if self.by_key:
            self._tables.objects[live.record.name] = _object_record(live)

    def retire(self, garbage: GarbageObject) -> None:
        """An object became garbage."""
        if self.by_key:
            self._tables.objects[garbage.record.name] = None
            self.set_garbage(garbage)

    def set_garbage(self, garbage: GarbageObject) -> None:
        """What is known of garbage is new."""
        if self.by_key:
            self._tables.garbage[garbage.sequence_number, garbage.record.name] = garbage

    def lose_garbage(self, garbage: GarbageObject) -> None:
        """Garbage was deleted."""
        if self.by_key:
            self._tables.garbage[garbage.sequence_number, garbage.record.name] = None

    def set_clock(self, reading: DeletionClockReading) -> None:
        """The deletion clock has a new reading."""
        if self.by_key:
            self._tables.clock = reading


def _object_record(live: LiveObject) -> LiveObjectRecord:
    return LiveObjectRecord(live.record, live.live_chunks, live.live_bytes)


def _beside_segments(metadata: ContainerMetadata) -> _Tables:
    tables = _Tables()
    tables.objects = {name: _object_record(live) for name, live in metadata.objects.items()}
    tables.garbage = {(each.sequence_number, name): each for name, each in metadata.garbage.items()}
    tables.clock = metadata.deletion_clock
    return tables


class FrozenMetadata:
    """Changes as of one moment, to be written in parts; each is forgotten once it is encoded."""

    def __init__(self, tables: _Tables, whole: list[SegmentMetadata] | None = None) -> None:
        """`whole`: the segments there are, to be encoded with their names and all they have."""
        self.done = False
        """Whether all of it was encoded."""
        self._tables = tables
        self._whole = whole
        self._batch = KeyBatch()
        self._steps = self._encode()

    def __len__(self) -> int:
        """Keys left, about: names, pages and attributes of whole segments are not counted."""
        tables = self._tables
        return (
            len(self._whole or ())
            + sum(
                map(
                    len,
                    (
                        tables.segments,
                        tables.emptied,
                        tables.names,
                        tables.attributes,
                        tables.pages,
                        tables.places,
                        tables.objects,
                        tables.garbage,
                    ),
                )
            )
            + (tables.clock is not None)
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
        tables = self._tables
        emptied = frozenset(tables.emptied)
        # Ranges first: no later key is in one of them.
        while tables.emptied:
            segment_id = tables.emptied.pop()
            self._batch.delete_range(attribute_range(segment_id))
            self._batch.delete_range(chunk_page_range(segment_id))
            yield 2
        if self._whole is not None:
            yield from self._encode_whole(self._whole)
        while tables.segments:
            segment_id, segment = tables.segments.popitem()
            found = segment_record(segment) if isinstance(segment, SegmentMetadata) else segment
            assert not isinstance(found, WholeSegment)
            key = SegmentIdKey(segment_id).encode()
            self._set(key, None if found is None else encode_segment(found))
            yield 1
        while tables.names:
            name, named_id = tables.names.popitem()
            self._set(
                NameKey(name).encode(), None if named_id is None else encode_segment_id(named_id)
            )
            yield 1
        while tables.attributes:
            (segment_id, attribute_id), value = tables.attributes.popitem()
            if segment_id not in emptied:
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
        while tables.objects:
            name, live = tables.objects.popitem()
            self._set(ObjectKey(name).encode(), None if live is None else encode_object(live))
            yield 1
        while tables.garbage:
            garbage_key, garbage = tables.garbage.popitem()
            value_of_garbage = None if garbage is None else encode_garbage(garbage)
            self._set(GarbageKey(*garbage_key).encode(), value_of_garbage)
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
        self._batch.put(SegmentIdKey(segment_id).encode(), encode_segment(record))
        yield 1
        if record.merged_into is None:
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
        self._set(key, None if value == ATTRIBUTE_UNSET else encode_attribute(value))

    def _set_page(self, segment_id: int, page_key: int, content: PageContent | None) -> int:
        chunks = () if content is None else _chunks_of(content)
        key = ChunkPageKey(segment_id, page_key).encode()
        self._set(key, encode_chunk_page(chunks) if chunks else None)
        return 1 + len(chunks) // _CHUNKS_OF_A_STEP

    def _set_place(
        self, object_name: str, segment_id: int, start_offset: int, chunk: ChunkRecord | None
    ) -> None:
        value = None
        if chunk is not None:
            value = encode_chunk_place(ChunkPlace(chunk.length, *chunk[3:]))
        self._set(ChunkPlaceKey(object_name, segment_id, start_offset).encode(), value)

    def _set(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._batch.delete(key)
        else:
            self._batch.put(key, value)


def _chunks_of(content: PageContent) -> Sequence[ChunkRecord]:
    records, length = content
    return records[:length]
