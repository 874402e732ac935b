"""Compaction as a Spark job: planned here, worked at by tasks, committed by the owners of the
containers.

    snapshots -> plan (a range a task) -> query (a group a row: object made, proposal put) ->
    answers of the owners -> report

Rules of this file:

- tasks plan, range by range of the catalogs; the driver holds groups, of a bounded number, and no
  chunk but in their encoded rows;
- each query ends with its side effects, and one action runs it: a frame that is asked twice would
  do the work twice;
- nothing is committed or deleted here. Wherever it is cut off, the same job id goes on from the
  proposals there are. Two jobs at once create one more object than was needed, and the owner
  refuses the later proposal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tier2.object_names import MessageKey
from tier2.object_storage import ObjectStorage
from tier2.spark.common.arrow_rows import ddl
from tier2.spark.common.command_options import ANSWER_TIMEOUT_S, checked_store_id
from tier2.spark.common.frames import arrow_of, frame_of, map_bins
from tier2.spark.common.storages import open_retried
from tier2.spark.compact.driver import Prepared, planned_here, prepare, read_proposals
from tier2.spark.compact.options import CompactionOptions
from tier2.spark.compact.overtaken import overtaken_sources
from tier2.spark.compact.plan import PlannedGroup, PlanOutline
from tier2.spark.compact.ranges import LEFT, PLANNED, RANGES, ChunkRange, outlines_of, ranges_of
from tier2.spark.compact.report import (
    CompactionSummary,
    GroupRow,
    count_statuses,
    groups_table,
    planned_row,
    verdict_of,
)
from tier2.spark.compact.work import (
    RESULTS,
    CompactionSite,
    Worked,
    bins_for,
    compaction_task,
    dead_task,
    left_task,
    plan_task,
    ranges_table,
    rounds_of,
    slots_of,
    waves_of,
    work_table,
)
from tier2.spark.reconcile.owners import ASK, NEWEST, Owners, answers_to
from tier2.unique_ids import is_job_id, new_job_id

_T = TypeVar("_T")

CHUNKS_HERE: Final = 4_000_000
"""Of so many a dry run plans without Spark: a minute, and one range in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlanned:
    """What a job would do, or did."""

    rows: tuple[GroupRow, ...]
    summary: CompactionSummary

    @property
    def table(self) -> pa.Table:
        """A row a group, of the schema `compaction_report.GROUPS`."""
        return groups_table(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult(CompactionPlanned):
    """What a job did."""

    groups: DataFrame
    """The same rows, as often as they are asked for."""


def plan_compaction(
    url: str, *, spark: Callable[[], SparkSession] | None = None, **options: Any
) -> CompactionPlanned:
    """What `compact` would do with these options. Changes nothing.

    Without `spark`, which makes a session, all is planned here, range by range; with it more than
    CHUNKS_HERE chunks are by tasks.
    """
    run = _Run(url, **options)
    prepared = run.prepared()
    chunks = sum(manifest.tables["chunks"].rows for manifest in prepared.manifests.values())
    session = spark() if spark is not None and chunks > CHUNKS_HERE else None
    return run.report(prepared, run.planned(session, prepared), {}, dry_run=True)


def compact(
    spark: SparkSession, url: str, *, dry_run: bool = False, **options: Any
) -> CompactionResult:
    """Rewrite what is fragmented or mostly dead of the store whose Tier 2 is at `url`; see
    docs/compaction.md.

    `options`: `job_id` (drawn, or one to go on with) and `snapshots` ("ask" the owners, or the
    "newest" there are). `timeout_s` and `commit_timeout_s` say how long owners may take to export,
    and to answer. Also `store_id`, `store_folder`, `verify_copies`, and those of
    `CompactionOptions`. Raises ConfigError for them, CatalogFormatError and ObjectStorageError for
    what the driver cannot read, PySparkException if a task failed over and over. What cannot be
    done with a group is in its row.
    """
    run = _Run(url, **options)
    prepared = run.prepared()
    plans = _Plans(run.options.max_file_groups)
    rows: dict[MessageKey, GroupRow] = {}
    if dry_run:
        plans = run.planned(spark, prepared)
    else:
        rows = run.work(spark, prepared, plans)
    planned = run.report(prepared, plans, rows, dry_run=dry_run)
    groups = frame_of(spark, groups_table(planned.rows))
    return CompactionResult(rows=planned.rows, summary=planned.summary, groups=groups)


class _Plans:
    """The plans of a run as its driver keeps them: outlines, and of no more groups than it may
    have.
    """

    def __init__(self, groups_max: int) -> None:
        self.outlines: list[PlanOutline] = []
        self.groups_left = 0
        self.chunks_left = 0
        self._room = groups_max

    @property
    def is_full(self) -> bool:
        """No group more is taken."""
        return not self._room

    def add(self, outline: PlanOutline) -> Sequence[PlannedGroup]:
        """Keep a plan; the groups of it that there was room for."""
        taken = outline.groups[: self._room]
        self.groups_left += len(outline.groups) - len(taken)
        self._room -= len(taken)
        self.outlines.append(outline._replace(groups=taken))
        return taken

    def pass_over(self, wave: Iterable[ChunkRange], prepared: Prepared) -> None:
        """These are left for a later run."""
        rows = (
            prepared.manifests[where.container_id].tables["chunks"].rows
            for where in wave
            if not where.part
        )
        self.chunks_left += sum(rows)


class _Run:
    """One run, step by step."""

    def __init__(
        self,
        url: str,
        *,
        job_id: str | None = None,
        snapshots: str = ASK,
        timeout_s: float = ANSWER_TIMEOUT_S,
        commit_timeout_s: float | None = None,
        store_id: str | None = None,
        store_folder: str | None = None,
        verify_copies: bool = False,
        **options: Any,
    ) -> None:
        if job_id is not None and not is_job_id(job_id):
            raise ConfigError("job-id", f"{job_id!r} is not 16 lower hex digits")
        if snapshots not in {ASK, NEWEST}:
            raise ConfigError("snapshots", f"{snapshots!r} is not one of {ASK}, {NEWEST}")
        self._url = url
        self._shown_url = ""
        self._runtime = Runtime()
        self._goes_on = job_id is not None
        self._job_id = job_id or new_job_id(self._runtime.random)
        self._snapshots = snapshots
        self._timeout_s = timeout_s
        self._commit_timeout_s = timeout_s if commit_timeout_s is None else commit_timeout_s
        self._store_id = None if store_id is None else checked_store_id(store_id)
        self._store_folder = store_folder
        self._verify_copies = verify_copies
        self.options = CompactionOptions(**options)

    def prepared(self) -> Prepared:
        """Snapshots, plan, and the proposals this job made before."""

        async def run(storage: ObjectStorage) -> Prepared:
            return await prepare(self._owners(storage), self.options, goes_on=self._goes_on)

        return self._on_storage(run)

    def _owners(self, storage: ObjectStorage) -> Owners:
        return Owners(
            storage,
            self._runtime,
            self._job_id,
            self._snapshots,
            self._timeout_s,
            self._store_id,
            self._store_folder,
        )

    def planned(self, spark: SparkSession | None, prepared: Prepared) -> _Plans:
        """All plans, and none of their groups' chunks; without a session made here."""
        plans = _Plans(self.options.max_file_groups)
        for wave in self._waves(prepared):
            if plans.is_full:
                plans.pass_over(wave, prepared)
            elif spark is None:
                for outline in self._on_storage(self._planned_here(prepared, wave)):
                    plans.add(outline)
            else:
                for outline, _ in self._planned_by_tasks(spark, prepared, wave, with_data=False):
                    plans.add(outline)
        return plans

    def _planned_here(
        self, prepared: Prepared, wave: list[ChunkRange]
    ) -> Callable[[ObjectStorage], Coroutine[Any, Any, Iterable[PlanOutline]]]:
        return lambda storage: planned_here(storage, prepared.manifests, wave, self.options)

    def _waves(self, prepared: Prepared) -> Iterator[list[ChunkRange]]:
        wanted = [
            each
            for number, each in prepared.manifests.items()
            if self.options.wants_container(number)
        ]
        return waves_of(ranges_of(wanted), prepared.manifests)

    def _planned_by_tasks(
        self, spark: SparkSession, prepared: Prepared, wave: list[ChunkRange], *, with_data: bool
    ) -> Iterator[tuple[PlanOutline, Mapping[str, bytes]]]:
        """The plans of some ranges: one query, a task a range."""
        site = self._site()
        task = plan_task(site, prepared.manifests, with_data=with_data)
        cut = [where for where in wave if where.parts > 1]
        if cut:
            left = map_bins(spark, ranges_table(cut), left_task(site, prepared.manifests), LEFT)
            dead = left.repartition("container_id", "object").mapInArrow(
                dead_task(self.options), ddl(RANGES)
            )
            rows = dead.unionByName(frame_of(spark, ranges_table(wave)))
            by_range = rows.repartition(len(wave), "container_id", "part").sortWithinPartitions(
                "container_id", "part"
            )
            frame = by_range.mapInArrow(task, ddl(PLANNED))
        else:
            frame = map_bins(spark, ranges_table(wave), task, PLANNED)
        return outlines_of(arrow_of(frame, PLANNED))

    def work(
        self, spark: SparkSession, prepared: Prepared, plans: _Plans
    ) -> dict[MessageKey, GroupRow]:
        """Have all planned and carried out, and the owners asked what they say; what became of each
        group.
        """
        rows = {
            key: self._row(key).with_proposal(proposal)
            for key, proposal in prepared.proposals.items()
        }
        for wave in self._waves(prepared):
            if plans.is_full:
                plans.pass_over(wave, prepared)
                continue
            groups = [
                Worked(outline.container_id, planned, datas[planned.group_id])
                for outline, datas in self._planned_by_tasks(spark, prepared, wave, with_data=True)
                for planned in plans.add(outline)
            ]
            rows |= self._worked_at(spark, [each for each in groups if self._key(each) not in rows])
        return self._on_storage(lambda storage: self._answered(storage, rows))

    def _worked_at(self, spark: SparkSession, groups: list[Worked]) -> dict[MessageKey, GroupRow]:
        known = {
            self._key(each): planned_row(self._job_id, each.container_id, each.planned)
            for each in groups
        }
        rows = {}
        deleted: dict[MessageKey, str] = {}
        slots = slots_of(lambda name: spark.conf.get(name, "")) if groups else None
        for some in rounds_of(groups):
            table = work_table(
                some, bins_for(len(some), self.options.max_concurrent_file_group_rewrites, slots)
            )
            task = compaction_task(self._site(), attempt_number)
            for result in arrow_of(map_bins(spark, table, task, RESULTS), RESULTS).to_pylist():
                key = MessageKey(result["container_id"], self._job_id, result["group_id"])
                rows[key] = known[key].with_result(result)
                if result["missing"]:
                    deleted[key] = result["missing"]
        overtaken = (
            self._on_storage(lambda storage: overtaken_sources(self._owners(storage), deleted))
            if deleted
            else {}
        )
        for key, reason in overtaken.items():
            rows[key] = rows[key].overtaken(reason)
        return rows

    def _site(self) -> CompactionSite:
        return CompactionSite(
            url=self._url,
            job_id=self._job_id,
            options=self.options,
            verify_copies=self._verify_copies,
        )

    def _key(self, group: Worked) -> MessageKey:
        return MessageKey(group.container_id, self._job_id, group.planned.group_id)

    async def _answered(
        self, storage: ObjectStorage, rows: dict[MessageKey, GroupRow]
    ) -> dict[MessageKey, GroupRow]:
        pending = [key for key, row in rows.items() if row.status == "pending"]
        if pending:
            await self._owners(storage).wake()
        answers = await answers_to(storage, pending, self._commit_timeout_s)
        # Of a proposal that another attempt made, the proposal itself says what it is.
        others = await read_proposals(storage, [key for key in pending if not rows[key].object])
        for key in pending:
            row = rows[key].with_proposal(others[key]) if key in others else rows[key]
            rows[key] = row.with_answer(answers.get(key))
        return rows

    def report(
        self,
        prepared: Prepared,
        plans: _Plans,
        worked: dict[MessageKey, GroupRow],
        *,
        dry_run: bool,
    ) -> CompactionPlanned:
        """The rows of all groups, and the numbers."""
        rows = dict(worked)
        for plan in plans.outlines:
            for planned in plan.groups:
                key = MessageKey(plan.container_id, self._job_id, planned.group_id)
                if key not in rows:
                    rows[key] = planned_row(self._job_id, plan.container_id, planned)
        ordered = sorted(rows.values(), key=lambda row: (row.container_id, row.group_id))
        committed = {row.group_id for row in ordered if row.status == "committed"}
        done = [row for row in ordered if row.is_committed]
        ids = {planned.group_id for plan in plans.outlines for planned in plan.groups}
        summary = CompactionSummary(
            job_id=self._job_id,
            url=self._shown_url,
            dry_run=dry_run,
            containers={
                number: (manifest.epoch, manifest.sequence_number)
                for number, manifest in prepared.manifests.items()
            },
            unresponsive=prepared.unresponsive,
            groups=count_statuses(ordered),
            chunks_before=sum(row.chunks_before for row in ordered),
            chunks_after=sum(row.chunks_after for row in ordered),
            source_objects=sum(plan.source_objects(ids) for plan in plans.outlines),
            expected_removed_data_files_count=sum(
                plan.freed_objects(ids) for plan in plans.outlines
            ),
            planned_bytes=sum(row.rewritten_bytes for row in ordered),
            groups_left=plans.groups_left,
            chunks_left=plans.chunks_left,
            rewritten_data_files_count=sum(
                plan.source_objects(committed) for plan in plans.outlines
            )
            + sum(row.source_objects for row in done if row.group_id not in ids),
            added_data_files_count=len(done),
            rewritten_bytes_count=sum(row.rewritten_bytes for row in done),
            failed_data_files_count=sum(
                row.source_objects for row in ordered if row.status in {"failed", "refused"}
            ),
            removed_data_files_count=sum(plan.freed_objects(committed) for plan in plans.outlines),
            requests=sum(row.requests for row in ordered),
            bytes_received=sum(row.bytes_received for row in ordered),
            bytes_sent=sum(row.bytes_sent for row in ordered),
            bytes_copied=sum(row.bytes_copied for row in ordered),
            verdict=verdict_of(ordered, prepared.unresponsive),
        )
        return CompactionPlanned(rows=tuple(ordered), summary=summary)

    def _row(self, key: MessageKey) -> GroupRow:
        return GroupRow(job_id=self._job_id, container_id=key.container_id, group_id=key.message_id)

    def _on_storage(self, work: Callable[[ObjectStorage], Coroutine[Any, Any, _T]]) -> _T:
        """In an event loop of its own; in a thread of its own too, for notebooks have a loop
        running in theirs.
        """

        async def run() -> _T:
            storage = open_retried(self._url, self._runtime)
            self._shown_url = storage.url
            try:
                return await work(storage)
            finally:
                await storage.close()

        executor = self._runtime.executor("compact", 1)
        try:
            return executor.submit(lambda: asyncio.run(run())).result()
        finally:
            executor.shutdown()


def attempt_number() -> int:
    """Which attempt at its task this is, from 0 on. Called in a task."""
    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0
