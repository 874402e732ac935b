"""The garbage in Tier 2 of a whole store: searched for and collected at once, or only counted.

What a storage writer does slowly and all the time, done now. One listing of all objects is handed
page by page to the orphan sweepers of the containers; then objects that are due are deleted. The
rules stay theirs; nothing here checks or deletes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from durablelog.durable_data_log_factory import OrphanDeletion, OrphanLedger, OrphanSearch
from segmentstore.container import SegmentContainer
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.findings import Finding, Severity, note
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.reports import GarbageItem, GarbageReport, GarbageState
from segmentstore.contracts.runtime import Clock, Runtime
from storagewriter.deletion_clock import clock_at, remaining_ms
from storagewriter.garbage_pass import GarbagePass, WaitingGarbage
from storagewriter.orphan_rules import OrphanVerdict, classify_object, is_abandoned
from storagewriter.orphan_sweeper import SweepStoppedError
from tier2.object_names import parse_object_name
from tier2.object_storage import (
    ObjectStorage,
    StorageUnavailableError,
    StoredObject,
    UnfinishedUpload,
)
from tier2.object_tally import ObjectTally
from tier2.store_markers import stores_at
from tier2.unique_ids import STORE_TAG_BYTES, store_tag


class SearchedContainer(Protocol):
    """A container whose garbage is searched for, and not deleted. `GarbagePass` is one."""

    def verdict(self, name: str) -> OrphanVerdict:
        """What an object is to it."""

    def is_abandoned(self, upload: UnfinishedUpload) -> bool:
        """Whether no process will finish an upload in parts."""

    def waiting(self) -> Iterable[WaitingGarbage]:
        """Garbage that is there now."""


class StoppedContainer:
    """A container that no process has open, as its log has it. `last_epoch`: of its last owner."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        last_epoch: int,
        store_id: str,
        lag_s: float,
        runtime: Runtime,
    ) -> None:
        self._metadata = metadata
        self._epoch = last_epoch + 1
        self._tag = store_tag(store_id)
        self._lag_ms = int(lag_s * 1000)
        self._runtime = runtime
        self._in_flight: frozenset[str] = frozenset()

    def verdict(self, name: str) -> OrphanVerdict:
        return classify_object(name, self._metadata, self._epoch, self._in_flight, self._tag)

    def is_abandoned(self, upload: UnfinishedUpload) -> bool:
        container_id, now_ms = self._metadata.container_id, self._runtime.clock.time_ms()
        return is_abandoned(upload, container_id, self._epoch, self._in_flight, now_ms, self._tag)

    def waiting(self) -> Iterable[WaitingGarbage]:
        clock_ms = clock_at(self._metadata.deletion_clock, self._runtime.boot())
        for name, garbage in self._metadata.garbage.items():
            left_ms = remaining_ms(garbage, self._lag_ms, clock_ms)
            yield WaitingGarbage(name, garbage, left_ms)


def deleted_ledgers(deletion: OrphanDeletion) -> Iterator[GarbageItem | Finding]:
    """What became of what the logs left behind."""
    for orphan in deletion.deleted:
        yield _ledger_item("deleted ledger", orphan)
    for orphan in deletion.kept:
        yield _ledger_item("orphan ledger", orphan)
    for problem in deletion.problems:
        yield note("orphan-ledger", "", problem)


def orphan_ledgers(found: OrphanSearch) -> Iterator[GarbageItem | Finding]:
    """What was found on BookKeeper, and not deleted."""
    for orphan in found.orphans:
        yield _ledger_item("orphan ledger", orphan)
    for problem in found.problems:
        yield note("orphan-ledger", "", problem)


def missing_markers(losses: Iterable[str]) -> list[Finding]:
    """What `StoreMarkers.losses` says, as findings."""
    return [Finding(Severity.INFORMATION, "marker-missing", "Tier 2", loss) for loss in losses]


async def collect_garbage(
    containers: Sequence[SegmentContainer], storage: ObjectStorage, clock: Clock
) -> GarbageReport:
    """Mark all orphans for deletion, abort abandoned uploads, delete what is due.

    See `SegmentStore.collect_garbage`.
    """
    if not containers:
        return GarbageReport.of(())
    passes = [container.begin_garbage_pass() for container in containers]
    items: list[GarbageItem] = []
    findings: list[Finding] = []
    try:
        items += await _sweep(passes, storage, containers[0].store_id, findings)
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    for each in passes:
        problem = await each.collect()
        if problem is not None:
            place = f"container {each.container_id}"
            findings.append(note("deletion-failed", place, f"{place}: {problem}"))
        items += _waiting(each.container_id, each.waiting(), clock.time_ms())
        items += [
            GarbageItem("deleted", each.container_id, garbage.record.size, None, name)
            for name, garbage in each.deleted()
        ]
    return GarbageReport.of([*items, *findings])


def _ledger_item(state: GarbageState, orphan: OrphanLedger) -> GarbageItem:
    return GarbageItem(
        state,
        orphan.container_id,
        orphan.length,
        None,
        f"ledger {orphan.ledger_id} of epoch {orphan.epoch}",
    )


