"""Keys of the metadata catalog, pure. The format's page: docs/formats/metadata-catalog.md.

A byte says which table a key is of. Numbers are big-endian and a name ends its key, or ends with a
zero byte, which no name has: so keys are ordered as the tuples they are made of. Names are ordered
by code points, as Python's strings are.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from durablelog.catalog.key_ranges import StoreKeyRange, prefix_range
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.segments import NAME_BYTES_MAX

SEGMENTS: Final = b"\x01"
NAMES: Final = b"\x02"
CHUNK_PAGES: Final = b"\x03"
ATTRIBUTES: Final = b"\x04"
OBJECTS: Final = b"\x05"
CHUNK_PLACES: Final = b"\x06"
GARBAGE: Final = b"\x07"
DELETION_CLOCK: Final = b"\x08"
"""The key of the one record of its table. Keys that begin with 0 are the key store's own."""
UNFLUSHED: Final = b"\x09"
TOTALS: Final = b"\x0a"
"""As DELETION_CLOCK."""

_ONE = struct.Struct(">cQ")
_TWO = struct.Struct(">cQQ")
_ATTRIBUTE = struct.Struct(">cQ16s")
_PLACE = struct.Struct(">QQ")
_END_OF_NAME = b"\0"
_NUMBER_MAX = (1 << 64) - 1
_OBJECTS_REMEMBERED = 1024
"""Names of objects whose encoded form is kept: chunks of many segments lie in one object."""


class MetadataFormatError(Exception):
    """A key or a value is not what the catalog writes: it is corrupt, or of a newer version."""


class SegmentIdKey(NamedTuple):
    """Of a segment's record."""

    segment_id: int

    def encode(self) -> bytes:
        """As it is stored."""
        return segment_id_key(self.segment_id)


class NameKey(NamedTuple):
    """Of the id of the segment that has a name."""

    name: str

    def encode(self) -> bytes:
        """As it is stored. Raises MetadataFormatError if it cannot be a name."""
        return name_key(self.name)


class ChunkPageKey(NamedTuple):
    """Of a page of chunks."""

    segment_id: int
    first_offset: int
    """Of the page's first chunk when the page was begun: no chunk of it begins before."""

    def encode(self) -> bytes:
        """As it is stored."""
        return chunk_page_key(self.segment_id, self.first_offset)


class CatalogAttributeKey(NamedTuple):
    """Of one attribute of one segment."""

    segment_id: int
    attribute_id: AttributeKey

    def encode(self) -> bytes:
        """As it is stored. Raises MetadataFormatError if the id is not of 16 bytes."""
        if len(self.attribute_id) != 16:
            raise MetadataFormatError(f"attribute id of {len(self.attribute_id)} bytes")
        return _ATTRIBUTE.pack(ATTRIBUTES, self.segment_id, self.attribute_id)


class ObjectKey(NamedTuple):
    """Of an object that a chunk is in."""

    name: str

    def encode(self) -> bytes:
        """As it is stored. Raises MetadataFormatError if it cannot be a name."""
        return OBJECTS + _encode_name(self.name)


class ChunkPlaceKey(NamedTuple):
    """Of a chunk, by the object it is in."""

    object_name: str
    segment_id: int
    start_offset: int

    def encode(self) -> bytes:
        """As it is stored. Raises MetadataFormatError if it has no name."""
        return chunk_place_key(self.object_name, self.segment_id, self.start_offset)


class GarbageKey(NamedTuple):
    """Of an object that no chunk is in any more."""

    sequence_number: int
    """Of the operation that released it; 0: not known."""
    name: str

    def encode(self) -> bytes:
        """As it is stored. Raises MetadataFormatError if it cannot be a name."""
        return _ONE.pack(GARBAGE, self.sequence_number) + _encode_name(self.name)


class DeletionClockKey(NamedTuple):
    """Of the newest reading of the deletion clock."""

    def encode(self) -> bytes:
        """As it is stored."""
        return DELETION_CLOCK


class UnflushedKey(NamedTuple):
    """Of a segment that cannot be idle: `SegmentMetadata.flushed` is False."""

    segment_id: int

    def encode(self) -> bytes:
        """As it is stored."""
        return unflushed_key(self.segment_id)


class TotalsKey(NamedTuple):
    """Of the numbers of what there is."""

    def encode(self) -> bytes:
        """As it is stored."""
        return TOTALS


CatalogKey = (
    SegmentIdKey
    | NameKey
    | ChunkPageKey
    | CatalogAttributeKey
    | ObjectKey
    | ChunkPlaceKey
    | GarbageKey
    | DeletionClockKey
    | UnflushedKey
    | TotalsKey
)


# --- encoded without a tuple: there are some for every segment that is written or read ----------


def segment_id_key(segment_id: int) -> bytes:
    """A SegmentIdKey as it is stored."""
    return _ONE.pack(SEGMENTS, segment_id)


def name_key(name: str) -> bytes:
    """A NameKey as it is stored. Raises MetadataFormatError if it cannot be a name."""
    return NAMES + _encode_name(name)


