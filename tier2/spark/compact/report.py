"""What a compaction says of itself: a row for each group, the numbers, the verdict, a text for
people.

Rules of this file: pure; no pyspark. A group is `planned` until there is a proposal, and `pending`
until its owner answers; a job whose owners did not all answer is undecided, whatever else came of
it. What the store, or another job, lawfully changed meanwhile is counted and is no fault: the next
run plans from what there is then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal

import pyarrow as pa

from segmentstore.contracts.visible import visible
from tier2.mailbox.messages import Answer, ReplaceProposal
from tier2.spark.common.command_options import Exit
from tier2.spark.compact.plan import PlannedGroup

Status = Literal[
    "planned", "pending", "committed", "committed_in_part", "overtaken", "refused", "failed"
]
OVERTAKEN: Final = frozenset(("refused_changed", "refused_unknown_segment"))
"""Verdicts of an owner that has other chunks now, or none: the store went on, or another job was
first.
"""
SHOWN_MAX: Final = 20
"""Groups whose reasons are shown to people; all of them are in the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One group, from its plan to its owner's answer. The columns of GROUPS."""

    job_id: str
    container_id: int
    group_id: str
    status: Status = "planned"
    reason: str = ""
    """Of what is not committed; of a refusal, its verdict first (docs/formats/mailbox.md)."""
    method: str = ""
    """`copy` or `rewrite`; empty if an earlier run, or attempt, did the work."""
    segments: int = 0
    chunks_before: int = 0
    chunks_after: int = 0
    source_objects: int = 0
    rewritten_bytes: int = 0
    """Bytes of segments in these chunks."""
    object: str = ""
    object_bytes: int = 0
    requests: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    bytes_copied: int = 0
    milliseconds: int = 0
    attempt: int = 0

    @property
    def is_committed(self) -> bool:
        """Whether bytes are read from the new object."""
        return self.status in {"committed", "committed_in_part"}

    def with_result(self, result: Mapping[str, Any]) -> GroupRow:
        """What a task said of it, a row of compaction_work.RESULTS.

        `object` is empty if another attempt's counts.
        """
        # What came second made garbage: the row is of the object that the proposal names.
        made = ("method", "object_bytes", "chunks_after") if result["first"] else ()
        counted = (
            "requests",
            "bytes_received",
            "bytes_sent",
            "bytes_copied",
            "milliseconds",
            "attempt",
        )
        return replace(
            self,
            status="pending" if result["outcome"] == "proposed" else "failed",
            object=result["object_name"] if result["first"] else "",
            **{name: result[name] for name in ("reason", *made, *counted)},
        )

    def with_proposal(self, proposal: ReplaceProposal) -> GroupRow:
        """What its proposal says, whichever job made it."""
        old = [chunk for each in proposal.replacements for chunk in each.old]
        return replace(
            self,
            status="pending",
            segments=len({each.segment_id for each in proposal.replacements}),
            chunks_before=len(old),
            chunks_after=sum(len(each.new) for each in proposal.replacements),
            source_objects=len({chunk.object_name for chunk in old}),
            rewritten_bytes=sum(chunk.length for chunk in old),
            object=proposal.object.name,
            object_bytes=proposal.object.size,
        )

    def with_answer(self, answer: Answer | None) -> GroupRow:
        """What its owner says; None: nothing yet."""
        if answer is None:
            return replace(self, reason="no answer yet") if self.status == "pending" else self
        if answer.verdict in {"committed", "committed_in_part"}:
            status: Status = "committed" if answer.verdict == "committed" else "committed_in_part"
            return replace(self, status=status, reason=answer.reason)
        reason = f"{answer.verdict}: {answer.reason}" if answer.reason else answer.verdict
        if answer.verdict in OVERTAKEN:
            return self.overtaken(reason)
        return replace(
            self, status="failed" if answer.verdict == "failed" else "refused", reason=reason
        )

    def overtaken(self, reason: str) -> GroupRow:
        """Its chunks are others by now, and there is nothing left to do."""
        return replace(self, status="overtaken", reason=reason)


