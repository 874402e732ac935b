"""Wall time of a simulated world: follows virtual time, and jumps, stands still or goes back when
asked to.
"""

from __future__ import annotations

from recovery.harness.simulation.virtual_loop import VirtualTime

BEGINNING_MS = 1_700_000_000_000


class SimulatedClock:
    """A `Clock`. Nothing that must be right may depend on it."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._offset_ms = BEGINNING_MS
        self._frozen_at: int | None = None

    def time_ms(self) -> int:
        if self._frozen_at is not None:
            return self._frozen_at
        return self._offset_ms + self._time.now_us // 1000

    def jump(self, milliseconds: int) -> None:
        """Set it forward, or back: not to before 1970, which Linux refuses."""
        goes_on_at = self._offset_ms + self._time.now_us // 1000
        milliseconds = max(milliseconds, -min(self.time_ms(), goes_on_at))
        self._offset_ms += milliseconds
        if self._frozen_at is not None:
            self._frozen_at += milliseconds

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still."""
        return self._frozen_at is not None

    def freeze(self) -> None:
        """Stand still until `thaw`."""
        self._frozen_at = self.time_ms()

    def thaw(self) -> None:
        """Go on from the time it should be."""
        self._frozen_at = None
