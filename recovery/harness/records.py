"""Records: bytes that name their sender, so that a segment's content can be checked byte by byte.

A record is `header + filler`. The header names its origin (an append's call and its place in a
batch, or a writer's event) and the length of the filler, under a checksum. The filler follows from
the origin alone. So any content can be cut into records, and each record compared with what was
submitted, without keeping what was submitted.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from segmentstore.contracts.checksum import crc32c

_HEADER: Final = struct.Struct(">2sBxIQQ")
_CHECKSUM: Final = struct.Struct(">I")
_MAGIC: Final = b"\xc5\x1e"
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
_APPEND: Final = 1
_EVENT: Final = 2


class Origin(NamedTuple):
    """Sender of a record: (call number, item of its batch), or (writer number, event number)."""

    event: bool
    first: int
    second: int


class Piece(NamedTuple):
    """What lies at an offset of a content: a record, or bytes that are none (`origin` is None)."""

    offset: int
    length: int
    origin: Origin | None


def append_record(call: int, item: int, filler_bytes: int) -> bytes:
    """The bytes of item `item` of the append made by call number `call`."""
    return _record(Origin(False, call, item), filler_bytes)  # noqa: FBT003 - a field


def event_record(writer: int, event: int, filler_bytes: int) -> bytes:
    """The bytes of an exactly-once writer's event; the same whenever it is sent again."""
    return _record(Origin(True, writer, event), filler_bytes)  # noqa: FBT003 - a field


def parse_records(content: bytes, start: int = 0) -> Iterator[Piece]:
    """Cut a content, whose first byte has offset `start` in its segment, into records and bytes
    that are none.

    A record whose filler is not what its origin says is no record. Linear, but for content that is
    none.
    """
    position = unknown = 0
    while position < len(content):
        origin_and_end = _parse(content, position)
        if origin_and_end is None:
            position += 1
            continue
        if unknown < position:
            yield Piece(start + unknown, position - unknown, None)
        origin, end = origin_and_end
        yield Piece(start + position, end - position, origin)
        position = unknown = end
    if unknown < len(content):
        yield Piece(start + unknown, len(content) - unknown, None)


def _record(origin: Origin, filler_bytes: int) -> bytes:
    header = _HEADER.pack(
        _MAGIC, _EVENT if origin.event else _APPEND, filler_bytes, origin.first, origin.second
    )
    return header + _CHECKSUM.pack(crc32c(header)) + _filler(header, filler_bytes)


def _filler(header: bytes, length: int) -> bytes:
    if length <= 0:
        return b""
    seed = hashlib.blake2b(header, digest_size=32).digest()
    return (seed * (length // len(seed) + 1))[:length]


def _parse(content: bytes, position: int) -> tuple[Origin, int] | None:
    end_of_header = position + HEADER_BYTES
    if content[position : position + 2] != _MAGIC or end_of_header > len(content):
        return None
    header = content[position : position + _HEADER.size]
    if _CHECKSUM.pack(crc32c(header)) != content[position + _HEADER.size : end_of_header]:
        return None
    _, kind, length, first, second = _HEADER.unpack(header)
    end = end_of_header + length
    if kind not in {_APPEND, _EVENT} or content[end_of_header:end] != _filler(header, length):
        return None
    return Origin(kind == _EVENT, first, second), end
