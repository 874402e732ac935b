"""ReadTimeouts: how long a read waits before it is asked a second time, and before its connection
is given up.

Theory of operation. The seconds that small reads took lately are kept, of two lengths apart. A read
that has taken a multiple of what nearly all took is *late*: a second request is sent beside it
(tier2/s3/hedged_reads.py). A connection on which nothing arrived for a larger multiple is *dead*:
its socket gives up. Rules:

- nothing is sent twice before there is a measure, nor beyond a share of all reads. A provider that
  is slow as a whole gets hardly more requests by it, and pays for the rare one that hangs alone;
- the wait for a dead connection is one of READ_TIMEOUTS_S, since each is a client of its own. It is
  between two arrivals of bytes, so a large transfer that goes on has all the time it needs;
- where connections are dead time after time the provider may only be slow: the next longer patience
  is tried then, until a row of reads succeeded;
- where those of one object are, and others answer meanwhile, it may lie where reading begins slowly
  (a disk that sleeps, an archive). The next longer timeout is tried for it alone.

Pure: no await, no clock, no I/O; seconds are handed in.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

READ_TIMEOUTS_S: Final = (5, 10, 30)
"""Seconds without a byte after which a connection is dead."""
UNMEASURED_S: Final = 10
"""Before enough was measured."""
DEAD_IN_A_ROW: Final = 6
"""Connections given up, without an answer between them, before longer is waited."""
DEAD_FACTOR: Final = 20.0
"""Of what nearly all small reads took."""
LATE_FACTOR: Final = 3.0
"""The same for a second request."""
LATE_MIN_S: Final = 0.05
SAMPLES: Final = 128
SAMPLES_MIN: Final = 16
NEARLY_ALL: Final = 0.95
LENGTHS: Final = (64 * 1024, 1024 * 1024)
"""Reads up to the last are small: their time is the provider's, not the line's."""
SHARE: Final = 0.05
"""Second requests for each read, in the long run."""
SAVED_MAX: Final = 8.0
"""Second requests that may come at once."""
OBJECTS_MAX: Final = 1024
"""Objects whose connections were given up lately."""
_SORT_EVERY: Final = 8


class _Times:
    """What reads of one length took lately."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=SAMPLES)
        self._nearly_all = 0.0
        self._unsorted = 0

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._unsorted += 1
        # Sorting at each read would cost more than it is worth.
        if self._unsorted >= _SORT_EVERY or len(self._seconds) <= SAMPLES_MIN:
            self._unsorted = 0
            self._nearly_all = sorted(self._seconds)[int(NEARLY_ALL * (len(self._seconds) - 1))]

    def nearly_all(self) -> float | None:
        """Seconds within which nearly all ended; None before there are enough."""
        return self._nearly_all if len(self._seconds) >= SAMPLES_MIN else None


class _Slow(NamedTuple):
    """An object whose connection was given up."""

    successes: int
    """Of all reads, by then."""
    least_s: int
    """How long it is waited for at least; 0: as for others."""


class ReadTimeouts:
    """Of one storage. O(1) but for a sort of SAMPLES numbers at every eighth read."""

    def __init__(self) -> None:
        self._times = [_Times() for _ in LENGTHS]
        self._saved = SAVED_MAX
        self._least_s = 0
        self._calm = self._dead = self._successes = 0
        self._slow: OrderedDict[str, _Slow] = OrderedDict()

    def begun(self) -> None:
        """A read was asked for."""
        self._saved = min(SAVED_MAX, self._saved + SHARE)

    def took(self, length: int, seconds: float, name: str = "") -> None:
        """A read of so many bytes of this object succeeded."""
        if seconds < READ_TIMEOUTS_S[0]:
            self._slow.pop(name, None)
        self._successes += 1
        self._calm += 1
        self._dead = 0
        if self._calm >= SAMPLES_MIN:
            self._least_s = 0
        times = self._of(length)
        if times is not None:
            times.add(seconds)

    def timed_out(self, timeout_s: int, name: str = "") -> None:
        """Nothing came of this object for so long, and no second request had the answer
        meanwhile.
        """
        self._timed_out_of(name, timeout_s)
        self._calm = 0
        self._dead += 1
        if self._dead < DEAD_IN_A_ROW:
            return
        self._dead = 0
        self._least_s = max(self._least_s, _longer(timeout_s))

    def late_after_s(self, length: int) -> float | None:
        """Seconds after which a read of so many bytes is late; None: it is never sent twice."""
        times = self._of(length)
        usual = times.nearly_all() if times is not None else None
        return None if usual is None else max(LATE_MIN_S, LATE_FACTOR * usual)

    def may_repeat(self) -> bool:
        """Whether a second request may be sent now; counts it if so."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True

    def dead_after_s(self, name: str = "") -> int:
        """How long a read of this object waits for bytes: one of READ_TIMEOUTS_S."""
        usual = max(
            (took for each in self._times if (took := each.nearly_all()) is not None), default=None
        )
        wanted = UNMEASURED_S if usual is None else DEAD_FACTOR * usual
        known = self._slow.get(name)
        wanted = max(wanted, self._least_s, known.least_s if known is not None else 0)
        return next((each for each in READ_TIMEOUTS_S if each >= wanted), READ_TIMEOUTS_S[-1])

    def _timed_out_of(self, name: str, timeout_s: int) -> None:
        known = self._slow.pop(name, None)
        least_s = known.least_s if known is not None else 0
        if known is not None and known.successes < self._successes:
            least_s = max(least_s, _longer(timeout_s))
        self._slow[name] = _Slow(self._successes, least_s)
        if len(self._slow) > OBJECTS_MAX:
            self._slow.popitem(last=False)

    def _of(self, length: int) -> _Times | None:
        for most, times in zip(LENGTHS, self._times, strict=True):
            if length <= most:
                return times
        return None


def _longer(timeout_s: int) -> int:
    """The next one of READ_TIMEOUTS_S, or the last."""
    return next((each for each in READ_TIMEOUTS_S if each > timeout_s), READ_TIMEOUTS_S[-1])
