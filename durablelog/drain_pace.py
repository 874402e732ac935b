"""At what rate a backlog drains, and at what rate bytes are admitted because of it. Pure.

Un-flushed bytes leave in whole objects, parts of a log in whole parts: a backlog falls by steps.
Bytes that may come as soon as a step has made room come in bursts, with pauses in between. So from
the point on where the rest of the room is needed, bytes are admitted at the rate at which the
backlog drains on the average:

- below the zone: any number of bytes;
- where it begins: 1.2 times the drain, and less and less, to 0.83 times;
- in the last sixth: less and less, to nothing where the backlog is held.

The zone ends where the backlog is held. It is twice what drains between two steps, so that the
steps move the rate by a fifth at most. Over it the rate corrects itself: a drain that was measured
too high, or that slows down, lets the backlog rise to where less is admitted.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

HELD_SHARE: Final = 0.875
"""Share of a bound at which nothing more is admitted.

What is above is for what is on its way, and for segments that use little (`fair_admission`).
"""
UNMEASURED_SHARE: Final = 0.125
"""Zone of a drain that is not measured yet, as a share of the bound."""
UNMEASURED_S: Final = 30.0
"""Time for which the rest of the room has to last then."""
PROBE_S: Final = 300.0
"""The same where almost nothing drains: the room that is left is used in any case."""
_ZONE_SHARE_MIN: Final = 1 / 16
_ZONE_OF_HELD_MAX: Final = 0.75
UNPACED_SHARE: Final = min(HELD_SHARE * (1 - _ZONE_OF_HELD_MAX), HELD_SHARE - UNMEASURED_SHARE)
"""Share of a bound below which `pace` gives None, whatever drains."""

WINDOW_S: Final = 20.0
"""The rate is measured over so long at least."""
WINDOW_GAPS: Final = 3.0
"""And over so many of the longest time between two steps: uploads may end together."""
STEP_S: Final = 0.5
"""What drains within so long is one step."""
OUTAGE_GAPS: Final = 3.0
"""A gap so many times as long as the longest before it is an outage, or the drain has become slow.

What was before it says nothing about the rate. Nor does the gap, once there is another step.
"""
IDLE_S: Final = 2.0
"""Without work for so long the time between two steps says nothing about the rate."""

_BURST_S: Final = 0.1
"""What was not admitted, for no call asked or the loop was late, may be admitted for so long."""
_ROUND_S: Final = 0.02
"""Time between two rounds."""
_EXEMPT_DEBT_S: Final = 1.0


class Drain(NamedTuple):
    """How a backlog drains."""

    bytes_per_s: float
    gap_s: float
    """Longest time between two steps."""


class DrainMeter:
    """Measures the drain of one backlog, while there is work."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()
        """(time of its begin, bytes), oldest first."""
        self._began = 0.0
        """When the step before the first of them began, or the work."""
        self._idle_since: float | None = float("-inf")
        self._drained = 0
        self._total = 0
        self._gap_s = 0.0
        self._after_outage = False
        """There is one step, and the time before it was an outage."""

    def observe(self, now: float, drained_bytes: int, *, works: bool) -> None:
        """`drained_bytes` have left the backlog so far, and more leaves it if it `works`.

        To be called often: a step counts from the call that sees it. O(1), but for one in `STEP_S`.
        """
        length, self._drained = drained_bytes - self._drained, drained_bytes
        idle_since = self._idle_since
        if idle_since is None and not works:
            idle_since = now
        self._idle_since = None if works else idle_since
        if idle_since is not None and now - idle_since > IDLE_S:
            self._begin(now)
        elif length > 0:
            self._add(now, length)

    def _begin(self, now: float) -> None:
        self._steps.clear()
        self._total, self._gap_s, self._began, self._after_outage = 0, 0.0, now, False

    def _add(self, now: float, length: int) -> None:
        steps = self._steps
        if steps and now - steps[-1][0] < STEP_S:
            time, before = steps.pop()
            steps.append((time, before + length))
            self._total += length
            return
        if steps:
            last = steps[-1][0]
            measured = last - self._began >= WINDOW_S
            outage = measured and now - last > OUTAGE_GAPS * max(self._gap_s, STEP_S)
            if outage or self._after_outage:
                self._begin(last)
            self._after_outage = outage
        steps.append((now, length))
        self._total += length
        self._trim(now)

    def _trim(self, now: float) -> None:
        """Forget the oldest steps as far as the others are enough. O(these)."""
        steps = self._steps
        gap_s, needless, earlier = 0.0, 0, now
        for index in range(len(steps) - 1, -1, -1):
            gap_s, earlier = max(gap_s, earlier - steps[index][0]), steps[index][0]
            if now - earlier >= max(WINDOW_S, WINDOW_GAPS * gap_s):
                needless, self._gap_s = index + 1, gap_s
                break
        else:
            self._gap_s = max(gap_s, earlier - self._began)
        for _ in range(needless):
            self._began, length = steps.popleft()
            self._total -= length

    def drain(self, now: float) -> Drain | None:
        """As of now; None before the first step.

        The time since the last step counts from when it is longer than all others. O(1).
        """
        if not self._steps:
            return None
        last = self._steps[-1][0]
        elapsed = max(last, now - self._gap_s) - self._began
        return Drain(self._total / max(elapsed, STEP_S), max(self._gap_s, now - last))


def pace(level: float, bound: float, drain: Drain | None) -> float | None:
    """Bytes per second that may be added to a backlog of `level` bytes of `bound`.

    None: any number. 0.0 alone where the backlog is held: there is always some way out of any
    other.
    """
    held_at = HELD_SHARE * bound
    room = held_at - level
    if room <= 0:
        return 0.0
    if drain is None:
        return room / UNMEASURED_S if room <= UNMEASURED_SHARE * bound else None
    steps = 2 * drain.bytes_per_s * drain.gap_s
    zone = min(max(steps, _ZONE_SHARE_MIN * bound), _ZONE_OF_HELD_MAX * held_at)
    if room > zone:
        return None
    share = room / zone
    return max(drain.bytes_per_s * min(0.8 + 0.4 * share, 5 * share), room / PROBE_S)


class PaceBudget:
    """Bytes that may be admitted by now, at rates that change.

    A request is admitted whole, and the next ones wait for as long as it takes at the rate.
    """

    def __init__(self) -> None:
        self._bytes = float("inf")
        self._time = self._rate = 0.0

    def at(self, now: float, bytes_per_s: float) -> float:
        """What may be admitted; 0 or less: nothing yet. From now on it grows by the rate."""
        grown = self._bytes + self._rate * (now - self._time)
        self._bytes = min(_BURST_S * bytes_per_s, grown)
        self._time, self._rate = now, bytes_per_s
        return self._bytes

    def take(self, length: int) -> None:
        """So many bytes were admitted."""
        self._bytes -= length

    def take_exempt(self, length: int) -> None:
        """So many were admitted whatever the budget was.

        What they use of it is bounded: they never keep all others waiting.
        """
        lowest = -_EXEMPT_DEBT_S * self._rate
        self._bytes = max(self._bytes - length, min(self._bytes, lowest))

    def wait_s(self) -> float:
        """Until the next round."""
        return max(_ROUND_S, -self._bytes / self._rate)
