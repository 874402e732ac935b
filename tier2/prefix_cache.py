"""PrefixCache: headers and extent tables of the blocks read last, bounded in number and in
bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from tier2.block_object import BlockHeader, ExtentTable

HEADER_COST_BYTES = 512
"""What a cached header costs beside its table."""

PrefixKey = tuple[str, int]
"""Object name and place of the block in it."""


class Prefix(NamedTuple):
    """What stands before a block's payload, checked."""

    header: BlockHeader
    table: ExtentTable


class PrefixCache:
    """Least recently used goes first; what alone is too large is not kept."""

    def __init__(self, blocks_max: int, bytes_max: int) -> None:
        self._blocks_max = blocks_max
        self._bytes_max = bytes_max
        self._cached: OrderedDict[PrefixKey, Prefix] = OrderedDict()
        self.size = 0
        """Bytes held."""

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, key: PrefixKey) -> Prefix | None:
        """What is held of this block; it is the most recently used one then."""
        prefix = self._cached.get(key)
        if prefix is not None:
            self._cached.move_to_end(key)
        return prefix

    def remember(self, key: PrefixKey, prefix: Prefix) -> None:
        """Hold it, and release the oldest beyond the bounds."""
        self.forget(key)
        self._cached[key] = prefix
        self.size += _cost(prefix)
        while self._cached and (
            len(self._cached) > self._blocks_max or self.size > self._bytes_max
        ):
            self.forget(next(iter(self._cached)))

    def forget(self, key: PrefixKey) -> None:
        """Release it, if it is held."""
        prefix = self._cached.pop(key, None)
        if prefix is not None:
            self.size -= _cost(prefix)


def _cost(prefix: Prefix) -> int:
    return prefix.table.size + HEADER_COST_BYTES
