"""Requests in, numbered operations packed into frames out. The hot path of every append.

Theory of operation. Appends that wait are gathered by segment: all appends of one segment that
share a frame become *one* operation. Segments are byte streams, so a run of plain appends and one
append of their concatenation are the same. And the frame decides together whether they are durable.
Anything else first closes the groups that are open, so the order of operations on a segment is the
order of the calls. Groups never leave their frame, so no crash can show a later call of a caller
without an earlier one.

Invariant: the open groups plus what the builder holds fit the current frame. An append that does
not fit begins a new frame; one that fits no frame is an operation of its own that spans several. A
large append is an operation of its own as well: gathering it would only copy it.

A request may need attributes or chunks that memory lacks. It stays in the queue then, and so does
all behind it, until they are in memory: `lacks` says which.

Pure: futures are carried, and only failed, never awaited.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from durablelog.append_frames import plain_entry
from durablelog.append_runs import take_run
from durablelog.data_frame import ENTRY_HEADER_LENGTH
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.frame_requests import (
    LARGE_APPEND_BYTES,
    REQUEST_BYTES,
    AppendRequest,
    OperationRequest,
    PackedFrame,
    Request,
    next_of,
    refuse,
)
from durablelog.metadata_needs import AttributeNeed, Need, keys_of
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import (
    APPEND_HEAD_LENGTH,
    ATTRIBUTE_LENGTH,
    encode_append_head,
    encode_operation,
    encoded_length,
)
from durablelog.operations import AnyCheckpoint, AppendOperation, Operation
from durablelog.pending_segment import PendingSegment
from segmentstore.contracts.archive_metadata import OffloadConflictError
from segmentstore.contracts.attribute_table import UnknownAttributeError
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentError,
    SegmentNotFoundError,
    SegmentSealedError,
)

REQUESTS_AHEAD = 1024
"""Requests whose missing metadata are read together."""
_GROUP_OVERHEAD = ENTRY_HEADER_LENGTH + APPEND_HEAD_LENGTH


def _never(_request: AppendRequest) -> bool:
    return False


class FramePacker:
    """Packs what waits. One per container."""

    def __init__(
        self,
        updater: MetadataUpdater,
        payload_bytes_max: int,
        defer: Callable[[AppendRequest], bool] = _never,
        placed_min: int | None = None,
    ) -> None:
        """`defer` takes an append to a segment that is not in memory, if there is one; or says
        False. Frames know the places of appends of `placed_min` bytes and more; None: of none.
        """
        self._updater = updater
        self._defer = defer
        self._placed_min = sys.maxsize if placed_min is None else placed_min
        self._builder = DataFrameBuilder(payload_bytes_max)
        self._room_of_empty = self._builder.room + ENTRY_HEADER_LENGTH
        self._room = self._room_of_empty
        """Payload bytes left in the current frame behind the builder's entries and the open
        groups.
        """
        self._groups: list[PendingSegment] = []
        """Segments with appends gathered for the current frame, in the order of their first one."""
        self._frame = PackedFrame()
        self.full: list[PackedFrame] = []
        """The oldest first. They stay until the caller has them on their way, and removes them."""
        self._timestamp_ms = 0
        self._serving: Request | None = None
        """The request last checked."""
        self.stalled = False
        """Whether the head of the queue that was packed last needs what memory lacks."""
        self.bytes_taken = 0
        """Bytes of throttled requests taken from the queue so far; the processor's queue
        accounting.
        """

    @property
    def idle(self) -> bool:
        """True if nothing waits here to be shipped."""
        frame = self._frame
        return not (
            self._groups
            or self.full
            or frame.operations
            or frame.futures
            or self._room != self._room_of_empty
        )

    def pack(self, queue: deque[Request], timestamp_ms: int, frames_max: int) -> None:
        """Take requests until the queue is empty or `frames_max` frames are `full`.

        Refused requests have their futures failed; nothing else is changed by them. It may end
        early: `stalled`.
        """
        self._timestamp_ms = timestamp_ms
        self.stalled = False
        while queue and len(self.full) < frames_max and not self.stalled:
            head = queue[0]
            if isinstance(head, tuple):
                self._pack_appends(queue, frames_max)
            elif not head.future.cancelled() and self._updater.unknown(head.operation):
                self.stalled = True
            else:
                self._serving = head
                queue.popleft()
                self._pack_operation(head)

    def lacks(self, queue: deque[Request]) -> list[Need]:
        """What its next requests need of what memory has in part, as far as it is not there."""
        needs: dict[Need, None] = {}
        for request in next_of(queue, REQUESTS_AHEAD):
            if isinstance(request, tuple):
                needs.update(dict.fromkeys(self._lacks_for(request)))
            else:
                needs.update(dict.fromkeys(self._updater.unknown(request.operation)))
        return list(needs)

    def _lacks_for(self, item: AppendRequest) -> Iterator[Need]:
        segment_id, _, _, _, updates, event = item
        if segment_id not in self._updater.metadata.partial:
            return
        pending = self._updater.find(segment_id)
        if pending is None or pending.base is None:
            return
        keys = keys_of(updates or ())
        if event is not None:
            keys.append(event[0])
        for key in keys:
            if key not in pending.attributes and not pending.base.attributes.knows(key):
                yield AttributeNeed(segment_id, key)

    def seal(self) -> PackedFrame | None:
        """End the current frame, which is the last one in `full` then; None if it is empty.

        Its payload is empty if it only resolves futures.
        """
        self._close_groups()
        payload = self._builder.seal()
        frame = self._frame
        if payload is None and not frame.futures:
            return None
        frame.payload = payload or []
        frame.length = self._room_of_empty - self._room if payload else 0
        self._room = self._room_of_empty
        self.full.append(frame)
        self._frame = PackedFrame()
        return frame

    def add_waiter(self, future: asyncio.Future[object]) -> None:
        """Resolve it with None once all that was packed by now is durable."""
        self._frame.futures.append(future)
        self._frame.values.append(None)

    def pack_checkpoint(self, operation: AnyCheckpoint) -> None:
        """A checkpoint in `full` frames of its own; the packer is idle, and nothing in flight."""
        assert self.idle
        self._add_record(operation, encode_operation(operation))
        self.seal()
        self.full[0].starts_checkpoint = True

    def abandon(self) -> list[asyncio.Future[object]]:
        """Give back the futures of everything not shipped; the packer is finished."""
        futures = [future for frame in (*self.full, self._frame) for future in frame.futures]
        serving = self._serving
        if serving is not None:
            # Matters only after a bug in the middle of packing: it is in no queue and in no frame.
            future = serving[2] if isinstance(serving, tuple) else serving.future
            futures.append(future)  # type: ignore[arg-type]
        self._groups.clear()
        self.full.clear()
        self._frame = PackedFrame()
        return futures

    # --- appends ----------------------------------------------------------------------------------

    def _pack_appends(self, queue: deque[Request], frames_max: int) -> None:
        pendings = self._updater.pending
        groups = self._groups
        futures, values = self._frame.futures, self._frame.values
        room = self._room
        taken = 0
        popleft, find = queue.popleft, self._updater.find
        last: PendingSegment | None = None
        try:
            while queue:
                item = self._serving = queue[0]
                if not isinstance(item, tuple):
                    break
                segment_id, data, future, expected, updates, event = item
                pending = pendings.get(segment_id) or find(segment_id)
                size = len(data)
                if (
                    pending is None
                    or pending.sealed
                    or pending.removed
                    or (event is None and future.cancelled())
                ):
                    popleft()
                    taken += size + REQUEST_BYTES
                    self._refuse(pending, item)
                    continue
                parts = pending.parts
                need = size if parts is not None else size + _GROUP_OVERHEAD
                if updates is not None:
                    need += ATTRIBUTE_LENGTH * len(updates)
                if event is not None:
                    need += ATTRIBUTE_LENGTH
                if need > room:
                    self._room = room
                    if room == self._room_of_empty:
                        popleft()
                        taken += size + REQUEST_BYTES
                        self._append_alone(pending, item)
                    elif need <= self._room_of_empty:
                        self._end_frame()
                    else:
                        self._close_groups()
                        popleft()
                        taken += size + REQUEST_BYTES
                        self._append_alone(pending, item)
                    room = self._room
                    futures, values = self._frame.futures, self._frame.values
                    if len(self.full) >= frames_max:
                        break
                    continue
                popleft()
                taken += size + REQUEST_BYTES
                if size >= LARGE_APPEND_BYTES:
                    # Gathering would copy it; what it costs as an operation of its own is nothing
                    # beside its bytes.
                    self._room = room
                    self._close_groups()
                    self._append_alone(pending, item)
                    room = self._room
                    # It may have ended the frame: its group had no entry yet.
                    futures, values = self._frame.futures, self._frame.values
                    if len(self.full) >= frames_max:
                        break
                    continue
                offset = pending.length
                # Nearly all of a pipeline agrees with what is on its way before it.
                if updates is not None:
                    at_end = expected is None or expected == offset
                    agrees = event is None and at_end and pending.take_next_number(updates)
                elif event is not None:
                    agrees = expected is None and pending.take_next_event(event)
                else:
                    agrees = expected is None or expected == offset
                if not (agrees or self._check(pending, item)):
                    continue
                if parts is None:
                    pending.parts = [data]
                    pending.group_offset = offset
                    groups.append(pending)
                else:
                    parts.append(data)
                pending.length = offset + size
                room -= need
                # A future of int | None is resolved with those alone.
                futures.append(future)  # type: ignore[arg-type]
                values.append(offset)
                if pending is not last:
                    last = pending
                elif queue:
                    end = pending.length
                    appends, used = take_run(queue, pending, self._frame, room, item)
                    room -= used
                    taken += pending.length - end + appends * REQUEST_BYTES
                    if not appends:
                        last = None
        except UnknownAttributeError:
            # Nothing of it was taken.
            head = self._serving
            assert isinstance(head, tuple), head
            queue.appendleft(head)
            taken -= len(head[1]) + REQUEST_BYTES
            self.stalled = True
        self._room = room
        self.bytes_taken += taken

    def _check(self, pending: PendingSegment, item: AppendRequest) -> bool:
        """Whether a conditional append goes in. Then its attribute values are pending from here on,
        and belong to the open group.

        Attributes before the offset.
        """
        _, _, future, expected, updates, event = item
        if event is not None and event[2].refusal is not None:
            refuse(item, event[2].refusal)
            return False
        try:
            attributes, growth = pending.resolve(updates) if updates else ({}, 0)
            if event is not None:
                key, number, _ = event
                last = pending.attributes.get(key)
                if last is None and pending.base is not None:
                    last = pending.base.attributes.get(key)
                if last is not None and number <= last:
                    # The event it repeats may still be on its way to the log: acknowledged with or
                    # after it.
                    self.add_waiter(future)  # type: ignore[arg-type]
                    return False
                if updates is not None:
                    last = attributes.get(key, last)
                if last is None or last == ATTRIBUTE_UNSET:
                    growth += 1
                attributes[key] = number
            if growth > 0:
                self._updater.check_room(pending, growth)
            if expected is not None and expected != pending.length:
                raise BadOffsetError(pending.name, expected, pending.length)
        except SegmentError as error:
            refuse(item, error)
            return False
        if attributes:
            pending.attributes.update(attributes)
            pending.attribute_count += growth
            if pending.group_attributes is None:
                pending.group_attributes = attributes
            else:
                pending.group_attributes.update(attributes)
        return True

    def _append_alone(self, pending: PendingSegment, item: AppendRequest) -> None:
        """An append as an operation of its own: it is large, or fits no frame together with
        anything.
        """
        segment_id, data, future, *_ = item
        if not self._check(pending, item):
            return
        attributes, pending.group_attributes = pending.group_attributes, None
        operation = AppendOperation(segment_id, pending.length, data, attributes)
        operation.sequence_number = self._updater.take_sequence_numbers()
        operation.timestamp_ms = self._timestamp_ms
        pending.length += len(data)
        pending.in_flight += 1
        self._add_record(operation, [encode_append_head(operation), data])
        frame = self._frame if self._frame.operations else self.full[-1]
        frame.futures.append(future)  # type: ignore[arg-type]
        frame.values.append(operation.offset)

    def _refuse(self, pending: PendingSegment | None, item: AppendRequest) -> None:
        segment_id, _, future, _, _, event = item
        if pending is None and not (event is None and future.cancelled()) and self._defer(item):
            return
        if pending is None:
            detail = "no segment of this id is left"
            refuse(item, SegmentNotFoundError(f"#{segment_id}", detail))
        elif pending.removed:
            detail = f"the segment of id {segment_id} is deleted or merged away"
            refuse(item, SegmentNotFoundError(pending.name, detail))
        else:
            refuse(item, SegmentSealedError(pending.name))

    def _close_groups(self) -> None:
        """Turn the open groups into operations, in the order in which they were opened."""
        builder, operations, timestamp_ms = (
            self._builder,
            self._frame.operations,
            self._timestamp_ms,
        )
        sequence_number = self._updater.take_sequence_numbers(len(self._groups))
        for pending in self._groups:
            parts = pending.parts
            assert parts is not None
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            attributes = pending.group_attributes
            operation = AppendOperation(pending.segment_id, pending.group_offset, data, attributes)
            operation.sequence_number = sequence_number
            operation.timestamp_ms = timestamp_ms
            sequence_number += 1
            size = len(data)
            if attributes:
                head = encode_append_head(operation)
                builder.add((head, data), len(head) + size)
            else:
                builder.add_entry(plain_entry(operation), data)
            operations.append(operation)
            if size >= self._placed_min:
                self._frame.placed.append((operation, builder.used - size, size))
            pending.parts = pending.group_attributes = None
            pending.in_flight += 1
        self._groups.clear()

    def _end_frame(self) -> None:
        frame = self.seal()
        assert frame is not None

    # --- everything else --------------------------------------------------------------------------

    def _pack_operation(self, request: OperationRequest) -> None:
        self.bytes_taken += request.queued_bytes
        future = request.future
        if future.cancelled():
            return
        self._close_groups()
        try:
            value = self._updater.accept(request.operation, self._timestamp_ms)
        except (SegmentError, OffloadConflictError) as error:
            future.set_exception(error)
            return
        self._add_record(request.operation, encode_operation(request.operation))
        frame = self._frame if self._frame.operations else self.full[-1]
        frame.futures.append(future)
        frame.values.append(value)

    def _add_record(self, operation: Operation, parts: Sequence[Buffer]) -> None:
        """Put one record into the builder and the operation into the frame in which the record
        ends.
        """
        builder = self._builder
        builder.add(parts, encoded_length(parts))
        payloads = builder.take_full()
        for payload in payloads:
            frame = self._frame
            frame.payload = payload
            frame.length = encoded_length(payload)
            self.full.append(frame)
            self._frame = PackedFrame()
        if isinstance(operation, AppendOperation):
            self._note_places(operation, self.full[len(self.full) - len(payloads) :], parts)
        self._room = builder.room + ENTRY_HEADER_LENGTH
        ends_in_full = bool(payloads) and self._room == self._room_of_empty
        (self.full[-1] if ends_in_full else self._frame).operations.append(operation)

    def _note_places(
        self, append: AppendOperation, finished: Sequence[PackedFrame], parts: Sequence[Buffer]
    ) -> None:
        size = len(append.data)
        if size < self._placed_min:
            return
        if not finished:
            self._frame.placed.append((append, self._builder.used - size, size))
            return
        frames = (*finished, self._frame)
        head = encoded_length(parts) - size
        for number, position, length in self._builder.stretches:
            before = min(head, length)
            head -= before
            if length > before:
                frames[number].placed.append((append, position + before, length - before))
