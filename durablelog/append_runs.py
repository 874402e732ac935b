"""Runs of appends in the packer's queue that belong to one open group, taken in a loop each.

Theory of operation. Where a caller pipelines, or many callers append, nearly all appends are like
the one before. They go to the same segment, plain, or with the next number of the same writer. What
is asked of each here is what can differ between two of them; what holds for the segment, its group
and the frame holds for all. The first that is no part of the run ends it, and `FramePacker` finds
out what becomes of that one.

An append stays in the queue until all of its run are taken: what raises in between, such as a
signal handler, finds it there. One that appends adds to the queue's end meanwhile. Each function
gives how many were taken, and how many bytes of room they took beside what each request counts.

Pure; `room` is what the frame has left, for appends to a group that is open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from durablelog.frame_requests import (
    LARGE_APPEND_BYTES,
    AppendRequest,
    PackedFrame,
    Request,
    next_of,
)
from durablelog.operation_codec import ATTRIBUTE_LENGTH
from durablelog.pending_segment import Event, PendingSegment
from segmentstore.contracts.attributes import (
    ATTRIBUTE_UNSET,
    VALUE_MAX,
    AttributeKey,
    KeyedUpdate,
    UpdateType,
)

RUN_MAX = 128
"""Of one run, so that a short one does not copy a long queue."""
_REPLACE = UpdateType.REPLACE
_ACCUMULATE = UpdateType.ACCUMULATE
_REPLACE_IF_EQUALS = UpdateType.REPLACE_IF_EQUALS


def take_run(
    queue: deque[Request],
    pending: PendingSegment,
    frame: PackedFrame,
    room: int,
    before: AppendRequest,
) -> tuple[int, int]:
    """Take the appends that come next and are like `before`, which was taken."""
    updates, event = before[4], before[5]
    if event is None:
        if updates is None:
            return _take_plain(queue, pending, frame, room)
        return _take_numbered(queue, pending, frame, room, updates)
    if updates is None:
        return _take_events(queue, pending, frame, room, event)
    return 0, 0


def _take_plain(
    queue: deque[Request], pending: PendingSegment, frame: PackedFrame, room: int
) -> tuple[int, int]:
    """Those without attributes. About 0.2 us each."""
    futures, values, parts = frame.futures, frame.values, pending.parts
    assert parts is not None
    segment_id, begin, taken = pending.segment_id, pending.length, 0
    offset, end = begin, begin + room
    for item in next_of(queue, RUN_MAX):
        try:
            other, data, future, expected, updates, event = item  # type: ignore[misc]
        except TypeError:
            break  # It is an OperationRequest.
        size = len(data)
        if (
            other != segment_id
            or updates is not None
            or event is not None
            or (expected is not None and expected != offset)
            or size >= LARGE_APPEND_BYTES
            or offset + size > end
            or future.cancelled()
        ):
            break
        parts.append(data)
        futures.append(future)  # type: ignore[arg-type]
        values.append(offset)
        offset += size
        taken += 1
    pending.length = offset
    _leave(queue, taken)
    return taken, offset - begin


def _take_numbered(
    queue: deque[Request],
    pending: PendingSegment,
    frame: PackedFrame,
    room: int,
    before: Sequence[KeyedUpdate],
) -> tuple[int, int]:
    """Those with a number and a count of the same two attributes as `before`: what
    `PendingSegment.take_next_number` does, for each.
    """
    futures, values, parts = frame.futures, frame.values, pending.parts
    assert parts is not None
    if len(before) != 2:
        return 0, 0
    key, count_key = before[0][0], before[1][0]
    number, count = pending.attributes.get(key), pending.attributes.get(count_key)
    if key == count_key or number is None or count is None or ATTRIBUTE_UNSET in (number, count):
        return 0, 0
    segment_id, offset, taken, used = pending.segment_id, pending.length, 0, 0
    for item in next_of(queue, RUN_MAX):
        try:
            other, data, future, expected, updates, event = item  # type: ignore[misc]
            number_update, count_update = updates  # type: ignore[misc]
            its_key, kind, its_number, condition = number_update
            its_count_key, count_kind, added, _ = count_update
        except (TypeError, ValueError):
            break  # It is an OperationRequest, or has other updates, or none.
        size = len(data)
        need = size + 2 * ATTRIBUTE_LENGTH
        counted = count + added
        if (
            other != segment_id
            or its_key != key
            or its_count_key != count_key
            or event is not None
            or (expected is not None and expected != offset)
            or not ((kind is _REPLACE_IF_EQUALS and condition == number) or kind is _REPLACE)
            or count_kind is not _ACCUMULATE
            or not its_number > ATTRIBUTE_UNSET < counted <= VALUE_MAX
            or size >= LARGE_APPEND_BYTES
            or used + need > room
            or future.cancelled()
        ):
            break
        parts.append(data)
        futures.append(future)  # type: ignore[arg-type]
        values.append(offset)
        number, count = its_number, counted
        offset += size
        used += need
        taken += 1
    if taken:
        pending.length = offset
        _note(pending, {key: number, count_key: count})
        _leave(queue, taken)
    return taken, used


def _take_events(
    queue: deque[Request], pending: PendingSegment, frame: PackedFrame, room: int, before: Event
) -> tuple[int, int]:
    """Events of the session of `before`: what `PendingSegment.take_next_event` does, for each."""
    futures, values, parts = frame.futures, frame.values, pending.parts
    key, _, session = before
    number = pending.attributes.get(key)
    if number is None or number == ATTRIBUTE_UNSET or session.refusal is not None:
        return 0, 0
    assert parts is not None
    segment_id, offset, taken, used = pending.segment_id, pending.length, 0, 0
    for item in next_of(queue, RUN_MAX):
        try:
            other, data, future, expected, updates, event = item  # type: ignore[misc]
            its_key, its_number, its_session = event  # type: ignore[misc]
        except TypeError:
            break  # It is an OperationRequest, or no event.
        size = len(data)
        need = size + ATTRIBUTE_LENGTH
        if (
            other != segment_id
            or its_session is not session
            or its_key != key
            or its_number <= number
            or updates is not None
            or expected is not None
            or size >= LARGE_APPEND_BYTES
            or used + need > room
        ):
            break
        parts.append(data)
        futures.append(future)  # type: ignore[arg-type]
        values.append(offset)
        number = its_number
        offset += size
        used += need
        taken += 1
    if taken:
        pending.length = offset
        _note(pending, {key: number})
        _leave(queue, taken)
    return taken, used


def _note(pending: PendingSegment, values: dict[AttributeKey, int]) -> None:
    pending.attributes.update(values)
    if pending.group_attributes is None:
        pending.group_attributes = values
    else:
        pending.group_attributes.update(values)


def _leave(queue: deque[Request], taken: int) -> None:
    for _ in range(taken):
        queue.popleft()
