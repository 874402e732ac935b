"""Archived parts and the archive's metadata as bytes, pure. The format's page:
docs/formats/archive-parts.md. All integers are big-endian and unsigned.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from segmentstore.contracts.archive_metadata import (
    NO_ARCHIVE,
    ArchiveChange,
    ArchiveMetadata,
    FirstPartMoved,
    HotCopiesDeleted,
    OffloadBegun,
    OffloadCompleted,
    PartsBound,
    PartsListClosed,
    PartsSwept,
)
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from segmentstore.contracts.checksum import Buffer

_PART: Final = struct.Struct(">QQ16sQQQQQQQQQ")
_BOUND: Final = struct.Struct(">QQQ")
_HEAD: Final = struct.Struct(">QQQQQQQQQIIIB")
_KIND: Final = struct.Struct(">B")
_COMPLETED: Final = struct.Struct(">BQ16sQQ")
_ONE: Final = struct.Struct(">BQ")
_TWO: Final = struct.Struct(">BQQ")

PART_BYTES: Final = _PART.size
BOUND_BYTES: Final = _BOUND.size

_BEGUN, _COMPLETE, _HOT_DELETED, _LIST_CLOSED, _FIRST_MOVED, _SWEPT = range(1, 7)


def encode_part(part: ArchivedPart) -> bytes:
    """A part without its state, which its place says."""
    return _PART.pack(
        part.number,
        part.ledger_id,
        part.uid,
        part.entries,
        part.length,
        part.first_sequence,
        part.last_sequence,
        part.first_ms,
        part.last_ms,
        part.checkpoint_sequence,
        part.checkpoint_entry,
        part.offloaded_ms,
    )


def decode_part(data: Buffer, position: int, state: OffloadState) -> ArchivedPart:
    """The part at a position. Raises struct.error."""
    (
        number,
        ledger_id,
        uid,
        entries,
        length,
        first_sequence,
        last_sequence,
        first_ms,
        last_ms,
        checkpoint_sequence,
        checkpoint_entry,
        offloaded_ms,
    ) = _PART.unpack_from(data, position)
    return ArchivedPart(
        number=number,
        ledger_id=ledger_id,
        uid=uid,
        state=state,
        entries=entries,
        length=length,
        first_sequence=first_sequence,
        last_sequence=last_sequence,
        first_ms=first_ms,
        last_ms=last_ms,
        checkpoint_sequence=checkpoint_sequence,
        checkpoint_entry=checkpoint_entry,
        offloaded_ms=offloaded_ms,
    )


def encode_bounds(bounds: Sequence[PartsBound]) -> bytes:
    """Bounds, one behind the other."""
    return b"".join([_BOUND.pack(*bound) for bound in bounds])


def decode_bounds(data: Buffer, position: int, count: int) -> tuple[PartsBound, ...]:
    """So many bounds from a position on. Raises struct.error."""
    places = range(position, position + count * _BOUND.size, _BOUND.size)
    return tuple(PartsBound(*_BOUND.unpack_from(data, place)) for place in places)


def encode_archive(archive: ArchiveMetadata) -> bytes:
    """All of it; empty where nothing was ever archived."""
    if archive == NO_ARCHIVE:
        return b""
    tail = archive.tail if archive.attempt is None else (*archive.tail, archive.attempt)
    head = _HEAD.pack(
        archive.first,
        archive.swept,
        archive.lists,
        archive.hot_deleted,
        archive.hot_deleted_count,
        archive.last_number,
        archive.bytes_through,
        archive.bytes_before,
        archive.last_ms,
        len(archive.node_bounds),
        len(archive.list_bounds),
        len(archive.tail),
        archive.attempt is not None,
    )
    bounds = encode_bounds((*archive.node_bounds, *archive.list_bounds))
    return b"".join((head, bounds, *map(encode_part, tail)))


def decode_archive(data: Buffer) -> ArchiveMetadata:
    """What `encode_archive` made, all of `data`. Raises struct.error."""
    if not len(data):
        return NO_ARCHIVE
    fields = _HEAD.unpack_from(data)
    first, swept, lists, hot_deleted, hot_deleted_count, last_number = fields[:6]
    bytes_through, bytes_before, last_ms, nodes, list_bounds, parts, attempts = fields[6:]
    position = _HEAD.size
    bounds = decode_bounds(data, position, nodes + list_bounds)
    position += len(bounds) * _BOUND.size
    tail: list[ArchivedPart] = []
    for _ in range(parts):
        part = decode_part(data, position, OffloadState.COMPLETE)
        if part.number <= hot_deleted:
            part = decode_part(data, position, OffloadState.HOT_DELETED)
        tail.append(part)
        position += PART_BYTES
    attempt = None
    if attempts:
        attempt = decode_part(data, position, OffloadState.ATTEMPT)
        position += PART_BYTES
    if position != len(data) or attempts > 1:
        raise struct.error(f"{len(data) - position} bytes behind the archive")
    return ArchiveMetadata(
        first=first,
        swept=swept,
        lists=lists,
        hot_deleted=hot_deleted,
        hot_deleted_count=hot_deleted_count,
        last_number=last_number,
        bytes_through=bytes_through,
        bytes_before=bytes_before,
        node_bounds=bounds[:nodes],
        list_bounds=bounds[nodes:],
        tail=tuple(tail),
        attempt=attempt,
        last_ms=last_ms,
    )


def encode_change(change: ArchiveChange) -> bytes:
    """The body of the operation that carries it."""
    if isinstance(change, OffloadBegun):
        return _KIND.pack(_BEGUN) + encode_part(change.part)
    if isinstance(change, OffloadCompleted):
        return _COMPLETED.pack(_COMPLETE, *change)
    if isinstance(change, HotCopiesDeleted):
        return _TWO.pack(_HOT_DELETED, *change)
    if isinstance(change, PartsListClosed):
        return _ONE.pack(_LIST_CLOSED, change.ordinal)
    if isinstance(change, FirstPartMoved):
        return _TWO.pack(_FIRST_MOVED, *change)
    return _ONE.pack(_SWEPT, change.end)


def decode_change(data: Buffer) -> ArchiveChange:
    """What `encode_change` made. Raises struct.error for anything else."""
    (kind,) = _KIND.unpack_from(data)
    if kind == _BEGUN:
        return OffloadBegun(decode_part(data, _KIND.size, OffloadState.ATTEMPT))
    if kind == _COMPLETE:
        return OffloadCompleted(*_COMPLETED.unpack_from(data)[1:])
    if kind == _HOT_DELETED:
        return HotCopiesDeleted(*_TWO.unpack_from(data)[1:])
    if kind == _FIRST_MOVED:
        return FirstPartMoved(*_TWO.unpack_from(data)[1:])
    if kind == _LIST_CLOSED:
        return PartsListClosed(_ONE.unpack_from(data)[1])
    if kind == _SWEPT:
        return PartsSwept(_ONE.unpack_from(data)[1])
    raise struct.error(f"an unknown change of the archive, {kind}")
