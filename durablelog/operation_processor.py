"""The one loop of a container: take what waits, number it, pack, append to the log, commit.

Theory of operation. There is one queue and no task: `append` and `submit` enqueue when they are
called. `_pump` packs whatever waits into frames and hands them to the log. `_frames_done` commits
them in order, resolves their futures and pumps again. A full frame is shipped at once (up to a
bound of frames and bytes in flight). A part-filled one is shipped only while fewer than two are in
flight, so that under load frames grow by themselves. Where appends keep arriving of their own
accord, it waits for some of them (`group_holds`). Operations of the storage writer go by a queue
of their own, past the throttle: they are what relieves it. A checkpoint is taken when nothing is in
flight, so it is the committed metadata and no more. While its source is not ready (the snapshot of
an earlier one is being made), work continues as if none were wanted. While the throttle holds
callers back, requests of segments that use little continue (`fair_admission`). Only then may
requests of two segments be carried out in another order than that of their calls.

A frame that fails fails everything behind it, once and for all. Pending metadata is rolled back,
operations in flight are reported as unknown, all others as not done, and the container stops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Sized
from typing import Any

from durablelog.checkpoint_policy import CheckpointPolicy
from durablelog.checkpoint_source import CheckpointSource, InlineCheckpoints
from durablelog.durable_data_log import DurableDataLog, LogFullError
from durablelog.fair_admission import FairAdmission
from durablelog.frame_commits import FrameCommits
from durablelog.frame_packer import FramePacker
from durablelog.frame_requests import (
    REQUEST_BYTES,
    AppendRequest,
    OperationRequest,
    PackedFrame,
    Request,
)
from durablelog.group_holds import PART_FILLED_IN_FLIGHT_MAX, GroupHolds
from durablelog.log_positions import LogPositions
from durablelog.metadata_lookup import Learn, MetadataLookup
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import encode_operation
from durablelog.operations import Operation
from durablelog.pending_segment import Event
from durablelog.processor_config import ProcessorConfig, ProcessorStatistics
from durablelog.queue_room import QueueRoom
from durablelog.throttle_pauses import ThrottlePauses
from durablelog.throttler import Throttle
from segmentstore.contracts.attributes import KeyedUpdate
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerNotServedError,
    ContainerStoppedError,
    NotPrimaryError,
)
from segmentstore.contracts.loop_turns import timed_turn
from segmentstore.contracts.runtime import Clock
from segmentstore.contracts.waiting import note_end

_FRAMES_IN_FLIGHT_MAX = 32
_ROOM_TIMEOUT_S = 5.0
"""A close, or a store that is being made, waits so long for a log whose disk is full."""


class OperationProcessor:
    """Sequencer of one container. Everything on the container's event loop."""

    def __init__(
        self,
        *,
        log: DurableDataLog,
        updater: MetadataUpdater,
        positions: LogPositions,
        config: ProcessorConfig,
        clock: Clock,
        on_commit: Callable[[Sequence[Operation]], None],
        on_failure: Callable[[BaseException], None],
        throttle: Callable[[int], Throttle],
        unflushed_of: Callable[[int], int] = lambda _segment_id: 0,
        checkpoints: CheckpointSource | None = None,
        defer: Callable[[AppendRequest], bool] | None = None,
        learn: Learn | None = None,
        placed_min: int | None = None,
    ) -> None:
        """Without `checkpoints` each has all metadata in itself. `defer` takes a queued append to a
        segment that is not in memory, for `put_back`; or says False: there is none. `learn` brings
        what memory lacks of one that it has in part. Appends from `placed_min` bytes on get places.
        """
        self._log = log
        self._updater = updater
        self._config = config
        self._clock = clock
        self._on_failure = on_failure
        self._pauses = ThrottlePauses(throttle, self.throttle_changed)
        self._source = InlineCheckpoints(updater) if checkpoints is None else checkpoints
        self._commits = FrameCommits(
            log=log,
            updater=updater,
            positions=positions,
            source=self._source,
            on_commit=on_commit,
        )
        self._container_id = updater.metadata.container_id
        self._loop = asyncio.get_running_loop()
        self._defer = defer
        self._lookup = MetadataLookup(learn, self._pump, self.fail)
        self._packer = FramePacker(updater, log.payload_bytes_max, self._defer_append, placed_min)
        self._policy = CheckpointPolicy(config.checkpoint_operations, config.checkpoint_bytes)
        self._queue: deque[Request] = deque()
        self._own_queue: deque[Request] = deque()
        """Storage updates and the like: first, and never throttled."""
        self._fair = FairAdmission(unflushed_of)
        """What waited when the throttle held callers back: older than what is in the queue."""
        self._returned: deque[Request] = deque()
        """Put back after they had been deferred: older than all that waits, and admitted before."""
        self._deferred = 0
        """Appends that were deferred and are not back."""
        self.room = QueueRoom(config.queue_bytes_max)
        """For callers that wait until an append is not refused because too much waits."""
        self._holds = GroupHolds(self._pump, lambda: self.room.queued)
        self._in_flight: deque[PackedFrame] = deque()
        self._bytes_in_flight = 0
        self._scheduled = self._pumping = self._checkpoint_wanted = self._closing = False
        self._checkpoint_waiters: list[asyncio.Future[object]] = []
        self._drained: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._close_cause: BaseException | None = None
        log.on_settled = self._frames_done
        log.on_failed = self.fail

    def note_replayed(self, operations: int, length: int, checkpoint_length: int) -> None:
        """What recovery found behind the log's last checkpoint, and that one's size."""
        self._policy.checkpointed(checkpoint_length)
        self._log.keep_room_for(checkpoint_length)
        # At most a frame each.
        self._policy.added(operations, operations, length)

    # --- in ---------------------------------------------------------------------------------------

    def append(
        self,
        segment_id: int,
        data: bytes,
        expected_offset: int | None = None,
        updates: Sequence[KeyedUpdate] | None = None,
        event: Event | None = None,
        future: asyncio.Future[int | None] | None = None,
    ) -> asyncio.Future[int | None]:
        """Enqueue an append; the future gets its offset once durable (None for a repeated event).

        A `future` that is given is of an append that was taken before: there is room for it.
        """
        room = self.room
        size = len(data)
        if future is None:
            future = self._loop.create_future()
            if room.queued + size > room.end:
                future.set_exception(self._refusal())
                return future
        elif self._failure is not None:
            if not future.done():
                future.set_exception(self._refusal())
            return future
        # In one step: a signal handler may append in the midst of this.
        room.queued += size + REQUEST_BYTES
        self._queue.append((segment_id, data, future, expected_offset, updates, event))
        if not self._scheduled:
            self._begin_turn(room.queued - room.left - size - REQUEST_BYTES)
        return future

    def _begin_turn(self, waiting: int) -> None:
        """The first append of a turn of the loop has come, behind `waiting` bytes."""
        on_its_way = len(self._in_flight)
        if self._pumping:
            self._schedule()  # A signal handler appends in the midst of it.
        elif not self._holds.holds(waiting, on_its_way):
            if on_its_way or self._holds.gathers:
                self._schedule()
            else:
                # Nothing is on its way: a caller alone goes at once.
                self._pump()

    def put_back(self, requests: Sequence[AppendRequest], refused: int) -> None:
        """Queue deferred appends again, before all others, in their order; `refused` more have
        failed.
        """
        self._deferred -= len(requests) + refused
        if self._failure is not None:
            for request in requests:
                if not request[2].done():
                    request[2].set_exception(self._refusal())
            return
        self.room.queued += sum(len(request[1]) + REQUEST_BYTES for request in requests)
        self._returned.extend(requests)
        self._schedule()

    def _defer_append(self, request: AppendRequest) -> bool:
        if self._defer is None or not self._defer(request):
            return False
        self._deferred += 1
        return True

    def submit(self, operation: Operation, *, own: bool = False) -> asyncio.Future[object]:
        """Enqueue any other operation; `own` is for the engine's own, which are never throttled."""
        future: asyncio.Future[object] = self._loop.create_future()
        if self._closing and (self._failure is not None or not own):
            future.set_exception(self._refusal())
            return future
        if own:
            self._own_queue.append(OperationRequest(operation, future))
        elif self.room.queued > self.room.end:
            future.set_exception(self._refusal())
            return future
        else:
            self.room.queued += REQUEST_BYTES
            self._queue.append(OperationRequest(operation, future, REQUEST_BYTES))
        self._schedule()
        return future

    def settled(self) -> asyncio.Future[object]:
        """Done once all that was accepted by now is durable. Nothing is logged for it."""
        future: asyncio.Future[object] = self._loop.create_future()
        if self._failure is not None:
            future.set_exception(self._refusal())
        else:
            self._packer.add_waiter(future)
            self._schedule()
        return future

    def checkpoint(self) -> asyncio.Future[object]:
        """Write a metadata checkpoint as soon as its source is ready and nothing is in flight;
        gives its sequence number.

        A close does not wait for a source that is not ready: ContainerStoppedError.
        """
        future: asyncio.Future[object] = self._loop.create_future()
        if self._failure is not None:
            future.set_exception(self._refusal())
            return future
        self._checkpoint_waiters.append(future)
        self._checkpoint_wanted = True
        self._schedule()
        return future

    def checkpoint_soon(self, *, even_if_empty: bool) -> None:
        """The same, without a caller that waits. If nothing was logged since the last one, only
        with `even_if_empty`.
        """
        if self._failure is None and (even_if_empty or not self._policy.empty):
            self._checkpoint_wanted = True
            self._schedule()

    def checkpoint_source_ready(self) -> None:
        """The source of checkpoints has become ready: take one now if one is wanted."""
        self._schedule()

    def throttle_changed(self) -> None:
        """Something that throttles may have eased, or the pause is over: check again now."""
        if self._pauses.end():
            self._schedule()

    # --- the pump ---------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled:
            # In this order: what raises in between must not leave it for scheduled.
            self._loop.call_soon(self._pump)
            self._scheduled = True

    @timed_turn("packing")
    def _pump(self) -> None:
        self._scheduled = False
        if self._failure is not None:
            return
        self._pumping = True
        try:
            self._holds.begin_pump(len(self._queue), idle=not self._in_flight)
            self._fill_frames()
            self.room.grant()
            drained = self._drained
            if drained and not (self._in_flight or drained.done()) and self._all_empty():
                drained.set_result(None)
        except BaseException as error:  # noqa: BLE001
            self._interrupted(error)
        self._pumping = False

    def _interrupted(self, error: BaseException) -> None:
        """Something has raised between two steps of the processor's: a bug, or a signal handler of
        the program's, at any place. It must stop the container. A frame may be half-way to the log,
        and what came behind it would be acknowledged and never replayed.
        """
        self.fail(error)
        if not isinstance(error, Exception):
            raise error

    def _all_empty(self) -> bool:
        return (
            not (self._queue or self._own_queue or self._fair or self._checkpoint_wanted)
            and not (self._returned or self._deferred)
            and self._packer.idle
        )

    def _fill_frames(self) -> None:
        packer, in_flight = self._packer, self._in_flight
        if self._closing and self._checkpoint_wanted and not self._source.ready:
            self._refuse_checkpoint()
        now = self._updater.timestamp_ms(self._clock.time_ms())
        while (
            len(in_flight) < _FRAMES_IN_FLIGHT_MAX
            and self._bytes_in_flight < self._config.in_flight_bytes_max
        ):
            if (self._checkpoint_wanted or self._policy.due) and self._source.ready:
                if packer.idle and not in_flight:
                    self._ship_checkpoint()
                    continue
                if len(in_flight) < PART_FILLED_IN_FLIGHT_MAX:
                    self._ship_part_filled()
                return
            if self._lookup.in_progress:
                break
            queue = self._own_queue or self._requests()
            if not queue:
                break
            packer.pack(queue, now, 1)
            while packer.full:
                self._ship()
            self.room.note_left(packer.bytes_taken)
            if packer.stalled:
                self._lookup.begin(packer.lacks(queue))
        if len(in_flight) < PART_FILLED_IN_FLIGHT_MAX:
            self._ship_part_filled()

    def _requests(self) -> deque[Request]:
        """What may be packed next: all that waits; while the throttle holds callers back, what is
        admitted all the same, and what its pace allows.
        """
        fair, pauses = self._fair, self._pauses
        if self._returned:
            return self._returned
        if fair.admitted:
            return fair.admitted
        if not (self._queue or fair.deferred):
            return self._queue
        if self._held_back():
            pauses.exempted(fair.sort(self._queue))
            if pauses.allowed is not None:
                pauses.admitted(fair.release(pauses.allowed))
        elif fair.deferred:
            fair.release(self._log.payload_bytes_max)
        else:
            return self._queue
        return fair.admitted

    def _held_back(self) -> bool:
        """True while the throttle asks callers to wait, or paces them; it is asked once per frame,
        not per append.
        """
        pauses = self._pauses
        if pauses.in_progress:
            return True
        if self._closing and not (self._log.short and self._log.full):
            # On a full disk callers would take the room that the next owner needs to make room.
            return False
        throttle = pauses.begin(self._bytes_in_flight)
        if throttle is not None:
            self._fair.begin(throttle.room_bytes, throttle.fair_bytes, throttle.relief_bytes)
        return pauses.sorts

    def _ship_part_filled(self) -> None:
        frame = self._packer.seal()
        if frame is None:
            return
        if frame.payload:
            self._ship()
            may_hold = not self._closing and self._all_empty()
            self._holds.shipped(len(frame.futures), may_hold=may_hold)
            return
        # Only repeats of events: acknowledged together with what is still on its way before them.
        if self._in_flight:
            self._in_flight[-1].futures += frame.futures
            self._in_flight[-1].values += frame.values
        else:
            self._commits.resolve(frame)
        self._packer.full.clear()

    def _ship_checkpoint(self) -> None:
        operation = self._source.take()
        self._updater.accept(operation, self._updater.timestamp_ms(self._clock.time_ms()))
        self._packer.pack_checkpoint(operation)
        last = self._packer.full[-1]
        for waiter in self._checkpoint_waiters:
            last.futures.append(waiter)
            last.values.append(operation.sequence_number)
        self._checkpoint_waiters = []
        self._checkpoint_wanted = False
        while self._packer.full:
            self._ship()
        _, body = encode_operation(operation)
        self._policy.checkpointed(len(body))
        self._log.keep_room_for(len(body))

    def _refuse_checkpoint(self) -> None:
        waiters, self._checkpoint_waiters = self._checkpoint_waiters, []
        self._checkpoint_wanted = False
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self._refusal())

    def _ship(self) -> None:
        """Give the first full frame to the log."""
        frame = self._packer.full[0]
        # First, and only then removed: whatever raises, `fail` answers the callers of this frame.
        self._in_flight.append(frame)
        del self._packer.full[0]
        acknowledged = self._log.append(frame.payload)
        frame.acknowledged = acknowledged
        frame.shipped_s = self._loop.time()
        self._bytes_in_flight += frame.length
        self._policy.added(1, len(frame.operations), frame.length)
        if acknowledged.done():
            self._loop.call_soon(self._frames_done)

    # --- out --------------------------------------------------------------------------------------

    @timed_turn("commit")
    def _frames_done(self) -> None:
        in_flight = self._in_flight
        try:
            while in_flight:
                frame = in_flight[0]
                acknowledged = frame.acknowledged
                if acknowledged is None or not acknowledged.done():
                    break
                self._commits.commit(frame, acknowledged.result())
                in_flight.popleft()
                self._bytes_in_flight -= frame.length
                self._holds.acknowledged(frame.shipped_s, len(frame.futures))
        except asyncio.CancelledError:
            self.fail(ContainerStoppedError(self._container_id))
            return
        except BaseException as error:  # noqa: BLE001
            # Whatever it is, nothing behind it may be acknowledged.
            self._interrupted(error)
            return
        if self._scheduled or self._holds.in_progress:
            return
        if self._drained is not None or not self._all_empty():
            self._pump()

    # --- ends -------------------------------------------------------------------------------------

    def _refusal(self) -> Exception:
        failure = self._failure
        if isinstance(failure, NotPrimaryError):
            return NotPrimaryError(self._container_id, "this owner was fenced")
        if failure is None and isinstance(self._close_cause, ContainerNotServedError):
            return self._close_cause.again()
        if failure is not None or self._closing:
            return ContainerStoppedError(self._container_id, failure or self._close_cause)
        return self._pauses.queue_full(self._config.queue_bytes_max)

    async def close(self, cause: BaseException | None = None) -> None:
        """Take nothing more, let everything that was taken become durable, unthrottled. Idempotent.

        What comes from now on is refused, and the refusal names `cause`. A log whose disk stays
        full ends it: what was on its way is reported as unknown, the rest as not done.
        """
        self._closing = True
        self._close_cause = self._close_cause or cause
        self.room.close(self._refusal)
        self._holds.end()
        self.throttle_changed()
        if self._failure is not None or (self._all_empty() and not self._in_flight):
            return
        if self._drained is None:
            self._drained = self._loop.create_future()
        # One that is scheduled may be lost, where a signal handler has raised in the loop itself.
        self._loop.call_soon(self._pump)
        await self._while_room(self._drained)

    async def first_checkpoint(self) -> None:
        """`checkpoint`, where no other task could make room for it.

        Raises LogFullError where there is none, and what that gives.
        """
        written = self.checkpoint()
        # A caller that is cancelled here is never notified of its end.
        written.add_done_callback(note_end)
        await self._while_room(written)
        if isinstance(self._failure, LogFullError):
            raise self._failure
        await written

    async def _while_room(self, done: asyncio.Future[Any]) -> None:
        """Wait until it is done, or fail everything: the log has found no room in a while."""
        while not (await asyncio.wait((done,), timeout=_ROOM_TIMEOUT_S))[0]:
            if self._log.short:
                self.fail(LogFullError(self._log.health() or "its disk is full"))

    def fail(self, error: BaseException) -> None:
        """Stop for good: resolve all futures, roll back what is pending, notify the container."""
        if self._failure is not None:
            return
        self._failure = error
        self.room.end = -1  # At once: at the beginning of a call a signal handler could raise.
        self._closing = True
        self.room.close(self._refusal)
        self._updater.rollback()
        self._lookup.stop()
        self._pauses.end()
        self._holds.end()
        for frame in self._in_flight:
            if frame.acknowledged is not None:
                frame.acknowledged.add_done_callback(note_end)
        unknown = [future for frame in self._in_flight for future in frame.futures]
        self._in_flight.clear()
        for future in unknown:
            if not future.done():
                future.set_exception(AppendOutcomeUnknownError(self._container_id, error))
        refused = self._packer.abandon() + self._checkpoint_waiters
        waiting = (*self._own_queue, *self._returned, *self._fair.take_all(), *self._queue)
        futures = (item[2] if isinstance(item, tuple) else item.future for item in waiting)
        refused.extend(futures)  # type: ignore[arg-type]
        for queue in (self._own_queue, self._returned, self._queue):
            queue.clear()
        for future in refused:
            if not future.done():
                future.set_exception(self._refusal())
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._on_failure(error)

    def statistics(self) -> ProcessorStatistics:
        """Numbers as of now. O(1)."""
        waiting: tuple[Sized, ...] = (self._queue, self._own_queue, self._returned, self._fair)
        return ProcessorStatistics(
            queue_requests=sum(map(len, waiting)),
            queue_bytes=self.room.queued - self.room.left,
            frames_in_flight=len(self._in_flight),
            bytes_in_flight=self._bytes_in_flight,
            requests_committed=self._commits.requests,
            operations_committed=self._commits.operations,
            frames_committed=self._commits.frames,
            checkpoints=self._commits.checkpoints,
            throttled_by=self._pauses.source if self._pauses.in_progress else "",
            throttled_s=self._pauses.total_s,
        )
