"""Past rebuilding: which of the noted moments are rebuilt when the tiers are checked, and of what.

Each that the logs and the archive still have could be, and costs replay. So a few of a container
are taken at a time: of those that no check has rebuilt the oldest, the newest, and one between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from durablelog.operations import SnapshotCheckpointOperation
from recovery.archived_history import ArchivedHistory
from recovery.archived_parts_listing import FoundPart, PartListing
from recovery.harness.history import History
from recovery.harness.past_observer import ProbedLog, rebuild_moments
from recovery.harness.seen_tiers import SeenTiers
from recovery.harness.tier_observer import LogProbe
from recovery.moments import AtTime
from recovery.stopped_catalogs import StoppedCatalogs
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.kept_parts import KeptParts
from tier2.archive.archived_parts_lists import ArchivedPartsLists
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.object_storage import ObjectStorage

MOMENTS: Final = 3
"""Of a container, each time."""
_EVER: Final = 2**62


class NoParts:
    """Of a container without an archive."""

    kept = range(0)
    last_ms = 0

    async def find_sequence(self, sequence_number: int) -> FoundPart | None:
        """There is none."""
        return None

    async def find_time(self, time_ms: int) -> FoundPart | None:
        """There is none."""
        return None

    async def at(self, index: int) -> ArchivedPart:
        """There is none."""
        raise IndexError(index)

    async def first_now(self) -> int:
        """There is none."""
        return 0


async def rebuild_past(
    history: History,
    tiers: SeenTiers,
    probes: Mapping[int, LogProbe],
    storages: tuple[ObjectStorage, ObjectStorage],
    catalogs: StoppedCatalogs,
    runtime: Runtime,
    *,
    is_roomy: bool,
) -> None:
    """Rebuild moments that were not rebuilt yet, and add them to the history.

    `storages` are Tier 2 and the archive. A log that is not `is_roomy` may have been truncated
    inside of a part that is not archived yet. Raises TierUnavailableError, OSError.
    """
    storage, archived = storages
    offloader = ObjectLedgerOffloader(archived)

    async def open_part(part: ArchivedPart) -> ReadHandle:
        return await offloader.read_offloaded(part.ledger_id, part.uid)

    for container_id, log in tiers.logs.items():

        async def load(
            operation: SnapshotCheckpointOperation, container_id: int = container_id
        ) -> ContainerMetadata:
            return (await catalogs.load(container_id, operation, storage)).metadata

        probed = ProbedLog(probes[container_id])
        if not _chosen(history, container_id, 0):
            continue
        logged = ArchivedHistory(container_id, NoParts(), open_part, probed, load)
        now = (await logged.state_at(AtTime(_EVER))).metadata
        archive = now.archive
        parts: PartListing = NoParts()
        first = log.first
        if archive.kept:
            lists = ArchivedPartsLists(
                archived, catalogs.store_id, container_id, partial(getattr, now, "archive")
            )
            parts = KeptParts(container_id, lists, archive)
            first = (await parts.at(archive.first)).first_sequence
        past = ArchivedHistory(container_id, parts, open_part, probed, load)
        chosen = _chosen(history, container_id, first)
        history.past.rebuilt += await rebuild_moments(
            past,
            chosen,
            now,
            storage,
            tiers.listed,
            runtime,
            whole=bool(archive.kept) and not archive.first,
            # What a retention left may begin with checkpoints whose snapshots are deleted.
            must_be_kept=is_roomy and not archive.first,
        )


def _chosen(history: History, container_id: int, first: int) -> Sequence[int]:
    done = {
        each.sequence_number for each in history.past.rebuilt if each.container_id == container_id
    }
    noted = sorted(
        {
            each.sequence_number
            for each in history.past.noted
            if each.container_id == container_id and each.sequence_number >= first
        }
        - done
    )
    middle = len(noted) // 2
    return noted if len(noted) <= MOMENTS else (noted[0], noted[middle], noted[-1])
