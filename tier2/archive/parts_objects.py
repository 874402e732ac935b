"""Closed lists of archived parts, and nodes of such lists: names and bytes, pure.

The format's page: docs/formats/archive-parts.md.

    list = magic, version u16, zero u16, container u32, ordinal u64, part{256}, crc32c u32
    node = magic, version u16, zero u16, container u32, ordinal u64, bound{64}, crc32c u32

What a list or a node says follows from the log alone. So two owners that write one write the same
bytes, and its name needs no other mark than its place.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from segmentstore.contracts.archive_codec import (
    BOUND_BYTES,
    PART_BYTES,
    decode_bounds,
    decode_part,
    encode_bounds,
    encode_part,
)
from segmentstore.contracts.archive_metadata import LIST_PARTS, NODE_LISTS, PartsBound
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from segmentstore.contracts.checksum import crc32c

PARTS_PREFIX: Final = "parts/"
"""What the names of lists and nodes begin with."""
_LIST_MAGIC: Final = b"SSAPLIST"
_NODE_MAGIC: Final = b"SSAPNODE"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">8sHHIQ")
_CHECKSUM: Final = struct.Struct(">I")

LIST_BYTES: Final = _HEAD.size + LIST_PARTS * PART_BYTES + _CHECKSUM.size
NODE_BYTES: Final = _HEAD.size + NODE_LISTS * BOUND_BYTES + _CHECKSUM.size
"""Every list, and every node, has so many."""


class PartsFormatError(Exception):
    """Bytes are not the list, or the node, that they should be."""


def container_prefix(store_id: str, container_id: int) -> str:
    """What the names of one container's lists and nodes begin with."""
    return f"{PARTS_PREFIX}{store_id}/{container_id:08x}/"


def list_name(store_id: str, container_id: int, ordinal: int) -> str:
    """The name of a closed list."""
    return f"{container_prefix(store_id, container_id)}list-{ordinal:016x}"


def node_name(store_id: str, container_id: int, ordinal: int) -> str:
    """The name of a node."""
    return f"{container_prefix(store_id, container_id)}node-{ordinal:016x}"


def content_id(content: bytes) -> bytes:
    """The unique id of a list or node: the same for all who put the same bytes."""
    return hashlib.sha256(content).digest()[:16]


def encode_list(container_id: int, ordinal: int, parts: Sequence[ArchivedPart]) -> bytes:
    """A closed list: LIST_PARTS parts (ValueError)."""
    if len(parts) != LIST_PARTS:
        raise ValueError(f"a list has {LIST_PARTS} parts, not {len(parts)}")
    return _sealed(_LIST_MAGIC, container_id, ordinal, b"".join(map(encode_part, parts)))


def decode_list(data: bytes, container_id: int, ordinal: int) -> list[ArchivedPart]:
    """The parts of the list, as complete ones. Raises PartsFormatError."""
    _check(data, _LIST_MAGIC, LIST_BYTES, container_id, ordinal)
    places = range(_HEAD.size, _HEAD.size + LIST_PARTS * PART_BYTES, PART_BYTES)
    return [decode_part(data, place, OffloadState.COMPLETE) for place in places]


def encode_node(container_id: int, ordinal: int, bounds: Sequence[PartsBound]) -> bytes:
    """A node: the bounds of NODE_LISTS lists (ValueError)."""
    if len(bounds) != NODE_LISTS:
        raise ValueError(f"a node has {NODE_LISTS} lists, not {len(bounds)}")
    return _sealed(_NODE_MAGIC, container_id, ordinal, encode_bounds(bounds))


def decode_node(data: bytes, container_id: int, ordinal: int) -> tuple[PartsBound, ...]:
    """The bounds of the node's lists. Raises PartsFormatError."""
    _check(data, _NODE_MAGIC, NODE_BYTES, container_id, ordinal)
    return decode_bounds(data, _HEAD.size, NODE_LISTS)


def _sealed(magic: bytes, container_id: int, ordinal: int, body: bytes) -> bytes:
    content = _HEAD.pack(magic, _VERSION, 0, container_id, ordinal) + body
    return content + _CHECKSUM.pack(crc32c(content))


def _check(data: bytes, magic: bytes, length: int, container_id: int, ordinal: int) -> None:
    if len(data) != length:
        raise PartsFormatError(f"{len(data)} bytes, not {length}")
    begin, version, _, container, number = _HEAD.unpack_from(data)
    if begin != magic:
        raise PartsFormatError(f"it begins with {begin.hex(' ')}")
    if version != _VERSION:
        raise PartsFormatError(f"version {version}; this program reads {_VERSION}")
    covered = len(data) - _CHECKSUM.size
    if _CHECKSUM.unpack_from(data, covered)[0] != crc32c(memoryview(data)[:covered]):
        raise PartsFormatError("checksum mismatch")
    if (container, number) != (container_id, ordinal):
        raise PartsFormatError(f"it is number {number} of container {container}")
