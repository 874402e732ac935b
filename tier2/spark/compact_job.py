"""Compaction as a Spark job: planned here, worked at by tasks, committed by the owners of the containers.

    snapshots  ->  plan  ->  query (a group a row: object made, proposal put)  ->  answers of the owners  ->  report

Rules of this file:

- the driver plans and waits; it holds the chunks of what it plans, never a byte of a segment;
- each query ends with its side effects, and one action runs it: a frame that is asked twice would do the work twice;
- nothing is committed or deleted here. Whatever is cut off anywhere, the same job id goes on from the proposals there are; two
  jobs at once make one more object than was needed, and the owner refuses the later proposal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from tier2.locations import open_object_storage
from tier2.mailbox.messages import MessageKey
from tier2.object_names import is_job_id, new_job_id
from tier2.object_storage import ObjectStorage
from tier2.spark.arrow_rows import ddl
from tier2.spark.command_options import ANSWER_TIMEOUT_S
from tier2.spark.compaction_driver import Prepared, prepare, read_proposals
from tier2.spark.compaction_options import CompactionOptions
from tier2.spark.compaction_report import (
    GROUPS,
    CompactionSummary,
    GroupRow,
    count_statuses,
    groups_table,
    planned_row,
    verdict_of,
)
from tier2.spark.compaction_work import (
    RESULTS,
    CompactionSite,
    bins_for,
    compaction_task,
    rounds_of,
    slots_of,
    work_table,
)
from tier2.spark.reconcile_owners import ASK, NEWEST, Owners, answers_to

_T = TypeVar("_T")


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


def plan_compaction(url: str, **options: Any) -> CompactionPlanned:
    """What `compact` would do with these options. Changes nothing, needs no session."""
    run = _Run(url, **options)
    return run.report(run.prepared(), {}, dry_run=True)


def compact(spark: SparkSession, url: str, *, dry_run: bool = False, **options: Any) -> CompactionResult:
    """Rewrite what is fragmented or mostly dead of the store whose Tier 2 is at `url`; see docs/compaction.md.

    `options`: `job_id` (drawn, or one to go on with), `snapshots` ("ask" the owners, or the "newest" there are), `timeout_s` and
    `commit_timeout_s` (how long owners may take to export, and to answer), `store_id`, `verify_copies`, and those of
    `CompactionOptions`. Raises ConfigError for them, CatalogFormatError and ObjectStorageError for what the driver cannot read,
    PySparkException if a task failed over and over; what cannot be done with a group is in its row.
    """
    run = _Run(url, **options)
    prepared = run.prepared()
    rows = {} if dry_run else run.work(spark, prepared)
    planned = run.report(prepared, rows, dry_run=dry_run)
    # Of an empty table Spark Connect wants to be told the columns.
    groups = spark.createDataFrame(groups_table(planned.rows), ddl(GROUPS))
    return CompactionResult(rows=planned.rows, summary=planned.summary, groups=groups)


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
        self._store_id = store_id
        self._verify_copies = verify_copies
        self._options = CompactionOptions(**options)

    def prepared(self) -> Prepared:
        """Snapshots, plan, and the proposals this job made before."""

        async def run(storage: ObjectStorage) -> Prepared:
            owners = Owners(storage, self._runtime, self._job_id, self._snapshots, self._timeout_s, self._store_id)
            return await prepare(owners, self._options, goes_on=self._goes_on)

        return self._on_storage(run)

    def work(self, spark: SparkSession, prepared: Prepared) -> dict[MessageKey, GroupRow]:
        """Have the plan carried out, and the owners asked what they say; what became of each group."""
        rows = {key: self._row(key).with_proposal(proposal) for key, proposal in prepared.proposals.items()}
        left = [
            (plan, planned)
            for plan in prepared.plans
            for planned in plan.groups
            if MessageKey(plan.container_id, self._job_id, planned.group_id) not in rows
        ]
        known = {
            MessageKey(plan.container_id, self._job_id, planned.group_id): planned_row(
                self._job_id, plan.container_id, planned
            )
            for plan, planned in left
        }
        site = CompactionSite(
            url=self._url, job_id=self._job_id, options=self._options, verify_copies=self._verify_copies
        )
        slots = slots_of(lambda name: spark.conf.get(name, "")) if left else None
        for some in rounds_of(left):
            most = self._options.max_concurrent_file_group_rewrites
            table = work_table(some, bins_for(len(some), most, slots))
            bins = len(table["bin"].unique())
            frame = spark.createDataFrame(table).repartitionById(bins, "bin")
            results = frame.mapInArrow(compaction_task(site, attempt_number), ddl(RESULTS)).toArrow()
            for result in results.to_pylist():
                key = MessageKey(result["container_id"], self._job_id, result["group_id"])
                rows[key] = known[key].with_result(result)
        return self._on_storage(lambda storage: self._answered(storage, rows))

    async def _answered(self, storage: ObjectStorage, rows: dict[MessageKey, GroupRow]) -> dict[MessageKey, GroupRow]:
        pending = [key for key, row in rows.items() if row.status == "pending"]
        answers = await answers_to(storage, pending, self._commit_timeout_s)
        # Of a proposal that another attempt made, the proposal itself says what it is.
        others = await read_proposals(storage, [key for key in pending if not rows[key].object])
        for key in pending:
            row = rows[key].with_proposal(others[key]) if key in others else rows[key]
            rows[key] = row.with_answer(answers.get(key))
        return rows

    def report(self, prepared: Prepared, worked: dict[MessageKey, GroupRow], *, dry_run: bool) -> CompactionPlanned:
        """The rows of all groups, and the numbers."""
        rows = dict(worked)
        for plan in prepared.plans:
            for planned in plan.groups:
                key = MessageKey(plan.container_id, self._job_id, planned.group_id)
                if key not in rows:
                    rows[key] = planned_row(self._job_id, plan.container_id, planned)
        ordered = sorted(rows.values(), key=lambda row: (row.container_id, row.group_id))
        committed = {row.group_id for row in ordered if row.status == "committed"}
        done = [row for row in ordered if row.is_committed]
        ids = {planned.group_id for plan in prepared.plans for planned in plan.groups}
        summary = CompactionSummary(
            job_id=self._job_id,
            url=self._shown_url,
            dry_run=dry_run,
            containers={
                number: (manifest.epoch, manifest.sequence_number) for number, manifest in prepared.manifests.items()
            },
            untold=prepared.untold,
            groups=count_statuses(ordered),
            chunks_before=sum(row.chunks_before for row in ordered),
            chunks_after=sum(row.chunks_after for row in ordered),
            source_objects=sum(plan.source_objects(ids) for plan in prepared.plans),
            expected_removed_data_files_count=sum(plan.freed_objects(ids) for plan in prepared.plans),
            planned_bytes=sum(row.rewritten_bytes for row in ordered),
            rewritten_data_files_count=sum(plan.source_objects(committed) for plan in prepared.plans)
            + sum(row.source_objects for row in done if row.group_id not in ids),
            added_data_files_count=len(done),
            rewritten_bytes_count=sum(row.rewritten_bytes for row in done),
            failed_data_files_count=sum(row.source_objects for row in ordered if row.status in {"failed", "refused"}),
            removed_data_files_count=sum(plan.freed_objects(committed) for plan in prepared.plans),
            requests=sum(row.requests for row in ordered),
            bytes_received=sum(row.bytes_received for row in ordered),
            bytes_sent=sum(row.bytes_sent for row in ordered),
            bytes_copied=sum(row.bytes_copied for row in ordered),
            verdict=verdict_of(ordered, prepared.untold),
        )
        return CompactionPlanned(rows=tuple(ordered), summary=summary)

    def _row(self, key: MessageKey) -> GroupRow:
        return GroupRow(job_id=self._job_id, container_id=key.container_id, group_id=key.message_id)

    def _on_storage(self, work: Callable[[ObjectStorage], Coroutine[Any, Any, _T]]) -> _T:
        """In an event loop of its own; in a thread of its own too, for notebooks have a loop running in theirs."""

        async def run() -> _T:
            storage = open_object_storage(self._url, self._runtime)
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
