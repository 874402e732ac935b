"""Values of the metadata catalog, pure. The format's page: docs/formats/metadata-catalog.md.

What a value's key says is not repeated in it. A value is decoded to its last byte or refused: a
change of it is a new version of the catalog, which the identity record names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from durablelog.catalog.catalog_keys import GarbageKey, MetadataFormatError
from durablelog.operation_codec import decode_text, encode_text
from segmentstore.contracts.archive_codec import decode_archive, encode_archive
from segmentstore.contracts.archive_metadata import NO_ARCHIVE, ArchiveMetadata
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.chunk_list import PAGE_CHUNKS_MAX
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import MergeRecord
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject, LiveObject

_SEGMENT = struct.Struct(">QQQQQBQQI")
_MERGE = struct.Struct(">QQQ")
_LONG = struct.Struct(">QQ")
_ID = struct.Struct(">Q")
_ATTRIBUTE = struct.Struct(">q")
_PAGE = struct.Struct(">QHH")
_CHUNK = struct.Struct(">QHQQQ")
_OBJECT = struct.Struct(">QQQQ")
_PLACE = struct.Struct(">QQQQ")
_GARBAGE = struct.Struct(">QQQQ")
_CLOCK = struct.Struct(">Q16sQ")
_TOTALS = struct.Struct(">Q")

_SEALED = 1
_MERGED = 2
_PAGED = 4
_RELEASING = 8
_DELETED = 16
_LINKED_IN_PART = 32
_FLAGS = _SEALED | _MERGED | _PAGED | _RELEASING | _DELETED | _LINKED_IN_PART
_NOT_COUNTED = (1 << 64) - 1
_OBJECTS_REMEMBERED = 1024
"""Names of objects whose encoded form is kept: pages of many segments have one."""

# A context manager for each record would take a third of the time to load a catalog.
_MALFORMED = (struct.error, UnicodeDecodeError, IndexError, MetadataFormatError)


class LongChunks(NamedTuple):
    """What is known of chunks that take several pages, without reading them."""

    chunks: int
    """Their number."""
    start_offset: int
    """Of the first one."""


class SegmentRecord(NamedTuple):
    """A segment without its chunks and attributes: fields as in SegmentMetadata."""

    segment_id: int
    name: str
    created_ms: int
    last_modified_ms: int
    start_offset: int
    length: int
    storage_length: int
    sealed: bool
    merged_into: int | None
    attribute_count: int
    """Its records in the table of attributes: their number has a bound, and is not counted out."""
    merges: tuple[MergeRecord, ...]
    long_chunks: LongChunks | None = None
    """None: the chunks take one page, or there are none. Version 1 had it of no segment."""
    releasing: bool = False
    deleted: bool = False

    @property
    def flushed(self) -> bool:
        """As SegmentMetadata.flushed."""
        return (
            self.storage_length == self.length
            and not self.merges
            and self.merged_into is None
            and not self.releasing
        )

    @property
    def has_name(self) -> bool:
        """Whether the segment is neither merged nor deleted."""
        return self.merged_into is None and not self.deleted


class ChunkPlace(NamedTuple):
    """A chunk without what its key says: object, segment and offset."""

    length: int
    block_offset: int
    block_segment_id: int
    block_start_offset: int


class CatalogTotals(NamedTuple):
    """Numbers of what the catalog has."""

    segments: int
    """Those that have a name."""
    archive: ArchiveMetadata = NO_ARCHIVE
    """As of the same moment."""


class LiveObjectRecord(NamedTuple):
    """An object, and how much of the container's segments lies in it."""

    record: ObjectRecord
    live_chunks: int
    live_bytes: int


def encode_segment(segment: SegmentRecord) -> bytes:
    """The value of a SegmentIdKey."""
    merged = segment.merged_into is not None
    fixed = _SEGMENT.pack(
        segment.created_ms,
        segment.last_modified_ms,
        segment.start_offset,
        segment.length,
        segment.storage_length,
        (_SEALED if segment.sealed else 0)
        | (_MERGED if merged else 0)
        | (_PAGED if segment.long_chunks is not None else 0)
        | (_RELEASING if segment.releasing else 0)
        | (_DELETED if segment.deleted else 0)
        | (_LINKED_IN_PART if merged and segment.start_offset else 0),
        segment.merged_into or 0,
        segment.attribute_count,
        len(segment.merges),
    )
    named = fixed + encode_text(segment.name)
    if not segment.merges and segment.long_chunks is None:
        # Most of them.
        return named
    merges = (_MERGE.pack(*merge) for merge in segment.merges)
    long = b"" if segment.long_chunks is None else _LONG.pack(*segment.long_chunks)
    return b"".join((named, *merges, long))


