"""The index object of an archived ledger, version 1: its metadata, and where its entries are.

Big-endian: magic (4), length of all of it (4), length of the data object (8), of a block's header
(8), count of mappings (4), length of the metadata (4). Then the metadata, and 20 bytes for each
mapping: first entry (8), part (4, from 1), offset (8).

The offset of a block's mapping is the block's, so
the entry is a header's length behind it. So it is for the mappings inside a block, too: Pulsar
writes none, and its reader takes them.

Stricter than Pulsar's reader: everything that can be compared is. Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from segmentstore.contracts.ledgers import LedgerMetadata
from tier2.archive.archive_format_error import ArchiveFormatError
from tier2.archive.data_block import BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES
from tier2.archive.ledger_metadata_codec import encode_ledger_metadata, parse_ledger_metadata

INDEX_MAGIC: Final = 0xDE47DE47
STREAMING_MAGIC: Final = 0x3D1FB0BC
"""Of version 2, which holds several ledgers; Pulsar never finished it."""

_HEADER: Final = Struct(">IIQQII")
_MAPPING: Final = Struct(">qIq")


class EntryMapping(NamedTuple):
    """Where an entry begins."""

    entry: int
    part: int
    """Number of its block, from 1."""
    offset: int
    """In the data object, of what is a block header's length before the entry."""


class IndexBlock:
    """A parsed or new index: some 20 bytes of memory for each mapping."""

    def __init__(
        self, metadata: LedgerMetadata, data_length: int, mappings: Sequence[EntryMapping]
    ) -> None:
        self.metadata = metadata
        self.data_length = data_length
        self._entries = array("q", (each.entry for each in mappings))
        self._parts = array("I", (each.part for each in mappings))
        self._offsets = array("q", (each.offset for each in mappings))

    def __len__(self) -> int:
        return len(self._entries)

    def mapping(self, number: int) -> EntryMapping:
        """The mapping at a place of the list."""
        return EntryMapping(self._entries[number], self._parts[number], self._offsets[number])

    def floor(self, entry: int) -> int:
        """The place of the last mapping whose entry is not behind `entry` >= 0. O(log n)."""
        return bisect_right(self._entries, entry) - 1

    def block(self, part: int) -> tuple[EntryMapping, int]:
        """The mapping of a block's first entry, and where the block ends. O(log n)."""
        first = bisect_right(self._parts, part - 1)
        behind = bisect_right(self._parts, part)
        end = self._offsets[behind] if behind < len(self) else self.data_length
        return self.mapping(first), end

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self._parts[-1]


def encode_index(index: IndexBlock) -> bytes:
    """The object."""
    metadata = encode_ledger_metadata(index.metadata)
    length = _HEADER.size + len(metadata) + len(index) * _MAPPING.size
    head = _HEADER.pack(
        INDEX_MAGIC, length, index.data_length, BLOCK_HEADER_BYTES, len(index), len(metadata)
    )
    return b"".join(
        (head, metadata, *(_MAPPING.pack(*index.mapping(each)) for each in range(len(index))))
    )


def parse_index(data: bytes) -> IndexBlock:
    """What encode_index, or Pulsar, wrote. Raises ArchiveFormatError."""
    if len(data) < _HEADER.size:
        raise ArchiveFormatError(f"an index of {len(data)} bytes")
    magic, length, data_length, header_length, count, size = _HEADER.unpack_from(data)
    if magic == STREAMING_MAGIC:
        raise ArchiveFormatError("an index of several ledgers (version 2) is not supported")
    if magic != INDEX_MAGIC:
        raise ArchiveFormatError(f"the index begins with {magic:08x}, not {INDEX_MAGIC:08x}")
    if header_length != BLOCK_HEADER_BYTES:
        raise ArchiveFormatError(f"blocks have a header of {header_length} bytes by the index")
    start = _HEADER.size + size
    if not length == len(data) == start + count * _MAPPING.size:
        raise ArchiveFormatError(
            f"the index has {len(data)} bytes, {length} by itself, and "
            f"{start + count * _MAPPING.size} by its counts"
        )
    metadata = parse_ledger_metadata(data[_HEADER.size : start])
    mappings = [EntryMapping(*each) for each in _MAPPING.iter_unpack(data[start:])]
    _check(metadata, data_length, mappings)
    return IndexBlock(metadata, data_length, mappings)


def _check(metadata: LedgerMetadata, data_length: int, mappings: Sequence[EntryMapping]) -> None:
    if not metadata.closed or metadata.last_entry < 0 or metadata.length < 0:
        raise ArchiveFormatError("the ledger is empty or open by its metadata")
    if not mappings or mappings[0] != (0, 1, 0):
        raise ArchiveFormatError("the first mapping is not entry 0 in part 1 at offset 0")
    before = mappings[0]
    for each in mappings[1:]:
        distance = each.offset - before.offset
        if each.entry <= before.entry or each.part - before.part not in {0, 1} or distance <= 0:
            raise ArchiveFormatError(f"mapping {tuple(each)} is behind {tuple(before)}")
        before = each
    if before.entry > metadata.last_entry:
        raise ArchiveFormatError(
            f"a mapping of entry {before.entry}, and {metadata.last_entry} is the last"
        )
    least = metadata.length + (metadata.last_entry + 1) * ENTRY_HEADER_BYTES
    if data_length < least + before.part * BLOCK_HEADER_BYTES:
        raise ArchiveFormatError(f"{data_length} bytes of data do not hold the ledger's entries")
    if before.offset + BLOCK_HEADER_BYTES >= data_length:
        raise ArchiveFormatError(f"a mapping to {before.offset} of {data_length} bytes")
