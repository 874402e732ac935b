"""The HTTP server of the metrics port: bounded in connections and in time, even with clients that
connect and are silent.

A connection is served by a thread of a bounded pool. At the bound the oldest that has not said what
it wants makes room; if all are being answered, the new one is refused with 503.
"""

from __future__ import annotations

import logging
import socket
from concurrent.futures import Executor
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
SILENCE_S: Final = 5.0
"""Longest that a connection may send nothing, or take nothing."""
_REFUSAL: Final = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"


class MetricsServer(WSGIServer):
    """Listens once it is made; `serve_forever` runs in a thread of its owner's. Raises OSError."""

    def __init__(
        self, host: str, port: int, executor: Executor, lock: AbstractContextManager[object]
    ) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._executor = executor
        self._lock = lock
        self._connections: dict[socket.socket, bool] = {}
        """Whether each has sent a whole request, the oldest first."""
        # Host and port, of both families.
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            there = len(self._connections)
            silent = next((one for one, asks in self._connections.items() if not asks), None)
            if there >= CONNECTIONS_MAX and silent is not None:
                # Its thread finds the end of the stream, and goes on to the next connection.
                with suppress(OSError):
                    silent.shutdown(socket.SHUT_RDWR)
                del self._connections[silent]
            admitted = there < CONNECTIONS_MAX or silent is not None
            if admitted:
                self._connections[request] = False
        if admitted:
            self._executor.submit(self._serve, request, client_address)
            return
        request.setblocking(False)  # noqa: FBT003 - it has no other form
        with suppress(OSError):
            request.send(_REFUSAL)
        self.shutdown_request(request)

    def asked(self, request: socket.socket) -> None:
        """The connection has sent its request: it is to be answered."""
        with self._lock:
            if request in self._connections:
                self._connections[request] = True

    def end_connections(self) -> None:
        """End all that there are; their threads are free soon after."""
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception as error:  # noqa: BLE001 - of one connection: the others go on
            _log.debug("a connection to the metrics port ended: %s", error)
        finally:
            with self._lock:
                self._connections.pop(request, None)
            self.shutdown_request(request)


class _Handler(WSGIRequestHandler):
    timeout: ClassVar[float | None] = SILENCE_S

    def parse_request(self) -> bool:
        whole = super().parse_request()
        if whole:
            assert isinstance(self.server, MetricsServer)
            self.server.asked(self.connection)
        return whole

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        """Nothing: a scrape is no news."""
