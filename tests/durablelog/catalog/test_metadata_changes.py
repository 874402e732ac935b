"""Any sequence of operations, frozen at any moment: the catalog is the metadata of that moment.

One container has segments leave memory, and chunks and attributes of those that stay, as far as
they may. It reads them from the catalog when an operation needs them. Another one has all of them
in memory, and is the model of the first.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Coroutine, Iterable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from durablelog.catalog import catalog_loading, metadata_changes, segment_loading
from durablelog.catalog.catalog_keys import ChunkPageKey, TotalsKey, UnflushedKey, unflushed_range
from durablelog.catalog.catalog_loading import load_active, load_metadata, load_totals
from durablelog.catalog.catalog_records import CatalogTotals, encode_chunk_page
from durablelog.catalog.frozen_metadata import FrozenMetadata, segment_record
from durablelog.catalog.key_store import KeyBatch, KeyStore
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.catalog.segment_loading import chunks_in, find_ids, load_records, load_segments
from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.metadata_needs import needs_in_replay
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import decode_operation, encode_operation
from durablelog.operations import AppendOperation, CreateOperation, Operation, segments_of
from segmentstore.contracts.attribute_table import NO_ATTRIBUTES, AttributeTable
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import SegmentError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import EVERYTHING, IDENTITY, all_of
from tests.durablelog.catalog.key_store_writer import make
from tests.durablelog.catalog.operations_machine import LINKED, NAMES, OperationsMachine
from tests.durablelog.catalog.whole_segments import learn, together
from tests.support.suites import examples

T = TypeVar("T")


def canonical(metadata: ContainerMetadata) -> bytes:
    """As a checkpoint, with its tables in the order of the catalog's keys."""
    copy = decode_checkpoint(encode_checkpoint(metadata))
    copy.segments = dict(sorted(copy.segments.items()))
    copy.releasing = dict(sorted(copy.releasing.items()))
    copy.objects = dict(sorted(copy.objects.items()))
    copy.garbage = dict(
        sorted(copy.garbage.items(), key=lambda item: (item[1].sequence_number, item[0]))
    )
    return encode_checkpoint(copy)


def state_of(segment: SegmentMetadata) -> tuple[Any, ...]:
    """All there is of a segment."""
    return (segment_record(segment), list(segment.attributes.items()), list(segment.chunks))


def written(frozen: FrozenMetadata, there: dict[bytes, bytes], keys_max: int = 7) -> None:
    while (batch := frozen.encode_some(keys_max)) is not None:
        make(there, batch)


def totals_of(metadata: ContainerMetadata) -> CatalogTotals:
    return CatalogTotals(metadata.segment_count, metadata.archive)


def full(metadata: ContainerMetadata) -> dict[bytes, bytes]:
    """What a catalog has that is written anew."""
    changes, there = MetadataChanges(), dict[bytes, bytes]()
    changes.begin(metadata)
    written(changes.freeze(totals_of(metadata)), there)
    return there


def is_as(segment: SegmentMetadata, state: tuple[Any, ...]) -> bool:
    """Whether what memory knows of a segment is what it was."""
    record, attributes, chunks = state
    known = [
        chunk for _, (records, count) in segment.chunks.known_pages() for chunk in records[:count]
    ]
    there = dict(attributes)
    return (
        segment_record(segment) == record
        and all(there.get(key) == value for key, value in segment.attributes.known())
        and (known == chunks if segment.chunks.whole else set(known) <= set(chunks))
    )


def chunks_by_object(metadata: ContainerMetadata) -> dict[str, list[tuple[int, ChunkRecord]]]:
    found: dict[str, list[tuple[int, ChunkRecord]]] = {name: [] for name in metadata.objects}
    for segment in sorted(metadata.all_records(), key=attrgetter("segment_id")):
        for chunk in segment.chunks:
            found[chunk.object_name].append((segment.segment_id, chunk))
    return found


