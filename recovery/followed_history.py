"""FollowedHistory: the history of a container whose owner runs on, and truncates the log meanwhile.

A view of a log does not outlast that. Rules of this file:

- the log is viewed again then, together with the parts that the archive has by now: a log is
  truncated behind what is archived, so nothing is missing between them;
- operations that were given before are not given again;
- an owner that changes the log under each view ends the reading after a while without an operation;
- a view that is replaced is closed when its last reading has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar

from durablelog.durable_data_log import LogFrame
from durablelog.log_view import LogChangedError
from durablelog.operations import Operation
from recovery.archived_history import (
    ArchivedHistory,
    OpenPart,
    PastOperation,
    PastState,
    ReadableLog,
    Start,
)
from recovery.archived_parts_listing import PartListing
from recovery.moments import Moment
from recovery.recovery_processor import SnapshotLoad

FOLLOWED_S: Final = 30.0
"""A log that its owner changes under each reading is viewed again for that long."""
VIEWS_MIN: Final = 3
"""However long each takes."""
_PAUSE_S: Final = 0.1


class ViewedLog(ReadableLog, Protocol):
    """A view of a log."""

    async def close(self) -> None:
        """Release it. Idempotent."""


ViewAgain: TypeAlias = Callable[[], Awaitable[tuple[PartListing, ViewedLog]]]
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
        except LogChangedError as error:
            changes.note(error)
        await asyncio.sleep(_PAUSE_S)
        if view_again is not None:
            await view_again()


class _Changes:
    """Of a log, during one call."""

    def __init__(self) -> None:
        self._views = 0
        self._end_s = asyncio.get_running_loop().time() + FOLLOWED_S

    def note(self, error: LogChangedError) -> None:
        """Raise it if it ends the call: there were enough, here or in a call below this one."""
        self._views += 1
        is_over = asyncio.get_running_loop().time() >= self._end_s
        if error.is_final or (is_over and self._views >= VIEWS_MIN):
            error.is_final = True
            raise error


class _View:
    """One of the log, and how many read it."""

    def __init__(self, log: ViewedLog) -> None:
        self.log: Final = log
        self.readings = 0


class FollowedHistory(ArchivedHistory):
    """As ArchivedHistory; of a log that is only viewed. `close` it."""

    def __init__(
        self,
        container_id: int,
        parts: PartListing,
        open_part: OpenPart,
        log: ViewedLog,
        load: SnapshotLoad,
        view_again: ViewAgain,
    ) -> None:
        """As of ArchivedHistory. Views are the history's, this one too: an earlier one is closed
        when its last reading ends.
        """
        super().__init__(container_id, parts, open_part, log, load)
        self._view_again: Final = view_again
        self._view = _View(log)

    async def state_at(self, moment: Moment) -> PastState:
        return await followed(partial(super().state_at, moment), self._replace_view)

    async def first_state(self, sequence_number: int) -> PastState | None:
        return await followed(partial(super().first_state, sequence_number), self._replace_view)

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
                        # However long the reader has taken for them, and however busy the log is.
                        changes = _Changes()
                return
            except LogChangedError as error:
                changes.note(error)
            await asyncio.sleep(_PAUSE_S)
            await self._replace_view()

    async def close(self) -> None:
        """Release the view. No reading may be under way. Idempotent."""
        await self._view.log.close()

    async def _first_of_log(self) -> Operation | None:
        return await followed(super()._first_of_log, self._replace_view)

    async def _frames(self, start: Start) -> AsyncGenerator[Sequence[LogFrame], None]:
        view = self._view
        view.readings += 1
        try:
            async with aclosing(super()._frames(start)) as batches:
                async for frames in batches:
                    yield frames
        finally:
            view.readings -= 1
            await self._close_if_done(view)

    async def _replace_view(self) -> None:
        parts, log = await self._view_again()
        before, self._view = self._view, _View(log)
        self._go_on_with(parts, log)
        await self._close_if_done(before)

    async def _close_if_done(self, view: _View) -> None:
        if view is not self._view and not view.readings:
            await view.log.close()
