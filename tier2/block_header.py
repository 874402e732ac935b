"""The header of a block: what a block says of itself, written and read back
(docs/formats/block-object.md).

Rules of this file:

- magic, header length, format version and header checksum keep their places in every version;
- behind the fixed fields come extension fields, each with its type and length. A reader passes over
  types it does not know, and a block without any is what version 1 always was;
- nothing is believed before its checksum has been, and every disagreement is a BlockFormatError.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer, crc32c
from segmentstore.contracts.segments import NAME_BYTES_MAX

MAGIC = b"SSBLOCK\n"
FORMAT_VERSION = 1
CODEC_NONE = 0
"""Payload stored as it is."""
CODEC_ZSTD = 1
"""Each extent compressed alone, or as it is where that is not smaller."""
CODECS = (CODEC_NONE, CODEC_ZSTD)

HEADER_BYTES = 128
"""The least length of a header. A reader takes longer ones and skips what it does not know."""
HEADER_BYTES_MAX = 4096
EXTENT_ENTRY_BYTES = 8
BLOCK_BYTES_MIN = HEADER_BYTES + EXTENT_ENTRY_BYTES + 1
"""The least bytes of a block: one extent, of one stored byte."""
EXTENT_BYTES_DEFAULT = 64 * 1024
EXTENT_BYTES_MAX = 16 * 1024 * 1024

CONTAINER_ID_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1

_FIELDS = struct.Struct(">8sIQIIQQQQIIII")
_EXTENSION = struct.Struct(">HH")
_EXTENSION_END = 0
_EXTENSION_NAME = 1
_CHECKSUM = struct.Struct(">I")
_CHECKSUM_BYTES = _CHECKSUM.size
_ALIGNMENT = 8

assert _FIELDS.size == 76, "the fields stand at the places the format page gives"
assert EXTENT_BYTES_DEFAULT <= EXTENT_BYTES_MAX < 2**32, "an extent's stored length is a u32"


class BlockFormatError(Exception):
    """Bytes are not the block they should be.

    `place` says which part: header, extent table, extent N, object.
    """

    def __init__(self, reason: str, place: str = "header") -> None:
        super().__init__(f"{place}: {reason}")
        self.reason = reason
        self.place = place


class BlockChecksumError(BlockFormatError):
    """Bytes are not those that were written: a checksum over them is wrong."""


class BlockIdentityError(BlockFormatError):
    """A whole block, but of another container, segment or stretch than the one that is searched for
    there.
    """


class BlockTooShortError(BlockFormatError):
    """The bytes handed in end before the header does; `needed` bytes from the block's beginning
    hold it.
    """

    def __init__(self, needed: int, given: int) -> None:
        super().__init__(f"{given} bytes where {needed} are needed")
        self.needed = needed


class BlockHeader(NamedTuple):
    """What a block says of itself, after its checksum was found right.

    Lengths and offsets in bytes.
    """

    header_length: int
    block_length: int
    """The whole block: header, extent table and stored payload."""
    version: int
    container_id: int
    epoch: int
    """Of the log's owner that wrote the block."""
    segment_id: int
    start_offset: int
    """Place of the first payload byte in the segment the block was written for."""
    payload_length: int
    """Before any compression."""
    extent_bytes: int
    """Payload bytes in each extent but the last, which may have fewer."""
    extent_count: int
    codec: int
    extent_table_crc: int
    segment_name: str = ""
    """What the segment was called when the block was written; empty if the block does not say.

    As it stands there, and not yet known to be one that a segment may have.
    """

    @property
    def prefix_length(self) -> int:
        """Header and extent table together: where the payload begins, counted from the block's
        beginning.
        """
        return self.header_length + self.extent_count * EXTENT_ENTRY_BYTES

    @property
    def stored_length(self) -> int:
        """Bytes the payload takes in the object."""
        return self.block_length - self.prefix_length

    @property
    def end_offset(self) -> int:
        """Place in the segment behind the last payload byte, exclusive."""
        return self.start_offset + self.payload_length

    def extent_length(self, index: int) -> int:
        """Payload bytes in extent `index`."""
        assert 0 <= index < self.extent_count, (index, self)
        return min(self.extent_bytes, self.payload_length - index * self.extent_bytes)


