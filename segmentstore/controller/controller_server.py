"""ControllerServer: the Controller's gRPC service on a port.

Nothing escapes: an exception would cost a caller 90 s of retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

from segmentstore.contracts.errors import ConfigError
from segmentstore.controller import (
    group_methods,
    scope_methods,
    segment_methods,
    stream_methods,
    transaction_methods,
)
from segmentstore.controller.controller_calls import STOP_S, CallAnswers, CallEnd
from segmentstore.controller.method_types import ControllerMethod

SERVICE: Final = "io.pravega.controller.stream.api.grpc.v1.ControllerService"
METHODS: Final[tuple[ControllerMethod, ...]] = (
    *scope_methods.METHODS,
    *stream_methods.METHODS,
    *segment_methods.METHODS,
    *transaction_methods.METHODS,
    *group_methods.METHODS,
)
_REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024


class ControllerServer:
    """A listener. `start` it once, `stop` it before what answers its calls."""

    def __init__(
        self,
        answers: CallAnswers,
        host: str,
        port: int,
        key_pair: Callable[[], tuple[bytes, bytes]] | None = None,
    ) -> None:
        """`key_pair` gives the key and the certificates for a new connection, in PEM; None: no TLS.

        It is called on threads of gRPC. Port 0: any free one.
        """
        self._answers = answers
        self._host = host
        self.port = port
        """Where it listens, once it is started."""
        self._key_pair = key_pair
        self._server: Any = None

    async def start(self) -> None:
        """Listen. Raises ConfigError if the port cannot be had."""
        options = [
            ("grpc.max_receive_message_length", _REQUEST_BYTES_MAX),
            # Two processes with one port would take each other's calls.
            ("grpc.so_reuseport", 0),
        ]
        server = grpc.aio.server(options=options)
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(self._handler(method))
            for method in METHODS
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        host = f"[{self._host}]" if ":" in self._host else self._host
        address = f"{host}:{self.port}"
        try:
            if self._key_pair is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, _credentials(self._key_pair))
            await server.start()
        except RuntimeError as error:
            raise ConfigError("controller", f"{address} cannot be listened on: {error}") from error
        self.port, self._server = port, server

    async def stop(self) -> None:
        """Take no more calls, and wait up to `STOP_S` for those on their way. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(STOP_S)

    def _handler(self, method: ControllerMethod) -> Callable[[bytes, Any], Any]:
        async def handle(data: bytes, context: Any) -> bytes:
            try:
                return await self._answers.answer(method, data, context.invocation_metadata() or ())
            except CallEnd as end:
                await context.abort(end.code, end.words)
                raise

        return handle


def _credentials(key_pair: Callable[[], tuple[bytes, bytes]]) -> Any:
    """Credentials of gRPC that ask for the key pair at each new connection."""
    known = key_pair()

    def changed() -> Any:
        nonlocal known
        pair = key_pair()
        if pair == known:
            return None
        known = pair
        return grpc.ssl_server_certificate_configuration([pair])

    return grpc.dynamic_ssl_server_credentials(
        grpc.ssl_server_certificate_configuration([known]), changed
    )