class ChangesMachine(OperationsMachine):
    kind: type[MemoryKeyStore | RocksDbKeyStore]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="changes-"))
        self.runner = asyncio.Runner()
        self.updater = MetadataUpdater(ContainerMetadata(IDENTITY.container_id))
        self.model = MetadataUpdater(ContainerMetadata(IDENTITY.container_id))
        self.frozen: FrozenMetadata | None = None
        self.stores = 0
        self.ids: set[int] = set()
        """Of all segments there ever were."""
        self.touched: set[int] = set()
        """Those that operations since the last freeze were about."""
        self.touched_before: set[int] = set()
        """The same before it, until that is written."""
        self.renew()

    # --- the catalog ------------------------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @property
    def metadata(self) -> ContainerMetadata:
        return self.model.metadata

    def renew(self) -> None:
        """A new catalog; what was frozen is abandoned."""
        self.stores += 1
        self.store: KeyStore = self.kind(str(self.folder / str(self.stores)), IDENTITY, Runtime())
        self.do(self.store.open())
        self.there = dict[bytes, bytes]()
        self.stored: dict[int, tuple[Any, ...]] = {}
        """Segments as they were when what is written was frozen."""
        self.updater.changes.begin(self.updater.metadata)
        self.model.changes.begin(self.model.metadata)
        self.frozen = None

    @precondition(lambda self: self.frozen is None)
    @rule()
    def freeze(self) -> None:
        self.number = self.metadata.sequence_number
        self.expected = canonical(self.metadata)
        self.expected_keys = full(self.metadata)
        self.expected_chunks = chunks_by_object(self.metadata)
        self.expected_states = {
            segment.segment_id: state_of(segment) for segment in self.metadata.all_records()
        }
        self.touched_before, self.touched = self.touched, set()
        self.frozen = self.updater.changes.freeze(totals_of(self.updater.metadata))
        assert not self.updater.changes.all_written
        written(self.model.changes.freeze(totals_of(self.metadata)), self.there)
        self.model.changes.written()
        assert self.there == self.expected_keys, "replay tracks the same"
        self.find()

    @precondition(lambda self: self.frozen is not None)
    @rule(keys_max=st.integers(1, 20))
    def encode(self, keys_max: int) -> None:
        assert self.frozen is not None
        batch = self.frozen.encode_some(keys_max)
        if batch is not None:
            self.do(self.store.apply(batch, self.store.sequence_number))
            self.find()
            return
        assert not len(self.frozen)
        self.frozen = None
        self.do(self.store.apply(KeyBatch(), self.number))
        writes = self.updater.changes.writes
        self.updater.changes.written()
        assert self.updater.changes.writes == writes + 1
        assert self.updater.changes.all_written
        self.stored, self.touched_before = self.expected_states, set()
        self.check_store()
        self.evict()
        self.forget()
        self.find()

    def check_store(self) -> None:
        assert dict(self.do(all_of(self.store, EVERYTHING))) == self.expected_keys
        loaded = self.do(load_metadata(self.store, IDENTITY.container_id))
        assert_metadata_valid(loaded)
        assert canonical(loaded) == self.expected
        assert full(loaded) == self.expected_keys, "in the same pages"
        unflushed = {each.segment_id for each in loaded.all_records() if not each.flushed}
        listed = self.do(all_of(self.store, unflushed_range()))
        assert listed == [(UnflushedKey(key).encode(), b"") for key in sorted(unflushed)]
        totals = self.do(load_totals(self.store))
        assert totals == totals_of(loaded)
        assert TotalsKey().encode() in self.expected_keys
        active = self.do(load_active(self.store, IDENTITY.container_id))
        assert {each.segment_id for each in active.all_records()} == unflushed
        assert active.segment_count == loaded.segment_count
        others = self.do(load_segments(self.store, sorted(self.ids - unflushed), active.objects))
        assert_metadata_valid(active)
        in_part = {each.segment_id for each in active.all_records() if not each.whole}
        assert active.partial == in_part
        found = [each for each in others if each is not None]
        whole = self.do(together(self.store, active, found))
        assert canonical(whole) == self.expected
        assert full(whole) == self.expected_keys, "in the same pages"
        for name, chunks in self.expected_chunks.items():
            assert self.do(chunks_in(self.store, name)) == chunks

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def encode_all(self) -> None:
        while self.frozen is not None:
            self.encode(20)

    @precondition(lambda self: self.frozen is None)
    @rule(flush=st.booleans())
    def write(self, flush: bool) -> None:
        if flush:
            self.upload_all()
        self.settle()

    def settle(self) -> None:
        if self.frozen is None:
            self.freeze()
        self.encode_all()

    @precondition(lambda self: self.stores < 3 and self.frozen is not None)
    @rule()
    def abandon(self) -> None:
        self.activate(self.metadata.segments)
        if self.updater.metadata.partial:
            with pytest.raises(AssertionError, match="nowhere else"):
                self.updater.changes.begin(self.updater.metadata)
            return
        self.do(self.store.destroy())
        self.renew()

    @rule(few=st.booleans())
    def recover(self, few: bool) -> None:
        """As it is found by a restart: replay goes on from what the catalog has."""
        self.settle()
        if self.number != self.metadata.sequence_number:
            self.settle()
        load = load_active if few else load_metadata
        found = self.do(load(self.store, IDENTITY.container_id))
        self.updater = MetadataUpdater(found)
        whole = self.do(load_metadata(self.store, IDENTITY.container_id))
        self.model = MetadataUpdater(whole)
        self.updater.changes.begin_from(found)
        self.model.changes.begin_from(whole)
        self.touched.clear()

    # --- active and idle segments -----------------------------------------------------------------

    @initialize(seed=st.integers(0, 99), share=st.sampled_from([0.0, 0.5, 1.0]))
    def begin(self, seed: int, share: float) -> None:
        self.rng, self.share = random.Random(seed), share

    @rule()
    def evict(self) -> None:
        """Some of those that may leave."""
        for segment in list(self.updater.metadata.segments.values()):
            if self.may_leave(segment) and self.rng.random() < self.share:
                self.updater.evict(segment)

    def may_leave(self, segment: SegmentMetadata) -> bool:
        """Whether it may; that what is said to be written is, and what was not touched is, too."""
        key, is_written = segment.segment_id, self.updater.changes.is_written(segment)
        if is_written:
            assert is_as(segment, self.stored[key])
        elif key in self.stored:
            assert key in self.touched | self.touched_before
        assert self.updater.may_evict(segment) == (is_written and segment.flushed)
        return self.updater.may_evict(segment)

    @rule()
    def forget(self) -> None:
        """Some chunks and attributes of active segments, as far as they may leave memory."""
        changes = self.updater.changes
        for segment in self.updater.metadata.all_records():
            self.check_pages(segment)
            may_forget = self.updater.may_forget_chunks(segment)
            if may_forget and self.rng.random() < self.share:
                # The last page is among them, and stays.
                pages = [page for page, _ in segment.chunks.known_pages()]
                written_pages = partial(changes.is_page_written, segment.segment_id)
                leaving = list(filter(written_pages, pages))
                self.updater.forget_pages(segment, self.rng.sample(leaving, len(leaving) * 2 // 3))
            there = segment.attributes is not NO_ATTRIBUTES
            if changes.all_written and there and self.rng.random() < self.share:
                self.updater.forget_attributes(segment)
        assert_metadata_valid(self.updater.metadata)

    def check_pages(self, segment: SegmentMetadata) -> None:
        """The catalog has those pages as they are that are said to be written."""
        for page, (records, count) in segment.chunks.known_pages():
            if self.updater.changes.is_page_written(segment.segment_id, page):
                key = ChunkPageKey(segment.segment_id, page).encode()
                assert self.do(self.store.get([key])) == [encode_chunk_page(records[:count])]

    def is_idle(self, key: int | str) -> bool:
        """Whether the catalog has to be asked."""
        metadata = self.updater.metadata
        there = key in metadata.names if isinstance(key, str) else key in metadata.segments
        return bool(metadata.idle) and not there and not self.updater.changes.is_lost(key)

    def activate(self, ids: Iterable[int]) -> None:
        wanted = [key for key in ids if self.is_idle(key)]
        found = self.do(load_segments(self.store, wanted, self.updater.metadata.objects))
        for key, segment in zip(wanted, found, strict=True):
            assert segment is not None or key not in self.metadata.segments
            if segment is not None:
                self.updater.activate(segment)

    @rule()
    def find(self) -> None:
        """What is in memory, and what the catalog has of that which is not lost, are all there are:
        at any moment, while the catalog is written, too.
        """
        names, ids = (*NAMES, LINKED), sorted(self.ids)
        metadata = self.updater.metadata
        assert metadata.segment_count == self.metadata.segment_count
        assert self.metadata.whole
        found = self.do(find_ids(self.store, names))
        for name, key in zip(names, found, strict=True):
            known = key if self.is_idle(name) else metadata.names.get(name)
            assert known == self.metadata.names.get(name)
        records = self.do(load_records(self.store, ids))
        for key, record in zip(ids, records, strict=True):
            there = key in metadata.segments or (record is not None and self.is_idle(key))
            assert there == (key in self.metadata.segments)
        idle = [key for key in self.metadata.segments if key not in metadata.segments]
        others = self.do(load_segments(self.store, idle, metadata.objects))
        loaded = [each for each in others if each is not None]
        whole = self.do(together(self.store, metadata, loaded))
        assert canonical(whole) == canonical(self.metadata)
        assert_metadata_valid(whole)
        for segment in metadata.segments.values():
            self.may_leave(segment)

    def put(self, operation: Operation) -> None:
        """Live in one of both, and in replay in the other."""
        if isinstance(operation, AppendOperation):
            operation.sequence_number = self.model.take_sequence_numbers()
            self.prepare(operation)
            self.updater.replay(operation)
            self.model.replay(operation)
        elif self.rng.random() < 0.5:
            self.prepare(operation)
            assert not self.updater.unknown(operation)
            time_ms = 1000 + self.metadata.sequence_number
            try:
                self.updater.accept(operation, time_ms)
            except SegmentError as error:
                with pytest.raises(type(error)):
                    self.model.accept(operation, time_ms)
                return
            # What it needs stays.
            self.forget()
            self.updater.commit((operation,))
            self.model.replay(operation)
        else:
            try:
                self.model.accept(operation, 1000 + self.metadata.sequence_number)
            except SegmentError:
                return
            self.model.commit((operation,))
            logged = decode_operation(b"".join(encode_operation(operation)))
            self.prepare(logged)
            self.updater.replay(logged)
        assert_metadata_valid(self.updater.metadata)
        self.touched.update(segments_of(operation))
        if isinstance(operation, CreateOperation):
            self.ids.add(operation.sequence_number)
            self.touched.add(operation.sequence_number)

    def prepare(self, operation: Operation) -> None:
        """Have in memory what an operation needs."""
        self.activate(segments_of(operation))
        if isinstance(operation, CreateOperation) and self.is_idle(operation.name):
            (found,) = self.do(find_ids(self.store, [operation.name]))
            self.activate([] if found is None else [found])
        metadata = self.updater.metadata
        self.do(learn(self.store, metadata, needs_in_replay(metadata, [operation])))

    def teardown(self) -> None:
        self.do(self.store.destroy())
        self.runner.close()
        shutil.rmtree(self.folder)


def test_one_set_is_frozen_at_a_time_and_nothing_that_is_not_in_memory_is_lost() -> None:
    metadata, totals = ContainerMetadata(IDENTITY.container_id), CatalogTotals(0)
    changes = MetadataChanges()
    seen = [changes.all_written]
    changes.begin(metadata)
    frozen = changes.freeze(totals)
    for refused in (changes.written, lambda: changes.freeze(totals)):
        with pytest.raises(AssertionError):
            refused()
    written(frozen, {})
    with pytest.raises(AssertionError):
        changes.freeze(totals)
    seen.append(changes.all_written)
    changes.written()
    seen.append(changes.all_written)
    with pytest.raises(AssertionError):
        changes.written()
    metadata.idle = 1
    with pytest.raises(AssertionError, match="nowhere else"):
        changes.begin(metadata)
    metadata.idle = 0
    metadata.partial.add(5)
    with pytest.raises(AssertionError, match="nowhere else"):
        changes.begin(metadata)
    metadata.partial.clear()
    changes.freeze(totals)
    # The catalog's files failed: what was frozen is abandoned.
    changes.begin(metadata)
    seen.append(changes.all_written)
    written(changes.freeze(totals), {})
    changes.written()
    assert seen == [False, False, True, False]


@pytest.mark.parametrize("kind", [MemoryKeyStore, RocksDbKeyStore])
def test_a_frozen_set_makes_the_catalog_that_of_its_moment(
    kind: type[MemoryKeyStore | RocksDbKeyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)
    monkeypatch.setattr(AttributeTable, "PAGE_MAX", 4)
    monkeypatch.setattr(metadata_changes, "SINGLE_DELETES_MAX", 1)
    for module in (catalog_loading, segment_loading):
        monkeypatch.setattr(module, "RECORDS_OF_A_PORTION", 5)
        monkeypatch.setattr(module, "RECORDS_OF_A_SLICE", 3)

    class Machine(ChangesMachine):
        pass

    Machine.kind = kind
    number = examples(60, 5) if kind is MemoryKeyStore else examples(5, 2)
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=number, stateful_step_count=200, deadline=None),
    )
