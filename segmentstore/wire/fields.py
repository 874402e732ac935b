"""The kinds of fields that commands are made of.

Sizes are checked here, and nowhere else: `read` raises WireError, struct.error or
UnicodeDecodeError, `write` WireError or struct.error, and the codec makes one error of these.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from segmentstore.contracts.checksum import Buffer
from segmentstore.wire.append_commands import EVENT_HEADER_BYTES
from segmentstore.wire.errors import WireError
from segmentstore.wire.modified_utf8 import decode_text, encode_text
from segmentstore.wire.table_commands import NO_VERSION, TableEntry, TableKey

FRAME_BYTES_MAX: Final = 16_777_215
"""What a server takes, header included. A client takes a payload of this size."""
LIST_MAX: Final = 131_072
"""Items of a list. Pravega has no such bound; it keeps one frame from costing seconds and 100 MB.

An answer of 2 MiB has fewer keys: one of 1 byte takes 17.
"""
_TEXT_BYTES_MAX: Final = 0xFFFF
_MARK: Final = 0x53535352
"""The first half of what announces our own commands: "SSSR"."""
_LENGTH: Final = struct.Struct(">i")
_TEXT_LENGTH: Final = struct.Struct(">H")
_VERSION: Final = struct.Struct(">q")
_KEY: Final = struct.Struct(">ii")
_EMPTY_KEY: Final = _KEY.pack(12, 0)


class Field(ABC):
    """One value of a command."""

    size_min: int
    """Bytes. With fewer left, a field that may be missing is."""

    @abstractmethod
    def read(self, payload: Buffer, at: int) -> tuple[Any, int]:
        """The value at a place of a payload, and the place behind it."""

    @abstractmethod
    def write(self, value: Any, parts: list[Buffer]) -> None:
        """Append the value's bytes to the parts of a frame."""


class Scalar(Field):
    """A number, a truth value or a UUID: a letter of `struct`."""

    def __init__(self, letter: str) -> None:
        self.letter: Final = letter
        self._struct = struct.Struct(">" + letter)
        self.size_min = self._struct.size

    def read(self, payload: Buffer, at: int) -> tuple[Any, int]:
        (value,) = self._struct.unpack_from(payload, at)
        return value, at + self.size_min

    def write(self, value: Any, parts: list[Buffer]) -> None:
        parts.append(self._struct.pack(value))


class TextField(Field):
    """A length of 2 bytes, and modified UTF-8."""

    size_min = 1

    def read(self, payload: Buffer, at: int) -> tuple[str, int]:
        (length,) = _TEXT_LENGTH.unpack_from(payload, at)
        at += 2
        end = end_of(payload, at, length)
        return decode_text(bytes(payload[at:end])), end

    def write(self, value: str, parts: list[Buffer]) -> None:
        encoded = encode_text(value)
        if len(encoded) > _TEXT_BYTES_MAX:
            raise WireError(f"a text of {len(encoded)} bytes is over {_TEXT_BYTES_MAX}")
        parts.append(_TEXT_LENGTH.pack(len(encoded)) + encoded)


class DataField(Field):
    """A length of 4 bytes, and bytes. They are read as a view of the payload."""

    size_min = 4

    def read(self, payload: Buffer, at: int) -> tuple[Buffer, int]:
        (length,) = _LENGTH.unpack_from(payload, at)
        at += 4
        end = end_of(payload, at, length)
        return memoryview(payload)[at:end], end

    def write(self, value: Buffer, parts: list[Buffer]) -> None:
        parts.append(_LENGTH.pack(len(value)))
        parts.append(value)


class CopiedField(DataField):
    """The same, read as bytes: small, or kept for longer than its frame."""

    def read(self, payload: Buffer, at: int) -> tuple[bytes, int]:
        view, end = super().read(payload, at)
        return bytes(view), end


class RestField(Field):
    """Bytes up to the end of the frame, as a view of the payload."""

    size_min = 0

    def read(self, payload: Buffer, at: int) -> tuple[Buffer, int]:
        return memoryview(payload)[at:], len(payload)

    def write(self, value: Buffer, parts: list[Buffer]) -> None:
        parts.append(value)


class ZerosField(Field):
    """Zero bytes up to the end of the frame: their number. That they are zero is not checked."""

    size_min = 0

    def read(self, payload: Buffer, at: int) -> tuple[int, int]:
        return len(payload) - at, len(payload)

    def write(self, value: int, parts: list[Buffer]) -> None:
        if not 0 <= value <= FRAME_BYTES_MAX:
            raise WireError(f"{value} zero bytes")
        parts.append(bytes(value))


