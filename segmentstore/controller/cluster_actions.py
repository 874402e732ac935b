"""ClusterActions: what the Controller of a cluster does to segments, which move between hosts.

An action that meets a move is repeated at the next owner: each may be. One that waits for a host
which the map has replaced is given up, for a stopped process closes no connection. One that meets
the end of a host takes longer than REPEATED_S, and fails. Its change is then finished by a later
call, or by itself (`Deadlines`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol, TypeVar

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.controller.host_map import SegmentHosts
from segmentstore.controller.remote_actions import RemoteActions
from segmentstore.controller.routed_actions import RoutedActions
from segmentstore.controller.segment_actions import HostUnavailableError, SegmentActions
from segmentstore.published_hosts import PublishedAddress

T = TypeVar("T")


class MovingHosts(SegmentHosts, Protocol):
    """Hosts that come and go."""

    async def wire_addresses(self) -> Collection[PublishedAddress]:
        """Of those that are registered now."""


REPEATED_S: Final = 10.0
"""From its first failure on. Clients wait meanwhile, and repeat the call behind it."""
CHECK_S: Final = 1.0
"""How often it is checked whether a segment is still where an action on it waits."""
_AGAIN_S_MIN: Final = 0.05
_AGAIN_S_MAX: Final = 1.0
_MOVED: Final = (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    HostUnavailableError,
    NotPrimaryError,
)


class ClusterActions(RoutedActions):
    """Of one Controller; `close` it at its end."""

    def __init__(
        self,
        here: SegmentActions,
        is_here: Callable[[str], bool],
        hosts: MovingHosts,
        connect: Callable[[PublishedAddress], RemoteActions],
        rng: random.Random,
    ) -> None:
        """`is_here` says whether this process serves a segment now, `hosts` who else does."""
        self._here = here
        self._is_here = is_here
        self._hosts = hosts
        self._connect = connect
        self._rng = rng
        self._remote: dict[PublishedAddress, RemoteActions] = {}

    async def close(self) -> None:
        """Close the connections, which fails what waits for an answer. Idempotent."""
        while self._remote:
            await self._remote.popitem()[1].close()

    async def _act(self, name: str, act: Callable[[SegmentActions], Awaitable[T]]) -> T:
        backoff = Backoff(self._rng, min_s=_AGAIN_S_MIN, max_s=_AGAIN_S_MAX)
        end_s: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            try:
                there = await self._of(name)
                if there is self._here:
                    return await act(there)
                return await self._while_there(name, there, act)
            except _MOVED:
                end_s = end_s or loop.time() + REPEATED_S
                if loop.time() >= end_s:
                    raise
            await asyncio.sleep(backoff.next_s())

    async def _while_there(
        self, name: str, there: SegmentActions, act: Callable[[SegmentActions], Awaitable[T]]
    ) -> T:
        async def run() -> T:
            return await act(there)

        acting = own_task(run(), name="controller-action")
        try:
            while not (await asyncio.wait((acting,), timeout=CHECK_S))[0]:
                if await self._is_elsewhere(name, there):
                    host = f"the former host of {name}"
                    raise HostUnavailableError(host, "another one serves it by now")
            return acting.result()
        finally:
            acting.cancel()

    async def _is_elsewhere(self, name: str, there: SegmentActions) -> bool:
        """Whether another host is known to serve the segment; none may be, for a moment."""
        try:
            return await self._of(name) is not there
        except HostUnavailableError:
            return False

    async def _of(self, name: str) -> SegmentActions:
        if self._is_here(name):
            return self._here
        address = await self._hosts.address_of(name)
        if address not in self._remote:
            await self._close_left(await self._hosts.wire_addresses())
        if address not in self._remote:
            self._remote[address] = self._connect(address)
        return self._remote[address]

    async def _close_left(self, present: Collection[PublishedAddress]) -> None:
        """Close connections to hosts that are not there any more. What waits for one is repeated at
        the next owner.
        """
        # All at once: beside the first close another call may come here.
        left = [self._remote.pop(address) for address in self._remote.keys() - present]
        for actions in left:
            await actions.close()
