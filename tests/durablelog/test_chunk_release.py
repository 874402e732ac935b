"""Truncations and deletions whose chunks are released in slices, and links in slices: what is
decided, what each slice does, and that nothing is different at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from durablelog import chunk_slices
from durablelog.chunk_slices import Slices
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import decode_operation, encode_operation
from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    DeleteOperation,
    LinkChunksOperation,
    MergeOperation,
    Operation,
    ReleaseChunksOperation,
    SealOperation,
    StorageUpdateOperation,
    TruncateOperation,
)
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from tests.support.suites import examples


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)
    monkeypatch.setattr(Slices, "chunks_max", 4)


class Bench:
    """Segments of chunks of ten bytes, each in an object of its own."""

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(0)
        self.updater = MetadataUpdater(self.metadata)
        self.objects = 0

    def put(self, operation: Operation) -> int:
        if isinstance(operation, AppendOperation):
            operation.sequence_number = self.updater.take_sequence_numbers()
            self.updater.replay(operation)
        else:
            self.updater.accept(operation, 1000)
            self.updater.commit((operation,))
        assert_metadata_valid(self.metadata)
        return operation.sequence_number

    def create(self, name: str, chunks: int) -> SegmentMetadata:
        segment = self.metadata.segments[self.put(CreateOperation(name))]
        self.append(segment, 10 * chunks)
        for _ in range(chunks):
            self.upload(segment)
        return segment

    def append(self, segment: SegmentMetadata, length: int) -> None:
        if length:
            self.put(AppendOperation(segment.segment_id, segment.length, bytes(length)))

    def upload(self, segment: SegmentMetadata, start: int | None = None, length: int = 10) -> str:
        start = segment.storage_length if start is None else start
        self.objects += 1
        name = f"o{self.objects}"
        chunk = ChunkRecord(start, length, name, 0, segment.segment_id, start)
        record = ObjectRecord(name, 1000, 1)
        self.put(StorageUpdateOperation([record], [(segment.segment_id, chunk)]))
        return name

    def truncate(self, segment: SegmentMetadata, offset: int) -> bool:
        merging = self.updater.is_merging(segment.segment_id)
        operation = chunk_slices.truncation(self.metadata, segment, offset, merging=merging)
        self.put(operation)
        return operation.in_slices

    def delete(self, segment: SegmentMetadata) -> bool:
        merging = self.updater.is_merging(segment.segment_id)
        operation = chunk_slices.deletion(self.metadata, segment, merging=merging)
        self.put(operation)
        return operation.in_slices

    def merge(self, target: SegmentMetadata, source: SegmentMetadata) -> None:
        self.put(SealOperation(source.segment_id))
        self.put(MergeOperation(target.segment_id, source.segment_id))

    def release(self, *releases: tuple[SegmentMetadata, int]) -> None:
        pairs = [(segment.segment_id, end) for segment, end in releases]
        self.put(ReleaseChunksOperation(pairs))


def is_releasing(segment: SegmentMetadata) -> bool:
    return segment.releasing


def is_detached(segment: SegmentMetadata) -> bool:
    return segment.detached


# --- what is decided ------------------------------------------------------------------------------


def test_a_deletion_goes_in_slices_if_it_is_of_more_chunks_than_one() -> None:
    bench = Bench()
    assert not bench.delete(bench.create("four", 4))
    assert bench.delete(bench.create("five", 5))
    target, source, nested = (bench.create(name, 2) for name in ("target", "source", "nested"))
    bench.merge(source, nested)
    bench.merge(target, source)
    assert bench.delete(target), "with sources that were not linked"


def test_a_truncation_goes_in_slices_if_more_chunks_are_below_or_they_are_not_known() -> None:
    bench = Bench()
    segment = bench.create("s", 12)
    assert not bench.truncate(segment, 49)
    assert segment.chunks.start_offset == 40
    assert not bench.truncate(segment, 50)
    assert bench.truncate(segment, 100)
    assert is_releasing(segment)
    assert bench.truncate(segment, 101), "they are to go first"
    bench.release((segment, 101))
    assert not is_releasing(segment)
    partial = bench.create("partial", 12)
    partial.chunks.forget([0])
    bench.metadata.partial.add(partial.segment_id)
    assert bench.truncate(partial, 35)


@pytest.mark.parametrize("deleted", [False, True])
def test_behind_a_merge_on_its_way_all_goes_in_slices(deleted: bool) -> None:
    bench = Bench()
    target, source = bench.create("target", 1), bench.create("source", 1)
    merge = MergeOperation(target.segment_id, source.segment_id)
    bench.updater.accept(merge, 1000)
    merging = bench.updater.is_merging(target.segment_id)
    assert merging
    operation = (
        chunk_slices.deletion(bench.metadata, target, merging=merging)
        if deleted
        else chunk_slices.truncation(bench.metadata, target, 5, merging=merging)
    )
    assert operation.in_slices
    bench.updater.commit((merge,))
    assert not bench.updater.is_merging(target.segment_id)
    assert not (bench.delete(target) if deleted else bench.truncate(target, 5))


def test_a_truncation_past_a_source_of_many_chunks_goes_in_slices() -> None:
    bench = Bench()
    target, source = bench.create("target", 1), bench.create("source", 5)
    bench.merge(target, source)
    assert not bench.truncate(target, 59)
    assert bench.truncate(target, 60)
    assert source.deleted
    assert not target.releasing


# --- what it does ---------------------------------------------------------------------------------


def test_what_is_deleted_in_slices_is_no_segment_and_its_objects_live_until_their_slice() -> None:
    bench = Bench()
    segment = bench.create("s", 5)
    bench.delete(segment)
    assert segment.deleted
    assert not bench.metadata.names
    assert not bench.metadata.segments
    assert list(bench.metadata.releasing.values()) == [segment]
    assert len(bench.metadata.objects) == 5
    assert not bench.metadata.garbage
    with pytest.raises(SegmentNotFoundError):
        bench.put(TruncateOperation(segment.segment_id, 10))
    again = bench.create("s", 1)
    assert again.segment_id != segment.segment_id
    bench.release((segment, 25))
    assert list(bench.metadata.garbage) == ["o1", "o2"]
    bench.upload(segment, 50)
    assert "o7" in bench.metadata.garbage, "no chunk of it is needed"
    bench.release((segment, 50))
    assert not bench.metadata.releasing
    assert list(bench.metadata.objects) == ["o6"]
    bench.release((segment, 50))
    assert bench.metadata.segments == {again.segment_id: again}


def test_sources_of_a_deleted_segment_are_released_on_their_own() -> None:
    bench = Bench()
    target, source, empty = (bench.create(*each) for each in (("t", 5), ("s", 2), ("e", 0)))
    bench.append(empty, 3)
    bench.merge(target, source)
    bench.merge(target, empty)
    bench.delete(target)
    assert list(bench.metadata.releasing.values()) == [target, source]
    assert (source.merged_into, target.merges) == (None, ())
    bench.release((source, 20), (target, 30))
    assert list(bench.metadata.releasing.values()) == [target]
    bench.release((target, 99))
    assert not bench.metadata.releasing
    assert not bench.metadata.objects


def test_a_segment_truncated_in_slices_is_as_ever_above_its_start() -> None:
    bench = Bench()
    segment = bench.create("s", 8)
    bench.truncate(segment, 65)
    assert (segment.start_offset, len(segment.chunks)) == (65, 8)
    assert segment.storage_length == segment.length
    bench.append(segment, 10)
    bench.upload(segment)
    bench.release((segment, 30))
    assert is_releasing(segment)
    # No further than the start, whatever is asked for.
    bench.release((segment, 90))
    assert [chunk.start_offset for chunk in segment.chunks] == [60, 70, 80]
    assert segment.flushed
    assert list(bench.metadata.garbage) == [f"o{number}" for number in range(1, 7)]


def test_nothing_follows_chunks_that_are_to_be_released_with_a_gap() -> None:
    bench = Bench()
    segment, source = bench.create("s", 5), bench.create("source", 1)
    bench.append(segment, 40)
    bench.merge(segment, source)
    bench.truncate(segment, 70)
    assert is_detached(segment)
    # Its upload began before the truncation.
    late = bench.upload(segment, 50, 40)
    assert late in bench.metadata.garbage
    bench.release((segment, 50))
    assert is_releasing(segment)
    bench.release((segment, 70))
    assert not is_detached(segment)
    bench.upload(segment, 70, 20)
    assert segment.storage_length == 90
    link = StorageUpdateOperation(links=[(segment.segment_id, source.segment_id)])
    bench.put(link)
    assert segment.storage_length == 100


def test_a_merge_is_linked_when_what_lies_below_the_start_has_been_released() -> None:
    bench = Bench()
    target, source = bench.create("t", 5), bench.create("s", 4)
    bench.merge(target, source)
    bench.truncate(target, 65)
    link = StorageUpdateOperation(links=[(target.segment_id, source.segment_id)])
    bench.put(link)
    assert len(target.merges) == 1, "it was on its way when the target was truncated"
    bench.release((target, 65))
    bench.put(StorageUpdateOperation(links=link.links))
    assert not target.merges
    assert [chunk.start_offset for chunk in target.chunks] == [60, 70, 80]


# --- links ----------------------------------------------------------------------------------------


def spans(segment: SegmentMetadata) -> list[tuple[int, int]]:
    return [(chunk.start_offset, chunk.block_segment_id) for chunk in segment.chunks]


def linked_in_part(bench: Bench, end: int) -> tuple[SegmentMetadata, SegmentMetadata]:
    target, source = bench.create("t", 1), bench.create("s", 5)
    bench.append(target, 3)
    bench.upload(target, length=3)
    bench.merge(target, source)
    bench.put(LinkChunksOperation(target.segment_id, source.segment_id, end))
    return target, source


def test_a_slice_of_a_link_moves_the_head_of_a_source() -> None:
    bench = Bench()
    target, source = linked_in_part(bench, 29)
    t, s = target.segment_id, source.segment_id
    assert spans(target) == [(0, t), (10, t), (13, s), (23, s)]
    assert spans(source) == [(20, s), (30, s), (40, s)]
    assert (source.start_offset, target.storage_length) == (20, 33)
    assert len(target.merges) == 1, "it is of the whole source until its end is linked"
    assert target.merges[0] == (13, 50, s)
    bench.put(LinkChunksOperation(t, s, 25))
    assert source.start_offset == 20
    bench.put(LinkChunksOperation(t, s, 49))
    assert spans(source) == [(40, s)]
    bench.put(StorageUpdateOperation(links=[(t, s)]))
    assert spans(target)[2:] == [(13 + at, s) for at in range(0, 50, 10)]
    assert target.storage_length == 63
    assert not target.merges
    assert s not in bench.metadata.segments


def test_a_slice_is_passed_over_where_a_segment_is_deleted_or_detached() -> None:
    bench = Bench()
    target, source = linked_in_part(bench, 10)
    bench.put(TruncateOperation(target.segment_id, 58, in_slices=True))
    assert is_detached(target)
    operation = LinkChunksOperation(target.segment_id, source.segment_id, 30)
    before = spans(source)
    bench.put(operation)
    assert spans(source) == before
    bench.release((target, 58))
    assert not is_detached(target)
    bench.put(LinkChunksOperation(operation.target_id, operation.source_id, 30))
    assert source.start_offset == 30
    assert spans(target) == [], "all of that lies below its start"
    assert target.storage_length == 58
    bench.delete(target)
    assert not bench.metadata.segments
    bench.put(LinkChunksOperation(operation.target_id, operation.source_id, 30))


def test_deletion_and_truncation_take_what_is_left_of_a_source_linked_in_part() -> None:
    for in_slices in (False, True):
        for deleted in (False, True):
            bench = Bench()
            target, source = linked_in_part(bench, 30)
            t = target.segment_id
            truncation = TruncateOperation(t, target.length, in_slices=in_slices)
            deletion = DeleteOperation(t, in_slices=in_slices)
            bench.put(deletion if deleted else truncation)
            assert source.segment_id not in bench.metadata.segments
            assert bool(bench.metadata.releasing) == in_slices
            bench.release((target, 99), (source, 40))
            bench.release((source, 99))
            assert not bench.metadata.objects
            assert not bench.metadata.releasing


# --- the same at the end --------------------------------------------------------------------------


class SlicesMachine(RuleBasedStateMachine):
    """The same operations with slices and without them; the first live, and in replay."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.replayed, self.whole = Bench(), Bench(), Bench()

    def put(self, operation: Operation) -> None:
        self.live.put(operation)
        encoded = b"".join(encode_operation(operation))
        self.replayed.updater.replay(decode_operation(encoded))
        at_once = decode_operation(encoded)
        if isinstance(at_once, DeleteOperation | TruncateOperation):
            at_once.in_slices = False
        if not isinstance(at_once, ReleaseChunksOperation | LinkChunksOperation):
            self.whole.updater.replay(at_once)
            assert_metadata_valid(self.whole.metadata)

    def one(self, data: st.DataObject) -> SegmentMetadata | None:
        found = [each for each in self.live.metadata.segments.values() if each.merged_into is None]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(name=st.sampled_from("abc"))
    def create(self, name: str) -> None:
        if name not in self.live.metadata.names:
            self.put(CreateOperation(name))

    @rule(data=st.data(), length=st.integers(1, 30))
    def append(self, data: st.DataObject, length: int) -> None:
        segment = self.one(data)
        if segment is not None and not segment.sealed:
            self.put(AppendOperation(segment.segment_id, segment.length, bytes(length)))

    @rule(pieces=st.integers(1, 9))
    def upload(self, pieces: int) -> None:
        """Of all that may go, as the storage writer does it."""
        self.live.objects += 1
        record = ObjectRecord(f"o{self.live.objects}", 10_000, 1)
        chunks = []
        for segment in self.live.metadata.segments.values():
            start, end = segment.storage_length, segment.own_end(segment.storage_length)
            if segment.detached or segment.find_merge(start) is not None:
                continue
            for at in range(start, min(end, start + pieces)):
                chunk = ChunkRecord(at, 1, record.name, 0, segment.segment_id, at)
                chunks.append((segment.segment_id, chunk))
        self.put(StorageUpdateOperation([record], chunks))

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        target, source = self.one(data), self.one(data)
        if target is None or source is None or target is source:
            return
        if not (source.start_offset or target.sealed or source.sealed):
            self.put(SealOperation(source.segment_id))
            self.put(MergeOperation(target.segment_id, source.segment_id))

    def linkable(self) -> Iterator[tuple[SegmentMetadata, SegmentMetadata]]:
        segments = self.live.metadata.segments
        for target in list(segments.values()):
            if target.merges and not target.detached:
                merge = target.merges[0]
                source = segments[merge.source_id]
                stored = source.storage_length == source.length and not source.merges
                if stored and merge.offset <= target.storage_length:
                    yield target, source

    @rule()
    def link(self) -> None:
        for target, source in self.linkable():
            ids = [(target.segment_id, source.segment_id)]
            self.put(StorageUpdateOperation(links=ids))
            return

    @rule(data=st.data())
    def link_some(self, data: st.DataObject) -> None:
        for target, source in self.linkable():
            end = data.draw(st.integers(0, source.chunks.last.end_offset - 1))
            self.put(LinkChunksOperation(target.segment_id, source.segment_id, end))

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

    @precondition(lambda self: self.live.metadata.releasing)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        segment_id = data.draw(st.sampled_from(sorted(self.live.metadata.releasing)))
        end = data.draw(st.integers(0, self.live.metadata.releasing[segment_id].release_end))
        self.put(ReleaseChunksOperation([(segment_id, end)]))

    def teardown(self) -> None:
        releasing = self.live.metadata.releasing
        while releasing:
            ends = [(each.segment_id, each.release_end) for each in releasing.values()]
            self.put(ReleaseChunksOperation(ends[:2]))
        for target, source in self.linkable():
            if source.start_offset:
                ids = [(target.segment_id, source.segment_id)]
                self.put(StorageUpdateOperation(links=ids))
        assert state_of(self.live.metadata) == state_of(self.replayed.metadata)
        live, whole = state_of(self.live.metadata), state_of(self.whole.metadata)
        assert live[:-1] == whole[:-1]
        # In another order, since a slice comes later.
        assert sorted(live[-1]) == sorted(whole[-1])