class ExtensionField(Field):
    """The version of our own commands, behind a mark; 0 is not written, nor is there a mark then.

    Pravega's peers skip what is behind the last field that they know.
    """

    size_min = 8

    def read(self, payload: Buffer, at: int) -> tuple[int, int]:
        mark, version = _KEY.unpack_from(payload, at)
        return version if mark == _MARK else 0, at + self.size_min

    def write(self, value: int, parts: list[Buffer]) -> None:
        if value:
            parts.append(_KEY.pack(_MARK, value))


class EventField(Field):
    """An event with its header, as it is stored; a view of the payload."""

    size_min = EVENT_HEADER_BYTES

    def read(self, payload: Buffer, at: int) -> tuple[Buffer, int]:
        kind, length = _KEY.unpack_from(payload, at)
        if kind != 0:
            raise WireError(f"an event begins with 0, not {kind}")
        end = end_of(payload, at + EVENT_HEADER_BYTES, length)
        return memoryview(payload)[at:end], end

    def write(self, value: Buffer, parts: list[Buffer]) -> None:
        if self.read(value, 0)[1] != len(value):
            raise WireError("bytes follow the event")
        parts.append(value)


class KeyField(Field):
    """A length of all, a length, a key, its version. An empty key has no version."""

    size_min = 8

    def read(self, payload: Buffer, at: int) -> tuple[TableKey, int]:
        total, length = _KEY.unpack_from(payload, at)
        if length == 0:
            return TableKey(b"", NO_VERSION), at + 8
        if total != length + 12:
            raise WireError(f"a key of {length} bytes takes {length + 12}, not {total}")
        end = end_of(payload, at + 8, length)
        (version,) = _VERSION.unpack_from(payload, end)
        return TableKey(bytes(payload[at + 8 : end]), version), end + 8

    def write(self, value: TableKey, parts: list[Buffer]) -> None:
        key, version = value
        if key:
            parts.append(_KEY.pack(len(key) + 12, len(key)) + key + _VERSION.pack(version))
        elif version == NO_VERSION:
            parts.append(_EMPTY_KEY)
        else:
            raise WireError("an empty key has no version")


class EntryField(Field):
    """A key, a length of all that follows, a length, a value."""

    size_min = 16

    def read(self, payload: Buffer, at: int) -> tuple[TableEntry, int]:
        key, at = KEY.read(payload, at)
        total, length = _KEY.unpack_from(payload, at)
        if total != length + 4:
            raise WireError(f"a value of {length} bytes takes {length + 4}, not {total}")
        end = end_of(payload, at + 8, length)
        return (key, bytes(payload[at + 8 : end])), end

    def write(self, value: TableEntry, parts: list[Buffer]) -> None:
        key, data = value
        KEY.write(key, parts)
        parts.append(_KEY.pack(len(data) + 4, len(data)))
        parts.append(data)


class ListOf(Field):
    """A count, and so many items of one kind; a tuple."""

    size_min = 1

    def __init__(self, item: Field) -> None:
        self.item = item

    def read(self, payload: Buffer, at: int) -> tuple[tuple[Any, ...], int]:
        (count,) = _LENGTH.unpack_from(payload, at)
        at += 4
        if not 0 <= count <= LIST_MAX or count * self.item.size_min > len(payload) - at:
            raise WireError(f"a list of {count} items in {len(payload) - at} bytes")
        read, values = self.item.read, []
        for _ in range(count):
            value, at = read(payload, at)
            values.append(value)
        return tuple(values), at

    def write(self, value: Sequence[Any], parts: list[Buffer]) -> None:
        if len(value) > LIST_MAX:
            raise WireError(f"a list of {len(value)} items is over {LIST_MAX}")
        parts.append(_LENGTH.pack(len(value)))
        for item in value:
            self.item.write(item, parts)


def end_of(payload: Buffer, at: int, length: int) -> int:
    """Where `length` bytes end that begin at a place."""
    end = at + length
    if length < 0 or end > len(payload):
        raise WireError(f"{length} bytes are announced and {len(payload) - at} are left")
    return end


I8: Final = Scalar("b")
I32: Final = Scalar("i")
I64: Final = Scalar("q")
BOOL: Final = Scalar("?")
UUID: Final = Scalar("16s")
TEXT: Final = TextField()
DATA: Final = DataField()
COPIED: Final = CopiedField()
REST: Final = RestField()
ZEROS: Final = ZerosField()
EVENT: Final = EventField()
EXTENSION: Final = ExtensionField()
KEY: Final = KeyField()
ENTRY: Final = EntryField()
