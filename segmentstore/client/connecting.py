"""`segmentstore.connect`: awaited, or entered as an async context manager."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import weakref
from collections.abc import Generator
from types import TracebackType
from typing import Final

from segmentstore.client.client_connection import ClientConnection
from segmentstore.client.remote_store import RemoteStore
from segmentstore.contracts.errors import InvalidArgumentError, StoreUnreachableError
from segmentstore.contracts.folders import checked_folder
from segmentstore.contracts.local_socket import socket_address
from segmentstore.contracts.waiting import open_or_release
from segmentstore.wire.store_commands import DescribeStore, StoreDescribed

CONNECT_S: Final = 10.0
"""Longest until the store has said which it is."""
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^/:\[\]]+)):(?P<port>\d{1,5})"
)


class ConnectingStore:
    """A connection about to be made: `store = await it`, or `async with it as store`.

    Nothing happens before.
    """

    def __init__(
        self, location: str, address: tuple[str, int] | None, tls: ssl.SSLContext | None
    ) -> None:
        """`address`: None if the location is a folder."""
        self._location = location
        self._address = address
        self._tls = tls
        self._store: RemoteStore | None = None

    async def _connect(self) -> RemoteStore:
        return await open_or_release(self._open(), RemoteStore.close, "connect to a store")

    async def _open(self) -> RemoteStore:
        connection = ClientConnection(self._location)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._reach(connection)
                store = await store_behind(connection)
        except TimeoutError:
            connection.abort()
            detail = f"there was no answer for {CONNECT_S:g} s"
            raise StoreUnreachableError(self._location, detail) from None
        except BaseException:
            connection.abort()
            raise
        # At the end of the process everything is released.
        weakref.finalize(store, connection.drop).atexit = False
        return store

    async def _reach(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._address is not None:
                await loop.create_connection(lambda: connection, *self._address, ssl=self._tls)
                return
            with socket_address(self._location) as address:
                await loop.create_unix_connection(lambda: connection, address)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            detail = "no process has it open, or with local_server off"
            if self._address is not None:
                detail = "nobody listens there"
            raise StoreUnreachableError(self._location, detail) from error
        except OSError as error:
            raise StoreUnreachableError(self._location, str(error)) from error

    def __await__(self) -> Generator[object, None, RemoteStore]:
        return self._connect().__await__()

    async def __aenter__(self) -> RemoteStore:
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


async def store_behind(connection: ClientConnection) -> RemoteStore:
    """The store that a connection leads to, once it has a transport.

    Raises StoreUnreachableError, StoreDisconnectedError.
    """
    await connection.has_hello
    request_id = connection.next_id()
    described = await connection.ask(DescribeStore(request_id), request_id, StoreDescribed)
    connection.append_bytes_max = described.append_bytes_max
    return RemoteStore(connection, described)


def connect(
    location: str | os.PathLike[str], *, tls: ssl.SSLContext | None = None
) -> ConnectingStore:
    """Connect to a store that another process has open (or this one).

    `location` is the store's folder, on this machine, or "host:port" of its wire server
    (`wire_port`). A folder whose name looks like an address is written `./name:1`. `tls` encrypts a
    connection to a port. The result has the API of an open store (`segmentstore.store_api`).

    Raises InvalidArgumentError for what is neither. When awaited or entered it raises
    StoreUnreachableError, and AccessRefusedError of a port with tokens. Costs two round trips.
    """
    address = None
    if isinstance(location, str) and (match := _ADDRESS.fullmatch(location)) is not None:
        port = int(match["port"])
        if not 1 <= port <= 65_535:
            raise InvalidArgumentError("location", location, "a port is from 1 to 65535")
        return ConnectingStore(location, (match["ipv6"] or match["host"], port), tls)
    if tls is not None:
        raise InvalidArgumentError("tls", location, "the socket in a folder is not encrypted")
    return ConnectingStore(checked_folder(location), address, None)