def decode_segment(segment_id: int, value: bytes) -> SegmentRecord:
    """The record of the segment. Raises MetadataFormatError."""
    try:
        return _decode_segment(segment_id, value)
    except _MALFORMED as error:
        raise _malformed(f"segment {segment_id}", error) from error


def _decode_segment(segment_id: int, value: bytes) -> SegmentRecord:
    (
        created_ms,
        modified_ms,
        start_offset,
        length,
        storage_length,
        flags,
        merged_into,
        attributes,
        merge_count,
    ) = _SEGMENT.unpack_from(value)
    if flags & ~_FLAGS or (merged_into and not flags & _MERGED):
        raise MetadataFormatError(f"flags {flags:#x} with {merged_into}")
    if flags & _DELETED and (flags & _MERGED or merge_count or not flags & _RELEASING):
        raise MetadataFormatError(f"deleted, with flags {flags:#x} and {merge_count} merges")
    linked_in_part = bool(flags & _MERGED and start_offset)
    if linked_in_part != bool(flags & _LINKED_IN_PART):
        raise MetadataFormatError(f"it begins at {start_offset}, with flags {flags:#x}")
    name, position = decode_text(value, _SEGMENT.size)
    merges = []
    for _ in range(merge_count):
        merges.append(MergeRecord(*_MERGE.unpack_from(value, position)))
        position += _MERGE.size
    long = None
    if flags & _PAGED:
        long = LongChunks(*_LONG.unpack_from(value, position))
        position += _LONG.size
        if long.chunks < 2:
            raise MetadataFormatError(f"{long.chunks} chunks in several pages")
    _check_end(value, position)
    return SegmentRecord(
        segment_id,
        name,
        created_ms,
        modified_ms,
        start_offset,
        length,
        storage_length,
        bool(flags & _SEALED),
        merged_into if flags & _MERGED else None,
        attributes,
        tuple(merges),
        long,
        bool(flags & _RELEASING),
        bool(flags & _DELETED),
    )


def encode_segment_id(segment_id: int) -> bytes:
    """The value of a NameKey."""
    return _ID.pack(segment_id)


def decode_segment_id(value: bytes) -> int:
    """The id that a name stands for. Raises MetadataFormatError."""
    try:
        (segment_id,) = _ID.unpack(value)
    except _MALFORMED as error:
        raise _malformed("segment id", error) from error
    return int(segment_id)


def encode_attribute(attribute: int) -> bytes:
    """The value of a CatalogAttributeKey: any but ATTRIBUTE_UNSET."""
    if attribute == ATTRIBUTE_UNSET:
        raise MetadataFormatError("an attribute without a value is not stored")
    return _ATTRIBUTE.pack(attribute)


def decode_attribute(value: bytes) -> int:
    """The attribute's value. Raises MetadataFormatError."""
    try:
        (attribute,) = _ATTRIBUTE.unpack(value)
    except _MALFORMED as error:
        raise _malformed("attribute", error) from error
    if attribute == ATTRIBUTE_UNSET:
        raise MetadataFormatError("an attribute without a value")
    return int(attribute)


def encode_chunk_page(chunks: Sequence[ChunkRecord]) -> bytes:
    """The value of a ChunkPageKey: 1 to PAGE_CHUNKS_MAX contiguous chunks, by offset."""
    if not 0 < len(chunks) <= PAGE_CHUNKS_MAX:
        raise MetadataFormatError(f"a page of {len(chunks)} chunks")
    numbers: dict[str, int] = {}
    first = position = chunks[0].start_offset
    entries = []
    for start, length, name, block_offset, block_segment_id, block_start in chunks:
        if start != position:
            raise MetadataFormatError(f"a chunk at {start}, not at {position}")
        position += length
        number = numbers.setdefault(name, len(numbers))
        entries.append(_CHUNK.pack(length, number, block_offset, block_segment_id, block_start))
    head = _PAGE.pack(first, len(chunks), len(numbers))
    return b"".join((head, *map(_encode_object_name, numbers), *entries))


_encode_object_name = lru_cache(_OBJECTS_REMEMBERED)(encode_text)


