"""CachedBlocks: the account of the extents this container has in the cache (pure).

Bounds the index entries as well as the bytes: a cache that drops silently would otherwise leave an
entry behind for every block it ever held. Blocks Tier 2 has go before those it has not, each oldest
first.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from readindex.extent import Extent, Home


class CachedBlocks:
    """Extents whose home is CACHED, in order of their insertion."""

    def __init__(self) -> None:
        self._flushed: OrderedDict[Extent, None] = OrderedDict()
        self._unflushed: OrderedDict[Extent, None] = OrderedDict()
        self.bytes_flushed = 0
        self.bytes_unflushed = 0

    @property
    def bytes_total(self) -> int:
        """Bytes of all blocks."""
        return self.bytes_flushed + self.bytes_unflushed

    def add(self, extent: Extent) -> None:
        """Count an extent that has just become CACHED."""
        assert extent.home is Home.CACHED
        if extent.flushed:
            self._flushed[extent] = None
            self.bytes_flushed += extent.length
        else:
            self._unflushed[extent] = None
            self.bytes_unflushed += extent.length

    def mark_flushed(self, extent: Extent) -> None:
        """Tier 2 has its bytes now; `extent.flushed` was just set."""
        if extent in self._unflushed:
            del self._unflushed[extent]
            self.bytes_unflushed -= extent.length
            self.add(extent)

    def remove(self, extent: Extent) -> None:
        """Stop counting an extent."""
        if extent in self._flushed:
            del self._flushed[extent]
            self.bytes_flushed -= extent.length
        else:
            del self._unflushed[extent]
            self.bytes_unflushed -= extent.length

    def first_to_go(self) -> Extent | None:
        """What to evict next; None if there is nothing. O(1)."""
        for blocks in (self._flushed, self._unflushed):
            if blocks:
                return next(iter(blocks))
        return None

    def first_unflushed(self, count: int) -> list[Extent]:
        """The oldest blocks that Tier 2 has not, at most `count`."""
        return list(islice(self._unflushed, count))

    def check(self) -> None:
        """Assert that the sums are right. O(blocks)."""
        assert self.bytes_flushed == sum(extent.length for extent in self._flushed)
        assert self.bytes_unflushed == sum(extent.length for extent in self._unflushed)
        assert all(extent.flushed for extent in self._flushed)
        assert not any(extent.flushed for extent in self._unflushed)
        assert all(extent.home is Home.CACHED for extent in (*self._flushed, *self._unflushed))
