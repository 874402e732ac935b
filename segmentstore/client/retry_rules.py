"""When a client of a cluster asks again, and when it gives up. Pure.

The table of what is asked again is in docs/decisions/0071-retries-of-a-cluster-client.md.
"""

from __future__ import annotations

import random
from typing import Final

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    StoreUnreachableError,
)

RETRY_S: Final = 60.0
"""How long a call is asked again by default."""
WAIT_MIN_S: Final = 0.05
WAIT_MAX_S: Final = 1.0
START_SHARE: Final = 1 / 20
"""By how much longer than it takes a start is waited for, at most."""


def was_not_taken(error: BaseException) -> bool:
    """Whether the call had no effect, and another host, or this one later, may take it."""
    return isinstance(
        error,
        # ContainerNotServedError is of NotPrimaryError; StoreDisconnectedError and StoreClosedError
        # are of ContainerStoppedError.
        NotPrimaryError | ContainerStoppedError | StoreUnreachableError,
    )


class RetrySpan:
    """The tries of one call, from its first failure until `retry_s` later."""

    def __init__(self, rng: random.Random, retry_s: float) -> None:
        self._backoff = Backoff(rng, min_s=WAIT_MIN_S, max_s=WAIT_MAX_S)
        self._retry_s = retry_s
        self._rng = rng
        self._owned_s = 0.0
        self._give_up_s: float | None = None

    @property
    def is_first(self) -> bool:
        """Whether no try has failed since the last answer, or at this owner."""
        return not self._backoff.failures

    def wait_s(self, now_s: float, *, starts: bool = False) -> float | None:
        """A try failed at `now_s`: seconds until the next one, None to give up. `starts`: its
        container is about to be served there, as far as is known.
        """
        if self._give_up_s is None:
            self._owned_s, self._give_up_s = now_s, now_s + self._retry_s
        left_s = self._give_up_s - now_s
        if left_s <= 0:
            return None
        wait_s = self._backoff.next_s()
        if starts:
            most_s = max(WAIT_MIN_S, (now_s - self._owned_s) * START_SHARE)
            wait_s = min(wait_s, self._rng.uniform(most_s / 2, most_s))
        return min(wait_s, left_s)

    def owner_changed(self, now_s: float) -> None:
        """The next try is at another host: at once, and the waits begin anew."""
        self._backoff.reset()
        self._owned_s = now_s

    def answered(self) -> None:
        """A try has succeeded."""
        self._backoff.reset()
        self._give_up_s = None
