"""The object that keeps one container's metadata in Tier 2: a header around the metadata's own
bytes.

Nothing in an ordinary life reads it: the log is the only authority. It is for the day when the log
is missing (docs/formats/tier2-checkpoint.md, docs/restore.md). Rules of this file:

- an object says by itself what it is: store, containers, container, epoch, sequence number, time;
- the blob is the durable log's checkpoint as it is, and is not inspected here;
- magic, header length, version and header checksum keep their places in every version.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer, crc32c
from tier2.object_names import parse_checkpoint_name

MAGIC = b"SSMETA1\n"
VERSION = 1
HEADER_BYTES = 96
"""Length of the header this version writes; a reader takes longer ones and skips what it does not
know.
"""
HEADER_BYTES_MAX = 4096
CONTAINERS_MAX = 65_536

_FIELDS = struct.Struct(">8sII16sIIQQQQI")
_CHECKSUM = struct.Struct(">I")
_PADDING = bytes(HEADER_BYTES - _FIELDS.size - _CHECKSUM.size)

assert _FIELDS.size == 76, "the fields stand at the places the format page gives"


class CheckpointFormatError(Exception):
    """Bytes are not the checkpoint object they should be."""


class CheckpointHeader(NamedTuple):
    """What a checkpoint object says of itself, after its checksum was found right."""

    header_length: int
    version: int
    store_id: uuid.UUID
    containers: int
    """Of the store: names of segments are mapped to containers by it."""
    container_id: int
    epoch: int
    sequence_number: int
    time_ms: int
    """Wall time of the writing, milliseconds since 1970 UTC."""
    blob_length: int
    blob_crc: int


def encode_checkpoint_object(
    *,
    store_id: uuid.UUID,
    containers: int,
    container_id: int,
    epoch: int,
    sequence_number: int,
    time_ms: int,
    blob: bytes,
) -> list[Buffer]:
    """Header and blob, to be put as one object.

    The blob is not copied. Costs one CRC32C of the blob.
    """
    fields = _FIELDS.pack(
        MAGIC,
        HEADER_BYTES,
        VERSION,
        store_id.bytes,
        containers,
        container_id,
        epoch,
        sequence_number,
        time_ms,
        len(blob),
        crc32c(blob),
    )
    checked = fields + _PADDING
    return [checked + _CHECKSUM.pack(crc32c(checked)), blob]


def parse_checkpoint_header(data: Buffer) -> CheckpointHeader:
    """The header at the beginning of `data`, which may be longer. Raises CheckpointFormatError."""
    if len(data) < HEADER_BYTES:
        raise CheckpointFormatError(f"{len(data)} bytes where a header has {HEADER_BYTES}")
    magic, header_length, version, store_id, containers, *rest, blob_crc = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise CheckpointFormatError(
            f"it begins with {magic.hex(' ')}, not with a checkpoint's magic"
        )
    if not HEADER_BYTES <= header_length <= min(HEADER_BYTES_MAX, len(data)):
        raise CheckpointFormatError(f"header length {header_length} in {len(data)} bytes")
    checked_length = header_length - _CHECKSUM.size
    (expected,) = _CHECKSUM.unpack_from(data, checked_length)
    actual = crc32c(memoryview(data)[:checked_length])
    if actual != expected:
        raise CheckpointFormatError(
            f"header checksum {actual:08x} where {expected:08x} is recorded"
        )
    if not 1 <= version <= VERSION:
        raise CheckpointFormatError(f"version {version}; this program reads 1 to {VERSION}")
    container_id, epoch, sequence_number, time_ms, blob_length = rest
    if not 1 <= containers <= CONTAINERS_MAX or container_id >= containers:
        raise CheckpointFormatError(f"container {container_id} of {containers}")
    return CheckpointHeader(
        header_length,
        version,
        uuid.UUID(bytes=store_id),
        containers,
        container_id,
        epoch,
        sequence_number,
        time_ms,
        blob_length,
        blob_crc,
    )


def parse_checkpoint_object(data: bytes, name: str) -> tuple[CheckpointHeader, memoryview]:
    """Header and blob of the whole object `name`.

    Raises CheckpointFormatError if any check fails.
    """
    header = parse_checkpoint_header(data)
    named = parse_checkpoint_name(name)
    if named is None or named[:3] != (header.container_id, header.epoch, header.sequence_number):
        raise CheckpointFormatError("its header says that it is another one than its name does")
    blob = memoryview(data)[header.header_length :]
    if len(blob) != header.blob_length:
        raise CheckpointFormatError(
            f"{len(blob)} bytes of metadata where {header.blob_length} are recorded"
        )
    actual = crc32c(blob)
    if actual != header.blob_crc:
        raise CheckpointFormatError(
            f"metadata checksum {actual:08x} where {header.blob_crc:08x} is recorded"
        )
    return header, blob
