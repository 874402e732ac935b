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
    SegmentIdKey,
    attribute_range,
    chunk_page_range,
    chunk_place_range,
    decode_key,
)
from durablelog.catalog.catalog_records import (
    SegmentRecord,
    decode_attribute,
    decode_chunk_page,
    decode_chunk_place,
    decode_segment,
    decode_segment_id,
)
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyPair, KeyStore
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import LiveObject, SegmentMetadata

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
    found = await store.get([NameKey(name).encode() for name in names])
    return [
        None if value is None else decoded(decode_segment_id, NameKey(name), value)
        for name, value in zip(names, found, strict=True)
    ]


async def load_records(store: KeyStore, ids: Sequence[int]) -> list[SegmentRecord | None]:
    """The records of the segments, without chunks and attributes; None where there is none.

    Decoded at once. Raises as `find_ids`.
    """
    found = await store.get([SegmentIdKey(segment_id).encode() for segment_id in ids])
    return [
        None if value is None else decode_segment(segment_id, value)
        for segment_id, value in zip(ids, found, strict=True)
    ]


async def load_segments(
    store: KeyStore, ids: Sequence[int], objects: Mapping[str, LiveObject] | None = None
) -> list[SegmentMetadata | None]:
    """The segments with their chunks and attributes; None where there is none. `objects`, if they
    are given, are those that chunks may be in.

    Two calls of the store, more where there is much; O(chunks + attributes), decoded in slices.
    `ids` are no more than RECORDS_OF_A_SLICE. Raises as `find_ids`.
    """
    records = await load_records(store, ids)
    there = {record.segment_id: record for record in records if record is not None}
    segments = {segment_id: segment_of(record) for segment_id, record in there.items()}
    ranges = [
        *(
            chunk_page_range(segment_id)
            for segment_id, record in there.items()
            if record.start_offset < record.storage_length
        ),
        *(attribute_range(each.segment_id) for each in there.values() if each.attribute_count),
    ]
    async for pairs in _slices(store, ranges):
        _add_pairs(segments, pairs, objects)
    for segment_id, record in there.items():
        check_segment(segments[segment_id], record.attribute_count)
    return [segments.get(segment_id) for segment_id in ids]


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
    segment.merges = list(record.merges)
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
    try:
        chunks = decode_chunk_page(value, objects)
    except MetadataFormatError as error:
        raise wrong(f"{page}", f"{error}") from error
    there = segment.chunks
    if chunks[0].start_offset != page.first_offset:
        raise wrong(f"{page}", f"it begins at {chunks[0].start_offset}")
    if there and there.last.end_offset != page.first_offset:
        raise wrong(f"{page}", f"the page before ends at {there.last.end_offset}")
    there.extend_pages([(chunks, None)])
    return chunks


def check_segment(segment: SegmentMetadata, attributes: int) -> None:
    """Raise MetadataFormatError if the parts of a segment are not what its record says.

    `attributes` is the number that it says.
    """
    where = f"segment {segment.segment_id}"
    if len(segment.attributes) != attributes:
        raise wrong(where, f"{len(segment.attributes)} of {attributes} attributes are there")
    if not (segment.start_offset <= segment.length and segment.storage_length <= segment.length):
        raise wrong(where, "it begins, or is stored, behind its end")
    if segment.start_offset < segment.storage_length and not (
        segment.chunks
        and segment.chunks.first.start_offset <= segment.start_offset
        and segment.chunks.last.end_offset == segment.storage_length
    ):
        raise wrong(where, f"{segment.chunks!r} are not what it stores")


def check_merges(segment: SegmentMetadata, segments: Mapping[int, SegmentMetadata]) -> None:
    """Raise MetadataFormatError if a source of the segment's merges is not what they say."""
    where = f"segment {segment.segment_id}"
    for merge in segment.merges:
        source = segments.get(merge.source_id)
        if source is None or source.merged_into != segment.segment_id:
            raise wrong(where, f"segment {merge.source_id} is not merged into it")
        if source.length != merge.length:
            raise wrong(where, f"segment {merge.source_id} has not {merge.length} bytes")


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
