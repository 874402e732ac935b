"""When chunks and attributes of an active segment may leave memory, and what operations on their
way keep there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from durablelog.catalog.catalog_records import CatalogTotals
from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.metadata_needs import ALL_CHUNKS, ChunkNeed
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    ChunkReplacement,
    CreateOperation,
    DeleteOperation,
    LinkChunksOperation,
    MergeOperation,
    Operation,
    ReplaceChunksOperation,
    SealOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segmentstore.contracts.attribute_table import UnknownAttributeError
from segmentstore.contracts.attributes import KeyedUpdate, UpdateType
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import BadOffsetError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid

KEYS = [bytes([number]) * 16 for number in range(6)]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)


def updates(values: dict[int, int]) -> tuple[KeyedUpdate, ...]:
    return tuple((KEYS[key], UpdateType.REPLACE, value, None) for key, value in values.items())


class Bench:
    """Segments `one` and `two`: each has chunks in pages 0, 30 and 60, and four attributes. All of
    it is written.
    """

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(0)
        self.updater = MetadataUpdater(self.metadata)
        self.one, self.two = (
            self.put(CreateOperation(name, updates=updates({0: 0, 1: 1, 2: 2, 3: 3})))
            for name in ("one", "two")
        )
        chunks = []
        for segment_id in (self.one, self.two):
            append = AppendOperation(segment_id, 0, bytes(70))
            append.sequence_number = self.updater.take_sequence_numbers()
            self.updater.replay(append)
            chunks += [(segment_id, chunk(segment_id, at)) for at in range(0, 70, 10)]
        self.put(StorageUpdateOperation([ObjectRecord("o", 1000, 1)], chunks))
        self.updater.changes.begin(self.metadata)
        self.write()

    @property
    def changes(self) -> MetadataChanges:
        return self.updater.changes

    def segment(self, segment_id: int) -> SegmentMetadata:
        return self.metadata.segments[segment_id]

    def accept(self, operation: Operation) -> Operation:
        self.updater.accept(operation, 1000)
        return operation

    def put(self, operation: Operation) -> int:
        self.updater.commit((self.accept(operation),))
        return operation.sequence_number

    def write(self) -> None:
        """Into a catalog without a reader."""
        frozen = self.changes.freeze(CatalogTotals(self.metadata.segment_count))
        while frozen.encode_some(100) is not None:
            pass
        self.changes.written()

    def may_forget(self, segment_id: int) -> bool:
        return self.updater.may_forget_chunks(self.segment(segment_id))

    def known(self, segment_id: int) -> dict[bytes, int | None]:
        return dict(self.segment(segment_id).attributes.known())


def chunk(segment_id: int, start: int, length: int = 10) -> ChunkRecord:
    return ChunkRecord(start, length, "o", start, segment_id, start)


def replacement(bench: Bench) -> Operation:
    old = (chunk(bench.one, 30), chunk(bench.one, 40))
    new = (chunk(bench.one, 30, 20)._replace(object_name="new"),)
    return ReplaceChunksOperation(
        [ObjectRecord("new", 1, 1)], [ChunkReplacement(bench.one, old, new)]
    )


OPERATIONS: dict[str, Callable[[Bench], Operation]] = {
    "truncate": lambda bench: TruncateOperation(bench.one, 35),
    "replace": replacement,
    "delete": lambda bench: DeleteOperation(bench.one),
    "merge": lambda bench: MergeOperation(bench.two, bench.one),
}
"""Those that need chunks of segment one, or remove it."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_chunks_stay_that_an_operation_on_its_way_needs(name: str) -> None:
    bench = Bench()
    operation = bench.accept(OPERATIONS[name](bench))
    assert not bench.may_forget(bench.one)
    with pytest.raises(AssertionError):
        bench.updater.forget_pages(bench.segment(bench.one), [0])
    assert bench.may_forget(bench.two)
    bench.updater.forget_pages(bench.segment(bench.two), [0, 30])
    bench.updater.commit((operation,))
    assert_metadata_valid(bench.metadata)
    assert bench.metadata.partial == {bench.two}
    if name != "delete":
        assert bench.may_forget(bench.one)


