"""ThrottlePauses: the time for which callers are held back, one pause after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from durablelog.drain_pace import PaceBudget
from durablelog.throttler import DELAY_MAX_S, Throttle
from segmentstore.contracts.errors import TierUnavailableError


class ThrottlePauses:
    """Of one processor. `on_over()` is called when a pause has passed.

    `throttle(length)` says what is asked for while so many bytes are on their way to the log.
    """

    def __init__(self, throttle: Callable[[int], Throttle], on_over: Callable[[], None]) -> None:
        self._throttle = throttle
        self._on_over = on_over
        self._timer: asyncio.TimerHandle | None = None
        self._budget = PaceBudget()
        self._sorted_at = float("-inf")
        """When the throttle of the pace now in force was last given."""
        self.source = ""
        """What held callers back last; empty if nothing does."""
        self.total_s = 0.0
        self.allowed: float | None = None
        """Bytes of this round, where callers are paced."""

    @property
    def in_progress(self) -> bool:
        """Whether callers are held back now."""
        return self._timer is not None

    @property
    def sorts(self) -> bool:
        """Whether callers are held back, or paced: what waits is sorted."""
        return self._timer is not None or self.allowed is not None

    def begin(self, on_its_way: int) -> Throttle | None:
        """Begin the pause that is asked for, if one is; the throttle that asks.

        One that was just made is not made twice in a row: a round goes through in between. Of
        rounds at a pace the throttle is given once in a second.
        """
        throttle = self._throttle(on_its_way)
        self.allowed = None
        if throttle.bytes_per_s is not None:
            return self._next_round(throttle, throttle.bytes_per_s)
        self._sorted_at = float("-inf")
        asked = throttle.delay_s > 0
        if asked and (throttle.full or throttle.source != self.source):
            self._pause(throttle.source, throttle.delay_s)
            return throttle
        self.source = ""
        return None

    def _next_round(self, throttle: Throttle, bytes_per_s: float) -> Throttle | None:
        now = asyncio.get_running_loop().time()
        allowed = self._budget.at(now, bytes_per_s)
        if allowed > 0:
            self.allowed, self.source = allowed, throttle.source
        else:
            self._pause(throttle.source, min(self._budget.wait_s(), DELAY_MAX_S))
        if now - self._sorted_at < DELAY_MAX_S:
            return None
        self._sorted_at = now
        return throttle

    def _pause(self, source: str, delay_s: float) -> None:
        self.source = source
        self.total_s += delay_s
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_over)

    def admitted(self, length: int) -> None:
        """So many bytes of this round go."""
        self._budget.take(length)

    def exempted(self, length: int) -> None:
        """So many bytes go that no pause holds back."""
        self._budget.take_exempt(length)

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
