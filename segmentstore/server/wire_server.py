"""WireServer: where clients reach the segments of an open store: a port, and a Unix socket in the
store's folder.

An orderly stop takes no new connections, answers the appends on their way within STOP_S, and then
closes. It comes before anything else of the store is closed.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from segmentstore.container import SegmentContainer
from segmentstore.contracts import forks
from segmentstore.contracts.errors import ConfigError, NotPrimaryError, SegmentStoreError
from segmentstore.contracts.owned_tasks import gather_outcomes
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import stop_accepting
from segmentstore.server.connection import WireConnection
from segmentstore.server.outstanding import OutstandingBytes
from segmentstore.server.server_context import CONNECTIONS_MAX, STOP_S, ServerContext
from segmentstore.server.tls import CertificateFiles, TlsHandshake
from segmentstore.server.transient_segments import delete_left_over
from segmentstore.service import SegmentStore
from segmentstore.stats_types import WireStats
from segmentstore.tables.table_service import TableService

if TYPE_CHECKING:
    # It needs an extra.
    from segmentstore.server.authorization import TokenAuthorization

_BACKLOG: Final = 1024
LOCAL_CONNECTIONS_MAX: Final = 1_024
"""Of the Unix socket."""
KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
"""How the system finds out, within two minutes, that a silent client's machine is not there any
more. Its reads that wait would keep its place for ever.
"""


class WireServer:
    """The connections of one store, and where they come from. `open` makes one with a port."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._certificates: CertificateFiles | None = None
        self._authorization: TokenAuthorization | None = None
        self._handshakes: set[TlsHandshake] = set()
        self._port: asyncio.Server | None = None
        self._connections: set[WireConnection] = set()
        self._local_connections: set[WireConnection] = set()
        self._ended = asyncio.Event()
        self._is_stopping = False
        self._cleaning = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        store: SegmentStore,
        tables: TableService,
        host: str,
        port: int,
        runtime: Runtime,
        outstanding: OutstandingBytes | None = None,
        certificates: CertificateFiles | None = None,
        authorization: TokenAuthorization | None = None,
    ) -> WireServer:
        """A server that listens on a port; see `listen`."""
        server = cls(ServerContext(store, tables, runtime, outstanding))
        await server.listen(host, port, certificates, authorization)
        return server

    async def listen(
        self,
        host: str,
        port: int,
        certificates: CertificateFiles | None = None,
        authorization: TokenAuthorization | None = None,
    ) -> None:
        """Listen on `port` of `host`, 0 for a free one. Once.

        Connections are encrypted if there are `certificates`. Requests need tokens if there is an
        `authorization`.

        Raises ConfigError if it cannot listen there.
        """
        self._certificates, self._authorization = certificates, authorization
        loop = asyncio.get_running_loop()
        try:
            self._port = await loop.create_server(self.accept, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError("wire", f"cannot listen on {host}:{port}: {error}") from error
        for listener in self._port.sockets:
            for option in KEEP_ALIVE:
                # The connections that it accepts have it, too.
                listener.setsockopt(*option)
        forks.in_child(self, WireServer._leave_to_parent)

    def clean_up(self, container: SegmentContainer) -> None:
        """Have deleted what connections to another process, or to this one before a crash, left in
        a container that serves here from now on.

        Not for the Unix socket alone: clients that make such segments use a port. Spark's tasks
        make some, too, and want them after a crash of the store.
        """
        if not self._is_stopping:
            self.context.begin(self._clean_up(container), "wire clean-up")

    def _leave_to_parent(self) -> None:
        """The port is the owner's alone: a forked child that outlives it must not keep it taken."""
        if self._port is not None:
            for listener in self._port.sockets:
                forks.release_descriptor(listener.fileno())

    @property
    def port(self) -> int:
        """On which it listens."""
        assert self._port is not None
        port: int = self._port.sockets[0].getsockname()[1]
        return port

    def accept_local(self) -> asyncio.Protocol:
        """As `accept`, for the Unix socket, whose connections need no token."""
        if self._is_stopping or len(self._local_connections) >= LOCAL_CONNECTIONS_MAX:
            self.context.counts.connections_refused += 1
            return _Refused()
        return self._connection(self._local_connections, None)

    def accept(self) -> asyncio.Protocol:
        """What serves a connection that has come; it closes one for which there is no room."""
        if self._is_stopping or len(self._connections) >= CONNECTIONS_MAX:
            self.context.counts.connections_refused += 1
            return _Refused()
        connection = self._connection(self._connections, self._authorization)
        if self._certificates is None:
            return connection
        tls = self._certificates.current().context
        handshake = TlsHandshake(connection, tls, self.context, self._handshakes.discard)
        self._handshakes.add(handshake)
        return handshake

    def _connection(
        self, connections: set[WireConnection], authorization: TokenAuthorization | None
    ) -> WireConnection:
        on_end = partial(self._connection_ended, connections)
        connection = WireConnection(self.context, on_end, authorization)
        connections.add(connection)
        self.context.counts.connections += 1
        return connection

    def statistics(self) -> WireStats:
        """The numbers since it was opened."""
        counts = self.context.counts
        return {
            "connections": len(self._connections) + len(self._local_connections),
            "connections_accepted": counts.connections,
            "connections_refused": counts.connections_refused,
            "appends": counts.appends,
            "append_bytes": counts.append_bytes,
            "outstanding_bytes": self.context.outstanding.total,
            "reads_waiting": counts.reads_waiting,
            "refusals": dict(counts.refusals),
        }

    async def no_connections(self) -> None:
        """Wait until none is open."""
        while self._connections or self._local_connections:
            self._ended.clear()
            await self._ended.wait()

    async def close(self) -> None:
        """Stop in order. Idempotent."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._port is not None:
            await stop_accepting(self._port)
        for handshake in list(self._handshakes):
            handshake.abort()
        stopping = gather_outcomes(
            *(connection.stop() for connection in self._all()), name="wire stop"
        )
        try:
            async with asyncio.timeout(STOP_S):
                await stopping
        except TimeoutError:
            pass  # the clients learn what was stored when they connect again
        for connection in self._all():
            connection.abort()
        # What their ends begin, `finish` is to wait for.
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self.no_connections()
        await self.context.finish()

    def _all(self) -> list[WireConnection]:
        return [*self._connections, *self._local_connections]

    def _connection_ended(
        self, connections: set[WireConnection], connection: WireConnection
    ) -> None:
        connections.discard(connection)
        self._ended.set()

    async def _clean_up(self, container: SegmentContainer) -> None:
        # One at a time: a host may start many at once, and a pass takes turns of the loop.
        async with self._cleaning:
            if self._is_stopping:
                return
            try:
                await delete_left_over(self.context, container, lambda: self._is_stopping)
            except NotPrimaryError:
                pass  # it has left, and its next owner does the same
            except SegmentStoreError as error:
                what = f"transient segments that were left in container {container.container_id}"
                self.context.report_failure(what, error)


class _Refused(asyncio.Protocol):
    """A connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()
