"""LocalEndpoint: the Unix socket in the folder of an open store, and the server behind it.

Most stores are never asked anything. So the server is loaded when the first connection comes: that
costs some 60 ms, in a thread. Until it is there, connections are not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import outlast, stop_accepting
from segmentstore.server.local_listener import local_listener, socket_path
from segmentstore.service import SegmentStore
from segmentstore.store_parts import StoreParts

if TYPE_CHECKING:
    # It is loaded late.
    from segmentstore.server.wire_server import WireServer
    from segmentstore.stats_types import WireStats

_log = logging.getLogger(__name__)

_NO_STATS: WireStats = {
    "connections": 0,
    "connections_accepted": 0,
    "connections_refused": 0,
    "appends": 0,
    "append_bytes": 0,
    "outstanding_bytes": 0,
    "reads_waiting": 0,
    "refusals": {},
}


async def open_local_endpoint(
    store: SegmentStore, parts: StoreParts, runtime: Runtime, server: WireServer | None
) -> None:
    """Listen on the socket; what closes it is pushed on `parts.undo`. `server`: if there is one.

    The caller has the folder's lock. Where the folder cannot hold a socket, the store's health says
    so.
    """
    endpoint = LocalEndpoint(store, parts, runtime, server)
    try:
        await endpoint.listen()
    except NotImplementedError:
        return  # an event loop with virtual time has no sockets
    except OSError as error:
        # Some file systems have none. What the store is for goes on without one.
        path = socket_path(parts.location)
        sentence = f"other processes cannot reach the store: no socket {path}: {error}"
        _log.warning("%s", sentence)
        parts.findings = (*parts.findings, sentence)
        return
    parts.undo.push(endpoint.close)
    parts.wire_stats = endpoint.statistics


class LocalEndpoint:
    """A listening socket."""

    def __init__(
        self, store: SegmentStore, parts: StoreParts, runtime: Runtime, server: WireServer | None
    ) -> None:
        self._store = store
        self._parts = parts
        self._runtime = runtime
        self._server = server
        self._listener: asyncio.Server | None = None
        self._early: list[_EarlyConnection] = []
        """Connections that came before the server was loaded."""
        self._loading: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Raises OSError; NotImplementedError of an event loop without sockets."""
        location = self._parts.location
        listener = local_listener(location)
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_unix_server(self._accept, sock=listener)
        except BaseException:
            listener.close()
            socket_path(location).unlink(missing_ok=True)
            raise

    def statistics(self) -> WireStats:
        """Those of the server."""
        return _NO_STATS if self._server is None else self._server.statistics()

    async def close(self) -> None:
        """Take no more connections. The server is closed apart, behind this if it was loaded."""
        if self._listener is not None:
            await stop_accepting(self._listener)
        socket_path(self._parts.location).unlink(missing_ok=True)
        if self._loading is not None:
            await outlast(self._loading)
        self._take_early(_EarlyConnection.abort)

    def _accept(self) -> asyncio.Protocol:
        if self._server is not None:
            return self._server.accept_local()
        early = _EarlyConnection()
        self._early.append(early)
        if self._loading is None:
            self._loading = own_task(self._load(), name="load wire server")
        return early

    async def _load(self) -> None:
        executor = self._runtime.executor("wire-server", 1)
        try:
            loop = asyncio.get_running_loop()
            make_server = await loop.run_in_executor(executor, _make_server)
            server = make_server(self._store, self._parts, self._runtime)
        except Exception:  # noqa: BLE001 - of these connections: the store goes on
            _log.exception("the server for other processes cannot be loaded")
            self._loading = None
            self._take_early(_EarlyConnection.abort)
            return
        finally:
            executor.shutdown(wait=False)
        self._server = server
        self._take_early(lambda early: early.hand_over(server.accept_local()))

    def _take_early(self, take: Callable[[_EarlyConnection], None]) -> None:
        connections, self._early = self._early, []
        for connection in connections:
            take(connection)


class _EarlyConnection(asyncio.Protocol):
    """A connection that waits for the server."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._next: asyncio.Protocol | None = None
        self._received = bytearray()
        """Of event loops that deliver what was there when they were asked to pause."""
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._next is not None:
            self.hand_over(self._next)
        else:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_lost = True

    def hand_over(self, connection: asyncio.Protocol) -> None:
        """Have the server go on with it."""
        if self._is_lost:
            connection.connection_lost(None)
        elif self._transport is None:
            self._next = connection
        else:
            self._transport.set_protocol(connection)
            connection.connection_made(self._transport)
            if self._received:
                connection.data_received(bytes(self._received))
            with suppress(RuntimeError):
                self._transport.resume_reading()

    def abort(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()


def _make_server() -> Callable[[SegmentStore, StoreParts, Runtime], WireServer]:
    from segmentstore.network_ports import make_server  # noqa: PLC0415 - in a thread, and late

    return make_server
