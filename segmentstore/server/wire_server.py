"""WireServer: the port on which clients reach the segments of an open store.

An orderly stop takes no new connections, answers the appends on their way within STOP_S, and then
closes. It comes before anything else of the store is closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from segmentstore.contracts.errors import ConfigError, SegmentStoreError
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

_BACKLOG = 1024


class WireServer:
    """A listening port and its connections. Made by `open`."""

    def __init__(
        self, context: ServerContext, certificates: CertificateFiles | None = None
    ) -> None:
        self.context = context
        self._certificates = certificates
        self._handshakes: set[TlsHandshake] = set()
        self._server: asyncio.Server | None = None
        self._connections: set[WireConnection] = set()
        self._ended = asyncio.Event()
        self._is_stopping = False

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
        """Listen on `port` of `host`, 0 for a free one, and delete what a crash left.

        Connections are encrypted if there are `certificates`. Requests need tokens if there is an
        `authorization`.

        Raises ConfigError if it cannot listen there.
        """
        context = ServerContext(store, tables, runtime, outstanding, authorization)
        server = cls(context, certificates)
        loop = asyncio.get_running_loop()
        try:
            server._server = await loop.create_server(server.accept, host, port, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError("wire", f"cannot listen on {host}:{port}: {error}") from error
        context.begin(server._clean_up(), "wire clean-up")
        return server

    @property
    def port(self) -> int:
        """On which it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def accept(self) -> asyncio.Protocol:
        """What serves a connection that has come; it closes one for which there is no room."""
        if self._is_stopping or len(self._connections) >= CONNECTIONS_MAX:
            self.context.counts.connections_refused += 1
            return _Refused()
        connection = WireConnection(self.context, self._connection_ended)
        self._connections.add(connection)
        self.context.counts.connections += 1
        if self._certificates is None:
            return connection
        tls = self._certificates.current().context
        handshake = TlsHandshake(connection, tls, self.context, self._handshakes.discard)
        self._handshakes.add(handshake)
        return handshake

    def statistics(self) -> WireStats:
        """The numbers since it was opened."""
        counts = self.context.counts
        return {
            "connections": len(self._connections),
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
        while self._connections:
            self._ended.clear()
            await self._ended.wait()

    async def close(self) -> None:
        """Stop in order. Idempotent."""
        if self._is_stopping:
            return
        self._is_stopping = True
        assert self._server is not None
        await stop_accepting(self._server)
        for handshake in list(self._handshakes):
            handshake.abort()
        stopping = gather_outcomes(
            *(connection.stop() for connection in self._connections), name="wire stop"
        )
        try:
            async with asyncio.timeout(STOP_S):
                await stopping
        except TimeoutError:
            pass  # the clients learn what was stored when they connect again
        for connection in list(self._connections):
            connection.abort()
        await self.context.finish()

    def _connection_ended(self, connection: WireConnection) -> None:
        self._connections.discard(connection)
        self._ended.set()

    async def _clean_up(self) -> None:
        try:
            await delete_left_over(self.context)
        except SegmentStoreError as error:
            self.context.report_failure("transient segments that a crash left", error)


class _Refused(asyncio.Protocol):
    """A connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        transport.close()