async def find_garbage(
    containers: Mapping[int, SearchedContainer],
    storage: ObjectStorage,
    store_id: str,
    clock: Clock,
) -> AsyncGenerator[GarbageItem | Finding, None]:
    """What `collect_garbage` would find now, in no order; changes nothing.

    Costs one listing of all objects. Raises TierUnavailableError.
    """
    newer: dict[int, Finding] = {}
    try:
        others = _Others(await _other_stores(storage, store_id))
        async for page in storage.list():
            for container_id, stored in _by_container(page):
                known = containers.get(container_id)
                verdict = None if known is None else known.verdict(stored.name)
                if verdict is OrphanVerdict.ORPHAN:
                    yield GarbageItem("orphan", container_id, stored.size, None, stored.name)
                elif verdict is OrphanVerdict.UNKNOWN_OWNER:
                    others.add(stored)
                elif verdict is OrphanVerdict.NEWER and container_id not in newer:
                    newer[container_id] = _newer_epoch(container_id, stored.name)
        uploads = await storage.list_unfinished()
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    for container_id, known in containers.items():
        for item in _waiting(container_id, known.waiting(), clock.time_ms()):
            yield item
        for upload in uploads:
            if known.is_abandoned(upload):
                yield GarbageItem("unfinished upload", container_id, None, None, upload.name)
    for container_id in sorted(newer):
        yield newer[container_id]
    for finding in others.findings():
        yield finding


def _newer_epoch(container_id: int, name: str) -> Finding:
    place = f"container {container_id}"
    detail = f"{name} is of an epoch after the last of the log"
    return note("newer-epoch", place, f"{place}: {detail}: this log is not the newest")


async def _sweep(
    passes: Sequence[GarbagePass],
    storage: ObjectStorage,
    store_id: str,
    findings: list[Finding],
) -> list[GarbageItem]:
    """One sweep of all containers; what was found and not marked for deletion is returned."""
    sweeping = {each.container_id: each for each in passes}
    left: list[GarbageItem] = []
    others = _Others(await _other_stores(storage, store_id))
    try:
        await passes[0].check_alone()
        uploads = await storage.list_unfinished()
        for each in passes:
            left += [
                GarbageItem("aborted upload", each.container_id, None, None, upload.name)
                for upload in await each.abort_uploads(uploads)
            ]
        async for page in storage.list():
            pages: dict[int, list[StoredObject]] = defaultdict(list)
            for container_id, stored in _by_container(page):
                pages[container_id].append(stored)
            for container_id, mine in pages.items():
                if container_id not in sweeping:
                    continue
                for stored in sweeping[container_id].of_unknown_owner(mine):
                    others.add(stored)
                try:
                    orphans = await sweeping[container_id].mark_for_deletion(mine)
                except SweepStoppedError as error:
                    place = f"container {container_id}"
                    findings.append(note("sweep-stopped", place, f"{place}: {error}"))
                    del sweeping[container_id]
                    continue
                left += [
                    GarbageItem("orphan", container_id, stored.size, None, stored.name)
                    for stored in orphans
                ]
    except SweepStoppedError as error:
        findings.append(note("sweep-stopped", "Tier 2", str(error)))
    findings += others.findings()
    return left


async def _other_stores(storage: ObjectStorage, store_id: str) -> list[str]:
    return [store for store in await stores_at(storage) if store != store_id]


class _Others:
    """Objects that no operation of the log names, and that do not carry the tag of the store."""

    def __init__(self, stores: Iterable[str]) -> None:
        """`stores` have their markers in the place."""
        self._tallies = {store_tag(store): (store, ObjectTally()) for store in stores}
        self._unknown = ObjectTally()

    def add(self, stored: StoredObject) -> None:
        named = parse_object_name(stored.name)
        assert named is not None, stored
        _, tally = self._tallies.get(named.unique_id[:STORE_TAG_BYTES], ("", self._unknown))
        tally.add(stored)

    def findings(self) -> Iterator[Finding]:
        """How many are of an unknown owner, and how many of each other store."""
        if self._unknown.count:
            detail = (
                f"{self._unknown} are of unknown owner: orphans that an older version "
                "or a store before this one left"
            )
            yield note("unknown-owner", "Tier 2", detail)
        for store, tally in self._tallies.values():
            if tally.count:
                detail = f"{tally} are of store {store}, which has its marker there"
                yield Finding(Severity.INFORMATION, "other-store", "Tier 2", detail)


def _by_container(page: Iterable[StoredObject]) -> Iterator[tuple[int, StoredObject]]:
    for stored in page:
        parts = parse_object_name(stored.name)
        if parts is not None:
            yield parts.container_id, stored


def _waiting(
    container_id: int, waiting: Iterable[WaitingGarbage], now_ms: int
) -> Iterator[GarbageItem]:
    """What waits; `until` says by the wall clock how long."""
    for name, garbage, left_ms in waiting:
        state: GarbageState = "waiting" if left_ms else "due"
        until = datetime.fromtimestamp((now_ms + left_ms) / 1000, UTC) if left_ms else None
        yield GarbageItem(state, container_id, garbage.record.size, until, name)
