"""Reconciliation as a Spark job: catalog, listing and objects compared, for a store of any size,
beside its owners.

    snapshot A -> survey (one query: listing beside A, by shard) -> snapshot B -> verdicts (one
    query)

Rules of this file:

- the driver speaks to the owners and hands out ranges; it holds what differs, never what is as it
  should be;
- two queries, one action each, no shuffle of rows that were listed by shard; DataFrame API only, so
  that Connect runs it;
- nothing is deleted and nothing mended: at the most owners are asked to make garbage of orphans,
  which they check again.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_reading import read_table
from tier2.object_names import MessageKey
from tier2.object_storage import ObjectStorage
from tier2.spark.common.arrow_rows import unpack
from tier2.spark.common.command_options import Exit, checked_store_id
from tier2.spark.common.frames import arrow_of, frame_of, map_bins
from tier2.spark.common.storages import open_retried
from tier2.spark.reconcile.coverage import broken_segments
from tier2.spark.reconcile.findings import FindingKind, StoreFacts, Suspects, findings_table
from tier2.spark.reconcile.findings_files import LAST, check_findings_url, write_part
from tier2.spark.reconcile.folder_tasks import copies_work
from tier2.spark.reconcile.folders import bad_manifest
from tier2.spark.reconcile.found import Proposals, Scan, Verdicts, waiting_of
from tier2.spark.reconcile.found_classes import count_classes, shown_by_each, total
from tier2.spark.reconcile.listing_job import scan_listed, scan_prepared
from tier2.spark.reconcile.marks import HASHES, hashed_within, pack_shards, unpack_shards
from tier2.spark.reconcile.options import ReconcileOptions, parse_age
from tier2.spark.reconcile.orphan_requests import Asking, OrphanOutcome, share_of
from tier2.spark.reconcile.owners import ASK, Owners, Snapshots
from tier2.spark.reconcile.plan import (
    LENGTH_COLUMNS,
    OBJECTS_PER_TASK,
    PREPARED_PER_TASK,
    TASKS_MAX,
    WEIGHED_COLUMNS,
    WEIGHED_OBJECTS_MAX,
    check_count,
    check_work,
    coverage_work,
    in_bins,
    live_bytes,
    shard_bytes,
    task_count,
)
from tier2.spark.reconcile.report import ReconcileSummary, count_kinds, verdict_of
from tier2.spark.reconcile.scan_work import proposals_task, shards_of_part
from tier2.spark.reconcile.second_scan import Again
from tier2.spark.reconcile.staleness import behind_unreadable, moved_on
from tier2.spark.reconcile.tasks import (
    CheckInputs,
    absent_names,
    check_missing,
    is_same,
    unresponsive_findings,
)
from tier2.spark.reconcile.verdict_work import borders_of, verdict_task
from tier2.spark.reconcile.work import (
    MAILBOXES,
    MISSING,
    MISSING_SHOWN,
    RESULTS,
    SURVEYED,
    SUSPECTS_HELD,
    Site,
)
from tier2.unique_ids import store_tag

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """What a run found."""

    findings: DataFrame
    """Of the schema `findings.FINDINGS`; as often as it is asked for, without another check.

    All that were found, or where they are too many a sample: the summary has their numbers, and
    `findings_url` all of them.
    """
    table: pa.Table
    """The same rows, by kind and object."""
    summary: ReconcileSummary
    condemned: tuple[OrphanOutcome, ...]
    """What came of asking the owners to delete orphans, by container: numbers, and some names."""

    @property
    def verdict(self) -> Exit:
        """The run in one word, which is an exit code."""
        return self.summary.verdict


def reconcile(
    spark: SparkSession,
    url: str,
    *,
    older_than: str | float = "3 days",
    listing: DataFrame | str | None = None,
    **options: Any,
) -> ReconcileResult:
    """Compare the catalog of the store whose Tier 2 is at `url` with what lies there; see
    docs/reconciliation.md.

    `listing`: a prepared one, a DataFrame (key, size, last_modified or modified_ms) or where an
    inventory is; otherwise the place is listed. `options` are those of `ReconcileOptions`. Raises
    ConfigError for them, InventoryError for the listing, CatalogFormatError and ObjectStorageError
    for what cannot be read by the driver, PySparkException for what failed in tasks.
    """
    if options.get("store_id") is not None:
        options["store_id"] = checked_store_id(options["store_id"])
    chosen = ReconcileOptions(older_than_s=parse_age(older_than), **options)
    return _Run(spark, url, chosen, listing).result()


PROPOSALS_HERE: Final = 64
"""So many open proposals the driver reads itself; more are for tasks."""


class _Run:
    """One run, step by step."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        options: ReconcileOptions,
        listing: DataFrame | str | None,
    ) -> None:
        self._spark = spark
        self._url = url
        self._shown_url = ""
        self._options = options
        self._listing = listing
        self._runtime = Runtime()
        self._run_id = options.run_id or f"{self._runtime.random.getrandbits(64):016x}"
        self._asking: Asking | None = None

    def result(self) -> ReconcileResult:
        """The whole of it."""
        if self._options.findings_url is not None:
            check_findings_url(self._options.findings_url, self._url)
            self._wait_for(self._require_free_folder)
        before = self._owners(lambda owners: owners.snapshots("a"))
        listed_at_ms = self._runtime.clock.time_ms()
        scan, verdicts, by, after = (
            Scan([], 0, 0, Counter(), {}, {}, {}),
            Verdicts(),
            None,
            before,
        )
        told: list[pa.Table] = []
        if before.manifests:
            scan = self._scan(before, listed_at_ms)
            proposals = self._proposals(before)
            by, after = self._owners(
                lambda owners: self._second_check(
                    owners, before, listed_at_ms, scan, proposals.names
                )
            )
            verdicts = self._verdicts(before, scan, by, proposals.hashes)
            told += self._afterwards(scan, verdicts, by)
        unresponsive = dict(sorted({**before.unresponsive, **after.unresponsive}.items()))
        unreadable = {**before.unreadable, **after.unreadable}
        manifests = findings_table(
            (bad_manifest(name, each.reason) for name, each in sorted(unreadable.items())),
            self._run_id,
        )
        here = pa.concat_tables(
            [*told, unresponsive_findings(unresponsive, self._run_id), manifests]
        )
        classes = verdicts.classes + scan.waiting + count_classes(here)
        if self._options.findings_url is not None and here.num_rows:
            write_part(self._options.findings_url, self._run_id, LAST, here)
        findings = _sorted([*verdicts.findings, here])
        condemned = self._outcomes(verdicts)
        summary = ReconcileSummary(
            run_id=self._run_id,
            url=self._shown_url,
            listed_at_ms=listed_at_ms,
            containers={
                number: (each.epoch, before.manifests[number].sequence_number, each.sequence_number)
                for number, each in sorted(after.manifests.items())
                if number in before.manifests
            },
            unresponsive=unresponsive,
            outdated={} if by is None else dict(sorted(by.place.outdated.items())),
            objects=scan.objects,
            listed=scan.listed,
            chunks=verdicts.counts["chunks"],
            check=self._options.check,
            looked_into=verdicts.counts["looked_into"],
            bytes_read=verdicts.counts["bytes_read"],
            kinds=count_kinds(findings, classes),
            classes=classes,
            orphans=total(classes, FindingKind.ORPHAN),
            delete_orphans=("asked" if self._options.execute else "dry run")
            if self._options.delete_orphans
            else "no",
            verdict=verdict_of(findings, condemned),
            all_findings=""
            if self._options.findings_url is None
            else f"in {self._run_id}/ of the place for findings",
        )
        return ReconcileResult(
            findings=frame_of(self._spark, findings),
            table=findings,
            summary=summary,
            condemned=tuple(condemned),
        )

    async def _require_free_folder(self) -> None:
        """A file that is there would be taken for one of this run."""
        storage = open_retried(str(self._options.findings_url), self._runtime)
        try:
            async for page in storage.list(f"{self._run_id}/"):
                if page:
                    raise ConfigError(
                        "findings",
                        f"a run {self._run_id} has written there: choose another --run-id",
                    )
        finally:
            await storage.close()

    # --- the owners -------------------------------------------------------------------------------

    def _owners(self, work: Callable[[Owners], Coroutine[Any, Any, _T]]) -> _T:
        async def run() -> _T:
            storage = open_retried(self._url, self._runtime)
            self._shown_url = storage.url
            try:
                options = self._options
                owners = Owners(
                    storage,
                    self._runtime,
                    self._run_id,
                    options.snapshots,
                    options.timeout_s,
                    options.store_id,
                    options.store_folder,
                )
                return await work(owners)
            finally:
                await storage.close()

        return self._wait_for(run)

    def _wait_for(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """In an event loop of its own; in a thread of its own too, for notebooks have a loop
        running in theirs.
        """
        executor = self._runtime.executor("reconcile", 1)
        try:
            return executor.submit(lambda: asyncio.run(work())).result()
        finally:
            executor.shutdown()

    def _proposals(self, before: Snapshots) -> Proposals:
        """Objects of open proposals, read before B is asked for: one that is answered since is in
        B. Many by tasks, a container each.
        """
        few = self._owners(
            lambda owners: owners.open_names(range(before.containers), PROPOSALS_HERE)
        )
        if few is not None:
            return Proposals(few)
        table = pa.Table.from_pylist(
            [{"bin": number, "container_id": number} for number in range(before.containers)],
            schema=MAILBOXES,
        )
        found: dict[int, list[bytes]] = {}
        for row in arrow_of(
            map_bins(self._spark, table, proposals_task(self._site()), HASHES), HASHES
        ).to_pylist():
            found.setdefault(row["shard"], []).append(row["bits"])
        return Proposals(hashes={shard: b"".join(each) for shard, each in found.items()})

    async def _second_check(
        self,
        owners: Owners,
        before: Snapshots,
        listed_at_ms: int,
        scan: Scan,
        open_names: frozenset[str],
    ) -> tuple[CheckInputs, Snapshots]:
        """Snapshot B, after the listing and `open_names`."""
        after = await owners.snapshots("b")
        store_id = after.store_id or before.store_id
        shared_with = "" if store_id is None else await owners.shared_with(store_id)
        asked = self._options.snapshots == ASK
        place = StoreFacts(
            epochs={
                number: after.manifests[number].epoch
                if number in before.manifests and number in after.manifests
                else None
                for number in range(max(before.containers, after.containers))
            },
            listed_at_ms=listed_at_ms,
            older_than_ms=int(self._options.older_than_s * 1000),
            open_names=open_names,
            shared_with=shared_with,
            tag=b"" if store_id is None else store_tag(store_id),
            taken_ms={
                number: each.time_ms
                for number, each in after.manifests.items()
                if not asked and not each.stopped
            },
            others={} if store_id is None else await owners.others(store_id),
            store_id=(store_id or "")
            if any(each.tables["objects"].rows for each in after.manifests.values())
            else "",
            asked=asked,
        )
        if not asked:
            surveyed = (Suspects(unpack(row["before"]), unpack(row["listed"])) for row in scan.rows)
            outdated = scan.moved | moved_on(surveyed, after.manifests, place)
            outdated |= behind_unreadable(after.unreadable, after.manifests)
            place = place._replace(outdated=outdated)
        confirm_all = self._listing is not None
        return CheckInputs(
            before.manifests, after.manifests, place, self._run_id, confirm_all
        ), after

    def _site(self, unresponsive: Sequence[int] = (), shown: int | None = None) -> Site:
        return Site(
            url=self._url,
            run_id=self._run_id,
            listings_at_once=self._options.max_concurrent_listings,
            objects_at_once=self._options.max_concurrent_objects,
            bodies=self._options.check == "bodies",
            unresponsive=tuple(unresponsive),
            checks_objects=self._options.check != "none",
            shown=shown,
            asking=self._asking,
            findings_url=self._options.findings_url or "",
            confirms=self._listing is not None,
            held=SUSPECTS_HELD,
            missing_shown=MISSING_SHOWN,
        )

    # --- the two queries --------------------------------------------------------------------------

    def _scan(self, before: Snapshots, listed_at_ms: int) -> Scan:
        site = self._site(sorted(before.unresponsive))
        if self._options.snapshots != ASK and before.store_id is not None:
            site = replace(
                site,
                place=self._owners(lambda owners: _tags(owners, before.store_id, listed_at_ms)),
            )
        rows = arrow_of(self._surveyed(site, before), SURVEYED).to_pylist()
        objects, listed = (sum(row[name] for row in rows) for name in ("objects", "listing"))
        moved: dict[int, str] = {}
        for row in rows:
            moved |= {int(number): why for number, why in json.loads(row["moved"]).items()}
        return Scan(
            [row for row in rows if row["suspects"] and row["before"] is not None],
            objects,
            listed,
            waiting_of(rows),
            {(row["first"], row["end"]): row["suspects"] for row in rows if row["before"] is None},
            {shard: bits for row in rows for shard, bits in unpack_shards(row["absent"])},
            moved,
        )

    def _surveyed(self, site: Site, before: Snapshots, again: Again | None = None) -> DataFrame:
        objects = sum(manifest.tables["objects"].rows for manifest in before.manifests.values())
        per_task = OBJECTS_PER_TASK if self._listing is None else PREPARED_PER_TASK
        parts = self._options.tasks or task_count(objects, per_task)
        if self._listing is None:
            return scan_listed(self._spark, site, before.manifests, parts, again)
        mode = self._options.prefix_mismatch_mode
        return scan_prepared(self._spark, site, before.manifests, self._listing, parts, mode, again)

    def _verdicts(
        self, before: Snapshots, scan: Scan, by: CheckInputs, hashes: Mapping[int, bytes]
    ) -> Verdicts:
        if self._options.execute:
            self._asking = self._asks(by.place, len(scan.rows) + len(scan.again))
        work: list[dict[str, Any]] = [
            {
                "item": "judge",
                **{name: row[name] for name in ("first", "end", "before", "listed")},
                "names": hashed_within(hashes, range(row["first"], row["end"])),
            }
            for row in scan.rows
        ]
        work += self._owners(lambda owners: self._second_work(owners.storage, by))
        verdicts = Verdicts()
        # Snapshot B is read again where suspects are checked, unless it is A.
        self._work_at(verdicts, work, by, light={"judge"} if is_same(by) else ())
        broken = [
            {"item": "walk", "container_id": number, "first": segment_id}
            for number, borders in sorted(borders_of(verdicts.borders).items())
            for segment_id in broken_segments(borders)
        ]
        if broken:
            self._work_at(verdicts, broken, by)
        if scan.again:
            site = self._site(sorted(before.unresponsive), shown_by_each(len(scan.again)))
            again = Again(by, scan.again, scan.absent, hashes)
            verdicts.add(arrow_of(self._surveyed(site, before, again), RESULTS))
        return verdicts

    def _work_at(
        self,
        verdicts: Verdicts,
        work: Sequence[dict[str, Any]],
        by: CheckInputs,
        light: Sequence[str] | set[str] = (),
    ) -> None:
        """Rows of WORK: one query."""
        task = verdict_task(self._site(shown=shown_by_each(len(work))), by)
        verdicts.add(
            arrow_of(map_bins(self._spark, in_bins(work, light=light), task, RESULTS), RESULTS)
        )

    async def _second_work(self, storage: ObjectStorage, by: CheckInputs) -> list[dict[str, Any]]:
        """Rows of WORK over snapshot B: its segments to cover, its objects to inspect, and the
        engine's own folders.
        """
        work: list[dict[str, Any]] = [{"item": "folders"}, *copies_work(len(by.place.epochs))]
        objects = 0
        for number, manifest in sorted(by.after.items()):
            work += coverage_work(
                number, manifest.tables["segments"].rows, manifest.tables["chunks"].rows
            )
            objects += manifest.tables["objects"].rows
        if self._options.check == "headers":
            work += check_work(self._options.tasks or task_count(objects, OBJECTS_PER_TASK))
        elif self._options.check == "bodies":
            weights = await _weights(storage, by) if objects <= WEIGHED_OBJECTS_MAX else None
            size = await _live_bytes(storage, by) if weights is None else sum(weights)
            work += check_work(self._options.tasks or check_count(size), weights)
        return work

    # --- afterwards -------------------------------------------------------------------------------

    def _afterwards(self, scan: Scan, verdicts: Verdicts, by: CheckInputs) -> list[pa.Table]:
        """What neither query could say alone: checked here, or by tasks where it is much."""
        missing = set(verdicts.missing)
        if not scan.again and not verdicts.missing_marks:
            if not by.confirm_all and missing:
                # What was not listed has been checked.
                for row in scan.rows:
                    missing -= absent_names(Suspects(unpack(row["before"]), unpack(row["listed"])))
            names = sorted(missing)
            return (
                [self._owners(lambda owners: self._checked_missing(owners, by, names))]
                if names
                else []
            )
        objects = sum(manifest.tables["objects"].rows for manifest in by.after.values())
        parts = task_count(objects, OBJECTS_PER_TASK)
        every = (shards_of_part(part, parts) for part in range(parts))
        work = [
            row
            for row in (_missing_row(shards, missing, verdicts, scan) for shards in every)
            if row is not None
        ]
        if work:
            self._work_at(
                verdicts, work, self._owners(lambda owners: self._third_check(owners, by))
            )
        return []

    async def _third_check(self, owners: Owners, by: CheckInputs) -> CheckInputs:
        """Live in B, and not there when it was asked for or inspected: checked by a snapshot taken
        since.
        """
        last = await owners.snapshots("c")
        epochs = {
            number: each.epoch if number in last.manifests else None
            for number, each in by.after.items()
        }
        place = by.place._replace(epochs=epochs)
        return by._replace(before=by.after, after=last.manifests, place=place, first=by.before)

    async def _checked_missing(
        self, owners: Owners, by: CheckInputs, names: Sequence[str]
    ) -> pa.Table:
        return await check_missing(owners.storage, names, await self._third_check(owners, by))

    # --- orphans ----------------------------------------------------------------------------------

    def _asks(self, place: StoreFacts, ranges: int) -> Asking:
        """What tasks ask owners to delete, which check these ranges of shards."""
        token = f"{self._runtime.random.getrandbits(64):016x}"
        store_id = self._owners(lambda owners: owners.known_store())
        return Asking(token, place.listed_at_ms - place.older_than_ms, store_id, share_of(ranges))

    def _outcomes(self, verdicts: Verdicts) -> list[OrphanOutcome]:
        if not verdicts.asked:
            return []
        asked = {
            MessageKey(number, self._run_id, each): names
            for (number, each), names in verdicts.asked.items()
        }
        return self._owners(lambda owners: owners.outcomes(asked, verdicts.not_asked))


async def _tags(owners: Owners, store_id: str | None, listed_at_ms: int) -> StoreFacts:
    """As much of a place as `moved_on` needs."""
    others = {} if store_id is None else await owners.others(store_id)
    tag = b"" if store_id is None else store_tag(store_id)
    return StoreFacts({}, listed_at_ms, 0, tag=tag, others=others, asked=False)


async def _weights(storage: ObjectStorage, by: CheckInputs) -> list[int]:
    """Of each shard the bytes of its objects in snapshot B."""
    manifests = [manifest for _, manifest in sorted(by.after.items())]
    columns = list(WEIGHED_COLUMNS)
    return shard_bytes(
        [await read_table(storage, each, "objects", columns=columns) for each in manifests]
    )


async def _live_bytes(storage: ObjectStorage, by: CheckInputs) -> int:
    """About how many bytes there are to inspect; no more are counted than make a difference.

    A container at a time.
    """
    size = 0
    for _, manifest in sorted(by.after.items()):
        size += live_bytes(
            await read_table(storage, manifest, "segments", columns=list(LENGTH_COLUMNS))
        )
        if check_count(size) == TASKS_MAX:
            break
    return size


def _missing_row(
    shards: range, names: Collection[str], verdicts: Verdicts, scan: Scan
) -> dict[str, Any] | None:
    """A row MISSING of WORK; None if nothing of these shards was missing."""
    some = sorted(name for name in names if int(name[:2], 16) in shards)
    missing = [(shard, bits) for shard in shards for bits in verdicts.missing_marks.get(shard, ())]
    if not some and not missing:
        return None
    checked = [(shard, scan.absent[shard]) for shard in shards if shard in scan.absent]
    return {
        "item": MISSING,
        "first": shards.start,
        "end": shards.stop,
        "before": pack_shards(missing),
        "listed": pack_shards(checked),
        "names": json.dumps(some).encode(),
    }


def _sorted(tables: Sequence[pa.Table]) -> pa.Table:
    findings = pa.concat_tables(tables)
    return findings.sort_by(
        [
            (name, "ascending")
            for name in ("kind", "object", "container_id", "segment_id", "start_offset")
        ]
    )
