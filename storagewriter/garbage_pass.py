"""GarbagePass: one pass over all of Tier 2 for what one container does not need, done at once.

What the orphan sweeper and the garbage collector do slowly and all the time, for an operator who
does not want to wait. The rules stay theirs; nothing here checks or deletes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.object_states import GarbageObject
from storagewriter.garbage_collector import GarbageCollector
from storagewriter.orphan_rules import OrphanVerdict
from storagewriter.orphan_sweeper import OrphanSweeper
from tier2.object_storage import StoredObject, UnfinishedUpload


class WaitingGarbage(NamedTuple):
    """An object that nothing refers to, and that is still there."""

    name: str
    garbage: GarbageObject
    left_ms: int
    """Of its deletion lag; 0 if it is over."""


class GarbagePass:
    """Of one container; begun when it is made."""

    def __init__(
        self, metadata: ContainerMetadata, sweeper: OrphanSweeper, collector: GarbageCollector
    ) -> None:
        self._metadata = metadata
        self._sweeper = sweeper
        self._collector = collector
        self._before = dict(metadata.garbage)

    @property
    def container_id(self) -> int:
        """Which container."""
        return self._metadata.container_id

    def verdict(self, name: str) -> OrphanVerdict:
        """As `OrphanSweeper.verdict`."""
        return self._sweeper.verdict(name)

    def is_abandoned(self, upload: UnfinishedUpload) -> bool:
        """As `OrphanSweeper.is_abandoned`."""
        return self._sweeper.is_abandoned(upload)

    async def check_alone(self) -> None:
        """As `OrphanSweeper.check_alone`."""
        await self._sweeper.check_alone()

    async def abort_uploads(self, uploads: Sequence[UnfinishedUpload]) -> list[UnfinishedUpload]:
        """Abort those of these uploads that have no owner left, and return them; delete what
        checks of the store left behind.

        Raises StorageUnavailableError.
        """
        await self._sweeper.remove_probes()
        return await self._sweeper.abort_abandoned(uploads)

    def of_unknown_owner(self, page: Sequence[StoredObject]) -> list[StoredObject]:
        """As `OrphanSweeper.of_unknown_owner`."""
        return self._sweeper.of_unknown_owner(page)

    async def mark_for_deletion(self, page: Sequence[StoredObject]) -> list[StoredObject]:
        """Make the orphans in a page of a listing garbage; return those that are orphans still.

        Raises SweepStoppedError, StorageUnavailableError, and what a commit raises.
        """
        metadata, found = self._metadata, self._sweeper.sift(page)
        marked_for_deletion = {
            stored.name for stored in await self._sweeper.mark_for_deletion(found)
        }
        left = []
        for stored in found:
            if stored.name in marked_for_deletion and stored.name in metadata.garbage:
                self._before[stored.name] = metadata.garbage[stored.name]
            elif stored.name not in metadata.objects and stored.name not in metadata.garbage:
                left.append(stored)
        return left

    async def collect(self) -> str | None:
        """Delete what is due; None, or why not all of it could be, one sentence."""
        health = self._collector.health
        failures = health.failures
        await self._collector.collect_now()
        return health.describe() if health.failures > failures else None

    def waiting(self) -> Iterator[WaitingGarbage]:
        """Garbage that is there now: what was marked for deletion a moment ago may be due."""
        for name, garbage in list(self._metadata.garbage.items()):
            yield WaitingGarbage(name, garbage, self._collector.remaining_ms(name, garbage))

    def deleted(self) -> Iterator[tuple[str, GarbageObject]]:
        """What was garbage in this pass, and is deleted."""
        for name, garbage in self._before.items():
            if name not in self._metadata.garbage:
                yield name, garbage
