"""How a file log lies on disk: names, addresses, the file header, the state record
(docs/formats/file-log.md).

Pure. Rules of this file:

- an address is `file number << 32 | position of the frame's header in that file`; numbers begin at
  1 and grow with time, so addresses are ordered as the frames are, and 0 is no address;
- a log file begins with a header block that was durable before the file got its name;
- a log file may have been another one before. Behind its frames lie zeros or *leftovers*, frames of
  its own epoch below its `first_sequence`, whole or cut, at any place;
- `first_sequence` of a file makes every frame in an older file with that number or a higher one
  stale. It was written by a fenced owner, or was copied on, and no reader may take it for the log.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from durablelog.data_frame import FrameFormatError, FrameHeader, FrameVersionError
from durablelog.durable_data_log import LogAddress
from segmentstore.contracts.checksum import crc32c

LOCK_NAME: Final = "LOCK"
RESERVE_NAME: Final = "reserve"
"""A file of zeros that is given up when the disk is full (room.py)."""
_STATE_PREFIX: Final = "state-"
PREPARED_SUFFIX: Final = ".tmp"
FILE_SUFFIX: Final = ".log"
FILE_HEADER_LENGTH: Final = 4096
"""Bytes in front of a file's first frame."""
FILE_BYTES_MAX: Final = 2**32
"""Positions are 32-bit."""

PAYLOAD_BYTES_MAX: Final = 1024 * 1024 - 1024
"""Of one frame, by default."""

_RETAINED: Final = "retained"
_RETAINED_NAME: Final = re.compile(
    rf"{_RETAINED}((?:-[0-9a-f]{{1,16}}){{7}}){re.escape(PREPARED_SUFFIX)}"
)
_VERSION: Final = 1
_NUMBER_DIGITS: Final = 16
_FILE_MAGIC: Final = b"SSLF"
_FILE_FIELDS: Final = struct.Struct(">4sHHIQQQQ")
_STATE_MAGIC: Final = b"SSLS"
_STATE_FIELDS: Final = struct.Struct(">4sHHIQQQ")
_CHECKSUM: Final = struct.Struct(">I")
_LENGTH_FIELD: Final = struct.Struct(">HH")


class FileHeader(NamedTuple):
    """What a log file says of itself."""

    container_id: int
    number: int
    epoch: int
    """Of the owner that began the file; frames copied into it keep their own."""
    first_sequence: int
    """Number of the first frame it holds or will hold."""
    durable_through: int
    """Highest frame sequence that was durable when the file got its name; at least first_sequence -
    1.
    """


class RetainedName(NamedTuple):
    """What the second name of a retained file says of it; a later owner's is higher."""

    maker_epoch: int
    """Of the owner that gave the name."""
    number: int
    epoch: int
    """Of the owner that began the file."""
    begin_sequence: int
    end_sequence: int
    end_position: int
    taken_ms: int
    """When it took its last frame, milliseconds since 1970 UTC."""


class LogState(NamedTuple):
    """The state record: the owner of the log and the place where it begins."""

    container_id: int
    epoch: int
    """Of the last opening."""
    truncation_address: LogAddress
    """Address of the first frame of the log; 0 = never truncated."""
    truncation_sequence: int
    """Sequence number of that frame; 1 if never truncated."""


def file_name(number: int) -> str:
    """Name of log file `number` (>= 1)."""
    return f"{number:0{_NUMBER_DIGITS}x}{FILE_SUFFIX}"


def file_number(name: str) -> int | None:
    """Number of the log file of this name; None if it is not one."""
    digits = name.removesuffix(FILE_SUFFIX)
    if digits == name or not _is_number(digits):
        return None
    return int(digits, 16)


def prepared_name(epoch: int, count: int) -> str:
    """Name of the `count`-th file the owner of `epoch` prepares.

    Never used twice: one file may be about to get its real name while the next is prepared.
    """
    return f"next-{epoch:x}-{count:x}{PREPARED_SUFFIX}"


def spare_name(epoch: int, number: int) -> str:
    """Name under which the owner of `epoch` keeps what was log file `number`; never used twice, as
    that is not.
    """
    return f"spare-{epoch:x}-{number:x}{PREPARED_SUFFIX}"