def extents_of(payload_length: int, extent_bytes: int) -> int:
    """How many extents hold so many bytes."""
    return -(-payload_length // extent_bytes)


@lru_cache(NAME_BYTES_MAX + 1)
def header_length_with(name_bytes: int) -> int:
    """Length of the header of a block that says its segment's name, of so many bytes; 0: it says
    none.
    """
    needed = _FIELDS.size + (_EXTENSION.size + name_bytes if name_bytes else 0) + _CHECKSUM_BYTES
    return max(HEADER_BYTES, -(-needed // _ALIGNMENT) * _ALIGNMENT)


NAMED_HEADER_BYTES_MAX = header_length_with(NAME_BYTES_MAX)
"""The longest header this program writes."""
assert NAMED_HEADER_BYTES_MAX <= HEADER_BYTES_MAX


def encode_header(header: BlockHeader) -> bytes:
    """The header's bytes; its `header_length` is `header_length_with` of its name's bytes.

    ValueError for a name too long.
    """
    *fields, segment_name = header
    name = segment_name.encode()
    if len(name) > NAME_BYTES_MAX:
        raise ValueError(f"a segment's name of {len(name)} bytes; the most is {NAME_BYTES_MAX}")
    assert header.header_length == header_length_with(len(name)), header
    checked = _FIELDS.pack(MAGIC, *fields)
    if name:
        checked += _EXTENSION.pack(_EXTENSION_NAME, len(name)) + name
    checked = checked.ljust(header.header_length - _CHECKSUM_BYTES, b"\0")
    return checked + _CHECKSUM.pack(crc32c(checked))


def parse_block_header(data: Buffer) -> BlockHeader:
    """The header at the beginning of `data`, which may be longer.

    Raises BlockTooShortError if `data` ends before the header does, BlockFormatError if it is not a
    header this version can read.
    """
    if len(data) < HEADER_BYTES:
        raise BlockTooShortError(HEADER_BYTES, len(data))
    magic, header_length, *_ = fields = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise BlockFormatError(f"it begins with {magic.hex(' ')}, not with a block's magic")
    if not HEADER_BYTES <= header_length <= HEADER_BYTES_MAX:
        raise BlockFormatError(
            f"header length {header_length} is not {HEADER_BYTES} to {HEADER_BYTES_MAX}"
        )
    if len(data) < header_length:
        raise BlockTooShortError(header_length, len(data))
    checked_length = header_length - _CHECKSUM_BYTES
    (expected,) = _CHECKSUM.unpack_from(data, checked_length)
    checked = memoryview(data)[:checked_length]
    actual = crc32c(checked)
    if actual != expected:
        raise BlockChecksumError(f"checksum {actual:08x} where {expected:08x} is recorded")
    header = BlockHeader(*fields[1:])
    _check_header(header)
    # Behind the checks of the version: only then are these bytes known to be what they are taken
    # for.
    return header._replace(segment_name=_segment_name(checked))


def _segment_name(checked: memoryview) -> str:
    """What the extension fields say the segment was called, whatever that is: a block is whole
    under any name.

    Bytes that are no UTF-8 become lone surrogates (PEP 383), which no name may hold.
    """
    position = _FIELDS.size
    while position + _EXTENSION.size <= len(checked):
        kind, length = _EXTENSION.unpack_from(checked, position)
        if kind == _EXTENSION_END:
            break
        position += _EXTENSION.size
        if position + length > len(checked):
            raise BlockFormatError(
                f"extension field {kind} of {length} bytes reaches beyond the header"
            )
        if kind == _EXTENSION_NAME:
            return str(checked[position : position + length], "utf-8", "surrogateescape")
        position += length
    return ""


def _check_header(header: BlockHeader) -> None:
    if header.version > FORMAT_VERSION or header.version < 1:
        raise BlockFormatError(
            f"format version {header.version}; this program reads 1 to {FORMAT_VERSION}"
        )
    if header.codec not in CODECS:
        raise BlockFormatError(f"codec {header.codec} is not known to this program")
    if not 1 <= header.extent_bytes <= EXTENT_BYTES_MAX:
        raise BlockFormatError(f"extent size {header.extent_bytes} is not 1 to {EXTENT_BYTES_MAX}")
    if header.payload_length < 1 or header.end_offset > UINT64_MAX:
        raise BlockFormatError(
            f"payload length {header.payload_length} at offset {header.start_offset}"
        )
    if header.extent_count != extents_of(header.payload_length, header.extent_bytes):
        raise BlockFormatError(
            f"{header.extent_count} extents do not hold {header.payload_length} bytes"
        )
    least = header.payload_length if header.codec == CODEC_NONE else header.extent_count
    if not least <= header.stored_length <= header.payload_length:
        raise BlockFormatError(f"block length {header.block_length} is not that of its parts")
