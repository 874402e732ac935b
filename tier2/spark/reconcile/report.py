"""What a run of reconciliation says of itself: the numbers, the verdict, a text for people, a
document for programs.

Rules of this file: pure, and no pyspark. The verdict is as `grep`'s: a run that could not check
everything says so, whatever else was found. What is in flight or waits for its deletion is as it
should be and counts for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segmentstore.contracts.findings import Severity
from segmentstore.contracts.visible import visible
from tier2.spark.common.arrow_rows import is_text
from tier2.spark.common.command_options import Exit
from tier2.spark.reconcile.findings import FindingKind, finding_of
from tier2.spark.reconcile.found_classes import FoundClass, count_classes
from tier2.spark.reconcile.orphan_requests import NOT_ASKED, OrphanOutcome, is_done

EXAMPLE_CHARACTERS_MAX: Final = 100

_ORDER: Final = {str(severity): place for place, severity in enumerate(Severity)}


class KindCount(NamedTuple):
    """How often one kind of finding was found."""

    kind: str
    severity: str
    number: int
    example: str
    """The first of them, in a few words."""
    shown: int
    """Of them so many are rows of the findings; all that are, but where there are very many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSummary:
    """The numbers of one run."""

    run_id: str
    url: str
    listed_at_ms: int
    """When the listing began, milliseconds since 1970 UTC."""
    containers: Mapping[int, tuple[int, int, int]]
    """Of each container: epoch, and the sequence numbers of snapshots A and B."""
    unresponsive: Mapping[int, str]
    """Containers that nothing could be said of, and why."""
    outdated: Mapping[int, str]
    """Containers whose snapshot is not final, and why: of these the missing or orphaned objects
    were not reported.
    """
    objects: int
    """In snapshot A."""
    listed: int
    chunks: int
    """Followed, in snapshot B."""
    check: str
    looked_into: int
    """Objects whose headers, or bytes, were read."""
    bytes_read: int
    kinds: Sequence[KindCount]
    classes: Mapping[FoundClass, int]
    """The same by container, too."""
    orphans: int
    delete_orphans: str
    """`no`, `dry run` or `asked`."""
    verdict: Exit
    all_findings: str = ""
    """Where all findings are, in words, if they were written."""

    @property
    def is_sample(self) -> bool:
        """Whether there are more findings than rows.

        Of what waits for its deletion there always may be.
        """
        return any(
            each.shown < each.number
            for each in self.kinds
            if each.kind != FindingKind.WAITING_FOR_DELETION
        )


def count_kinds(
    findings: pa.Table, classes: Mapping[FoundClass, int] | None = None
) -> list[KindCount]:
    """Findings by severity and kind, the worst first; by `classes` how many there are, where
    `findings` is a sample.
    """
    numbers: Counter[tuple[str, str]] = Counter()
    for each, number in (count_classes(findings) if classes is None else classes).items():
        numbers[each.kind, each.severity] += number
    counted = []
    groups = findings.group_by(["severity", "kind"]).aggregate([([], "count_all")])
    for group in groups.to_pylist():
        same = pc.and_(
            is_text(findings["severity"], group["severity"]),
            is_text(findings["kind"], group["kind"]),
        )
        first = findings.filter(same).slice(0, 1).to_pylist()[0]
        number = numbers[group["kind"], group["severity"]]
        counted.append(
            KindCount(group["kind"], group["severity"], number, _example(first), group["count_all"])
        )
    return sorted(counted, key=lambda each: (_ORDER.get(each.severity, len(_ORDER)), each.kind))


def _example(row: Mapping[str, Any]) -> str:
    found = finding_of(row)
    told = f"{found.place}: {found.detail}" if found.place else found.detail
    # A foreign name may hold anything, and this goes to terminals.
    text = visible(told)
    return text if len(text) <= EXAMPLE_CHARACTERS_MAX else text[: EXAMPLE_CHARACTERS_MAX - 1] + "…"


def verdict_of(findings: pa.Table, condemned: Sequence[OrphanOutcome]) -> Exit:
    """Which exit code a run ends with."""
    severities = set(findings["severity"].unique().to_pylist())
    if Severity.UNKNOWN in severities or not all(map(is_done, condemned)):
        return Exit.UNDECIDED
    return Exit.FINDINGS if severities & {Severity.HARMFUL, Severity.NOTE} else Exit.NOTHING


