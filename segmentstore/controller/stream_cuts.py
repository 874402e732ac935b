"""Stream cuts: validity, order, and what lies between two of them. Pure.

At one key the segments of a stream follow each other by epoch. So a cut is a place in that row for
each key, and cuts are compared key by key.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.stream_history import StreamHistory, by_key, tile
from segmentstore.controller.stream_model import StreamCut, StreamSegment

END_OFFSET: Final = 2**63 - 1
"""In the cut at the tail, whose offsets no caller asks for."""


class _Pair(NamedTuple):
    """Two segments of two tilings, and the keys that both take."""

    low: float
    high: float
    first: StreamSegment
    last: StreamSegment


_R = TypeVar("_R", _Pair, StreamSegment)


def is_valid(history: StreamHistory, cut: StreamCut) -> bool:
    """Whether a cut has segments of the stream that tile [0, 1), and offsets from 0 on."""
    if any(segment_id not in history.segments for segment_id in cut):
        return False
    return tile(_segments(history, cut)) and all(offset >= 0 for offset in cut.values())


def check_cut(history: StreamHistory, cut: StreamCut) -> StreamCut:
    """Return the cut; raise RefusedRequestError unless it is valid."""
    if not is_valid(history, cut):
        raise RefusedRequestError(Reason.BAD_CUT, "a cut covers the keys [0, 1) exactly once")
    return cut


def tail_cut(segments: Sequence[StreamSegment]) -> StreamCut:
    """The cut behind all events of active segments."""
    return {segment.segment_id: END_OFFSET for segment in segments}


def precedes(history: StreamHistory, first: StreamCut, last: StreamCut) -> bool:
    """Whether `first` is at no key behind `last`. Both are valid; equal cuts precede each other."""
    return all(
        first[pair.first.segment_id] <= last[pair.last.segment_id]
        if pair.first == pair.last
        else pair.first.epoch < pair.last.epoch
        for pair in _pairs(_segments(history, first), _segments(history, last))
    )


def between(history: StreamHistory, first: StreamCut, last: StreamCut) -> list[StreamSegment]:
    """The segments that two valid cuts touch, or that lie between them, by id."""
    pairs = list(_pairs(_segments(history, first), _segments(history, last)))
    lows = [pair.low for pair in pairs]
    return [
        segment
        for _, segment in sorted(history.segments.items())
        if any(
            pair.first.epoch <= segment.epoch <= pair.last.epoch
            for pair in _overlapping(pairs, lows, segment)
        )
    ]


def wholly_between(
    history: StreamHistory, first: StreamCut, last: StreamCut
) -> list[StreamSegment]:
    """Of `between` those that end before `last` at each of their keys."""
    ends = _segments(history, last)
    lows = [segment.low for segment in ends]
    return [
        segment
        for segment in between(history, first, last)
        if all(segment.epoch < end.epoch for end in _overlapping(ends, lows, segment))
    ]


def earliest(history: StreamHistory, cuts: Sequence[StreamCut]) -> StreamCut | None:
    """The cut that is at each key the first of several valid ones.

    None if that is no cut: the keys of a segment may be behind in one cut, and ahead in another.
    """
    found: dict[int, int] = dict(cuts[0])
    for cut in cuts[1:]:
        joined: dict[int, int] = {}
        for pair in _pairs(_segments(history, found), _segments(history, cut)):
            candidates = (
                (pair.first.epoch, found[pair.first.segment_id], pair.first.segment_id),
                (pair.last.epoch, cut[pair.last.segment_id], pair.last.segment_id),
            )
            _, offset, segment_id = min(candidates)
            joined[segment_id] = min(offset, joined.get(segment_id, offset))
        if not is_valid(history, joined):
            return None
        found = joined
    return found


def bytes_between(
    history: StreamHistory,
    first: StreamCut,
    last: StreamCut,
    lengths: Callable[[int], int],
) -> int:
    """How many bytes lie between two valid cuts.

    `lengths` gives the length of a segment between them; of one that is deleted, 0.
    """
    total = 0
    for segment in between(history, first, last):
        segment_id = segment.segment_id
        end = last[segment_id] if segment_id in last else lengths(segment_id)
        total += max(0, end - first.get(segment_id, 0))
    return total


def _segments(history: StreamHistory, cut: StreamCut) -> tuple[StreamSegment, ...]:
    return by_key(history.segments[segment_id] for segment_id in cut)


def _pairs(first: Sequence[StreamSegment], last: Sequence[StreamSegment]) -> Iterator[_Pair]:
    """All pairs with keys in common, by key. Both are tilings. O(segments)."""
    at_first = at_last = 0
    while at_first < len(first) and at_last < len(last):
        one, other = first[at_first], last[at_last]
        yield _Pair(max(one.low, other.low), min(one.high, other.high), one, other)
        at_first += one.high <= other.high
        at_last += other.high <= one.high


def _overlapping(
    tiling: Sequence[_R], lows: Sequence[float], segment: StreamSegment
) -> Iterator[_R]:
    """The members of a tiling that have keys of a segment. `lows` are where they begin."""
    at = max(0, bisect.bisect_right(lows, segment.low) - 1)
    while at < len(tiling) and tiling[at].low < segment.high:
        if tiling[at].high > segment.low:
            yield tiling[at]
        at += 1
