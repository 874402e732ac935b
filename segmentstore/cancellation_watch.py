"""The one task of an open store that the program's event loop lists: cancelled, it closes the
store.

Code that cancels all tasks of a loop wants everything on it to end, be it a program's own shutdown
or `asyncio.run` whose main coroutine has returned. The engine's own tasks are not among them
(contracts/owned_tasks.py), so nothing is cut off in the middle. This task takes the request for all
of them. The store closes as by `close()`, and later calls fail with the reason. Code that waits for
the cancelled tasks, as `asyncio.run` does, waits for the end of the close.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from segmentstore.container import SegmentContainer
from segmentstore.contracts.errors import TasksCancelledError

_log = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0
"""Longest that a cancelled watch holds up the end of a loop: a log that does not answer may keep a
close from ending.
"""


class CancellationWatch:
    """Watches on behalf of a store, whose `containers` may change.

    `begin_close` gives the task that closes it.
    """

    def __init__(
        self,
        location: str,
        containers: Callable[[], Iterable[SegmentContainer]],
        begin_close: Callable[[], asyncio.Task[None]],
    ) -> None:
        self._location = location
        self._containers = containers
        self._begin_close = begin_close
        self._over = False
        self._closing: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Listed on purpose, and kept by its owner: a loop alone would release it.
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"segmentstore {location}"
        )

    def end(self, closing: asyncio.Task[None]) -> None:
        """The task that closes the store has ended, and so does this."""
        if not closing.cancelled():
            # After a cancellation there may be no caller left to be notified of an error.
            closing.exception()
        self._end()

    def _end(self) -> None:
        self._over = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        patience: asyncio.TimerHandle | None = None
        while not self._over:
            self._waiter = loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                # A second cancellation wants the same.
                if patience is None and not self._over:
                    patience = loop.call_later(TIMEOUT_S, self._give_up)
                    self._cancelled()
        if patience is not None:
            patience.cancel()

    def _cancelled(self) -> None:
        _log.warning("%s: its task was cancelled from outside: the store closes", self._location)
        cause = TasksCancelledError()
        for container in self._containers():
            container.announce_stop(cause)
        self._closing = self._begin_close()

    def _give_up(self) -> None:
        _log.error("%s: the store has not closed in %g s", self._location, TIMEOUT_S)
        self._end()
