"""GroupPace: how long a part-filled frame waits for company, where more keeps arriving.

A group (a frame, its sync, and what follows from it) costs the same for one append as for fifty. At
medium rates each sync would take the few appends that came during the one before it. So the next
part-filled frame is shipped as many sync times after the last one as appends arrive in one of them,
and four at most. Rules of this file:

- it waits only if appends arrive on their own. Callers that wait for their appends call again right
  behind the acknowledgement, and then no more: waiting for them would be in vain. So an arrival
  counts only from some time behind the last acknowledgement on;
- whether there are such arrivals shows when a frame waits: replies come to an end then. So a frame
  waits as a probe, and each one behind a frame that has seen some. Probes come after more and more
  appends that found a frame on its way;
- a caller alone never waits.

Pure: times are arguments, in seconds of one clock. Measured are means of the last frames, so a
single slow sync decides nothing.
"""

from __future__ import annotations

from typing import Final

SYNCS_MAX: Final = 4.0
"""Sync times from one part-filled frame to the next."""
GROUP_S: Final = 0.000_3
"""A sync counts for no less: a group takes as much of a core, however fast its disk is."""
HOLD_MAX_S: Final = 0.002
"""The same in seconds: a log that is slow needs no help to form groups."""
GAIN_MIN: Final = 1.5
"""Sync times below which it is not worth a timer."""
PROBE_MIN: Final = 64
PROBE_MAX: Final = 1 << 16
"""Arrivals before a frame waits as a probe; doubled by each probe."""
STEADY: Final = 16
"""Holds in a row that were not in vain. What arrives is steady, and the next probe may come soon.
"""
REPLY_S: Final = 0.000_1
REPLY_EACH_S: Final = 0.000_02
"""Callers answer an acknowledgement within this time, and this for each of its appends."""
LATE_S: Final = 0.000_4
"""A hold that ends so late is the last one. The loop is busy; or it has slept beyond the end, since
nothing came: its timers are as coarse as a millisecond.
"""
_SHARE: Final = 1 / 8
"""Of the newest frame in the means."""
_INTERVAL_MAX_S: Final = 0.02
"""A pause is over once it was: it does not count for longer."""


class GroupPace:
    """Of one log."""

    def __init__(self) -> None:
        self._sync_s = 0.0
        """From the moment at which the log could begin with a frame to its acknowledgement."""
        self._interval_s = _INTERVAL_MAX_S
        self._requests = 0.0
        """Requests of a frame."""
        self._shipped_s = self._acknowledged_s = self.calm_s = float("-inf")
        """`calm_s`: from here on an arrival is no reply to the last acknowledgement."""
        self._arrivals = False
        """Whether one of its own accord has come since the last frame."""
        self._holds = False
        self._arrived = 0
        """Arrivals of any kind since the last probe."""
        self._probe_at = PROBE_MIN
        self._steady = 0
        """Holds in a row that were not in vain."""

    def is_right_behind(self, now: float) -> bool:
        """Whether a part-filled frame went just before `now`."""
        return now < self._shipped_s + REPLY_S

    def arrived(self, now: float) -> None:
        """Requests have come at `now`, while others were on their way or held: those that find an
        idle log are one group without a hold.
        """
        self._arrived += 1
        if now >= self.calm_s:
            self._arrivals = True

    def held(self, late_s: float) -> None:
        """A hold has ended, so many seconds after its time."""
        if late_s > LATE_S:
            self._holds = False

    def shipped(self, now: float, requests: int) -> float:
        """A part-filled frame goes; gives how many seconds the next one is to wait from now, 0: not
        at all.
        """
        interval_s = min(now - self._shipped_s, _INTERVAL_MAX_S)
        self._interval_s += (interval_s - self._interval_s) * _SHARE
        self._requests += (requests - self._requests) * _SHARE
        self._shipped_s = now
        self._holds &= self._arrivals
        self._arrivals = False
        self._steady = self._steady + 1 if self._holds else 0
        if self._steady >= STEADY:
            self._probe_at = PROBE_MIN
        if self._interval_s <= 0 or not (self._holds or self._arrived >= self._probe_at):
            return 0.0
        sync_s = max(self._sync_s, GROUP_S)
        syncs = min(self._requests / self._interval_s * sync_s, SYNCS_MAX)
        if syncs < GAIN_MIN:
            return 0.0
        if not self._holds:
            self._holds, self._arrived = True, 0
            self._probe_at = min(2 * self._probe_at, PROBE_MAX)
        return min(syncs * sync_s, HOLD_MAX_S)

    def acknowledged(self, now: float, shipped_s: float, requests: int) -> None:
        """A frame that was shipped at `shipped_s` is durable, with so many requests in it."""
        sync_s = now - max(shipped_s, self._acknowledged_s)
        self._sync_s += (sync_s - self._sync_s) * _SHARE
        self._acknowledged_s = now
        self.calm_s = now + REPLY_S + requests * REPLY_EACH_S