def decode_chunk_page(
    value: bytes, objects: Mapping[str, LiveObject] | None = None
) -> list[ChunkRecord]:
    """The chunks of a page. Names are those of `objects`, so that pages share one: each of the page
    must be among them, unless none are given.

    Raises MetadataFormatError.
    """
    try:
        return _decode_chunk_page(value, objects)
    except _MALFORMED as error:
        raise _malformed("chunk page", error) from error


def _decode_chunk_page(value: bytes, objects: Mapping[str, LiveObject] | None) -> list[ChunkRecord]:
    offset, count, name_count = _PAGE.unpack_from(value)
    if not 0 < count <= PAGE_CHUNKS_MAX:
        raise MetadataFormatError(f"{count} chunks")
    position, names, chunks = _PAGE.size, [], []
    for _ in range(name_count):
        name, position = decode_text(value, position)
        if objects is not None:
            live = objects.get(name)
            if live is None:
                raise MetadataFormatError(f"the record of object {name} is missing")
            name = live.record.name
        names.append(name)
    _check_end(value, position + count * _CHUNK.size)
    for length, number, block, block_segment_id, start in _CHUNK.iter_unpack(value[position:]):
        chunks.append(ChunkRecord(offset, length, names[number], block, block_segment_id, start))
        offset += length
    return chunks


def encode_object(live: LiveObjectRecord) -> bytes:
    """The value of an ObjectKey."""
    return _OBJECT.pack(live.record.size, live.record.created_ms, live.live_chunks, live.live_bytes)


def decode_object(name: str, value: bytes) -> LiveObjectRecord:
    """The object. Raises MetadataFormatError."""
    try:
        size, created_ms, chunks, length = _OBJECT.unpack(value)
    except _MALFORMED as error:
        raise _malformed(f"object {name}", error) from error
    return LiveObjectRecord(ObjectRecord(name, size, created_ms), chunks, length)


def encode_chunk_place(place: tuple[int, int, int, int]) -> bytes:
    """The value of a ChunkPlaceKey: of a ChunkPlace, or a tuple like it."""
    return _PLACE.pack(*place)


def decode_chunk_place(value: bytes) -> ChunkPlace:
    """The rest of the chunk. Raises MetadataFormatError."""
    try:
        return ChunkPlace(*_PLACE.unpack(value))
    except _MALFORMED as error:
        raise _malformed("chunk place", error) from error


def encode_garbage(garbage: GarbageObject) -> bytes:
    """The value of a GarbageKey."""
    since_ms = _NOT_COUNTED if garbage.since_ms is None else garbage.since_ms
    record = garbage.record
    return _GARBAGE.pack(record.size, record.created_ms, garbage.unreferenced_ms, since_ms)


def decode_garbage(key: GarbageKey, value: bytes) -> GarbageObject:
    """The garbage object. Raises MetadataFormatError."""
    try:
        size, created_ms, unreferenced_ms, since_ms = _GARBAGE.unpack(value)
    except _MALFORMED as error:
        raise _malformed(f"garbage {key.name}", error) from error
    return GarbageObject(
        ObjectRecord(key.name, size, created_ms),
        unreferenced_ms,
        key.sequence_number,
        None if since_ms == _NOT_COUNTED else since_ms,
    )


def encode_deletion_clock(reading: DeletionClockReading) -> bytes:
    """The value of a DeletionClockKey."""
    return _CLOCK.pack(*reading)


def decode_deletion_clock(value: bytes) -> DeletionClockReading:
    """The reading. Raises MetadataFormatError."""
    try:
        return DeletionClockReading(*_CLOCK.unpack(value))
    except _MALFORMED as error:
        raise _malformed("deletion clock", error) from error


def encode_totals(totals: CatalogTotals) -> bytes:
    """The value of a TotalsKey."""
    return _TOTALS.pack(totals.segments) + encode_archive(totals.archive)


def decode_totals(value: bytes) -> CatalogTotals:
    """The numbers. Raises MetadataFormatError."""
    try:
        (segments,) = _TOTALS.unpack_from(value)
        return CatalogTotals(segments, decode_archive(value[_TOTALS.size :]))
    except _MALFORMED as error:
        raise _malformed("totals", error) from error


def _check_end(value: bytes, position: int) -> None:
    if position != len(value):
        raise MetadataFormatError(f"{len(value) - position} bytes behind it")


def _malformed(what: str, error: Exception) -> MetadataFormatError:
    return MetadataFormatError(f"malformed {what}: {error}")
