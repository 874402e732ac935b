"""How a connection to the gateway's data socket begins."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from durablelog.bookkeeper.gateway.gateway_protocol import HANDSHAKE_REPLY, hello
from durablelog.bookkeeper.gateway.gateway_settings import GATEWAY_CLOSED, TIMEOUT
from durablelog.bookkeeper.ledger_store import OK, LedgerError

HANDSHAKE_S: Final = 20.0


class HungUpError(LedgerError):
    """The gateway ended the handshake without a word: it is ending, or of another version, or has
    another secret.
    """

    def __init__(self) -> None:
        super().__init__(GATEWAY_CLOSED, "connect", "the gateway hung up at the handshake")


class NoSocketError(LedgerError):
    """This process has no descriptor left, which says nothing about the gateway."""

    def __init__(self, error: OSError) -> None:
        super().__init__(GATEWAY_CLOSED, "connect", f"no socket to the gateway: {error}")


class NoListenerError(LedgerError):
    """No process listens at the gateway's socket, or its file is missing: none will later."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(GATEWAY_CLOSED, "connect", f"{path}: {error}")


async def connect(path: str, hello_bytes: bytes) -> socket.socket:
    """A connection that has said hello.

    Raises LedgerError, NoSocketError and NoListenerError among them.
    """
    loop = asyncio.get_running_loop()
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise NoSocketError(error) from error
    try:
        connection.settimeout(0)
        async with asyncio.timeout(HANDSHAKE_S):
            await loop.sock_connect(connection, path)
            await loop.sock_sendall(connection, hello_bytes)
    except TimeoutError:
        connection.close()
        raise LedgerError(
            TIMEOUT, "connect", f"{path}: the gateway took nothing for {HANDSHAKE_S:.0f} s"
        ) from None
    except (FileNotFoundError, ConnectionRefusedError) as error:
        connection.close()
        raise NoListenerError(path, error) from error
    except OSError as error:
        connection.close()
        raise LedgerError(GATEWAY_CLOSED, "connect", f"{path}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def handshake(path: str, token: str) -> tuple[socket.socket, int]:
    """A connection for entries to add, and the session that is alive with it.

    Raises LedgerError, HungUpError, NoSocketError and NoListenerError among them.
    """
    connection = await connect(path, hello(b"A", token))
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            code, session = HANDSHAKE_REPLY.unpack(await _exactly(connection, HANDSHAKE_REPLY.size))
        if code != OK:
            raise LedgerError(code, "connect", "the gateway takes no session")
        return connection, session
    except TimeoutError:
        connection.close()
        raise LedgerError(
            TIMEOUT, "connect", f"the gateway said nothing for {HANDSHAKE_S:.0f} s"
        ) from None
    except ConnectionResetError as error:
        # So ends a handshake of which it did not read all.
        connection.close()
        raise HungUpError from error
    except OSError as error:
        connection.close()
        raise LedgerError(GATEWAY_CLOSED, "connect", f"{path}: {error}") from error
    except BaseException:
        connection.close()
        raise


async def _exactly(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        piece = await asyncio.get_running_loop().sock_recv(connection, count - len(got))
        if not piece:
            raise HungUpError
        got += piece
    return got
