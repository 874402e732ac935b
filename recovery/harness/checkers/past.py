"""Past: the state that is rebuilt at an operation is the one that its owner had, byte by byte.

The strongest oracle that a log with an archive has (docs/decisions/0078). What was noted of live
owners at single operations is compared with what replay of the history gives at these. Contents are
compared with all that was ever observed of the same segment at the same offsets: bytes at an offset
never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.history import SeenSegment, Violation
from recovery.harness.seen_past import PastMoment, PastSegment

NAME: Final = "past"
_COMPARED: Final = ("name", "start_offset", "length", "sealed", "attributes")


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations by states that were rebuilt."""
    past = index.history.past
    noted = {(each.container_id, each.sequence_number): each for each in past.noted}
    seen: dict[tuple[int, int], list[SeenSegment]] = {}
    for observation in index.observations if past.rebuilt else ():
        for shown in observation.segments.values():
            seen.setdefault((shown.container_id, shown.segment_id), []).append(shown)
    for rebuilt in past.rebuilt:
        where = f"container {rebuilt.container_id} at operation {rebuilt.sequence_number}"
        if rebuilt.error:
            yield Violation(NAME, f"{where} cannot be rebuilt: {rebuilt.error}")
            continue
        if rebuilt.lost:
            yield Violation(NAME, f"{where} lacks {rebuilt.lost} bytes")
        known = noted.get((rebuilt.container_id, rebuilt.sequence_number))
        if known is not None:
            yield from _compare(where, known, rebuilt)
        for segment in rebuilt.segments.values():
            for other in seen.get((rebuilt.container_id, segment.segment_id), ()):
                yield from _compare_contents(where, segment, other)


def _compare(where: str, known: PastMoment, rebuilt: PastMoment) -> Iterator[Violation]:
    for segment_id, segment in known.segments.items():
        found = rebuilt.segments.get(segment_id)
        if found is None:
            yield Violation(NAME, f"{where} is rebuilt without {segment.name!r} ({segment_id})")
            continue
        for name in _COMPARED:
            was, is_now = getattr(segment, name), getattr(found, name)
            if was != is_now and was is not None:
                detail = f"{name} of {segment.name!r} is {is_now!r:.60}, and was {was!r:.60}"
                yield Violation(NAME, f"{where} is rebuilt, and {detail}")
    if known.whole:
        for segment_id in rebuilt.segments.keys() - known.segments.keys():
            yield Violation(NAME, f"{where} is rebuilt with segment {segment_id}, which was not")


def _compare_contents(where: str, segment: PastSegment, other: SeenSegment) -> Iterator[Violation]:
    content = segment.content
    if content is None:
        return
    if len(content) != segment.length - segment.start_offset:
        detail = f"{len(content)} bytes of {segment.name!r} from {segment.start_offset} on"
        yield Violation(NAME, f"{where} is rebuilt with {detail}, of length {segment.length}")
        return
    begin = max(segment.start_offset, other.start_offset)
    end = min(segment.length, other.start_offset + len(other.content))
    mine = content[begin - segment.start_offset : end - segment.start_offset]
    if begin < end and mine != other.content[begin - other.start_offset : end - other.start_offset]:
        detail = f"other bytes of {segment.name!r} from {begin} to {end} than were observed"
        yield Violation(NAME, f"{where} is rebuilt with {detail}")
