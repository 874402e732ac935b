"""Everything in Tier 2 that nobody needs, of a whole store: searched for and collected at once, or
only counted.

What a storage writer does slowly and all the time, done now. One listing of all objects is handed
page by page to the orphan sweepers of the containers; then objects that are due are deleted. The
rules stay theirs; nothing here checks or deletes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

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
from tier2.object_names import STORE_TAG_BYTES, parse_object_name, store_tag
from tier2.object_storage import ObjectStorage, StorageUnavailableError, StoredObject
from tier2.object_tally import ObjectTally
from tier2.store_markers import stores_at


class StoppedContainer(NamedTuple):
    """A container nobody has open, as its log has it."""

    metadata: ContainerMetadata
    last_epoch: int
    """Of its last owner."""


def with_deleted_ledgers(report: GarbageReport, deletion: OrphanDeletion) -> GarbageReport:
    """A report with what became of what the logs left behind."""
    items = [_ledger_item("deleted ledger", orphan) for orphan in deletion.deleted]
    items += [_ledger_item("orphan ledger", orphan) for orphan in deletion.kept]
    return _with_ledgers(report, items, deletion.problems)


def with_orphan_ledgers(report: GarbageReport, found: OrphanSearch) -> GarbageReport:
    """A report with what was found on BookKeeper, and not deleted."""
    items = [_ledger_item("orphan ledger", orphan) for orphan in found.orphans]
    return _with_ledgers(report, items, found.problems)


async def collect_garbage(
    containers: Sequence[SegmentContainer], storage: ObjectStorage, clock: Clock
) -> GarbageReport:
    """Mark all orphans for deletion, abort abandoned uploads, delete what is due.

    See `SegmentStore.collect_garbage`.
    """
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
    return _report(items, findings)


def _ledger_item(state: GarbageState, orphan: OrphanLedger) -> GarbageItem:
    return GarbageItem(
        state,
        orphan.container_id,
        orphan.length,
        None,
        f"ledger {orphan.ledger_id} of epoch {orphan.epoch}",
    )


async def scan_garbage(
    containers: Mapping[int, StoppedContainer],
    storage: ObjectStorage,
    store_id: str,
    lag_s: float,
    runtime: Runtime,
) -> GarbageReport:
    """What `collect_garbage` would find in a store that nobody has open; changes nothing.

    Costs one listing of all objects. Raises TierUnavailableError.
    """
    items: list[GarbageItem] = []
    newer: dict[int, Finding] = {}
    nothing: frozenset[str] = frozenset()
    tag = store_tag(store_id)
    lag_ms, now_ms = int(lag_s * 1000), runtime.clock.time_ms()
    try:
        others = _Others(await _other_stores(storage, store_id))
        async for page in storage.list():
            for container_id, stored in _by_container(page):
                known = containers.get(container_id)
                if known is None:
                    continue
                verdict = classify_object(
                    stored.name, known.metadata, known.last_epoch + 1, nothing, tag
                )
                if verdict is OrphanVerdict.ORPHAN:
                    items.append(
                        GarbageItem("orphan", container_id, stored.size, None, stored.name)
                    )
                elif verdict is OrphanVerdict.UNKNOWN_OWNER:
                    others.add(stored)
                elif verdict is not OrphanVerdict.KNOWN and verdict is not OrphanVerdict.LEFT_ALONE:
                    detail = (
                        f"{stored.name} is of an epoch after the last of the log, "
                        f"{known.last_epoch}"
                    )
                    place = f"container {container_id}"
                    sentence = f"{place}: {detail}: this log is not the newest"
                    newer.setdefault(container_id, note("newer-epoch", place, sentence))
        uploads = await storage.list_unfinished()
    except StorageUnavailableError as error:
        raise TierUnavailableError("tier2", str(error)) from error
    for container_id, known in containers.items():
        clock_ms = clock_at(known.metadata.deletion_clock, runtime.boot())
        waiting = [
            WaitingGarbage(name, garbage, remaining_ms(garbage, lag_ms, clock_ms))
            for name, garbage in known.metadata.garbage.items()
        ]
        items += _waiting(container_id, waiting, now_ms)
        items += [
            GarbageItem("unfinished upload", container_id, None, None, upload.name)
            for upload in uploads
            if is_abandoned(upload, container_id, known.last_epoch + 1, nothing, now_ms, tag)
        ]
    told = [newer[container_id] for container_id in sorted(newer)]
    return _report(items, [*told, *others.findings()])


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
        """What there is to say of those that nobody answers for, and whose the others are."""
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


def _with_ledgers(
    report: GarbageReport, items: list[GarbageItem], problems: Sequence[str]
) -> GarbageReport:
    told = [note("orphan-ledger", "", problem) for problem in problems]
    return _report([*report.items, *items], [*report.findings, *told])


def _report(items: list[GarbageItem], findings: Sequence[Finding]) -> GarbageReport:
    items.sort(key=lambda item: (item.state, item.container_id, item.name))
    return GarbageReport(items=tuple(items), findings=tuple(findings))
