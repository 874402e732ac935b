"""HotCopyAges: how long an owner of a log has seen that the archive has its parts. Pure.

A part says by the wall clock when it became complete. If that clock was ahead then, and was set
right, the log would keep its copy until the wrong time comes. So what an owner has seen for the
whole lag by its own time counts too.
"""

from __future__ import annotations

from collections import deque


class HotCopyAges:
    """Of one owner of one container. Has an entry for each part of the lag, at most."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque()
        """Index behind the newest complete part, and since when it is that at least; growing."""
        self._passed = 0

    def complete_for(self, lag_s: float, count: int, now_s: float) -> int:
        """The index behind the parts that were complete `lag_s` ago, as far as was seen; `count` of
        them are now. O(parts that became complete since the last call).
        """
        if count > (self._seen[-1][0] if self._seen else self._passed):
            self._seen.append((count, now_s))
        while self._seen and self._seen[0][1] <= now_s - lag_s:
            self._passed = self._seen.popleft()[0]
        return self._passed
