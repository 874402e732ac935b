"""Where retention truncates a stream. Pure.

From time to time the tail of the stream is recorded, with the time and the bytes until there. A
stream is truncated at recorded cuts, or at what all its subscribers have read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from segmentstore.controller.stream_cuts import earliest, precedes
from segmentstore.controller.stream_history import StreamHistory
from segmentstore.controller.stream_model import StreamCut, StreamRetention

_BY_TIME: Final = 1


class RecordedCut(NamedTuple):
    """The tail of a stream at a time."""

    time_ms: int
    bytes_before: int
    """Of the stream up to there, truncated ones counted."""
    cut: StreamCut


def truncation(
    history: StreamHistory,
    policy: StreamRetention,
    recorded: Sequence[RecordedCut],
    now_ms: int,
    consumed: Sequence[StreamCut],
) -> StreamCut | None:
    """Where to truncate; None: nowhere yet.

    `recorded` are by time, the last one is of now. `consumed` has a cut for each subscriber.
    """
    least = _newest(recorded, _keeps(policy, policy.param, recorded, now_ms))
    if least is None or not consumed:
        return least
    # What all have read, but not so much that less than the least is kept.
    before = (*consumed, least)
    bound = earliest(history, before)
    if bound is None:
        # It goes through the middle of a segment's keys. At a recorded cut it does not.
        bound = _newest(
            recorded, lambda each: all(precedes(history, each.cut, other) for other in before)
        )
    if policy.most == 0:
        return bound
    most = _newest(recorded, _keeps(policy, policy.most, recorded, now_ms))
    if most is not None and (bound is None or not precedes(history, most, bound)):
        return most
    return bound


def _keeps(
    policy: StreamRetention, amount: int, recorded: Sequence[RecordedCut], now_ms: int
) -> Callable[[RecordedCut], bool]:
    """Whether a truncation at a cut keeps so much."""
    if policy.kind == _BY_TIME:
        return lambda each: each.time_ms <= now_ms - amount
    total = recorded[-1].bytes_before
    return lambda each: total - each.bytes_before >= amount


def _newest(
    recorded: Sequence[RecordedCut], wanted: Callable[[RecordedCut], Any]
) -> StreamCut | None:
    return next((each.cut for each in reversed(recorded) if wanted(each)), None)
