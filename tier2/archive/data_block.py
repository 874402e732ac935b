"""One block of a data object: a header, whole entries, padding.

Big-endian. Header, 128 bytes: magic, its length, the block's length with header and padding, the
first entry's id, zeros. An entry: its length (4), its id (8), its bytes. Behind the last entry of a
block that is not full, FE DC DE AD again and again: as the length of an entry it is negative.

Every block but the last has the length asked for. The last one's is computed before: its header and
exactly what is left, so it has no padding.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from segmentstore.contracts.checksum import Buffer
from tier2.archive.archive_format_error import ArchiveFormatError

BLOCK_MAGIC: Final = 0xFBDBABCB
BLOCK_HEADER_BYTES: Final = 128
ENTRY_HEADER_BYTES: Final = 12
PADDING: Final = b"\xfe\xdc\xde\xad"

_HEADER: Final = Struct(">IQQq")
ENTRY_HEADER: Final = Struct(">iq")
"""Length, which is negative where padding begins, and id of an entry."""


def block_length(length_max: int, entries_left: int, bytes_left: int) -> int:
    """How long the next block is, when so many entries of so many bytes are left."""
    return min(length_max, BLOCK_HEADER_BYTES + entries_left * ENTRY_HEADER_BYTES + bytes_left)


class DataBlock:
    """A block that is filled. `data` is the whole of it once it is padded."""

    def __init__(self, length: int, first_entry: int) -> None:
        """`length` is at least BLOCK_HEADER_BYTES."""
        self.data = bytearray(length)
        _HEADER.pack_into(self.data, 0, BLOCK_MAGIC, BLOCK_HEADER_BYTES, length, first_entry)
        self.filled = BLOCK_HEADER_BYTES
        """Bytes up to the end of the last entry."""

    def add(self, entry_id: int, entry: Buffer) -> bool:
        """Put an entry behind the last one; False if there is no room for the whole of it."""
        start = self.filled + ENTRY_HEADER_BYTES
        end = start + len(entry)
        if end > len(self.data):
            return False
        ENTRY_HEADER.pack_into(self.data, self.filled, len(entry), entry_id)
        self.data[start:end] = entry
        self.filled = end
        return True

    def pad(self) -> None:
        """Fill what is left."""
        left = len(self.data) - self.filled
        if left:
            self.data[self.filled :] = padding(left)


def padding(length: int) -> bytes:
    """The first `length` bytes of padding."""
    return (PADDING * (length // len(PADDING) + 1))[:length]


def check_block_header(header: Buffer, length: int, first_entry: int) -> None:
    """Raise ArchiveFormatError unless it is the header of such a block."""
    if len(header) < BLOCK_HEADER_BYTES:
        raise ArchiveFormatError(f"a block's header has {len(header)} bytes")
    magic, header_length, block, first = _HEADER.unpack_from(header)
    if magic != BLOCK_MAGIC:
        raise ArchiveFormatError(f"a block begins with {magic:08x}, not {BLOCK_MAGIC:08x}")
    if header_length != BLOCK_HEADER_BYTES:
        raise ArchiveFormatError(f"a block's header has a length of {header_length}")
    if block != length:
        raise ArchiveFormatError(f"a block's length is {block}, and {length} by the index")
    if first != first_entry:
        raise ArchiveFormatError(
            f"a block's first entry is {first}, and {first_entry} by the index"
        )
    if any(header[_HEADER.size : BLOCK_HEADER_BYTES]):
        raise ArchiveFormatError("a block's header does not end in zeros")
