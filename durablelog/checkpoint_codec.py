"""The blob of a metadata checkpoint. The format's page: docs/formats/checkpoint.md.

    checkpoint = version u16, container u32, sequence number u64,
                 objects u32, object..., garbage u32, garbage..., segments u32, segment...,
                 [deletion clock], [archive]
    object = name text, size u64, created ms u64 garbage = object, unreferenced since ms u64 segment
    = length u32, bytes deletion clock = clock ms u64, boot id 16 bytes, boot ms u64, and of each
    garbage object in its order:
                     sequence number u64, since ms u64

The archive, from version 3 on and there always behind a deletion clock, is as
docs/formats/archive-parts.md has it. The deletion clock came later. A checkpoint without it, as
older versions wrote and as is written while there is nothing to say, means a clock at 0 and garbage
that is not counted yet. A segment's record carries its own length, so that fields can be added
behind. How many chunks an object holds is counted from the segments, never stored: it could only be
wrong. An unchanged segment's record is kept from one checkpoint to the next
(`SegmentMetadata.encoded`), and of a changed one with many attributes or chunks their unchanged
pages. So a checkpoint costs what changed plus one copy.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from durablelog.operation_codec import OperationFormatError, decode_text, encode_text
from segmentstore.contracts.archive_codec import decode_archive, encode_archive
from segmentstore.contracts.archive_metadata import NO_ARCHIVE
from segmentstore.contracts.attribute_pages import AttributePage
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.collector import collector_paused
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject, LiveObject

VERSION = 4
"""Written of metadata with a merged segment that is linked in part. Others with an archive are of
version 3, others with segments that are `releasing` of version 2, and the rest of version 1, as
older versions wrote them.
"""

_WITH_ARCHIVE = 3

_HEAD = struct.Struct(">HIQ")
_COUNT = struct.Struct(">I")
_OBJECT = struct.Struct(">QQ")
_TIME = struct.Struct(">Q")
_SEGMENT = struct.Struct(">QQQQQQBQ")
_ATTRIBUTE = struct.Struct(">16sq")
_CHUNK = struct.Struct(">QQQQQ")
_MERGE = struct.Struct(">QQQ")
_CLOCK = struct.Struct(">Q16sQ")
_COUNTED = struct.Struct(">QQ")
_NOT_COUNTED = (1 << 64) - 1

_SEALED = 1
_MERGED = 2
_RELEASING = 4
_DELETED = 8


def encode_checkpoint(metadata: ContainerMetadata) -> bytes:
    """All committed metadata as one blob. O(changed segments), plus one copy of everything."""
    archive = encode_archive(metadata.archive)
    linked_in_part = any(
        each.start_offset and each.merged_into is not None for each in metadata.segments.values()
    )
    version = VERSION if linked_in_part else 3 if archive else 2 if metadata.releasing else 1
    parts = [_HEAD.pack(version, metadata.container_id, metadata.sequence_number)]
    parts.append(_COUNT.pack(len(metadata.objects)))
    parts += [_encode_object(live.record) for live in metadata.objects.values()]
    parts.append(_COUNT.pack(len(metadata.garbage)))
    for garbage in metadata.garbage.values():
        parts += (_encode_object(garbage.record), _TIME.pack(garbage.unreferenced_ms))
    assert metadata.whole, "a checkpoint has all segments in itself, or names a snapshot"
    parts.append(_COUNT.pack(len(metadata.segments) + len(metadata.deleted_ids())))
    for segment in metadata.all_records():
        encoded = segment.encoded
        if encoded is None:
            encoded = _encode_segment(segment)
            if not _has_pages(segment):
                encoded = b"".join(encoded)
            segment.encoded = encoded
        if isinstance(encoded, bytes):
            parts.append(encoded)
        else:
            parts += encoded
    parts += _encode_deletion_clock(metadata, always=version >= _WITH_ARCHIVE)
    parts.append(archive)
    return b"".join(parts)


def decode_checkpoint(blob: Buffer) -> ContainerMetadata:
    """The metadata in a blob, alone. Raises OperationFormatError."""
    try:
        with collector_paused():
            return _decode(blob)
    except (struct.error, UnicodeDecodeError, IndexError, KeyError) as error:
        message = f"malformed checkpoint: {error}"
        raise OperationFormatError(message) from error


def _decode(blob: Buffer) -> ContainerMetadata:
    version, container_id, sequence_number = _HEAD.unpack_from(blob)
    if version > VERSION:
        message = f"checkpoint version {version} is newer than {VERSION}, the newest known here"
        raise OperationFormatError(message)
    metadata = ContainerMetadata(container_id)
    metadata.sequence_number = sequence_number
    position = _HEAD.size
    (count,) = _COUNT.unpack_from(blob, position)
    position += _COUNT.size
    for _ in range(count):
        record, position = _decode_object(blob, position)
        metadata.objects[record.name] = LiveObject(record)
    (count,) = _COUNT.unpack_from(blob, position)
    position += _COUNT.size
    for _ in range(count):
        record, position = _decode_object(blob, position)
        (since_ms,) = _TIME.unpack_from(blob, position)
        position += _TIME.size
        metadata.garbage[record.name] = GarbageObject(record, since_ms)
    (count,) = _COUNT.unpack_from(blob, position)
    position += _COUNT.size
    for _ in range(count):
        (length,) = _COUNT.unpack_from(blob, position)
        end = position + _COUNT.size + length
        if end > len(blob):
            raise IndexError(position)
        segment = _decode_segment(blob[position + _COUNT.size : end], metadata)
        if not _has_pages(segment):
            segment.encoded = bytes(blob[position:end])
        if segment.releasing:
            metadata.releasing[segment.segment_id] = segment
        if not segment.deleted:
            metadata.segments[segment.segment_id] = segment
            if segment.merged_into is None:
                metadata.names[segment.name] = segment.segment_id
        position = end
    if position < len(blob):
        position = _decode_deletion_clock(blob, position, metadata)
    if version >= _WITH_ARCHIVE:
        metadata.archive = decode_archive(blob[position:])
        if metadata.archive == NO_ARCHIVE and version == _WITH_ARCHIVE:
            raise IndexError(position)
    return metadata


def _encode_deletion_clock(metadata: ContainerMetadata, *, always: bool) -> list[bytes]:
    garbage = metadata.garbage.values()
    clock = metadata.deletion_clock
    is_new = clock == DeletionClockReading() and not any(each.sequence_number for each in garbage)
    if is_new and not always:
        return []
    parts = [_CLOCK.pack(*clock)]
    parts += [
        _COUNTED.pack(
            each.sequence_number, _NOT_COUNTED if each.since_ms is None else each.since_ms
        )
        for each in garbage
    ]
    return parts


def _decode_deletion_clock(blob: Buffer, position: int, metadata: ContainerMetadata) -> int:
    metadata.deletion_clock = DeletionClockReading(*_CLOCK.unpack_from(blob, position))
    position += _CLOCK.size
    for name, garbage in metadata.garbage.items():
        sequence_number, since_ms = _COUNTED.unpack_from(blob, position)
        position += _COUNTED.size
        counted = None if since_ms == _NOT_COUNTED else since_ms
        metadata.garbage[name] = garbage._replace(sequence_number=sequence_number, since_ms=counted)
    return position


def _encode_object(record: ObjectRecord) -> bytes:
    return encode_text(record.name) + _OBJECT.pack(record.size, record.created_ms)


def _decode_object(blob: Buffer, position: int) -> tuple[ObjectRecord, int]:
    name, position = decode_text(blob, position)
    size, created_ms = _OBJECT.unpack_from(blob, position)
    return ObjectRecord(name, size, created_ms), position + _OBJECT.size


def _has_pages(segment: SegmentMetadata) -> bool:
    """Whether pages of it keep their encoded forms: then its record is kept in pieces."""
    return segment.attributes.paged or segment.chunks.paged


def _encode_segment(segment: SegmentMetadata) -> list[bytes]:
    attributes = segment.attributes
    flags = (
        (_SEALED if segment.sealed else 0)
        | (_MERGED if segment.merged_into is not None else 0)
        | (_RELEASING if segment.releasing else 0)
        | (_DELETED if segment.deleted else 0)
    )
    parts = [
        _SEGMENT.pack(
            segment.segment_id,
            segment.created_ms,
            segment.last_modified_ms,
            segment.start_offset,
            segment.length,
            segment.storage_length,
            flags,
            segment.merged_into or 0,
        ),
        encode_text(segment.name),
        _COUNT.pack(len(attributes)),
    ]
    parts += [_encode_page(page) for page in attributes.pages()]
    parts.append(_COUNT.pack(len(segment.chunks)))
    parts += segment.chunks.encoded_pages(_encode_chunks)
    parts.append(_COUNT.pack(len(segment.merges)))
    parts += [_MERGE.pack(*merge) for merge in segment.merges]
    return [_COUNT.pack(sum(map(len, parts))), *parts]


def _encode_page(page: AttributePage) -> bytes:
    encoded = page.encoded
    if encoded is None:
        items = page.items()
        numbers = itertools.chain.from_iterable(items)
        encoded = page.encoded = struct.pack(">" + "16sq" * len(items), *numbers)
    return encoded


def _encode_chunks(chunks: Sequence[ChunkRecord]) -> bytes:
    parts = []
    for start, length, name, block_offset, block_segment_id, block_start in chunks:
        parts.append(_CHUNK.pack(start, length, block_offset, block_segment_id, block_start))
        parts.append(encode_text(name))
    return b"".join(parts)


def _decode_segment(data: Buffer, metadata: ContainerMetadata) -> SegmentMetadata:
    fixed = _SEGMENT.unpack_from(data)
    (
        segment_id,
        created_ms,
        modified_ms,
        start_offset,
        length,
        storage_length,
        flags,
        merged_into,
    ) = fixed
    name, position = decode_text(data, _SEGMENT.size)
    segment = SegmentMetadata(segment_id, name, created_ms)
    segment.last_modified_ms = modified_ms
    segment.start_offset, segment.length, segment.storage_length = (
        start_offset,
        length,
        storage_length,
    )
    segment.sealed = bool(flags & _SEALED)
    segment.merged_into = merged_into if flags & _MERGED else None
    segment.releasing = bool(flags & _RELEASING)
    segment.deleted = bool(flags & _DELETED)
    position = _decode_attributes(data, position, segment)
    position = _decode_chunks(data, position, segment, metadata)
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    for _ in range(count):
        segment.add_merge(MergeRecord(*_MERGE.unpack_from(data, position)))
        position += _MERGE.size
    return segment


def _decode_attributes(data: Buffer, position: int, segment: SegmentMetadata) -> int:
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    end: int = position + count * _ATTRIBUTE.size
    stored = list(_ATTRIBUTE.iter_unpack(data[position:end]))
    # Older versions kept it as a value.
    values = {key: value for key, value in stored if value != ATTRIBUTE_UNSET}
    if values:
        segment.attributes = AttributeTable(values)
    if segment.attributes.paged and stored == sorted(values.items()):
        # Older versions had them in another order.
        for page in segment.attributes.pages():
            length = len(page.values) * _ATTRIBUTE.size
            page.encoded = bytes(data[position : position + length])
            position += length
    return end


def _decode_chunks(
    data: Buffer, position: int, segment: SegmentMetadata, metadata: ContainerMetadata
) -> int:
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    pages = []
    page_chunks = segment.chunks.page_chunks
    for first in range(0, count, page_chunks):
        page, begin = [], position
        for _ in range(min(page_chunks, count - first)):
            start, length, block_offset, block_segment_id, block_start = _CHUNK.unpack_from(
                data, position
            )
            name, position = decode_text(data, position + _CHUNK.size)
            live = metadata.objects[name]
            live.live_chunks += 1
            live.live_bytes += length
            name = live.record.name
            page.append(
                ChunkRecord(start, length, name, block_offset, block_segment_id, block_start)
            )
        pages.append((page, bytes(data[begin:position])))
    if pages:
        segment.own_chunks().extend_pages(pages)
    return position
