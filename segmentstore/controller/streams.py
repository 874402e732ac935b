"""Streams: carries out the changes of streams, and answers what is asked of them.

Rules of this file:

- a change begins with one batch: the stream's row with the change, and a row that it is pending.
  From then on it is carried out, by this process or the next one;
- whatever changes a stream holds its lock, and first finishes a change that was left;
- the lock of a scope is taken inside that of a stream, and only to write the first row of what is
  new in the scope.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from segmentstore.contracts.owned_tasks import gather_owned
from segmentstore.contracts.runtime import Clock
from segmentstore.controller import controller_rows as rows_of
from segmentstore.controller import names
from segmentstore.controller.controller_rows import (
    ControllerRows,
    LoadedStream,
    RowPut,
    pending_key,
    put_epochs,
    retention_key,
    scope_key,
    stream_key,
)
from segmentstore.controller.deadlines import Deadlines
from segmentstore.controller.metadata_tables import NO_ROW
from segmentstore.controller.name_locks import NameLocks
from segmentstore.controller.names import ScopedName, segment_name
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.request_ids import RequestIds
from segmentstore.controller.segment_actions import SegmentActions, SegmentState, run_steps
from segmentstore.controller.stream_changes import (
    begin_create,
    begin_delete,
    begin_scale,
    begin_seal,
    begin_truncate,
    begin_update,
    ends_transactions,
    head_cut,
    mark_segment,
    needs_history,
    next_phase,
)
from segmentstore.controller.stream_cuts import between, check_cut, is_valid, tail_cut
from segmentstore.controller.stream_history import StreamHistory
from segmentstore.controller.stream_model import (
    ChangeKind,
    EpochRecord,
    StreamConfiguration,
    StreamCut,
    StreamRecord,
    StreamSegment,
)

PENDING_STREAM = "stream"
FINISH_S: Final = 1
"""After so long a change that failed is carried on."""
FINISH_REPEATED_S: Final = 60
"""The same of a creation or a deletion. Pravega's clients call again after 1, 10, 100 ms, 1, 10 and
20 s. If it were done by then, the answer would be that the stream exists, or that there is none.
"""
_REPEATED: Final = (ChangeKind.CREATE, ChangeKind.DELETE)


class TransactionEnds(Protocol):
    """What streams need of transactions. Called with the stream's lock held."""

    def has_open(self, stream: ScopedName) -> bool:
        """Whether a transaction of the stream has not ended."""

    async def end_all(self, stream: ScopedName) -> None:
        """Abort those that are open, and let those that are being committed end."""


