"""How reconciliation's work is cut: pure, numbers and Arrow tables in, rows of WORK out.

A range is so large that a task of it takes some seconds and some hundred megabytes at the most. And
there are at least so many that a small cluster has something to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tier2.catalog.catalog_schema import LIVE
from tier2.spark.common.arrow_rows import is_text
from tier2.spark.reconcile.work import WORK

OBJECTS_PER_TASK: Final = 320_000
PREPARED_PER_TASK: Final = 640_000
"""Of objects whose listing need not be asked for."""
CHUNKS_PER_TASK: Final = 1_280_000
BYTES_PER_TASK: Final = 512 * 1024 * 1024
"""To inspect."""
TASKS_MIN: Final = 8
TASKS_MAX: Final = 256
"""Shards are not cut."""
LENGTH_COLUMNS: Final = ("start_offset", "storage_length")
"""The part of a snapshot's `segments` from which the number of bytes follows."""
WEIGHED_COLUMNS: Final = ("shard", "size", "state")
"""What is needed of a snapshot's `objects` to cut it by bytes."""
WEIGHED_OBJECTS_MAX: Final = 65_536
"""Of so many the driver asks how they are spread; more are spread evenly by themselves, for names
are random.
"""


def task_count(amount: int, per_task: int) -> int:
    """The power of two that leaves each task at most `per_task` of `amount`, TASKS_MIN to
    TASKS_MAX.
    """
    needed = -(-amount // per_task)
    return min(max(1 << (needed - 1).bit_length() if needed else 1, TASKS_MIN), TASKS_MAX)


def live_bytes(segments: pa.Table) -> int:
    """Bytes of these segments in Tier 2: about what their objects hold."""
    held = pc.sum(pc.subtract(segments["storage_length"], segments["start_offset"])).as_py()
    return max(0, held or 0)


def coverage_work(
    container_id: int, segments: int, chunks: int, *, rows_per_task: int = CHUNKS_PER_TASK
) -> Iterator[dict[str, Any]]:
    """Rows `cover`: ranges of a container with so many rows, of about so many chunks or segments
    each.

    Which rows they are the task finds in the table's footer: nothing of the catalog is read here.
    """
    parts = max(-(-max(chunks, segments) // rows_per_task), 1)
    for part in range(parts):
        yield {"item": "cover", "container_id": container_id, "first": part, "end": parts}


def in_bins(work: Sequence[Mapping[str, Any]], light: Collection[str] = ()) -> pa.Table:
    """The rows as WORK, each in a bin: a bin is a task, and holds one row of each item at the most,
    of `light` ones any number.
    """
    counts = Counter(row["item"] for row in work)
    bins = max(
        (min(count, TASKS_MIN) if item in light else count for item, count in counts.items()),
        default=0,
    )
    places: Counter[str] = Counter()
    rows = []
    for row in work:
        rows.append({"bin": places[row["item"]] % bins, **row})
        places[row["item"]] += 1
    return pa.Table.from_pylist(rows, schema=WORK)


def check_work(parts: int, weights: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """Rows `look`, over all shards: as many of them in each, or, by the `weights` of all shards,
    about as much.
    """
    behind = np.cumsum(np.ones(256, np.int64) if weights is None else np.asarray(weights, np.int64))
    # A border is where the weight before it is nearest to its share.
    shares = np.arange(1, parts) * (float(behind[-1]) / parts)
    after = np.searchsorted(behind, shares)
    before = behind[np.maximum(after - 1, 0)] * (after > 0)
    ends = after + (behind[after] - shares <= shares - before)
    for first, end in pairwise([0, *ends.tolist(), 256]):
        if first < end:
            yield {"item": "look", "first": first, "end": end}


def shard_bytes(objects: Iterable[pa.Table]) -> list[int]:
    """How many bytes the live objects of each shard have, of tables with WEIGHED_COLUMNS."""
    held = [0] * 256
    for table in objects:
        live = table.filter(is_text(table["state"], LIVE))
        for row in live.group_by("shard").aggregate([("size", "sum")]).to_pylist():
            held[int(row["shard"], 16)] += row["size_sum"]
    return held


def check_count(size: int) -> int:
    """Tasks that inspect so many bytes, with about BYTES_PER_TASK for each; up to TASKS_MAX.

    Not TASKS_MIN at the least, nor one for the little that is left: what a task costs by itself is
    as much as some hundred megabytes do.
    """
    return min(max((size + BYTES_PER_TASK // 2) // BYTES_PER_TASK, 1), TASKS_MAX)
