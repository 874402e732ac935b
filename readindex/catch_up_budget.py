"""CatchUpBudget: how fast sequential readers may fetch from Tier 2 (pure: the caller has the clock
and waits).

A bucket that goes into debt: a fetch may begin when what was fetched before is paid for, whatever
its own size. So the rate holds over any time longer than the largest fetch takes, and no fetch is
too large ever to begin. Those who do not wait are charged for no more than half of the budget: they
may go on for ever, and who waits must get on.
"""

from __future__ import annotations

_NO_WAIT_S = 1e-4
"""Shorter waits are none: a timer may round them to nothing, and who asks again at once would turn
in a circle.
"""
CHARGED_S_MAX = 1.0
"""What is owed for those who do not wait at one time; it is paid off by half of the budget."""


class CatchUpBudget:
    """`bytes_per_s` of all fetches together; 0 sets no bound."""

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._paid_s = float("-inf")
        self._charged_s = 0.0
        self._charged_at_s = float("-inf")

    def wait_s(self, now_s: float) -> float:
        """Seconds until a fetch may begin; 0 or at least a tenth of a millisecond."""
        wait_s = self._paid_s - now_s
        return wait_s if wait_s >= _NO_WAIT_S else 0.0

    def take(self, now_s: float, count: int) -> float:
        """Take `count` bytes and a place in the row: seconds to wait before they may be fetched."""
        if not self.bytes_per_s:
            return 0.0
        begin_s = max(now_s, self._paid_s)
        self._paid_s = begin_s + count / self.bytes_per_s
        return begin_s - now_s

    def charge(self, now_s: float, count: int) -> None:
        """Note `count` bytes that are fetched without waiting; what is beyond their half is
        nobody's.
        """
        if not self.bytes_per_s:
            return
        owed_s = max(0.0, self._charged_s - (now_s - self._charged_at_s) / 2)
        added_s = min(count / self.bytes_per_s, CHARGED_S_MAX - owed_s)
        self._charged_s, self._charged_at_s = owed_s + added_s, now_s
        self._paid_s = max(now_s, self._paid_s) + added_s
