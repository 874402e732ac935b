"""Values of the store's API in commands of our own, and back. Pure; both sides use it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime

from segmentstore.contracts.attributes import (
    ATTRIBUTE_UNSET,
    AttributeUpdate,
    KeyedUpdate,
    UpdateType,
)
from segmentstore.contracts.segments import SegmentInfo
from segmentstore.wire.errors import WireError
from segmentstore.wire.segment_commands import ConditionalAttributeUpdate
from segmentstore.wire.store_commands import SegmentEntry, Updates


def update_entries(updates: Iterable[KeyedUpdate]) -> Updates:
    """Checked updates, as commands have them."""
    return tuple(
        ConditionalAttributeUpdate(
            key, update_type - 1, value, ATTRIBUTE_UNSET if expected is None else expected
        )
        for key, update_type, value, expected in updates
    )


def attribute_updates(entries: Updates) -> list[AttributeUpdate]:
    """The updates of a command. Raises WireError for a type that is none."""
    return [
        AttributeUpdate(
            uuid.UUID(bytes=key),
            _update_type(code),
            value,
            None if expected == ATTRIBUTE_UNSET else expected,
        )
        for key, code, value, expected in entries
    ]


def segment_entry(info: SegmentInfo) -> SegmentEntry:
    """A segment's properties, as a command has them."""
    return SegmentEntry(
        info.name,
        info.segment_id,
        info.start_offset,
        info.length,
        info.storage_length,
        round(info.created.timestamp() * 1000),
        round(info.last_modified.timestamp() * 1000),
        info.container_id,
        info.sealed,
        info.sealed_in_storage,
    )


def segment_info(entry: SegmentEntry) -> SegmentInfo:
    """The properties of a command. Raises WireError for a time that is none."""
    return SegmentInfo(
        name=entry.name,
        segment_id=entry.segment_id,
        start_offset=entry.start_offset,
        length=entry.length,
        storage_length=entry.storage_length,
        sealed=entry.sealed,
        sealed_in_storage=entry.sealed_in_storage,
        created=_time(entry.created_ms),
        last_modified=_time(entry.last_modified_ms),
        container_id=entry.container_id,
    )


def _update_type(code: int) -> UpdateType:
    try:
        return UpdateType(code + 1)
    except ValueError:
        raise WireError(f"an update of an attribute of type {code}") from None


def _time(time_ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError) as error:
        raise WireError(f"a time of {time_ms} ms: {error}") from None
