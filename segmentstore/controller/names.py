"""Names of streams, segments, transactions and tables, by Pravega's NameUtils. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from segmentstore.controller.refusals import Reason, RefusedRequestError

ROOT_TABLE: Final = "_system/_tables/controller"
"""The table that holds all of the Controller's rows. It serves where this table's container is."""
MARK_PREFIX: Final = "_MARK"
"""Of the stream of a stream's watermarks."""
GROUP_PREFIX: Final = "_RG"
"""Of the stream that holds the state of a reader group."""

_SCOPE_LENGTH_MAX: Final = 255
_NAME_LENGTH_MAX: Final = 255
"""Of a stream with the prefix of an internal one; 250 without."""
_GIVEN_LENGTH_MAX: Final = 250
_GIVEN: Final = re.compile(r"[A-Za-z0-9.\-]+", re.ASCII)
_EPOCH_BITS: Final = 32
_NUMBER_MASK: Final = (1 << _EPOCH_BITS) - 1


class ScopedName(NamedTuple):
    """A stream, a reader group or a table, with its scope."""

    scope: str
    name: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.name}"


def check_scope_name(scope: str) -> str:
    """Return the name; raise RefusedRequestError unless a scope may have it."""
    return _checked(scope, scope.removeprefix("_"), _SCOPE_LENGTH_MAX, "scope")


def check_stream_name(stream: str) -> str:
    """Return the name; raise RefusedRequestError unless a stream may have it.

    Names of internal streams begin with `_`: clients of others create such streams too.
    """
    given = stream.removeprefix("_")
    length_max = _GIVEN_LENGTH_MAX if given == stream else _NAME_LENGTH_MAX
    return _checked(stream, given, length_max, "stream")


def check_given_name(name: str, kind: str) -> str:
    """Return the name; raise RefusedRequestError unless a group or a table may have it."""
    return _checked(name, name, _GIVEN_LENGTH_MAX, kind)


def _checked(name: str, given: str, length_max: int, kind: str) -> str:
    if len(name) > length_max or _GIVEN.fullmatch(given) is None:
        raise RefusedRequestError(
            Reason.BAD_NAME,
            f"{name[:300]!r} is no name of a {kind}: letters, digits, '.' and '-', 1 to "
            f"{length_max} of them",
        )
    return name


def is_internal(stream: str) -> bool:
    """Whether a stream is the Controller's or the clients' own; it has no watermarks."""
    return stream.startswith("_")


def mark_stream(stream: ScopedName) -> ScopedName:
    """Where the watermarks of a stream are."""
    return ScopedName(stream.scope, MARK_PREFIX + stream.name)


def group_stream(group: ScopedName) -> ScopedName:
    """Where the state of a reader group is."""
    return ScopedName(group.scope, GROUP_PREFIX + group.name)


def make_segment_id(number: int, epoch: int) -> int:
    """The id of a stream's segment. `number` is its place in the order of creation."""
    return epoch << _EPOCH_BITS | number


def epoch_of(segment_id: int) -> int:
    """The epoch in which a segment was created."""
    return segment_id >> _EPOCH_BITS


def number_of(segment_id: int) -> int:
    """The place of a segment in the stream's order of creation."""
    return segment_id & _NUMBER_MASK


def segment_name(stream: ScopedName, segment_id: int) -> str:
    """The name that a stream's segment has in the store."""
    return f"{stream}/{number_of(segment_id)}.#epoch.{epoch_of(segment_id)}"


def table_segment_name(table: ScopedName, number: int) -> str:
    """The name of the table segment of one partition of a key-value table."""
    return f"{table}_kvtable/{number}.#epoch.0"


def transaction_segment_name(parent: str, transaction_id: int) -> str:
    """The name of a transaction's segment. Its bytes are merged into `parent`.

    It is in the container of its parent. `transaction_id` has 128 bits.
    """
    return f"{parent}#transaction.{transaction_id:032x}"
