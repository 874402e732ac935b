"""Reconciliation without Spark: the tasks' functions over batches, with what the driver does
between them, or by the driver itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.tier2.spark.reconcile_world import DAY_S, World
from tier2.catalog.catalog_manifest import Manifest
from tier2.spark.common.arrow_rows import ddl
from tier2.spark.common.frames import partition_of
from tier2.spark.reconcile.coverage import broken_segments
from tier2.spark.reconcile.findings import FINDINGS, StoreFacts
from tier2.spark.reconcile.job import ReconcileResult, reconcile
from tier2.spark.reconcile.marks import HASHES
from tier2.spark.reconcile.plan import check_work, coverage_work
from tier2.spark.reconcile.scan_work import Listers, scan_task
from tier2.spark.reconcile.tasks import CheckInputs
from tier2.spark.reconcile.verdict_work import borders_of, verdict_task
from tier2.spark.reconcile.work import RESULTS, SURVEYED, WORK, Site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]
Beside = Callable[[], Mapping[int, Manifest]]


def dry_run(
    world: World,
    *,
    between: Beside | None = None,
    parts: int = 8,
    check: str = "bodies",
    older_than_s: float = 3 * DAY_S,
    listers: Listers | None = None,
    confirm_all: bool = False,
    open_names: Sequence[str] = (),
    unresponsive: Sequence[int] = (),
    chunks_per_task: int = 4,
) -> tuple[pa.Table, dict[str, int]]:
    """FINDINGS and counters.

    `between` is what happens between the listing and snapshot B, which it gives.
    """
    before = {
        number: manifest
        for number, manifest in world.snapshot().items()
        if number not in unresponsive
    }
    site = Site(
        url=world.url,
        run_id="00000000000000aa",
        listings_at_once=4,
        objects_at_once=2,
        bodies=check == "bodies",
        unresponsive=tuple(unresponsive),
    )
    surveyed = _run(
        scan_task(site, before, parts, listers), pa.table({"id": range(parts + 1)}), SURVEYED
    )
    after = between() if between is not None else before
    place = StoreFacts(
        epochs={
            number: after[number].epoch if number in after and number in before else None
            for number in world.metadata
        },
        listed_at_ms=world.now_ms,
        older_than_ms=int(older_than_s * 1000),
        open_names=frozenset(open_names),
    )
    work = [
        {"item": "judge", **{name: row[name] for name in ("first", "end", "before", "listed")}}
        for row in surveyed.to_pylist()
        if row["suspects"]
    ]
    for number, manifest in after.items():
        tables = manifest.tables
        work += coverage_work(
            number, tables["segments"].rows, tables["chunks"].rows, rows_per_task=chunks_per_task
        )
    if check != "none":
        work += check_work(parts)
    by = CheckInputs(before, after, place, site.run_id, confirm_all)
    results = _run(verdict_task(site, by), pa.Table.from_pylist(work, schema=WORK), RESULTS)
    walks = [
        {"item": "walk", "container_id": number, "first": segment_id}
        for number, borders in borders_of(results.to_pylist()).items()
        for segment_id in broken_segments(borders)
    ]
    walked = _run(verdict_task(site, by), pa.Table.from_pylist(walks, schema=WORK), RESULTS)
    results = pa.concat_tables([results, walked])
    counted = pc.is_valid(results["counter"])
    counters: dict[str, int] = {"listing": sum(row["listing"] for row in surveyed.to_pylist())}
    for row in results.filter(counted).to_pylist():
        counters[row["counter"]] = counters.get(row["counter"], 0) + row["count"]
    return results.filter(pc.invert(counted)).select(FINDINGS.names), counters


def _run(task: Callable[[Batches], Batches], rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """As Spark: some rows at a time, and one schema for all that comes."""
    batches = [
        result for batch in rows.to_batches(max_chunksize=3) for result in task(iter([batch]))
    ]
    return pa.Table.from_batches(batches, schema)


def found(findings: pa.Table) -> set[tuple[str, str | None]]:
    """Kind and object (of a gap: segment) of each finding."""
    return {(row["kind"], _place(row)) for row in findings.to_pylist()}


def _place(row: Mapping[str, Any]) -> str | None:
    if row["kind"] in {"gap", "overlap"}:
        return f"{row['container_id']}/{row['segment_id']}"
    name: str | None = row["object"]
    return name


class LocalSpark:
    """As much of a session as a run asks for that lists by itself: partitions and retries in this
    process.

    As in Spark nothing runs before an action, and each action runs everything; `lost` partitions of
    each lose their first attempt at its end; `then` is called after each action.
    """

    def __init__(self, *, lost: int = 0, then: Callable[[], None] = lambda: None) -> None:
        self.lost = lost
        self.then = then
        self.actions = 0

    def as_spark(self) -> SparkSession:
        return cast("SparkSession", self)

    def range(self, start: int, end: int, step: int, partitions: int) -> LocalFrame:
        assert (start, step, partitions) == (0, 1, end)
        return LocalFrame(
            self, [pa.table({"id": pa.array([number], pa.int64())}) for number in range(end)]
        )

    def createDataFrame(self, table: pa.Table, schema: str = "") -> LocalFrame:  # noqa: N802
        return LocalFrame(self, [table])


class LocalFrame:
    """Partitions, and what is to be run over them."""

    def __init__(
        self,
        session: LocalSpark,
        partitions: list[pa.Table],
        task: Callable[[Batches], Batches] | None = None,
        schema: str = "",
    ) -> None:
        self._schema = next((each for each in (SURVEYED, HASHES) if schema == ddl(each)), RESULTS)
        self._session = session
        self._partitions = partitions
        self._task = task

    def repartition(self, number: int, column: str) -> LocalFrame:
        (table,) = self._partitions
        by = pa.array(
            [partition_of(int(each or 0), number) for each in table[column].to_pylist()], pa.int32()
        )
        return LocalFrame(
            self._session,
            [table.filter(pc.equal(by, pa.scalar(each, pa.int32()))) for each in range(number)],
        )

    def mapInArrow(  # noqa: N802
        self, task: Callable[[Batches], Batches], schema: str
    ) -> LocalFrame:
        return LocalFrame(self._session, self._partitions, task, schema)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's
        assert self._task is not None
        self._session.actions += 1
        for partition in self._partitions[: self._session.lost]:
            _run(self._task, partition, self._schema)
        results = [_run(self._task, partition, self._schema) for partition in self._partitions]
        self._session.then()
        return pa.concat_tables(results)


def handed_to_driver(monkeypatch: pytest.MonkeyPatch) -> list[pa.Table]:
    """All that comes to the driver from now on."""
    tables: list[pa.Table] = []
    collect = LocalFrame.toArrow

    def look(self: LocalFrame) -> pa.Table:
        tables.append(collect(self))
        return tables[-1]

    monkeypatch.setattr(LocalFrame, "toArrow", look)
    return tables


def stopped(spark: object, world: World, url: str | None = None, **options: Any) -> ReconcileResult:
    session: Any = spark.as_spark() if isinstance(spark, LocalSpark) else spark
    return reconcile(session, url or world.url, **({"snapshots": "newest"} | options))
