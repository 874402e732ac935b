"""Archive watch: whether every acknowledged operation is in the log or in the archive at any
moment.

It stands in the way of what takes operations away, truncations of logs, deletions of retained parts
and those in the archive, and knows what owners committed. Rules of this file:

- what the archive has is read from the world's bucket, not through the owner;
- a part is complete when the log of any owner says so, and expired when the pointer to the first
  part is behind it;
- the lag is counted from when the part says that it was complete, by the wall clock, and not where
  that is not true;
- a part whose hot copy the metadata do not call deleted is in the log, or retained, but for full
  disks. One that they do is not retained, once the log was asked to delete;
- no owner replays what a truncation that was answered has left behind. One that was overtaken while
  it opened the log knows less.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress
from durablelog.operations import ArchiveOperation, Operation
from recovery.harness.archived_operations import (
    data_name,
    objects_of_no_part,
    operations_in_parts,
    operations_of,
)
from recovery.harness.history import Violation
from recovery.harness.runs.plan import Plan
from recovery.harness.simulation.store_world import StoreWorld
from segmentstore.contracts.archive_metadata import FirstPartMoved, OffloadCompleted
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerNotFoundError
from segmentstore.service import SegmentStore

NAME: Final = "archive"
KEPT_OF_ARCHIVE: Final = ("archive", "offload_above_bytes", "archive_deletion_lag_s")
"""Settings that stay when a process run has others: without an archive the log is deleted."""


class ArchiveWatch:
    """Of one world, for all its owners."""

    def __init__(self, world: StoreWorld, plan: Plan) -> None:
        self._clock = world.clock
        self._bucket = world.archive
        self._clock_is_true = not any(cycle.clock or cycle.far_clock for cycle in plan.cycles)
        self._is_tidy = not (
            {"object.put.late", "object.put.twice"} & plan.rates.keys()
            or any(cycle.ending == "takeover" for cycle in plan.cycles)
        )
        """No change comes late, and none of an owner that was paused: nothing is left in the
        archive that no log knows.
        """
        self._keeps_few = "archive_retention_bytes" in plan.settings
        self._complete: dict[str, tuple[int, ArchivedPart]] = {}
        """By the names of their data: the container and the part."""
        self._expired: set[str] = set()
        self._committed: dict[int, set[int]] = {}
        """Sequence numbers of operations by container."""
        self._begins: dict[int, LogAddress] = {}
        """Where logs begin, by the last truncation that was answered."""
        self._epochs: dict[int, int] = {}
        """Of the latest owners."""
        self._lacked_room: set[int] = set()
        """Containers whose disk was full once."""
        self.violations: list[Violation] = []
        self.parts = 0
        """That logs deleted."""

    def attach(self, store: SegmentStore) -> None:
        """Watch a store that has just been opened."""
        parts = store._parts  # noqa: SLF001 - what an owner deletes, and why, is not public
        if parts.archive is None:
            return
        lag_ms = int(parts.config.archiving.archive_deletion_lag_s * 1000)
        for owned in parts.containers:
            for part in owned.metadata.archive.tail:
                self._complete.setdefault(data_name(part), (owned.container_id, part))
            # The owner before may have died between the log and its commit.
            self._note_expired(owned)
            self._attach(owned, lag_ms)
        delete = parts.archive.storage.delete

        async def watched(name: str) -> None:
            self._check_deletion(name)
            await delete(name)

        parts.archive.storage.delete = watched  # type: ignore[method-assign]

    def _attach(self, owned: Any, lag_ms: int) -> None:
        processor, log = owned._processor, owned._log  # noqa: SLF001
        if processor is None:
            return
        commits = processor._commits  # noqa: SLF001
        committed: Callable[[Sequence[Operation]], None] = commits._on_commit  # noqa: SLF001
        numbers = self._committed.setdefault(owned.container_id, set())

        def noted(operations: Sequence[Operation]) -> None:
            numbers.update(each.sequence_number for each in operations)
            for each in operations:
                if isinstance(each, ArchiveOperation):
                    self._note(owned, each)
            committed(operations)

        truncate, delete_retained = log.truncate, log.delete_retained

        async def truncated(address: LogAddress, retain_from: int | None = None) -> None:
            self._check_truncation(owned, address)
            async with self._deleting(owned, lag_ms):
                await truncate(address, retain_from)
            self._begins[owned.container_id] = address

        async def deleted(below: int | None = None) -> None:
            async with self._deleting(owned, lag_ms):
                await delete_retained(below)

        commits._on_commit = noted  # noqa: SLF001
        log.truncate, log.delete_retained = truncated, deleted
        self._check_opening(owned)

    def _note(self, owned: Any, operation: ArchiveOperation) -> None:
        archive, change = owned.metadata.archive, operation.change
        if isinstance(change, OffloadCompleted):
            part = archive.tail[-1]
            self._complete[data_name(part)] = (owned.container_id, part)
            self._check_part(part, "became complete")
        elif isinstance(change, FirstPartMoved):
            self._note_expired(owned)

    def _note_expired(self, owned: Any) -> None:
        archive = owned.metadata.archive
        expired = archive.tail[: max(0, archive.first - (archive.count - len(archive.tail)))]
        self._expired.update(map(data_name, expired))

    def _check_part(self, part: ArchivedPart, when: str) -> None:
        data = self._bucket.objects.get(data_name(part))
        if data is None or f"{data_name(part)}-index" not in self._bucket.objects:
            self._say(f"part {part.number} {when}, and the archive has not all of it")

    def _check_opening(self, owned: Any) -> None:
        """What an owner found when it opened the log."""
        log, container_id = owned._log, owned.container_id  # noqa: SLF001
        if log.epoch < self._epochs.get(container_id, 0):
            return
        self._epochs[container_id] = log.epoch
        replayed = owned._positions._checkpoints[0][1]  # noqa: SLF001
        if replayed < self._begins.get(container_id, 0):
            self._say("an opening replays what the log was truncated behind")
        if container_id in self._lacked_room:
            return
        there = {sealed.ledger_id for sealed in log.sealed_parts()}
        for part in self._present(owned).values():
            if part.number > owned.metadata.archive.hot_deleted and part.ledger_id not in there:
                self._say(f"an opening does not find part {part.number}, whose lag is not over")

    def _present(self, owned: Any) -> dict[int, ArchivedPart]:
        """The parts of a container that became complete, by ledger."""
        return {
            part.ledger_id: part
            for container_id, part in self._complete.values()
            if container_id == owned.container_id
        }

    def _check_truncation(self, owned: Any, address: LogAddress) -> None:
        present = self._present(owned)
        for sealed in owned._log.sealed_parts():  # noqa: SLF001
            if not sealed.length or sealed.end > address:
                continue
            part = present.get(sealed.ledger_id)
            if part is None:
                self._say(f"the log leaves part {sealed.number}, which is not in the archive")
            elif data_name(part) not in self._expired:
                self._check_part(part, "is left by the log")

    @asynccontextmanager
    async def _deleting(self, owned: Any, lag_ms: int) -> AsyncIterator[None]:
        """Around what deletes parts of a log."""
        log, now_ms = owned._log, self._clock.time_ms()  # noqa: SLF001
        if log.short:
            self._lacked_room.add(owned.container_id)
        before = {sealed.ledger_id: sealed for sealed in log.sealed_parts() if sealed.length}
        yield
        left = {sealed.ledger_id for sealed in log.sealed_parts()}
        present = self._present(owned)
        for ledger_id in before.keys() - left:
            self.parts += 1
            part = present.get(ledger_id)
            if (
                part is not None
                and self._clock_is_true
                and owned.container_id not in self._lacked_room
                and now_ms - part.offloaded_ms < lag_ms
            ):
                self._say(f"the log deletes part {part.number} before its lag is over")

    def _check_deletion(self, name: str) -> None:
        data = name.removesuffix("-index")
        if data in self._complete and data not in self._expired:
            self._say(f"{name} is deleted, which is of a part in the archive")

    async def check_all(self, store: SegmentStore) -> None:
        """Every operation that was ever committed is in the archive or in the log, by their own
        bytes, unless parts expire. For a store that nothing disturbs.
        """
        if store._parts.archive is None:  # noqa: SLF001
            return
        if self._is_tidy:
            self._check_leftovers(store)
        for owned in store._parts.containers:  # noqa: SLF001
            await self._check_retained(owned)
            if owned._archiver is None or self._keeps_few:  # noqa: SLF001
                continue
            try:
                found = await operations_in_parts(store, owned)
            except (LedgerNotFoundError, DataCorruptionError) as error:
                self._say(f"container {owned.container_id}: {error}")
                continue
            # What is behind them is in the part that takes frames: no truncation deletes that.
            last = max(found, default=0)
            numbers = self._committed.get(owned.container_id, set())
            lost = {each for each in numbers if each <= last} - found
            if lost:
                self._say(
                    f"container {owned.container_id}: {len(lost)} operations are neither in "
                    f"the log nor in the archive, the first is {min(lost)}"
                )

    async def _check_retained(self, owned: Any) -> None:
        """What is retained is whole, and not what the metadata call deleted."""
        log, deleted = owned._log, owned.metadata.archive.hot_deleted  # noqa: SLF001
        await owned._truncation.truncate_now()  # noqa: SLF001
        if log.first_retained is not None and log.first_retained <= deleted:
            self._say(f"part {log.first_retained} is retained, and its hot copy is deleted")
        for sealed in log.sealed_parts():
            if sealed.end > self._begins.get(owned.container_id, 0):
                break
            try:
                handle = await log.open_part(sealed.number)
                await operations_of(handle, sealed.number, DataFrameReader())
            except (LedgerNotFoundError, DataCorruptionError) as error:
                if sealed.number > owned.metadata.archive.hot_deleted:  # it is so meanwhile
                    self._say(f"retained part {sealed.number}: {error}")

    def _check_leftovers(self, store: SegmentStore) -> None:
        known = {name.removesuffix("-index") for name in self._complete}
        # What came when its sender was dead may have come behind the deletion of its attempt.
        names = self._bucket.objects.keys() - self._bucket.outlived
        for name in objects_of_no_part(store, names, known):
            self._say(f"{name} is of no part, and of no attempt that the log knows")

    def _say(self, detail: str) -> None:
        self.violations.append(Violation(NAME, detail))
