"""Any interleaving of callers of `PartialSegments` gives what metadata give that are all in memory.

Tasks take turns of one loop by a seed: some change segments, some read them, some are cancelled,
and one writes the catalog, after which chunks and attributes leave memory. Each operation is
committed to the container that knows them in part, live, and to one that has everything, its model,
as it is read from a log.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from durablelog.catalog import metadata_changes, segment_loading
from durablelog.catalog.catalog_records import CatalogTotals
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyBatch, KeyPair, KeyPortion
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.metadata_needs import ALL_CHUNKS, ChunkNeed, is_known, needs_of
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import decode_operation, encode_operation
from durablelog.operations import (
    AppendOperation,
    ChunkReplacement,
    CreateOperation,
    DeleteOperation,
    LinkChunksOperation,
    MergeOperation,
    Operation,
    ReplaceChunksOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.container import partial_segments
from segmentstore.container.partial_segments import PartialSegments
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, AttributeKey
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import SegmentError, SegmentNotFoundError, StoreClosedError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY
from tests.durablelog.catalog.operations_machine import key_of, updates_of
from tests.support.suites import size, sized

T = TypeVar("T")

SEEDS: Final = size("PARTIAL_SEGMENTS_SEEDS", 5, 120)
TURNS: Final = 1500
"""Of the loop, for each seed."""
SEGMENTS_MIN: Final = 3
KEYS: Final = 20
LENGTH_MAX: Final = 120
BYTES_MAX: Final = (1, 2_000, 200_000)
"""What metadata may take in memory: nothing, a part of it, and all."""

OFTEN: Final = (
    "ReplaceChunksOperation",
    "TruncateOperation",
    "UpdateAttributesOperation",
    "attributes",
    "cancelled",
    "crowded",
    "loads of chunks",
    "pages",
    "scans in part",
    "writes",
)
"""What happens in each seed, as a rule."""
SOMETIMES: Final = (
    "CreateOperation",
    "DeleteOperation",
    "LinkChunksOperation",
    "MergeOperation",
    "StorageUpdateOperation",
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)
    monkeypatch.setattr(AttributeTable, "PAGE_MAX", 2)
    monkeypatch.setattr(partial_segments, "READ_ATTRIBUTES_MIN", 3)
    monkeypatch.setattr(metadata_changes, "SINGLE_DELETES_MAX", 4)
    monkeypatch.setattr(segment_loading, "RECORDS_OF_A_PORTION", 3)
    monkeypatch.setattr(segment_loading, "RECORDS_OF_A_SLICE", 2)


class SlowStore(MemoryKeyStore):
    """Its reads take turns of the loop before they read, and behind that."""

    def __init__(self, directory: str, identity: KeyStoreIdentity, runtime: Runtime) -> None:
        super().__init__(directory, identity, runtime)
        self._rng = runtime.random

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._pause()
        found = await super().get(keys)
        await self._pause()
        return found

    async def find_last(self, ranges: Sequence[StoreKeyRange]) -> list[KeyPair | None]:
        await self._pause()
        found = await super().find_last(ranges)
        await self._pause()
        return found

    async def scan_each(self, ranges: Sequence[StoreKeyRange], limit: int) -> list[KeyPortion]:
        await self._pause()
        found = await super().scan_each(ranges, limit)
        await self._pause()
        return found

    async def _pause(self) -> None:
        await turns(self._rng.randrange(6))


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await turns(1)


class Draws:
    """Operations on a container whose metadata are all in memory. None: there is none to be had."""

    def __init__(self, rng: random.Random, metadata: ContainerMetadata) -> None:
        self.rng = rng
        self.metadata = metadata
        self.objects = 0

    def operation(self) -> Operation | None:
        kinds: list[Callable[[], Operation | None]] = [
            self.create,
            *[self.update] * 10,
            *[self.truncate] * 3,
            self.delete,
            *[self.merge] * 2,
            *[self.link] * 6,
            *[self.link_some] * 6,
            *[self.replace] * 12,
        ]
        few = len(self.open()) < SEGMENTS_MIN
        return self.create() if few else self.rng.choice(kinds)()

    def open(self) -> list[SegmentMetadata]:
        return [each for each in self.metadata.segments.values() if each.merged_into is None]

    def new_object(self) -> ObjectRecord:
        self.objects += 1
        return ObjectRecord(f"object {self.objects}", 1000, 1)

    def create(self) -> Operation:
        keys = self.rng.randrange(8)
        return CreateOperation(
            f"segment {self.rng.randrange(6)}",
            updates=updates_of({key: key for key in range(keys)}),
        )

    def update(self) -> Operation:
        keys = self.rng.sample(range(KEYS), self.rng.randrange(1, 4))
        values = {key: self.rng.choice([ATTRIBUTE_UNSET, 5, 6]) for key in keys}
        return UpdateAttributesOperation(
            self.rng.choice(self.open()).segment_id, updates=updates_of(values)
        )

    def truncate(self) -> Operation:
        segment = self.rng.choice(self.open())
        end = min(segment.length, segment.start_offset + 8)
        return TruncateOperation(
            segment.segment_id, self.rng.randrange(segment.start_offset, end + 1)
        )

    def delete(self) -> Operation | None:
        segment = self.rng.choice(self.open())
        return DeleteOperation(segment.segment_id) if self.rng.random() < 0.2 else None

    def merge(self) -> Operation | None:
        target, source = self.rng.sample(self.open(), 2)
        if source.start_offset or target.sealed:
            return None
        return MergeOperation(target.segment_id, source.segment_id)

    def link(self) -> Operation | None:
        """The first merges of a segment that Tier 2 has whole."""
        segments = self.metadata.segments
        for target in segments.values():
            links, stored = [], target.storage_length
            for merge in target.merges:
                source = segments[merge.source_id]
                is_next = merge.offset <= stored < merge.end_offset
                if not is_next or source.storage_length < source.length or source.merges:
                    break
                links.append((target.segment_id, merge.source_id))
                stored = merge.end_offset
            if links:
                return StorageUpdateOperation(links=links)
        return None

    def link_some(self) -> Operation | None:
        """A slice of a link: of the first merge of a segment that Tier 2 has whole."""
        segments = self.metadata.segments
        for target in segments.values():
            for merge in target.merges[:1]:
                source = segments[merge.source_id]
                whole = source.storage_length == source.length and not source.merges
                if whole and merge.offset <= target.storage_length:
                    end = self.rng.randrange(source.length)
                    return LinkChunksOperation(target.segment_id, source.segment_id, end)
        return None

    def replace(self) -> Operation | None:
        """Some chunks by one; now and then they are no longer those that are there."""
        segment = self.rng.choice(self.open())
        chunks = list(segment.chunks)
        if not chunks:
            return None
        first = self.rng.randrange(len(chunks))
        old = chunks[first : first + self.rng.randrange(1, 6)]
        start, end = old[0].start_offset, old[-1].end_offset
        record, key = self.new_object(), segment.segment_id
        if self.rng.random() < 0.2:
            old[0] = old[0]._replace(block_offset=77_777)
        new = ChunkRecord(start, end - start, record.name, start, key, start)
        return ReplaceChunksOperation([record], [ChunkReplacement(key, tuple(old), (new,))])

    def appends(self) -> list[AppendOperation]:
        return [
            AppendOperation(each.segment_id, each.length, bytes(self.rng.randrange(20, 60)))
            for each in self.open()
            if not each.sealed and each.length - each.start_offset < LENGTH_MAX
        ]

    def upload(self) -> Operation:
        """All that Tier 2 lacks and that is next in its segment, in small chunks."""
        record, chunks = self.new_object(), list[tuple[int, ChunkRecord]]()
        for key, segment in self.metadata.segments.items():
            at = segment.storage_length
            end = segment.own_end(at) if segment.find_merge(at) is None else at
            while at < end:
                length = min(self.rng.randrange(1, 3), end - at)
                chunks.append((key, ChunkRecord(at, length, record.name, at, key, at)))
                at += length
        return StorageUpdateOperation([record], chunks)


class World:
    """Both containers, and the tasks that work on them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.updater = MetadataUpdater(ContainerMetadata(IDENTITY.container_id))
        self.model = MetadataUpdater(ContainerMetadata(IDENTITY.container_id))
        self.draws = Draws(self.rng, self.model.metadata)
        self.in_flight: list[Operation] = []
        """Accepted, and not committed."""
        self.standstill = asyncio.Lock()
        """Nothing is accepted by others meanwhile."""
        self.stopping = False
        """No step begins any more."""
        self.ended = False
        """Nor is there one that goes on."""
        self.failures: list[BaseException] = []
        self.counts: Counter[str] = Counter()

    @property
    def metadata(self) -> ContainerMetadata:
        return self.updater.metadata

    async def run(self) -> Counter[str]:
        runtime = Runtime(executor=inline_executor, random=self.rng)
        catalog = MetadataCatalog(str(self.folder), IDENTITY, runtime, SlowStore)
        await catalog.begin_empty()
        self.store = catalog.store
        self.updater.changes.begin(self.metadata)
        self.partial = PartialSegments(
            self.updater,
            catalog,
            self.rng.choice(BYTES_MAX),
            self.evict_none,
            self.failures.append,
        )
        work = [self.hold_and_put] * 3 + [self.learn_and_put] * 2
        reads = [self.read_chunk] * 2 + [self.scan_attributes] * 2 + [self.cancel_a_read]
        async with asyncio.TaskGroup() as committer:
            committer.create_task(self.commit_in_order())
            async with asyncio.TaskGroup() as group:
                group.create_task(self.repeat(self.grow, 30))
                group.create_task(self.repeat(self.write_catalog, 10))
                for each in work:
                    group.create_task(self.repeat(each, 22))
                for each in reads:
                    group.create_task(self.repeat(each, 4))
                await turns(TURNS)
                self.stopping = True
            self.ended = True
        await self.check_all()
        await catalog.close()
        self.counts["pages"] += self.partial.pages_read
        self.counts["attributes"] += self.partial.attributes_read
        return self.counts

    async def repeat(self, step: Callable[[], Coroutine[Any, Any, None]], pause_max: int) -> None:
        while not self.stopping:
            await turns(self.rng.randrange(1, pause_max))
            await step()

    def evict_none(self, count: int) -> int:
        """Metadata take too much though all has left memory that can: segments are to leave it."""
        assert count > 0
        self.counts["crowded"] += 1
        return 0

    # --- changes ----------------------------------------------------------------------------------

    def accept(self, operation: Operation) -> bool:
        """In this turn of the loop; False: it is refused, or nothing is accepted now."""
        if self.standstill.locked():
            return False
        assert not self.updater.unknown(operation)
        try:
            self.updater.accept(operation, 1)
        except SegmentError:
            return False
        self.counts[type(operation).__name__] += 1
        self.in_flight.append(operation)
        return True

    async def hold_and_put(self) -> None:
        """As calls that are not appends: what it needs is kept until it is accepted, or
        committed.
        """
        operation = self.draws.operation()
        if operation is None:
            return
        async with self.partial.known([*needs_of(operation), *self.updater.unknown(operation)]):
            await turns(self.rng.randrange(8))
            if self.updater.unknown(operation):
                # Of what was merged into its segment meanwhile.
                self.counts["late sources"] += 1
            elif self.accept(operation) and self.rng.random() < 0.5:
                await self.committed(operation)

    async def committed(self, operation: Operation) -> None:
        await until(lambda: operation not in self.in_flight)

    async def learn_and_put(self) -> None:
        """As the queue of requests: accepted in the turn in which `learn` returns."""
        operation = self.draws.operation()
        if operation is None:
            return
        needs = self.updater.unknown(operation)
        await self.partial.learn(needs)
        assert all(is_known(self.metadata, need) for need in needs), needs
        # It may need more by now, as a segment that was deleted and is there again.
        if not self.updater.unknown(operation):
            self.accept(operation)

    async def commit_in_order(self) -> None:
        while self.in_flight or not self.ended:
            if self.in_flight and self.rng.random() < 0.4:
                operation = self.in_flight.pop(0)
                self.updater.commit((operation,))
                self.replay(operation)
                assert_metadata_valid(self.metadata)
            await turns(1)

    def replay(self, operation: Operation) -> None:
        self.model.replay(decode_operation(b"".join(encode_operation(operation))))

    @asynccontextmanager
    async def nothing_in_flight(self) -> AsyncIterator[None]:
        async with self.standstill:
            await until(lambda: not self.in_flight)
            yield

    async def grow(self) -> None:
        """Segments get bytes, and Tier 2 gets them."""
        async with self.nothing_in_flight():
            for operation in self.draws.appends():
                operation.sequence_number = self.updater.take_sequence_numbers()
                self.updater.replay(operation)
                self.replay(operation)
            upload = self.draws.upload()
            self.updater.accept(upload, 1)
            self.in_flight.append(upload)

    async def write_catalog(self) -> None:
        """A checkpoint: frozen while nothing is in flight, and written while all goes on."""
        async with self.nothing_in_flight():
            number = self.metadata.sequence_number
            frozen = self.updater.changes.freeze(CatalogTotals(self.metadata.segment_count))
        while (batch := frozen.encode_some(self.rng.randrange(5, 60))) is not None:
            await turns(self.rng.randrange(3))
            await self.store.apply(batch, self.store.sequence_number)
        await self.store.apply(KeyBatch(), max(number, self.store.sequence_number))
        self.updater.changes.written()
        self.partial.written()
        self.counts["writes"] += 1

    # --- reads ------------------------------------------------------------------------------------

    def any_segment(self) -> SegmentMetadata | None:
        segments = list(self.metadata.segments.values())
        return self.rng.choice(segments) if segments else None

    def model_of(self, segment: SegmentMetadata) -> SegmentMetadata | None:
        """None if it has been deleted meanwhile."""
        if self.metadata.segments.get(segment.segment_id) is not segment:
            return None
        return self.model.metadata.segments[segment.segment_id]

    async def read_chunk(self) -> None:
        segment = self.any_segment()
        if segment is None or segment.storage_length == segment.start_offset:
            return
        offset = self.rng.randrange(segment.start_offset, segment.storage_length)
        was_known = segment.chunks.knows(offset, offset + 1)
        await self.partial.know_chunk(segment.segment_id, offset)
        model = self.model_of(segment)
        if model is not None:
            assert segment.find_chunk(offset) == model.find_chunk(offset), (segment, offset)
            self.counts["loads of chunks"] += not was_known

    async def scan_attributes(self) -> None:
        segment = self.any_segment()
        if segment is None:
            return
        start = self.rng.choice([bytes(16), *map(key_of, range(KEYS))])
        limit = self.rng.randrange(1, 6)
        try:
            items, last = await self.partial.attributes_from(segment, start, limit)
        except SegmentNotFoundError:
            assert self.model_of(segment) is None
            return
        model = self.model_of(segment)
        assert model is not None
        assert items == _up_to(model, start, last), (segment, start, last)
        self.counts["scans in part"] += not segment.attributes.whole

    async def cancel_a_read(self) -> None:
        operation = self.draws.operation()
        if operation is None:
            return
        task = asyncio.create_task(self.hold(operation))
        await turns(self.rng.randrange(12))
        self.counts["cancelled"] += task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()

    async def hold(self, operation: Operation) -> None:
        async with self.partial.known(needs_of(operation)):
            await turns(self.rng.randrange(8))

    async def check_all(self) -> None:
        """Memory and catalog together have what the model has, and no caller keeps anything."""
        assert not self.failures
        assert not self.in_flight
        assert not self.partial._kept
        segments, models = self.metadata.segments, self.model.metadata.segments
        assert segments.keys() == models.keys()
        # Nothing leaves memory any more, and all can be read.
        await self.partial.stop(StoreClosedError)
        for segment_id, segment in segments.items():
            model = models[segment_id]
            found, last = await self.partial.attributes_from(segment, bytes(16), KEYS + 1)
            assert (found, last) == (list(model.attributes.items()), None)
            await self.partial.learn([ChunkNeed(segment_id, 0, ALL_CHUNKS)])
            assert list(segment.chunks) == list(model.chunks)
        assert self.metadata.objects.keys() == self.model.metadata.objects.keys()


def _up_to(
    segment: SegmentMetadata, start: AttributeKey, last: AttributeKey | None
) -> list[tuple[AttributeKey, int]]:
    items = segment.attributes.items(start)
    return list(takewhile(lambda item: last is None or item[0] <= last, items))


@sized(60)
def test_concurrent_callers_get_what_metadata_give_that_are_all_in_memory(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            counts += run_virtual(World(seed, tmp_path / str(seed)).run())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert all(counts[name] >= SEEDS for name in OFTEN), counts
    assert all(counts[name] for name in SOMETIMES), counts
