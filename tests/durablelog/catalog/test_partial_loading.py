"""Segments that a catalog has whole and memory in part: what is read first, and the rest later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from durablelog.catalog import segment_loading
from durablelog.catalog.catalog_keys import CatalogKey, ChunkPageKey, SegmentIdKey
from durablelog.catalog.catalog_loading import load_active, load_bounded, load_metadata
from durablelog.catalog.catalog_records import LongChunks, encode_chunk_page, encode_segment
from durablelog.catalog.frozen_metadata import segment_record
from durablelog.catalog.key_store import KeyPortion, KeyStore
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.catalog.segment_loading import (
    load_attributes,
    load_pages,
    load_segments,
    scan_attributes,
)
from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    StorageUpdateOperation,
    TruncateOperation,
)
from recovery.harness.simulation.virtual_loop import inline_executor
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.attributes import AttributeKey, next_key
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid, assert_segment_valid
from segmentstore.contracts.metadata_sizes import metadata_bytes
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY
from tests.durablelog.catalog.catalog_samples import (
    Kind,
    Sample,
    changed,
    filled,
    learn_attributes,
    learn_chunks,
    loaded,
    opened,
    written,
)
from tests.durablelog.catalog.operations_machine import key_of, updates_of

CONTAINER = IDENTITY.container_id

Damage: TypeAlias = Callable[[Sample], dict[CatalogKey, bytes | None]]

both = pytest.mark.parametrize("kind", [MemoryKeyStore, RocksDbKeyStore])


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)
    monkeypatch.setattr(AttributeTable, "PAGE_MAX", 4)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def chunk(sample: Sample, start: int, length: int = 10, name: str = "one") -> ChunkRecord:
    return ChunkRecord(start, length, name, 0, sample.long, start)


def known_chunks(segment: SegmentMetadata) -> list[ChunkRecord]:
    return [
        chunk for _, (records, count) in segment.chunks.known_pages() for chunk in records[:count]
    ]


class Merged(NamedTuple):
    """Segments with many chunks and attributes that cannot be idle."""

    store: KeyStore
    metadata: ContainerMetadata
    target: int
    """With seven chunks, five attributes, and the source at its end, not linked."""
    source: int
    """With seven chunks and five attributes."""


class Filling:
    """Puts segments of any size into the metadata of a container."""

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(CONTAINER)
        self.updater = MetadataUpdater(self.metadata)

    def put(self, operation: Operation) -> int:
        self.updater.accept(operation, 1000)
        self.updater.commit((operation,))
        return operation.sequence_number

    def segment(self, name: str, chunks: int, attributes: int) -> int:
        """One with so many chunks of ten bytes, and attributes: flushed."""
        values = {key: key for key in range(attributes)}
        segment_id = self.put(CreateOperation(name, updates=updates_of(values)))
        append = AppendOperation(segment_id, 0, bytes(10 * chunks))
        append.sequence_number = self.updater.take_sequence_numbers()
        self.updater.replay(append)
        found = [
            (segment_id, ChunkRecord(at, 10, "one", at, segment_id, at))
            for at in range(0, 10 * chunks, 10)
        ]
        self.put(StorageUpdateOperation([ObjectRecord("one", 1000, 1)], found))
        return segment_id

    async def written(self, kind: Kind, folder: Path) -> KeyStore:
        store = await opened(kind, folder)
        await written(store, self.metadata, self.updater)
        return store


async def merged(kind: Kind, folder: Path) -> Merged:
    filling = Filling()
    target, source = (filling.segment(name, 7, 5) for name in ("target", "source"))
    filling.put(MergeOperation(target, source))
    return Merged(await filling.written(kind, folder), filling.metadata, target, source)


# --- what comes at once ---------------------------------------------------------------------------


@both
def test_of_a_long_segment_the_last_page_and_the_numbers_come_at_once(
    kind: Kind, tmp_path: Path
) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        whole = sample.metadata.segments[sample.long]
        segment = await loaded(sample.store, sample.long, sample.metadata)
        assert_segment_valid(segment)
        assert not segment.chunks.whole
        assert not segment.attributes.whole
        assert segment_record(segment) == segment_record(whole)
        assert known_chunks(segment) == list(whole.chunks)[6:]
        assert segment.chunks.gaps(0, 70) == [(0, 60)]
        assert (len(segment.chunks), segment.chunks.known_count) == (7, 1)
        assert (len(segment.attributes), segment.attributes.known_count) == (5, 0)
        for each in (sample.small, sample.empty):
            assert (await loaded(sample.store, each, sample.metadata)).whole
        await sample.store.close()

    run(main())


@both
def test_a_page_of_chunks_and_one_of_attributes_come_at_once_and_more_do_not(
    kind: Kind, tmp_path: Path
) -> None:
    async def main() -> None:
        filling = Filling()
        sizes = [(chunks, attributes) for chunks in (1, 3, 4, 6, 7) for attributes in (0, 1, 4, 5)]
        ids = [filling.segment(f"s{size}", *size) for size in sizes]
        store = await filling.written(kind, tmp_path / "s")
        found = await load_segments(store, ids, filling.metadata.objects)
        for (chunks, attributes), segment in zip(sizes, found, strict=True):
            assert segment is not None
            assert_segment_valid(segment)
            assert segment.chunks.whole == (chunks <= 3)
            assert segment.chunks.known_count == (chunks - 1) % 3 + 1
            assert segment.attributes.whole == (attributes <= 4)
            assert segment.attributes.known_count == attributes * (attributes <= 4)
        await store.close()

    run(main())


@both
def test_pages_of_a_truncated_segment_begin_where_its_chunks_do(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        metadata = sample.metadata
        operation = TruncateOperation(sample.long, 25)
        updater = MetadataUpdater(metadata)
        updater.accept(operation, 1000)
        updater.commit((operation,))
        await sample.store.close()
        store = await opened(kind, tmp_path / "truncated")
        await written(store, metadata, updater)
        segment = await loaded(store, sample.long, metadata)
        assert (segment.start_offset, segment.chunks.start_offset) == (25, 20)
        assert segment.chunks.gaps(0, 70) == [(20, 60)]
        await learn_chunks(store, segment, metadata.objects)
        assert segment.chunks == metadata.segments[sample.long].chunks
        await store.close()

    run(main())


@both
def test_a_segment_whose_chunks_fit_a_page_comes_whole_though_they_take_two(
    kind: Kind, tmp_path: Path
) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        record = segment_record(sample.metadata.segments[sample.long])
        await changed(
            sample.store,
            {
                SegmentIdKey(sample.long).encode(): encode_segment(
                    record._replace(start_offset=50, long_chunks=LongChunks(2, 50))
                ),
                ChunkPageKey(sample.long, 0).encode(): None,
                ChunkPageKey(sample.long, 30).encode(): None,
                ChunkPageKey(sample.long, 50).encode(): encode_chunk_page([chunk(sample, 50)]),
            },
        )
        segment = await loaded(sample.store, sample.long, sample.metadata)
        assert segment.chunks.whole
        assert segment.chunks.page_keys == [50, 60]
        assert segment_record(segment).long_chunks == LongChunks(2, 50)
        await sample.store.close()

    run(main())


@both
def test_a_source_of_a_merge_comes_with_its_last_page_alone(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        sample = await merged(kind, tmp_path / "s")
        metadata = sample.metadata
        target = await loaded(sample.store, sample.target, metadata)
        source = await loaded(sample.store, sample.source, metadata)
        assert (target.chunks.whole, source.chunks.whole) == (False, False)
        assert (target.attributes.whole, source.attributes.whole) == (False, False)
        await learn_chunks(sample.store, source)
        assert source.chunks == metadata.segments[sample.source].chunks
        active = await load_active(sample.store, CONTAINER)
        assert_metadata_valid(active)
        assert active.partial == {sample.target, sample.source}
        assert not active.whole
        assert (await load_metadata(sample.store, CONTAINER)).whole
        await sample.store.close()

    run(main())


@both
@pytest.mark.parametrize("how", ["link", "truncate", "delete"])
def test_a_merge_of_what_is_known_in_part_ends_as_that_of_the_whole(
    kind: Kind, how: str, tmp_path: Path
) -> None:
    async def main() -> None:
        sample = await merged(kind, tmp_path / "s")
        store, found = sample.store, []
        for metadata in (
            await load_active(store, CONTAINER),
            await load_metadata(store, CONTAINER),
        ):
            updater = MetadataUpdater(metadata)
            updater.changes.begin_from(metadata)
            operation: Operation = {
                "link": StorageUpdateOperation(links=[(sample.target, sample.source)]),
                "truncate": TruncateOperation(sample.target, 140),
                "delete": DeleteOperation(sample.target),
            }[how]
            assert bool(updater.unknown(operation)) == (not metadata.whole)
            for segment_id in (sample.target, sample.source):
                await learn_chunks(store, metadata.segments[segment_id])
            assert not updater.unknown(operation)
            updater.accept(operation, 2000)
            updater.commit((operation,))
            assert_metadata_valid(metadata)
            assert sample.source not in metadata.partial
            segment = metadata.segments.get(sample.target)
            if segment is not None:
                await learn_chunks(store, segment)
                await learn_attributes(store, segment, map(key_of, range(5)))
            assert (sample.target in metadata.segments) == (how != "delete")
            found.append(
                (
                    [segment_record(each) for each in metadata.segments.values()],
                    [list(each.chunks) for each in metadata.segments.values()],
                    [dict(each.attributes.known()) for each in metadata.segments.values()],
                    {name: each.live_chunks for name, each in metadata.objects.items()},
                    list(metadata.garbage),
                )
            )
        assert found[0] == found[1]
        await store.close()

    run(main())


@both
def test_metadata_come_whole_if_they_are_few_and_small(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        sample = await merged(kind, tmp_path / "s")
        metadata = sample.metadata
        size = metadata_bytes(2, 14, 10)
        for segments_max, bytes_max, whole in (
            (1, size, True),
            (1, size - 1, False),
            (0, size, False),
            (99, 0, False),
        ):
            found = await load_bounded(sample.store, CONTAINER, segments_max, bytes_max)
            assert_metadata_valid(found)
            assert (found.whole, found.idle) == (whole, 0)
            assert found.partial == (set() if whole else {sample.target, sample.source})
            assert found.segments.keys() == metadata.segments.keys()
            if whole:
                assert encode_checkpoint(found) == encode_checkpoint(metadata)
        await sample.store.close()

    run(main())


# --- pages ----------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("portion", [1, 2, 2048])
def test_the_pages_of_a_stretch_are_those_with_a_byte_of_it(
    kind: Kind, portion: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_loading, "RECORDS_OF_A_PORTION", portion)

    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        metadata = sample.metadata
        whole = {
            (segment_id, key): records[:count]
            for segment_id in (sample.long, sample.small)
            for key, (records, count) in metadata.segments[segment_id].chunks.page_contents()
        }
        for start in range(0, 70, 5):
            for end in range(start + 1, 75, 7):
                found = await pages_of(sample.store, [(sample.long, start, end)], metadata)
                assert found == {
                    (segment_id, key): chunks
                    for (segment_id, key), chunks in whole.items()
                    if segment_id == sample.long and key < end and chunks[-1].end_offset > start
                }
        gaps = [(sample.small, 3, 4), (sample.long, 65, 66), (sample.long, 0, 1)]
        found = await pages_of(sample.store, gaps, metadata)
        assert found == {key: chunks for key, chunks in whole.items() if key[1] != 30}
        assert await pages_of(sample.store, [], metadata) == {}
        names = metadata.objects
        assert all(
            each.object_name is names[each.object_name].record.name
            for chunks in found.values()
            for each in chunks
        )
        await sample.store.close()

    run(main())


async def pages_of(
    store: KeyStore, gaps: list[tuple[int, int, int]], metadata: ContainerMetadata
) -> dict[tuple[int, int], list[ChunkRecord]]:
    found = {}
    async for pages in load_pages(store, gaps, metadata.objects):
        assert pages
        for segment_id, key, chunks in pages:
            assert (segment_id, key) not in found
            found[segment_id, key] = chunks
    return found


@both
def test_a_segment_learns_any_page_that_it_needs_and_no_other(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        whole = sample.metadata.segments[sample.long].chunks
        for start in range(0, 70, 10):
            segment = await loaded(sample.store, sample.long, sample.metadata)
            await learn_chunks(sample.store, segment, sample.metadata.objects, start, start + 1)
            assert segment.chunks.find(start) == whole.find(start)
            assert segment.chunks.knows(start, start + 1)
            assert segment.chunks.known_count == (1 if start >= 60 else 4)
            assert_segment_valid(segment)
        await sample.store.close()

    run(main())


def test_others_run_between_two_slices_of_pages_and_of_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_loading, "RECORDS_OF_A_SLICE", 2)

    async def main() -> None:
        sample = await filled(MemoryKeyStore, tmp_path, Runtime(executor=inline_executor))
        turns, decoded = 0, dict[int, int]()

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        for name in ("decode_chunk_page", "decode_attribute"):
            decode = getattr(segment_loading, name)

            def counted(*given: Any, decode: Callable[..., Any] = decode) -> Any:
                decoded[turns] = decoded.get(turns, 0) + 1
                return decode(*given)

            monkeypatch.setattr(segment_loading, name, counted)
        turn()
        slices = [each async for each in load_pages(sample.store, [(sample.long, 0, 70)], None)]
        assert [len(each) for each in slices] == [2, 1]
        keys = [(sample.long, key_of(number)) for number in range(5)]
        assert await load_attributes(sample.store, keys) == [0, 1, 2, 3, 4]
        # The first page twice: it could have been the only one.
        assert sum(decoded.values()) == 9
        assert max(decoded.values()) <= 2
        await sample.store.close()

    run(main())


@both
def test_one_page_takes_one_call_of_the_store(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path, Runtime(executor=inline_executor))

        async def no_scan(_: KeyStore, *given: object) -> list[KeyPortion]:
            raise AssertionError(given)

        monkeypatch.setattr(type(sample.store), "scan_each", no_scan)
        for start, end in ((0, 30), (10, 11), (29, 30), (30, 60), (60, 70)):
            found = [
                each async for each in load_pages(sample.store, [(sample.long, start, end)], None)
            ]
            assert [(page[0], page[1]) for page in found[0]] == [(sample.long, start // 30 * 30)]
        await sample.store.close()

    run(main())


# --- attributes -----------------------------------------------------------------------------------


@both
def test_attributes_come_in_the_order_of_the_question_none_where_there_is_none(
    kind: Kind, tmp_path: Path
) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        keys = [
            (segment_id, key_of(number))
            for segment_id in (sample.small, sample.long, 999, sample.empty)
            for number in (7, 4, 0, 2)
        ]
        expected = [7, None, None, None, None, 4, 0, 2, *[None] * 8]
        assert await load_attributes(sample.store, keys) == expected
        assert await load_attributes(sample.store, []) == []
        segment = await loaded(sample.store, sample.long, sample.metadata)
        await learn_attributes(sample.store, segment, [key_of(3), key_of(9)])
        assert dict(segment.attributes.known()) == {key_of(3): 3, key_of(9): None}
        assert len(segment.attributes) == 5
        await sample.store.close()

    run(main())


@both
@pytest.mark.parametrize("limit", [1, 2, 5, 2048])
def test_a_scan_goes_through_all_attributes_of_one_segment(
    kind: Kind, limit: int, tmp_path: Path
) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        expected = {key_of(number): number for number in range(5)}
        for start in (bytes(16), key_of(1), next_key(key_of(1)), key_of(4), key_of(9)):
            found, at = dict[AttributeKey, int](), start
            while at is not None:
                some, more = await scan_attributes(sample.store, sample.long, at, limit)
                assert len(some) <= limit
                assert list(some) == sorted(some)
                assert not found.keys() & some.keys()
                found |= some
                assert some or not more
                at = next_key(max(some)) if more else None
            assert start is not None
            assert found == {key: value for key, value in expected.items() if key >= start}
        assert await scan_attributes(sample.store, sample.empty, bytes(16), limit) == ({}, False)
        await sample.store.close()

    run(main())
