"""Any sequence of operations, frozen at any moment: the catalog is the metadata of that moment."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from durablelog import checkpoint_codec
from durablelog.catalog import metadata_changes
from durablelog.catalog.catalog_loading import load_metadata
from durablelog.catalog.key_store import KeyBatch, KeyStore
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_changes import FrozenMetadata, MetadataChanges
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    ChunkReplacement,
    CreateOperation,
    DeleteOperation,
    DeletionClockOperation,
    MergeOperation,
    ObjectsDeletedOperation,
    Operation,
    ReplaceChunksOperation,
    SealOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, KeyedUpdate, UpdateType
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import SegmentError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import EVERYTHING, IDENTITY, all_of
from tests.durablelog.catalog.key_store_writer import make
from tests.support.suites import examples

T = TypeVar("T")

names = st.sampled_from(["a", "b", "c", "ä/ö"])
attributes = st.dictionaries(
    st.integers(0, 9), st.one_of(st.integers(-3, 3), st.just(ATTRIBUTE_UNSET)), max_size=6
)


def key_of(number: int) -> bytes:
    return bytes([number]) * 16


def updates_of(values: dict[int, int]) -> tuple[KeyedUpdate, ...]:
    return tuple((key_of(key), UpdateType.REPLACE, value, None) for key, value in values.items())


def canonical(metadata: ContainerMetadata) -> bytes:
    """As a checkpoint, with its tables in the order of the catalog's keys."""
    copy = decode_checkpoint(encode_checkpoint(metadata))
    copy.objects = dict(sorted(copy.objects.items()))
    copy.garbage = dict(
        sorted(copy.garbage.items(), key=lambda item: (item[1].sequence_number, item[0]))
    )
    return encode_checkpoint(copy)


def written(frozen: FrozenMetadata, there: dict[bytes, bytes], keys_max: int = 7) -> None:
    while (batch := frozen.encode_some(keys_max)) is not None:
        make(there, batch)


def full(metadata: ContainerMetadata) -> dict[bytes, bytes]:
    """What a catalog has that is written anew."""
    changes, there = MetadataChanges(), dict[bytes, bytes]()
    changes.begin(metadata)
    written(changes.freeze(), there)
    return there


