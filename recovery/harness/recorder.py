"""Recorder: a store as one client sees it, that writes into the history what was asked and what was
answered.

Rules of this file:

- a call is in the history, with its stamp, before the store is asked. Its end is stamped when the
  answer is there, before the client goes on. So a call that ended before another began came first,
  by these stamps and in truth;
- REFUSED is said only of what provably had no effect; whatever is in doubt is UNKNOWN (the class of
  the error is kept, for checkers who know more);
- a process that dies leaves its calls without an end: no `finally` here ends one;
- an unforeseen error is raised to the client and kept in `unforeseen`, for clients that ignore it;
- appending costs a few microseconds over the store's own, and no task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from recovery.harness.history import Call, CallKind, CallOutcome, History, Update
from recovery.harness.records import append_record, event_record
from segmentstore.contracts.attributes import AttributeUpdate, UpdateType
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    AppendTooLargeError,
    ContainerStoppedError,
    DataCorruptionError,
    InvalidArgumentError,
    InvalidNameError,
    NotPrimaryError,
    SegmentError,
    SegmentNotFoundError,
    TierUnavailableError,
)
from segmentstore.contracts.segments import Merged, SegmentInfo

if TYPE_CHECKING:
    from segmentstore.store_api import StoreApi, StoreReader, StoreWriter

T = TypeVar("T")

Listener = Callable[[str, Call], None]
"""Called with "begun" before the store is asked and "ended" once the answer is written down."""

_DEFINITE: Final = (SegmentError, InvalidNameError, AppendTooLargeError, InvalidArgumentError)
"""Refusals that by their meaning had no effect."""
_UNCERTAIN: Final = (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
    DataCorruptionError,
)
"""Foreseen too, but a change they answer may be there."""
PIECE_BYTES_MAX: Final = 1 << 20
"""Of a following reader, where it is not known better."""
_HARMLESS: Final = (CallKind.READ, CallKind.INFO, CallKind.ATTRIBUTES)
"""Kinds that change nothing: no refusal of them leaves a doubt."""


def classify(kind: CallKind, error: BaseException, *, at_once: bool = False) -> CallOutcome | None:
    """What an error means for a call; None if it is unforeseen.

    `at_once`: an append's answer when it was made.
    """
    if isinstance(error, asyncio.CancelledError):
        return CallOutcome.UNKNOWN
    if not isinstance(error, _DEFINITE + _UNCERTAIN):
        return None
    if kind in _HARMLESS:
        return CallOutcome.REFUSED
    if kind is CallKind.CREATE and isinstance(error, SegmentNotFoundError):
        # It was created, and deleted by another client before its creator could check.
        return CallOutcome.UNKNOWN
    if isinstance(error, _DEFINITE) or (at_once and isinstance(error, TierUnavailableError)):
        # The queue was full: an append that waits can no more end so.
        return CallOutcome.REFUSED
    return CallOutcome.UNKNOWN


class RecordedStore:
    """One client's view of an open store in process run number `life`; its methods are the store's,
    and raise what these raise.
    """

    def __init__(
        self,
        store: StoreApi,
        history: History,
        process_run: int,
        client: str,
        listener: Listener | None = None,
        piece_bytes: int = PIECE_BYTES_MAX,
    ) -> None:
        """`piece_bytes`: a following reader gives at most so many at once."""
        self.store = store
        self.piece_bytes = piece_bytes
        self.history = history
        self.process_run = process_run
        self.client = client
        self.calls_begun = 0
        self.unforeseen: list[BaseException] = []
        self._listener = listener
        self._on_their_way = 0
        """Appends not yet answered."""
        self._settled: asyncio.Future[None] | None = None
        """Resolved when none is on its way any more, for those who wait for that."""

    def use(self, store: StoreApi, piece_bytes: int) -> None:
        """Go on with the same store by another way to it."""
        self.store, self.piece_bytes = store, piece_bytes

    # --- appends ----------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        lengths: Sequence[int],
        *,
        expected: int | None = None,
        updates: Sequence[Update] = (),
    ) -> asyncio.Future[int]:
        """Append records with so many bytes of filler each: one, or else an atomic batch.

        Enqueued by the call itself.
        """
        history = self.history
        number = len(history.calls)
        history.stamp = stamp = history.stamp + 1
        items = None
        if len(lengths) == 1:
            data = append_record(number, 0, lengths[0])
        else:
            items = [append_record(number, item, length) for item, length in enumerate(lengths)]
            data = b"".join(items)
        call = Call(
            number,
            self.process_run,
            self.client,
            CallKind.APPEND,
            name,
            stamp,
            tuple(lengths),
            len(data),
            expected,
            tuple(updates),
        )
        history.calls.append(call)
        self.calls_begun += 1
        if self._listener is not None:
            self._listener("begun", call)
        changes = _attributes(updates) if updates else ()
        if items is None:
            future = self.store.append(name, data, expected, changes)
        else:
            future = self.store.append_batch(name, items, expected, changes)
        self.watch(call, future)
        return future

    async def writer(self, name: str, number: int) -> RecordedWriter:
        """An exactly-once session of writer `number`, open.

        Raises what opening it raises; that is no call.
        """
        session = await self.store.writer(name, UUID(int=number)).open()
        return RecordedWriter(self, session, name, number)

    def begin_event(self, name: str, writer: int, event: int, length: int, size: int) -> Call:
        """Note that an event is about to be sent."""
        fields = {"lengths": (length,), "size": size, "writer": writer, "event": event}
        return self.begin(CallKind.EVENT, name, **fields)

    def begin(self, kind: CallKind, name: str, **fields: Any) -> Call:
        """Note that something is about to be asked for by other means than this object; `ended`
        notes its end.
        """
        call = self._new_call(kind, name)
        for field, value in fields.items():
            setattr(call, field, value)
        return self._report_begun(call)

    def watch(self, call: Call, future: asyncio.Future[Any]) -> None:
        """Note the end of an append when it comes; at once if it is there."""
        if not future.done():
            self._on_their_way += 1
            future.add_done_callback(partial(self._append_ended, call))
        elif future.cancelled() or future.exception() is not None:
            self._append_failed(call, future, at_once=True)
        else:
            call.result = future.result()
            self.ended(call, CallOutcome.OK)

    async def settle(self) -> None:
        """Wait until every append of this client has its answer, whatever it is."""
        while self._on_their_way:
            if self._settled is None:
                self._settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)

    # --- segments ---------------------------------------------------------------------------------

    async def create(self, name: str, updates: Sequence[Update] = ()) -> SegmentInfo:
        """Make a segment."""
        call = self._begin(CallKind.CREATE, name, updates)
        return await self._answered(
            call, self.store.create_segment(name, _attributes(updates)), _put_segment_id
        )

    async def seal(self, name: str) -> int:
        """Seal it."""
        return await self._answered(
            self._begin(CallKind.SEAL, name), self.store.seal(name), _put_result
        )

    async def truncate(self, name: str, offset: int) -> None:
        """Drop what lies below `offset`."""
        call = self._new_call(CallKind.TRUNCATE, name)
        call.offset = offset
        await self._answered(self._report_begun(call), self.store.truncate(name, offset))

    async def merge(
        self,
        target: str,
        source: str,
        updates: Sequence[Update] = (),
        *,
        writer: int = 0,
        event: int = 0,
    ) -> int:
        """Merge `source` into `target`, as event number `event` of writer `writer` if it is one."""
        call = self._new_call(CallKind.MERGE, target)
        call.writer, call.event = writer, event
        call.source, call.updates = source, tuple(updates)
        asked = self.store.merge(target, source, _attributes(updates))
        merged = await self._answered(self._report_begun(call), asked, _put_offset)
        return merged.offset

    async def merge_batch(self, target: str, lengths: Mapping[str, int]) -> None:
        """Merge sealed segments that are there, with their lengths, in one call: a merge each.

        They follow each other in the target. Of a call that fails it is not known which were done.
        """
        calls: list[Call] = []
        for source in lengths:
            call = self._new_call(CallKind.MERGE, target)
            call.source, call.behind = source, calls[-1].number if calls else None
            calls.append(self._report_begun(call))
        try:
            ends = await self.store.merge_batch(target, list(lengths))
        except (asyncio.CancelledError, Exception) as error:
            for call in calls:
                self.failed(call, error, in_part=True)
            raise
        for call, end, length in zip(calls, ends, lengths.values(), strict=True):
            call.result = end - length
            self.ended(call, CallOutcome.OK)

    async def delete(self, name: str) -> None:
        """Delete it."""
        await self._answered(self._begin(CallKind.DELETE, name), self.store.delete(name))

    async def update_attributes(self, name: str, updates: Sequence[Update]) -> None:
        """Update attributes, all or none."""
        call = self._begin(CallKind.UPDATE, name, updates)
        await self._answered(call, self.store.update_attributes(name, _attributes(updates)))

    # --- checking
    # ----------------------------------------------------------------------------------

    async def read(
        self, name: str, offset: int, max_length: int, wait: float | None = None
    ) -> bytes:
        """Read once."""
        call = self.begin_read(name, offset, max_length)
        return await self._answered(
            call, self.store.read(name, offset, max_length, wait), _put_data
        )

    def follow(self, name: str, offset: int) -> RecordedReader:
        """A reader that waits at the tail; each piece it gives is a read.

        Raises SegmentNotFoundError.
        """
        return RecordedReader(self, self.store.reader(name, offset, follow=True), name)

    def begin_read(self, name: str, offset: int, max_length: int) -> Call:
        """Note that a read is about to be asked for."""
        call = self._new_call(CallKind.READ, name)
        call.offset, call.max_length = offset, max_length
        return self._report_begun(call)

    async def info(self, name: str) -> SegmentInfo:
        """The segment's properties."""
        return await self._answered(
            self._begin(CallKind.INFO, name), self.store.get_info(name), _put_length
        )

    async def attributes(self, name: str) -> dict[UUID, int]:
        """All its attributes."""
        return await self._answered(
            self._begin(CallKind.ATTRIBUTES, name), self.store.get_attributes(name), _put_values
        )

    async def segment_names(self, prefix: str = "") -> list[str]:
        """Names of the segments that are there, in order. Not part of the history."""
        return [info.name async for info in self.store.list_segments(prefix)]

    # --- the store --------------------------------------------------------------------------------

    async def flush(self, name: str | None = None) -> None:
        """Flush one segment or all."""
        await self._answered(self._begin(CallKind.FLUSH, name or ""), self.store.flush(name))

    async def checkpoint(self) -> None:
        """Checkpoint every container."""
        await self._answered(self._begin(CallKind.CHECKPOINT, ""), self.store.checkpoint())

    # --- writing it down --------------------------------------------------------------------------

    def _begin(self, kind: CallKind, name: str, updates: Sequence[Update] = ()) -> Call:
        call = self._new_call(kind, name)
        call.updates = tuple(updates)
        return self._report_begun(call)

    def _new_call(self, kind: CallKind, name: str) -> Call:
        history = self.history
        history.stamp = stamp = history.stamp + 1
        call = Call(len(history.calls), self.process_run, self.client, kind, name, stamp)
        history.calls.append(call)
        self.calls_begun += 1
        return call

    def _report_begun(self, call: Call) -> Call:
        if self._listener is not None:
            self._listener("begun", call)
        return call

    async def _answered(
        self,
        call: Call,
        asked: Awaitable[T],
        put: Callable[[Call, T], None] = lambda _call, _answer: None,
    ) -> T:
        """Ask, and write down how it ended: a result by `put`, an error by its class."""
        try:
            answer = await asked
        except (asyncio.CancelledError, Exception) as error:
            self.failed(call, error)
            raise
        put(call, answer)
        self.ended(call, CallOutcome.OK)
        return answer

    def _append_ended(self, call: Call, future: asyncio.Future[Any]) -> None:
        self._on_their_way -= 1
        if self._settled is not None and not self._on_their_way:
            self._settled.set_result(None)
            self._settled = None
        if future.cancelled() or future.exception() is not None:
            self._append_failed(call, future, at_once=False)
            return
        call.result = future.result()
        call.outcome = CallOutcome.OK
        history = self.history
        call.ended = history.stamp = history.stamp + 1
        if self._listener is not None:
            self._listener("ended", call)

    def _append_failed(self, call: Call, future: asyncio.Future[Any], *, at_once: bool) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        assert error is not None
        self.failed(call, error, at_once=at_once)

    def failed(
        self, call: Call, error: BaseException, *, at_once: bool = False, in_part: bool = False
    ) -> None:
        """Note that a call ended in an error; `in_part`: some of what was asked may be done."""
        call.error = type(error).__name__
        outcome = classify(call.kind, error, at_once=at_once)
        if outcome is None:
            self.unforeseen.append(error)
        if outcome is None or in_part:
            outcome = CallOutcome.UNKNOWN
        self.ended(call, outcome)

    def ended(self, call: Call, outcome: CallOutcome) -> None:
        """Note that a call has its answer."""
        history = self.history
        call.outcome = outcome
        call.ended = history.stamp = history.stamp + 1
        if self._listener is not None:
            self._listener("ended", call)