def retained_name(known: RetainedName) -> str:
    """Name of a file that is retained in front of the truncation point.

    Its ending is that of what an opening removes, so that a program that does not know it does so.
    """
    return f"{_RETAINED}-{'-'.join(f'{field:x}' for field in known)}{PREPARED_SUFFIX}"


def parse_retained_name(name: str) -> RetainedName | None:
    """What it says; None if it is not one."""
    if not (match := _RETAINED_NAME.fullmatch(name)):
        return None
    return RetainedName(*(int(field, 16) for field in match[1].split("-")[1:]))


def maker_epoch(name: str) -> int:
    """Epoch of the owner that a file being prepared, a spare or a retained one is of by its name; 0
    for all other names.
    """
    kind, _, rest = name.partition("-")
    epoch = rest.partition("-")[0]
    return (
        int(epoch, 16)
        if kind in {"next", "spare", _RETAINED} and re.fullmatch("[0-9a-f]{1,16}", epoch)
        else 0
    )


def state_name(version: int) -> str:
    """Name of the state record of this version (>= 1)."""
    return f"{_STATE_PREFIX}{version:0{_NUMBER_DIGITS}x}"


def state_version(name: str) -> int | None:
    """Version of the state record of this name; None if it is not one."""
    digits = name.removeprefix(_STATE_PREFIX)
    if digits == name or not _is_number(digits):
        return None
    return int(digits, 16)


def make_address(number: int, position: int) -> LogAddress:
    """Address of the frame whose header lies at `position` of file `number`."""
    return LogAddress(number << 32 | position)


def split_address(address: LogAddress) -> tuple[int, int]:
    """(file number, position) of an address."""
    return address >> 32, address & 0xFFFFFFFF


def is_leftover(frame: FrameHeader, file: FileHeader) -> bool:
    """True for a frame that lay in the file before it became the one of this header: no more than
    zeros would be.
    """
    return (
        frame.sequence < file.first_sequence
        and frame.epoch == file.epoch
        and frame.container_id == file.container_id
    )


def pack_file_header(header: FileHeader) -> bytes:
    """The whole header block, FILE_HEADER_LENGTH bytes."""
    fields = _FILE_FIELDS.pack(_FILE_MAGIC, _VERSION, _FILE_FIELDS.size + _CHECKSUM.size, *header)
    return _sealed(fields).ljust(FILE_HEADER_LENGTH, b"\0")


def parse_file_header(data: bytes) -> FileHeader:
    """The header in a file's first bytes.

    Raises FrameFormatError, FrameVersionError if it is a newer one.
    """
    fields = _opened(data, _FILE_MAGIC, _FILE_FIELDS, "file header")
    return FileHeader(*fields)


def pack_state(state: LogState) -> bytes:
    """The state record."""
    fields = _STATE_FIELDS.pack(_STATE_MAGIC, _VERSION, _STATE_FIELDS.size + _CHECKSUM.size, *state)
    return _sealed(fields)


def parse_state(data: bytes) -> LogState:
    """The state record in `data`.

    Raises FrameFormatError, FrameVersionError if it is a newer one.
    """
    container_id, epoch, address, sequence = _opened(
        data, _STATE_MAGIC, _STATE_FIELDS, "state record"
    )
    return LogState(container_id, epoch, LogAddress(address), sequence)


def _is_number(digits: str) -> bool:
    return len(digits) == _NUMBER_DIGITS and set(digits) <= set("0123456789abcdef")


def _sealed(fields: bytes) -> bytes:
    return fields + _CHECKSUM.pack(crc32c(fields))


def _opened(data: bytes, magic: bytes, fields: struct.Struct, what: str) -> tuple[int, ...]:
    """The fields behind magic, version and length, checked."""
    least = fields.size + _CHECKSUM.size
    if len(data) < least or not data.startswith(magic):
        raise FrameFormatError(f"no {what} begins here")
    version, length = _LENGTH_FIELD.unpack_from(data, len(magic))
    if not least <= length <= len(data):
        raise FrameFormatError(f"{what} has the impossible length {length}")
    covered = length - _CHECKSUM.size
    if _CHECKSUM.unpack_from(data, covered)[0] != crc32c(data[:covered]):
        raise FrameFormatError(f"{what} checksum mismatch")
    if version > _VERSION:
        raise FrameVersionError(version)
    return fields.unpack_from(data)[3:]
