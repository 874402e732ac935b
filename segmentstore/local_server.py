"""LocalServer: the socket on which other processes of this machine append to a store that this one
has open.

Rules of this file:

- the socket is in the store's folder, for its owner alone (mode 0600). The holder of the folder's
  lock may replace what a crash left there; no other process opens a server;
- a connection is one task, made by asyncio for it; closing ends it once what it took is answered,
  or after 5 s;
- connections are bounded, and silent ones shut out no other. A connection without a handshake in
  time ends. At the bound a new one takes the place of one without a handshake, or of the one that
  has been idle longest;
- closed before anything else of the store, so that nobody asks what is half closed.

What is said over it: docs/formats/local-server.md. How a connection is served:
segmentstore/local_connection.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Final

from segmentstore.contracts import forks
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.local_protocol import Code, LocalProtocolError
from segmentstore.contracts.local_socket import SOCKET_NAME, socket_address
from segmentstore.contracts.waiting import stop_accepting
from segmentstore.local_connection import READ_BYTES, LocalConnection
from segmentstore.service import SegmentStore

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 256
IDLE_S: Final = 10.0
"""A connection that has asked for nothing so long may have to make room."""
_BACKLOG: Final = 64


class LocalServer:
    """An open socket and its connections. Made by `open`."""

    def __init__(self, store: SegmentStore, location: str, store_id: str) -> None:
        self._store = store
        self._store_id = store_id
        self.path = Path(location).absolute() / SOCKET_NAME
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], LocalConnection] = {}
        self._evicted: set[asyncio.Task[None]] = set()
        """No connection any more, but not ended yet."""
        self._closing = False

    @classmethod
    async def open(cls, store: SegmentStore, location: str, store_id: str) -> LocalServer:
        """Listen; the caller has the folder's lock.

        Raises ConfigError if the folder cannot hold a socket.
        """
        server = cls(store, location, store_id)
        try:
            listener = _listener(location, server.path)
        except OSError as error:
            raise ConfigError("local_server", f"{server.path} cannot be made: {error}") from error
        try:
            server._server = await asyncio.start_unix_server(
                server._connected, sock=listener, limit=READ_BYTES
            )
        except BaseException:
            listener.close()
            raise
        return server

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections)

    async def close(self) -> None:
        """Take no more requests, let those that were taken be answered, remove the socket."""
        self._closing = True
        if self._server is not None:
            await stop_accepting(self._server)
        tasks = [*self._connections, *self._evicted]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = LocalConnection(self._store, self._store_id, reader, writer)
        if self._closing or not self._has_room():
            connection.refuse(
                0, LocalProtocolError(Code.BUSY, f"{CONNECTIONS_MAX} connections are open already")
            )
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        try:
            await connection.serve()
        except asyncio.CancelledError:
            if task not in self._evicted and not self._closing:
                raise
        except Exception:  # noqa: BLE001 - of one connection: the others and the store go on
            _log.exception("a connection to %s ended", self.path)
        finally:
            self._connections.pop(task, None)
            self._evicted.discard(task)

    def _has_room(self) -> bool:
        """Whether there is room for one more; made, where a connection does nothing."""
        if len(self._connections) < CONNECTIONS_MAX:
            return True
        since = asyncio.get_running_loop().time() - IDLE_S
        idle = [
            (one.has_handshake, one.active_at, task)
            for task, one in self._connections.items()
            if not one.has_handshake or (one.idle and one.active_at <= since)
        ]
        if not idle or len(self._evicted) >= CONNECTIONS_MAX:
            return False
        _, _, task = min(idle, key=lambda entry: entry[:2])
        self._evicted.add(task)
        connection = self._connections.pop(task)
        detail = f"there are {CONNECTIONS_MAX} connections, and this one has been idle longest"
        connection.refuse(0, LocalProtocolError(Code.BUSY, detail))
        task.cancel()
        return True


def _listener(location: str, path: Path) -> socket.socket:
    """A listening socket in the folder, in place of whatever was there. Raises OSError."""
    # We hold the store's lock: nobody can be listening on what is there.
    path.unlink(missing_ok=True)
    with forks.no_fork():
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # What connects is to find an owner, or nobody: not a forked child that never answers.
        forks.in_child(listener, socket.socket.close)
    try:
        with socket_address(location) as address:
            listener.bind(address)
        # Nobody can connect before it listens.
        path.chmod(0o600)
        listener.listen(_BACKLOG)
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener
