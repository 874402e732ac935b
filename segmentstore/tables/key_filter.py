"""KeyFilter: which keys may have been seen before, pure.

While an index is built from nothing, most keys are new. To ask the store on disk for each would be
half of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BITS: Final = 1 << 24
"""2 MiB: of a million keys, one of 30 is taken for another."""


class KeyFilter:
    """A set of keys that may say yes of one that it has not, and never no of one that it has."""

    def __init__(self) -> None:
        self._bits = bytearray(_BITS >> 3)

    def add(self, keys: Sequence[bytes]) -> list[bytes]:
        """Add keys; those that may have been there, or are twice among these."""
        bits, seen = self._bits, []
        for key in keys:
            place = hash(key) & (_BITS - 1)
            byte, bit = place >> 3, 1 << (place & 7)
            if bits[byte] & bit:
                seen.append(key)
            else:
                bits[byte] |= bit
        return seen
