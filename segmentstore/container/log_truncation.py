"""LogTruncation: cuts the log of a container behind what Tier 2 holds, and deletes retained parts.
Where the disk of the log is full it makes room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from durablelog.durable_data_log import DurableDataLog, LogAddress, LogFullError
from durablelog.log_positions import LogPositions
from durablelog.operation_processor import OperationProcessor
from segmentstore.contracts.owned_tasks import own_task
from storagewriter.storage_writer import StorageWriter

if TYPE_CHECKING:
    from segmentstore.container.archive_hold import ArchiveHold

_log = logging.getLogger(__name__)


class LogTruncation:
    """Of one container; everything on its event loop.

    Nothing is truncated before `start` and after `end`. `on_truncated(sequence_number)` is called
    after each truncation, with the checkpoint that the log begins with then; `on_failure(error)` if
    the log cannot say any more what it holds. With an archive's `hold` the log is truncated only as
    far as the archive has it, and retains parts as long as that says. Without one, and on a full
    disk, none is retained.
    """

    def __init__(
        self,
        container_id: int,
        log: DurableDataLog,
        positions: LogPositions,
        writer: StorageWriter,
        on_truncated: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        hold: ArchiveHold | None,
    ) -> None:
        self._container_id = container_id
        self._log = log
        self._positions = positions
        self._writer = writer
        self._on_truncated = on_truncated
        self._on_failure = on_failure
        self._hold = hold
        self._processor: OperationProcessor | None = None
        self._task: asyncio.Task[None] | None = None
        self._freed_room = False

    def start(self, processor: OperationProcessor) -> None:
        """The container serves; `processor` writes the checkpoints that make room."""
        self._processor = processor

    def end(self) -> None:
        """Begin nothing more."""
        self._processor = None

    async def wait_idle(self) -> None:
        """Wait for what is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def begin(self) -> None:
        """Truncate as far as Tier 2 allows, and delete what is retained no longer, unless that is
        under way.
        """
        if self._task is not None or self._processor is None:
            return
        if self._point() is None and not self._deletion_due():
            return
        self._task = own_task(self._truncate(), name=f"truncate-{self._container_id}")

    def _point(self) -> tuple[int, LogAddress] | None:
        needed = self._writer.first_unflushed_sequence()
        if self._positions.truncation_point(needed) is None:
            return None  # most times, and without listing the parts of the log
        bound = self._hold.truncation_bound() if self._hold is not None else None
        return self._positions.truncation_point(needed, bound)

    def _retain_from(self) -> int | None:
        """The first part that is retained; of None none is. A full disk comes first where the
        archive is known to have what is retained.
        """
        hold = self._hold
        if hold is None or (self._log.short and hold.frees_on_full_disk):
            return None
        return hold.retain_from

    def _deletion_due(self) -> bool:
        first, retain_from = self._log.first_retained, self._retain_from()
        return first is not None and (retain_from is None or first < retain_from)

    async def truncate_now(self) -> None:
        """The same, after what is under way, and wait for the end."""
        while (running := self._task) is not None:
            await asyncio.wait([running])
        self.begin()
        if (begun := self._task) is not None:
            await asyncio.shield(begun)

    def storage_advanced(self) -> None:
        """Tier 2 has more than before."""
        self.begin()
        if self._log.short:
            self._make_room()

    def room_changed(self) -> None:
        """The log has found room, or has not: see `DurableDataLog.on_room`."""
        if self._processor is None:
            return
        if self._log.short:
            self._make_room()
        else:
            self._freed_room = False
            self._processor.throttle_changed()
            # One that found no room may find it now.
            self.begin()

    def _make_room(self) -> None:
        """The log's disk is full: flush, then write a checkpoint where one lets more be truncated,
        then truncate.
        """
        if self._processor is None:
            return
        self._writer.request_flush()
        if self._positions.newer_would_free(self._writer.first_unflushed_sequence()):
            # Once, even if nothing was logged since: the checkpoint may be in an older file than
            # what comes.
            self._processor.checkpoint_soon(even_if_empty=not self._freed_room)
            self._freed_room = True
        self.begin()

    async def _truncate(self) -> None:
        try:
            if self._deletion_due():
                await self._log.delete_retained(self._retain_from())
            point = self._point()
            if point is not None:
                sequence_number, address = point
                await self._log.truncate(address, self._retain_from())
                self._positions.truncated(sequence_number)
                self._on_truncated(sequence_number)
        except LogFullError as error:
            # Health says so; the log asks again when it searches for room.
            _log.warning("container %d: %s", self._container_id, error)
        except Exception as error:  # noqa: BLE001
            # A log that cannot say what it holds must not be written on.
            self._on_failure(error)
        finally:
            self._task = None