def test_chunks_of_a_source_stay_while_it_is_linked_or_its_target_removed() -> None:
    bench = Bench()
    bench.put(MergeOperation(bench.two, bench.one))
    source = bench.segment(bench.one)
    bench.updater.forget_pages(source, [0])
    link = StorageUpdateOperation(links=[(bench.two, bench.one)])
    some = LinkChunksOperation(bench.two, bench.one, 40)
    delete, truncate = DeleteOperation(bench.two), TruncateOperation(bench.two, 140)
    in_slices = DeleteOperation(bench.two, in_slices=True)
    unknown = bench.updater.unknown
    everything = [ChunkNeed(bench.one, 0, ALL_CHUNKS)]
    assert unknown(link) == unknown(delete) == unknown(truncate) == everything
    assert unknown(some) == [ChunkNeed(bench.one, 0, 40)]
    assert unknown(in_slices) == unknown(TruncateOperation(bench.two, 139)) == []
    source.chunks.learn(0, [chunk(bench.one, at) for at in (0, 10, 20)])
    for operation in (link, some, delete, truncate, in_slices):
        assert bench.may_forget(bench.one)
        bench.accept(operation)
        assert not bench.may_forget(bench.one)
        bench.updater.rollback()
    bench.put(LinkChunksOperation(bench.two, bench.one, 40))
    assert bench.may_forget(bench.one)
    bench.put(StorageUpdateOperation(links=link.links))
    assert_metadata_valid(bench.metadata)
    assert len(bench.segment(bench.two).chunks) == 14


def test_what_is_about_to_be_merged_is_needed_by_a_deletion_behind_it() -> None:
    bench = Bench()
    bench.updater.forget_pages(bench.segment(bench.one), [0])
    nested = bench.put(CreateOperation("nested"))
    for target, source in ((nested, bench.one), (bench.two, nested)):
        merge = bench.accept(MergeOperation(target, source))
        assert not bench.may_forget(source)
        deletion = DeleteOperation(target)
        assert ChunkNeed(bench.one, 0, ALL_CHUNKS) in bench.updater.unknown(deletion)
        bench.updater.commit((merge,))
        assert bench.may_forget(bench.one)
        assert ChunkNeed(bench.one, 0, ALL_CHUNKS) in bench.updater.unknown(deletion)
    assert bench.updater.unknown(DeleteOperation(bench.two, in_slices=True)) == []


def test_chunks_stay_until_the_last_operation_that_needs_some_is_committed() -> None:
    bench = Bench()
    first = bench.accept(TruncateOperation(bench.one, 10))
    second = bench.accept(replacement(bench))
    third = bench.accept(TruncateOperation(bench.one, 20))
    for operation, may_forget in ((first, False), (second, False), (third, True)):
        assert not bench.may_forget(bench.one)
        bench.updater.commit((operation,))
        assert bench.may_forget(bench.one) == may_forget


def test_an_operation_that_is_refused_or_rolled_back_keeps_no_chunks() -> None:
    bench = Bench()
    with pytest.raises(BadOffsetError):
        bench.accept(TruncateOperation(bench.one, 71))
    assert bench.may_forget(bench.one)
    bench.accept(TruncateOperation(bench.one, 10))
    bench.accept(DeleteOperation(bench.two))
    bench.updater.rollback()
    assert bench.may_forget(bench.one)
    assert bench.may_forget(bench.two)


def test_an_operation_that_is_replayed_keeps_no_chunks() -> None:
    bench = Bench()
    operation = TruncateOperation(bench.one, 10)
    operation.sequence_number = bench.updater.take_sequence_numbers()
    bench.updater.replay(operation)
    assert bench.may_forget(bench.one)


def test_pages_that_left_memory_make_a_segment_partial_and_the_last_one_never_leaves() -> None:
    bench = Bench()
    segment = bench.segment(bench.one)
    bench.updater.forget_pages(segment, [60, 7])
    assert segment.whole
    assert not bench.metadata.partial
    bench.updater.forget_pages(segment, [30, 60])
    assert segment.chunks.gaps(0, 70) == [(30, 60)]
    assert bench.metadata.partial == {bench.one}
    assert not bench.metadata.whole
    assert_metadata_valid(bench.metadata)
    # What does not need them goes on.
    append = AppendOperation(bench.one, 70, bytes(40))
    append.sequence_number = bench.updater.take_sequence_numbers()
    bench.updater.replay(append)
    added = [(bench.one, chunk(bench.one, at)) for at in range(70, 110, 10)]
    bench.put(StorageUpdateOperation(chunks=added))
    bench.put(SealOperation(bench.one))
    bench.put(TruncateOperation(bench.one, 25))
    assert segment.chunks.gaps(0, 110) == [(30, 60)]
    assert_metadata_valid(bench.metadata)


# --- attributes -----------------------------------------------------------------------------------


