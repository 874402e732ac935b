"""The DataFrame: one write to Tier 1, in the form every log keeps it (docs/formats/data-frame.md).

Pure: bytes in, bytes out. Rules of this file:

- the header binds a payload to its place: container, epoch and frame sequence number are under its
  checksum;
- `durable_through` is the highest frame sequence known durable when the frame was written. It
  decides between a torn tail and corruption: an invalid frame n is corruption exactly when
  something valid behind it says `durable_through >= n` (docs/decisions/0002-durable-through.md);
- a reader skips header fields it does not know (`header_length`) and refuses a newer version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from segmentstore.contracts.checksum import Buffer, crc32c, crc32c_parts

FRAME_MAGIC: Final = b"SSDF"
FRAME_VERSION: Final = 1

_FIELDS: Final = struct.Struct(">4sHHIQQQII")
_CHECKSUM: Final = struct.Struct(">I")
_START: Final = struct.Struct(">4sHH")

FRAME_HEADER_LENGTH: Final = _FIELDS.size + _CHECKSUM.size
"""Bytes in front of the payload in a frame this version writes: 48."""
HEADER_BYTES_MAX: Final = 4096
"""No version will ever write a longer header."""

ENTRY_HEADER: Final = struct.Struct(">IB")
"""In front of each entry of the payload: length of its data, flags."""
ENTRY_HEADER_LENGTH: Final = ENTRY_HEADER.size
ENTRY_FIRST: Final = 1
"""Flag: the entry begins its record."""
ENTRY_LAST: Final = 2
"""Flag: the entry ends its record."""
ENTRY_WHOLE: Final = ENTRY_FIRST | ENTRY_LAST

_PREFIX_ZERO: Final = bytes(FRAME_HEADER_LENGTH)


class FrameFormatError(Exception):
    """Bytes that are not the frame they should be; `reason` says why.

    Adapters name the place and translate.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FrameVersionError(FrameFormatError):
    """A whole header of a newer version: not damaged, but this program cannot read the frame."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"it has format version {version}; this program reads up to {FRAME_VERSION}"
        )
        self.version = version


class FrameHeader(NamedTuple):
    """What stands in front of a payload.

    All unsigned: container 32-bit, epoch and sequences 64-bit.
    """

    header_length: int
    container_id: int
    epoch: int
    sequence: int
    durable_through: int
    """Highest frame sequence known durable when this one was written; 0 = none."""
    payload_length: int
    payload_checksum: int

    @property
    def frame_length(self) -> int:
        """Header and payload, in bytes."""
        return self.header_length + self.payload_length


def seal_header(
    container_id: int,
    epoch: int,
    sequence: int,
    durable_through: int,
    payload_parts: Sequence[Buffer],
) -> bytes:
    """The header for the payload that is the concatenation of `payload_parts`.

    Costs one pass of CRC32C over the payload. The parts are byte buffers (item size 1).
    """
    length = sum(map(len, payload_parts))
    checksum = crc32c_parts(payload_parts)
    return pack_header(container_id, epoch, sequence, durable_through, length, checksum)


def pack_header(
    container_id: int,
    epoch: int,
    sequence: int,
    durable_through: int,
    length: int,
    checksum: int,
) -> bytes:
    """The header for a payload of this length and this CRC32C (continued over its parts)."""
    fields = _FIELDS.pack(
        FRAME_MAGIC,
        FRAME_VERSION,
        FRAME_HEADER_LENGTH,
        container_id,
        epoch,
        sequence,
        durable_through,
        length,
        checksum,
    )
    return fields + _CHECKSUM.pack(crc32c(fields))


def parse_header(buffer: memoryview, position: int) -> FrameHeader | None:
    """The header at `position`, its own checksum verified; None if there is nothing (the end, or
    zeros).

    Raises FrameFormatError for anything else that is not a header, FrameVersionError for a whole
    header of a newer version. The payload is not checked: see `payload_fault`.
    """
    end = position + FRAME_HEADER_LENGTH
    if end > len(buffer):
        if any(buffer[position:]):
            raise FrameFormatError("a header is cut off")
        return None
    (
        magic,
        version,
        header_length,
        container_id,
        epoch,
        sequence,
        durable_through,
        payload_length,
        checksum,
    ) = _FIELDS.unpack_from(buffer, position)
    if magic != FRAME_MAGIC:
        if buffer[position:end] == _PREFIX_ZERO:
            return None
        raise FrameFormatError("no frame begins here")
    if not FRAME_HEADER_LENGTH <= header_length <= HEADER_BYTES_MAX:
        raise FrameFormatError(f"impossible header length {header_length}")
    covered = position + header_length - _CHECKSUM.size
    if covered + _CHECKSUM.size > len(buffer):
        raise FrameFormatError("a header is cut off")
    if _CHECKSUM.unpack_from(buffer, covered)[0] != crc32c(buffer[position:covered]):
        raise FrameFormatError("header checksum mismatch")
    if version > FRAME_VERSION:
        raise FrameVersionError(version)
    return FrameHeader(
        header_length, container_id, epoch, sequence, durable_through, payload_length, checksum
    )


def header_length_at(buffer: memoryview, position: int) -> int:
    """Bytes the header at `position` claims, unchecked: how much a reader must have before it may
    parse.

    At least FRAME_HEADER_LENGTH; that many bytes must be there.
    """
    magic, _, header_length = _START.unpack_from(buffer, position)
    if magic != FRAME_MAGIC or header_length > HEADER_BYTES_MAX:
        return FRAME_HEADER_LENGTH
    return max(FRAME_HEADER_LENGTH, int(header_length))


def payload_fault(header: FrameHeader, payload: memoryview) -> str | None:
    """Why `payload` is not what the header was sealed for; None if it is."""
    if len(payload) != header.payload_length:
        return f"the payload is cut off after {len(payload)} of {header.payload_length} bytes"
    if crc32c(payload) != header.payload_checksum:
        return "payload checksum mismatch"
    return None
