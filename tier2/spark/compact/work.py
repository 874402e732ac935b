"""The rows that carry a compaction's groups to its tasks, and what comes back; and the function
Spark runs over them.

Rules of this file:

- a row is a whole group: a task needs nothing of the driver but its rows and a `CompactionSite`;
- groups are packed into bins by their bytes, the largest first: a bin is a partition, and works at
  one group after another. Where it is known how many tasks run at a time there are as many bins, or
  a multiple: each task more costs some tenths of a second;
- the storage is opened in the task and closed by it; nothing that has a thread or a socket is ever
  sent;
- the query ends with this function: what it does to the storage is its last stage, and one action
  runs it once.

No pyspark: the function takes and gives Arrow batches.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from segmentstore.contracts.runtime import Runtime
from tier2.catalog.catalog_manifest import Manifest
from tier2.locations import open_object_storage
from tier2.spark.common.storages import with_storage
from tier2.spark.common.task_disk import BulkDisk
from tier2.spark.compact.group import Group, GroupResult
from tier2.spark.compact.options import CompactionOptions
from tier2.spark.compact.plan import PlannedGroup
from tier2.spark.compact.ranges import (
    LEFT,
    RANGES,
    ChunkRange,
    dead_rows,
    left_rows,
    plan_range,
    planned_rows,
)
from tier2.spark.compact.task import execute_group

ROUND_CHUNKS: Final = 1_000_000
"""Chunks of one query, about: some 15 MB of rows. More take several, one after another."""

WAVE_CHUNKS: Final = 8_000_000
"""Chunks of containers that are planned together: if all are worth rewriting, some 120 MB of
groups.
"""
BIN_GROUPS: Final = 16
"""Groups of one bin, about, at most, however few tasks run at a time: what has to wait for a task
that lags behind.
"""
_LOCAL: Final = re.compile(r"local(?:\[(\*|[0-9]+)(?:, *[0-9]+)?\])?")

Batches = Iterator[pa.RecordBatch]


class Worked(NamedTuple):
    """A group on its way to a task."""

    container_id: int
    planned: PlannedGroup
    data: bytes
    """All of it, encoded."""


_WORK: Final[list[pa.Field[Any]]] = [pa.field("bin", pa.int32()), pa.field("data", pa.binary())]
WORK: Final = pa.schema(_WORK)
"""A group a row. `bin` is an int, as `frames.map_bins` has it."""

_RESULTS: Final[list[pa.Field[Any]]] = [
    pa.field("container_id", pa.int64()),
    pa.field("group_id", pa.string()),
    pa.field("outcome", pa.string()),
    pa.field("reason", pa.string()),
    pa.field("missing", pa.string()),
    pa.field("first", pa.bool_()),
    pa.field("method", pa.string()),
    pa.field("object_name", pa.string()),
    pa.field("object_bytes", pa.int64()),
    pa.field("chunks_after", pa.int64()),
    pa.field("requests", pa.int64()),
    pa.field("bytes_received", pa.int64()),
    pa.field("bytes_sent", pa.int64()),
    pa.field("bytes_copied", pa.int64()),
    pa.field("milliseconds", pa.int64()),
    pa.field("attempt", pa.int64()),
]
RESULTS: Final = pa.schema(_RESULTS)
"""A GroupResult a row, and which attempt at its task gave it, from 0 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSite:
    """What every task of a job gets."""

    url: str = field(repr=False)
    job_id: str
    options: CompactionOptions
    verify_copies: bool


