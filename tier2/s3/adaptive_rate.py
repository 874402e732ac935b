"""AdaptiveRate: how many requests a second a throttling provider gets; RateGate: where requests
wait for it.

Without throttling there is no limit. Throttled once, all requests slow down to half of what was
measured; each second without throttling adds a little; far above where it began, the limit is off
again. So the storage as a whole finds the rate that the provider grants, where each request
retrying for itself would only make it worse.

AdaptiveRate is pure: time is handed in, in seconds of the event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Final

RATE_MIN: Final = 1.0
"""Requests a second that are always tried: how else would one know that it is over."""
WINDOW_S: Final = 2.0
"""Over which the rate is measured."""
HALVING_PAUSE_S: Final = 1.0
"""The requests in flight at a throttling are throttled too: they count once."""
STEPS: Final = 30
"""Seconds from the first halving until the limit is off, if nothing more is throttled."""


class AdaptiveRate:
    """Additive increase, multiplicative decrease. All times are in seconds and never go back."""

    def __init__(self) -> None:
        self.throttled_count = 0
        self._limit: float | None = None
        self._off_above = 0.0
        self._step = 0.0
        self._changed = 0.0
        self._last_sent = 0.0
        self._sent: deque[float] = deque()

    def limit(self, now: float) -> float | None:
        """Requests a second as of now; None: no limit."""
        if self._limit is None:
            return None
        limit = self._limit + self._step * max(0.0, now - self._changed)
        if limit >= self._off_above:
            self._limit = None
            return None
        return limit

    def measured(self, now: float) -> float:
        """Requests a second that were sent lately."""
        while self._sent and self._sent[0] <= now - WINDOW_S:
            self._sent.popleft()
        return len(self._sent) / WINDOW_S

    def sent(self, now: float) -> None:
        """A request goes out."""
        self._last_sent = now
        self.measured(now)
        self._sent.append(now)

    def throttled(self, now: float) -> None:
        """The provider asked for less."""
        self.throttled_count += 1
        limit = self.limit(now)
        if limit is not None and now - self._changed < HALVING_PAUSE_S:
            return
        rate = self.measured(now)
        if limit is None:
            self._off_above = max(2 * rate, 4 * RATE_MIN)
            self._step = self._off_above / STEPS
        else:
            rate = min(rate, limit)
        self._limit = max(RATE_MIN, rate / 2)
        self._changed = now

    def delay(self, now: float, jitter: float) -> float:
        """Seconds until the next request may go; `jitter` in [0, 1) spreads them by half to both
        sides.
        """
        limit = self.limit(now)
        if limit is None:
            return 0.0
        return max(0.0, self._last_sent + (0.5 + jitter) / limit - now)


class RateGate:
    """Where requests wait, one behind another, for what `rate` grants.

    After `stop` no request waits any more.
    """

    def __init__(self, source: random.Random) -> None:
        self.rate = AdaptiveRate()
        self._random = source
        self._turn = asyncio.Lock()
        self._stopped = asyncio.Event()

    async def enter(self) -> None:
        """Return when the next request may go."""
        loop = asyncio.get_running_loop()
        if self.rate.limit(loop.time()) is not None or self._turn.locked():
            async with self._turn:
                delay = self.rate.delay(loop.time(), self._random.random())
                if delay and not self._stopped.is_set():
                    try:
                        async with asyncio.timeout(delay):
                            await self._stopped.wait()
                    except TimeoutError:
                        pass  # Its turn has come.
        self.rate.sent(loop.time())

    def stop(self) -> None:
        """Let every request through: what is left is failing fast, and aborting what was begun."""
        self._stopped.set()

    def throttled(self) -> None:
        """A request was throttled."""
        self.rate.throttled(asyncio.get_running_loop().time())