class RecordedWriter:
    """An exactly-once session whose events are in the history."""

    def __init__(
        self, recorded: RecordedStore, session: StoreWriter, name: str, number: int
    ) -> None:
        self._recorded = recorded
        self._session = session
        self._name = name
        self._number = number

    @property
    def last_event_number(self) -> int:
        """The highest number the segment has, or this session has sent; -1 for none."""
        return self._session.last_event_number

    def append(self, event: int, length: int) -> asyncio.Future[int | None]:
        """Send event number `event` with so many bytes of filler (the same each time).

        Raises what the session raises.
        """
        data = event_record(self._number, event, length)
        call = self._recorded.begin_event(self._name, self._number, event, length, len(data))
        try:
            future = self._session.append(data, event)
        except Exception as error:
            self._recorded.failed(call, error)
            raise
        self._recorded.watch(call, future)
        return future


class RecordedReader:
    """A following reader whose pieces are in the history, one read each."""

    def __init__(self, recorded: RecordedStore, reader: StoreReader, name: str) -> None:
        self._recorded = recorded
        self._reader = reader
        self._name = name
        self.offset = reader.offset
        """Where the next piece begins: behind the last one, whatever the reader has as its own."""

    async def next_piece(self) -> bytes | None:
        """The next bytes once there are some; None at the end of a sealed segment.

        Raises what reading raises.
        """
        recorded = self._recorded
        call = recorded.begin_read(self._name, self.offset, recorded.piece_bytes)
        try:
            call.data = await anext(self._reader)
        except StopAsyncIteration:
            call.error = "EndOfSegmentError"
            recorded.ended(call, CallOutcome.REFUSED)
            return None
        except (asyncio.CancelledError, Exception) as error:
            recorded.failed(call, error)
            raise
        recorded.ended(call, CallOutcome.OK)
        self.offset += len(call.data)
        return call.data


def _attributes(updates: Sequence[Update]) -> tuple[AttributeUpdate, ...]:
    return tuple(
        AttributeUpdate(update.id, UpdateType[update.how], update.value, update.expected)
        for update in updates
    )


def _put_segment_id(call: Call, info: SegmentInfo) -> None:
    call.result = info.segment_id


def _put_length(call: Call, info: SegmentInfo) -> None:
    call.result = info.length


def _put_result(call: Call, result: int) -> None:
    call.result = result


def _put_offset(call: Call, merged: Merged) -> None:
    call.result = merged.offset


def _put_data(call: Call, data: bytes) -> None:
    call.data = data


def _put_values(call: Call, values: dict[UUID, int]) -> None:
    call.values = values
