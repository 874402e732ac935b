"""Findings by class: how many there are of each, and a bounded sample of them.

A class is kind, severity and container. Rules of this file:

- a count is of all rows, whatever is shown of them;
- of each kind and severity at least one row is shown: the verdict of a run needs it;
- small classes are shown whole before a large one gets more: a million orphans hide no gap.

Pure: Arrow tables in and out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tier2.spark.reconcile.findings import FindingKind

FINDINGS_SHOWN: Final = 65_536
"""Rows that all tasks of a query together hand to the driver: 500 bytes each."""
FINDINGS_SHOWN_MIN: Final = 16
"""Of each task at least so many, which is more than there are kinds."""

_CLASS: Final = ("kind", "severity", "container_id")


class FoundClass(NamedTuple):
    """What is counted together."""

    kind: str
    severity: str
    container_id: int | None
    """None: of a name that is of no container."""


def shown_by_each(tasks: int, most: int = FINDINGS_SHOWN) -> int:
    """How many rows each of so many tasks may hand on."""
    return max(most // max(tasks, 1), FINDINGS_SHOWN_MIN)


def count_classes(findings: pa.Table) -> Counter[FoundClass]:
    """How many rows each class has. O(rows), a Python value for each class."""
    groups = findings.group_by(list(_CLASS)).aggregate([([], "count_all")])
    return Counter(
        {
            FoundClass(*(row[name] for name in _CLASS)): row["count_all"]
            for row in groups.to_pylist()
        }
    )


def sample(findings: pa.Table, most: int) -> pa.Table:
    """At most `most` rows, in their order, of all classes.

    More than `most` only where there are more kinds and severities than that: one row of each is
    kept.
    """
    if findings.num_rows <= most:
        return findings
    first = _ranks(findings, ("kind", "severity")) == 0
    order = np.lexsort((_ranks(findings, _CLASS), ~first))
    wanted = np.zeros(findings.num_rows, bool)
    wanted[order[: max(most, int(np.count_nonzero(first)))]] = True
    return findings.filter(pa.array(wanted))


def _ranks(findings: pa.Table, columns: Collection[str]) -> NDArray[np.int64]:
    """The place of each row among those that say the same in these columns."""
    codes: NDArray[np.int64] = np.zeros(findings.num_rows, np.int64)
    for name in columns:
        column: Any = findings[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        encoded = column.dictionary_encode("encode")
        values = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + values, return_inverse=True)[
            1
        ].astype(np.int64)
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    begins = np.concatenate([[True], sorted_codes[1:] != sorted_codes[:-1]])
    places = np.arange(len(codes))
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = places - np.maximum.accumulate(np.where(begins, places, 0))
    return ranks


def total(counts: Mapping[FoundClass, int], kind: FindingKind) -> int:
    """How many there are of a kind, whatever their severity and container."""
    return sum(number for each, number in counts.items() if each.kind == kind)
