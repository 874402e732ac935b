"""Reconciliation as a Spark job: catalog, listing and objects compared, for a store of any size, beside its owners.

    snapshot A  ->  survey (one query: listing beside A, by shard)  ->  snapshot B  ->  verdicts (one query)

Rules of this file:

- the driver speaks to the owners and hands out ranges; it holds what differs, never what is as it should be;
- two queries, one action each, no shuffle of rows that were listed by shard; DataFrame API only, so that Connect runs it;
- nothing is deleted and nothing mended: at the most owners are asked to make garbage of orphans, which they judge again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_reading import read_table
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.spark.arrow_rows import ddl, is_text, pack, unpack
from tier2.spark.command_options import Exit
from tier2.spark.findings import FINDINGS, Finding, Kind, Place, Suspects, findings_table
from tier2.spark.listing_job import survey_listed, survey_prepared
from tier2.spark.reconcile_options import ReconcileOptions, parse_age
from tier2.spark.reconcile_owners import ASK, Condemned, Owners, Snapshots
from tier2.spark.reconcile_plan import (
    OBJECTS_PER_TASK,
    PREPARED_PER_TASK,
    SEGMENT_COLUMNS,
    WEIGHED_COLUMNS,
    WEIGHED_OBJECTS_MAX,
    coverage_work,
    in_bins,
    live_bytes,
    look_count,
    look_work,
    shard_bytes,
    task_count,
)
from tier2.spark.reconcile_report import Summary, count_kinds, verdict_of
from tier2.spark.reconcile_tasks import Judge, is_same, judge_gone, left_out, once, untold_findings
from tier2.spark.reconcile_work import RESULTS, Site, verdict_task
from tier2.spark.staleness import moved_on

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileResult:
    """What a run found."""

    findings: DataFrame
    """Of the schema `findings.FINDINGS`; as often as it is asked for, without another look."""
    table: pa.Table
    """The same rows, by kind and object."""
    summary: Summary
    condemned: tuple[Condemned, ...]
    """What came of asking the owners to delete orphans."""

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
    """Compare the catalog of the store whose Tier 2 is at `url` with what lies there; see docs/reconciliation.md.

    `listing`: a prepared one, a DataFrame (key, size, last_modified or modified_ms) or where an inventory is; otherwise
    the place is listed. `options` are those of `ReconcileOptions`. Raises ConfigError for them, InventoryError for the
    listing, CatalogFormatError and ObjectStorageError for what cannot be read by the driver, PySparkException for what
    failed in tasks.
    """
    chosen = ReconcileOptions(older_than_s=parse_age(older_than), **options)
    return _Run(spark, url, chosen, listing).result()


class _Survey(NamedTuple):
    """What the survey of the whole store gave."""

    rows: list[dict[str, Any]]
    """Of SURVEYED."""
    objects: int
    listed: int


class _Verdicts(NamedTuple):
    """What the second query gave."""

    findings: pa.Table
    gone: list[str]
    """Objects that were not there when they were looked into."""
    counts: dict[str, int]
    chunks: dict[int, int]
    """Followed, by container."""


class _Run:
    """One run, step by step."""

    def __init__(
        self, spark: SparkSession, url: str, options: ReconcileOptions, listing: DataFrame | str | None
    ) -> None:
        self._spark = spark
        self._url = url
        self._shown_url = ""
        self._options = options
        self._listing = listing
        self._runtime = Runtime()
        self._run_id = options.run_id or f"{self._runtime.random.getrandbits(64):016x}"

    def result(self) -> ReconcileResult:
        """The whole of it."""
        before = self._owners(lambda owners: owners.snapshots("a"))
        listed_at_ms = self._runtime.clock.time_ms()
        survey, verdicts, by, after = _Survey([], 0, 0), _Verdicts(FINDINGS.empty_table(), [], {}, {}), None, before
        if before.manifests:
            survey = self._survey(before)
            by, after = self._owners(lambda owners: self._second_look(owners, before, listed_at_ms, survey))
            verdicts = self._verdicts(survey, by)
        untold = dict(sorted({**before.untold, **after.untold}.items()))
        findings = _sorted([verdicts.findings, *self._afterwards(verdicts, by), untold_findings(untold, self._run_id)])
        orphans = _orphans(findings)
        condemned = self._condemn(orphans, listed_at_ms)
        summary = Summary(
            run_id=self._run_id,
            url=self._shown_url,
            listed_at_ms=listed_at_ms,
            containers={
                number: (each.epoch, before.manifests[number].sequence_number, each.sequence_number)
                for number, each in sorted(after.manifests.items())
                if number in before.manifests
            },
            untold=untold,
            objects=survey.objects,
            listed=survey.listed,
            chunks=sum(verdicts.chunks.values()),
            check=self._options.check,
            looked_into=verdicts.counts.get("looked_into", 0),
            bytes_read=verdicts.counts.get("bytes_read", 0),
            kinds=count_kinds(findings),
            orphans=sum(map(len, orphans.values())),
            delete_orphans=("asked" if self._options.execute else "dry run") if self._options.delete_orphans else "no",
            verdict=verdict_of(findings, condemned),
        )
        # Of an empty table Spark Connect wants to be told the columns.
        frame = self._spark.createDataFrame(findings, ddl(findings.schema))
        return ReconcileResult(findings=frame, table=findings, summary=summary, condemned=tuple(condemned))

    # --- the owners ----------------------------------------------------------------------------------------------

    def _owners(self, work: Callable[[Owners], Coroutine[Any, Any, _T]]) -> _T:
        async def run() -> _T:
            storage = open_object_storage(self._url, self._runtime)
            self._shown_url = storage.url
            try:
                options = self._options
                owners = Owners(
                    storage, self._runtime, self._run_id, options.snapshots, options.timeout_s, options.store_id
                )
                return await work(owners)
            finally:
                await storage.close()

        return self._wait_for(run)

    def _wait_for(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """In an event loop of its own; in a thread of its own too, for notebooks have a loop running in theirs."""
        executor = self._runtime.executor("reconcile", 1)
        try:
            return executor.submit(lambda: asyncio.run(work())).result()
        finally:
            executor.shutdown()

    async def _second_look(
        self, owners: Owners, before: Snapshots, listed_at_ms: int, survey: _Survey
    ) -> tuple[Judge, Snapshots]:
        """Snapshot B, after the listing; and before it what proposals are open, for one that is answered since is in B."""
        open_names = await owners.open_names(range(before.containers))
        after = await owners.snapshots("b")
        store_id = after.store_id or before.store_id
        shared_with = "" if store_id is None else await owners.shared_with(store_id)
        asked = self._options.snapshots == ASK
        if not asked:
            surveyed = (Suspects(unpack(row["before"]), unpack(row["listed"])) for row in survey.rows)
            after = after.without(moved_on(surveyed, after.manifests, shared=bool(shared_with)))
        place = Place(
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
            taken_ms=None if asked else {number: each.time_ms for number, each in after.manifests.items()},
        )
        confirm_all = self._listing is not None
        return Judge(before.manifests, after.manifests, place, self._run_id, confirm_all), after

    def _site(self, untold: Sequence[int] = ()) -> Site:
        return Site(
            url=self._url,
            run_id=self._run_id,
            listings_at_once=self._options.max_concurrent_listings,
            objects_at_once=self._options.max_concurrent_objects,
            bodies=self._options.check == "bodies",
            untold=tuple(untold),
        )

    # --- the two queries -----------------------------------------------------------------------------------------

    def _survey(self, before: Snapshots) -> _Survey:
        objects = sum(manifest.tables["objects"].rows for manifest in before.manifests.values())
        per_task = OBJECTS_PER_TASK if self._listing is None else PREPARED_PER_TASK
        parts = self._options.tasks or task_count(objects, per_task)
        site = self._site(sorted(before.untold))
        if self._listing is None:
            frame = survey_listed(self._spark, site, before.manifests, parts)
        else:
            mode = self._options.prefix_mismatch_mode
            frame = survey_prepared(self._spark, site, before.manifests, self._listing, parts, mode)
        rows = frame.toArrow().to_pylist()
        return _Survey(rows, sum(row["objects"] for row in rows), sum(row["listing"] for row in rows))

    def _verdicts(self, survey: _Survey, by: Judge) -> _Verdicts:
        moved = [] if self._options.snapshots == ASK else sorted(set(by.before) - set(by.after))
        work = [
            {"item": "judge", **{name: row[name] for name in ("first", "end", "before", "listed")}, **told}
            for row in survey.rows
            if row["suspects"]
            for told in [_told(row, moved)]
        ]
        work += self._owners(lambda owners: self._second_work(owners.storage, by))
        if not work:
            return _Verdicts(FINDINGS.empty_table(), [], {}, {})
        # Snapshot B is read again where suspects are judged, unless it is A.
        rows = in_bins(work, light={"judge"} if is_same(by) else ())
        frame = self._spark.createDataFrame(rows).repartitionById(pc.max(rows["bin"]).as_py() + 1, "bin")
        results = frame.mapInArrow(verdict_task(self._site(), by), ddl(RESULTS)).toArrow()
        counted = pc.is_valid(results["counter"])
        counts: dict[str, int] = {}
        chunks: dict[int, int] = {}
        gone: list[str] = []
        for row in results.filter(counted).to_pylist():
            if row["counter"] == "gone":
                gone.append(row["object"])
            elif row["counter"] == "chunks":
                chunks[row["container_id"]] = chunks.get(row["container_id"], 0) + row["count"]
            else:
                counts[row["counter"]] = counts.get(row["counter"], 0) + row["count"]
        findings = results.filter(pc.invert(counted)).select(FINDINGS.names).cast(FINDINGS)
        return _Verdicts(once(findings), gone, counts, chunks)

    async def _second_work(self, storage: ObjectStorage, by: Judge) -> list[dict[str, Any]]:
        """Rows of WORK over snapshot B: its segments to cover, and its objects to look into."""
        work: list[dict[str, Any]] = []
        live = objects = 0
        for number, manifest in sorted(by.after.items()):
            segments = await read_table(storage, manifest, "segments", columns=list(SEGMENT_COLUMNS))
            work += coverage_work(number, segments)
            live += live_bytes(segments)
            objects += manifest.tables["objects"].rows
        if self._options.check == "headers":
            work += look_work(self._options.tasks or task_count(objects, OBJECTS_PER_TASK))
        elif self._options.check == "bodies":
            weights = await _weights(storage, by) if objects <= WEIGHED_OBJECTS_MAX else None
            size = live if weights is None else sum(weights)
            work += look_work(self._options.tasks or look_count(size), weights)
        return work

    # --- afterwards ----------------------------------------------------------------------------------------------

    def _afterwards(self, verdicts: _Verdicts, by: Judge | None) -> list[pa.Table]:
        """What neither query could say alone."""
        if by is None:
            return []
        unknown = [
            Finding(Kind.WRONG_IDENTITY, f"the catalog has {rows - known} chunks of segments it does not know", number)
            for number, manifest in sorted(by.after.items())
            if (rows := manifest.tables["chunks"].rows) != (known := verdicts.chunks.get(number, 0))
        ]
        missing = verdicts.findings.filter(is_text(verdicts.findings["kind"], Kind.MISSING))["object"].to_pylist()
        gone = sorted(set(verdicts.gone) - set(missing))
        tables = [findings_table(unknown, self._run_id)]
        if gone:
            tables.append(self._owners(lambda owners: self._third_look(owners, by, gone)))
        return tables

    async def _third_look(self, owners: Owners, by: Judge, gone: Sequence[str]) -> pa.Table:
        """Live in B, and not there when it was asked for or looked into: judged by a snapshot taken since."""
        last = await owners.snapshots("c")
        epochs = {number: each.epoch if number in last.manifests else None for number, each in by.after.items()}
        later = by._replace(before=by.after, after=last.manifests, place=by.place._replace(epochs=epochs))
        return await judge_gone(owners.storage, gone, later)

    def _condemn(self, orphans: dict[int, list[str]], listed_at_ms: int) -> list[Condemned]:
        if not self._options.execute or not orphans:
            return []
        older_than_ms = listed_at_ms - int(self._options.older_than_s * 1000)
        return self._owners(lambda owners: owners.condemn(orphans, older_than_ms))


async def _weights(storage: ObjectStorage, by: Judge) -> list[int]:
    """Of each shard the bytes of its objects in snapshot B."""
    manifests = [manifest for _, manifest in sorted(by.after.items())]
    columns = list(WEIGHED_COLUMNS)
    return shard_bytes([await read_table(storage, each, "objects", columns=columns) for each in manifests])


def _told(row: dict[str, Any], untold: Sequence[int]) -> dict[str, bytes]:
    """A survey's suspects without those of containers that are told of as a whole."""
    if not untold:
        return {}
    before, listed = left_out(Suspects(unpack(row["before"]), unpack(row["listed"])), untold)
    return {"before": pack(before), "listed": pack(listed)}


def _sorted(tables: Sequence[pa.Table]) -> pa.Table:
    findings = pa.concat_tables(tables)
    return findings.sort_by(
        [(name, "ascending") for name in ("kind", "object", "container_id", "segment_id", "start_offset")]
    )


def _orphans(findings: pa.Table) -> dict[int, list[str]]:
    """Names of orphans by container."""
    orphans: dict[int, list[str]] = {}
    rows = findings.filter(is_text(findings["kind"], Kind.ORPHAN)).select(["container_id", "object"])
    for row in rows.to_pylist():
        orphans.setdefault(row["container_id"], []).append(row["object"])
    return orphans
