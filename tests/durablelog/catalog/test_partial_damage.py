"""Damage of segments that memory has in part: what is found at once, and what when it is read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from durablelog.catalog.catalog_keys import (
    CatalogAttributeKey,
    CatalogKey,
    ChunkPageKey,
    MetadataFormatError,
    SegmentIdKey,
)
from durablelog.catalog.catalog_loading import load_metadata
from durablelog.catalog.catalog_records import LongChunks, encode_chunk_page, encode_segment
from durablelog.catalog.frozen_metadata import segment_record
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.catalog.segment_loading import load_segments, scan_attributes
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata_checks import assert_segment_valid
from tests.contracts.key_store_contract import IDENTITY
from tests.durablelog.catalog.catalog_samples import (
    Kind,
    Sample,
    changed,
    filled,
    learn_attributes,
    learn_chunks,
    loaded,
)
from tests.durablelog.catalog.operations_machine import key_of

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


def page(sample: Sample, first: int) -> ChunkPageKey:
    return ChunkPageKey(sample.long, first)


def record(
    sample: Sample, chunks: int, first: int, start: int = 0
) -> dict[CatalogKey, bytes | None]:
    """The record of the long segment with other numbers: chunks, where they begin, and where it
    does.
    """
    there = segment_record(sample.metadata.segments[sample.long])
    wrong = there._replace(start_offset=start, long_chunks=LongChunks(chunks, first))
    return {SegmentIdKey(sample.long): encode_segment(wrong)}


DAMAGES_AT_ONCE: dict[str, tuple[Damage, str]] = {
    "more chunks than bytes": (
        lambda s: record(s, 100, 0),
        r"segment {long}: 99 chunks are to be in \[0,60\)",
    ),
    "chunks begin behind the segment": (
        lambda s: record(s, 7, 10),
        "segment {long}: .* not what it stores",
    ),
    "chunks begin behind the last page": (
        lambda s: record(s, 7, 65, 65),
        r"segment {long}: 6 chunks are to be in \[65,60\)",
    ),
    "chunks without a byte": (
        lambda s: record(s, 7, 60, 60),
        r"segment {long}: 6 chunks are to be in \[60,60\)",
    ),
}


@both
@pytest.mark.parametrize("name", DAMAGES_AT_ONCE)
def test_numbers_of_chunks_that_do_not_fit_the_last_page_are_named(
    kind: Kind, name: str, tmp_path: Path
) -> None:
    damage, words = DAMAGES_AT_ONCE[name]

    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        await changed(sample.store, {key.encode(): each for key, each in damage(sample).items()})
        for ids in ([sample.long], [sample.small, sample.long, sample.empty]):
            with pytest.raises(MetadataFormatError, match=words.format(long=sample.long)):
                await load_segments(sample.store, ids, sample.metadata.objects)
        assert (await loaded(sample.store, sample.small, sample.metadata)).whole
        await sample.store.close()

    run(main())


DAMAGES_OF_PAGES: dict[str, tuple[Damage, str | tuple[int, int]]] = {
    "first page missing": (
        lambda s: {page(s, 0): None},
        "segment {long}: no page has its offset 0",
    ),
    "middle page missing": (lambda s: {page(s, 30): None}, (30, 60)),
    "page begins elsewhere": (
        lambda s: {page(s, 30): encode_chunk_page([chunk(s, 31, 29)])},
        r"ChunkPageKey\(segment_id={long}, first_offset=30\): it begins at 31",
    ),
    "page under another key": (
        lambda s: {page(s, 30): None, page(s, 31): encode_chunk_page([chunk(s, 31, 29)])},
        r"with \[31,60\), 2 chunks are left for 1 bytes",
    ),
    "page too short": (lambda s: {page(s, 30): encode_chunk_page([chunk(s, 30)])}, (40, 60)),
    "page too long": (
        lambda s: {page(s, 0): encode_chunk_page([chunk(s, 0, 20), chunk(s, 20, 11)])},
        r"\[30,60\) is not in the gap \[31,60\)",
    ),
    "page behind the end": (
        lambda s: {page(s, 30): encode_chunk_page([chunk(s, 30), chunk(s, 40, 31)])},
        r"\[30,71\) ends behind",
    ),
    "page cut": (
        lambda s: {page(s, 30): encode_chunk_page([chunk(s, 30, 30)])[:-1]},
        r"ChunkPageKey\(segment_id={long}, first_offset=30\): malformed chunk page",
    ),
    "page empty": (
        lambda s: {page(s, 30): b""},
        r"ChunkPageKey\(segment_id={long}, first_offset=30\): malformed chunk page",
    ),
    "page in no object": (
        lambda s: {page(s, 30): encode_chunk_page([chunk(s, 30, 30, "none")])},
        r"ChunkPageKey\(segment_id={long}, first_offset=30\): .*object none is missing",
    ),
}
"""What reading them says, or the stretch that is not in memory after that."""

DAMAGES_OF_NUMBERS: dict[str, tuple[Damage, str | tuple[int, int]]] = {
    "a chunk too many": (lambda s: record(s, 8, 0), "1 chunks are left for 0 bytes"),
    "a chunk too few": (lambda s: record(s, 6, 0), "-1 chunks are left for 0 bytes"),
    "pages too few": (lambda s: record(s, 4, 0), "0 chunks are left for 30 bytes"),
    "chunks begin in a page": (
        lambda s: record(s, 7, 5, 35),
        r"\[0,30\) is not in the gap \[5,60\)",
    ),
}


@both
@pytest.mark.parametrize("name", [*DAMAGES_OF_PAGES, *DAMAGES_OF_NUMBERS])
def test_damage_of_pages_that_are_not_read_is_found_when_they_are(
    kind: Kind, name: str, tmp_path: Path
) -> None:
    damage, words = (DAMAGES_OF_PAGES | DAMAGES_OF_NUMBERS)[name]

    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        store, objects = sample.store, sample.metadata.objects
        await changed(store, {key.encode(): each for key, each in damage(sample).items()})
        segment = await loaded(store, sample.long, sample.metadata)
        assert_segment_valid(segment)
        if isinstance(words, str):
            with pytest.raises(
                (MetadataFormatError, ValueError), match=words.format(long=sample.long)
            ):
                await learn_chunks(store, segment, objects)
        else:
            await learn_chunks(store, segment, objects)
            assert segment.chunks.gaps(0, 70) == [words]
        # What was refused is not in memory, and the rest is as it was.
        assert_segment_valid(segment)
        assert not segment.chunks.whole
        if name in DAMAGES_OF_PAGES:
            with pytest.raises(MetadataFormatError):
                await load_metadata(store, CONTAINER)
        await store.close()

    run(main())


RECORDS_OF_OTHERS: dict[str, LongChunks | None] = {
    "a chunk too many": LongChunks(8, 0),
    "a chunk too few": LongChunks(6, 0),
    "chunks begin elsewhere": LongChunks(7, 5),
    "chunks that fit a page": LongChunks(2, 0),
    "no numbers": None,
}


@both
@pytest.mark.parametrize("name", RECORDS_OF_OTHERS)
def test_numbers_of_a_record_are_compared_when_all_pages_are_read(
    kind: Kind, name: str, tmp_path: Path
) -> None:
    long = RECORDS_OF_OTHERS[name]

    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        there = segment_record(sample.metadata.segments[sample.long])
        assert there.long_chunks == LongChunks(7, 0)
        start = 0 if long is None else long.start_offset
        wrong = there._replace(start_offset=start, long_chunks=long)
        key = SegmentIdKey(sample.long).encode()
        await changed(sample.store, {key: encode_segment(wrong)})
        match = rf"segment {sample.long}: .* its record says {re.escape(str(long))}$"
        with pytest.raises(MetadataFormatError, match=match):
            await load_metadata(sample.store, CONTAINER)
        if long is None or long.chunks <= ChunkList.page_chunks:
            # No pages are left for later.
            with pytest.raises(MetadataFormatError, match=match):
                await load_segments(sample.store, [sample.long], sample.metadata.objects)
        await changed(sample.store, {key: encode_segment(there)})
        assert (await load_metadata(sample.store, CONTAINER)).whole
        await sample.store.close()

    run(main())


DAMAGES_OF_ATTRIBUTES: dict[str, tuple[Damage, str]] = {
    "cut": (
        lambda s: {CatalogAttributeKey(s.long, key_of(3)): bytes(7)},
        r"CatalogAttributeKey\(segment_id={long}, .*\): malformed attribute",
    ),
    "without a value": (
        lambda s: {CatalogAttributeKey(s.long, key_of(3)): b"\x80" + bytes(7)},
        r"CatalogAttributeKey\(segment_id={long}, .*\): an attribute without a value",
    ),
}


@both
@pytest.mark.parametrize("name", DAMAGES_OF_ATTRIBUTES)
def test_a_damaged_attribute_is_named_when_it_is_read(
    kind: Kind, name: str, tmp_path: Path
) -> None:
    damage, words = DAMAGES_OF_ATTRIBUTES[name]

    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        store, match = sample.store, words.format(long=sample.long)
        await changed(store, {key.encode(): each for key, each in damage(sample).items()})
        segment = await loaded(store, sample.long, sample.metadata)
        await learn_attributes(store, segment, [key_of(2), key_of(4)])
        with pytest.raises(MetadataFormatError, match=match):
            await learn_attributes(store, segment, [key_of(2), key_of(3)])
        assert not segment.attributes.knows(key_of(3))
        assert await scan_attributes(store, sample.long, bytes(16), 3) == (
            {key_of(number): number for number in range(3)},
            True,
        )
        with pytest.raises(MetadataFormatError, match=match):
            await scan_attributes(store, sample.long, bytes(16), 4)
        with pytest.raises(MetadataFormatError):
            await load_metadata(store, CONTAINER)
        await store.close()

    run(main())


@both
def test_more_attributes_than_a_record_says_are_found_when_they_are_read(
    kind: Kind, tmp_path: Path
) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        await changed(
            sample.store, {CatalogAttributeKey(sample.long, key_of(9)).encode(): bytes(8)}
        )
        segment = await loaded(sample.store, sample.long, sample.metadata)
        await learn_attributes(sample.store, segment, map(key_of, range(5)))
        with pytest.raises(ValueError, match="6 of 5 attributes are there"):
            await learn_attributes(sample.store, segment, [key_of(9)])
        with pytest.raises(MetadataFormatError, match="6 of 5 attributes are there"):
            await load_metadata(sample.store, CONTAINER)
        await sample.store.close()

    run(main())


@both
def test_an_attribute_that_is_lost_is_found_by_a_load_of_everything(
    kind: Kind, tmp_path: Path
) -> None:
    async def main() -> None:
        sample = await filled(kind, tmp_path / "s")
        await changed(sample.store, {CatalogAttributeKey(sample.long, key_of(3)).encode(): None})
        assert not (await loaded(sample.store, sample.long, sample.metadata)).attributes.whole
        with pytest.raises(MetadataFormatError, match="4 of 5 attributes are there"):
            await load_metadata(sample.store, CONTAINER)
        await sample.store.close()

    run(main())