def state_of(metadata: ContainerMetadata) -> tuple[object, object, object, list[str]]:
    fields = set(SegmentMetadata.__slots__) - {"attributes", "chunks", "encoded", "generation"}
    segments = {
        segment.segment_id: [getattr(segment, field) for field in sorted(fields)]
        + [list(segment.chunks)]
        for segment in metadata.all_records()
    }
    objects = {
        name: (live.record, live.live_chunks, live.live_bytes)
        for name, live in metadata.objects.items()
    }
    return segments, metadata.names, objects, list(metadata.garbage)


TestSlices = SlicesMachine.TestCase
TestSlices.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(0, 130), st.integers(1, 9))
def test_the_reach_of_a_list_is_what_it_has_from_its_head_on(
    lengths: list[int], end: int, count_max: int
) -> None:
    chunks, position = ChunkList(), 7
    for length in lengths:
        chunks.append(ChunkRecord(position, length, "o", 0, 1, position))
        position += length
    below = [each for each in chunks if each.end_offset <= end][:count_max]
    assert chunks.reach(end, count_max) == (len(below), below[-1].end_offset if below else 7)
    keys = chunks.page_keys
    if len(keys) > 1:
        chunks.forget([keys[-2]])
        known = [each for each in below if each.start_offset < keys[-2]]
        expected = (len(known), known[-1].end_offset if known else 7)
        assert chunks.reach(end, count_max) == expected
