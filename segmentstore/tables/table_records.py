"""Records of a table's segment: encoding and decoding, pure (docs/formats/table-records.md).

Records carry no checksum: the frames of the log, the blocks in Tier 2 and the cache all have one,
which is verified when they are read. A record that is read by the index is compared with its key.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from segmentstore.tables.table_types import ENTRY_BYTES_MAX, KEY_BYTES_MAX

PUT: Final = 1
"""A key and its value. Its version is the record's offset."""
REMOVAL: Final = 2
"""A key that is there no more."""
COPY: Final = 3
"""A put that compaction copied, with the version that it had."""

_HEAD: Final = struct.Struct(">BHI")
_VERSION: Final = struct.Struct(">q")
_COPY_HEAD_BYTES: Final = _HEAD.size + _VERSION.size


class MalformedRecordError(Exception):
    """The bytes of a segment are no record of a table. `offset` is where it would begin."""

    def __init__(self, offset: int, detail: str) -> None:
        super().__init__(f"no record at offset {offset}: {detail}")
        self.offset = offset
        self.detail = detail


class KeyLocation(NamedTuple):
    """Where the newest record of a key is."""

    offset: int
    """In the segment."""
    length: int
    """Of the record."""
    version: int


class TableRecord(NamedTuple):
    """A record, and where its value is in the buffer that it was decoded from."""

    kind: int
    location: KeyLocation
    key: bytes
    value_start: int
    value_end: int


def put_parts(key: bytes, value: bytes) -> tuple[bytes, bytes, bytes]:
    """A put, to be joined."""
    return _HEAD.pack(PUT, len(key), len(value)), key, value


def removal_parts(key: bytes) -> tuple[bytes, bytes]:
    """A removal, to be joined."""
    return _HEAD.pack(REMOVAL, len(key), 0), key


def copy_parts(key: bytes, value: bytes, version: int) -> tuple[bytes, bytes, bytes, bytes]:
    """A copy, to be joined."""
    return _HEAD.pack(COPY, len(key), len(value)), _VERSION.pack(version), key, value


def put_length(key: bytes, value: bytes) -> int:
    """Bytes of a put."""
    return _HEAD.size + len(key) + len(value)


def removal_length(key: bytes) -> int:
    """Bytes of a removal."""
    return _HEAD.size + len(key)


def copy_length(key: bytes, value_length: int) -> int:
    """Bytes of a copy."""
    return _COPY_HEAD_BYTES + len(key) + value_length


def decode_records(data: bytes, offset: int) -> tuple[list[TableRecord], int]:
    """The whole records of bytes that begin at `offset` of the segment, and how many bytes they
    have.

    Raises MalformedRecordError. O(records), without copying values.
    """
    records: list[TableRecord] = []
    position, size = 0, len(data)
    unpack, new = _HEAD.unpack_from, tuple.__new__
    while size - position >= _HEAD.size:
        kind, key_length, value_length = unpack(data, position)
        version = at = offset + position
        # An index is built of millions of these: nearly all are puts, and cost no more than this.
        if kind != PUT or not key_length or key_length + value_length > KEY_BYTES_MAX:
            _check_head(at, kind, key_length, value_length)
        key_start = position + (_COPY_HEAD_BYTES if kind == COPY else _HEAD.size)
        value_start = key_start + key_length
        end = value_start + value_length
        if end > size:
            break
        if kind == COPY:
            (version,) = _VERSION.unpack_from(data, position + _HEAD.size)
            if not 0 <= version < at:
                raise MalformedRecordError(at, f"a copy of version {version}")
        location = new(KeyLocation, (at, end - position, version))
        key = data[key_start:value_start]
        records.append(new(TableRecord, (kind, location, key, value_start, end)))
        position = end
    return records, position


def value_of(data: bytes, key: bytes, location: KeyLocation) -> bytes | None:
    """The value in the bytes of one record; None if they are not what the location says."""
    try:
        records, used = decode_records(data, location.offset)
    except MalformedRecordError:
        return None
    if len(records) != 1 or used != len(data):
        return None
    (record,) = records
    if record.location != location or record.key != key or record.kind == REMOVAL:
        return None
    return data[record.value_start : record.value_end]


def _check_head(offset: int, kind: int, key_length: int, value_length: int) -> None:
    if not PUT <= kind <= COPY:
        raise MalformedRecordError(offset, f"kind {kind}")
    if not 1 <= key_length <= KEY_BYTES_MAX:
        raise MalformedRecordError(offset, f"a key of {key_length} bytes")
    if key_length + value_length > ENTRY_BYTES_MAX or (kind == REMOVAL and value_length):
        raise MalformedRecordError(offset, f"a value of {value_length} bytes")
