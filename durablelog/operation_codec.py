"""Operations to bytes and back. The format's page: docs/formats/operations.md.

    operation = type u8, version u8, sequence number u64, timestamp ms u64, revision...
    revision  = length u32, bytes

Revision 0 is what version 1 has; later revisions are added behind it and skipped by readers that do
not know them. A version above ours is refused. Of a truncation and a deletion version 2 has the
same bytes, and says that they release chunks in slices. All integers big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from durablelog.operations import (
    AppendOperation,
    ArchiveOperation,
    CheckpointOperation,
    ChunkReplacement,
    CreateOperation,
    DeleteOperation,
    DeletionClockOperation,
    LinkChunksOperation,
    MergeOperation,
    ObjectsDeletedOperation,
    Operation,
    ReleaseChunksOperation,
    ReplaceChunksOperation,
    SealOperation,
    SnapshotCheckpointOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segmentstore.contracts.archive_codec import decode_change, encode_change
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord

VERSION = 1
_IN_SLICES = 2

_PREFIX = struct.Struct(">BBQQI")
APPEND_HEAD = struct.Struct(">BBQQIQQH")
"""Type, version, sequence number, time stamp, length of what follows, segment id, offset, number of
attributes.
"""
_APPEND_BODY = struct.Struct(">QQH")
ATTRIBUTE = struct.Struct(">16sq")
"""Of an append: key and value."""
_TWO = struct.Struct(">QQ")
_FOUR = struct.Struct(">QQQQ")
_THREE = struct.Struct(">QQQ")
_ONE = struct.Struct(">Q")
_COUNT = struct.Struct(">I")
_SHORT = struct.Struct(">H")
_NO_ATTRIBUTES = _SHORT.pack(0)
_OBJECT = struct.Struct(">QQ")
_CHUNK = struct.Struct(">QQQIQQQ")
_BARE_CHUNK = struct.Struct(">QQIQQQ")
_REPLACEMENT = struct.Struct(">QII")
_DELETION_CLOCK = struct.Struct(">Q16sQQ")
_SNAPSHOT_CHECKPOINT = struct.Struct(">Q16s")

PREFIX_LENGTH = _PREFIX.size
"""Bytes of an encoded operation before its first revision."""
APPEND_HEAD_LENGTH = APPEND_HEAD.size
"""Bytes of an encoded append before its attributes and data."""
ATTRIBUTE_LENGTH = ATTRIBUTE.size


class OperationFormatError(Exception):
    """The bytes are not an operation of a version we know; the caller adds the place."""


def encode_append_head(operation: AppendOperation) -> bytes:
    """Everything of an append but its data, which follows. The hot path: about 0.5 us."""
    attributes = operation.attributes
    if not attributes:
        return APPEND_HEAD.pack(
            1,
            VERSION,
            operation.sequence_number,
            operation.timestamp_ms,
            _APPEND_BODY.size + len(operation.data),
            operation.segment_id,
            operation.offset,
            0,
        )
    tail = b"".join([ATTRIBUTE.pack(key, value) for key, value in attributes.items()])
    return (
        APPEND_HEAD.pack(
            1,
            VERSION,
            operation.sequence_number,
            operation.timestamp_ms,
            _APPEND_BODY.size + len(tail) + len(operation.data),
            operation.segment_id,
            operation.offset,
            len(attributes),
        )
        + tail
    )


def encode_operation(operation: Operation) -> list[Buffer]:
    """The operation as buffers to be concatenated."""
    if isinstance(operation, AppendOperation):
        return [encode_append_head(operation), operation.data]
    body = _ENCODERS[type(operation)](operation)
    in_slices = isinstance(operation, _SLICED) and operation.in_slices
    prefix = _PREFIX.pack(
        operation.type_id,
        _IN_SLICES if in_slices else VERSION,
        operation.sequence_number,
        operation.timestamp_ms,
        len(body),
    )
    return [prefix, body]


def decode_operation(data: Buffer, *, copy: bool = True) -> Operation:
    """The operation in `data`, all of it. Raises OperationFormatError.

    Without `copy` the bytes of an append are a view into `data`, if that is a view.
    """
    if len(data) >= APPEND_HEAD_LENGTH:
        # Nearly all of a log: in one step what the way below does in many.
        type_id, version, sequence_number, timestamp_ms, length, segment_id, offset, count = (
            APPEND_HEAD.unpack_from(data)
        )
        if (
            type_id == AppendOperation.type_id
            and version <= VERSION
            and not count
            and length == len(data) - PREFIX_LENGTH
        ):
            content = data[APPEND_HEAD_LENGTH:]
            append = AppendOperation(segment_id, offset, bytes(content) if copy else content)
            append.sequence_number = sequence_number
            append.timestamp_ms = timestamp_ms
            return append
    try:
        type_id, version, sequence_number, timestamp_ms, length = _PREFIX.unpack_from(data)
        newest = _NEWEST.get(type_id, VERSION)
        if version > newest:
            message = f"operation version {version} is newer than {newest}, the newest known here"
            raise OperationFormatError(message)
        end = PREFIX_LENGTH + length
        if end > len(data):
            message = f"revision of {length} bytes in {len(data)} bytes of operation"
            raise OperationFormatError(message)
        decoder = _DECODERS.get(type_id)
        if decoder is None:
            message = f"unknown operation type {type_id}"
            raise OperationFormatError(message)
        body = data[PREFIX_LENGTH:end] if end != len(data) else data[PREFIX_LENGTH:]
        operation = decoder(body)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        message = f"malformed operation: {error}"
        raise OperationFormatError(message) from error
    if version == _IN_SLICES and isinstance(operation, _SLICED):
        operation.in_slices = True
    operation.sequence_number = sequence_number
    operation.timestamp_ms = timestamp_ms
    return operation


def append_data_start(operation: AppendOperation) -> int:
    """Where the bytes of an append begin in its encoding. < 0.5 us."""
    return APPEND_HEAD_LENGTH + ATTRIBUTE_LENGTH * len(operation.attributes or ())


def segment_of_append(data: Buffer) -> int | None:
    """The segment that an encoded append is of; None for any other operation.

    For a search for few of many: < 0.5 us.
    """
    if data[0] != AppendOperation.type_id or len(data) < PREFIX_LENGTH + _APPEND_BODY.size:
        return None
    segment_id: int = _APPEND_BODY.unpack_from(data, PREFIX_LENGTH)[0]
    return segment_id


def checkpoint_of(data: Buffer) -> int | None:
    """The sequence number of a checkpoint, of either kind, whose encoding begins with `data`; None
    if another operation does, or less than 22 bytes are there.
    """
    if len(data) < PREFIX_LENGTH:
        return None
    type_id, _, sequence_number, _, _ = _PREFIX.unpack_from(data)
    is_checkpoint = type_id in (CheckpointOperation.type_id, SnapshotCheckpointOperation.type_id)
    return sequence_number if is_checkpoint else None


# --- pieces ---------------------------------------------------------------------------------------


def _encode_attributes(attributes: dict[AttributeKey, int] | None) -> bytes:
    if not attributes:
        return _NO_ATTRIBUTES
    items = attributes.items()
    return _SHORT.pack(len(items)) + b"".join([ATTRIBUTE.pack(key, value) for key, value in items])


def _decode_attributes(data: Buffer, position: int) -> tuple[dict[AttributeKey, int] | None, int]:
    (count,) = _SHORT.unpack_from(data, position)
    position += _SHORT.size
    if not count:
        return None, position
    attributes: dict[AttributeKey, int] = {}
    for _ in range(count):
        key, value = ATTRIBUTE.unpack_from(data, position)
        attributes[key] = value
        position += ATTRIBUTE.size
    return attributes, position


def encode_text(text: str) -> bytes:
    """A length (u16) and that many bytes of UTF-8."""
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def decode_text(data: Buffer, position: int) -> tuple[str, int]:
    """A text made by `encode_text`, and the position behind it."""
    (length,) = _SHORT.unpack_from(data, position)
    end = position + _SHORT.size + length
    if end > len(data):
        raise IndexError(position)
    return str(data[position + _SHORT.size : end], "utf-8"), end


# --- bodies ---------------------------------------------------------------------------------------


def _encode_seal(operation: SealOperation) -> bytes:
    return _TWO.pack(operation.segment_id, operation.length)


def _encode_merge(operation: MergeOperation) -> bytes:
    fixed = _FOUR.pack(operation.target_id, operation.source_id, operation.offset, operation.length)
    return fixed + _encode_attributes(operation.attributes)


def _encode_create(operation: CreateOperation) -> bytes:
    return encode_text(operation.name) + _encode_attributes(operation.attributes)


def _encode_update_attributes(operation: UpdateAttributesOperation) -> bytes:
    return _ONE.pack(operation.segment_id) + _encode_attributes(operation.attributes)


def _encode_truncate(operation: TruncateOperation) -> bytes:
    return _TWO.pack(operation.segment_id, operation.offset)


def _encode_checkpoint(operation: CheckpointOperation) -> bytes:
    return operation.blob


def _encode_storage_update(operation: StorageUpdateOperation) -> bytes:
    numbers = {record.name: index for index, record in enumerate(operation.objects)}
    parts = _encode_objects(operation.objects)
    parts.append(_COUNT.pack(len(operation.chunks)))
    parts += [
        _CHUNK.pack(
            segment_id,
            chunk.start_offset,
            chunk.length,
            numbers[chunk.object_name],
            chunk.block_offset,
            chunk.block_segment_id,
            chunk.block_start_offset,
        )
        for segment_id, chunk in operation.chunks
    ]
    parts.append(_COUNT.pack(len(operation.links)))
    parts += [_TWO.pack(target_id, source_id) for target_id, source_id in operation.links]
    return b"".join(parts)


def _encode_replace_chunks(operation: ReplaceChunksOperation) -> bytes:
    parts = _encode_objects(operation.objects)
    names = {record.name: index for index, record in enumerate(operation.objects)}
    known = len(names)
    for replacement in operation.replacements:
        for chunk in replacement.old:
            names.setdefault(chunk.object_name, len(names))
    others = list(names)[known:]
    parts.append(_COUNT.pack(len(others)))
    parts += [encode_text(name) for name in others]
    parts.append(_COUNT.pack(len(operation.replacements)))
    for segment_id, old, new in operation.replacements:
        parts.append(_REPLACEMENT.pack(segment_id, len(old), len(new)))
        for chunk in (*old, *new):
            start, length, name, block_offset, block_segment_id, block_start = chunk
            parts.append(
                _BARE_CHUNK.pack(
                    start, length, names[name], block_offset, block_segment_id, block_start
                )
            )
    return b"".join(parts)


def _encode_objects(objects: Sequence[ObjectRecord]) -> list[bytes]:
    parts = [_COUNT.pack(len(objects))]
    for record in objects:
        parts += (encode_text(record.name), _OBJECT.pack(record.size, record.created_ms))
    return parts


def _encode_delete(operation: DeleteOperation) -> bytes:
    return _ONE.pack(operation.segment_id)


def _encode_objects_deleted(operation: ObjectsDeletedOperation) -> bytes:
    return _COUNT.pack(len(operation.names)) + b"".join(
        [encode_text(name) for name in operation.names]
    )


def _encode_deletion_clock(operation: DeletionClockOperation) -> bytes:
    return _DELETION_CLOCK.pack(
        operation.clock_ms, operation.boot_id, operation.boot_ms, operation.through
    )


def _encode_snapshot_checkpoint(operation: SnapshotCheckpointOperation) -> bytes:
    return _SNAPSHOT_CHECKPOINT.pack(operation.epoch, operation.unique_id)


def _encode_release_chunks(operation: ReleaseChunksOperation) -> bytes:
    parts = [_COUNT.pack(len(operation.releases))]
    parts += [_TWO.pack(*release) for release in operation.releases]
    return b"".join(parts)


def _encode_link_chunks(operation: LinkChunksOperation) -> bytes:
    return _THREE.pack(operation.target_id, operation.source_id, operation.end_offset)


def _encode_archive_change(operation: ArchiveOperation) -> bytes:
    return encode_change(operation.change)


def _decode_append(body: Buffer) -> Operation:
    segment_id, offset, count = _APPEND_BODY.unpack_from(body)
    if not count:
        return AppendOperation(segment_id, offset, bytes(body[_APPEND_BODY.size :]))
    attributes, position = _decode_attributes(body, _APPEND_BODY.size - _SHORT.size)
    return AppendOperation(segment_id, offset, bytes(body[position:]), attributes)


def _decode_seal(body: Buffer) -> Operation:
    return SealOperation(*_TWO.unpack_from(body))


def _decode_merge(body: Buffer) -> Operation:
    target_id, source_id, offset, length = _FOUR.unpack_from(body)
    attributes, _ = _decode_attributes(body, _FOUR.size)
    return MergeOperation(target_id, source_id, offset, length, attributes)


def _decode_create(body: Buffer) -> Operation:
    name, position = decode_text(body, 0)
    attributes, _ = _decode_attributes(body, position)
    return CreateOperation(name, attributes)


def _decode_update_attributes(body: Buffer) -> Operation:
    (segment_id,) = _ONE.unpack_from(body)
    attributes, _ = _decode_attributes(body, _ONE.size)
    return UpdateAttributesOperation(segment_id, attributes)


def _decode_truncate(body: Buffer) -> Operation:
    return TruncateOperation(*_TWO.unpack_from(body))


def _decode_checkpoint(body: Buffer) -> Operation:
    return CheckpointOperation(bytes(body))


def _decode_storage_update(body: Buffer) -> Operation:
    objects, position = _decode_objects(body)
    (count,) = _COUNT.unpack_from(body, position)
    position += _COUNT.size
    chunks: list[tuple[int, ChunkRecord]] = []
    for _ in range(count):
        segment_id, start, length, number, block_offset, block_segment, block_start = (
            _CHUNK.unpack_from(body, position)
        )
        position += _CHUNK.size
        chunks.append(
            (
                segment_id,
                ChunkRecord(
                    start, length, objects[number].name, block_offset, block_segment, block_start
                ),
            )
        )
    (count,) = _COUNT.unpack_from(body, position)
    position += _COUNT.size
    links: list[tuple[int, int]] = []
    for _ in range(count):
        links.append(_TWO.unpack_from(body, position))
        position += _TWO.size
    return StorageUpdateOperation(objects, chunks, links)


def _decode_replace_chunks(body: Buffer) -> Operation:
    objects, position = _decode_objects(body)
    names = [record.name for record in objects]
    (count,) = _COUNT.unpack_from(body, position)
    position += _COUNT.size
    for _ in range(count):
        name, position = decode_text(body, position)
        names.append(name)
    (count,) = _COUNT.unpack_from(body, position)
    position += _COUNT.size
    replacements: list[ChunkReplacement] = []
    for _ in range(count):
        segment_id, old_count, new_count = _REPLACEMENT.unpack_from(body, position)
        position += _REPLACEMENT.size
        chunks: list[ChunkRecord] = []
        for _ in range(old_count + new_count):
            start, length, number, block_offset, block_segment_id, block_start = (
                _BARE_CHUNK.unpack_from(body, position)
            )
            chunks.append(
                ChunkRecord(
                    start, length, names[number], block_offset, block_segment_id, block_start
                )
            )
            position += _BARE_CHUNK.size
        replacements.append(
            ChunkReplacement(segment_id, tuple(chunks[:old_count]), tuple(chunks[old_count:]))
        )
    return ReplaceChunksOperation(objects, replacements)


def _decode_objects(body: Buffer) -> tuple[list[ObjectRecord], int]:
    """The objects a body begins with, and the position behind them."""
    (count,) = _COUNT.unpack_from(body)
    position = _COUNT.size
    objects: list[ObjectRecord] = []
    for _ in range(count):
        name, position = decode_text(body, position)
        size, created_ms = _OBJECT.unpack_from(body, position)
        position += _OBJECT.size
        objects.append(ObjectRecord(name, size, created_ms))
    return objects, position


def _decode_delete(body: Buffer) -> Operation:
    return DeleteOperation(*_ONE.unpack_from(body))


def _decode_objects_deleted(body: Buffer) -> Operation:
    (count,) = _COUNT.unpack_from(body)
    position = _COUNT.size
    names: list[str] = []
    for _ in range(count):
        name, position = decode_text(body, position)
        names.append(name)
    return ObjectsDeletedOperation(names)


def _decode_deletion_clock(body: Buffer) -> Operation:
    return DeletionClockOperation(*_DELETION_CLOCK.unpack_from(body))


def _decode_snapshot_checkpoint(body: Buffer) -> Operation:
    return SnapshotCheckpointOperation(*_SNAPSHOT_CHECKPOINT.unpack_from(body))


def _decode_release_chunks(body: Buffer) -> Operation:
    (count,) = _COUNT.unpack_from(body)
    places = range(_COUNT.size, _COUNT.size + count * _TWO.size, _TWO.size)
    return ReleaseChunksOperation([_TWO.unpack_from(body, place) for place in places])


def _decode_link_chunks(body: Buffer) -> Operation:
    return LinkChunksOperation(*_THREE.unpack_from(body))


def _decode_archive_change(body: Buffer) -> Operation:
    return ArchiveOperation(decode_change(body))


_ENCODERS: dict[type[Operation], Callable[..., bytes]] = {
    SealOperation: _encode_seal,
    MergeOperation: _encode_merge,
    CreateOperation: _encode_create,
    UpdateAttributesOperation: _encode_update_attributes,
    TruncateOperation: _encode_truncate,
    CheckpointOperation: _encode_checkpoint,
    StorageUpdateOperation: _encode_storage_update,
    DeleteOperation: _encode_delete,
    ObjectsDeletedOperation: _encode_objects_deleted,
    ReplaceChunksOperation: _encode_replace_chunks,
    DeletionClockOperation: _encode_deletion_clock,
    SnapshotCheckpointOperation: _encode_snapshot_checkpoint,
    ReleaseChunksOperation: _encode_release_chunks,
    LinkChunksOperation: _encode_link_chunks,
    ArchiveOperation: _encode_archive_change,
}

_DECODERS: dict[int, Callable[[Buffer], Operation]] = {
    AppendOperation.type_id: _decode_append,
    SealOperation.type_id: _decode_seal,
    MergeOperation.type_id: _decode_merge,
    CreateOperation.type_id: _decode_create,
    UpdateAttributesOperation.type_id: _decode_update_attributes,
    TruncateOperation.type_id: _decode_truncate,
    CheckpointOperation.type_id: _decode_checkpoint,
    StorageUpdateOperation.type_id: _decode_storage_update,
    DeleteOperation.type_id: _decode_delete,
    ObjectsDeletedOperation.type_id: _decode_objects_deleted,
    ReplaceChunksOperation.type_id: _decode_replace_chunks,
    DeletionClockOperation.type_id: _decode_deletion_clock,
    SnapshotCheckpointOperation.type_id: _decode_snapshot_checkpoint,
    ReleaseChunksOperation.type_id: _decode_release_chunks,
    LinkChunksOperation.type_id: _decode_link_chunks,
    ArchiveOperation.type_id: _decode_archive_change,
}

_SLICED = (TruncateOperation, DeleteOperation)
_NEWEST = {each.type_id: _IN_SLICES for each in _SLICED}


def encoded_length(parts: Sequence[Buffer]) -> int:
    """Total length of buffers."""
    return sum(map(len, parts))
