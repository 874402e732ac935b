"""OrphanRequests: which of the objects that a job calls orphans are marked for deletion.

The log decides, behind all that speaks for an object: metadata of the container, uploads on their
way, proposals without an answer, and its age (`proposal_rules`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from segmentstore.contracts.owned_tasks import gather_outcomes
from segmentstore.contracts.runtime import Runtime
from storagewriter.data_source import WriterDataSource
from storagewriter.object_uploader import ObjectUploader
from storagewriter.orphan_sweeper import OrphanSweeper
from storagewriter.proposal_rules import OpenProposals, reason_to_keep, reason_to_wait
from tier2.mailbox.messages import Answer, OrphanDeletionRequest
from tier2.object_storage import ObjectStorage, StoredObject
from tier2.unique_ids import store_tag

HEADS_AT_ONCE: Final = 8
TOO_MUCH: Final = "too much waits for deletion already"
"""Why an orphan is left alone that nothing else speaks for."""


class OrphanRequests:
    """Of one container."""

    def __init__(
        self,
        source: WriterDataSource,
        storage: ObjectStorage,
        runtime: Runtime,
        uploader: ObjectUploader,
        sweeper: OrphanSweeper,
    ) -> None:
        self._source = source
        self._storage = storage
        self._clock = runtime.clock
        self._uploader = uploader
        self._sweeper = sweeper
        self._tag = store_tag(source.store_id)

    async def mark(self, request: OrphanDeletionRequest, proposed: OpenProposals) -> Answer:
        """Mark those that nothing speaks for; the answer names both kinds.

        A HEAD for each, 8 at a time. Raises SweepStoppedError if it cannot be known whose they are,
        StorageUnavailableError, and what a commit raises.
        """
        kept: dict[str, str] = {}
        found: list[StoredObject] = []
        names = list(dict.fromkeys(request.names))
        for first in range(0, len(names), HEADS_AT_ONCE):
            some: list[str] = []
            for name in names[first : first + HEADS_AT_ONCE]:
                reason = self._reason_to_keep(name, proposed)
                if reason is None and self._sweeper.is_full(len(found)):
                    reason = TOO_MUCH  # Which no HEAD would change.
                if reason is None:
                    some.append(name)
                else:
                    kept[name] = reason
            found += await self._old_enough(some, request.older_than_ms, kept)
        marked = await self._sweeper.mark_for_deletion(
            found, lambda stored: self._reason_to_keep(stored.name, proposed) is None
        )
        condemned = {stored.name: None for stored in marked}
        for stored in found:
            if stored.name not in condemned:
                kept[stored.name] = self._reason_to_keep(stored.name, proposed) or TOO_MUCH
        detail = {"condemned": list(condemned), "left_alone": kept}
        return Answer(*request.key, "condemned", "", detail)

    def _reason_to_keep(self, name: str, proposed: Container[str]) -> str | None:
        return reason_to_keep(
            name,
            self._source.metadata,
            self._source.epoch,
            self._uploader.in_flight,
            proposed,
            self._tag,
        )

    async def _old_enough(
        self, names: Sequence[str], older_than_ms: int, kept: dict[str, str]
    ) -> list[StoredObject]:
        """Those of the names that are there, and old; why not goes into `kept`."""
        heads = await gather_outcomes(*map(self._storage.head, names), name="orphan heads")
        found: list[StoredObject] = []
        for name, stored in zip(names, heads, strict=True):
            if isinstance(stored, BaseException):
                raise stored
            if stored is None:
                kept[name] = "it is not there"
                continue
            reason = reason_to_wait(stored.modified_ms, self._clock.time_ms(), older_than_ms)
            if reason is None:
                found.append(stored)
            else:
                kept[name] = reason
        return found
