"""`segmentstore.connect` without ZooKeeper: awaited, or entered as an async context manager."""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, Final, Generic, TypeVar, overload

from segmentstore.client.client_connection import ClientConnection
from segmentstore.client.cluster_store import ClusterStore, cluster_store
from segmentstore.client.owner_lookup import Search
from segmentstore.client.remote_store import RemoteStore
from segmentstore.client.retry_rules import RETRY_S
from segmentstore.client.store_addresses import StoreAddress, parse_address, parse_addresses
from segmentstore.contracts.errors import InvalidArgumentError, StoreUnreachableError
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.local_socket import socket_address
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import open_or_release
from segmentstore.wire.store_commands import DescribeStore, StoreDescribed

CONNECT_S: Final = 10.0
"""Longest until the store has said which it is."""

S = TypeVar("S", RemoteStore, ClusterStore)


class ConnectingStore(Generic[S]):
    """A connection about to be made: `store = await it`, or `async with it as store`.

    Nothing happens before.
    """

    def __init__(self, open_store: Callable[[], Coroutine[Any, Any, S]]) -> None:
        self._open: Callable[[], Coroutine[Any, Any, S]] = open_store
        self._store: S | None = None

    async def _connect(self) -> S:
        return await open_or_release(self._open(), _close, "connect to a store")

    def __await__(self) -> Generator[object, None, S]:
        return self._connect().__await__()

    async def __aenter__(self) -> S:
        self._store = await self._connect()
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._store is not None:
            await self._store.close()


async def _close(store: RemoteStore | ClusterStore) -> None:
    await store.close()


async def _connected(
    location: str, address: StoreAddress | None, tls: ssl.SSLContext | None
) -> RemoteStore:
    store = await reached_store(location, address, tls)
    # At the end of the process everything is released.
    weakref.finalize(store, store.connection.drop).atexit = False
    return store


async def reached_cluster(
    location: str,
    addresses: Sequence[StoreAddress],
    tls: ssl.SSLContext | None,
    retry_s: float,
    runtime: Runtime,
    search: Search | None = None,
    store_id: str | None = None,
) -> ClusterStore:
    """The store of the hosts at these addresses, as `cluster_store` has it."""

    async def reach(address: StoreAddress) -> RemoteStore:
        return await reached_store(str(address), address, tls)

    rng = runtime.random
    return await cluster_store(location, addresses, reach, rng, retry_s, search, store_id)


async def reached_store(
    location: str, address: StoreAddress | None, tls: ssl.SSLContext | None
) -> RemoteStore:
    """The store in a folder, or at an address. The caller closes it.

    Raises StoreUnreachableError, AccessRefusedError, StoreDisconnectedError.
    """
    connection = ClientConnection(location)
    try:
        async with asyncio.timeout(CONNECT_S):
            await _reach(connection, address, tls)
            return await store_behind(connection)
    except TimeoutError:
        connection.abort()
        detail = f"there was no answer for {CONNECT_S:g} s"
        raise StoreUnreachableError(location, detail) from None
    except BaseException:
        connection.abort()
        raise


async def _reach(
    connection: ClientConnection, address: StoreAddress | None, tls: ssl.SSLContext | None
) -> None:
    loop, location = asyncio.get_running_loop(), connection.location
    try:
        if address is not None:
            await loop.create_connection(lambda: connection, *address, ssl=tls)
            return
        with socket_address(location) as place:
            await loop.create_unix_connection(lambda: connection, place)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        detail = "no process has it open, or with local_server off"
        if address is not None:
            detail = "no server listens there"
        raise StoreUnreachableError(location, detail) from error
    except OSError as error:
        raise StoreUnreachableError(location, str(error)) from error


async def store_behind(connection: ClientConnection) -> RemoteStore:
    """The store that a connection leads to, once it has a transport.

    Raises StoreUnreachableError, StoreDisconnectedError.
    """
    await connection.has_hello
    request_id = connection.next_id()
    described = await connection.ask(DescribeStore(request_id), request_id, StoreDescribed)
    connection.append_bytes_max = described.append_bytes_max
    return RemoteStore(connection, described)


@overload
def connect(
    location: os.PathLike[str], *, tls: ssl.SSLContext | None = None
) -> ConnectingStore[RemoteStore]: ...
@overload
def connect(
    location: str | os.PathLike[str],
    *,
    tls: ssl.SSLContext | None = None,
    retry_s: float | None = None,
) -> ConnectingStore[RemoteStore] | ConnectingStore[ClusterStore]: ...
def connect(
    location: str | os.PathLike[str],
    *,
    tls: ssl.SSLContext | None = None,
    retry_s: float | None = None,
) -> ConnectingStore[RemoteStore] | ConnectingStore[ClusterStore]:
    """As `segmentstore.connect`, to a folder or to addresses.

    Raises InvalidArgumentError for what is neither. When awaited or entered it raises
    StoreUnreachableError, and AccessRefusedError of a port with tokens. Costs two round trips.
    """
    if isinstance(location, str) and (addresses := parse_addresses(location)) is not None:
        seconds = checked_retry_s(retry_s)
        return ConnectingStore(
            lambda: reached_cluster(location, addresses, tls, seconds, Runtime())
        )
    if retry_s is not None:
        raise InvalidArgumentError("retry_s", retry_s, "only a cluster is asked again")
    if isinstance(location, str) and (address := parse_address(location)) is not None:
        return ConnectingStore(lambda: _connected(location, address, tls))
    if tls is not None:
        raise InvalidArgumentError("tls", location, "the socket in a folder is not encrypted")
    folder = checked_folder(location)
    return ConnectingStore(lambda: _connected(folder, None, None))


def checked_retry_s(value: object) -> float:
    """For how long calls of a cluster are asked again. Raises InvalidArgumentError."""
    if value is None:
        return RETRY_S
    if not isinstance(value, int | float) or not value >= 0:
        raise InvalidArgumentError("retry_s", value, "it is a number of seconds, 0 or more")
    return value
