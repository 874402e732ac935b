"""SteadyWallClock: wall time for ages of what others stamped, which a jump of the clock makes older
only slowly.

Ages of messages, uploads in parts and objects of jobs are the wall time less the time that Tier 2
gives. What is deleted for its age can be made again, but should not go because a clock is set
wrong. So a jump ahead is reported and not believed until it has lasted for TRUSTED_AFTER_S. A jump
back is believed at once, for it only makes things younger. What the clock says when an owner begins
has to be believed.

A jump is what wall time does beyond the time that passed: the event loop's, or the machine's since
its start, which goes on while it is suspended. It is noticed whenever the time or the
health is asked for.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Final, NamedTuple

from segmentstore.contracts.runtime import BootTime, Runtime

_log = logging.getLogger(__name__)

TOLERANCE_MS: Final = 60_000
"""The usual error of clocks, which is corrected without a report."""
TRUSTED_AFTER_S: Final = 24 * 3600.0
REPORTED_FOR_S: Final = 3600.0
"""How long a jump shows in the health, at least."""


class _Reading(NamedTuple):
    wall_ms: int
    """As it is believed."""
    now_s: float
    boot: BootTime


class SteadyWallClock:
    """A `Clock`. On one event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._boot = runtime.boot
        self._last: _Reading | None = None
        self._ahead_ms = 0
        """By how much the clock is ahead of what is believed."""
        self._jumped_s = 0.0
        self._jumped_ms = 0
        self.jumps = 0

    def time_ms(self) -> int:
        """Milliseconds since 1970 UTC, without a jump ahead that is not trusted yet. O(1)."""
        wall_ms, now_s, boot = (
            self._clock.time_ms(),
            asyncio.get_running_loop().time(),
            self._boot(),
        )
        last = self._last
        if last is not None:
            passed_ms = max(
                int((now_s - last.now_s) * 1000), boot.elapsed_ms - last.boot.elapsed_ms
            )
            wall_ms = self._believed(last.wall_ms + passed_ms, wall_ms, now_s)
        self._last = _Reading(wall_ms, now_s, boot)
        return wall_ms

    def _believed(self, expected_ms: int, wall_ms: int, now_s: float) -> int:
        ahead_ms = wall_ms - expected_ms
        if abs(ahead_ms - self._ahead_ms) > TOLERANCE_MS:
            self.jumps += 1
            self._jumped_s, self._jumped_ms = now_s, ahead_ms - self._ahead_ms
            _log.warning("%s", self._sentence(wall_ms))
        elif self._ahead_ms and now_s - self._jumped_s >= TRUSTED_AFTER_S:
            ahead_ms = 0
            expected_ms = wall_ms
        if ahead_ms <= TOLERANCE_MS:
            self._ahead_ms = 0
            return wall_ms
        self._ahead_ms = ahead_ms
        return expected_ms

    def describe(self) -> str | None:
        """None while the clock goes as time does, else one sentence."""
        self.time_ms()
        told = self._ahead_ms or asyncio.get_running_loop().time() - self._jumped_s < REPORTED_FOR_S
        return self._sentence(self._clock.time_ms()) if self.jumps and told else None

    def _sentence(self, wall_ms: int) -> str:
        seconds = round(abs(self._jumped_ms) / 1000)
        moved = f"{round(seconds / 86400)} days" if seconds >= 2 * 86400 else f"{seconds} s"
        where = "ahead" if self._jumped_ms > 0 else "back"
        return (
            f"the wall clock jumped {where} by {moved} and shows {_shown(wall_ms)}: set it "
            "right if it is wrong"
        )


def _shown(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{wall_ms} ms since 1970"
