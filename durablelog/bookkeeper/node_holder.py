"""NodeHolder: the nodes that hang on one client's session, kept as wanted from session to session.

Rules of this file:

- what is wanted is said at once, and brought about one change at a time. A node that is made again
  for a new session is not made behind the back of whoever lets go of it;
- letting go ends only when the node is gone or the client is closed, also when its caller does not
  wait any more: what fails is done again with the next connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from durablelog.bookkeeper.metadata_node import (
    NodeConflictError,
    NodeRefusedError,
    NodeUnavailableError,
)
from segmentstore.contracts.owned_tasks import own_task

_log = logging.getLogger(__name__)


class NodeHolder:
    """Of one client. `make` has a node there in the session of now, `remove` has it gone."""

    def __init__(
        self,
        make: Callable[[str, bytes], Awaitable[None]],
        remove: Callable[[str], Awaitable[None]],
    ) -> None:
        self._make = make
        self._remove = remove
        self._wanted: dict[str, bytes | None] = {}
        """What each node shall hold; None of one that shall go."""
        self._turn = asyncio.Lock()
        self._sessions = 0
        """Connections so far: nodes made before the last one may be gone with their session."""
        self._renewing: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def hold(self, path: str, data: bytes) -> None:
        """Have the node from now on. Raises what `make` raises; it is wanted all the same."""
        self._wanted[path] = data
        await self._bring_about(path)

    async def let_go(self, path: str) -> None:
        """Have it no more.

        Raises what `remove` raises, NodeUnavailableError if the client is closed meanwhile.
        """
        self._wanted[path] = None
        leaving = own_task(self._bring_about(path), name="let go of node", on_failure=_heard)
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
        tasks = set(self._leaving)
        if self._renewing is not None:
            tasks.add(self._renewing)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _renew(self) -> None:
        seen = -1
        while seen != self._sessions:
            seen = self._sessions
            for path in list(self._wanted):
                try:
                    await self._bring_about(path)
                except (NodeUnavailableError, NodeRefusedError, NodeConflictError) as error:
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


def _heard(_error: BaseException) -> None:
    """Whoever waits is told, and the next connection tries again."""