def test_attributes_stay_that_changed_since_the_write_before_the_last_one() -> None:
    bench = Bench()
    segment = bench.segment(bench.one)
    bench.put(UpdateAttributesOperation(bench.one, updates=updates({0: 10, 4: 14})))
    bench.put(UpdateAttributesOperation(bench.two, updates=updates({3: 13})))
    bench.write()
    bench.put(UpdateAttributesOperation(bench.one, updates=updates({1: 11})))
    assert bench.changes.attributes_in_use(bench.one) == {KEYS[0], KEYS[1], KEYS[4]}
    bench.updater.forget_attributes(segment)
    assert bench.known(bench.one) == {KEYS[0]: 10, KEYS[1]: 11, KEYS[4]: 14}
    assert len(segment.attributes) == 5
    assert bench.metadata.partial == {bench.one}
    bench.write()
    assert bench.changes.attributes_in_use(bench.one) == {KEYS[1]}
    assert bench.changes.attributes_in_use(bench.two) == set()
    bench.updater.forget_attributes(segment)
    assert bench.known(bench.one) == {KEYS[1]: 11}
    bench.write()
    bench.updater.forget_attributes(segment)
    assert bench.known(bench.one) == {}
    assert len(segment.attributes) == 5


def test_attributes_leave_only_when_what_was_frozen_is_written() -> None:
    bench = Bench()
    bench.put(UpdateAttributesOperation(bench.one, updates=updates({0: 10})))
    frozen = bench.changes.freeze(CatalogTotals(2))
    with pytest.raises(AssertionError):
        bench.updater.forget_attributes(bench.segment(bench.one))
    while frozen.encode_some(100) is not None:
        pass
    bench.changes.written()
    bench.updater.forget_attributes(bench.segment(bench.one))
    assert bench.known(bench.one) == {KEYS[0]: 10}


@pytest.mark.parametrize("removed", [False, True])
def test_attributes_of_an_operation_on_its_way_stay_until_it_is_committed(*, removed: bool) -> None:
    bench = Bench()
    segment = bench.segment(bench.one)
    value = -(2**63) if removed else 12
    operation = bench.accept(
        UpdateAttributesOperation(bench.one, updates=updates({2: value, 5: 15}))
    )
    bench.updater.forget_attributes(segment)
    # As they are committed: one of them is not there yet.
    assert bench.known(bench.one) == {KEYS[2]: 2, KEYS[5]: None}
    bench.updater.commit((operation,))
    assert bench.known(bench.one) == {KEYS[2]: None if removed else 12, KEYS[5]: 15}
    assert len(segment.attributes) == (4 if removed else 5)
    with pytest.raises(UnknownAttributeError):
        bench.accept(UpdateAttributesOperation(bench.one, updates=updates({2: 1, 3: 1})))
    assert bench.updater.pending[bench.one].idle
    assert_metadata_valid(bench.metadata)


# --- pages that the catalog has -------------------------------------------------------------------


def test_a_page_is_written_if_the_catalog_has_it_as_it_is() -> None:
    bench = Bench()

    def written() -> list[int]:
        keys = bench.segment(bench.one).chunks.page_keys
        return [key for key in keys if bench.changes.is_page_written(bench.one, key)]

    assert written() == [0, 30, 60]
    bench.put(replacement(bench))
    assert written() == [0, 60]
    bench.put(TruncateOperation(bench.one, 15))
    # Its key is another now.
    assert bench.segment(bench.one).chunks.page_keys == [10, 30, 60]
    assert written() == [60]
    frozen = bench.changes.freeze(CatalogTotals(2))
    assert written() == []
    while frozen.encode_some(100) is not None:
        pass
    assert written() == []
    bench.changes.written()
    assert written() == [10, 30, 60]
    append = AppendOperation(bench.one, 70, bytes(10))
    append.sequence_number = bench.updater.take_sequence_numbers()
    bench.updater.replay(append)
    assert written() == [10, 30, 60]
    bench.put(StorageUpdateOperation(chunks=[(bench.one, chunk(bench.one, 70))]))
    assert written() == [10, 30]
    bench.changes.end()
    assert written() == []


def test_a_deleted_segment_loses_attributes_that_memory_does_not_know_by_a_range() -> None:
    bench = Bench()
    bench.updater.forget_attributes(bench.segment(bench.one))
    bench.put(DeleteOperation(bench.one))
    assert_metadata_valid(bench.metadata)
    assert not bench.metadata.partial
    frozen = bench.changes.freeze(CatalogTotals(1))
    batch = frozen.encode_some(1000)
    assert batch is not None
    emptied = {(start[0], int.from_bytes(start[1:9])) for start, _, end in batch if end}
    assert emptied == {(3, bench.one), (4, bench.one)}
