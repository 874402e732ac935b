"""EntryOffsets: where entries were found, of all open handles together, within one bound.

It refines an index that is coarse, as Pulsar's is: one mapping for 64 MiB. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from sortedcontainers import SortedDict

OFFSETS_MAX: Final = 65_536
"""Some 8 MiB."""


class EntryOffsets:
    """Offsets by ledger and entry. Beyond the bound the ledger that was read longest ago goes."""

    def __init__(self, count_max: int = OFFSETS_MAX) -> None:
        self._count_max = count_max
        self._ledgers: OrderedDict[Hashable, SortedDict[int, int]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ledger: Hashable, entry: int, offset: int) -> None:
        """An entry's header is at `offset`. O(log n)."""
        found = self._ledgers.get(ledger)
        if found is None:
            found = self._ledgers[ledger] = SortedDict()
        if entry not in found:
            self._count += 1
        found[entry] = offset
        self._ledgers.move_to_end(ledger)
        while self._count > self._count_max:
            self._count -= len(self._ledgers.popitem(last=False)[1])

    def floor(self, ledger: Hashable, entry: int) -> tuple[int, int] | None:
        """The last known entry that is not behind `entry`, and its offset. O(log n)."""
        found = self._ledgers.get(ledger)
        if found is None:
            return None
        self._ledgers.move_to_end(ledger)
        place = found.bisect_right(entry) - 1
        return found.peekitem(place) if place >= 0 else None

    def forget(self, ledger: Hashable) -> None:
        """Drop what is known of a ledger."""
        found = self._ledgers.pop(ledger, None)
        if found is not None:
            self._count -= len(found)