def slots_of(setting: Callable[[str], str | None]) -> int | None:
    """How many tasks run at a time, as far as Spark's settings say; None if they do not, or it
    changes as they run.

    `setting` gives the value of one, None or nothing if there is none. Only how the work is cut
    hangs on it.
    """
    local = _LOCAL.fullmatch(setting("spark.master") or "")
    if local is not None:
        cores = os.cpu_count() if local[1] == "*" else int(local[1] or 1)
    elif (setting("spark.dynamicAllocation.enabled") or "false").lower() == "true":
        return None
    else:
        cores = _number(setting("spark.cores.max"))
        executors, each = (
            _number(setting("spark.executor.instances")),
            _number(setting("spark.executor.cores")),
        )
        if executors and each:
            cores = executors * each
    return max(1, cores // (_number(setting("spark.task.cpus")) or 1)) if cores else None


def _number(value: str | None) -> int | None:
    return int(value) if value and value.isdecimal() else None


def bins_for(groups: int, bins_max: int, slots: int | None) -> int:
    """Into how many bins so many groups go, where `slots` tasks run at a time: 1 to `bins_max`."""
    if slots is None:
        return bins_max
    waves = -(-groups // (slots * BIN_GROUPS))
    return min(bins_max, slots * max(waves, 1))


def rounds_of(groups: Iterable[Worked]) -> Iterator[list[Worked]]:
    """The groups cut into queries, in order."""
    held: list[Worked] = []
    chunks = 0
    for each in groups:
        if held and chunks + each.planned.chunks > ROUND_CHUNKS:
            yield held
            held, chunks = [], 0
        held.append(each)
        chunks += each.planned.chunks
    if held:
        yield held


def waves_of(
    ranges: Iterable[ChunkRange], manifests: Mapping[int, Manifest]
) -> Iterator[list[ChunkRange]]:
    """Whole containers, as many as have about WAVE_CHUNKS chunks: what is planned, and then worked
    at, together.
    """
    held: list[ChunkRange] = []
    chunks = 0
    for where in ranges:
        rows = manifests[where.container_id].tables["chunks"].rows
        if held and not where.part and chunks + rows > WAVE_CHUNKS:
            yield held
            held, chunks = [], 0
        chunks += 0 if where.part else rows
        held.append(where)
    if held:
        yield held


def bins_of(sizes: Sequence[int], bins: int) -> list[int]:
    """For each size the number of its bin, of at most `bins`: the largest first, each into the bin
    that holds least.
    """
    heap = [(0, number) for number in range(min(bins, len(sizes)))]
    chosen = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        held, number = heapq.heappop(heap)
        chosen[index] = number
        # Whatever its size a group costs requests: bins of nothing but small ones are evened out as
        # well.
        heapq.heappush(heap, (held + sizes[index] + 1, number))
    return chosen


def work_table(groups: Sequence[Worked], bins: int) -> pa.Table:
    """Rows of WORK: the groups of one query, in at most `bins` bins."""
    chosen = bins_of([each.planned.bytes for each in groups], bins)
    return pa.Table.from_arrays(
        [pa.array(chosen, pa.int32()), pa.array([each.data for each in groups], pa.binary())],
        schema=WORK,
    )


# --- planning -------------------------------------------------------------------------------------


def ranges_table(ranges: Sequence[ChunkRange]) -> pa.Table:
    """RANGES: a bin each."""
    rows = [{"bin": number, **where._asdict()} for number, where in enumerate(ranges)]
    return pa.Table.from_pylist(rows, schema=RANGES)


def left_task(
    site: CompactionSite, manifests: Mapping[int, Manifest]
) -> Callable[[Batches], Batches]:
    """Over batches of RANGES: LEFT."""

    def run(batches: Batches) -> Batches:
        for where, _ in _ranges_in(batches):
            manifest = manifests[where.container_id]
            work = partial(left_rows, manifest=manifest, where=where, options=site.options)
            yield from with_storage(site.url, work).to_batches()

    return run


def dead_task(options: CompactionOptions) -> Callable[[Batches], Batches]:
    """Over LEFT, of each object all rows: RANGES with the dead ones."""

    def run(batches: Batches) -> Batches:
        yield from dead_rows(pa.Table.from_batches(batches, LEFT), options).to_batches()

    return run


def plan_task(
    site: CompactionSite, manifests: Mapping[int, Manifest], *, with_data: bool
) -> Callable[[Batches], Batches]:
    """Over RANGES, all rows of each range together: PLANNED."""

    def run(batches: Batches) -> Batches:
        for where, dead in _ranges_in(batches):
            manifest = manifests[where.container_id]
            work = partial(
                plan_range, manifest=manifest, where=where, options=site.options, dead=dead
            )
            plan = with_storage(site.url, work)
            yield from planned_rows(plan, where.part, with_data=with_data).to_batches()

    return run


def _ranges_in(batches: Batches) -> Iterator[tuple[ChunkRange, list[int]]]:
    """Each range, with the objects in its rows."""
    held: tuple[ChunkRange, list[int]] | None = None
    for batch in batches:
        columns: list[list[Any]] = [
            batch.column(name).to_pylist() for name in (*ChunkRange._fields, "object")
        ]
        for container_id, part, parts, number in zip(*columns, strict=True):
            where = ChunkRange(container_id, part, parts)
            if held is None or held[0] != where:
                if held is not None:
                    yield held
                held = where, []
            if number is not None:
                held[1].append(number)
    if held is not None:
        yield held


# --- rewriting ------------------------------------------------------------------------------------


def compaction_task(
    site: CompactionSite, attempt: Callable[[], int]
) -> Callable[[Batches], Batches]:
    """Over batches of WORK: RESULTS. `attempt` says, in the task, which attempt at it this is."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            datas: list[Any] = batch.column("data").to_pylist()
            yield results_batch(asyncio.run(_work(site, datas)), attempt())

    return run


async def _work(site: CompactionSite, datas: Sequence[bytes]) -> list[GroupResult]:
    runtime = Runtime(disk=BulkDisk())
    storage = open_object_storage(site.url, runtime)
    try:
        return [
            await execute_group(
                storage,
                runtime,
                Group.decode(data),
                job_id=site.job_id,
                options=site.options,
                verify_copies=site.verify_copies,
            )
            for data in datas
        ]
    finally:
        await storage.close()


def results_batch(results: Sequence[GroupResult], attempt: int) -> pa.RecordBatch:
    """Rows of RESULTS."""
    rows = []
    for result in results:
        row = asdict(result)
        rows.append({**row, "milliseconds": int(1000 * row["seconds"]), "attempt": attempt})
    return pa.RecordBatch.from_pylist(rows, schema=RESULTS)
