"""Values that the calls on tables take and give, the limits, and how a segment is marked."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

NO_VERSION: Final = -(2**63)
"""In a call: no condition on the key. (Pravega has it as `NO_VERSION`.)"""
NOT_EXISTS: Final = -1
"""In a call: only if the key is absent. (Pravega has it as `NOT_EXISTS`.)"""

KEY_BYTES_MAX: Final = 8192
ENTRY_BYTES_MAX: Final = 1024 * 1024
"""Key and value together."""
FIXED_KEY_BYTES_MAX: Final = 256
BATCH_KEYS_MAX: Final = 16 * 1024
"""Of one call: all of them are checked in one turn of the event loop."""
READ_BYTES_MAX: Final = 16 * 1024 * 1024 - 128 * 1024
"""Of the entries that one call reads by their keys, each as often as it was asked for.

With what the wire protocol adds they fit one of its frames, which has 16 MiB.
"""
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
"""A page ends when it has as much, before its count is reached."""

SEGMENT_TYPE: Final = uuid.UUID(int=(1 << 127) | 9)
"""Attribute of a table, set at its creation alone. (Pravega: `Attributes`, system id 9.)"""
KEY_LENGTH: Final = uuid.UUID(int=(1 << 127) | 12)
"""Attribute of a fixed-key table: the length of all its keys. (Pravega: ATTRIBUTE_ID_LENGTH.)"""
TABLE_SEGMENT: Final = 1
"""Value of SEGMENT_TYPE. A stream segment has none, or 0."""
TABLE_ATTRIBUTES: Final = (SEGMENT_TYPE, KEY_LENGTH)
"""All that `is_table` and `key_length_of` need."""


def is_table(attributes: Mapping[uuid.UUID, int]) -> bool:
    """Whether a segment with these attributes is a table."""
    return attributes.get(SEGMENT_TYPE, 0) == TABLE_SEGMENT


def key_length_of(attributes: Mapping[uuid.UUID, int]) -> int:
    """Of a table with these attributes; 0 of a hash table."""
    return attributes.get(KEY_LENGTH, 0)


class VersionedKey(NamedTuple):
    """A key; in a call with the version that it is expected to have."""

    key: bytes
    version: int = NO_VERSION


class TableEntry(NamedTuple):
    """A key with its value; in a call with the version that the key is expected to have."""

    key: bytes
    version: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """A table as acknowledged. Offsets and lengths are of its segment, in bytes."""

    name: str
    start_offset: int
    length: int
    entry_count: int
    """Number of keys."""
    key_length: int
    """Of a fixed-key table; 0: a hash table."""


class KeyPage(NamedTuple):
    """Keys by their order in the table."""

    keys: list[VersionedKey]
    """Empty: that was all."""
    token: bytes
    """Where to go on."""


class EntryPage(NamedTuple):
    """Entries by the order of their keys in the table."""

    entries: list[TableEntry]
    """Empty: that was all."""
    token: bytes
    """Where to go on."""


class DeltaPage(NamedTuple):
    """What was written from a position on."""

    entries: list[TableEntry]
    """The newest of each key in the page, without those that the page removes again."""
    should_clear: bool
    """The position was compacted away: only what follows counts."""
    reached_end: bool
    """Nothing more was acknowledged."""
    position: int
    """Where to go on."""
