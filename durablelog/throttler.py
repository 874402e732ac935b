"""How long new work must wait before it is taken from the queue. Pure.

Sources (DESIGN 4.5, Pravega's ThrottlerCalculator): cache, un-flushed operations, log queue. They do not add up: the
largest wins. Each rises linearly from a target share of its bound to the maximum. The fourth source,
batching, needs no timer: the operation processor keeps a part-filled frame back while two are in flight
(docs/decisions/0004-batching-by-holding-frames.md).
"""

from __future__ import annotations

from dataclasses import dataclass

DELAY_MAX_S = 1.0
"""One pause; at the maximum the pause is repeated until something is relieved."""
_TARGET = 0.75
"""Share of a bound below which its source asks for no delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the throttler looks at; shares are of the bound, 1.0 = full."""

    cache: float
    """Un-flushed bytes held in memory and cache."""
    unflushed: float
    """Un-flushed bytes in the log."""
    log_queue: float
    """Bytes in flight to Tier 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """How long to wait, and why."""

    delay_s: float
    source: str
    """"cache", "unflushed", "log queue", or "" for no delay."""
    full: bool
    """The source is at its bound: nothing more may be taken until it is relieved."""


def throttle(load: Load) -> Throttle:
    """The delay the present load asks for."""
    share, source = max((load.cache, "cache"), (load.unflushed, "unflushed"), (load.log_queue, "log queue"))
    ramp = min(max((share - _TARGET) / (1.0 - _TARGET), 0.0), 1.0)
    if not ramp:
        return Throttle(delay_s=0.0, source="", full=False)
    return Throttle(delay_s=ramp * DELAY_MAX_S, source=source, full=share >= 1.0)