def planned_row(job_id: str, container_id: int, planned: PlannedGroup) -> GroupRow:
    """A group that no task has processed."""
    return GroupRow(
        job_id=job_id,
        container_id=container_id,
        group_id=planned.group_id,
        segments=planned.segments,
        chunks_before=planned.chunks,
        source_objects=planned.sources,
        rewritten_bytes=planned.bytes,
    )


_TEXTS: Final = {"job_id", "group_id", "status", "reason", "method", "object"}
_GROUPS: Final[list[pa.Field[Any]]] = [
    pa.field(each.name, pa.string() if each.name in _TEXTS else pa.int64())
    for each in fields(GroupRow)
]
GROUPS: Final = pa.schema(_GROUPS)
"""A row a group, by container and group id."""


def groups_table(rows: Iterable[GroupRow]) -> pa.Table:
    """Rows of GROUPS."""
    ordered = sorted(rows, key=lambda row: (row.container_id, row.group_id))
    return pa.Table.from_pylist([asdict(row) for row in ordered], schema=GROUPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSummary:
    """The numbers of one run.

    Those with Iceberg's names are counted as its `rewrite_data_files` counts them.
    """

    job_id: str
    url: str
    dry_run: bool
    containers: Mapping[int, tuple[int, int]]
    """Epoch and sequence number of each container's snapshot."""
    unresponsive: Mapping[int, str]
    """Containers whose owners did not say how things are now, and why."""
    groups: Mapping[str, int]
    """How many of each status."""
    chunks_before: int
    chunks_after: int
    """Of the groups that have an object; the others will have as many as it takes."""
    source_objects: int
    """That anything planned lies in."""
    expected_removed_data_files_count: int
    """Nothing will live in so many any more if all is committed."""
    planned_bytes: int
    groups_left: int
    """Beyond `max-file-groups`: a later run finds them."""
    chunks_left: int
    """Of containers that were not planned for the same reason."""
    rewritten_data_files_count: int
    """Objects that committed groups were taken from."""
    added_data_files_count: int
    """New objects that are read from now."""
    rewritten_bytes_count: int
    """Bytes of segments in committed groups."""
    failed_data_files_count: int
    """Objects that refused and failed groups lie in."""
    removed_data_files_count: int
    """Objects in which nothing lives any more: garbage, which their owner deletes after the
    deletion lag.
    """
    requests: int
    bytes_received: int
    bytes_sent: int
    bytes_copied: int
    verdict: Exit


def verdict_of(rows: Iterable[GroupRow], unresponsive: Mapping[int, str]) -> Exit:
    """Which exit code a run ends with."""
    statuses = {row.status for row in rows}
    if unresponsive or "pending" in statuses:
        return Exit.UNDECIDED
    return Exit.FINDINGS if statuses & {"refused", "failed"} else Exit.NOTHING


def count_statuses(rows: Iterable[GroupRow]) -> dict[str, int]:
    """How many groups there are of each status that occurs, by its name."""
    return dict(sorted(Counter(row.status for row in rows).items()))


def summary_json(summary: CompactionSummary, rows: Iterable[GroupRow]) -> dict[str, Any]:
    """The run as one JSON document."""
    document = {
        "untold" if name == "unresponsive" else name: value
        for name, value in asdict(summary).items()
    }
    document["containers"] = [
        {"container_id": number, "epoch": epoch, "sequence_number": sequence_number}
        for number, (epoch, sequence_number) in sorted(summary.containers.items())
    ]
    document["untold"] = [
        {"container_id": number, "reason": reason}
        for number, reason in sorted(summary.unresponsive.items())
    ]
    document["verdict"] = summary.verdict.name.lower()
    document["exit_code"] = int(summary.verdict)
    document["rows"] = groups_table(rows).to_pylist()
    return document


def summary_text(summary: CompactionSummary, rows: Sequence[GroupRow]) -> str:
    """The run for people: lines of aligned columns."""
    return "\n".join(
        map(visible, [*_head(summary), "", *_table(rows), *_reasons(rows), "", *_last(summary)])
    )


def _head(summary: CompactionSummary) -> Iterator[str]:
    yield f"{'would compact' if summary.dry_run else 'compacted':<14}{summary.url}"
    yield f"job           {summary.job_id}"
    for number, (epoch, sequence_number) in sorted(summary.containers.items()):
        yield f"container {number:<4}epoch {epoch}, operations to {sequence_number:,}"
    for number, reason in sorted(summary.unresponsive.items()):
        yield f"container {number:<4}unresponsive: {reason}"


def _table(rows: Sequence[GroupRow]) -> Iterator[str]:
    if not rows:
        yield "nothing is worth rewriting"
        return
    table: list[tuple[str, ...]] = [("groups", "count", "chunks", "in objects", "bytes")]
    for status, count in count_statuses(rows).items():
        some = [row for row in rows if row.status == status]
        sums = [
            sum(values)
            for values in zip(
                *((r.chunks_before, r.source_objects, r.rewritten_bytes) for r in some), strict=True
            )
        ]
        table.append((status, f"{count:,}", *(f"{each:,}" for each in sums)))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for status, *numbers in table:
        yield "  ".join(
            [
                f"{status:<{widths[0]}}",
                *(f"{each:>{width}}" for each, width in zip(numbers, widths[1:], strict=True)),
            ]
        )


def _reasons(rows: Sequence[GroupRow]) -> Iterator[str]:
    said = [row for row in rows if row.reason and row.status != "pending"]
    for row in said[:SHOWN_MAX]:
        yield f"    container {row.container_id} group {row.group_id} {row.status}: {row.reason}"
    if len(said) > SHOWN_MAX:
        yield f"    and {len(said) - SHOWN_MAX:,} more"


def _last(summary: CompactionSummary) -> Iterator[str]:
    if summary.groups_left or summary.chunks_left:
        yield (
            f"left for a later run: {summary.groups_left:,} groups, and "
            f"{summary.chunks_left:,} chunks that were not checked"
        )
    if summary.dry_run:
        groups = sum(summary.groups.values())
        yield (
            f"expected: {summary.chunks_before:,} chunks in {summary.source_objects:,} "
            f"objects become {groups:,} objects of"
            f" {summary.planned_bytes:,} bytes; "
            f"{summary.expected_removed_data_files_count:,} objects are freed"
        )
        # Each group searches for its proposal, puts an object, reads some of it back, and puts a
        # proposal.
        yield (
            f"requests: about {summary.source_objects + 4 * groups:,}, of which "
            f"{2 * groups:,} write"
        )
        return
    yield (
        f"rewritten: {summary.rewritten_bytes_count:,} bytes of "
        f"{summary.rewritten_data_files_count:,} objects into"
        f" {summary.added_data_files_count:,}; {summary.removed_data_files_count:,} "
        "objects wait for deletion now"
    )
    yield (
        f"requests: {summary.requests:,}; bytes received {summary.bytes_received:,}, "
        f"sent {summary.bytes_sent:,},"
        f" copied by the store {summary.bytes_copied:,}"
    )
    meanwhile = [
        f"{summary.groups[each]:,} {each}"
        for each in ("committed_in_part", "overtaken")
        if each in summary.groups
    ]
    but = f", but for what was changed meanwhile: {', '.join(meanwhile)}" if meanwhile else ""
    said = {
        Exit.NOTHING: f"all committed{but}" if summary.groups else "nothing to do",
        Exit.FINDINGS: "not all was committed",
        Exit.UNDECIDED: f"undecided: run again with --job-id {summary.job_id} for the outcome",
    }
    yield said[summary.verdict]
