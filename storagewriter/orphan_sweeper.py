"""OrphanSweeper: finds objects in Tier 2 that no operation of the log names, and hands them to the
garbage collector.

Correctness never needs it: an orphan costs money, nothing else. So it is slow, and bounded in
requests: one listing request in `orphan_sweep_interval_s`, shard after shard
(`docs/formats/object-names.md`). It begins at a random shard, so that processes that live shorter
than a sweep get everywhere in the end. Rules:

- it deletes nothing (but probes that a check left behind). What it finds becomes garbage by an
  operation of the fenced log, so a stale owner can mark nothing for deletion. From there it takes
  the one path of all deletions, the deletion lag included;
- which objects are orphans is said by `orphan_rules`, and asked again right before the commit;
- only objects with the tag of the store are marked for deletion. Where another store has its marker
  nothing is swept, unless an operator has said that they are meant to share. That is checked before
  a sweep, and again between the finding of an orphan and its mark. For a store puts its marker
  there before its first object;
- failures are counted and waited out with back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial

from durablelog.operations import StorageUpdateOperation
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import NO_OTHER_STORES, OtherStores, WriterDataSource
from storagewriter.orphan_rules import OrphanVerdict, classify_object, is_abandoned, is_left_over
from tier2.object_names import PROBE_PREFIX, is_of_store
from tier2.object_storage import (
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
    UnfinishedUpload,
)
from tier2.unique_ids import store_tag

SHARDS = 256
"""One sweep lists each once."""
BATCH_OBJECTS = 100
"""Orphans in one operation."""
GARBAGE_MAX = 10_000
"""Objects that may wait for their deletion while more are marked for deletion: bounds the metadata
and its checkpoints.
"""
SUSPECTS_MAX = 1_000
"""Objects of the running epoch remembered until they are seen again."""


class SweepStoppedError(Exception):
    """The sweep must not go on; the message is one sentence that says why. Nothing was touched."""


class OrphanSweeper:
    """The searching half of what a storage writer does for deletion; the writer owns the task that
    runs it.

    `in_flight` has the names of objects that this process uploads and that are not committed yet.
    `on_garbage()` is called when there is something for the collector.
    """

    def __init__(
        self,
        source: WriterDataSource,
        storage: ObjectStorage,
        config: StorageWriterConfig,
        runtime: Runtime,
        in_flight: Container[str],
        on_garbage: Callable[[], None],
        other_stores: OtherStores = NO_OTHER_STORES,
    ) -> None:
        self.shared_with = other_stores.shared_with
        """Which other store keeps objects in the same place, in words; None if there is none."""
        self._sharing_is_meant = other_stores.is_meant
        # An operator has said that other stores may be there: then the tag alone decides what is
        # ours.
        self._source = source
        self._tag = store_tag(source.store_id)
        self._storage = storage
        self._clock = runtime.clock
        self._random = runtime.random
        self._in_flight = in_flight
        self._on_garbage = on_garbage
        self._interval_s = config.orphan_sweep_interval_s
        self._lag_s = config.deletion_lag_s
        self._backoff = Backoff(runtime.random, min_s=config.retry_min_s, max_s=config.retry_max_s)
        self._lock = asyncio.Lock()
        self._suspects: dict[str, float] = {}
        self._began_ms: int | None = None
        self.health = HealthNote(f"search for orphans in tier2 {storage.url}", runtime.clock)
        self.stopped_by: str | None = None
        """Why the last sweep did not go to its end."""
        self.sweeps = self.orphans_found = self.orphan_bytes = self.uploads_aborted = 0

    async def run(self) -> None:
        """Sweep until cancelled; ends at once if sweeping is off. Raises what a commit raises."""
        self._began_ms = self._clock.time_ms()
        if not self._interval_s:
            return
        shard = self._random.randrange(SHARDS)
        await asyncio.sleep(self._random.random() * self._interval_s)
        while True:
            try:
                await self._sweep(shard)
            except SweepStoppedError:
                await asyncio.sleep(self._interval_s * SHARDS)

    async def _sweep(self, first_shard: int) -> None:
        await self._persist(self._begin)
        for step in range(SHARDS):
            shard = (first_shard + step) % SHARDS
            pages = await self._persist(partial(self._sweep_shard, shard))
            # Each page was a request; those behind the first are paid for with patience.
            await asyncio.sleep(self._interval_s * pages)
        self.sweeps += 1

    async def _persist(self, step: Callable[[], Awaitable[int]]) -> int:
        """Do a step of a sweep, again and again while Tier 2 does not answer."""
        while True:
            try:
                result = await step()
            except StorageUnavailableError as error:
                self.health.failed(error)
                await asyncio.sleep(max(self._backoff.next_s(), self._interval_s))
            else:
                self.health.succeeded()
                self._backoff.reset()
                return result

    async def _begin(self) -> int:
        await self.check_alone()
        await self.remove_probes()
        return len(await self.abort_abandoned(await self._storage.list_unfinished()))

    async def _sweep_shard(self, shard: int) -> int:
        """Mark the orphans of one shard for deletion; return how many requests listed it."""
        prefix = f"{shard:02x}/{self._source.metadata.container_id:08x}/"
        found: list[StoredObject] = []
        pages = 0
        async for page in self._storage.list(prefix):
            pages += 1
            found += self.sift(page)
        await self.mark_for_deletion(found)
        return max(pages, 1)

    # --- steps, also for a sweep of the whole store at once ---------------------------------------

    async def check_alone(self) -> None:
        """Raise SweepStoppedError if another store keeps objects here by mistake.

        Also StorageUnavailableError.
        """
        self.stopped_by = None if self._sharing_is_meant else await self.shared_with()
        if self.stopped_by is not None:
            raise SweepStoppedError(self.stopped_by)

    def sift(self, page: Sequence[StoredObject]) -> list[StoredObject]:
        """The orphans in a page of a listing.

        Raises SweepStoppedError if we are not the newest owner. O(page).
        """
        now = asyncio.get_running_loop().time()
        return [stored for stored in page if self._is_orphan(stored, now)]

    def of_unknown_owner(self, page: Sequence[StoredObject]) -> list[StoredObject]:
        """What in a page of a listing is neither known to the log nor provably of this store.

        O(page).
        """
        return [each for each in page if self.verdict(each.name) is OrphanVerdict.UNKNOWN_OWNER]

    def verdict(self, name: str) -> OrphanVerdict:
        """What an object is to the container. O(1)."""
        source = self._source
        return classify_object(name, source.metadata, source.epoch, self._in_flight, self._tag)

    def is_abandoned(self, upload: UnfinishedUpload) -> bool:
        """Whether an upload in parts has no owner left. O(1)."""
        source, now_ms = self._source, self._clock.time_ms()
        container_id = source.metadata.container_id
        return is_abandoned(upload, container_id, source.epoch, self._in_flight, now_ms, self._tag)

    def _is_orphan(self, stored: StoredObject, now: float) -> bool:
        name = stored.name
        verdict = self.verdict(name)
        if verdict is OrphanVerdict.NEWER:
            epoch = self._source.epoch
            self.stopped_by = f"{name} is of an epoch after ours, {epoch}: another owner is newer"
            raise SweepStoppedError(self.stopped_by)
        if verdict is OrphanVerdict.SUSPECT:
            return self._is_confirmed(stored, now)
        self._suspects.pop(name, None)
        return verdict is OrphanVerdict.ORPHAN

    def _is_confirmed(self, suspect: StoredObject, now: float) -> bool:
        # What was there before this owner began, and yet is of its epoch, is of a log that was
        # lost: `restore` may want it.
        if self._began_ms is None or suspect.modified_ms < self._began_ms:
            return False
        if len(self._suspects) >= SUSPECTS_MAX and suspect.name not in self._suspects:
            self._suspects.clear()
        first_seen = self._suspects.setdefault(suspect.name, now)
        return first_seen < now and now - first_seen >= self._lag_s

    def is_full(self, more: int = 0) -> bool:
        """Whether `mark_for_deletion` would make nothing garbage any more, behind so many more
        orphans.

        O(1).
        """
        return len(self._source.metadata.garbage) + more >= GARBAGE_MAX

    async def mark_for_deletion(
        self, found: Sequence[StoredObject], is_orphan: Callable[[StoredObject], bool] | None = None
    ) -> list[StoredObject]:
        """Make orphans garbage; return those that became it: not what is known by now, nor beyond
        the bound.

        `is_orphan` is asked again in the turn in which an operation is handed to the log; left out,
        the sweeper's rules are. What does not carry the tag of the store is passed over, whatever
        it says. Raises SweepStoppedError, StorageUnavailableError, and what a commit raises.
        """
        if not found:
            return []
        await self.check_alone()
        marked_for_deletion: list[StoredObject] = []
        async with self._lock:
            for first in range(0, len(found), BATCH_OBJECTS):
                if self.is_full():
                    break
                now = asyncio.get_running_loop().time()
                some = found[first : first + BATCH_OBJECTS]
                judge = is_orphan or partial(self._is_orphan, now=now)
                batch = [
                    stored
                    for stored in some
                    if is_of_store(stored.name, self._tag) and judge(stored)
                ]
                if batch:
                    await self._source.commit(
                        StorageUpdateOperation(objects=[_record(stored) for stored in batch])
                    )
                    marked_for_deletion += batch
                    self.orphans_found += len(batch)
                    self.orphan_bytes += sum(stored.size for stored in batch)
        for stored in marked_for_deletion:
            self._suspects.pop(stored.name, None)
        self._on_garbage()
        return marked_for_deletion

    async def remove_probes(self) -> None:
        """Delete what checks of the store at its opening left behind when they were cut off.

        Raises StorageUnavailableError.
        """
        if self._source.metadata.container_id:
            return  # They are the whole store's: one container sees to them.
        async for page in self._storage.list(PROBE_PREFIX):
            for stored in page:
                if is_left_over(stored, self._clock.time_ms()):
                    await self._storage.delete(stored.name)

    async def abort_abandoned(self, uploads: Sequence[UnfinishedUpload]) -> list[UnfinishedUpload]:
        """Give up the uploads in parts that have no owner left; return them.

        Raises StorageUnavailableError.
        """
        aborted = []
        for upload in uploads:
            if self.is_abandoned(upload):
                await self._storage.abort_unfinished(upload)
                self.uploads_aborted += 1
                aborted.append(upload)
        return aborted


def _record(stored: StoredObject) -> ObjectRecord:
    return ObjectRecord(stored.name, stored.size, max(stored.modified_ms, 0))
