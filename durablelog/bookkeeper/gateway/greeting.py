"""How a connection to the gateway's data socket begins."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from durablelog.bookkeeper.gateway.gateway_protocol import VERSION, WELCOME, hello
from durablelog.bookkeeper.gateway.gateway_settings import GATEWAY_CLOSED, TIMEOUT
from durablelog.bookkeeper.ledger_store import OK, LedgerError

GREETING_S: Final = 20.0
_HUNG_UP: Final = (
    f"the gateway hung up at the greeting: it does not speak version {VERSION} of the "
    "protocol, as this program does (then"
    " start it anew with this version), has another secret, or is ending"
)


async def connect(path: str, greeting: bytes) -> socket.socket:
    """A connection that has said hello. Raises LedgerError."""
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(0)
        async with asyncio.timeout(GREETING_S):
            await loop.sock_connect(connection, path)
            await loop.sock_sendall(connection, greeting)
    except TimeoutError:
        connection.close()
        raise LedgerError(
            TIMEOUT, "connect", f"{path}: the gateway took nothing for {GREETING_S:.0f} s"
        ) from None
    except OSError as error:
        connection.close()
        raise LedgerError(GATEWAY_CLOSED, "connect", f"{path}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def greet(path: str, token: str) -> tuple[socket.socket, int]:
    """A connection for entries to add, and the session that lives with it. Raises LedgerError."""
    connection = await connect(path, hello(b"A", token))
    try:
        async with asyncio.timeout(GREETING_S):
            code, session = WELCOME.unpack(await _exactly(connection, WELCOME.size))
        if code != OK:
            raise LedgerError(code, "connect", "the gateway takes no session")
        return connection, session
    except TimeoutError:
        connection.close()
        raise LedgerError(
            TIMEOUT, "connect", f"the gateway said nothing for {GREETING_S:.0f} s"
        ) from None
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
            raise LedgerError(GATEWAY_CLOSED, "connect", _HUNG_UP)
        got += piece
    return got
