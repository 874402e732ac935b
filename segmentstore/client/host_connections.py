"""HostConnections: one connection to each host of a cluster, made when it is needed.

Rules of this file:

- a connection that has ended is replaced when the host is needed again, and not before;
- a host that sends nothing while something waits for it is probed, and given up SILENT_S after its
  last byte. A stopped process, or a network that drops everything, closes no connection;
- all hosts are of one store. The address of one that has ended may be another store's by now, with
  the same containers and names: such a connection is closed before anything is sent.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from segmentstore.client.remote_store import RemoteStore
from segmentstore.client.store_addresses import StoreAddress
from segmentstore.contracts import forks
from segmentstore.contracts.errors import StoreClosedError, StoreUnreachableError
from segmentstore.contracts.owned_tasks import gather_outcomes, own_task
from segmentstore.contracts.waiting import outlast

SILENT_S: Final = 20.0
_CHECKS: Final = 4
"""Of each connection within SILENT_S."""

Reach = Callable[[StoreAddress], Awaitable[RemoteStore]]
"""Connects to a host. Raises StoreUnreachableError, AccessRefusedError, StoreDisconnectedError."""


class _Connected:
    """A host, and how long it has been silent."""

    __slots__ = ("chunks", "silent", "store")

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self.chunks = 0
        self.silent = 0
        """Checks in a row without anything from it."""


class HostConnections:
    """Of one client. Used on the event loop that made it, but for `drop`."""

    def __init__(self, location: str, reach: Reach, store_id: str | None = None) -> None:
        """`store_id` is that of the store; None: of the host that is connected first."""
        self.location: Final = location
        self._store_id = store_id
        self._reach = reach
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        self._connected: dict[StoreAddress, _Connected] = {}
        self._connecting: dict[StoreAddress, asyncio.Task[RemoteStore]] = {}
        self._given_up: set[StoreAddress] = set()
        self._checking: asyncio.TimerHandle | None = None
        self._closed = False

    def connected(self, address: StoreAddress) -> RemoteStore | None:
        """The host, if there is a connection that has not ended."""
        there = self._connected.get(address)
        return None if there is None or there.store.connection.has_ended else there.store

    def is_given_up(self, address: StoreAddress) -> bool:
        """Whether the host was silent for too long, and has not answered since. It may take a
        connection all the same, and never say which store it is.
        """
        return address in self._given_up

    async def store(self, address: StoreAddress) -> RemoteStore:
        """The host, connected. Raises what `Reach` raises, StoreClosedError."""
        if self._closed:
            raise StoreClosedError
        if (store := self.connected(address)) is not None:
            return store
        task = self._connecting.get(address)
        if task is None:
            task = own_task(self._connect(address), name=f"connect to {address}")
            self._connecting[address] = task
            task.add_done_callback(partial(self._forget, address))
        return await asyncio.shield(task)

    async def _connect(self, address: StoreAddress) -> RemoteStore:
        store = await self._reach(address)
        if self._closed:
            store.abort()
            raise StoreClosedError
        if self._store_id not in (None, store.store_id):
            store.abort()
            detail = f"it is another store, {store.store_id}, and not {self._store_id}"
            raise StoreUnreachableError(str(address), detail)
        self._store_id = store.store_id
        self._connected[address] = _Connected(store)
        self._given_up.discard(address)
        self._check_later()
        return store

    def _forget(self, address: StoreAddress, task: asyncio.Task[RemoteStore]) -> None:
        del self._connecting[address]
        if not task.cancelled():
            task.exception()  # of those who wait for it, if there are any

    # --- silence ----------------------------------------------------------------------------------

    def _check_later(self) -> None:
        if self._checking is None:
            self._checking = self._loop.call_later(SILENT_S / _CHECKS, self._check)

    def _check(self) -> None:
        self._checking = None
        for address, there in list(self._connected.items()):
            connection = there.store.connection
            if connection.has_ended:
                del self._connected[address]
            elif not connection.is_waiting or there.chunks != connection.chunks_received:
                there.chunks, there.silent = connection.chunks_received, 0
            else:
                there.silent += 1
                if there.silent == _CHECKS:
                    self._given_up.add(address)
                    connection.give_up(f"the host has sent nothing for {SILENT_S:g} s")
                elif there.silent == _CHECKS // 2:
                    there.store.probe()
        if self._connected:
            self._check_later()

    # --- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close all, when what was sent is answered. Idempotent."""
        self._stop()
        for task in list(self._connecting.values()):
            task.cancel()
            await outlast(task)
        closes = [each.store.close() for each in self._connected.values()]
        await gather_outcomes(*closes, name="close connection")

    def abort(self) -> None:
        """Close all at once. Idempotent."""
        self._stop()
        for task in self._connecting.values():
            task.cancel()
        for each in self._connected.values():
            each.store.abort()

    def _stop(self) -> None:
        self._closed = True
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None

    def drop(self, close: Callable[[], object] | None = None) -> None:
        """The program has the store no more and did not close it: warn, and close all on its loop,
        or by `close`. From any thread.
        """
        if self._closed or not self._birth.here:
            return
        try:
            text = f"connections to {self.location} were dropped without close(): closed now"
            warnings.warn(text, ResourceWarning, stacklevel=2)
        finally:
            with suppress(RuntimeError):  # its loop is closed, and with it the connections
                (close or partial(self._loop.call_soon_threadsafe, self.abort))()
