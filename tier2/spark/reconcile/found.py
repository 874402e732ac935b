"""What the queries of a reconciliation hand to its driver: all of it bounded, whatever was found.

Rules of this file: counts are of everything, rows a sample; what would be names is marks or hashes.
Pure, without pyspark.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.findings import Severity
from tier2.spark.reconcile.findings import FINDINGS, FindingKind
from tier2.spark.reconcile.found_classes import FoundClass
from tier2.spark.reconcile.marks import unpack_shards
from tier2.spark.reconcile.orphan_requests import ASKED, NOT_ASKED
from tier2.spark.reconcile.work import BORDER, FOUND, MISSING, MISSING_MARKS


class Scan(NamedTuple):
    """What the survey of the whole store gave."""

    rows: list[dict[str, Any]]
    """Of SURVEYED, with suspects in them."""
    objects: int
    listed: int
    waiting: Counter[FoundClass]
    """For their deletion, beyond the sample that is in the rows."""
    again: Mapping[tuple[int, int], int]
    """Ranges of shards with more suspects than the driver takes, and how many."""
    absent: dict[int, bytes]
    """Marks, over snapshot A, of what was not listed, by shard."""
    moved: dict[int, str]
    """Containers that have moved on, as the ranges in `again` show."""


class Proposals(NamedTuple):
    """Objects of open proposals: of few their names, else their hashes by shard."""

    names: frozenset[str] = frozenset()
    hashes: Mapping[int, bytes] = {}


@dataclass(slots=True)
class Verdicts:
    """What queries of RESULTS gave."""

    findings: list[pa.Table] = field(default_factory=lambda: [FINDINGS.empty_table()])
    """All, or a sample."""
    classes: Counter[FoundClass] = field(default_factory=Counter)
    """All, counted."""
    missing: set[str] = field(default_factory=set)
    """Objects that were not there when they were inspected."""
    missing_marks: dict[int, list[bytes]] = field(default_factory=dict)
    """More of them, as marks over snapshot B, by shard."""
    counts: Counter[str] = field(default_factory=Counter)
    borders: list[dict[str, Any]] = field(default_factory=list)
    asked: dict[tuple[int, str], int] = field(default_factory=dict)
    """Requests to delete orphans: containers and message ids, and how many names they had."""
    not_asked: Counter[int] = field(default_factory=Counter)
    """Orphans of containers that no request names."""

    def add(self, results: pa.Table) -> None:
        """Take RESULTS."""
        counted = pc.is_valid(results["counter"])
        self.findings.append(
            results.filter(pc.invert(counted)).select(FINDINGS.names).cast(FINDINGS)
        )
        for row in results.filter(counted).to_pylist():
            counter, number = row["counter"], row["count"]
            if counter == FOUND:
                self.classes[FoundClass(row["kind"], row["severity"], row["container_id"])] += (
                    number
                )
            elif counter == MISSING:
                self.missing.add(row["object"])
            elif counter == MISSING_MARKS:
                for shard, bits in unpack_shards(base64.b64decode(row["evidence"])):
                    self.missing_marks.setdefault(shard, []).append(bits)
            elif counter == BORDER:
                self.borders.append(row)
            elif counter == ASKED:
                self.asked[row["container_id"], row["evidence"]] = number
            elif counter == NOT_ASKED:
                self.not_asked[row["container_id"]] += number
            else:
                self.counts[counter] += number


def waiting_of(rows: Sequence[dict[str, Any]]) -> Counter[FoundClass]:
    """What waits for its deletion and is in no row, by class, of rows of SURVEYED."""
    classes: Counter[FoundClass] = Counter()
    for row in rows:
        for container, number in json.loads(row["waiting"]).items():
            classes[
                FoundClass(
                    FindingKind.WAITING_FOR_DELETION, Severity.INFORMATION, int(container, 16)
                )
            ] += number
    return classes
