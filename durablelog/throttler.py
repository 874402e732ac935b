"""How long new work must wait before it is taken from the queue. Pure.

Of the four sources of DESIGN 4.5 (and Pravega's ThrottlerCalculator) two are delays, and are
computed here: cache and un-flushed operations. So is the pause of a log that has room only for
operations that free room. They do not add up: the largest wins. Each rises linearly from a target
share of its bound to the maximum. The other two need no timer. The log's queue is bounded by the
frames and bytes the operation processor keeps in flight. Batching comes from its keeping a
part-filled frame back while two are in flight (docs/decisions/0004-batching-by-holding-frames.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

DELAY_MAX_S = 1.0
"""One pause; at the maximum the pause is repeated until something is relieved."""
_TARGET = 0.75
"""Share of a bound below which its source asks for no delay."""
_FULL = 0.875
"""Share at which callers are held.

What is above is kept for segments that use little (`fair_admission`).
"""


class Load(NamedTuple):
    """What the throttler checks; shares are of the bound, which is 1.0."""

    cache: float
    """Un-flushed bytes held in memory and cache."""
    unflushed: float
    """Un-flushed bytes in the log."""
    log: float = 0.0
    """1.0 while the disk of the log is full."""
    archive: float = 0.0
    """Bytes of the log that wait for the archive."""


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
    """The delay the present load asks for."""
    share, source = max(
        (load.cache, "cache"),
        (load.unflushed, "unflushed"),
        (load.log, "log"),
        (load.archive, "archive"),
    )
    if share <= _TARGET:
        return NO_DELAY
    ramp = min((share - _TARGET) / (_FULL - _TARGET), 1.0)
    return Throttle(delay_s=ramp * DELAY_MAX_S, source=source, full=share >= _FULL)