def chunk_page_key(segment_id: int, first_offset: int) -> bytes:
    """A ChunkPageKey as it is stored."""
    return _TWO.pack(CHUNK_PAGES, segment_id, first_offset)


def chunk_place_key(object_name: str, segment_id: int, start_offset: int) -> bytes:
    """A ChunkPlaceKey as it is stored. Raises MetadataFormatError if it has no name."""
    return _places_of(object_name) + _PLACE.pack(segment_id, start_offset)


def unflushed_key(segment_id: int) -> bytes:
    """An UnflushedKey as it is stored."""
    return _ONE.pack(UNFLUSHED, segment_id)


@lru_cache(_OBJECTS_REMEMBERED)
def _places_of(object_name: str) -> bytes:
    """What the keys of all chunks in an object begin with."""
    return CHUNK_PLACES + _encode_name(object_name) + _END_OF_NAME


def decode_key(data: bytes) -> CatalogKey:
    """The key that encodes to `data`. Raises MetadataFormatError if none does."""
    try:
        return _decode(data)
    except (struct.error, UnicodeDecodeError) as error:
        raise MetadataFormatError(f"malformed key {data[:40].hex()}: {error}") from error


def _decode(data: bytes) -> CatalogKey:
    table = data[:1]
    if table == SEGMENTS:
        return SegmentIdKey(_ONE.unpack(data)[1])
    if table == NAMES:
        return NameKey(_decode_name(data[1:]))
    if table == CHUNK_PAGES:
        _, segment_id, first_offset = _TWO.unpack(data)
        return ChunkPageKey(segment_id, first_offset)
    if table == ATTRIBUTES:
        _, segment_id, attribute_id = _ATTRIBUTE.unpack(data)
        return CatalogAttributeKey(segment_id, attribute_id)
    if table == OBJECTS:
        return ObjectKey(_decode_name(data[1:]))
    if table == CHUNK_PLACES:
        name, end = data[1 : -_PLACE.size - 1], data[-_PLACE.size - 1 :]
        if end[:1] != _END_OF_NAME:
            raise MetadataFormatError(f"malformed key {data[:40].hex()}: no end of a name")
        return ChunkPlaceKey(_decode_name(name), *_PLACE.unpack(end[1:]))
    if table == GARBAGE:
        _, sequence_number = _ONE.unpack(data[: _ONE.size])
        return GarbageKey(sequence_number, _decode_name(data[_ONE.size :]))
    if table == DELETION_CLOCK and len(data) == 1:
        return DeletionClockKey()
    if table == UNFLUSHED:
        return UnflushedKey(_ONE.unpack(data)[1])
    if table == TOTALS and len(data) == 1:
        return TotalsKey()
    raise MetadataFormatError(f"key {data[:40].hex()} is of no table")


def segment_range() -> StoreKeyRange:
    """All records of segments, by id."""
    return prefix_range(SEGMENTS)


def name_range(prefix: str = "") -> StoreKeyRange:
    """The names that begin with `prefix`, in order."""
    return prefix_range(NAMES + prefix.encode())


def chunk_page_range(segment_id: int, up_to: int = _NUMBER_MAX) -> StoreKeyRange:
    """A segment's pages whose first offset is at most `up_to`.

    The last one is the only one that can have the chunk with the offset `up_to`.
    """
    last = chunk_page_key(segment_id, up_to)
    return StoreKeyRange(chunk_page_key(segment_id, 0), last + b"\0")


def attribute_range(segment_id: int, start: AttributeKey = bytes(16)) -> StoreKeyRange:
    """A segment's attributes from the id `start` on, in order of id."""
    everything = prefix_range(_ONE.pack(ATTRIBUTES, segment_id))
    return everything._replace(start=CatalogAttributeKey(segment_id, start).encode())


def object_range(prefix: str = "") -> StoreKeyRange:
    """The objects whose names begin with `prefix`, in order."""
    return prefix_range(OBJECTS + prefix.encode())


def chunk_place_range(object_name: str) -> StoreKeyRange:
    """The chunks in one object, by segment and offset."""
    return prefix_range(_places_of(object_name))


def unflushed_range() -> StoreKeyRange:
    """The segments that cannot be idle, by id."""
    return prefix_range(UNFLUSHED)


def garbage_range(up_to: int = _NUMBER_MAX) -> StoreKeyRange:
    """Garbage that operations up to the sequence number `up_to` released, in their order."""
    start, end = prefix_range(GARBAGE)
    return StoreKeyRange(start, end if up_to == _NUMBER_MAX else _ONE.pack(GARBAGE, up_to + 1))


def _encode_name(name: str) -> bytes:
    try:
        encoded = name.encode()
    except UnicodeEncodeError as error:
        raise MetadataFormatError(f"name {name!r}: {error}") from error
    _check_name(encoded)
    return encoded


def _decode_name(encoded: bytes) -> str:
    _check_name(encoded)
    return encoded.decode()


def _check_name(encoded: bytes) -> None:
    if not 0 < len(encoded) <= NAME_BYTES_MAX:
        raise MetadataFormatError(f"a name of {len(encoded)} bytes")
    if _END_OF_NAME in encoded:
        raise MetadataFormatError(f"a name with a zero byte: {encoded[:40].hex()}")
