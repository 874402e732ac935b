"""TLS of the ports: the certificate in use, and the handshake of a connection to the wire server.

The files of the certificate are checked at each new connection, and read again when they have
changed. What cannot be used is logged, and the certificate before it stays in use.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.owned_tasks import gather_owned
from segmentstore.contracts.runtime import Runtime
from segmentstore.server.server_context import HELLO_S, STOP_S, ServerContext

_log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class Certificate(NamedTuple):
    """A key and its chain of certificates in PEM, and what the wire server makes of them."""

    key: bytes
    chain: bytes
    context: ssl.SSLContext


class CertificateFiles:
    """The certificate that two files hold. For any thread."""

    def __init__(self, certificate_file: str, key_file: str, runtime: Runtime) -> None:
        """Read them. Raises ConfigError if they hold no certificate with its key."""
        self._chain = Path(certificate_file)
        self._key = Path(key_file)
        self._lock = runtime.lock()
        try:
            self._stamp = self._stamp_now()
            self._certificate = self._read()
        except (OSError, ValueError) as error:
            raise ConfigError("tls_certificate_file", _reason(error)) from error
        self._failed: _Stamp | None = None
        """Of files that could not be used, and were logged."""

    def current(self) -> Certificate:
        """The certificate for a new connection."""
        with self._lock:
            self._read_if_changed()
            return self._certificate

    def key_pair(self) -> tuple[bytes, bytes]:
        """Its key and chain, as gRPC has them."""
        return self.current()[:2]

    def _read_if_changed(self) -> None:
        stamp: _Stamp = ()
        try:
            stamp = self._stamp_now()
            if stamp == self._stamp:
                return
            certificate = self._read()
        except (OSError, ValueError) as error:
            if stamp != self._failed:
                self._failed = stamp
                _log.error("the TLS certificate is not replaced: %s", _reason(error))
            return
        self._stamp, self._certificate, self._failed = stamp, certificate, None

    def _read(self) -> Certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        # Without a password here OpenSSL would ask for one at the terminal.
        context.load_cert_chain(self._chain, self._key, password="")
        return Certificate(self._key.read_bytes(), self._chain.read_bytes(), context)

    def _stamp_now(self) -> _Stamp:
        found = (path.stat() for path in (self._chain, self._key))
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)


class TlsHandshake(asyncio.Protocol):
    """A connection until it is encrypted: then `connection` gets its calls.

    If the handshake fails, `connection` gets `connection_lost` alone.
    """

    def __init__(
        self,
        connection: asyncio.Protocol,
        tls: ssl.SSLContext,
        context: ServerContext,
        on_end: Callable[[TlsHandshake], None],
    ) -> None:
        """`on_end` is called once the handshake is done or has failed."""
        self._connection = connection
        self._tls = tls
        self._context = context
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._encrypted: list[bytes] = []
        """What came before the handshake had begun: uvloop reads on after `pause_reading`."""
        self._early: list[bytes] = []
        """What came behind the handshake, before the connection had its transport."""
        self._is_lost = False
        self._is_done = False
        self._shaking: asyncio.Task[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()
        self._context.begin(self._shake_hands(), "wire TLS handshake")

    def data_received(self, data: bytes) -> None:
        """Keep what comes too early."""
        assert self._transport is not None
        has_begun = self._transport.get_protocol() is not self
        (self._early if has_begun else self._encrypted).append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Between the handshake and the first call of the connection, or scheduled then."""
        self._is_lost = True
        if self._is_done:
            self._connection.connection_lost(exc)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        if self._shaking is not None:
            # uvloop does not end a handshake with its transport.
            self._shaking.cancel()

    async def _shake_hands(self) -> None:
        transport = self._transport
        assert transport is not None
        self._shaking = asyncio.current_task()
        encrypted: asyncio.Transport | None = None
        reason = "the client closed it"
        try:
            if not transport.is_closing():
                shaking = asyncio.get_running_loop().start_tls(
                    transport,
                    self,
                    self._tls,
                    server_side=True,
                    ssl_handshake_timeout=HELLO_S,
                    ssl_shutdown_timeout=STOP_S,
                )
                steps = gather_owned(shaking, self._pass_on(transport), name="wire TLS handshake")
                encrypted, _ = await steps
        except OSError as error:
            reason = _reason(error)
        except asyncio.CancelledError:
            reason = "it was ended here"
        self._on_end(self)
        if encrypted is None or self._is_lost:
            peer = str(transport.get_extra_info("peername"))
            self._context.report_end(peer, f"TLS handshake failed: {reason}")
            self._connection.connection_lost(None)
            return
        self._is_done = True
        encrypted.set_protocol(self._connection)
        self._connection.connection_made(encrypted)
        for data in self._early:
            self._connection.data_received(data)

    async def _pass_on(self, transport: asyncio.Transport) -> None:
        """Give the handshake what came before it."""
        if not self._encrypted or transport.get_protocol() is self:
            return
        # `start_tls` has had its first step, and scheduled two calls: the handshake gets its
        # transport, which reads on. This comes behind them, and before anything is read.
        await asyncio.sleep(0)
        shaking = cast("asyncio.BufferedProtocol", transport.get_protocol())
        for data in self._encrypted:
            rest = memoryview(data)
            while rest:
                buffer = memoryview(shaking.get_buffer(len(rest)))
                count = min(len(buffer), len(rest))
                buffer[:count] = rest[:count]
                shaking.buffer_updated(count)
                rest = rest[count:]


def _reason(error: Exception) -> str:
    """Short, and the same for each failure of a kind."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error) or type(error).__name__
