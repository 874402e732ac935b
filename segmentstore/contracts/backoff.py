"""Back-off: how long to wait before a failed call is made again.

The span doubles with each failure in a row, from a first to a longest one. Each delay is drawn from
the upper half of the span, so that many callers do not come back at once. Pure: it does not sleep.
"""

from __future__ import annotations

import random
from typing import Final

_DOUBLINGS_MAX: Final = 64
"""More would only overflow a float."""


def backoff_s(rng: random.Random, failures: int, min_s: float, max_s: float) -> float:
    """Seconds to wait after so many failures in a row, 1 or more; at most `max_s`."""
    span_s = min(min_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), max_s)
    return rng.uniform(span_s / 2, span_s)


class Backoff:
    """The delays of one row of tries, between half of `min_s` and `max_s`."""

    def __init__(self, rng: random.Random, *, min_s: float, max_s: float) -> None:
        self._rng = rng
        self._min_s = min_s
        self._max_s = max_s
        self.failures = 0
        """In a row."""

    def next_s(self) -> float:
        """A try failed: seconds to wait before the next one."""
        self.failures += 1
        return backoff_s(self._rng, self.failures, self._min_s, self._max_s)

    def reset(self) -> None:
        """A try succeeded: the next failure is the first of a row."""
        self.failures = 0
