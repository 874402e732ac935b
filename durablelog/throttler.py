"""How long new work must wait before it is taken from the queue. Pure.

Of the four sources of DESIGN 4.5 (and Pravega's ThrottlerCalculator) two are delays, and live here: cache and
un-flushed operations. They do not add up: the largest wins. Each rises linearly from a target share of its bound
to the maximum. The other two need no timer: the log's queue is bounded by the frames and bytes the operation
processor keeps in flight, and batching comes from its keeping a part-filled frame back while two are in flight
(docs/decisions/0004-batching-by-holding-frames.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DELAY_MAX_S = 1.0
"""One pause; at the maximum the pause is repeated until something is relieved."""
_TARGET = 0.75
"""Share of a bound below which its source asks for no delay."""


class Load(NamedTuple):
    """What the throttler looks at; shares are of the bound, 1.0 = full."""

    cache: float
    """Un-flushed bytes held in memory and cache."""
    unflushed: float
    """Un-flushed bytes in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """How long to wait, and why."""

    delay_s: float
    source: str
    """"cache", "unflushed", or "" for no delay."""
    full: bool
    """The source is at its bound: nothing more may be taken until it is relieved."""


NO_DELAY = Throttle(delay_s=0.0, source="", full=False)


def throttle(load: Load) -> Throttle:
    """The delay the present load asks for."""
    share, source = max((load.cache, "cache"), (load.unflushed, "unflushed"))
    if share <= _TARGET:
        return NO_DELAY
    ramp = min((share - _TARGET) / (1.0 - _TARGET), 1.0)
    return Throttle(delay_s=ramp * DELAY_MAX_S, source=source, full=share >= 1.0)
