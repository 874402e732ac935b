"""A run in which the Tier-1 service gives a frame back twice, and not the same both times.

Before a process run, in one of the pairs a ledger holds, a bit of the first copy flips; behind it,
it flips back. The engine must stop at the second copy and name it; one that lets it pass has taken
the wrong bytes. For plans with `tier1="ledger"` and "ledger.append.repeated". Rules of this file: a
process run that stops for it is as it should be.
"""

from __future__ import annotations

from recovery.harness.runs.plan import Cycle
from recovery.harness.runs.scenario import Scenario
from segmentstore.contracts.errors import DataCorruptionError


class DifferingRepeats(Scenario):
    """A scenario with such a pair in every process run that has one."""

    _damaged = False

    def _cycle(self, cycle: Cycle) -> None:
        pairs = [
            (ledger.frames, first)
            for ledger in map(self.world.ledgers.ledger, range(self.plan.settings["containers"]))
            for first, second in zip(ledger.frames, ledger.frames[1:], strict=False)
            if first.sequence == second.sequence
        ]
        if not pairs:
            super()._cycle(cycle)
            return
        frames, right = self._rng.choice(pairs)
        payload = bytearray(right.payload)
        payload[-1] ^= 1
        wrong = right._replace(payload=memoryview(bytes(payload)))
        frames[frames.index(right)] = wrong
        self._damaged = True
        super()._cycle(cycle)
        self._damaged = False
        if wrong in frames:
            frames[frames.index(wrong)] = right

    def _note_error(self, error: BaseException | None, *, two_owners: bool) -> None:
        if not (self._damaged and isinstance(error, DataCorruptionError)):
            super()._note_error(error, two_owners=two_owners)
