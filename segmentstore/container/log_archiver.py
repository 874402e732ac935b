"""LogArchiver: has sealed parts of a container's log in the archive before the log deletes them.

Theory of operation. One task goes over what is due, in passes. A pass takes the parts of the log
oldest first, one at a time: parts of the archive have the order of the log, and no gaps. Each step
is an operation of the log before the next one begins. So whatever cuts a pass off, the next owner
knows what was about to happen. Rules of this file:

- an attempt is recorded, with its uid, before its first byte is uploaded. What an earlier attempt
  left is deleted by its uid before that;
- a part is complete when the archive has all of it, data and index, and not before that is logged.
  An unknown outcome of that operation stops the container: nothing is deleted;
- the log is truncated behind what is complete, and retains its copy. What is deleted when is in
  archive_deletions.py.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from durablelog.durable_data_log import DurableDataLog, SealedPart
from durablelog.log_positions import LogPositions, PartOperations
from durablelog.operations import ArchiveOperation
from segmentstore.container.archive_deletions import ArchiveDeletions
from segmentstore.container.archive_hold import ArchiveHold
from segmentstore.container.archive_reading import ArchiveReading
from segmentstore.container.offload_pause import OffloadPause
from segmentstore.container.unseen_part import operations_in
from segmentstore.container.writer_source import WriterSource
from segmentstore.contracts.archive_metadata import (
    ArchiveChange,
    OffloadBegun,
    OffloadCompleted,
    OffloadConflictError,
    PartsListClosed,
)
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    SegmentStoreError,
    TierUnavailableError,
    describe,
)
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.ledgers import (
    LedgerNotFoundError,
    ReadHandle,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.paced_reading import PacedReadHandle
from segmentstore.contracts.reports import OffloadedPart
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.version import __version__
from segmentstore.contracts.waiting import note_end
from tier2.archive.archive_config import ArchiveConfig
from tier2.archive.archive_names import CONTAINER_KEY, PROGRAM_KEY, STORE_KEY
from tier2.archive.archive_place import ArchivePlace
from tier2.archive.archived_parts_lists import ArchivedPartsLists
from tier2.archive.ledger_offloader import OffloadRefusedError
from tier2.object_storage import ObjectStorageError

_log: Final = logging.getLogger(__name__)

_TRANSIENT: Final = (
    ObjectStorageError,
    TierUnavailableError,
    DataCorruptionError,
    LedgerNotFoundError,
    OffloadConflictError,
    OffloadRefusedError,
)
"""What a pass is cut off by, and tried again: nothing of it says that the container must stop."""
_RETRY_MIN_S: Final = 1.0
_RETRY_MAX_S: Final = 60.0
_PASS_INTERVAL_S: Final = 10.0
"""Longest time between two passes while all is well: parts grow old without a notice."""


class ArchiveStatistics(NamedTuple):
    """The archive of one container."""

    parts: int
    """In the archive, complete."""
    bytes: int
    """Of their entries."""
    unarchived_bytes: int
    """Of sealed parts of the log that the archive has not."""
    offloaded: int
    """Parts, by this owner."""
    offloaded_bytes: int
    failures: int
    """Passes that were cut off."""
    list_gets: int
    """Requests for lists of parts."""
    kept_lists: int
    """Lists in memory."""


class _Request(ABC):
    """What a caller asked for, to be done in the next pass."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(note_end)

    @abstractmethod
    async def serve(self, archiver: LogArchiver) -> None:
        """Do it. What it raises ends the pass."""

    def end(self, error: SegmentStoreError | None) -> None:
        """The pass has ended, or nothing comes of it any more."""
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class _OffloadRequest(_Request):
    def __init__(self, before: int | None) -> None:
        super().__init__()
        self._before = before
        self.parts: list[OffloadedPart] = []

    async def serve(self, archiver: LogArchiver) -> None:
        try:
            await archiver.offload_before(self._before, self.parts)
        finally:
            if self.parts and self.parts[-1].failure:
                self.end(None)  # that is its answer
        self.end(None)


class _RemovalRequest(_Request):
    def __init__(self, before: int) -> None:
        super().__init__()
        self._before = before
        self.removed = 0

    async def serve(self, archiver: LogArchiver) -> None:
        self.removed = await archiver.deletions.remove_before(self._before)
        self.end(None)