class Streams:
    """All streams."""

    def __init__(
        self,
        rows: ControllerRows,
        actions: SegmentActions,
        transactions: TransactionEnds,
        locks: NameLocks,
        deadlines: Deadlines,
        requests: RequestIds,
        clock: Clock,
    ) -> None:
        self._rows = rows
        self._actions = actions
        self._transactions = transactions
        self._locks = locks
        self._deadlines = deadlines
        self._requests = requests
        self._clock = clock

    # --- changes ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def locked(self, name: ScopedName) -> AsyncIterator[LoadedStream | None]:
        """The stream, without a change, held until the end. None: there is none."""
        async with self._locks.hold(name):
            stream = await self._rows.stream(name)
            yield None if stream is None else await self._settle(stream)

    @asynccontextmanager
    async def existing(self, name: ScopedName) -> AsyncIterator[LoadedStream]:
        """As `locked`; raises RefusedRequestError if there is none."""
        async with self.locked(name) as stream:
            yield stream or await self._missing(name)

    async def finish(self, name: ScopedName) -> None:
        """Finish a change that was left."""
        async with self.locked(name):
            # After a crash between the last two writes of a change, this row alone is left.
            await self._rows.remove([pending_key(PENDING_STREAM, name)])

    async def finish_after_s(self, name: ScopedName) -> float:
        """How long what an earlier Controller left may wait: for the call of its client."""
        stream = await self._rows.stream(name)
        repeated = stream is not None and _kind(stream.record) in _REPEATED
        return FINISH_REPEATED_S if repeated else 0

    async def create(
        self, name: ScopedName, configuration: StreamConfiguration, request_id: str = ""
    ) -> None:
        """Raises RefusedRequestError: bad name, bad configuration, no scope, exists.

        A creation that failed half-way is carried on by the same call once more. Behind its end
        that call has its answer by the request id.
        """
        names.check_stream_name(name.name)
        async with self._locks.hold(name):
            stream = await self._rows.stream(name)
            if stream is not None and _creates(stream.record, configuration):
                await self._carry_out(stream)
                return
            if stream is not None and (found := await self._settle(stream)) is not None:
                if request_id and found.record.request_id == request_id:
                    return
                raise RefusedRequestError(Reason.STREAM_EXISTS, f"the stream {name} exists")
            first = await self._rows.first_number()
            record = begin_create(configuration, self._clock.time_ms(), first, request_id)
            async with self.scope_held(name.scope):
                version = await self._begin(name, record, NO_ROW)
            await self._carry_out(LoadedStream(name, record, version))

    async def ensure(self, name: ScopedName, configuration: StreamConfiguration) -> None:
        """Create a stream of the Controller's own; nothing if it is there.

        Its scope is held by a row that was written before.
        """
        async with self.locked(name) as stream:
            if stream is None:
                first = await self._rows.first_number()
                record = begin_create(configuration, self._clock.time_ms(), first)
                version = await self._begin(name, record, NO_ROW)
                await self._carry_out(LoadedStream(name, record, version))

    async def update(self, name: ScopedName, configuration: StreamConfiguration) -> None:
        """Raises RefusedRequestError: no stream, no scope, sealed, bad configuration."""
        async with self.existing(name) as stream:
            await self._change(stream, begin_update(stream.record, configuration))

    async def truncate(self, name: ScopedName, cut: StreamCut) -> None:
        """Raises RefusedRequestError: no stream, no scope, bad cut."""
        async with self.existing(name) as stream:
            await self.truncate_held(stream, cut)

    async def truncate_held(self, stream: LoadedStream, cut: StreamCut) -> None:
        """As `truncate`, by a caller that holds the stream."""
        history = await self._rows.history(stream.name)
        check_cut(history, cut)
        states = await self.states(stream.name, cut)
        await self._change(stream, begin_truncate(stream.record, history, cut, states))

    async def scale(
        self, name: ScopedName, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]
    ) -> tuple[int, tuple[StreamSegment, ...]]:
        """Gives the epoch that ended, and the segments that begin; once more, what it gave.

        Raises RefusedRequestError: no stream, sealed, other keys, an open transaction.
        """
        async with self.existing(name) as stream:
            active = {segment.segment_id for segment in stream.record.active}
            if not active.issuperset(sealed):
                # A scale whose caller got no reply, or that another call has carried on.
                done = (await self._rows.history(name)).scaled(sealed, ranges)
                if done is not None:
                    return done.epoch - 1, done.created
            if self._transactions.has_open(name):
                raise RefusedRequestError(
                    Reason.PRECONDITION_FAILED, f"the stream {name} has open transactions"
                )
            record = begin_scale(stream.record, sealed, ranges)
            await self._change(stream, record)
            assert record.change is not None
            return record.epoch, record.change.created

    async def seal(self, name: ScopedName) -> None:
        """Nothing for a sealed one. Raises RefusedRequestError: no stream, no scope."""
        async with self.existing(name) as stream:
            await self.seal_held(stream)

    async def seal_held(self, stream: LoadedStream) -> None:
        """As `seal`, by a caller that holds the stream."""
        await self._change(stream, begin_seal(stream.record))

    async def delete(self, name: ScopedName, request_id: str = "") -> None:
        """Raises RefusedRequestError: no stream, not sealed.

        A deletion that failed half-way is carried on by the same call once more. Behind its end
        that call has its answer by the request id.
        """
        async with self._locks.hold(name):
            stream = await self._rows.stream(name)
            if stream is not None and _kind(stream.record) is ChangeKind.DELETE:
                await self._requests.note(request_id, stream_key(name))
                await self._carry_out(stream)
                return
            if await self._requests.noted(request_id, stream_key(name)):
                return
            settled = None if stream is None else await self._settle(stream)
            await self.delete_held(settled or await self._missing(name), request_id)

    async def delete_held(self, stream: LoadedStream, request_id: str = "") -> None:
        """As `delete`, by a caller that holds the stream."""
        await self._change(stream, begin_delete(stream.record, request_id))

    async def discard(self, name: ScopedName) -> None:
        """Seal and delete a stream. Nothing if there is none, or if a deletion that was left ends
        with this call.
        """
        async with self.locked(name) as stream:
            if stream is not None:
                await self.seal_held(stream)
        async with self.locked(name) as stream:
            if stream is not None:
                await self.delete_held(stream)

    async def _settle(self, stream: LoadedStream) -> LoadedStream | None:
        return stream if stream.record.change is None else await self._carry_out(stream)

    async def _change(self, stream: LoadedStream, record: StreamRecord) -> None:
        if record.change is not None:
            version = await self._begin(stream.name, record, stream.version)
            await self._carry_out(LoadedStream(stream.name, record, version))

    async def _begin(self, name: ScopedName, record: StreamRecord, version: int) -> int:
        pending = RowPut(pending_key(PENDING_STREAM, name), {})
        versions = await self._rows.put(RowPut(stream_key(name), record.to_row(), version), pending)
        return versions[0]

    async def _carry_out(self, stream: LoadedStream) -> LoadedStream | None:
        try:
            return await self._carry_out_once(stream)
        except BaseException:
            name, kind = stream.name, _kind(stream.record)
            # Not one key for all: a change behind the creation would wait as long.
            if kind in _REPEATED:
                key, after_s = (kind.value, name), FINISH_REPEATED_S
            else:
                key, after_s = ("finish", name), FINISH_S
            self._deadlines.ensure(key, after_s, lambda: self.finish(name))
            raise

    async def _carry_out_once(self, stream: LoadedStream) -> LoadedStream | None:
        name, record, version = stream
        while record.change is not None:
            history = StreamHistory(())
            if needs_history(record.change):
                history = await self._rows.history(name)
            if ends_transactions(record.change):
                await self._transactions.end_all(name)
            phase = next_phase(name, record, history, self._clock.time_ms())
            await run_steps(self._actions, phase.steps)
            if phase.record is None:
                await self._requests.note(record.change.request_id, stream_key(name))
                await self._rows.use_numbers(record.next_number)
                await self._remove_rows(name)
                return None
            record = phase.record
            versions = await self._rows.put(
                RowPut(stream_key(name), record.to_row(), version),
                *put_epochs(name, phase.epochs),
                *(_mark_rows(name, record) if phase.has_mark else ()),
                *_retention_rows(name, record),
            )
            version = versions[0]
        await self._rows.remove([pending_key(PENDING_STREAM, name)])
        return LoadedStream(name, record, version)

    async def _remove_rows(self, name: ScopedName) -> None:
        for kind in ("epoch", "transaction", "ended", "subscriber", "cut"):
            await self._rows.remove_below(f"{kind}/{name}/")
        mark = names.mark_stream(name)
        keys = [stream_key(name), retention_key(name), pending_key(PENDING_STREAM, name)]
        if not names.is_internal(name.name):
            keys += [stream_key(mark), rows_of.epoch_key(mark, 0)]
        await self._rows.remove(keys)

    # --- questions --------------------------------------------------------------------------------

    async def record(self, name: ScopedName) -> StreamRecord:
        """Raises RefusedRequestError: no stream, no scope."""
        stream = await self._rows.stream(name)
        if stream is None or not stream.record.exists:
            await self._missing(name)
        assert stream is not None
        return stream.record

    async def exists(self, name: ScopedName) -> bool:
        stream = await self._rows.stream(name)
        return stream is not None and stream.record.exists

    async def current(self, name: ScopedName) -> tuple[StreamSegment, ...]:
        """Segments that take events, by key; none of a sealed stream."""
        record = await self.record(name)
        return () if record.sealed else record.active

    async def epoch(self, name: ScopedName, epoch: int) -> tuple[StreamSegment, ...]:
        """Segments of an epoch by key. Raises RefusedRequestError for one that has not begun."""
        _, history = await self._described(name)
        return history.active_in(epoch)

    async def head(self, name: ScopedName) -> StreamCut:
        """Where the stream begins. Clients truncate some segments by themselves: such a segment
        begins where it says.
        """
        record = await self.record(name)
        history = await self._rows.history(name, epochs=1)
        if not history.reaches(0, ()):
            await self._missing(name)
        head = head_cut(record, history)
        states = await self.states(name, head)
        return {
            segment_id: max(offset, state.start_offset if (state := states[segment_id]) else 0)
            for segment_id, offset in head.items()
        }

    async def successors(
        self, name: ScopedName, segment_id: int
    ) -> list[tuple[StreamSegment, list[int]]]:
        """Segments that follow one, each with all that it follows."""
        _, history = await self._described(name)
        return history.successors(segment_id)

    async def between(
        self, name: ScopedName, first: StreamCut, last: StreamCut
    ) -> list[StreamSegment]:
        """Segments between two cuts; an empty one is the head, or the tail.

        Raises RefusedRequestError for a cut that is not valid.
        """
        record, history = await self._described(name)
        begin = check_cut(history, first) if first else head_cut(record, history)
        end = check_cut(history, last) if last else tail_cut(record.active)
        return between(history, begin, end)

    async def is_segment_valid(self, name: ScopedName, segment_id: int) -> bool:
        """Whether a segment takes events."""
        stream = await self._rows.stream(name)
        if stream is None or not stream.record.exists or stream.record.sealed:
            return False
        return any(each.segment_id == segment_id for each in stream.record.active)

    async def is_cut_valid(self, name: ScopedName, cut: StreamCut) -> bool:
        return await self.exists(name) and is_valid(await self._rows.history(name), cut)

    async def states(
        self, name: ScopedName, segment_ids: Iterable[int]
    ) -> dict[int, SegmentState | None]:
        """Of segments by id, as the store has them."""
        ids = list(segment_ids)
        infos = (self._actions.info(segment_name(name, each)) for each in ids)
        states = await gather_owned(*infos, name="controller-info")
        return dict(zip(ids, states, strict=True))

    async def page(
        self, scope: str, after: str, limit: int, tag: str | None = None
    ) -> list[ScopedName]:
        """Names of a scope's streams behind `after`; empty: that was all.

        Raises RefusedRequestError: no scope.
        """
        await self.check_scope(scope)
        while rows := await self._rows.page(f"stream/{scope}/", after, limit):
            found = [
                ScopedName(scope, row.last)
                for row in rows
                if (record := StreamRecord.from_row(row.value)).exists
                and (tag is None or tag in record.configuration.tags)
            ]
            if found:
                return found
            after = rows[-1].last
        return []

    # --- scopes -----------------------------------------------------------------------------------

    async def check_scope(self, scope: str) -> None:
        """Raises RefusedRequestError unless there is such a scope that is not being deleted."""
        row = await self._rows.get(scope_key(scope))
        if row is None or row.value["deleting"]:
            raise RefusedRequestError(Reason.SCOPE_NOT_FOUND, f"there is no scope {scope}")

    @asynccontextmanager
    async def scope_held(self, scope: str) -> AsyncIterator[None]:
        """Hold a scope that is there: it is not deleted meanwhile."""
        async with self._locks.hold(scope):
            await self.check_scope(scope)
            yield

    async def _described(self, name: ScopedName) -> tuple[StreamRecord, StreamHistory]:
        """The record and, read behind it, the history that it needs.

        Raises RefusedRequestError: no stream, also if it is deleted meanwhile.
        """
        record = await self.record(name)
        history = await self._rows.history(name)
        if not history.reaches(record.epoch, record.active):
            await self._missing(name)
        return record, history

    async def _missing(self, name: ScopedName) -> LoadedStream:
        await self.check_scope(name.scope)
        raise RefusedRequestError(Reason.STREAM_NOT_FOUND, f"there is no stream {name}")


def _creates(record: StreamRecord, configuration: StreamConfiguration) -> bool:
    """Whether the stream is being created, and so."""
    return _kind(record) is ChangeKind.CREATE and record.configuration == configuration


def _kind(record: StreamRecord) -> ChangeKind | None:
    """Of the change that a stream is in."""
    return record.change.kind if record.change is not None else None


def _retention_rows(stream: ScopedName, record: StreamRecord) -> list[RowPut]:
    return [RowPut(retention_key(stream), {})] if record.configuration.retention else []


def _mark_rows(stream: ScopedName, created: StreamRecord) -> list[RowPut]:
    mark = names.mark_stream(stream)
    segment = mark_segment(each.segment_id for each in created.active)
    record = StreamRecord(
        StreamConfiguration(),
        created.created_ms,
        active=(segment,),
        next_number=names.number_of(segment.segment_id) + 1,
    )
    epoch = EpochRecord(0, record.active, (), record.created_ms)
    return [RowPut(stream_key(mark), record.to_row()), *put_epochs(mark, [epoch])]
