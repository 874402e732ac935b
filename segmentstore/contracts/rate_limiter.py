"""A rate limiter: at most so many bytes a second, however large one request is.

A bucket that goes into debt: a request may begin once all before it are paid off, whatever its own
size. So the rate holds over any time longer than the largest request takes, and no request is too
large ever to begin. What was not used is not saved up: there are no bursts.

Requests that may not wait are charged instead. They never owe more than half of the rate: they may
go on for ever, and requests that wait must get on.
"""

from __future__ import annotations

import asyncio
from typing import Final

_NO_WAIT_S: Final = 1e-4
"""Shorter waits are none: a timer may round them to nothing, and a caller that asks again at once
would turn in a circle.
"""
CHARGED_S_MAX: Final = 1.0
"""What requests that did not wait owe at one time; half of the rate pays it off."""


class RateLimiter:
    """`bytes_per_s` of all requests together; 0 sets no bound.

    Times are in seconds of the event loop and never go back.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._paid_s = float("-inf")
        self._charged_s = 0.0
        self._charged_at_s = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """Seconds until a request may begin; 0 or at least a tenth of a millisecond."""
        wait_s = self._paid_s - now_s
        return wait_s if wait_s >= _NO_WAIT_S else 0.0

    def reserve(self, now_s: float, count: int) -> float:
        """Take `count` bytes and a place in the row: seconds to wait before they may be asked
        for.
        """
        if not self.bytes_per_s:
            return 0.0
        begin_s = max(now_s, self._paid_s)
        self._paid_s = begin_s + count / self.bytes_per_s
        return begin_s - now_s

    def charge(self, now_s: float, count: int) -> None:
        """Count `count` bytes that are asked for without waiting; what exceeds their half of the
        rate is forgiven.
        """
        if not self.bytes_per_s:
            return
        owed_s = max(0.0, self._charged_s - (now_s - self._charged_at_s) / 2)
        added_s = min(count / self.bytes_per_s, CHARGED_S_MAX - owed_s)
        self._charged_s, self._charged_at_s = owed_s + added_s, now_s
        self._paid_s = max(now_s, self._paid_s) + added_s

    async def acquire(self, count: int) -> None:
        """Wait until `count` bytes may be asked for."""
        delay_s = self.reserve(asyncio.get_running_loop().time(), count)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
