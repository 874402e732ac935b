"""What operations changed in a container's metadata since the catalog was last written, by key.

The metadata updater notes each change, live and in replay. A checkpoint freezes what there is; the
frozen set is encoded and written later, while operations go on (`frozen_metadata.py`). Pure.

A segment whose generation is not that of the changes has not changed since they were last frozen.
So it is noted before its first change. One whose generation was written since is in the catalog as
it is: it may leave memory. What is lost is remembered until the catalog has lost it, too.

A store whose catalog is empty needs every key. Nothing is noted then: the first frozen set takes
the segments whole, with their attributes and chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from durablelog.catalog.catalog_records import CatalogTotals, LiveObjectRecord
from durablelog.catalog.frozen_metadata import ChangedRecords, FrozenMetadata
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeKey
from segmentstore.contracts.chunk_list import PageContent
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject, LiveObject

PLACES_MAX: Final = 160_000
"""Changed places of chunks that are many: they take some 40 MB. The next time that the table of
them grows it has 174,763, and takes 10 ms.
"""
SINGLE_DELETES_MAX: Final = 64
"""A deleted segment with more pages and attributes loses them by ranges of keys."""


class MetadataChanges:
    """What is to be written into the catalog. It belongs to one container's metadata updater."""

    def __init__(self) -> None:
        self.generation = 1
        """Of the segments that changed since the last freeze; grows with each."""
        self.tracking = False
        """False: nothing is kept of what is noted."""
        self.writes = 0
        """How often what was frozen has been written."""
        self.by_key = False
        """Whether changes are kept by key: the catalog has what was there before them."""
        self._whole: ContainerMetadata | None = None
        self._tables = ChangedRecords()
        self._created: set[int] = set()
        self._frozen: FrozenMetadata | None = None
        """What is being written."""
        self._frozen_generation = 0
        self._written_generation = -1
        self._lost: set[int | str] = set()
        """Ids and names that segments had, and none has, since the last freeze."""
        self._lost_before: set[int | str] = set()
        """The same of what is being written."""
        self._deleted: set[int] = set()
        """Ids of deleted segments with chunks that are still to be released: their records stay."""
        self._recent: Mapping[int, Mapping[AttributeKey, int]] = {}
        """Attributes of what was frozen last."""

    def begin(self, metadata: ContainerMetadata) -> None:
        """Track from now on: the catalog is empty, all of `metadata` is to be written. O(1).

        What was frozen before is abandoned.
        """
        assert metadata.whole, "the rest is nowhere else"
        self.end()
        self._deleted = metadata.deleted_ids()
        self.tracking = True
        self._whole = metadata

    def begin_from(self, metadata: ContainerMetadata) -> None:
        """Track from now on: the catalog has exactly what `metadata` has now."""
        self.end()
        self._deleted = metadata.deleted_ids()
        self.tracking = self.by_key = True
        self._written_generation = self.generation - 1

    def end(self) -> None:
        """Track no more, and forget what is not written."""
        self.tracking = self.by_key = False
        self._whole = self._frozen = None
        self._written_generation = -1
        self._lost_before = set()
        self._recent = {}
        self._renew()

    def freeze(self, totals: CatalogTotals) -> FrozenMetadata:
        """What changed since the last time, and the `totals` of this moment. What was frozen before
        is written.

        O(1); the first time after `begin`, O(segments) of a pointer each, and O(objects).
        """
        assert self.tracking
        assert self._frozen is None, "what was frozen before is not written"
        if self._whole is None:
            frozen = FrozenMetadata(self._tables, totals)
        else:
            # Two dictionaries of a million would block the loop ten times as long as a list.
            segments = list(self._whole.all_records())
            frozen = FrozenMetadata(_beside_segments(self._whole), totals, segments)
        self._frozen = frozen
        self._frozen_generation = self.generation
        self._recent = dict(self._tables.attributes)
        self._lost_before = self._lost
        self._whole = None
        self.by_key = True
        self._renew()
        return frozen

    def _renew(self) -> None:
        self.generation += 1
        self._tables = ChangedRecords()
        self._created = set()
        self._lost = set()

    def written(self) -> None:
        """The catalog has all of what was frozen last."""
        assert self._frozen is not None, "nothing is being written"
        assert self._frozen.done, "not all of it is encoded"
        self._frozen = None
        self.writes += 1
        self._written_generation = self._frozen_generation
        self._lost_before = set()

    @property
    def are_many(self) -> bool:
        """Whether so much has changed since the last freeze that another one is due. O(1)."""
        return len(self._tables.places) >= PLACES_MAX

    @property
    def all_written(self) -> bool:
        """Whether the catalog has all of what was frozen last, and nothing newer."""
        return self._frozen is None and self._written_generation >= 0

    @property
    def written_generation(self) -> int:
        """Of the newest changes that the catalog has; -1: it has none."""
        return self._written_generation

    def is_written(self, segment: SegmentMetadata) -> bool:
        """Whether the catalog has the segment as it is now."""
        return segment.generation <= self._written_generation

    def is_page_written(self, segment_id: int, key: int) -> bool:
        """Whether the catalog has a page of chunks as it is now."""
        return self.all_written and (segment_id, key) not in self._tables.pages

    def is_attribute_written(self, segment_id: int, key: AttributeKey) -> bool:
        """Whether the catalog has an attribute as it is now, or has none as there is none."""
        return self.all_written and key not in self._tables.attributes.get(segment_id, ())

    def attributes_in_use(self, segment_id: int) -> set[AttributeKey]:
        """The attributes that changed since the freeze before the last one. O(those).

        The catalog has the others as they are now, if what was frozen has been written.
        """
        now = self._tables.attributes.get(segment_id, {})
        return {*now, *self._recent.get(segment_id, {})}

    def is_lost(self, key: int | str) -> bool:
        """Whether no idle segment has the id, or the name, though the catalog may still say so."""
        return key in self._lost or key in self._lost_before or key in self._deleted

    # --- what operations change -------------------------------------------------------------------

    def note(self, segment: SegmentMetadata) -> None:
        """Before a change of the segment, if its generation is not this one."""
        segment.generation = self.generation
        if self.by_key:
            if self._frozen is not None:
                self._frozen.keep(segment)
            self._tables.segments[segment.segment_id] = segment
            if not segment.flushed:
                self._tables.unflushed.add(segment.segment_id)

    def create(self, segment: SegmentMetadata) -> None:
        """There is a new segment, with its name. Its attributes are set behind it."""
        segment.generation = self.generation
        if self.by_key:
            self._tables.segments[segment.segment_id] = segment
            self._tables.names[segment.name] = segment.segment_id
            self._created.add(segment.segment_id)

    def remove(self, segment: SegmentMetadata) -> None:
        """The segment is deleted, with its pages and attributes. Before they are taken from it.

        All its chunks are in memory. O(pages), and attributes if they are few.
        """
        if segment.generation != self.generation:
            self.note(segment)
        if not self.by_key:
            return
        tables, segment_id = self._tables, segment.segment_id
        self._lost.add(segment_id)
        self._deleted.discard(segment_id)
        page_keys, count = segment.chunks.page_keys, len(segment.attributes)
        tables.segments[segment_id] = None
        if len(page_keys) + count > SINGLE_DELETES_MAX or not segment.attributes.whole:
            tables.emptied.add(segment_id)
            return
        there = [each for page in segment.attributes.pages() for each in page.values]
        if segment_id in self._created:
            del tables.segments[segment_id]
            self._created.remove(segment_id)
            for key in page_keys:
                tables.pages.pop((segment_id, key), None)
            tables.attributes.pop(segment_id, None)
        else:
            self.set_pages(segment_id, dict.fromkeys(page_keys))
            self.set_attributes(segment_id, dict.fromkeys(there, ATTRIBUTE_UNSET))

    def put_off(self, segment: SegmentMetadata) -> None:
        """The segment is deleted, and its record, pages and attributes stay for now."""
        self._deleted.add(segment.segment_id)

    def lose_name(self, name: str) -> None:
        """No segment has the name any more."""
        if self.by_key:
            self._tables.names[name] = None
            self._lost.add(name)

    def set_attributes(self, segment_id: int, values: Mapping[AttributeKey, int]) -> None:
        """Attributes have new values; ATTRIBUTE_UNSET: they are removed."""
        if self.by_key and values:
            there = self._tables.attributes.get(segment_id)
            if there is None:
                self._tables.attributes[segment_id] = dict(values)
            else:
                there.update(values)

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


def _beside_segments(metadata: ContainerMetadata) -> ChangedRecords:
    tables = ChangedRecords()
    tables.objects = {name: _object_record(live) for name, live in metadata.objects.items()}
    tables.garbage = {(each.sequence_number, name): each for name, each in metadata.garbage.items()}
    tables.clock = metadata.deletion_clock
    return tables