class ChangesMachine(RuleBasedStateMachine):
    kind: type[MemoryKeyStore | RocksDbKeyStore]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="changes-"))
        self.runner = asyncio.Runner()
        self.updater = MetadataUpdater(ContainerMetadata(IDENTITY.container_id))
        self.replayed = MetadataUpdater(ContainerMetadata(IDENTITY.container_id))
        self.frozen: FrozenMetadata | None = None
        self.objects = self.stores = 0
        self.renew()

    # --- the catalog ------------------------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @property
    def metadata(self) -> ContainerMetadata:
        return self.updater.metadata

    def renew(self) -> None:
        """A new catalog; what was frozen is abandoned."""
        self.stores += 1
        self.store: KeyStore = self.kind(str(self.folder / str(self.stores)), IDENTITY, Runtime())
        self.do(self.store.open())
        self.there = dict[bytes, bytes]()
        self.updater.changes.begin(self.metadata)
        self.replayed.changes.begin(self.replayed.metadata)
        self.frozen = None

    @precondition(lambda self: self.frozen is None)
    @rule()
    def freeze(self) -> None:
        self.number = self.metadata.sequence_number
        self.expected = canonical(self.metadata)
        self.expected_keys = full(self.metadata)
        self.frozen = self.updater.changes.freeze()
        written(self.replayed.changes.freeze(), self.there)
        assert self.there == self.expected_keys, "replay tracks the same"

    @precondition(lambda self: self.frozen is not None)
    @rule(keys_max=st.integers(1, 20))
    def encode(self, keys_max: int) -> None:
        assert self.frozen is not None
        batch = self.frozen.encode_some(keys_max)
        if batch is not None:
            self.do(self.store.apply(batch, self.store.sequence_number))
            return
        assert not len(self.frozen)
        self.frozen = None
        self.do(self.store.apply(KeyBatch(), self.number))
        assert dict(self.do(all_of(self.store, EVERYTHING))) == self.expected_keys
        loaded = self.do(load_metadata(self.store, IDENTITY.container_id))
        loaded.check()
        assert canonical(loaded) == self.expected
        assert full(loaded) == self.expected_keys, "in the same pages"

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def encode_all(self) -> None:
        while self.frozen is not None:
            self.encode(20)

    @precondition(lambda self: self.frozen is None)
    @rule()
    def write(self) -> None:
        self.write_all()

    @precondition(lambda self: self.stores < 3 and self.frozen is not None)
    @rule()
    def abandon(self) -> None:
        self.do(self.store.destroy())
        self.renew()

    @rule()
    def recover(self) -> None:
        """As it is found by a restart: replay goes on from what the catalog has."""
        if self.frozen is None:
            self.freeze()
        self.encode_all()
        if self.number != self.metadata.sequence_number:
            self.freeze()
            self.encode_all()
        for name in ("updater", "replayed"):
            loaded = self.do(load_metadata(self.store, IDENTITY.container_id))
            updater = MetadataUpdater(loaded)
            updater.changes.begin_from(loaded)
            setattr(self, name, updater)

    # --- operations -------------------------------------------------------------------------------

    def put(self, operation: Operation) -> None:
        """Live, and in replay."""
        if isinstance(operation, AppendOperation):
            operation.sequence_number = self.updater.take_sequence_numbers()
            self.updater.replay(operation)
        else:
            try:
                self.updater.accept(operation, 1000 + self.metadata.sequence_number)
            except SegmentError:
                return
            self.updater.commit((operation,))
        self.replayed.replay(operation)

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

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        segment = self.one(data)
        if segment is not None:
            offset = data.draw(st.integers(segment.start_offset, segment.length))
            self.put(TruncateOperation(segment.segment_id, offset))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        segment = self.one(data)
        if segment is not None:
            self.put(DeleteOperation(segment.segment_id))

    @rule(data=st.data(), values=attributes)
    def merge(self, data: st.DataObject, values: dict[int, int]) -> None:
        source, target = self.one(data), self.one(data, open_only=True)
        if source is not None and target is not None and source is not target:
            self.put(SealOperation(source.segment_id))
            target_id, source_id = target.segment_id, source.segment_id
            self.put(MergeOperation(target_id, source_id, updates=updates_of(values)))

    @precondition(lambda self: "linked" not in self.metadata.names)
    @rule(data=st.data(), pieces=st.integers(1, 5))
    def merge_whole(self, data: st.DataObject, pieces: int) -> None:
        """A source that is whole in Tier 2 before it is merged: it is linked at once."""
        target = self.one(data, open_only=True)
        if target is None or target.merges:
            return
        self.put(CreateOperation("linked"))
        source = self.metadata.segments[self.metadata.names["linked"]]
        for _ in range(pieces):
            self.put(AppendOperation(source.segment_id, source.length, bytes(2)))
        record, found = self.new_object(), []
        for segment in (source, target):
            for start in range(segment.storage_length, segment.length):
                chunk = ChunkRecord(start, 1, record.name, start, segment.segment_id, start)
                found.append((segment.segment_id, chunk))
        self.put(StorageUpdateOperation([record], found))
        if data.draw(st.booleans()):
            self.write_all()
        self.put(SealOperation(source.segment_id))
        self.put(MergeOperation(target.segment_id, source.segment_id))
        if data.draw(st.booleans()):
            self.write_all()
        self.put(StorageUpdateOperation(links=[(target.segment_id, source.segment_id)]))

    def write_all(self) -> None:
        if self.frozen is None:
            self.freeze()
        self.encode_all()

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

    @rule(clock_ms=st.integers(0, 100), back=st.integers(0, 9))
    def read_clock(self, clock_ms: int, back: int) -> None:
        through = max(0, self.metadata.sequence_number - back)
        self.put(DeletionClockOperation(clock_ms, bytes(16), 5, through))

    def teardown(self) -> None:
        self.do(self.store.destroy())
        self.runner.close()
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("kind", [MemoryKeyStore, RocksDbKeyStore])
def test_a_frozen_set_makes_the_catalog_that_of_its_moment(
    kind: type[MemoryKeyStore | RocksDbKeyStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)
    monkeypatch.setattr(checkpoint_codec, "PAGE_CHUNKS_MAX", 3)
    monkeypatch.setattr(AttributeTable, "PAGE_MAX", 4)
    monkeypatch.setattr(metadata_changes, "SINGLE_DELETES_MAX", 1)

    class Machine(ChangesMachine):
        pass

    Machine.kind = kind
    number = 60 if kind is MemoryKeyStore else 5
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=examples(number), stateful_step_count=200, deadline=None),
    )
