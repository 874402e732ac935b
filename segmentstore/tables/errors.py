"""Errors of tables. Each says in its last line whose move is next."""

from __future__ import annotations

from segmentstore.contracts.errors import SegmentError


class NotATableError(SegmentError):
    """The segment is no table: it was created as a stream segment.

    The caller's move: use another name, or the calls for segments.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, f"segment {name!r} is no table")


class BadKeyVersionError(SegmentError):
    """A key has another version than the call expects; nothing of its batch was done.

    The caller's move: read the key and decide. `expected` may be NOT_EXISTS; `actual` is the
    version that the key has.
    """

    def __init__(self, name: str, key: bytes, expected: int, actual: int) -> None:
        wanted = "absent" if expected < 0 else f"at version {expected}"
        super().__init__(
            name, f"table {name!r}: key {_shown(key)} is at version {actual}, not {wanted}"
        )
        self.key = key
        self.expected = expected
        self.actual = actual


class KeyNotFoundError(SegmentError):
    """A key is absent where the call expects a version; nothing of its batch was done.

    The caller's move: expect NOT_EXISTS, or leave it.
    """

    def __init__(self, name: str, key: bytes, expected: int) -> None:
        super().__init__(
            name, f"table {name!r}: key {_shown(key)} is absent, not at version {expected}"
        )
        self.key = key
        self.expected = expected


class TableNotEmptyError(SegmentError):
    """The table has keys, and was to be deleted only without any; it was not.

    The caller's move: remove the keys, or delete it with them.
    """

    def __init__(self, name: str, entry_count: int) -> None:
        super().__init__(name, f"table {name!r} has {entry_count} keys")
        self.entry_count = entry_count


class WrongKeyLengthError(SegmentError):
    """A key is of a length that the table does not take; nothing of its batch was done.

    The caller's move: a key of `low` to `high` bytes.
    """

    def __init__(self, name: str, length: int, low: int, high: int) -> None:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        super().__init__(name, f"table {name!r}: a key of {length} bytes, where it takes {wanted}")
        self.length = length
        self.low = low
        self.high = high


class UnsupportedTableOperationError(SegmentError):
    """This kind of table has no such operation; nothing was done. The caller's move."""

    def __init__(self, name: str, operation: str, kind: str) -> None:
        super().__init__(name, f"table {name!r}: a {kind} has no {operation}")
        self.operation = operation
        self.kind = kind


def _shown(key: bytes) -> str:
    return repr(key if len(key) <= 40 else key[:40] + b"...")
