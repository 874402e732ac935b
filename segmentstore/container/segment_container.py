"""SegmentContainer: owner of a set of segments.

Starts the parts of one log's machinery (`container_parts`), and stops them together. It is all that
the rest of the store sees of them: no part is reached through it.

Life: new -> recovering -> running -> stopped; it never runs twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from durablelog.operation_processor import OperationProcessor
from recovery.recovery_processor import RecoveryReport, recover
from segmentstore.container.container_parts import ContainerParts, ContainerResources
from segmentstore.container.container_state import ContainerState
from segmentstore.container.container_stats import container_health, container_stats
from segmentstore.container.lost_log import refuse_lost_log
from segmentstore.contracts.errors import (
    ContainerNotServedError,
    ContainerStoppedError,
    ForkedStoreError,
    NotPrimaryError,
    SegmentStoreError,
    describe,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.undo_stack import UndoStack
from segmentstore.contracts.waiting import outlast

if TYPE_CHECKING:
    from segmentstore.stats_types import ContainerStats

_log = logging.getLogger(__name__)

_DRAIN_TIMEOUT_S = 5.0
"""Longest that an ordinary close waits for uploads on their way, and as long again for a copy of
the metadata.
"""


class SegmentContainer(ContainerParts):
    """One container. Everything on one event loop; public calls come from the service.

    Calls on segments raise ContainerStoppedError or NotPrimaryError unless the container runs.
    """

    def __init__(
        self,
        container_id: int,
        given: ContainerResources,
        on_failure: Callable[[SegmentContainer], None] | None = None,
    ) -> None:
        """`on_failure` is called once something has stopped the container unasked."""
        self.state = ContainerState.NEW
        self.failure: BaseException | None = None
        """What stopped it, if it was not asked to."""
        self._stop_cause: BaseException | None = None
        self._on_failure = on_failure
        self._recovery: RecoveryReport | None = None
        self._may_be_empty = given.created
        self._stopping: asyncio.Task[None] | None = None
        super().__init__(container_id, given)

    # --- life -------------------------------------------------------------------------------------

    async def start(self, view: SegmentStoreError | None = None) -> None:
        """Open the log (which fences its owner before), recover, serve.

        On any failure everything is released again.

        With `view` the log is not ours, and reads alone are served: nothing is sequenced, flushed,
        deleted or answered. There is no processor then, and the storage writer ends before it
        begins; refused calls name `view` as the cause.
        """
        assert self.state is ContainerState.NEW
        self.state = ContainerState.RECOVERING
        try:
            await self._log.open()
            self._recovery, snapshots = await recover(
                self._log,
                self._updater,
                self._positions,
                self._dispatch.committed,
                self._read_index,
                self._checkpoints.load,
                self._active.prepare,
            )
            if view is not None:
                await self._begin_view(view, self._recovery)
            else:
                await self._begin_serving(self._recovery)
                self._checkpoints.start(snapshots)
        except GeneratorExit:
            raise  # the event loop was closed: nothing can be awaited any more
        except BaseException as error:
            self.failure = error
            # In a task of its own: a second cancellation here must not leave half of it open.
            self._stopping = own_task(self._stop_parts(), name=f"stop-{self.container_id}")
            await outlast(self._stopping)
            if not self._stopping.cancelled():
                self._stopping.exception()  # the first failure is the one to report
            raise

    async def _begin_view(self, reason: SegmentStoreError, recovery: RecoveryReport) -> None:
        if not (recovery.operations or self._may_be_empty):
            await refuse_lost_log(self.container_id, self._log, self._checkpoints.backup)
        # No checkpoint will let a segment leave.
        self._eviction.close()
        self._writer.check_log()
        await self._writer.stop(reason)
        self._stop_cause, self.state = reason, ContainerState.RUNNING

    async def _begin_serving(self, recovery: RecoveryReport) -> None:
        self._updater.begin_epoch()
        processor = self._processor = OperationProcessor(
            log=self._log,
            updater=self._updater,
            positions=self._positions,
            config=self._config.processor,
            clock=self._runtime.clock,
            on_commit=self._dispatch.committed,
            on_failure=self._failed,
            throttle=self._throttle.current,
            unflushed_of=self._writer.unflushed_bytes_of,
            checkpoints=self._checkpoints,
            defer=self._active.defer,
            learn=self._partial.learn,
            placed_min=self._config.read_index.small_bytes if self._log.reads_ranges else None,
        )
        self._active.queue = processor
        processor.note_replayed(
            recovery.operations_since_checkpoint,
            recovery.bytes_since_checkpoint,
            recovery.checkpoint_bytes,
        )
        if not recovery.operations:
            if not self._may_be_empty:
                await refuse_lost_log(self.container_id, self._log, self._checkpoints.backup)
            await processor.first_checkpoint()
        self.state = ContainerState.RUNNING
        self._dispatch.end_replay()
        self._truncation.start(processor)
        self._writer.start()
        self._active.start()
        if self._hold is not None:
            self._hold.start()
        self._truncation.begin()

    def announce_stop(self, cause: BaseException) -> None:
        """It will be stopped without a call of `close`: calls get `cause` from then on."""
        self._stop_cause = cause

    async def stop(self, *, hand_over: bool = False) -> None:
        """Let what was taken become durable, then stop.

        `hand_over`: another owner is waiting, and `settle` was called: Tier 2 gets no last copy of
        the metadata, for the next owner makes one.

        Works under full throttle and after a failure. Idempotent.
        """
        if self.state is ContainerState.RUNNING and self._processor is not None:
            if self._archiver is not None and not hand_over:
                await self._archiver.pause(_DRAIN_TIMEOUT_S)
            await self._stop_archiver()
            await self._active.drain(self._stopped_error)
            if self._checkpoints.by_reference and not hand_over:
                self._processor.checkpoint_soon(even_if_empty=False)
            await self._processor.close(self._stop_cause)
            await self._writer.drain(_DRAIN_TIMEOUT_S)
            if not hand_over:
                await self._checkpoints.finish(_DRAIN_TIMEOUT_S)
        if self._stopping is None:
            if self.state is ContainerState.STOPPED:
                return
            self._stopping = own_task(self._stop_parts(), name=f"stop-{self.container_id}")
        await asyncio.shield(self._stopping)

    def _failed(self, error: BaseException) -> None:
        """A part has failed for good: stop everything else. Called on the loop, from anywhere."""
        if (
            self.failure is not None
            or self._stopping is not None
            or self.state is ContainerState.STOPPED
        ):
            return
        self.failure = error
        _log.error("container %d stops: %s", self.container_id, describe(error))
        if self._processor is not None:
            self._processor.fail(error)
        self._stopping = own_task(self._stop_parts(), name=f"stop-{self.container_id}")
        if self._on_failure is not None:
            self._on_failure(self)

    async def _stop_parts(self) -> None:
        self.state = ContainerState.STOPPED
        self._truncation.end()
        # One that fails leaves none of the others running.
        parts = UndoStack()
        parts.push(self._log.close)
        parts.push(self._reader.close)
        parts.push(self._read_index.close)
        parts.push(self._fail_processor)
        parts.push(self._truncation.wait_idle)
        parts.push(self._checkpoints.stop)
        parts.push(partial(self._writer.stop, self._stop_cause))
        parts.push(partial(self._active.stop, self._stopped_error))
        parts.push(self._stop_confirming)
        parts.push(self._stop_archiver)
        await parts.unwind()

    async def _fail_processor(self) -> None:
        if self._processor is not None:
            cause = self.failure or self._stop_cause
            self._processor.fail(cause or ContainerStoppedError(self.container_id))

    async def _stop_archiver(self) -> None:
        if self._archiver is not None:
            await self._archiver.stop()

    def forked(self, process_id: int) -> None:
        """This process is a fork of the owner's: from here on no call does anything, and nothing is
        stopped either.
        """
        self.failure = ForkedStoreError(process_id)
        self.state = ContainerState.STOPPED
        self._truncation.end()

    def release_log(self) -> None:
        """Give back what keeps others from opening the log, for an owner whose event loop is
        closed; nothing of the container is used again.

        As `DurableDataLog.release_lock`.
        """
        self._log.release_lock()

    def check_running(self) -> None:
        """Raise ContainerStoppedError or NotPrimaryError unless the container serves."""
        if self.state is not ContainerState.RUNNING:
            raise self._stopped_error()

    def _running(self) -> OperationProcessor:
        processor = self._processor
        if processor is None or self.state is not ContainerState.RUNNING:
            raise self._stopped_error()
        return processor

    def _stopped_error(self) -> ContainerStoppedError | NotPrimaryError | ForkedStoreError:
        """What a call gets when the container does not run."""
        if isinstance(self.failure, ForkedStoreError):
            return self.failure
        if isinstance(self.failure, NotPrimaryError):
            return NotPrimaryError(self.container_id, "this owner was fenced")
        if self.failure is None and isinstance(self._stop_cause, ContainerNotServedError):
            return self._stop_cause.again()
        return ContainerStoppedError(self.container_id, self.failure or self._stop_cause)

    # --- numbers ----------------------------------------------------------------------------------

    @property
    def lacks_log_room(self) -> bool:
        """There is no room for another file of the log."""
        return self._log.short

    @property
    def snapshot_in_progress(self) -> bool:
        """No checkpoint is taken, nor the log truncated, before a metadata snapshot is made."""
        return not self._checkpoints.ready

    def stats(self) -> ContainerStats:
        """Everything the parts count, as of now. O(objects in Tier 2)."""
        return container_stats(
            self.state.value,
            self.metadata,
            self._log,
            self._read_index,
            self._writer,
            self._checkpoints,
            self._active,
            self._recovery,
            self._processor,
            self._archiver,
        )

    def health(self) -> dict[str, str | None]:
        """What is wrong with each part, a sentence; None while it is well. O(1).

        `failure` has what stopped it.
        """
        processor = self._processor if self.state is ContainerState.RUNNING else None
        return container_health(
            self.failure,
            self._log,
            self._writer,
            self._checkpoints.health(),
            self._eviction.describe(),
            processor,
            self._hold,
        )
