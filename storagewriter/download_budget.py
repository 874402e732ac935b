"""DownloadBudget: how many bytes consolidation may download, where every byte that leaves Tier 2 is
billed.

A download may begin when what came before is paid off, and is charged as a whole: so over any time
no more is downloaded than the rate allows, and one group. Pure: seconds of the event loop are
handed in, and never go back.
"""

from __future__ import annotations


class DownloadBudget:
    """At most `bytes_per_s`, in the long run; 0: no bound."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_off_at = 0.0

    def wait_s(self, now: float) -> float:
        """Seconds until a download may begin; 0: now."""
        return max(0.0, self._paid_off_at - now)

    def charge(self, now: float, count: int) -> None:
        """So many bytes are downloaded."""
        if self._bytes_per_s:
            self._paid_off_at = max(self._paid_off_at, now) + count / self._bytes_per_s
