"""The block object format: how a stretch of one segment is written into a Tier-2 object, and read
back.

An object is a row of blocks; a block is a header, an extent table and the payload
(docs/formats/block-object.md). The header is in tier2/block_header.py, what becomes of an extent in
tier2/extent_codec.py. Rules of this file:

- the header's checksum covers the header, the header holds the checksum of the extent table, and
  the table holds the checksum of each extent as it is stored. No byte of a block is outside of a
  check;
- nothing is believed, and nothing decompressed, before its checksum has been checked; every
  disagreement is a BlockFormatError;
- payload bytes are never copied here, but for what compression makes of them.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

from segmentstore.contracts.checksum import Buffer, crc32c, crc32c_parts
from tier2.block_header import (
    CODEC_NONE,
    CODEC_ZSTD,
    CODECS,
    CONTAINER_ID_MAX,
    EXTENT_BYTES_DEFAULT,
    EXTENT_BYTES_MAX,
    EXTENT_ENTRY_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    HEADER_BYTES_MAX,
    NAMED_HEADER_BYTES_MAX,
    UINT64_MAX,
    BlockChecksumError,
    BlockFormatError,
    BlockHeader,
    BlockIdentityError,
    BlockTooShortError,
    encode_header,
    extents_of,
    header_length_with,
    parse_block_header,
)
from tier2.extent_codec import ExtentDecompressor, compress_extents

__all__ = [
    "CODEC_NONE",
    "CODEC_ZSTD",
    "EXTENT_BYTES_DEFAULT",
    "HEADER_BYTES",
    "HEADER_BYTES_MAX",
    "NAMED_HEADER_BYTES_MAX",
    "BlockChecksumError",
    "BlockFormatError",
    "BlockHeader",
    "BlockIdentityError",
    "BlockTooShortError",
    "ExtentTable",
    "block_prefix_length",
    "decode_extents",
    "encode_block",
    "parse_block_header",
    "parse_extent_table",
    "verify_extent",
    "verify_extents",
]
# The names of the header are the format's too: a reader of blocks finds all of it here.

_ENTRY = struct.Struct(">II")

assert _ENTRY.size == EXTENT_ENTRY_BYTES


class ExtentTable:
    """The extent table of one block, kept as stored: 8 bytes an extent, 16 if the block is
    compressed.
    """

    __slots__ = ("_data", "_ends", "_extent_bytes", "_payload_length")

    def __init__(self, data: bytes, header: BlockHeader) -> None:
        self._data = data
        self._extent_bytes = header.extent_bytes
        self._payload_length = header.payload_length
        self._ends: array[int] | None = None
        if header.codec != CODEC_NONE:
            self._ends = _stored_ends(data, header)

    def __len__(self) -> int:
        return len(self._data) // EXTENT_ENTRY_BYTES

    @property
    def size(self) -> int:
        """Bytes the table takes."""
        return len(self._data) + (
            len(self._ends) * self._ends.itemsize if self._ends is not None else 0
        )

    def entry(self, index: int) -> tuple[int, int]:
        """(stored length, CRC32C) of extent `index`."""
        stored_length, checksum = _ENTRY.unpack_from(self._data, index * EXTENT_ENTRY_BYTES)
        return stored_length, checksum

    def stored_place(self, index: int) -> int:
        """Where the stored bytes of extent `index` begin, counted from the payload's beginning; of
        `len`: where all end.
        """
        if self._ends is None:
            return min(index * self._extent_bytes, self._payload_length)
        return self._ends[index - 1] if index else 0


def block_prefix_length(
    payload_length: int, extent_bytes: int = EXTENT_BYTES_DEFAULT, segment_name: str = ""
) -> int:
    """Bytes before the payload in a block that `encode_block` makes of `payload_length` bytes of
    such a segment.
    """
    return (
        header_length_with(len(segment_name.encode()))
        + extents_of(payload_length, extent_bytes) * EXTENT_ENTRY_BYTES
    )


def encode_block(
    *,
    container_id: int,
    epoch: int,
    segment_id: int,
    start_offset: int,
    parts: Sequence[Buffer],
    extent_bytes: int = EXTENT_BYTES_DEFAULT,
    segment_name: str = "",
    codec: int = CODEC_NONE,
) -> list[Buffer]:
    """The block that holds the concatenation of `parts`: its header and table, then the payload as
    it is stored.

    Parts that are not compressed are not copied and must not change until the block is stored.
    Payload is at least 1 byte; `extent_bytes` 1 to 16 MiB; ValueError otherwise. A payload that no
    codec makes smaller is stored with CODEC_NONE. Costs about 50 us per MiB in large parts, 2 ms
    per MiB in parts of 100 bytes; compressed 3 to 5 ms per MiB.
    """
    if not 0 <= container_id <= CONTAINER_ID_MAX:
        raise ValueError(f"container_id {container_id} is not 0 to {CONTAINER_ID_MAX}")
    if not (0 <= epoch <= UINT64_MAX and 0 <= segment_id <= UINT64_MAX):
        raise ValueError(f"epoch {epoch}, segment_id {segment_id}: not 0 to {UINT64_MAX}")
    if not 1 <= extent_bytes <= EXTENT_BYTES_MAX:
        raise ValueError(f"extent_bytes {extent_bytes} is not 1 to {EXTENT_BYTES_MAX}")
    if codec not in CODECS:
        raise ValueError(f"codec {codec} is not one of {CODECS}")
    payload = [part for part in parts if part]
    payload_length = stored_length = sum(map(len, payload))
    if not payload_length:
        raise ValueError("a block holds at least one byte")
    if not 0 <= start_offset <= UINT64_MAX - payload_length:
        raise ValueError(f"start_offset {start_offset}: the block ends beyond {UINT64_MAX}")
    stored: Sequence[Buffer] = payload
    if codec == CODEC_ZSTD:
        stored = compress_extents(payload, extent_bytes)
        stored_length = sum(map(len, stored))
        if stored_length == payload_length:
            # Nothing got smaller: without a codec any extent's place is known without the table.
            codec, stored = CODEC_NONE, payload
    if codec != CODEC_NONE:
        table = b"".join(_ENTRY.pack(len(extent), crc32c(extent)) for extent in stored)
    elif payload_length <= extent_bytes:
        table = _ENTRY.pack(payload_length, crc32c_parts(payload))
    else:
        table = _encode_extent_table(payload, extent_bytes)
    header_length = header_length_with(len(segment_name.encode()))
    # By place: by name it would take as long again, and blocks are small and many.
    header = BlockHeader(
        header_length,
        header_length + len(table) + stored_length,
        FORMAT_VERSION,
        container_id,
        epoch,
        segment_id,
        start_offset,
        payload_length,
        extent_bytes,
        len(table) // EXTENT_ENTRY_BYTES,
        codec,
        crc32c(table),
        segment_name,
    )
    return [encode_header(header) + table, *stored]


def parse_extent_table(data: Buffer, header: BlockHeader) -> ExtentTable:
    """The extent table out of `data`, the block from its beginning to `header.prefix_length` or
    beyond.
    """
    if len(data) < header.prefix_length:
        raise BlockFormatError(
            f"{len(data)} bytes where {header.prefix_length} are needed", "extent table"
        )
    stored = bytes(memoryview(data)[header.header_length : header.prefix_length])
    actual = crc32c(stored)
    if actual != header.extent_table_crc:
        raise BlockChecksumError(
            f"checksum {actual:08x} where {header.extent_table_crc:08x} is recorded", "extent table"
        )
    return ExtentTable(stored, header)


def verify_extent(header: BlockHeader, table: ExtentTable, index: int, stored: Buffer) -> None:
    """Check the stored bytes of one extent; raises BlockFormatError naming it."""
    expected_length, expected = table.entry(index)
    if header.codec == CODEC_NONE and expected_length != header.extent_length(index):
        detail = (
            f"stored length {expected_length} where the header gives {header.extent_length(index)}"
        )
        raise BlockFormatError(detail, f"extent {index}")
    if len(stored) != expected_length:
        raise BlockFormatError(
            f"{len(stored)} bytes where {expected_length} are recorded", f"extent {index}"
        )
    actual = crc32c(stored)
    if actual != expected:
        raise BlockChecksumError(
            f"checksum {actual:08x} where {expected:08x} is recorded", f"extent {index}"
        )


def verify_extents(header: BlockHeader, table: ExtentTable, first: int, stored: Buffer) -> None:
    """Check a run of whole extents, contiguous in `stored`, beginning with extent `first`.

    Costs one CRC32C of the bytes; the interpreter lock is free meanwhile for extents of 32 KiB and
    more.
    """
    for index, extent in _cut(table, first, stored):
        verify_extent(header, table, index, extent)


def decode_extents(header: BlockHeader, table: ExtentTable, first: int, stored: Buffer) -> Buffer:
    """The payload of a run of whole extents, each checked as `verify_extents` does; `stored` itself
    if there is no codec.

    Decompressing costs about 2 ms per MiB of payload; the interpreter lock is free meanwhile.
    """
    if header.codec == CODEC_NONE:
        verify_extents(header, table, first, stored)
        return stored
    decompressor = ExtentDecompressor()
    payload: list[Buffer] = []
    for index, extent in _cut(table, first, stored):
        verify_extent(header, table, index, extent)
        try:
            payload.append(decompressor.payload(extent, header.extent_length(index)))
        except ValueError as error:
            raise BlockFormatError(str(error), f"extent {index}") from error
    return payload[0] if len(payload) == 1 else b"".join(payload)


def _cut(table: ExtentTable, first: int, stored: Buffer) -> Iterator[tuple[int, memoryview]]:
    """Each extent's number and stored bytes. What lies behind the last extent is no extent's."""
    view = memoryview(stored)
    position, index = 0, first
    while position < len(view) and index < len(table):
        end = position + table.stored_place(index + 1) - table.stored_place(index)
        yield index, view[position:end]
        position = end
        index += 1
    if position < len(view):
        raise BlockFormatError(f"{len(view) - position} bytes too many", f"extent {index}")


def _stored_ends(data: bytes, header: BlockHeader) -> array[int]:
    """Where each extent's stored bytes end; they must fill the payload's place, none longer than
    its extent.
    """
    lengths = [length for length, _ in _ENTRY.iter_unpack(data)]
    for index, length in enumerate(lengths):
        if not 1 <= length <= header.extent_length(index):
            detail = (
                f"stored length {length} of extent {index} is not 1 to "
                f"{header.extent_length(index)}"
            )
            raise BlockFormatError(detail, "extent table")
    ends = array("Q", accumulate(lengths))
    if ends[-1] != header.stored_length:
        raise BlockFormatError(
            f"its extents take {ends[-1]} bytes of {header.stored_length}", "extent table"
        )
    return ends


def _encode_extent_table(parts: Sequence[Buffer], extent_bytes: int) -> bytes:
    """Entries of the extents of the concatenation of `parts`, checksums running on across their
    borders.
    """
    entries: list[int] = []
    checksum = 0
    room = extent_bytes
    for part in parts:
        length = len(part)
        if length < room:
            checksum = crc32c(part, checksum)
            room -= length
            continue
        view = memoryview(part)
        position = 0
        while length - position >= room:
            checksum = crc32c(view[position : position + room], checksum)
            entries += (extent_bytes, checksum)
            position += room
            checksum = 0
            room = extent_bytes
        if position < length:
            checksum = crc32c(view[position:])
            room = extent_bytes - (length - position)
    if room < extent_bytes:
        entries += (extent_bytes - room, checksum)
    return struct.pack(f">{len(entries)}I", *entries)
