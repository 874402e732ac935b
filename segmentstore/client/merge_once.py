"""A merge that is an event of a writer: repeated after a lost connection, it is done once."""

from __future__ import annotations

import uuid
from contextlib import suppress

from segmentstore.contracts.attributes import AttributeUpdate, UpdateType
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    SegmentError,
    SegmentNotFoundError,
)
from segmentstore.store_api import StoreApi


async def merge_event(
    store: StoreApi, target: str, source: str, writer_id: uuid.UUID, event_number: int
) -> int | None:
    """Merge a source into a target as an event of a writer on the target; both or neither is done.

    Gives the offset at which the source begins, or None if the target has the event already,
    durably, whatever became of the source. Raises as `merge`.
    """
    update = AttributeUpdate(writer_id, UpdateType.REPLACE_IF_GREATER, event_number)
    try:
        return (await store.merge(target, source, [update])).offset
    except (SegmentNotFoundError, BadAttributeUpdateError):
        # Perhaps it was begun on a connection that broke, and is on its way to the log. What was
        # accepted before an append is durable when that one is.
        with suppress(SegmentError):
            await store.append(target, b"")
        if not await _has_event(store, target, writer_id, event_number):
            raise
    return None


async def _has_event(store: StoreApi, target: str, writer_id: uuid.UUID, number: int) -> bool:
    try:
        values = await store.get_attributes(target, [writer_id])
    except SegmentNotFoundError:
        return False
    return values.get(writer_id, -1) >= number
