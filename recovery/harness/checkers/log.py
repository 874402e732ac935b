"""Log: it begins with a checkpoint, is cut off at its beginning only, and never before Tier 2 has
what was cut off.

DESIGN 4.2: the log is truncated at a checkpoint, and only so far that all bytes of what goes are in
Tier 2. Checked in what lies in the tiers, whether or not a recovery would notice. Every byte of a
segment behind its storage length and its start offset is in the log's appends, or in a merged
source that is not linked yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.history import Violation
from recovery.harness.seen_tiers import LoggedSegment, SeenLog, Span

NAME: Final = "log"
_CHECKPOINTS: Final = ("CheckpointOperation", "SnapshotCheckpointOperation")


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations by what the logs hold."""
    firsts: dict[int, list[tuple[int, int]]] = {}
    for tiers in index.history.tiers:
        for log in tiers.logs.values():
            where = f"the log of container {log.container_id} at {tiers.stamp}"
            if log.begins_with not in _CHECKPOINTS:
                yield Violation(NAME, f"{where} begins with {log.begins_with} {log.first}")
            if log.lacks:
                yield Violation(NAME, f"{where} names a snapshot that is gone: {log.lacks}")
            known = firsts.setdefault(log.container_id, [])
            before = max(
                (first for look, first in known if index.is_durable(look, tiers.stamp)), default=0
            )
            if log.first < before:
                yield Violation(
                    NAME,
                    f"{where} begins with operation {log.first}, and began with {before} before",
                )
            known.append((tiers.stamp, log.first))
            for segment in log.segments.values():
                for begin, end in _missing(segment, log):
                    has = f"Tier 2 has it up to {segment.storage_length}"
                    detail = (
                        f"{where} does not hold {segment.name!r} from {begin} to {end}, and {has}"
                    )
                    yield Violation(NAME, detail)


def _missing(segment: LoggedSegment, log: SeenLog) -> list[Span]:
    """What is neither in Tier 2 nor in the log, of the bytes that are not truncated."""
    wanted = [(max(segment.storage_length, segment.start_offset), segment.length)]
    return without(without(wanted, segment.merges), log.held.get(segment.segment_id, ()))


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What no other span covers. O(spans times others): there are few."""
    left = [span for span in spans if span[0] < span[1]]
    for begin, end in others:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, begin)), (max(first, end), last))
            if part[0] < part[1]
        ]
    return left
