"""Reconciliation of a catalog with a listing, both as Parquet, against one plain join of the two by
Spark.

Floor: a full outer sort-merge join of the snapshots' objects and the listing, by name; what differs
is counted, nothing is checked, no segment followed, nothing confirmed. Both in one session, in
turns, after a query of each sort has warmed it up. The job's findings must be exactly what was
planted. Memory is that of the first job, before the session has joined anything.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import child, spark_catalog
from bench.child import Measured
from bench.report import CaseResult, Row, Samples
from bench.spark_session import MemoryWatch, session
from bench.workspace import BenchError, require_free_bytes, subfolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUESTION = "reconciliation of catalog and listing by Spark"
FAULTS = 100
"""Of each kind."""
SHARE_OF_JOIN = 0.5
GIB = 1 << 30
MEMORY_MAX = 4 * GIB
_OBJECT_BYTES = 600
"""On disk, at the most: catalog, listing, and what a join spills."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About a minute and 200 k objects quick; 4 min, 10 M objects and up to 6 GiB on disk else."""
    objects = 200_000 if quick else 10_000_000
    require_free_bytes(directory, objects * _OBJECT_BYTES)
    with subfolder(directory, "spark-reconcile") as folder:
        spark_catalog.make(folder, objects, FAULTS)
        measured = child.call(__name__, "measure", {"directory": str(folder), "count": 2})
    return CaseResult(
        case="spark_reconcile",
        question=QUESTION,
        rows=rows_of(objects, measured, quick=quick),
        notes=[],
    )


def rows_of(objects: int, measured: Measured, *, quick: bool = False) -> list[Row]:
    """The three bars. Of few objects a job is all queries and no rows: its time has no bar then."""
    job, join = (Samples(tuple(measured[side])) for side in ("job", "join"))
    # The floor counts with its best round: here the shortest.
    ratio = job.median / min(join.rounds)
    planted, found, others = (int(measured[name]) for name in ("planted", "found", "others"))
    peak = Samples((measured["memory"] / GIB,))
    name = f"{objects / 1e6:g} M objects"
    return [
        Row(
            name=name,
            unit="s",
            floor=join,
            engine=job,
            ratio=ratio,
            bar="≤ half of one full outer sort-merge join",
            met=None if quick else ratio <= SHARE_OF_JOIN,
        ),
        Row(
            name=f"{name}: planted faults found",
            unit="",
            floor=Samples((planted,)),
            engine=Samples((found,)),
            ratio=found / planted,
            bar="all, and nothing else",
            met=found == planted and not others,
            extra={"others": others},
        ),
        Row(
            name=f"{name}: memory of all processes",
            unit="GiB",
            engine=peak,
            bar="≤ 4 GiB",
            met=measured["memory"] <= MEMORY_MAX,
        ),
    ]


def measure(directory: str, count: int) -> Measured:
    """Seconds of both sides, round by round; what was found; the most memory the first job had."""
    planted = spark_catalog.planted(directory)
    jobs: list[float] = []
    joins: list[float] = []
    with session(Path(directory)) as spark:
        from tier2.spark.reconcile.job import reconcile  # noqa: PLC0415 - loaded with the session

        _warm_up(spark)
        memory = found = others = 0
        for number in range(count):
            with MemoryWatch() as watch:
                begun = time.perf_counter()
                result = reconcile(
                    spark,
                    spark_catalog.url_of(directory),
                    listing=spark_catalog.listing_of(directory),
                    snapshots="newest",
                )
                jobs.append(time.perf_counter() - begun)
            said = spark_catalog.found(result.table)
            found, others = len(planted & set(said)), len(said) - len(planted & set(said))
            if not number:
                memory = watch.peak
            begun = time.perf_counter()
            differing = _join(spark, directory)
            joins.append(time.perf_counter() - begun)
            differ = ("missing", "wrong_size", "orphan", "in_flight", "foreign")
            expected = sum(fault[0] in differ for fault in planted)
            if differing != expected:
                message = f"the join found {differing:,} rows that differ, not {expected:,}"
                raise BenchError(message)
    return {
        "value": jobs[-1],
        "job": jobs,
        "join": joins,
        "memory": memory,
        "planted": len(planted),
        "found": found,
        "others": others,
    }


def _warm_up(spark: SparkSession) -> None:
    """The first side pays for generated code and started Python workers."""
    rows = spark.range(1000)
    rows.mapInArrow(lambda batches: batches, "id bigint").toArrow()
    others = spark.range(1000).withColumnRenamed("id", "other").hint("merge")
    rows.join(others, rows["id"] == others["other"], "full_outer").count()


def _join(spark: SparkSession, directory: str) -> int:
    """How many objects one side has alone, or of another size."""
    objects = spark.read.parquet(f"{spark_catalog.url_of(directory)}/catalog/*/*/objects.parquet")
    listing = spark.read.parquet(spark_catalog.listing_of(directory))
    catalog = objects.select("name", "size", "state")
    listed = listing.selectExpr("key", "size as listed_size").hint("merge")
    joined = catalog.join(listed, catalog["name"] == listed["key"], "full_outer")
    return joined.where("name is null or key is null or size <> listed_size").count()


if __name__ == "__main__":
    from bench.suite import main

    main("spark_reconcile")
