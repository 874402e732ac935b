"""PartListing: a container's archived parts in order, without holding all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from recovery.moments import MomentNotKeptError
from segmentstore.contracts.archived_parts import ArchivedPart

FoundPart = tuple[int, ArchivedPart]
"""A part and its index."""


class PartRemovedError(MomentNotKeptError):
    """The archive's owner has removed a part since the listing was made.

    The caller's move: begin behind it; what it had is not kept any more.
    """


class PartListing(Protocol):
    """Parts that are complete, oldest first, by index, as of one time. Every call may read the
    archive.

    Raises PartRemovedError, DataCorruptionError, TierUnavailableError.
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

    async def first_now(self) -> int:
        """The index of the oldest part that its owner has not removed by now.

        A part is removed in the log before its objects are deleted: what is missing and lies before
        this index is no damage.
        """


async def backward(parts: PartListing, start: int | None) -> AsyncGenerator[FoundPart, None]:
    """The part of an index and all before it, newest first; None: all."""
    kept = parts.kept
    for index in range(kept.stop - 1 if start is None else start, kept.start - 1, -1):
        yield index, await parts.at(index)
