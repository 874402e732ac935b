"""NodeHolder: the nodes that hang on one client's session, kept as wanted from session to session.

Rules of this file:

- what is wanted is said at once, and brought about one change at a time. A node that is created
  again for a new session is not created behind a release;
- a release ends only when the node is deleted or the client is closed, also when its caller does
  not wait any more. A failed step is done again, with back-off, and with the next connection.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from durablelog.bookkeeper.metadata_node import (
    NodeConflictError,
    NodeRefusedError,
    NodeUnavailableError,
)
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.owned_tasks import own_task

_log = logging.getLogger(__name__)

AGAIN_MIN_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
_NOT_DONE: Final = (NodeUnavailableError, NodeRefusedError, NodeConflictError)


class NodeHolder:
    """Of one client. `make` has a node there in the session of now, `remove` has it removed."""

    def __init__(
        self,
        make: Callable[[str, bytes], Awaitable[None]],
        remove: Callable[[str], Awaitable[None]],
        rng: random.Random,
    ) -> None:
        self._make = make
        self._remove = remove
        self._rng = rng
        self._wanted: dict[str, bytes | None] = {}
        """What each node shall hold; None of one that shall go."""
        self._turn = asyncio.Lock()
        self._sessions = 0
        """Connections so far: nodes made before the last one may be missing with their session."""
        self._renewing: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._trying_again: asyncio.Task[None] | None = None
        self._closed = False

    async def hold(self, path: str, data: bytes) -> None:
        """Have the node from now on. Raises what `make` raises; it is wanted all the same."""
        self._wanted[path] = data
        await self._bring_about(path)

    async def release(self, path: str) -> None:
        """Have it no more.

        Raises what `remove` raises, NodeUnavailableError if the client is closed meanwhile.
        """
        self._wanted[path] = None
        leaving = own_task(self._leave(path), name="release node", on_failure=_received)
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        try:
            await asyncio.shield(leaving)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if leaving.cancelled() and caller is not None and not caller.cancelling():
                raise NodeUnavailableError(path, "the session is closed") from None
            raise

    def connected(self) -> None:
        """The client has a connection, perhaps of a new session: see to all nodes again."""
        self._sessions += 1
        if self._wanted and (self._renewing is None or self._renewing.done()):
            self._renewing = own_task(self._renew(), name="hold nodes")

    async def close(self) -> None:
        """See to nothing any more; the nodes go with the session."""
        self._closed = True
        tasks = set(self._leaving)
        tasks |= {task for task in (self._renewing, self._trying_again) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _leave(self, path: str) -> None:
        try:
            await self._bring_about(path)
        except _NOT_DONE:
            if not self._closed and (self._trying_again is None or self._trying_again.done()):
                self._trying_again = own_task(self._leave_again(), name="release again")
            raise

    async def _leave_again(self) -> None:
        """Until nothing is left to release."""
        backoff = Backoff(self._rng, min_s=AGAIN_MIN_S, max_s=AGAIN_MAX_S)
        while any(data is None for data in self._wanted.values()):
            await asyncio.sleep(backoff.next_s())
            for path in [path for path, data in self._wanted.items() if data is None]:
                try:
                    await self._bring_about(path)
                except _NOT_DONE as error:
                    _log.warning("%s is not released yet: %s", path, error)

    async def _renew(self) -> None:
        seen = -1
        while seen != self._sessions:
            seen = self._sessions
            for path in list(self._wanted):
                try:
                    await self._bring_about(path)
                except _NOT_DONE as error:
                    _log.warning("%s is not as it should be: %s", path, error)
                    if isinstance(error, NodeUnavailableError):
                        break  # the next connection tries again

    async def _bring_about(self, path: str) -> None:
        async with self._turn:
            if path not in self._wanted:
                return
            data = self._wanted[path]
            if data is not None:
                await self._make(path, data)
                return
            await self._remove(path)
            if self._wanted[path] is None:
                del self._wanted[path]


def _received(_error: BaseException) -> None:
    """All waiting callers are notified, and it is tried again."""
