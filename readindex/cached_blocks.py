"""CachedBlocks: the residence of the bytes that this container has in the cache (loop).

Each extent here is one block of the cache, under an address of its own. The index entries are
bounded as well as the bytes: a cache that drops silently would otherwise leave an entry behind for
every block it ever held. Blocks Tier 2 has go before those it lacks, each oldest first. The cache
may lose any block at any time: what it does not give back whole is released, and read from
elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from typing import NamedTuple

from readindex.cache_addresses import CacheAddresses
from readindex.cache_storage import CacheStorage
from readindex.config import ReadIndexConfig
from readindex.extent import Extent, Home
from readindex.segment_read_index import SegmentIndexes, SegmentReadIndex
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.metadata import SegmentMetadata

_log = logging.getLogger(__name__)

_LOST_PER_TURN = 1024
"""Blocks that one turn of the event loop releases."""


class SpillItem(NamedTuple):
    """One extent on its way into the cache, and the blocks it is cut into: (address, start, end)
    within its bytes.
    """

    extent: Extent
    data: bytes
    parts: list[tuple[int, int, int]]


class CachedBlocks:
    """Extents whose home is CACHED, in order of their insertion; bounded by `bytes_max`.

    `storage` and `addresses` may be shared with other containers.
    """

    def __init__(
        self,
        config: ReadIndexConfig,
        indexes: SegmentIndexes,
        storage: CacheStorage,
        addresses: CacheAddresses,
    ) -> None:
        self._indexes = indexes
        self._storage = storage
        self._addresses = addresses
        self.bytes_max = config.cache_bytes_max
        self._block_bytes = config.block_bytes
        self._flushed: OrderedDict[Extent, None] = OrderedDict()
        self._unflushed: OrderedDict[Extent, None] = OrderedDict()
        self.bytes_flushed = 0
        self.bytes_unflushed = 0
        self.misses = 0
        """Blocks that the cache did not have any more when they were read."""
        self.dropped_unflushed_bytes = 0

    @property
    def bytes_total(self) -> int:
        """Bytes of all blocks."""
        return self.bytes_flushed + self.bytes_unflushed

    # --- bytes coming in ---

    def item_of(self, extent: Extent) -> SpillItem:
        """An extent in memory, cut into blocks with addresses."""
        data = extent.joined()
        # A gathered block is a little over block_bytes: it stays one.
        pieces = max(1, extent.length // self._block_bytes)
        starts = [piece * self._block_bytes for piece in range(pieces)]
        ends = [*starts[1:], extent.length]
        parts = [
            (self._addresses.take(), start, end) for start, end in zip(starts, ends, strict=True)
        ]
        return SpillItem(extent, data, parts)

    async def insert(self, items: Iterable[SpillItem]) -> bool:
        """Give the cache the bytes of these items; False if it did not take them."""
        blocks: list[tuple[int, Buffer]] = []
        for _, data, parts in items:
            if len(parts) == 1:
                blocks.append((parts[0][0], data))
                continue
            view = memoryview(data)
            blocks += [(address, view[start:end]) for address, start, end in parts]
        try:
            return await self._storage.insert(blocks)
        except Exception:  # noqa: BLE001 - whatever it is, readers have other places to read
            # Taken for a refusal: a batch that is neither spilled nor given back would stay in
            # memory for good.
            _log.exception("the cache failed")
            return False

    def add(self, item: SpillItem, segment: SegmentMetadata) -> None:
        """Put the blocks of an inserted item where its extent was, which has been released."""
        index = self._indexes[segment.segment_id]
        for address, start, end in item.parts:
            start_offset = item.extent.start_offset + start
            # The blocks may lie on both sides of storage_length, and of start_offset.
            if start_offset + end - start <= segment.start_offset:
                self._storage.delete((address,))
                continue
            block = Extent(segment.segment_id, start_offset, end - start, None, Home.CACHED)
            block.address = address
            block.flushed = block.end_offset <= segment.storage_length
            if not block.flushed:
                index.flushed_mark = min(index.flushed_mark, block.start_offset)
            index.put(block)
            self._count(block)

    def forget(self, item: SpillItem) -> None:
        """An item is not wanted any more, be it in the cache or not."""
        self._storage.delete([address for address, _, _ in item.parts])

    # --- reads ---

    async def read(
        self, index: SegmentReadIndex, offset: int, length: int, blocks_max: int
    ) -> list[bytes] | None:
        """At most `length` bytes from `offset`, which a block has, out of at most so many blocks
        that follow each other; None if the cache has lost the first.
        """
        run = index.run_of(Home.CACHED, offset, length, blocks_max)
        # Before the await: a merge that is linked meanwhile moves the extents to other offsets.
        skip = offset - run[0].start_offset
        blocks = await self._storage.get([extent.address for extent in run])
        pieces: list[bytes] = []
        for extent, block in zip(run, blocks, strict=True):
            if block is None or len(block) != extent.length:
                await self._lost(extent)
                break
            # Wanted wholly it is not copied.
            pieces.append(block[skip : skip + length])
            length -= len(pieces[-1])
            skip = 0
        return pieces or None

    async def _lost(self, extent: Extent) -> None:
        """A loss is rarely alone.

        All bytes known to be missing are searched by one rescan, else each by its own.
        """
        self.misses += 1
        if extent.home is Home.CACHED:
            self.release(extent)
        while self.release_lost():  # noqa: ASYNC110 - a turn for others, no wait
            await asyncio.sleep(0)

    # --- bytes that Tier 2 has, and bytes going out ---

    def mark_flushed(self, extent: Extent) -> None:
        """Tier 2 has its bytes now; `extent.flushed` was just set."""
        if extent in self._unflushed:
            del self._unflushed[extent]
            self.bytes_unflushed -= extent.length
            self._count(extent)

    def release(self, extent: Extent) -> None:
        """Take an extent out, and its block out of the cache."""
        if extent in self._flushed:
            del self._flushed[extent]
            self.bytes_flushed -= extent.length
        else:
            del self._unflushed[extent]
            self.bytes_unflushed -= extent.length
        self._storage.delete((extent.address,))
        self._indexes[extent.segment_id].remove(extent)

    def drop(self, extent: Extent) -> None:
        """Take out an extent that perhaps only Tier 1 has besides, for want of room."""
        if not extent.flushed:
            self.dropped_unflushed_bytes += extent.length
        self.release(extent)

    def evict(self) -> None:
        """Drop what is beyond the bound."""
        while self.bytes_total > self.bytes_max:
            self._drop_oldest()

    def resize(self, bytes_max: int) -> bool:
        """Move the bound towards `bytes_max`; True while it is not there, for what lies between is
        dropped in turns.

        O(_LOST_PER_TURN).
        """
        for _ in range(_LOST_PER_TURN):
            if self.bytes_total <= bytes_max:
                break
            self._drop_oldest()
        self.bytes_max = max(bytes_max, self.bytes_total)
        return self.bytes_max > bytes_max

    def release_lost(self) -> bool:
        """Release un-flushed blocks that the cache has dropped silently, oldest first; True if
        there may be more of them.

        A cache drops the oldest, or all: what is behind one that is there is taken to be there.
        O(_LOST_PER_TURN).
        """
        oldest: Sequence[Extent] = list(islice(self._unflushed, _LOST_PER_TURN))
        lost = list(takewhile(lambda extent: not self._storage.holds(extent.address), oldest))
        for extent in lost:
            self.release(extent)
        return len(lost) == _LOST_PER_TURN

    # --- inside ---

    def _drop_oldest(self) -> None:
        self.drop(next(iter(self._flushed or self._unflushed)))

    def _count(self, extent: Extent) -> None:
        if extent.flushed:
            self._flushed[extent] = None
            self.bytes_flushed += extent.length
        else:
            self._unflushed[extent] = None
            self.bytes_unflushed += extent.length

    def check(self) -> None:
        """Assert that each block is counted once. O(extents)."""
        assert self.bytes_flushed == sum(extent.length for extent in self._flushed)
        assert self.bytes_unflushed == sum(extent.length for extent in self._unflushed)
        assert all(extent.flushed for extent in self._flushed)
        assert not any(extent.flushed for extent in self._unflushed)
        counted = {*self._flushed, *self._unflushed}
        assert counted == {
            extent
            for index in self._indexes.values()
            for extent in index.extents_from(0)
            if extent.home is Home.CACHED
        }
