"""Tier 2: each object is referenced, waits for its deletion, is under way, or is an orphan; what is
referenced is right.

DESIGN 4.3: the log is the only authority on which objects count. Rules of this file:

- a referenced object is there, as large as it was made, and its chunks hold the segment's own
  bytes, without a gap;
- an object that the log named for good is named by it until it is deleted: what is forgotten before
  is paid for for ever;
- an object that the log never named is under way or an orphan, of an epoch the log has seen. An
  object that a healthy owner flushed, with everything flushed, is neither. A consolidation may be
  cut off, and jobs may leave theirs in any epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.checkers.log import without
from recovery.harness.history import SeenSegment, Violation
from recovery.harness.seen_tiers import LoggedSegment, SeenLog, SeenTiers
from tier2.object_names import parse_object_name

NAME: Final = "tier2"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations by what lies in Tier 2."""
    named: list[tuple[int, list[str]]] = []
    for tiers in index.history.tiers:
        contents = _contents(index, tiers.stamp)
        for log in tiers.logs.values():
            yield from _referenced(tiers, log)
            for segment in log.segments.values():
                yield from _covered(tiers, segment)
                yield from _right(tiers, log, segment, contents)
        known = {
            name: look
            for look, names in named
            if index.is_durable(look, tiers.stamp)
            for name in names
        }
        yield from _unknown(tiers, {} if tiers.late_puts else known)
        if not tiers.in_doubt:
            named.append(
                (
                    tiers.stamp,
                    [name for log in tiers.logs.values() for name in (*log.objects, *log.garbage)],
                )
            )


def orphans(tiers: SeenTiers) -> list[str]:
    """Names of the objects in Tier 2 that no log names: orphans, and what is under way."""
    found = []
    for name in tiers.listed:
        parts = parse_object_name(name)
        log = None if parts is None else tiers.logs.get(parts.container_id)
        if log is not None and name not in log.objects and name not in log.garbage:
            found.append(name)
    return found


def _referenced(tiers: SeenTiers, log: SeenLog) -> Iterator[Violation]:
    where = f"at {tiers.stamp}, container {log.container_id}"
    for name, size in log.objects.items():
        there = tiers.listed.get(name)
        if there is None:
            yield Violation(NAME, f"{where}: {name} is referenced, and is not there")
        elif there != size:
            yield Violation(NAME, f"{where}: {name} has {there} bytes, and was made with {size}")
        if name in log.garbage:
            yield Violation(NAME, f"{where}: {name} is referenced, and waits for its deletion")


def _covered(tiers: SeenTiers, segment: LoggedSegment) -> Iterator[Violation]:
    """Chunks have every byte that Tier 2 is said to have."""
    wanted = (segment.start_offset, segment.storage_length)
    for begin, end in without(
        [wanted], [(chunk.start_offset, chunk.end_offset) for chunk in segment.chunks]
    ):
        detail = f"at {tiers.stamp} no chunk has {segment.name!r} from {begin} to {end}"
        yield Violation(NAME, f"{detail}, and Tier 2 should have it up to {segment.storage_length}")


def _right(
    tiers: SeenTiers,
    log: SeenLog,
    segment: LoggedSegment,
    contents: Mapping[tuple[int, int], SeenSegment],
) -> Iterator[Violation]:
    """Bytes at an offset never change: those in Tier 2 are those that readers see, before or
    after.
    """
    shown = contents.get((log.container_id, segment.segment_id))
    if shown is None:
        return
    for chunk in segment.chunks:
        begin, end = (
            max(chunk.start_offset, shown.start_offset),
            min(chunk.end_offset, shown.length),
        )
        if chunk.content is None or begin >= end:
            continue
        stored = chunk.content[begin - chunk.start_offset : end - chunk.start_offset]
        if stored != shown.content[begin - shown.start_offset : end - shown.start_offset]:
            detail = (
                f"at {tiers.stamp} {chunk.object_name} has other bytes for {segment.name!r} "
                f"from {begin} to {end}"
            )
            yield Violation(NAME, f"{detail} than readers see")


def _unknown(tiers: SeenTiers, known: Mapping[str, int]) -> Iterator[Violation]:
    for name in orphans(tiers):
        parts = parse_object_name(name)
        assert parts is not None, name
        epoch = tiers.logs[parts.container_id].epoch
        if name in known:
            named = f"which named it at {known[name]}"
            yield Violation(
                NAME, f"at {tiers.stamp} {name} is there, and the log, {named}, does not name it"
            )
        elif parts.epoch > epoch:
            yield Violation(
                NAME,
                f"at {tiers.stamp} {name} is of an epoch that the log has not seen: its "
                f"newest is {epoch}",
            )
        elif tiers.settled and parts.epoch == epoch and parts.kind == "flush":
            yield Violation(
                NAME,
                f"at {tiers.stamp} {name} is an orphan of an owner that had no trouble "
                "and has nothing to flush",
            )


def _contents(index: HistoryIndex, stamp: int) -> Mapping[tuple[int, int], SeenSegment]:
    """By container and segment id: what was seen of a segment first after a time, else last before
    it.
    """
    contents: dict[tuple[int, int], SeenSegment] = {}
    later: dict[tuple[int, int], SeenSegment] = {}
    for observation in index.observations:
        for seen in observation.segments.values():
            key = (seen.container_id, seen.segment_id)
            if observation.begun < stamp:
                contents[key] = seen
            else:
                later.setdefault(key, seen)
    return contents | later
