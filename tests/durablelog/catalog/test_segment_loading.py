"""Segments that are read from a catalog on demand, and what is said of damaged records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from durablelog.catalog import key_store_records, segment_loading
from durablelog.catalog.catalog_keys import (
    CatalogAttributeKey,
    CatalogKey,
    ChunkPageKey,
    ChunkPlaceKey,
    MetadataFormatError,
    NameKey,
    SegmentIdKey,
    TotalsKey,
    UnflushedKey,
)
from durablelog.catalog.catalog_loading import load_active, load_metadata, load_totals
from durablelog.catalog.catalog_records import (
    CatalogTotals,
    SegmentRecord,
    decode_attribute,
    encode_chunk_page,
    encode_segment,
    encode_segment_id,
    encode_totals,
)
from durablelog.catalog.frozen_metadata import segment_record
from durablelog.catalog.key_store import KeyStore, KeyStoreCorruptError
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.catalog.segment_loading import chunks_in, find_ids, load_records, load_segments
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import CreateOperation
from recovery.harness.simulation.virtual_loop import inline_executor
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid, assert_segment_valid
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY
from tests.durablelog.catalog.catalog_samples import (
    OBJECTS,
    Kind,
    Sample,
    changed,
    filled,
    learn_chunks,
    opened,
    written,
)
from tests.durablelog.catalog.operations_machine import key_of, updates_of

KINDS = (MemoryKeyStore, RocksDbKeyStore)
CONTAINER = IDENTITY.container_id

Damage: TypeAlias = Callable[[Sample], dict[CatalogKey, bytes | None]]

both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def content(segment: SegmentMetadata | None) -> tuple[Any, ...]:
    assert segment is not None
    return segment_record(segment), list(segment.attributes.items()), list(segment.chunks)


# --- what is there --------------------------------------------------------------------------------


@both
def test_segments_come_with_all_they_have_in_the_order_of_their_ids(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        segments, objects = sample.metadata.segments, sample.metadata.objects
        wanted = [sample.small, 999, sample.long, sample.source, sample.empty, sample.target]
        found: list[SegmentMetadata | None] = []
        for portion in (2, 2048):
            monkeypatch.setattr(segment_loading, "RECORDS_OF_A_PORTION", portion)
            found = await load_segments(sample.store, wanted, objects)
            assert found[1] is None
            for segment_id, segment in zip(wanted, found, strict=True):
                if segment is not None:
                    assert_segment_valid(segment)
                    assert segment.whole == (segment_id != sample.long)
                    await learn_chunks(sample.store, segment, objects)
                    assert segment.whole
                    assert_segment_valid(segment)
                    assert content(segment) == content(segments[segment_id])
                    assert segment.chunks.page_keys == segments[segment_id].chunks.page_keys
        chunks = [chunk for each in found if each is not None for chunk in each.chunks]
        assert all(each.object_name is objects[each.object_name].record.name for each in chunks)
        (alone,) = await load_segments(sample.store, [sample.long])
        assert alone is not None
        await learn_chunks(sample.store, alone)
        assert content(alone) == content(segments[sample.long])
        assert await load_segments(sample.store, []) == []
        records = await load_records(sample.store, wanted)
        there = [segments.get(each) for each in wanted]
        assert records == [None if each is None else segment_record(each) for each in there]
        names = ["long", "source", "none", "empty"]
        assert await find_ids(sample.store, names) == [sample.long, None, None, sample.empty]
        await sample.store.close()

    run(main())


@both
def test_the_chunks_in_an_object_are_those_of_all_segments(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        for name in OBJECTS:
            assert await chunks_in(sample.store, name) == [
                (segment_id, chunk)
                for segment_id, segment in sample.metadata.segments.items()
                for chunk in segment.chunks
                if chunk.object_name == name
            ]
        # No name is taken for the beginning of another.
        for name in ("on", "onee", "none"):
            assert await chunks_in(sample.store, name) == []
        await sample.store.close()

    run(main())


def test_others_run_between_two_slices_of_many_small_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_loading, "RECORDS_OF_A_SLICE", 16)

    async def main() -> None:
        metadata = ContainerMetadata(CONTAINER)
        updater = MetadataUpdater(metadata)
        for number in range(80):
            values = {key: key for key in range(4)}
            operation = CreateOperation(f"s{number}", updates=updates_of(values))
            updater.accept(operation, 1)
            updater.commit((operation,))
        store = await opened(MemoryKeyStore, tmp_path, Runtime(executor=inline_executor))
        await written(store, metadata, updater)
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        decoded: dict[int, int] = {}

        def counted(value: bytes) -> int:
            decoded[turns] = decoded.get(turns, 0) + 1
            return decode_attribute(value)

        monkeypatch.setattr(segment_loading, "decode_attribute", counted)
        turn()
        found = await load_segments(store, list(metadata.segments))
        assert sum(len(each.attributes) for each in found if each is not None) == 320
        assert sum(decoded.values()) == 320
        assert max(decoded.values()) <= 16
        await store.close()

    run(main())


# --- damage ---------------------------------------------------------------------------------------


def record_of(sample: Sample, segment_id: int) -> SegmentRecord:
    return segment_record(sample.metadata.segments[segment_id])


def page(sample: Sample, first: int) -> ChunkPageKey:
    return ChunkPageKey(sample.long, first)


def long_with(sample: Sample, **fields: int) -> dict[CatalogKey, bytes | None]:
    record = record_of(sample, sample.long)._replace(**fields)  # type: ignore[arg-type]
    return {SegmentIdKey(sample.long): encode_segment(record)}


def chunk(sample: Sample, start: int, length: int = 10, name: str = "one") -> ChunkRecord:
    return ChunkRecord(start, length, name, 0, sample.long, start)


DAMAGES_OF_A_SEGMENT: dict[str, tuple[Damage, str]] = {
    "record cut": (
        lambda s: {SegmentIdKey(s.long): encode_segment(record_of(s, s.long))[:-1]},
        r"segment {long}\b",
    ),
    "last page missing": (lambda s: {page(s, 60): None}, "segment {long}: .* not what it stores"),
    "all pages missing": (
        lambda s: {page(s, 0): None, page(s, 30): None, page(s, 60): None},
        "segment {long}: none of 7 chunks are there",
    ),
    "last page begins elsewhere": (
        lambda s: {page(s, 60): encode_chunk_page([chunk(s, 61, 9)])},
        r"ChunkPageKey\(segment_id={long}, first_offset=60\): it begins at 61",
    ),
    "last page too long": (
        lambda s: {page(s, 60): encode_chunk_page([chunk(s, 60, 11)])},
        "segment {long}: .* not what it stores",
    ),
    "last page too short": (
        lambda s: {page(s, 60): encode_chunk_page([chunk(s, 60, 9)])},
        "segment {long}: .* not what it stores",
    ),
    "last page cut": (
        lambda s: {page(s, 60): encode_chunk_page([chunk(s, 60, 10)])[:-1]},
        r"ChunkPageKey\(segment_id={long}, first_offset=60\): malformed chunk page",
    ),
    "last page empty": (
        lambda s: {page(s, 60): b""},
        r"ChunkPageKey\(segment_id={long}, first_offset=60\): malformed chunk page",
    ),
    "last page in no object": (
        lambda s: {page(s, 60): encode_chunk_page([chunk(s, 60, 10, "none")])},
        r"ChunkPageKey\(segment_id={long}, first_offset=60\): .*object none is missing",
    ),
    "attribute missing": (
        lambda s: {CatalogAttributeKey(s.long, key_of(3)): None},
        "segment {long}: 4 of 5 attributes are there",
    ),
    "attribute too many": (
        lambda s: {CatalogAttributeKey(s.long, key_of(9)): bytes(8)},
        "segment {long}: 6 of 5 attributes are there",
    ),
    "attribute cut": (
        lambda s: {CatalogAttributeKey(s.long, key_of(3)): bytes(7)},
        r"CatalogAttributeKey\(segment_id={long}, .*\): malformed attribute",
    ),
    "attribute without a value": (
        lambda s: {CatalogAttributeKey(s.long, key_of(3)): b"\x80" + bytes(7)},
        r"CatalogAttributeKey\(segment_id={long}, .*\): an attribute without a value",
    ),
    "attributes miscounted": (
        lambda s: long_with(s, attribute_count=4),
        "segment {long}: 5 of 4 attributes are there",
    ),
    "stored behind its end": (
        lambda s: long_with(s, length=60),
        "segment {long}: it begins, or is stored, behind its end",
    ),
    "begins behind its end": (
        lambda s: long_with(s, start_offset=71),
        "segment {long}: it begins, or is stored, behind its end",
    ),
    "stored less": (
        lambda s: long_with(s, storage_length=69),
        "segment {long}: .* not what it stores",
    ),
}


@both
@pytest.mark.parametrize("name", DAMAGES_OF_A_SEGMENT)
def test_a_damaged_record_of_a_segment_is_named(kind: Kind, name: str, tmp_path: Path) -> None:
    damage, words = DAMAGES_OF_A_SEGMENT[name]

    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        store, objects = sample.store, sample.metadata.objects
        await changed(store, {key.encode(): value for key, value in damage(sample).items()})
        match = words.format(long=sample.long)
        for ids in ([sample.long], [sample.small, sample.long, sample.empty]):
            with pytest.raises(MetadataFormatError, match=match):
                await load_segments(store, ids, objects)
        # A load of everything meets it, too, perhaps in another place.
        with pytest.raises(MetadataFormatError):
            await load_metadata(store, CONTAINER)
        # It is not in the way of others.
        assert all(await load_segments(store, [sample.small, sample.empty], objects))
        active = await load_active(store, CONTAINER)
        assert (active.idle, sample.long in active.segments) == (3, False)
        await store.close()

    run(main())


Load: TypeAlias = Callable[[KeyStore], Awaitable[object]]


async def load_all(store: KeyStore) -> object:
    return await load_metadata(store, CONTAINER)


async def load_few(store: KeyStore) -> object:
    return await load_active(store, CONTAINER)


DAMAGES: dict[str, tuple[tuple[Load, ...], Damage, str]] = {
    "name cut": (
        (lambda store: find_ids(store, ["long", "small"]), load_all),
        lambda s: {NameKey("long"): bytes(7)},
        r"NameKey\(name='long'\): malformed segment id",
    ),
    "place cut": (
        (lambda store: chunks_in(store, "one"),),
        lambda s: {ChunkPlaceKey("one", s.long, 0): bytes(31)},
        r"ChunkPlaceKey\(object_name='one', segment_id={long}, .*\): malformed chunk place",
    ),
    "listed and flushed": (
        (load_few,),
        lambda s: {UnflushedKey(s.small): b""},
        "segment {small}: it is listed as unflushed, and is flushed",
    ),
    "listed and flushed, found by a load of everything": (
        (load_all,),
        lambda s: {UnflushedKey(s.small): b""},
        "<Segment {small} .*: it is listed as unflushed, or not, by mistake",
    ),
    "listed and missing": (
        (load_few, load_all),
        lambda s: {UnflushedKey(0): b""},
        "segment 0: it is listed as unflushed, and is missing",
    ),
    "listed with bytes": (
        (load_few, load_all),
        lambda s: {UnflushedKey(s.fresh): b"x"},
        "unflushed segment {fresh}: there are bytes with it",
    ),
    "not listed": (
        (load_all,),
        lambda s: {UnflushedKey(s.fresh): None},
        "<Segment {fresh} .*: it is listed as unflushed, or not, by mistake",
    ),
    "a source not listed": (
        (load_few,),
        lambda s: {UnflushedKey(s.source): None},
        "segment {target}: segment {source} is not merged into it",
    ),
    "a target not listed": (
        (load_few,),
        lambda s: {UnflushedKey(s.target): None},
        "merges: 0 for 1 merged segments",
    ),
    "the length of a merge": (
        (load_few, load_all),
        lambda s: {
            SegmentIdKey(s.source): encode_segment(record_of(s, s.source)._replace(length=19))
        },
        "segment {target}: segment {source} has not 20 bytes",
    ),
    "name of an unflushed segment missing": (
        (load_few,),
        lambda s: {NameKey("fresh"): None},
        "name fresh: it is of None, and <Segment {fresh} ",
    ),
    "name of an unflushed segment is another's": (
        (load_few,),
        lambda s: {NameKey("fresh"): encode_segment_id(s.long)},
        "name fresh: it is of {long}, and <Segment {fresh} ",
    ),
    "totals missing": (
        (load_few, load_all),
        lambda s: {TotalsKey(): None},
        "totals: ",
    ),
    "totals cut": ((load_few, load_all), lambda s: {TotalsKey(): bytes(7)}, "malformed totals"),
    "totals too small for what is in memory": (
        (load_few,),
        lambda s: {TotalsKey(): encode_totals(CatalogTotals(1))},
        r"totals: 1, and 2 unflushed segments have names",
    ),
    "totals of another number": (
        (load_all,),
        lambda s: {TotalsKey(): encode_totals(CatalogTotals(6))},
        r"totals: 6, and 5 segments have names",
    ),
}


@both
@pytest.mark.parametrize("name", DAMAGES)
def test_other_damage_is_named(kind: Kind, name: str, tmp_path: Path) -> None:
    loads, damage, words = DAMAGES[name]

    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        await changed(sample.store, {key.encode(): each for key, each in damage(sample).items()})
        match = words.format(**sample._asdict())
        for load in loads:
            with pytest.raises(MetadataFormatError, match=match):
                await load(sample.store)
        await sample.store.close()

    run(main())


@both
def test_a_segment_newer_than_its_catalog_is_named(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        record = record_of(sample, sample.fresh)._replace(segment_id=999)
        await changed(sample.store, {SegmentIdKey(999).encode(): encode_segment(record)})
        await changed(sample.store, {UnflushedKey(999).encode(): b""})
        for load in (load_few, load_all):
            with pytest.raises(MetadataFormatError, match="segment 999: it is newer than"):
                await load(sample.store)
        await sample.store.close()

    run(main())


# --- versions -------------------------------------------------------------------------------------


@both
def test_a_catalog_of_version_1_is_loaded_whole_and_then_written_anew(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(key_store_records, "VERSION", 1)
        old = await filled(kind, tmp_path / "old")
        unflushed = {old.fresh, old.target, old.source}
        await changed(old.store, {UnflushedKey(key).encode(): None for key in unflushed})
        await changed(old.store, {TotalsKey().encode(): None})
        await old.store.flush()
        await old.store.close()
        monkeypatch.undo()
        monkeypatch.setattr(ChunkList, "page_chunks", 3)
        store = await opened(kind, tmp_path / "old")
        assert await load_totals(store) is None
        loaded = await load_metadata(store, CONTAINER)
        assert_metadata_valid(loaded)
        assert loaded.idle == 0
        assert {key: content(each) for key, each in loaded.segments.items()} == {
            key: content(each) for key, each in old.metadata.segments.items()
        }
        with pytest.raises(MetadataFormatError, match="totals: None"):
            await load_active(store, CONTAINER)
        await store.close()
        anew = await opened(kind, tmp_path / "anew")
        await written(anew, loaded, MetadataUpdater(loaded))
        assert await load_totals(anew) == CatalogTotals(5)
        active = await load_active(anew, CONTAINER)
        assert (set(active.segments), active.idle) == (unflushed, 3)
        await anew.close()

    run(main())


@both
def test_a_catalog_of_a_newer_version_does_not_open(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(key_store_records, "VERSION", 3)
            patched.setattr(key_store_records, "_VERSIONS", [3])
            newer = await opened(kind, tmp_path / "s")
            await newer.close()
        with pytest.raises(KeyStoreCorruptError, match="version 3 of the catalog, where 2"):
            await opened(kind, tmp_path / "s")

    run(main())
