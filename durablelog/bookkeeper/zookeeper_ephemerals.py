"""ZookeeperEphemerals: nodes that go with a client's session (ephemeral nodes), by kazoo.

Rules of this file:

- what is asked for twice is there once: a node is read before it is created, for its session and
  its data say what is to be done. A create that finds it there would be a change to ZooKeeper, too;
- a create is one request. What is given up sends nothing later, and a read behind it in the same
  session sees its outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from durablelog.bookkeeper.metadata_node import NodeConflictError, NodeUnavailableError

_TRIES: Final = 4

Request = Callable[[KazooClient], Any]


class ZookeeperEphemerals:
    """Of one client.

    `ask` sends a request; `ask_again` requests that change nothing, in order. Both raise the node
    errors, and kazoo's own where they say something about the node. `create` has a lasting node
    there, with its parents; `remove` deletes one in whatever version. `session` is the id of the
    session of now; None without a connection.
    """

    def __init__(
        self,
        ask: Callable[[str, Request], Awaitable[Any]],
        ask_again: Callable[[str, Request, Request], Awaitable[Any]],
        create: Callable[[str, bytes], Awaitable[int]],
        remove: Callable[[str], Awaitable[None]],
        session: Callable[[], int | None],
    ) -> None:
        self._ask = ask
        self._ask_again = ask_again
        self._create = create
        self._remove = remove
        self._session = session

    async def hold(self, path: str, data: bytes) -> None:
        """See to it that a node of ours is there, hangs on the session of now and has this data."""
        for _ in range(_TRIES):
            try:
                if await self._hold_once(path, data):
                    return
            except (NoNodeError, NodeExistsError, BadVersionError):
                continue
        raise NodeUnavailableError(path, f"it could not be held in {_TRIES} tries")

    async def enter(self, path: str, prefix: str, data: bytes) -> None:
        """As `enter` of ElectionCalls."""
        for _ in range(_TRIES):
            try:
                await self._ask(
                    path,
                    lambda client: client.create_async(
                        f"{path}/{prefix}", data, ephemeral=True, sequence=True
                    ),
                )
            except NoNodeError:
                try:
                    await self._create(path, b"")
                except NodeConflictError:
                    pass  # another candidate was first
            else:
                return
        raise NodeUnavailableError(path, f"it is missing after {_TRIES} tries")

    async def _hold_once(self, path: str, data: bytes) -> bool:
        try:
            found, stat = await self._ask_again(
                path, lambda client: client.sync_async(path), lambda client: client.get_async(path)
            )
        except NoNodeError:
            await self._ask(
                path,
                lambda client: client.create_async(path, data, ephemeral=True, makepath=True),
            )
            return True
        session = self._session()
        if session is None:
            return False  # whose it is shows with the next connection
        if stat.ephemeralOwner != session:
            # Of a session of ours before this one, which ends some time soon.
            await self._remove(path)
            return False
        if bytes(found) != data:
            await self._ask(path, lambda client: client.set_async(path, data, stat.version))
        return True
