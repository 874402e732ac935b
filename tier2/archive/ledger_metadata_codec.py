"""BookKeeper's metadata of a ledger as protobuf (LedgerMetadataFormat), byte for byte as Pulsar
writes them into an index.

Of protobuf only what this one message needs: varints, strings, nested messages, fields in ascending
order. Rules:

- the creation time is always written (-1 is ten bytes), and so is a first entry 0;
- the ack quorum has number 9 and comes behind the digest type;
- password and token are never written;
- custom metadata keep the order of the ledger;
- a reader skips fields that it does not know, as protobuf does, and refuses what lacks or cannot
  be.

Pure: no await, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from segmentstore.contracts.ledgers import DigestType, Ensemble, LedgerMetadata
from tier2.archive.archive_format_error import ArchiveFormatError

_OPEN: Final = 1
_CLOSED: Final = 3
_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_MASK: Final = 2**64 - 1

_WRITE_QUORUM, _ENSEMBLE_SIZE, _LENGTH, _LAST_ENTRY, _STATE = 1, 2, 3, 4, 5
_SEGMENT, _DIGEST, _ACK_QUORUM, _CREATED, _CUSTOM = 6, 7, 9, 10, 11

_Field = tuple[int, "int | bytes"]


def encode_ledger_metadata(metadata: LedgerMetadata) -> bytes:
    """The message. O(size)."""
    out = bytearray()
    _put_number(out, _WRITE_QUORUM, metadata.write_quorum)
    _put_number(out, _ENSEMBLE_SIZE, metadata.ensemble_size)
    _put_number(out, _LENGTH, metadata.length)
    _put_number(out, _LAST_ENTRY, metadata.last_entry)
    _put_number(out, _STATE, _CLOSED if metadata.closed else _OPEN)
    for ensemble in metadata.ensembles:
        inner = bytearray()
        for bookie in ensemble.bookies:
            _put_bytes(inner, 1, bookie.encode())
        _put_number(inner, 2, ensemble.first_entry)
        _put_bytes(out, _SEGMENT, inner)
    if metadata.digest_type is not None:
        _put_number(out, _DIGEST, metadata.digest_type)
    _put_number(out, _ACK_QUORUM, metadata.ack_quorum)
    _put_number(out, _CREATED, metadata.created_ms)
    for key, value in metadata.custom:
        inner = bytearray()
        _put_bytes(inner, 1, key.encode())
        _put_bytes(inner, 2, value)
        _put_bytes(out, _CUSTOM, inner)
    return bytes(out)


def parse_ledger_metadata(data: bytes | memoryview) -> LedgerMetadata:
    """What encode_ledger_metadata, or BookKeeper, wrote. Raises ArchiveFormatError."""
    numbers: dict[int, int] = {}
    ensembles: list[Ensemble] = []
    custom: list[tuple[str, bytes]] = []
    for field, value in _fields(bytes(data)):
        if field == _SEGMENT:
            ensembles.append(_ensemble(_message(field, value)))
        elif field == _CUSTOM:
            custom.append(_pair(_message(field, value)))
        elif isinstance(value, int):
            numbers[field] = value
        elif field <= _CREATED and field != 8:
            raise ArchiveFormatError(f"field {field} of the ledger's metadata is no number")
    for field in (_WRITE_QUORUM, _ENSEMBLE_SIZE, _LENGTH, _STATE):
        if field not in numbers:
            raise ArchiveFormatError(f"the ledger's metadata lack field {field}")
    closed = numbers[_STATE] == _CLOSED
    if closed and _LAST_ENTRY not in numbers:
        raise ArchiveFormatError("the metadata of a closed ledger lack its last entry")
    digest = numbers.get(_DIGEST)
    if digest is not None and digest not in set(DigestType):
        raise ArchiveFormatError(f"{digest} is no digest type")
    write_quorum = numbers[_WRITE_QUORUM]
    return LedgerMetadata(
        ensemble_size=numbers[_ENSEMBLE_SIZE],
        write_quorum=write_quorum,
        ack_quorum=numbers.get(_ACK_QUORUM, write_quorum),
        length=numbers[_LENGTH],
        last_entry=numbers.get(_LAST_ENTRY, -1),
        closed=closed,
        digest_type=None if digest is None else DigestType(digest),
        created_ms=numbers.get(_CREATED, -1),
        ensembles=tuple(ensembles),
        custom=tuple(custom),
    )


def _ensemble(data: bytes) -> Ensemble:
    bookies: list[str] = []
    first: int | None = None
    for field, value in _fields(data):
        if field == 1:
            bookies.append(_text(_message(field, value)))
        elif field == 2 and isinstance(value, int):
            first = value
    if first is None:
        raise ArchiveFormatError("an ensemble lacks its first entry")
    return Ensemble(first, tuple(bookies))


def _pair(data: bytes) -> tuple[str, bytes]:
    key, text = "", b""
    for field, value in _fields(data):
        if field == 1:
            key = _text(_message(field, value))
        elif field == 2:
            text = _message(field, value)
    return key, text


def _message(field: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ArchiveFormatError(f"field {field} of the ledger's metadata is a number")
    return value


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ArchiveFormatError("a text of the ledger's metadata is not UTF-8") from None


def _fields(data: bytes) -> Iterator[_Field]:
    """The fields of one message; of a fixed width as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, kind = key >> 3, key & 7
        if not field:
            raise ArchiveFormatError("a field of the ledger's metadata has number 0")
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield field, number - (1 << 64) if number >> 63 else number
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind in {_FIXED32, _FIXED64}:
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ArchiveFormatError(f"field {field} of the ledger's metadata has kind {kind}")
        if at + length > len(data):
            raise ArchiveFormatError(f"field {field} of the ledger's metadata is cut")
        yield field, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & _MASK, at
        shift += 7
    raise ArchiveFormatError("a number of the ledger's metadata is cut")


def _put_varint(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _put_number(out: bytearray, field: int, number: int) -> None:
    _put_varint(out, field << 3 | _VARINT)
    _put_varint(out, number & _MASK)


def _put_bytes(out: bytearray, field: int, data: bytes | bytearray) -> None:
    _put_varint(out, field << 3 | _BYTES)
    _put_varint(out, len(data))
    out += data
