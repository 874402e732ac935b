"""Addresses of cache blocks: one counter for all containers that share a cache."""

from __future__ import annotations


class CacheAddresses:
    """Gives 64-bit addresses, each once.

    An address is never used again, so an old one can never find new bytes.
    """

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        """The next address. O(1)."""
        address = self._next
        self._next = address + 1
        return address