class LogArchiver(ArchiveHold):
    """Of one container, after its start; everything on its event loop.

    `on_deletable()` is called when the log may delete more than before, or writers need no longer
    wait; `on_failure(error)` if it cannot go on. `runtime` has a clock whose jumps ahead make
    nothing old.
    """

    def __init__(
        self,
        source: WriterSource,
        log: DurableDataLog,
        positions: LogPositions,
        place: ArchivePlace,
        config: ArchiveConfig,
        runtime: Runtime,
        on_deletable: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        super().__init__(source.metadata, log, positions, runtime.clock)
        self._source = source
        self._offloader = place.offloader
        self._limiter = place.limiter
        self.lists = ArchivedPartsLists(
            place.storage,
            source.store_id,
            source.metadata.container_id,
            lambda: source.metadata.archive,
        )
        self._config = config
        self._runtime = runtime
        self._on_deletable = on_deletable
        self._on_failure = on_failure
        self._health = HealthNote("archive", runtime.clock)
        self._backoff = Backoff(runtime.random, min_s=_RETRY_MIN_S, max_s=_RETRY_MAX_S)
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._pause = OffloadPause()
        self._requests: list[_Request] = []
        self.deletions = ArchiveDeletions(
            source, place.offloader, self.lists, config, runtime, on_deletable
        )
        self._ended = False
        self._offloaded = self._offloaded_bytes = 0

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """The container serves."""
        self._positions.on_part = self._part_began
        name = f"archive-{self._metadata.container_id}"
        self._task = own_task(self._run(), name=name, on_failure=self._failed)

    async def pause(self, seconds: float) -> None:
        """A stop is near: as `OffloadPause.begin`."""
        await self._pause.begin(seconds)

    async def stop(self) -> None:
        """Cut off what is under way: the next owner begins it again. Idempotent."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        _fail(self._requests, ContainerStoppedError(self._metadata.container_id))

    def _part_began(self) -> None:
        if not self._ended:
            self._count()
            if self._health.describe() is None:  # else when the pause between two tries is over
                self._wake.set()

    def _failed(self, error: BaseException) -> None:
        if not self._ended:
            self._on_failure(error)

    # --- what others ask --------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """From the first part on: all of the log goes to the archive."""
        return True

    @property
    def frees_on_full_disk(self) -> bool:
        """This owner has seen that the archive has what the metadata say."""
        return self.deletions.place_checked

    @property
    def offloaded_bytes(self) -> int:
        """Of parts that came into the archive, by this owner."""
        return self._offloaded_bytes

    @property
    def is_offloading(self) -> bool:
        """Whether so much waits that parts go at once, whatever their age."""
        return self._unarchived_bytes > self._config.offload_above_bytes

    async def offload_prefix(self, before: int | None = None) -> Sequence[OffloadedPart]:
        """Archive the sealed parts all of whose operations are before the sequence number, whatever
        their age; of None all. Gives what became of each, up to the first that failed.

        A call while a pass runs waits for the next one, and shares it with other calls.
        """
        request = _OffloadRequest(before)
        await self._ask(request)
        return request.parts

    async def remove_prefix(self, before: int) -> int:
        """Take the parts out of the archive whose operations are all before the sequence number,
        and whose hot copies may be deleted; gives how many, when their objects are deleted. If
        that is all, and the archive has lost the newest part, they go in any case: the archive
        begins anew.

        Raises TierUnavailableError: some of it may be done, and the rest is done later.
        """
        request = _RemovalRequest(before)
        await self._ask(request)
        return request.removed

    async def _ask(self, request: _Request) -> None:
        if self._ended:
            raise ContainerStoppedError(self._metadata.container_id)
        self._requests.append(request)
        self._wake.set()
        await asyncio.shield(request.done)

    def health(self) -> str | None:
        """What keeps the archive from having what is due; None if nothing does."""
        return self._health.describe()

    def statistics(self) -> ArchiveStatistics:
        """As of now. O(1)."""
        archive = self._archive
        return ArchiveStatistics(
            archive.kept,
            archive.kept_bytes,
            self._unarchived_bytes,
            self._offloaded,
            self._offloaded_bytes,
            self._health.failures,
            self.lists.gets,
            self.lists.kept_lists,
        )

    # --- passes -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            requests, self._requests = self._requests, []
            pause_s = _PASS_INTERVAL_S
            try:
                await self._pass(requests)
            except _TRANSIENT as error:
                _fail(requests, _as_ours(error))
                self._health.failed(error)
                _log.warning("container %d: archive: %s", self._metadata.container_id, error)
                pause_s = self._backoff.next_s()
            except BaseException as error:
                _fail(requests, ContainerStoppedError(self._metadata.container_id, error))
                raise
            else:
                self._health.succeeded()
                self._backoff.reset()
            self.lists.evict_idle()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _pass(self, requests: Sequence[_Request]) -> None:
        self._count()
        removals = [request for request in requests if isinstance(request, _RemovalRequest)]
        for removal in removals:
            await removal.serve(self)
        await self.deletions.check_place()
        await self.deletions.delete_hot_copies()
        for request in requests:
            if request not in removals:
                await request.serve(self)
        while (part := self._due_part()) is not None:
            await self._offload_next(part)
            await self.deletions.delete_hot_copies()
        if await self.deletions.expire():
            self._wake.set()
        await self.deletions.sweep()

    def _candidates(self) -> list[SealedPart]:
        """Sealed parts that the archive has not, oldest first; empty ones count for nothing."""
        parts = self._log.sealed_parts(self._archive.last_number)
        return [part for part in parts if part.length]

    def _due_part(self) -> SealedPart | None:
        """The oldest part, if it is old enough, or if there are too many bytes."""
        candidates = self._candidates()
        if not candidates:
            return None
        waiting = sum(part.length for part in candidates)
        age_ms = self._runtime.clock.time_ms() - candidates[0].sealed_ms
        # A clock that went back counts for nothing where no age is asked for.
        is_old = age_ms >= self._config.offload_after_s * 1000 or not self._config.offload_after_s
        return candidates[0] if is_old or waiting > self._config.offload_above_bytes else None

    async def offload_before(self, before: int | None, reports: list[OffloadedPart]) -> None:
        """In a pass: offload what a call asked for; a failure is the last report, and is raised."""
        while candidates := self._candidates():
            part = candidates[0]
            operations = self._positions.operations_of(part.number)
            last = 0 if operations is None else operations.last_sequence
            if before is not None and last >= before:
                return
            before_it = self._archive.last_sequence
            try:
                archived = await self._offload_next(part)
            except _TRANSIENT as error:
                reports.append(_report(self._metadata.container_id, part, last, error))
                raise
            last = archived.last_sequence if archived.last_sequence > before_it else 0
            reports.append(_report(self._metadata.container_id, part, last, archived))

    # --- one part ---------------------------------------------------------------------------------

    async def _offload_next(self, sealed: SealedPart) -> ArchivedPart:
        """Have one part in the archive, complete. Raises what its steps raise."""
        await self._pause.enter()
        try:
            return await self._offload(sealed)
        finally:
            self._pause.leave()

    async def _offload(self, sealed: SealedPart) -> ArchivedPart:
        if self._archive.list_due:
            ordinal = await self.lists.close_list()
            await self._commit(PartsListClosed(ordinal))
        if (left := self._archive.attempt) is not None:
            await self._offloader.delete_offloaded(left.ledger_id, left.uid)
        handle = await self._log.open_part(sealed.number)
        try:
            part = self._described(sealed, handle, await self._operations_in(sealed, handle))
            await self._commit(OffloadBegun(part))
            reading = ArchiveReading(handle, self._limiter, part.checkpoint_sequence)
            await self._offloader.offload(reading, part.uid, self._extra_metadata())
            now_ms = self._runtime.clock.time_ms()
            await self._commit(
                OffloadCompleted(part.number, part.uid, now_ms, reading.checkpoint_entry)
            )
        finally:
            await handle.close()
        self._offloaded += 1
        self._offloaded_bytes += part.length
        self._health.succeeded()
        self._count()
        self._on_deletable()
        return self._archive.tail[-1]

    async def _operations_in(self, sealed: SealedPart, handle: ReadHandle) -> PartOperations | None:
        begin, archive = self._positions.begin, self._archive
        if begin is None or begin <= sealed.first:
            return self._positions.operations_of(sealed.number)
        # A log whose disk was full began inside of the part, or behind it.
        before = (archive.last_sequence, archive.last_ms)
        paced = PacedReadHandle(handle, self._limiter)
        return await operations_in(paced, sealed.number, self._metadata.container_id, before)

    def _described(
        self, sealed: SealedPart, handle: ReadHandle, operations: PartOperations | None
    ) -> ArchivedPart:
        archive = self._archive
        # No operation ends in a part that lies in the middle of one.
        first = last = archive.last_sequence
        first_ms = last_ms = archive.last_ms
        if operations is not None:
            first, last = operations.first_sequence, operations.last_sequence
            first_ms, last_ms = operations.first_ms, operations.last_ms
        return ArchivedPart(
            number=sealed.number,
            ledger_id=sealed.ledger_id,
            uid=self._runtime.random.getrandbits(128).to_bytes(16, "big"),
            state=OffloadState.ATTEMPT,
            entries=handle.last_entry + 1,
            length=handle.length,
            first_sequence=first,
            last_sequence=last,
            first_ms=first_ms,
            last_ms=last_ms,
            checkpoint_sequence=self._positions.checkpoint_in(sealed.number),
        )

    def _extra_metadata(self) -> dict[str, str]:
        return {
            STORE_KEY: self._source.store_id,
            CONTAINER_KEY: str(self._metadata.container_id),
            PROGRAM_KEY: __version__,
        }

    async def _commit(self, change: ArchiveChange) -> None:
        await self._source.commit(ArchiveOperation(change))


def _fail(requests: Sequence[_Request], error: SegmentStoreError) -> None:
    for request in requests:
        request.end(error)


def _as_ours(error: Exception) -> SegmentStoreError:
    if isinstance(error, SegmentStoreError):
        return error
    return TierUnavailableError("archive", str(error))


def _report(
    container_id: int, part: SealedPart, last: int, outcome: ArchivedPart | Exception
) -> OffloadedPart:
    failure = describe(outcome) if isinstance(outcome, Exception) else None
    return OffloadedPart(container_id, part.number, part.ledger_id, part.length, last, failure)
