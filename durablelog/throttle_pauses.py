"""ThrottlePauses: the time for which callers are held back, one pause after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from durablelog.throttler import Throttle
from segmentstore.contracts.errors import TierUnavailableError


class ThrottlePauses:
    """Of one processor. `on_over()` is called when a pause has passed."""

    def __init__(self, throttle: Callable[[], Throttle], on_over: Callable[[], None]) -> None:
        self._throttle = throttle
        self._on_over = on_over
        self._timer: asyncio.TimerHandle | None = None
        self.source = ""
        """What held callers back last; empty if nothing does."""
        self.total_s = 0.0

    @property
    def in_progress(self) -> bool:
        """Whether callers are held back now."""
        return self._timer is not None

    def begin(self) -> Throttle | None:
        """Begin the pause that is asked for, if one is; the throttle that asks.

        One that was just made is not made twice in a row: a round goes through in between.
        """
        throttle = self._throttle()
        asked = throttle.delay_s > 0
        if asked and (throttle.full or throttle.source != self.source):
            self.source = throttle.source
            self.total_s += throttle.delay_s
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(throttle.delay_s, self._on_over)
            return throttle
        self.source = ""
        return None

    def end(self) -> bool:
        """End the pause; whether there was one."""
        if self._timer is None:
            return False
        self._timer.cancel()
        self._timer = None
        return True

    def queue_full(self, bytes_max: int) -> TierUnavailableError:
        """What a call gets while so many bytes wait: it names what held callers back last."""
        why = f" (held back by {self.source})" if self.source else ""
        return TierUnavailableError(
            "tier2" if self.source in {"unflushed", "cache"} else "tier1",
            f"{bytes_max} bytes of appends are waiting already{why}; "
            "nothing of this call was taken",
        )
