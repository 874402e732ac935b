"""SharedConfirmation: one confirmation for all who ask while another one is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from segmentstore.contracts.owned_tasks import own_task


class SharedConfirmation:
    """Joins calls of `confirm`: a caller's one begins behind its own call."""

    def __init__(self, confirm: Callable[[], Awaitable[None]]) -> None:
        self._confirm = confirm
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def confirm(self) -> None:
        """Return when it has succeeded; raises what it fails with, for all who share it."""
        # One that a program has cancelled before its turn is left behind as it is.
        if self._next is None or self._next.done():
            work = self._run(self._running)
            self._next = own_task(work, name="controller-confirmation", on_failure=_known)
        await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        self._running, self._next = self._next, None
        await self._confirm()


def _known(_: BaseException) -> None:
    """Callers that wait for it get the error; there may be none left."""
