"""DeletionClock: how long garbage has waited, counted so that a jump of the wall clock changes
nothing.

Theory of operation. The clock of a container counts milliseconds while an owner runs, by the event
loop's monotone time. Readings of it go through the log (`DeletionClockOperation`), each with the
time since the machine was started, so that the next owner goes on counting:

- on the same boot of the same machine the time between the two owners counts too, for it is known;
- otherwise the clock goes on from the last reading, as if no time had passed between them.

So the clock may be slow, never fast. An age counts from the first reading after the object became
garbage, or from when this owner first saw it there, whichever is older. Both are too short, never
too long. The lag has passed when either says so.

Pure: no await, no clock, no I/O; times are handed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from durablelog.operations import DeletionClockOperation
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject
from segmentstore.contracts.runtime import BootTime

READINGS_PER_LAG: Final = 64
"""At most, while something waits: the part of the lag that an object may stay too long for each
owner that comes.
"""
INTERVAL_MIN_S: Final = 1.0
INTERVAL_MAX_S: Final = 300.0
"""An owner that is alive this long brings the clock forward, however long the lag is."""


def clock_at(reading: DeletionClockReading, boot: BootTime) -> int:
    """What the clock shows at `boot`, for the owner after the one that wrote `reading`, in
    milliseconds.
    """
    passed_ms = boot.elapsed_ms - reading.boot_ms if boot.boot_id == reading.boot_id else 0
    return reading.clock_ms + max(passed_ms, 0)


def remaining_ms(garbage: GarbageObject, lag_ms: int, clock_ms: int) -> int:
    """How much of the lag is left by the log alone, 0 if it has passed."""
    return lag_ms if garbage.since_ms is None else max(0, garbage.since_ms + lag_ms - clock_ms)


class DeletionClock:
    """The clock in one owner's hands. `now_s` is always the event loop's time, in seconds."""

    def __init__(
        self, reading: DeletionClockReading, boot: BootTime, now_s: float, lag_s: float
    ) -> None:
        self._began_ms = clock_at(reading, boot)
        self._began_s = now_s
        self._lag_ms = int(lag_s * 1000)
        self.interval_s = min(max(lag_s / READINGS_PER_LAG, INTERVAL_MIN_S), INTERVAL_MAX_S)
        """Least time between two readings."""
        self._read_s: float | None = None
        """When the clock was last read for the log, by this owner."""
        self._seen: dict[str, float] = {}
        """When this owner first saw each garbage object."""

    def now_ms(self, now_s: float) -> int:
        """What the clock shows."""
        return self._began_ms + int((now_s - self._began_s) * 1000)

    def notice(self, garbage: dict[str, GarbageObject], now_s: float) -> None:
        """Take note of what has become garbage since the last time. O(that)."""
        for name in reversed(garbage):  # in the order in which the log released them
            if name in self._seen:
                break
            self._seen[name] = now_s

    def observe(self, garbage: Mapping[str, GarbageObject], now_s: float) -> None:
        """Take note of what is garbage now, and forget what is deleted. O(garbage)."""
        self._seen = {name: self._seen.get(name, now_s) for name in garbage}

    def remaining_ms(self, name: str, garbage: GarbageObject, now_s: float) -> int:
        """How much of an object's lag is left, 0 if it has passed."""
        waited_ms = int((now_s - self._seen.get(name, now_s)) * 1000)
        return min(
            max(0, self._lag_ms - waited_ms),
            remaining_ms(garbage, self._lag_ms, self.now_ms(now_s)),
        )

    def reading(
        self, metadata: ContainerMetadata, boot: BootTime, now_s: float
    ) -> DeletionClockOperation | None:
        """What is to go through the log now, as a reading that the next owner needs; None if it
        needs none. O(garbage).

        A few in each deletion lag, and only while something waits whose age would be lost with this
        owner.
        """
        if self._read_s is not None and now_s - self._read_s < self.interval_s:
            return None
        now_ms = self.now_ms(now_s)
        if not any(
            self.remaining_ms(name, each, now_s) and remaining_ms(each, self._lag_ms, now_ms)
            for name, each in metadata.garbage.items()
        ):
            return None
        self._read_s = now_s
        return DeletionClockOperation(
            now_ms, boot.boot_id, boot.elapsed_ms, metadata.sequence_number
        )
