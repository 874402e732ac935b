"""How long new work must wait before it is taken from the queue. Pure.

Of the four sources of DESIGN 4.5 (and Pravega's ThrottlerCalculator) two are computed here: cache
and un-flushed operations. So is the pause of a log that has room only for operations that free
room. They do not add up: the largest wins. What drains to Tier 2 or to the archive is paced
(`drain_pace`). What drains to the cache, or waits for a file of the log, is a delay: it rises
linearly from a target share of its bound to the maximum. The other two sources need no timer. The
log's queue is bounded by the frames and bytes the operation processor keeps in flight. Batching
comes from its keeping a part-filled frame back while two are in flight
(docs/decisions/0004-batching-by-holding-frames.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from durablelog.drain_pace import HELD_SHARE, Drain, pace

DELAY_MAX_S = 1.0
"""One pause; at the maximum the pause is repeated until something is relieved."""
TARGET = 0.75
"""Share of a bound below which its source asks for no delay."""


class DrainingBytes(NamedTuple):
    """Bytes that Tier 2 or the archive still has to take."""

    source: str
    """As of `Throttle`."""
    level: int
    """Of now, those on their way to the log included."""
    bound: int
    drain: Drain | None


class Load(NamedTuple):
    """What the throttler checks; shares are of the bound, which is 1.0."""

    cache: float = 0.0
    """Bytes in memory that the cache has to take."""
    log: float = 0.0
    """1.0 while the disk of the log is full."""
    backlogs: Sequence[DrainingBytes] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """How long to wait, and why."""

    delay_s: float
    source: str
    """"cache", "unflushed", "log", "archive", or "" for no delay."""
    full: bool
    """The source is at its bound, but for the reserve: nothing more may be taken until it is
    relieved.
    """
    bytes_per_s: float | None = None
    """Rate at which bytes are taken; None: there is no such bound, but for the delay."""
    room_bytes: int = 0
    """What may be taken all the same of segments that use little, the reserve included."""
    fair_bytes: int = 0
    """Un-flushed bytes of a segment up to which it uses little."""
    relief_bytes: int | None = None
    """The log has no room: what operations that release data may take of it.

    None: there is room for all operations.
    """


NO_DELAY = Throttle(delay_s=0.0, source="", full=False)


def throttle(load: Load) -> Throttle:
    """The delay, or the pace, that the present load asks for."""
    share, source = max((load.cache, "cache"), (load.log, "log"))
    if share >= HELD_SHARE:
        return Throttle(delay_s=DELAY_MAX_S, source=source, full=True)
    paces = [
        (rate, backlog.source)
        for backlog in load.backlogs
        if (rate := pace(backlog.level, backlog.bound, backlog.drain)) is not None
    ]
    if paces:
        rate, paced_by = min(paces)
        if not rate:
            return Throttle(delay_s=DELAY_MAX_S, source=paced_by, full=True)
        return Throttle(delay_s=0.0, source=paced_by, full=False, bytes_per_s=rate)
    if share <= TARGET:
        return NO_DELAY
    ramp = (share - TARGET) / (HELD_SHARE - TARGET)
    return Throttle(delay_s=ramp * DELAY_MAX_S, source=source, full=False)
