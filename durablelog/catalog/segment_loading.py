"""Reading segments from a catalog on demand: those that are idle, and what is known of them.

Records of a segment are written only while it is in memory (docs/decisions/0059). So those of one
that is idle from the first call of the store to the last are of one moment. Others may be of
several, and look damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from durablelog.catalog.catalog_keys import (
    CatalogAttributeKey,
    ChunkPageKey,
    ChunkPlaceKey,
    MetadataFormatError,
    NameKey,
    attribute_range,
    chunk_page_key,
    chunk_page_range,
    chunk_place_range,
    decode_key,
    name_key,
    segment_id_key,
)
from durablelog.catalog.catalog_records import (
    LongChunks,
    SegmentRecord,
    decode_attribute,
    decode_chunk_page,
    decode_chunk_place,
    decode_segment,
    decode_segment_id,
)
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyPair, KeyStore
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.object_states import LiveObject

RECORDS_OF_A_PORTION: Final = 2048
"""Read by one call of the store, at most."""
RECORDS_OF_A_SLICE: Final = 128
"""Decoded without letting others run, of small records."""
BYTES_OF_A_SLICE: Final = 12 * 1024
"""The same of large ones: a page of chunks is decoded in the time of fifty names."""

K = TypeVar("K")
V = TypeVar("V")


async def find_ids(store: KeyStore, names: Sequence[str]) -> list[int | None]:
    """The id of the segment of each name, None where the catalog has none.

    Raises MetadataFormatError, which names the record, and what the store raises.
    """
    found = await store.get([name_key(name) for name in names])
    return [
        None if value is None else decoded(decode_segment_id, NameKey(name), value)
        for name, value in zip(names, found, strict=True)
    ]


async def load_records(store: KeyStore, ids: Sequence[int]) -> list[SegmentRecord | None]:
    """The records of the segments, without chunks and attributes; None where there is none.

    Decoded at once. Raises as `find_ids`.
    """
    found = await store.get([segment_id_key(segment_id) for segment_id in ids])
    return [
        None if value is None else decode_segment(segment_id, value)
        for segment_id, value in zip(ids, found, strict=True)
    ]


async def load_segments(
    store: KeyStore, ids: Sequence[int], objects: Mapping[str, LiveObject] | None = None
) -> list[SegmentMetadata | None]:
    """The segments with their chunks and attributes; None where there is none. `objects`, if they
    are given, are those that chunks may be in.

    Of several pages of chunks the last one alone is read, and of many attributes none: they are
    partial (docs/decisions/0060). One call of the store for segments that were never truncated,
    have one page of chunks and no attributes; two or three for others. Decoded in slices. Raises as
    `find_ids`.
    """
    if not ids:
        return []
    records, first_pages = await _load_records_and_first_pages(store, ids)
    there = {record.segment_id: record for record in records if record is not None}
    segments: dict[int, SegmentMetadata] = {}
    long: list[SegmentRecord] = []
    ranges = []
    for number, (segment_id, record) in enumerate(there.items()):
        if number % RECORDS_OF_A_SLICE == RECORDS_OF_A_SLICE - 1:
            await asyncio.sleep(0)
        segment = segments[segment_id] = segment_of(record)
        if _is_loaded_in_part(record):
            long.append(record)
        elif not _add_only_page(segment, record, first_pages.get(segment_id), objects) and (
            _has_chunks(record)
        ):
            ranges.append(chunk_page_range(segment_id))
        if record.attribute_count > AttributeTable.PAGE_MAX:
            segment.attributes = AttributeTable.partial(record.attribute_count)
        elif record.attribute_count:
            ranges.append(attribute_range(segment_id))
    if long:
        await _load_last_pages(store, long, segments, objects)
    async for pairs in _slices(store, ranges):
        _add_pairs(segments, pairs, objects)
    for segment_id, record in there.items():
        check_segment(segments[segment_id], record.attribute_count)
        if segments[segment_id].chunks.whole:
            check_long_chunks(segments[segment_id], record.long_chunks)
    return [segments.get(segment_id) for segment_id in ids]


async def _load_records_and_first_pages(
    store: KeyStore, ids: Sequence[int]
) -> tuple[list[SegmentRecord | None], dict[int, bytes]]:
    """The records of segments, and by id the pages of chunks that begin with their first byte.

    Most segments have such a page, and no other: so one call of the store is enough for them. To
    ask for one that is not there costs what its filter does.
    """
    keys = [segment_id_key(segment_id) for segment_id in ids]
    keys += [chunk_page_key(segment_id, 0) for segment_id in ids]
    found = await store.get(keys)
    records: list[SegmentRecord | None] = []
    for number, (segment_id, value) in enumerate(zip(ids, found, strict=False)):
        records.append(None if value is None else decode_segment(segment_id, value))
        if number % RECORDS_OF_A_SLICE == RECORDS_OF_A_SLICE - 1:
            await asyncio.sleep(0)
    pages = zip(ids, found[len(ids) :], strict=True)
    return records, {segment_id: page for segment_id, page in pages if page is not None}


def _add_only_page(
    segment: SegmentMetadata,
    record: SegmentRecord,
    page: bytes | None,
    objects: Mapping[str, LiveObject] | None,
) -> bool:
    """Give a segment its chunks if they are all in this page, which begins with its first byte."""
    if page is None or record.start_offset or record.long_chunks is not None or record.releasing:
        return False
    chunks = decode_page(ChunkPageKey(record.segment_id, 0), page, objects)
    if chunks[-1].end_offset != record.storage_length:
        return False
    segment.chunks = ChunkList.of_page(chunks)
    return True


def _has_chunks(record: SegmentRecord) -> bool:
    return record.start_offset < record.storage_length or record.releasing


def _is_loaded_in_part(record: SegmentRecord) -> bool:
    """Whether the segment comes into memory without some of its chunks."""
    long = record.long_chunks
    return long is not None and long.chunks > ChunkList.page_chunks


async def _load_last_pages(
    store: KeyStore,
    records: Sequence[SegmentRecord],
    segments: Mapping[int, SegmentMetadata],
    objects: Mapping[str, LiveObject] | None,
) -> None:
    """Give segments their chunks, of which the last page alone is known."""
    last = await store.find_last([chunk_page_range(each.segment_id) for each in records])
    for record, pair in zip(records, last, strict=True):
        long = record.long_chunks
        assert long is not None, record
        where = f"segment {record.segment_id}"
        if pair is None:
            raise wrong(where, f"none of {long.chunks} chunks are there")
        key = decoded_key(ChunkPageKey, pair[0])
        chunks = decode_page(key, pair[1], objects)
        try:
            known = ChunkList.partial(long.chunks, long.start_offset, chunks)
        except ValueError as error:
            raise wrong(where, f"{error}") from error
        segments[record.segment_id].chunks = known


async def load_pages(
    store: KeyStore,
    gaps: Sequence[tuple[int, int, int]],
    objects: Mapping[str, LiveObject] | None,
) -> AsyncIterator[list[tuple[int, int, list[ChunkRecord]]]]:
    """The pages with a byte of these stretches, (segment, start, end): id, key and chunks of each.

    In slices, between which others run. One call of the store for a stretch of one page. For others
    two, and one more for each RECORDS_OF_A_PORTION pages. Raises as `find_ids`, and if no page
    begins at or before a stretch.
    """
    firsts = [chunk_page_range(segment_id, start) for segment_id, start, _ in gaps]
    ranges = []
    for (segment_id, start, end), pair in zip(gaps, await store.find_last(firsts), strict=True):
        if pair is None:
            raise wrong(f"segment {segment_id}", f"no page has its offset {start}")
        if len(gaps) == 1 and (page := _decoded_page(pair, objects))[2][-1].end_offset >= end:
            # Most often: of a reader.
            yield [page]
            return
        ranges.append(StoreKeyRange(pair[0], chunk_page_range(segment_id, end - 1).end))
    async for pairs in _slices(store, ranges):
        yield [_decoded_page(pair, objects) for pair in pairs]


def _decoded_page(
    pair: KeyPair, objects: Mapping[str, LiveObject] | None
) -> tuple[int, int, list[ChunkRecord]]:
    key = decoded_key(ChunkPageKey, pair[0])
    return key.segment_id, key.first_offset, decode_page(key, pair[1], objects)


async def load_attributes(
    store: KeyStore, keys: Sequence[tuple[int, AttributeKey]]
) -> list[int | None]:
    """The values of attributes by segment and id; None where there is none.

    One call of the store; decoded in slices. Raises as `find_ids`.
    """
    wanted = [CatalogAttributeKey(*key) for key in keys]
    found: list[int | None] = []
    values = await store.get([key.encode() for key in wanted])
    for number, (key, value) in enumerate(zip(wanted, values, strict=True)):
        found.append(None if value is None else decoded(decode_attribute, key, value))
        if number % RECORDS_OF_A_SLICE == RECORDS_OF_A_SLICE - 1:
            await asyncio.sleep(0)
    return found


async def scan_attributes(
    store: KeyStore, segment_id: int, start: AttributeKey, limit: int
) -> tuple[dict[AttributeKey, int], bool]:
    """The first attributes of a segment from `start` on, and whether there may be more.

    One call of the store. `limit` is at most RECORDS_OF_A_PORTION. Raises as `find_ids`.
    """
    portion = await store.scan(attribute_range(segment_id, start), limit)
    found = {}
    for data, value in portion.pairs:
        key = decoded_key(CatalogAttributeKey, data)
        found[key.attribute_id] = decoded(decode_attribute, key, value)
    return found, portion.rest is not None


def _add_pairs(
    segments: Mapping[int, SegmentMetadata],
    pairs: Iterable[KeyPair],
    objects: Mapping[str, LiveObject] | None,
) -> None:
    """Add pages of chunks and attributes to their segments."""
    attributes: dict[int, dict[AttributeKey, int]] = {}
    for data, value in pairs:
        key = decode_key(data)
        if isinstance(key, ChunkPageKey):
            add_page(segments[key.segment_id], key, value, objects)
        else:
            assert isinstance(key, CatalogAttributeKey), key
            found = attributes.setdefault(key.segment_id, {})
            found[key.attribute_id] = decoded(decode_attribute, key, value)
    for segment_id, values in attributes.items():
        segments[segment_id].apply_attributes(values)


async def chunks_in(store: KeyStore, object_name: str) -> list[tuple[int, ChunkRecord]]:
    """The chunks in an object, with the ids of their segments, as of the catalog.

    By id and offset. Decoded in slices. Raises as `find_ids`.
    """
    found: list[tuple[int, ChunkRecord]] = []
    async for pairs in _slices(store, [chunk_place_range(object_name)]):
        for data, value in pairs:
            key = decoded_key(ChunkPlaceKey, data)
            place = decoded(decode_chunk_place, key, value)
            chunk = ChunkRecord(key.start_offset, place.length, object_name, *place[1:])
            found.append((key.segment_id, chunk))
    return found


async def _slices(store: KeyStore, ranges: Iterable[StoreKeyRange]) -> AsyncIterator[list[KeyPair]]:
    """All pairs of the ranges, those of one range in their order; others run between two slices."""
    left = list(ranges)
    while left:
        portions = await store.scan_each(left, RECORDS_OF_A_PORTION)
        pairs = [pair for portion in portions for pair in portion.pairs]
        for number, some in enumerate(slices_of(pairs)):
            if number:
                await asyncio.sleep(0)
            yield some
        left = [portion.rest for portion in portions if portion.rest is not None]


def segment_of(record: SegmentRecord) -> SegmentMetadata:
    """The segment without its chunks and attributes."""
    segment = SegmentMetadata(record.segment_id, record.name, record.created_ms)
    segment.last_modified_ms = record.last_modified_ms
    segment.start_offset = record.start_offset
    segment.length = record.length
    segment.storage_length = record.storage_length
    segment.sealed = record.sealed
    segment.merged_into = record.merged_into
    segment.merges = list(record.merges) or ()
    segment.releasing, segment.deleted = record.releasing, record.deleted
    return segment


def add_page(
    segment: SegmentMetadata,
    page: ChunkPageKey,
    value: bytes,
    objects: Mapping[str, LiveObject] | None,
) -> list[ChunkRecord]:
    """Add a page behind the others of the segment; its chunks. `objects` as decode_chunk_page has
    them. Raises MetadataFormatError.
    """
    chunks, there = decode_page(page, value, objects), segment.chunks
    if there and there.last.end_offset != page.first_offset:
        raise wrong(f"{page}", f"the page before ends at {there.last.end_offset}")
    segment.own_chunks().extend_pages([(chunks, None)])
    return chunks


def decode_page(
    page: ChunkPageKey, value: bytes, objects: Mapping[str, LiveObject] | None
) -> list[ChunkRecord]:
    """The chunks of a page. Raises MetadataFormatError, which names it."""
    try:
        chunks = decode_chunk_page(value, objects)
    except MetadataFormatError as error:
        raise wrong(f"{page}", f"{error}") from error
    if chunks[0].start_offset != page.first_offset:
        raise wrong(f"{page}", f"it begins at {chunks[0].start_offset}")
    return chunks


def check_segment(segment: SegmentMetadata, attributes: int) -> None:
    """Raise MetadataFormatError if the parts of a segment in memory are not what its record says.

    `attributes` is the number that it says.
    """
    where = f"segment {segment.segment_id}"
    if len(segment.attributes) != attributes:
        raise wrong(where, f"{len(segment.attributes)} of {attributes} attributes are there")
    if not (segment.start_offset <= segment.length and segment.storage_length <= segment.length):
        raise wrong(where, "it begins, or is stored, behind its end")
    if segment.start_offset < segment.storage_length and not (
        segment.chunks
        and segment.chunks.start_offset <= segment.start_offset
        and segment.chunks.last.end_offset == segment.storage_length
    ):
        raise wrong(where, f"{segment.chunks!r} are not what it stores")


def check_long_chunks(segment: SegmentMetadata, long: LongChunks | None) -> None:
    """Raise MetadataFormatError if a segment with all its chunks is not what its record says."""
    chunks = segment.chunks
    there = LongChunks(len(chunks), chunks.start_offset) if chunks.paged else None
    if there != long:
        raise wrong(f"segment {segment.segment_id}", f"{chunks!r}, and its record says {long}")


def check_merges(segment: SegmentMetadata, segments: Mapping[int, SegmentMetadata]) -> None:
    """Raise MetadataFormatError if a source of the segment's merges is not what they say."""
    where = f"segment {segment.segment_id}"
    for merge in segment.merges:
        source = segments.get(merge.source_id)
        if source is None or source.merged_into != segment.segment_id:
            raise wrong(where, f"segment {merge.source_id} is not merged into it")
        if source.length != merge.length:
            raise wrong(where, f"segment {merge.source_id} has not {merge.length} bytes")
        if source.start_offset and merge.offset + source.start_offset > segment.storage_length:
            raise wrong(where, f"it lacks what segment {merge.source_id} has given up")


def decoded(decode: Callable[[bytes], V], key: object, value: bytes) -> V:
    """What the value of a key says. Raises MetadataFormatError, which names the key."""
    try:
        return decode(value)
    except MetadataFormatError as error:
        raise wrong(f"{key}", f"{error}") from error


def decoded_key(kind: type[K], data: bytes) -> K:
    """A key whose first byte says that it is of this kind. Raises MetadataFormatError."""
    key = decode_key(data)
    assert isinstance(key, kind), key
    return key


def wrong(where: str, what: str) -> MetadataFormatError:
    """What is wrong with a record."""
    return MetadataFormatError(f"{where}: {what}")


def slices_of(pairs: list[KeyPair]) -> Iterator[list[KeyPair]]:
    """The pairs in parts that are decoded in a millisecond or two each."""
    begun = size = 0
    for number, (_, value) in enumerate(pairs):
        size += len(value)
        if size >= BYTES_OF_A_SLICE or number - begun == RECORDS_OF_A_SLICE - 1:
            yield pairs[begun : number + 1]
            begun, size = number + 1, 0
    if begun < len(pairs):
        yield pairs[begun:]