def summary_json(summary: ReconcileSummary, condemned: Sequence[OrphanOutcome]) -> dict[str, Any]:
    """The run as one JSON document."""
    return {
        "run_id": summary.run_id,
        "sample": summary.is_sample,
        "all_findings": summary.all_findings or None,
        "tier2_url": summary.url,
        "listed_at_ms": summary.listed_at_ms,
        "containers": [
            {
                "container_id": number,
                "epoch": epoch,
                "sequence_number_a": first,
                "sequence_number_b": second,
            }
            for number, (epoch, first, second) in summary.containers.items()
        ],
        "untold": [
            {"container_id": number, "reason": reason}
            for number, reason in sorted(summary.unresponsive.items())
        ],
        "outdated": [
            {"container_id": number, "reason": reason}
            for number, reason in sorted(summary.outdated.items())
        ],
        "objects": summary.objects,
        "listed": summary.listed,
        "chunks": summary.chunks,
        "check": summary.check,
        "looked_into": summary.looked_into,
        "bytes_read": summary.bytes_read,
        "findings": [
            {
                "kind": each.kind,
                "severity": each.severity,
                "count": each.number,
                "shown": each.shown,
                "example": each.example,
            }
            for each in summary.kinds
        ],
        "counts": [
            {**each._asdict(), "count": number}
            for each, number in sorted(
                summary.classes.items(), key=lambda item: tuple(map(str, item[0]))
            )
        ],
        "orphans": summary.orphans,
        "delete_orphans": summary.delete_orphans,
        "condemned": [
            {
                "container_id": each.container_id,
                "verdict": each.verdict,
                "reason": each.reason,
                "requests": each.requests,
                "names": each.names,
                "condemned": each.condemned,
                "left_alone": [
                    {"reason": why, "count": count}
                    for why, count in sorted(each.left_alone.items())
                ],
                "shown": {"condemned": list(each.shown), "left_alone": dict(each.shown_left)},
            }
            for each in condemned
        ],
        "verdict": summary.verdict.name.lower(),
        "exit_code": int(summary.verdict),
    }


def summary_text(summary: ReconcileSummary, condemned: Sequence[OrphanOutcome]) -> str:
    """The run for people: lines of aligned columns."""
    lines = [
        *_head(summary),
        "",
        *_table(summary),
        *_orphans(summary, condemned),
        "",
        _last(summary),
    ]
    return "\n".join(map(visible, lines))


def _head(summary: ReconcileSummary) -> Iterator[str]:
    yield f"reconciled   {summary.url}"
    yield f"run          {summary.run_id}"
    if summary.is_sample:
        number, shown = (
            sum(counts)
            for counts in zip(*((each.number, each.shown) for each in summary.kinds), strict=True)
        )
        where = summary.all_findings or "with --findings URL tasks write them there"
        yield f"findings     {shown:,} of {number:,}, a sample of each class. All of them: {where}"
    for number, (epoch, first, second) in summary.containers.items():
        yield (
            f"container {number:<3}epoch {epoch}, operations to {first:,} before the "
            f"listing, to {second:,} behind it"
        )
    for number, reason in sorted(summary.unresponsive.items()):
        yield f"container {number:<3}unresponsive: {reason}"
    for number, reason in sorted(summary.outdated.items()):
        yield f"container {number:<3}missing objects and orphans are unknown: {reason}"
    yield f"catalog      {summary.objects:,} objects, {summary.chunks:,} chunks"
    yield f"listing      {summary.listed:,} objects"
    if summary.check != "none":
        yield (
            f"{summary.check:<13}{summary.looked_into:,} objects inspected, "
            f"{summary.bytes_read:,} bytes read"
        )


def _table(summary: ReconcileSummary) -> Iterator[str]:
    if not summary.kinds:
        yield "nothing differs"
        return
    rows = [("kind", "severity", "count", "for example")]
    rows += [(each.kind, each.severity, f"{each.number:,}", each.example) for each in summary.kinds]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for kind, severity, count, example in rows:
        yield (
            f"{kind:<{widths[0]}}  {severity:<{widths[1]}}  {count:>{widths[2]}}  {example}"
        ).rstrip()
    for each in summary.kinds:
        if each.shown < each.number:
            yield f"of {each.kind} {each.shown:,} are in the findings, a sample"


def _orphans(summary: ReconcileSummary, condemned: Sequence[OrphanOutcome]) -> Iterator[str]:
    if summary.delete_orphans == "no":
        return
    yield ""
    if summary.delete_orphans == "dry run":
        yield (
            f"dry run: owners would be asked to delete {summary.orphans:,} orphans; "
            "--execute asks them"
        )
        return
    for each in condemned:
        if each.verdict == NOT_ASKED:
            yield (
                f"container {each.container_id}: {each.names:,} orphans, not asked for: "
                f"{each.reason}"
            )
            continue
        reason = f": {each.reason}" if each.reason else ""
        yield (
            f"container {each.container_id}: {each.names:,} orphans, {each.verdict}{reason}; "
            f"{each.condemned:,} wait for deletion now, "
            f"{sum(each.left_alone.values()):,} left alone"
        )
        for why, count in sorted(each.left_alone.items()):
            yield f"    left alone, {count:,}: {why}"


def _last(summary: ReconcileSummary) -> str:
    said = {
        Exit.NOTHING: "nothing found",
        Exit.FINDINGS: "findings",
        Exit.UNDECIDED: "undecided: not everything could be checked",
    }
    return said[summary.verdict]
