"""What the calls on tables accept: checked here, at the door, and nowhere behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from segmentstore.contracts.errors import AppendTooLargeError, InvalidArgumentError
from segmentstore.tables.errors import WrongKeyLengthError
from segmentstore.tables.table_records import copy_length
from segmentstore.tables.table_types import (
    BATCH_KEYS_MAX,
    ENTRY_BYTES_MAX,
    FIXED_KEY_BYTES_MAX,
    KEY_BYTES_MAX,
    NO_VERSION,
    NOT_EXISTS,
    TableEntry,
    VersionedKey,
)

_VERSION_MAX: Final = 2**63 - 1


def checked_entries(entries: Sequence[object], append_bytes_max: int) -> list[TableEntry]:
    """Raises InvalidArgumentError, AppendTooLargeError."""
    checked = []
    for entry in _sequence("entries", entries):
        if not isinstance(entry, tuple) or len(entry) != 3:
            raise InvalidArgumentError("entries", entry, "each is (key, version, value)")
        key, value = _checked_bytes("key", entry[0]), _checked_bytes("value", entry[2])
        version = _checked_version(entry[1])
        if len(key) + len(value) > ENTRY_BYTES_MAX:
            words = f"key and value together are at most {ENTRY_BYTES_MAX} bytes"
            raise InvalidArgumentError("value", f"{len(value)} bytes", words)
        if (length := copy_length(key, len(value))) > append_bytes_max:
            # Compaction could not copy it.
            raise AppendTooLargeError(length, append_bytes_max)
        checked.append(TableEntry(key, version, value))
    return checked


def checked_keys(keys: Sequence[object]) -> list[VersionedKey]:
    """Raises InvalidArgumentError."""
    checked = []
    for each in _sequence("keys", keys):
        if not isinstance(each, tuple) or len(each) != 2:
            raise InvalidArgumentError("keys", each, "each is (key, version)")
        checked.append(VersionedKey(_checked_bytes("key", each[0]), _checked_version(each[1])))
    return checked


def checked_plain_keys(keys: Sequence[object]) -> list[bytes]:
    """Raises InvalidArgumentError."""
    return [_checked_bytes("key", key) for key in _sequence("keys", keys)]


def check_key_lengths(name: str, lengths: Sequence[int], key_length: int) -> None:
    """Raise WrongKeyLengthError if the table does not take a key of such a length."""
    low, high = (key_length, key_length) if key_length else (1, KEY_BYTES_MAX)
    for length in lengths:
        if not low <= length <= high:
            raise WrongKeyLengthError(name, length, low, high)


def check_key_length(key_length: object) -> None:
    """Raise InvalidArgumentError unless it is one of a table."""
    if type(key_length) is not int or not 0 <= key_length <= FIXED_KEY_BYTES_MAX:
        words = f"0 for a hash table, or 1 to {FIXED_KEY_BYTES_MAX}"
        raise InvalidArgumentError("key_length", key_length, words)


def check_limit(limit: object) -> None:
    """Raise InvalidArgumentError unless it is a count of a page."""
    if type(limit) is not int or limit < 1:
        raise InvalidArgumentError("limit", limit, "it is a positive whole number")


def _sequence(argument: str, values: Sequence[object]) -> Sequence[object]:
    if isinstance(values, bytes | str):
        raise InvalidArgumentError(argument, type(values).__name__, "it is a sequence")
    try:
        checked = tuple(values)
    except TypeError:
        raise InvalidArgumentError(argument, values, "it is a sequence") from None
    if len(checked) > BATCH_KEYS_MAX:
        raise InvalidArgumentError(argument, len(checked), f"at most {BATCH_KEYS_MAX} in one call")
    return checked


def _checked_bytes(argument: str, value: object) -> bytes:
    if type(value) is not bytes:
        raise InvalidArgumentError(argument, type(value).__name__, "it is bytes")
    return value


def _checked_version(version: object) -> int:
    if type(version) is not int or not (
        version in (NO_VERSION, NOT_EXISTS) or 0 <= version <= _VERSION_MAX
    ):
        words = "it is NO_VERSION, NOT_EXISTS or a version"
        raise InvalidArgumentError("version", version, words)
    return version
