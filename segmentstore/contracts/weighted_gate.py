"""WeightedGate: lets so much in at once and no more, first come first served.

Bounds connections (weight 1 each) and bytes in flight. What is heavier than the whole gate passes
alone.
"""

from __future__ import annotations

import asyncio
from collections import deque


class WeightedGate:
    """At most `capacity` inside. On one event loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.inside = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    def __repr__(self) -> str:
        return f"<WeightedGate {self.inside} of {self._capacity}, {len(self._waiting)} waiting>"

    async def enter(self, weight: int) -> None:
        """Wait until there is room behind all earlier callers; an admitted caller calls `leave`.

        Weight 0 goes through.
        """
        if not weight or (not self._waiting and self._fits(weight)):
            self.inside += weight
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, weight))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(weight)  # Let in and cancelled at the same moment.
            else:
                self._waiting.remove((turn, weight))
                self._admit()
            raise

    def leave(self, weight: int) -> None:
        """Give back what was entered with."""
        self.inside -= weight
        assert self.inside >= 0, self
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, weight = self._waiting.popleft()
            if not turn.done():
                self.inside += weight
                turn.set_result(None)

    def _fits(self, weight: int) -> bool:
        return not self.inside or self.inside + weight <= self._capacity
