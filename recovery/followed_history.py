"""FollowedHistory: the history of a container whose owner runs on, and truncates the log meanwhile.

A view of a log does not outlast that. Rules of this file:

- the log is viewed again then, together with the parts that the archive has by now: a log is
  truncated behind what is archived, so nothing is missing between them;
- operations that were given before are not given again;
- an owner that changes the log under each view ends the reading after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeAlias, TypeVar

from durablelog.log_view import LogChangedError
from durablelog.operations import Operation
from recovery.archived_history import (
    ArchivedHistory,
    OpenPart,
    PastOperation,
    PastState,
    ReadableLog,
)
from recovery.archived_parts_listing import PartListing
from recovery.moments import Moment
from recovery.recovery_processor import SnapshotLoad

FOLLOWED_S: Final = 30.0
"""A log that its owner changes under each reading is viewed again for that long."""
VIEWS_MIN: Final = 3
"""However long each takes."""
_PAUSE_S: Final = 0.1

ViewAgain: TypeAlias = Callable[[], Awaitable[tuple[PartListing, ReadableLog]]]
"""The archived parts and the log as they are by now. Raises as `ArchivedHistory.state_at`."""

_T = TypeVar("_T")


async def followed(
    call: Callable[[], Awaitable[_T]], view_again: Callable[[], Awaitable[object]] | None = None
) -> _T:
    """What the call gives, made again while an owner changes the log under it; behind `view_again`,
    unless the call itself makes the view.

    Raises LogChangedError, and what both raise.
    """
    changes = _Changes()
    while True:
        try:
            return await call()
        except LogChangedError:
            if changes.are_too_many():
                raise
        await asyncio.sleep(_PAUSE_S)
        if view_again is not None:
            await view_again()


class _Changes:
    """Of a log, during one call."""

    def __init__(self) -> None:
        self._views = 0
        self._end_s = asyncio.get_running_loop().time() + FOLLOWED_S

    def are_too_many(self) -> bool:
        """Whether this one ends the call."""
        self._views += 1
        is_over = asyncio.get_running_loop().time() >= self._end_s
        return is_over and self._views >= VIEWS_MIN


class FollowedHistory(ArchivedHistory):
    """As ArchivedHistory; of a log that is only viewed."""

    def __init__(
        self,
        container_id: int,
        parts: PartListing,
        open_part: OpenPart,
        log: ReadableLog,
        load: SnapshotLoad,
        view_again: ViewAgain,
    ) -> None:
        """As of ArchivedHistory. Views are the caller's to close, the earlier ones too: other
        readings may go on with them.
        """
        super().__init__(container_id, parts, open_part, log, load)
        self._view_again: Final = view_again

    async def state_at(self, moment: Moment) -> PastState:
        return await followed(partial(super().state_at, moment), self._view)

    async def first_state(self, sequence_number: int) -> PastState | None:
        return await followed(partial(super().first_state, sequence_number), self._view)

    async def operations(
        self, first: int, last: int
    ) -> AsyncGenerator[Sequence[PastOperation], None]:
        changes = _Changes()
        while first <= last:
            try:
                async with aclosing(super().operations(first, last)) as batches:
                    async for operations in batches:
                        first = operations[-1].operation.sequence_number + 1
                        yield operations
                return
            except LogChangedError:
                if changes.are_too_many():
                    raise
            await asyncio.sleep(_PAUSE_S)
            await self._view()

    async def _first_of_log(self) -> Operation | None:
        return await followed(super()._first_of_log, self._view)

    async def _view(self) -> None:
        self._go_on_with(*await self._view_again())
