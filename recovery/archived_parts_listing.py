"""PartListing: a container's archived parts in order, without holding all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from segmentstore.contracts.archived_parts import ArchivedPart

FoundPart = tuple[int, ArchivedPart]
"""A part and its index."""


class PartListing(Protocol):
    """Parts that are complete, oldest first, by index. Every call may read the archive.

    Raises DataCorruptionError, TierUnavailableError.
    """

    @property
    def kept(self) -> range:
        """The indices of the parts that there are."""

    @property
    def last_ms(self) -> int:
        """The highest time stamp of all parts that there ever were; 0: there was none."""

    async def find_sequence(self, sequence_number: int) -> FoundPart | None:
        """The oldest part whose last operation has this number or a higher one."""

    async def find_time(self, time_ms: int) -> FoundPart | None:
        """The oldest part with an operation of this time or a later one."""

    async def at(self, index: int) -> ArchivedPart:
        """The part of this index. IndexError if there is none, or no more."""


async def backward(parts: PartListing, start: int | None) -> AsyncGenerator[FoundPart, None]:
    """The part of an index and all before it, newest first; None: all."""
    kept = parts.kept
    for index in range(kept.stop - 1 if start is None else start, kept.start - 1, -1):
        yield index, await parts.at(index)
