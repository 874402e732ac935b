"""Reading a range of entries: one connection each, so that the socket itself holds the gateway
back, and leaving is closing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Final

from durablelog.bookkeeper.gateway.gateway_protocol import RANGE, RECORD, hello
from durablelog.bookkeeper.gateway.gateway_settings import GATEWAY_CLOSED, TIMEOUT
from durablelog.bookkeeper.gateway.handshake import connect
from durablelog.bookkeeper.ledger_store import OK, LedgerError

ANSWER_S: Final = 45.0
"""Between two pieces; the gateway gives up before."""

_BUFFER_BYTES_FIRST: Final = 256 << 10
_BUFFER_BYTES_MAX: Final = 4 << 20
_UNEXPECTED: Final = -999


async def read_entries(
    path: str, token: str, session: int, ledger_id: int, first: int, last: int
) -> AsyncIterator[Sequence[memoryview]]:
    """Entries in order, those that came with one check of the socket at a time.

    The memory stays the caller's.
    """
    hello_bytes = hello(b"R", token) + RANGE.pack(session, ledger_id, first, last)
    connection = await connect(path, hello_bytes)
    expected = first
    try:
        async for records in _records(connection):
            entries = []
            for code, number, payload in records:
                if code != OK:
                    raise LedgerError(
                        code, "read", f"ledger {ledger_id}, entries {first} to {last}"
                    )
                if number == -1:
                    # The end is said only after all that was asked for, or by a code.
                    if expected <= last:
                        raise LedgerError(
                            _UNEXPECTED, "read", f"ledger {ledger_id} ended before entry {expected}"
                        )
                    break
                if number != expected:
                    raise LedgerError(
                        _UNEXPECTED, "read", f"ledger {ledger_id}: entry {number} for {expected}"
                    )
                expected += 1
                entries.append(payload)
            if entries:
                yield entries
            if expected > last:
                return
        raise LedgerError(
            GATEWAY_CLOSED, "read", f"the gateway ended in the middle of ledger {ledger_id}"
        )
    finally:
        connection.close()


async def _records(connection: socket.socket) -> AsyncIterator[list[tuple[int, int, memoryview]]]:
    """Whole records (code, entry, payload), as many as came; ends with the connection."""
    loop = asyncio.get_running_loop()
    size = _BUFFER_BYTES_FIRST
    view = memoryview(bytearray(size))
    start = used = 0
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                got = await loop.sock_recv_into(connection, view[used:])
        except TimeoutError:
            raise LedgerError(TIMEOUT, "read", f"no answer for {ANSWER_S:.0f} s") from None
        except OSError as error:
            raise LedgerError(GATEWAY_CLOSED, "read", str(error)) from error
        if not got:
            return
        used += got
        records = []
        wanted = RECORD.size
        while used - start >= RECORD.size:
            code, length, number = RECORD.unpack_from(view, start)
            wanted = RECORD.size + length
            if used - start < wanted:
                break
            records.append((code, number, view[start + RECORD.size : start + wanted]))
            start += wanted
            wanted = RECORD.size
        if records:
            yield records
        if len(view) - start < wanted or used == len(view):
            # What was handed out lives on in the old memory; the new begins with what is cut.
            size = max(min(2 * size, _BUFFER_BYTES_MAX), 2 * wanted)
            fresh = memoryview(bytearray(size))
            fresh[: used - start] = view[start:used]
            view, start, used = fresh, 0, used - start
