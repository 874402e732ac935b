"""When something is sent to a store again, and when the store is given up. Pure."""

from __future__ import annotations

import random
from typing import Final

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    StoreUnreachableError,
    TierUnavailableError,
)

_WAIT_MIN_S: Final = 0.02
_WAIT_MAX_S: Final = 0.25


def is_away(error: BaseException) -> bool:
    """Whether the store cannot now, or stopped in the middle: connect, and send again what carries
    an event number. Any other error is a refusal.
    """
    return isinstance(
        error,
        # StoreDisconnectedError and StoreClosedError are of ContainerStoppedError.
        AppendOutcomeUnknownError
        | ContainerStoppedError
        | StoreUnreachableError
        | TierUnavailableError,
    )


class RetrySchedule:
    """The tries of one client: with back-off, and given up `timeout_s` after the first failure
    since the last answer.
    """

    def __init__(self, rng: random.Random, timeout_s: float) -> None:
        self._backoff = Backoff(rng, min_s=_WAIT_MIN_S, max_s=_WAIT_MAX_S)
        self._timeout_s = timeout_s
        self._give_up_s: float | None = None
        """None while answers come."""

    def wait_s(self, now_s: float) -> float | None:
        """A try failed at `now_s`: seconds until the next one, None to give up.

        Given up, it stays so until an answer comes.
        """
        if self._give_up_s is None:
            self._give_up_s = now_s + self._timeout_s
        wait_s = self._backoff.next_s()
        return None if now_s + wait_s > self._give_up_s else wait_s

    def answered(self) -> None:
        """The store has answered."""
        self._backoff.reset()
        self._give_up_s = None
