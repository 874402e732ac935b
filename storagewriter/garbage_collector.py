"""GarbageCollector: deletes Tier-2 objects to which the log has no reference any more.

Rules (DESIGN 4.3):
- only what is in `metadata.garbage` is ever deleted, and only after the deletion lag by the
  container's deletion clock, on which the wall clock has no influence;
- objects without the tag of the store, of an older version or of a store before a restore, are
  deleted only where no other store has its marker. A version that knew no tags may have taken
  another's object for an orphan;
- an object that a read has open waits;
- the metadata forget an object only after its deletion was confirmed. An outcome that is unknown
  forgets nothing, and a crash at any point leaves the object in the metadata, where the next owner
  finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from durablelog.operations import ObjectsDeletedOperation
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.object_states import GarbageObject
from segmentstore.contracts.owned_tasks import OwnedTaskGroup
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import WriterDataSource, no_other_store
from storagewriter.deletion_clock import DeletionClock
from tier2.object_names import is_of_store
from tier2.object_storage import ObjectStorage, StorageUnavailableError
from tier2.unique_ids import store_tag

PASS_INTERVAL_S = 1.0
"""Passes are at least this far apart; and a thousandth of the lag, since each check of all
garbage.
"""
PASS_INTERVAL_MAX_S = 60.0
"""What changed meanwhile, in the log or in what is in use, is seen within this."""
MARKERS_INTERVAL_S = 600.0
"""Least time between two searches for the markers of other stores, while one is there and keeps
garbage from being deleted.
"""
BATCH_NAMES = 100
"""Names in one operation."""
DELETES_MAX = 8
"""Deletions in flight."""


class GarbageCollector:
    """The deleting half of a storage writer, which owns the task that runs it.

    `shared_with` says which other store keeps objects in the same place, in words; None if there is
    none.
    """

    def __init__(
        self,
        source: WriterDataSource,
        storage: ObjectStorage,
        config: StorageWriterConfig,
        runtime: Runtime,
        shared_with: Callable[[], Awaitable[str | None]] = no_other_store,
    ) -> None:
        self._shared_with = shared_with
        self._source = source
        self._tag = store_tag(source.store_id)
        self._storage = storage
        self._boot = runtime.boot
        self._lag_s = config.deletion_lag_s
        self._deletion_clock: DeletionClock | None = None
        self._interval_s = min(
            max(PASS_INTERVAL_S, config.deletion_lag_s / 1000), PASS_INTERVAL_MAX_S
        )
        self._backoff = Backoff(runtime.random, min_s=config.retry_min_s, max_s=config.retry_max_s)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._idle = False
        self._markers_again_s = 0.0
        self.health = HealthNote(f"deletion in tier2 {storage.url}", runtime.clock)
        self.deleted = 0

    def notice(self) -> None:
        """There may be garbage now.

        O(new garbage); only wakes a collector that has none to wait for.
        """
        garbage = self._source.metadata.garbage
        if self._deletion_clock is not None and garbage:
            self._deletion_clock.notice(garbage, asyncio.get_running_loop().time())
            if self._idle:
                self._wake.set()

    async def run(self) -> None:
        """Collect until cancelled; the log has been replayed. Raises what a commit raises."""
        loop = asyncio.get_running_loop()
        while True:
            failures = self.health.failures
            await self._collect(ask_again=False)
            delay = self._next_delay_s()
            if self.health.failures > failures:
                delay = max(delay or 0.0, self._backoff.next_s())
            else:
                self._backoff.reset()
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
        """Delete what is due and not in use; return how many objects are deleted and forgotten.

        A deletion that fails ends the pass after what was confirmed is committed. How long the
        others have waited goes through the log now and then, for the next owner.
        """
        return await self._collect(ask_again=True)

    async def _collect(self, *, ask_again: bool) -> int:
        async with self._lock:
            count, due = 0, await self._provably_ours(self._due(), ask_again=ask_again)
            for first in range(0, len(due), BATCH_NAMES):
                batch = due[first : first + BATCH_NAMES]
                confirmed, failed = await self._delete(batch)
                if confirmed:
                    await self._source.commit(ObjectsDeletedOperation(confirmed))
                    self.deleted += len(confirmed)
                    count += len(confirmed)
                if failed:
                    break
            if self._source.metadata.garbage:
                now_s = asyncio.get_running_loop().time()
                reading = self._counted().reading(self._source.metadata, self._boot(), now_s)
                if reading is not None:
                    await self._source.commit(reading)
            return count

    def remaining_ms(self, name: str, garbage: GarbageObject) -> int:
        """How much of the deletion lag of a garbage object is left; 0 if it has passed."""
        return self._counted().remaining_ms(name, garbage, asyncio.get_running_loop().time())

    def _counted(self) -> DeletionClock:
        """The clock, begun when it is first asked for: the log has been replayed by then."""
        if self._deletion_clock is None:
            now_s, reading = asyncio.get_running_loop().time(), self._source.metadata.deletion_clock
            self._deletion_clock = DeletionClock(reading, self._boot(), now_s, self._lag_s)
        return self._deletion_clock

    def _due(self) -> list[str]:
        clock, garbage = self._counted(), self._source.metadata.garbage
        now_s = asyncio.get_running_loop().time()
        clock.observe(garbage, now_s)
        return [name for name, each in garbage.items() if not clock.remaining_ms(name, each, now_s)]

    async def _provably_ours(self, names: list[str], *, ask_again: bool) -> list[str]:
        """Those that carry the tag of the store; all, where no other store has its marker.

        At most one listing request.

        Another store's marker may stay for ever: without `ask_again` it is not searched for in
        every pass.
        """
        tagged = [name for name in names if is_of_store(name, self._tag)]
        now_s = asyncio.get_running_loop().time()
        if len(tagged) == len(names) or (now_s < self._markers_again_s and not ask_again):
            return tagged
        try:
            if await self._shared_with() is None:
                return names
            self._markers_again_s = now_s + MARKERS_INTERVAL_S
        except StorageUnavailableError as error:
            self.health.failed(error)
        return tagged

    def _next_delay_s(self) -> float | None:
        garbage = self._source.metadata.garbage
        if not garbage:
            return None
        clock, now_s = self._counted(), asyncio.get_running_loop().time()
        wait_s = min(clock.remaining_ms(name, each, now_s) for name, each in garbage.items()) / 1000
        return min(max(wait_s, self._interval_s), PASS_INTERVAL_MAX_S, clock.interval_s)

    async def _delete(self, names: Sequence[str]) -> tuple[list[str], bool]:
        """The names confirmed to be deleted, and whether any could not be."""
        confirmed: list[str] = []
        failed = False
        for first in range(0, len(names), DELETES_MAX):
            async with OwnedTaskGroup() as group:
                tasks = {
                    name: group.create_task(self._delete_one(name))
                    for name in names[first : first + DELETES_MAX]
                }
            confirmed += [name for name, task in tasks.items() if task.result()]
            failed = any(task.result() is False for task in tasks.values())
            if failed:
                break
        return confirmed, failed

    async def _delete_one(self, name: str) -> bool | None:
        """True: deleted. False: failed, or not known. None: in use, left alone."""
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
