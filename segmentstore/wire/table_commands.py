"""Commands about table segments: keys with versions.

Fields are in the order of the wire. A default is what the wire means by a missing field.
`token` is the delegation token, empty without authorization.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NO_VERSION: Final = -(2**63)
"""As the version of a key in a request: whatever version it has, or none."""
NOT_EXISTS: Final = -1
"""In a request: only if the key is absent. In a reply: it is absent."""
NO_TABLE_OFFSET: Final = -1
"""The request does not depend on the length of the table segment."""


class TableKey(NamedTuple):
    """A key, and the version it has or is expected to have. An empty key has NO_VERSION."""

    key: bytes
    version: int


TableEntry = tuple[TableKey, bytes]
"""A key and its value."""


class GetTableSegmentInfo(NamedTuple):
    """Ask for the size of a table."""

    request_id: int
    segment: str
    token: str


class TableSegmentInfo(NamedTuple):
    """The size of a table, and the length of its keys; 0: they differ (a hash table)."""

    request_id: int
    segment: str
    start_offset: int
    length: int
    entry_count: int
    key_length: int


class CreateTableSegment(NamedTuple):
    """Create a table; `key_length` 0: a hash table. Answered by SegmentCreated.

    `sorted` has no meaning since tables of fixed key length took its place.
    """

    request_id: int
    segment: str
    token: str
    sorted: bool = False
    key_length: int = 0
    rollover_bytes: int = 0


class DeleteTableSegment(NamedTuple):
    """Delete a table. Answered by SegmentDeleted."""

    request_id: int
    segment: str
    must_be_empty: bool
    token: str


class UpdateTableEntries(NamedTuple):
    """Set values: all of them, or none if a version or the table's length is not the expected."""

    request_id: int
    segment: str
    token: str
    entries: tuple[TableEntry, ...]
    table_offset: int = NO_TABLE_OFFSET


class TableEntriesUpdated(NamedTuple):
    """The new versions, in the order of the request."""

    request_id: int
    versions: tuple[int, ...]


class RemoveTableKeys(NamedTuple):
    """Remove keys: all of them, or none if a version or the table's length is not the expected."""

    request_id: int
    segment: str
    token: str
    keys: tuple[TableKey, ...]
    table_offset: int = NO_TABLE_OFFSET


class TableKeysRemoved(NamedTuple):
    """The keys were removed."""

    request_id: int
    segment: str


class ReadTable(NamedTuple):
    """Ask for the values of keys."""

    request_id: int
    segment: str
    token: str
    keys: tuple[TableKey, ...]


class TableRead(NamedTuple):
    """An entry for each key asked for, in that order; NOT_EXISTS and no value if it is absent."""

    request_id: int
    segment: str
    entries: tuple[TableEntry, ...]


class ReadTableKeys(NamedTuple):
    """Ask for a page of keys: behind a continuation, or of a range with both ends; empty is open.

    `count_max` is a suggestion. `prefix` is always empty, and no server heeds it.
    """

    request_id: int
    segment: str
    token: str
    count_max: int
    continuation: bytes = b""
    prefix: bytes = b""
    from_key: bytes = b""
    to_key: bytes = b""


class TableKeysRead(NamedTuple):
    """A page of keys, and where the next one begins."""

    request_id: int
    segment: str
    keys: tuple[TableKey, ...]
    continuation: bytes


class ReadTableEntries(NamedTuple):
    """Ask for a page of entries; fields as of ReadTableKeys."""

    request_id: int
    segment: str
    token: str
    count_max: int
    continuation: bytes = b""
    prefix: bytes = b""
    from_key: bytes = b""
    to_key: bytes = b""


class TableEntriesRead(NamedTuple):
    """A page of entries, and where the next one begins."""

    request_id: int
    segment: str
    entries: tuple[TableEntry, ...]
    continuation: bytes


class ReadTableEntriesDelta(NamedTuple):
    """Ask for the changes of a table from a position on."""

    request_id: int
    segment: str
    token: str
    from_position: int
    count_max: int


class TableEntriesDeltaRead(NamedTuple):
    """Changes in their order. `should_clear`: the reader forgets all that it has before them."""

    request_id: int
    segment: str
    entries: tuple[TableEntry, ...]
    should_clear: bool
    reached_end: bool
    last_position: int
