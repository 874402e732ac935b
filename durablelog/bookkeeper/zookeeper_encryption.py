"""TLS of the store's own session with ZooKeeper, by the settings that ZooKeeper's client in the
gateway has.

Those are Java properties (`zookeeper.ssl...`). What they name must be PEM files here: Python reads
no other key stores. Rules of this file:

- an untrusted server is not spoken to, as with Java: names are checked unless the settings say
  otherwise;
- why a handshake failed is kept by server: kazoo tries again, and its callers learn that no server
  answers.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from kazoo.handlers.threading import SequentialThreadingHandler

from durablelog.bookkeeper.client_settings import SECURE
from segmentstore.contracts.errors import ConfigError

_TRUST: Final = "zookeeper.ssl.trustStore.location"
_IDENTITY: Final = "zookeeper.ssl.keyStore.location"
_NAMES: Final = "zookeeper.ssl.hostnameVerification"
_ENDED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)

Failed = Callable[[str, ssl.SSLError], None]
"""Receives a server (`host:port`) and what it or we refused about the other, on kazoo's thread."""


class Encryption(NamedTuple):
    """What the properties say."""

    trust: str | None
    """A PEM file of certificates; None: those the system trusts."""
    identity: str | None
    """A PEM file with our key and its certificate."""
    password: str | None
    """Of that key."""
    password_file: str | None
    check_names: bool


def encryption_of(system: Mapping[str, str]) -> Encryption | None:
    """By a gateway's system properties; None if they do not ask for TLS.

    ConfigError names the one that cannot be followed.
    """
    if system.get(SECURE, "").lower() != "true":
        return None
    return Encryption(
        trust=_pem(system, _TRUST),
        identity=_pem(system, _IDENTITY),
        password=system.get("zookeeper.ssl.keyStore.password"),
        password_file=system.get("zookeeper.ssl.keyStore.passwordPath"),
        check_names=system.get(_NAMES, "true").lower() != "false",
    )


def _pem(system: Mapping[str, str], name: str) -> str | None:
    path = system.get(name)
    if not path:
        return None
    kind = system.get(name.replace(".location", ".type")) or path.rpartition(".")[2]
    if kind.upper() != "PEM":
        detail = (
            f"client_settings: {name}: {path} is not of type PEM, which the store's own "
            "session with ZooKeeper needs"
        )
        raise ConfigError("tier1", detail)
    return path


def encryption_context(encryption: Encryption) -> ssl.SSLContext:
    """Reads the files; blocks. ConfigError names the property whose file does not do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = encryption.check_names
    context.sslsocket_class = _WatchedSocket
    try:
        if encryption.trust is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(encryption.trust)
    except (OSError, ValueError) as error:
        raise _unreadable(_TRUST, encryption.trust, error) from error
    if encryption.identity is not None:
        try:
            context.load_cert_chain(encryption.identity, password=lambda: _password(encryption))
        except (OSError, ValueError) as error:
            raise _unreadable(_IDENTITY, encryption.identity, error) from error
    return context


def _password(encryption: Encryption) -> str:
    if encryption.password_file is not None:
        return Path(encryption.password_file).read_text(encoding="utf-8").partition("\n")[0]
    return encryption.password or ""


def _unreadable(name: str, path: str | None, error: Exception) -> ConfigError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError("tier1", f"client_settings: {name}: {path} cannot be used: {why}")


def _words(error: ssl.SSLError) -> str:
    """For people, with the properties to check."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"{error.verify_message}: this client does not trust the server: see {_TRUST}, {_NAMES}"
        )
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, _ENDED):
        return f"{reason}: does the server speak TLS there?"
    return f"{reason}: see {_IDENTITY}, {SECURE}"


class Handshakes:
    """How the last handshake with each server failed, since there was a connection."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._failures: dict[str, ssl.SSLError] = {}
        self._reached = False

    def failed(self, server: str, error: ssl.SSLError) -> bool:
        """Note it. Whether the settings are to blame: no server was ever reached, and all refuse.

        Once there was a connection they were right, and a certificate that expired is renewed. That
        a connection ended says nothing about them.
        """
        self._failures[server] = error
        refusals = [each for each in self._failures.values() if not isinstance(each, _ENDED)]
        return not self._reached and len(refusals) >= self._servers

    def connected(self) -> None:
        """There is a connection."""
        self._reached = True
        self._failures.clear()

    def text(self) -> str:
        """Behind a sentence, for people; empty if none failed."""
        return "".join(f"; {server}: {_words(error)}" for server, error in self._failures.items())


class _WatchedSocket(ssl.SSLSocket):
    """By TLS 1.3 a server refuses a certificate after the handshake."""

    failed: Callable[[ssl.SSLError], None] | None = None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self.failed is not None:
                self.failed(error)
            raise


class EncryptedHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads and sockets, the sockets of one context."""

    def __init__(self, context: ssl.SSLContext, failed: Failed) -> None:
        super().__init__()
        self._context = context
        self._failed = failed

    def create_connection(
        self, address: tuple[str, int], timeout: float, hostname: str, **_arguments: object
    ) -> ssl.SSLSocket:
        """Whatever kazoo has to say about TLS is in our context."""
        peer = f"{hostname}:{address[1]}"
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            encrypted = self._context.wrap_socket(plain, server_hostname=hostname)
            assert isinstance(encrypted, _WatchedSocket)
            encrypted.failed = partial(self._failed, peer)
        except ssl.SSLError as error:
            plain.close()
            self._failed(peer, error)
            raise
        except BaseException:
            plain.close()
            raise
        return encrypted

    def select(
        self, readers: list[Any], writers: list[Any], *more: Any
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """What TLS has deciphered already is not to be seen at the socket."""
        ready = [
            reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()
        ]
        if ready:
            return ready, [], []
        selected: tuple[list[Any], list[Any], list[Any]] = super().select(readers, writers, *more)
        return selected
