"""SearchPace: when a client that found its hosts by ZooKeeper asks there again. Pure.

A search costs a session, which ZooKeeper has to write down. So hosts are asked first, and there is
no search while calls succeed.
"""

from __future__ import annotations

import random
from typing import Final

from segmentstore.contracts.backoff import Backoff

SEARCH_AFTER_S: Final = 2.0
"""How long the hosts may answer with nothing new before ZooKeeper is asked."""
SEARCH_MIN_S: Final = 1.0
SEARCH_MAX_S: Final = 10.0
_QUIET_S: Final = 60.0
"""Without any failure; then the next one is the first."""


class SearchPace:
    """Of one client, from a search at `now_s` on. Times are the event loop's."""

    def __init__(self, rng: random.Random, now_s: float) -> None:
        self._backoff = Backoff(rng, min_s=SEARCH_MIN_S, max_s=SEARCH_MAX_S)
        self._stuck_s: float | None = None
        """Since when the hosts have said nothing new."""
        self._asked_s = now_s
        self._next_s = now_s
        self.searched(now_s)

    def is_due(self, now_s: float, *, was_answered: bool, is_news: bool) -> bool:
        """The hosts were asked, for a call had failed: whether to search now.

        `was_answered`: by one of them at least; `is_news`: with another map than before.
        """
        if is_news:
            self._stuck_s = None
            self._backoff.reset()
            return False
        if self._stuck_s is None or now_s - self._asked_s > _QUIET_S:
            self._stuck_s = now_s
        self._asked_s = now_s
        if was_answered and now_s - self._stuck_s < SEARCH_AFTER_S:
            return False
        return now_s >= self._next_s

    def searched(self, now_s: float) -> None:
        """A search has ended."""
        self._next_s = now_s + self._backoff.next_s()
