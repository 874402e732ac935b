"""What the metadata know of a sealed part of the log that is in the archive, or on its way there.

PIP-17's offload context, with what a search by operation or time needs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class OffloadState(enum.IntEnum):
    """In this order, each by an operation of its own; stored, never renumbered."""

    ATTEMPT = 1
    """An attempt was recorded: its objects may be there in part, and count for nothing."""
    COMPLETE = 2
    """The archive has all of it."""
    HOT_DELETED = 3
    """The log may delete its own copy, or has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPart:
    """One part of a container's log."""

    number: int
    """As the log counts its parts."""
    ledger_id: int
    uid: bytes
    """16 bytes: the latest attempt, part of the names of its objects."""
    state: OffloadState
    entries: int
    length: int
    """Bytes of its entries."""
    first_sequence: int
    """Of the first operation that ends in it."""
    last_sequence: int
    """Of the last one."""
    first_ms: int
    """Time stamp of the first of these operations, milliseconds since 1970 UTC."""
    last_ms: int
    """The highest time stamp of these operations: no part before has a later one."""
    checkpoint_sequence: int = 0
    """Of the newest checkpoint that begins in it; 0 if there is none."""
    checkpoint_entry: int = 0
    """The entry that begins with that checkpoint."""
    offloaded_ms: int = 0
    """When it became complete; 0 before."""
