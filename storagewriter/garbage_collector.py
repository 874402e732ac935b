"""GarbageCollector: deletes Tier-2 objects that the log says nobody refers to any more.

Rules (DESIGN 4.3):
- only what is in `metadata.garbage` is ever deleted, and only after the deletion lag by the wall clock;
  a clock that goes backwards delays, no more;
- an object that a read has open waits;
- the metadata forget an object only after its deletion was confirmed: an outcome that is unknown forgets
  nothing, and a crash at any point leaves the object in the metadata, where the next owner finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from durablelog.operations import ObjectsDeletedOperation
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import WriterDataSource
from storagewriter.retry import BackOff, TierHealth
from tier2.object_storage import ObjectStorage, StorageUnavailableError

PASS_SPACING_S = 1.0
"""Passes are at least this far apart; and a thousandth of the lag, since each looks at all garbage."""
PASS_SPACING_MAX_S = 60.0
"""A clock set forward is noticed within this."""
BATCH_NAMES = 100
"""Names in one operation."""
DELETES_MAX = 8
"""Deletions in flight."""


class GarbageCollector:
    """The deleting half of a storage writer, which owns the task that runs it."""

    def __init__(
        self, source: WriterDataSource, storage: ObjectStorage, config: StorageWriterConfig, runtime: Runtime
    ) -> None:
        self._source = source
        self._storage = storage
        self._clock = runtime.clock
        self._lag_ms = int(config.deletion_lag_s * 1000)
        self._spacing_s = min(max(PASS_SPACING_S, config.deletion_lag_s / 1000), PASS_SPACING_MAX_S)
        self._back_off = BackOff(config.retry_min_s, config.retry_max_s, runtime.random)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._idle = False
        self.health = TierHealth(f"deletion in tier2 {storage.url}", runtime.clock)
        self.deleted = 0

    def notice(self) -> None:
        """There may be garbage now. Cheap; only wakes a collector that has none to wait for."""
        if self._idle and self._source.metadata.garbage:
            self._wake.set()

    async def run(self) -> None:
        """Collect until cancelled. Raises what a commit raises."""
        loop = asyncio.get_running_loop()
        while True:
            failures = self.health.failures
            await self.collect_now()
            delay = self._next_delay_s()
            if self.health.failures > failures:
                delay = max(delay or 0.0, self._back_off.failed())
            else:
                self._back_off.succeeded()
            self._wake.clear()
            self._idle = delay is None
            timer = loop.call_later(delay, self._wake.set) if delay is not None else None
            try:
                await self._wake.wait()
            finally:
                self._idle = False
                if timer is not None:
                    timer.cancel()

    async def collect_now(self) -> int:
        """Delete what is due and not in use; return how many objects are gone and forgotten.

        A deletion that fails ends the pass after what was confirmed is committed.
        """
        async with self._lock:
            count, due = 0, self._due()
            for first in range(0, len(due), BATCH_NAMES):
                batch = due[first : first + BATCH_NAMES]
                confirmed, failed = await self._delete(batch)
                if confirmed:
                    await self._source.commit(ObjectsDeletedOperation(confirmed))
                    self.deleted += len(confirmed)
                    count += len(confirmed)
                if failed:
                    break
            return count

    def _due(self) -> list[str]:
        latest = self._clock.time_ms() - self._lag_ms
        return [name for name, garbage in self._source.metadata.garbage.items() if garbage.unreferenced_ms <= latest]

    def _next_delay_s(self) -> float | None:
        garbage = self._source.metadata.garbage
        if not garbage:
            return None
        due_ms = min(each.unreferenced_ms for each in garbage.values()) + self._lag_ms
        wait_s = (due_ms - self._clock.time_ms()) / 1000
        return min(max(wait_s, self._spacing_s), PASS_SPACING_MAX_S)

    async def _delete(self, names: Sequence[str]) -> tuple[list[str], bool]:
        """The names confirmed to be gone, and whether any could not be."""
        confirmed: list[str] = []
        failed = False
        for first in range(0, len(names), DELETES_MAX):
            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(self._delete_one(name)) for name in names[first : first + DELETES_MAX]}
            confirmed += [name for name, task in tasks.items() if task.result()]
            failed = any(task.result() is False for task in tasks.values())
            if failed:
                break
        return confirmed, failed

    async def _delete_one(self, name: str) -> bool | None:
        """True: gone. False: failed, or nobody knows. None: in use, left alone."""
        if self._source.object_in_use(name):
            return None
        try:
            await self._storage.delete(name)
            if await self._storage.head(name) is not None:
                raise StorageUnavailableError(name, "still there after it was deleted")
        except StorageUnavailableError as error:
            self.health.failed(error)
            return False
        self.health.succeeded()
        return True
