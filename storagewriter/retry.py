"""How the writer meets a Tier 2 that does not answer: how long to wait, and what to say about
it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime

from segmentstore.contracts.errors import describe
from segmentstore.contracts.runtime import Clock
from tier2.object_storage import ObjectStorageError, StorageUnavailableError


class BackOff:
    """Delays that double from `min_s` to `max_s`, each drawn from its upper half so that many do
    not come at once.
    """

    def __init__(self, min_s: float, max_s: float, source: random.Random) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._source = source
        self._next_s = min_s

    def failed(self) -> float:
        """Seconds to wait before the next try; at most `max_s`."""
        delay = self._next_s
        self._next_s = min(2 * delay, self._max_s)
        return self._source.uniform(delay / 2, delay)

    def succeeded(self) -> None:
        """Begin again at `min_s`."""
        self._next_s = self._min_s


def _never() -> bool:
    return False


class TierHealth:
    """Since when something fails, and why; one sentence for people.

    A failure that was the provider's as a whole counts until the provider answers anybody again:
    what failed may not be due to be tried for a minute, and all may be well meanwhile.
    """

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._since_ms: int | None = None
        self._reason = ""
        self._outlived: Callable[[], bool] = _never
        self.failures = 0

    def failed(self, error: BaseException) -> None:
        """A try failed; the first of a row sets the time."""
        self.failures += 1
        if self._outlived():
            self._since_ms = None
        self._outlived = error.outlived if isinstance(error, StorageUnavailableError) else _never
        self._reason = str(error) if isinstance(error, ObjectStorageError) else describe(error)
        if self._since_ms is None:
            self._since_ms = self._clock.time_ms()

    def succeeded(self) -> None:
        """A try succeeded: healthy again."""
        self._since_ms = None

    def describe(self) -> str | None:
        """None while healthy."""
        if self._since_ms is None or self._outlived():
            return None
        since = datetime.fromtimestamp(self._since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"{self._what} failing since {since}: {self._reason}"
