"""Rules that put operations of all kinds into the metadata of a container, for state machines."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from durablelog.operations import (
    AppendOperation,
    ArchiveOperation,
    ChunkReplacement,
    CreateOperation,
    DeleteOperation,
    DeletionClockOperation,
    LinkChunksOperation,
    MergeOperation,
    ObjectsDeletedOperation,
    Operation,
    ReleaseChunksOperation,
    ReplaceChunksOperation,
    SealOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segmentstore.contracts.archive_metadata import (
    HotCopiesDeleted,
    OffloadBegun,
    OffloadCompleted,
)
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, KeyedUpdate, UpdateType
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from tests.tier2.archive.sample_parts import attempt_of_index

NAMES: Final = ("a", "b", "c", "ä/ö")
LINKED: Final = "linked"
"""A name that `merge_whole` gives alone."""

names = st.sampled_from(NAMES)
attributes = st.dictionaries(
    st.integers(0, 9), st.one_of(st.integers(-3, 3), st.just(ATTRIBUTE_UNSET)), max_size=6
)


def key_of(number: int) -> bytes:
    return bytes([number]) * 16


def updates_of(values: dict[int, int]) -> tuple[KeyedUpdate, ...]:
    return tuple((key_of(key), UpdateType.REPLACE, value, None) for key, value in values.items())


class OperationsMachine(RuleBasedStateMachine):
    """Of a class below it are what the metadata are, and how operations come into them."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = 0

    @property
    def metadata(self) -> ContainerMetadata:
        """All there are, committed."""
        raise NotImplementedError

    def put(self, operation: Operation) -> None:
        """Accept it, if it is accepted, and commit it."""
        raise NotImplementedError

    def settle(self) -> None:
        """Have everything where it would be in a while."""
        raise NotImplementedError

    def one(self, data: st.DataObject, *, open_only: bool = False) -> SegmentMetadata | None:
        found = [
            each
            for each in self.metadata.segments.values()
            if each.merged_into is None and not (open_only and each.sealed)
        ]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(name=names, values=attributes)
    def create(self, name: str, values: dict[int, int]) -> None:
        self.put(CreateOperation(name, updates=updates_of(values)))

    @rule(data=st.data(), length=st.integers(1, 9), values=attributes)
    def append(self, data: st.DataObject, length: int, values: dict[int, int]) -> None:
        segment = self.one(data, open_only=True)
        if segment is not None:
            keyed = {
                key_of(key): value
                for key, value in values.items()
                if value != ATTRIBUTE_UNSET or segment.attributes.get(key_of(key)) is not None
            }
            self.put(
                AppendOperation(segment.segment_id, segment.length, bytes(length), keyed or None)
            )

    @rule(data=st.data(), values=attributes)
    def update(self, data: st.DataObject, values: dict[int, int]) -> None:
        segment = self.one(data)
        if segment is not None:
            self.put(UpdateAttributesOperation(segment.segment_id, updates=updates_of(values)))

    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        segment = self.one(data)
        if segment is not None:
            self.put(SealOperation(segment.segment_id))

    @rule(data=st.data(), in_slices=st.booleans())
    def truncate(self, data: st.DataObject, in_slices: bool) -> None:
        segment = self.one(data)
        if segment is not None:
            offset = data.draw(st.integers(segment.start_offset, segment.length))
            self.put(TruncateOperation(segment.segment_id, offset, in_slices=in_slices))

    @rule(data=st.data(), in_slices=st.booleans())
    def delete(self, data: st.DataObject, in_slices: bool) -> None:
        segment = self.one(data)
        if segment is not None:
            self.put(DeleteOperation(segment.segment_id, in_slices=in_slices))

    @precondition(lambda self: self.metadata.releasing)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ids = st.sampled_from(sorted(self.metadata.releasing))
        self.put(
            ReleaseChunksOperation(
                [
                    (each, data.draw(st.integers(0, self.metadata.releasing[each].release_end + 1)))
                    for each in data.draw(st.lists(ids, min_size=1, max_size=3))
                ]
            )
        )

    @rule(data=st.data(), in_slices=st.booleans())
    def make_anew(self, data: st.DataObject, in_slices: bool) -> None:
        segment = self.one(data)
        if segment is not None:
            self.put(DeleteOperation(segment.segment_id, in_slices=in_slices))
            self.put(CreateOperation(segment.name))

    @rule(data=st.data(), values=attributes)
    def merge(self, data: st.DataObject, values: dict[int, int]) -> None:
        source, target = self.one(data), self.one(data, open_only=True)
        if source is not None and target is not None and source is not target:
            self.put(SealOperation(source.segment_id))
            target_id, source_id = target.segment_id, source.segment_id
            self.put(MergeOperation(target_id, source_id, updates=updates_of(values)))

    @precondition(lambda self: LINKED not in self.metadata.names)
    @rule(data=st.data(), pieces=st.integers(1, 5))
    def merge_whole(self, data: st.DataObject, pieces: int) -> None:
        """A source that is whole in Tier 2 before it is merged: it is linked at once."""
        target = self.one(data, open_only=True)
        if target is None or target.merges:
            return
        self.put(CreateOperation(LINKED))
        source = self.metadata.segments[self.metadata.names[LINKED]]
        for _ in range(pieces):
            self.put(AppendOperation(source.segment_id, source.length, bytes(2)))
        record, found = self.new_object(), []
        for segment in (source, target):
            for start in range(segment.storage_length, segment.length):
                chunk = ChunkRecord(start, 1, record.name, start, segment.segment_id, start)
                found.append((segment.segment_id, chunk))
        self.put(StorageUpdateOperation([record], found))
        if data.draw(st.booleans()):
            self.settle()
        self.put(SealOperation(source.segment_id))
        self.put(MergeOperation(target.segment_id, source.segment_id))
        if data.draw(st.booleans()):
            self.settle()
        self.put(StorageUpdateOperation(links=[(target.segment_id, source.segment_id)]))

    def new_object(self) -> ObjectRecord:
        self.objects += 1
        # Neither the order of names nor that of time alone.
        return ObjectRecord(f"{self.objects * 7 % 10}/{self.objects}", 10_000, self.objects)

    @rule(data=st.data())
    def upload(self, data: st.DataObject) -> None:
        record = self.new_object()
        found = []
        for segment in self.metadata.segments.values():
            start = segment.storage_length
            if segment.find_merge(start) is not None:
                continue
            end = segment.own_end(start)
            while start < end and data.draw(st.integers(0, 4)):
                length = data.draw(st.integers(1, min(3, end - start)))
                segment_id = segment.segment_id
                chunk = ChunkRecord(start, length, record.name, start * 9, segment_id, start)
                found.append((segment_id, chunk))
                start += length
        self.put(StorageUpdateOperation([record], found))

    @rule()
    def upload_all(self) -> None:
        record, found = self.new_object(), []
        for segment in self.metadata.segments.values():
            start = segment.storage_length
            end = segment.own_end(start)
            if segment.find_merge(start) is None and start < end:
                chunk = ChunkRecord(start, end - start, record.name, 0, segment.segment_id, start)
                found.append((segment.segment_id, chunk))
        self.put(StorageUpdateOperation([record], found))

    @rule()
    def link(self) -> None:
        links = []
        for target in self.metadata.segments.values():
            stored = target.storage_length
            for merge in target.merges:
                source = self.metadata.segments[merge.source_id]
                if source.storage_length != source.length or not (
                    merge.offset <= stored < merge.end_offset
                ):
                    break
                links.append((target.segment_id, merge.source_id))
                stored = merge.end_offset
        if links:
            # One target: those behind may be sources of it.
            first = [each for each in links if each[0] == links[0][0]]
            self.put(StorageUpdateOperation(links=first))

    @rule(data=st.data())
    def link_some(self, data: st.DataObject) -> None:
        """A slice of a link, of a source that is whole in Tier 2."""
        for target in self.metadata.segments.values():
            for merge in target.merges[:1]:
                source = self.metadata.segments[merge.source_id]
                stored = source.storage_length == source.length and not source.merges
                if stored and merge.offset <= target.storage_length:
                    end = data.draw(st.integers(0, source.length - 1))
                    self.put(LinkChunksOperation(target.segment_id, source.segment_id, end))
                    return

    @rule(data=st.data(), stale=st.booleans())
    def replace(self, data: st.DataObject, stale: bool) -> None:
        found = [each for each in self.metadata.segments.values() if each.chunks]
        if not found:
            return
        segment = data.draw(st.sampled_from(found))
        chunks = list(segment.chunks)
        first = data.draw(st.integers(0, len(chunks) - 1))
        old = chunks[first : data.draw(st.integers(first, len(chunks) - 1)) + 1]
        start, end = old[0].start_offset, old[-1].end_offset
        record = self.new_object()
        cut = data.draw(st.integers(start + 1, end))
        new = [
            ChunkRecord(low, high - low, record.name, low, segment.segment_id, low)
            for low, high in ((start, cut), (cut, end))
            if low < high
        ]
        if stale:
            old[0] = old[0]._replace(block_offset=12345)
        replacement = ChunkReplacement(segment.segment_id, tuple(old), tuple(new))
        self.put(ReplaceChunksOperation([record], [replacement]))

    @precondition(lambda self: self.metadata.garbage)
    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        garbage = st.sampled_from(list(self.metadata.garbage))
        self.put(ObjectsDeletedOperation(data.draw(st.lists(garbage, max_size=3))))

    @rule(ends=st.booleans(), hot_deleted=st.booleans())
    def archive(self, ends: bool, hot_deleted: bool) -> None:
        """A part of the log: begun, maybe complete, maybe the log's no more."""
        archive = self.metadata.archive
        part = attempt_of_index(archive.last_number)
        self.put(ArchiveOperation(OffloadBegun(part)))
        if ends:
            self.put(ArchiveOperation(OffloadCompleted(part.number, part.uid, 7)))
        elif hot_deleted and archive.hot_deleted_count < archive.count:
            change = HotCopiesDeleted(archive.last_number, archive.count)
            self.put(ArchiveOperation(change))

    @rule(clock_ms=st.integers(0, 100), back=st.integers(0, 9))
    def read_clock(self, clock_ms: int, back: int) -> None:
        through = max(0, self.metadata.sequence_number - back)
        self.put(DeletionClockOperation(clock_ms, bytes(16), 5, through))
