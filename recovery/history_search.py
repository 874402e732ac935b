"""The search for bytes of segments in a container's history, backward from an operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

from durablelog.operations import AppendOperation, MergeOperation
from recovery.archived_history import ArchivedHistory
from recovery.archived_parts_listing import PartRemovedError
from recovery.wanted_bytes import FoundBytes, WantedBytes
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerNotFoundError

Take = Callable[[FoundBytes], Awaitable[None]]


class HistorySearch:
    """One search; what is met is taken out of `wanted`, and given to `take`.

    The bytes are views into frames: a holder of them keeps the frame.
    """

    def __init__(self, history: ArchivedHistory, wanted: WantedBytes, take: Take) -> None:
        self._history = history
        self._wanted = wanted
        self._take = take
        self.damage: list[str] = []
        """What of the history could not be read, a sentence each."""

    async def run(self, last: int) -> None:
        """Search the operations up to `last`, until all is met or none is left.

        Raises TierUnavailableError.
        """
        try:
            async with aclosing(self._history.windows_before(last, 1)) as windows:
                async for first, end in windows:
                    try:
                        await self._search(first, end)
                    except (DataCorruptionError, LedgerNotFoundError) as error:
                        # What is damaged or missing in one part hides no other.
                        self.damage.append(f"operations {first} to {end}: {error}")
                    if not self._wanted or self._wanted.first_sequence >= first:
                        return
        except PartRemovedError as error:
            self.damage.append(str(error))  # And all before it.

    async def _search(self, first: int, last: int) -> None:
        while self._wanted and await self._pass_over(first, last):
            pass  # A merge was met: its source's appends lie before it.

    async def _pass_over(self, first: int, last: int) -> bool:
        """Whether it has to be read again."""
        followed = False
        async with aclosing(self._history.operations(first, last)) as batches:
            async for operations in batches:
                for past in operations:
                    operation = past.operation
                    if type(operation) is AppendOperation:
                        for found in self._wanted.take(operation):
                            await self._take(found)
                    elif type(operation) is MergeOperation:
                        followed |= self._wanted.follow(operation)
                if not self._wanted:
                    return False
        return followed
