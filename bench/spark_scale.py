"""Both Spark jobs over a catalog of very many chunks, on two cores within 4 GiB:
`make spark-scale MILLIONS=100`.

The catalog is generated (`spark_catalog`): containers of CONTAINER_OBJECTS objects, segments so
long that ranges cut them, faults of every kind. Reconciliation must find what was planted, and
nothing else; the dry run of a compaction must stay within its groups. A run fails where it does
not; it is ended, with all its processes, as soon as they have more than MEMORY_MAX together.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from bench import child, spark_catalog
from bench.child import Measured
from bench.spark_session import MemoryWatch, session
from bench.workspace import BenchError, require_free_bytes

CONTAINER_OBJECTS = 2_500_000
PER_SEGMENT = 625_000
"""Chunks of a segment: four in a container, and no range ends where one does."""
HEAP = "1g"
GIB = 1 << 30
MEMORY_MAX = 4 * GIB
TIMEOUT_S = 4 * 3600.0
DISK_BYTES = 300
"""For each object, at the most."""


def main(arguments: list[str] | None = None) -> int:
    """Make the catalog, run both jobs in a process of their own, print what they took; 0 if all was
    as it should be.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=100, help="of objects, and of chunks")
    parser.add_argument("--folder", default="var", help="where the catalog is made, and removed")
    chosen = parser.parse_args(arguments)
    containers = max(1, chosen.millions * 1_000_000 // CONTAINER_OBJECTS)
    objects = containers * CONTAINER_OBJECTS
    folder = Path(chosen.folder)
    folder.mkdir(exist_ok=True)
    require_free_bytes(folder, objects * DISK_BYTES)
    with tempfile.TemporaryDirectory(prefix="spark-scale-", dir=folder) as made:
        begun = time.perf_counter()
        spark_catalog.make(
            Path(made), objects, 2 * containers, containers=containers, per_segment=PER_SEGMENT
        )
        print(
            f"{objects:,} objects and chunks in {containers} containers, made in "
            f"{time.perf_counter() - begun:.0f} s",
            flush=True,
        )
        try:
            said = child.call(
                "bench.spark_scale", "measure", {"directory": made}, timeout_s=TIMEOUT_S
            )
        except BenchError as error:
            print(error, file=sys.stderr)
            return 1
    for name, value in said.items():
        print(f"{name:<28}{value:>16,}" if isinstance(value, int) else f"{name:<28}{value:>16.1f}")
    right = said["found"] == said["planted"] and not said["others"] and said["groups"]
    return 0 if right else 1


def measure(directory: str) -> Measured:
    """Seconds and the most memory of both jobs, and what they found."""
    planted = spark_catalog.planted(directory)
    url = spark_catalog.url_of(directory)
    with session(Path(directory), heap=HEAP) as spark:
        from tier2.spark.compact.job import compact  # noqa: PLC0415 - loaded with the session
        from tier2.spark.reconcile.job import reconcile  # noqa: PLC0415

        with MemoryWatch(MEMORY_MAX) as reconciling:
            begun = time.perf_counter()
            result = reconcile(
                spark, url, listing=spark_catalog.listing_of(directory), snapshots="newest"
            )
            reconcile_s = time.perf_counter() - begun
        said = spark_catalog.found(result.table)
        with MemoryWatch(MEMORY_MAX) as compacting:
            begun = time.perf_counter()
            plan = compact(spark, url, dry_run=True, snapshots="newest")
            compact_s = time.perf_counter() - begun
    found = len(planted & set(said))
    return {
        "chunks": result.summary.chunks,
        "planted": len(planted),
        "found": found,
        "others": len(said) - found,
        "reconcile_s": reconcile_s,
        "reconcile_bytes": reconciling.peak,
        "groups": len(plan.rows),
        "groups_left": plan.summary.groups_left,
        "chunks_left": plan.summary.chunks_left,
        "compact_s": compact_s,
        "compact_bytes": compacting.peak,
    }


if __name__ == "__main__":
    sys.exit(main())
