"""`python -m durablelog.bookkeeper.archiving METADATA_URI GATEWAY`: what a store does with ledgers,
once, at a gateway that runs.

Its secret is in SEGMENTSTORE_GATEWAY_TOKEN. Errors are as much of it as success: a take-over meets
them first.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.ledger_store import AddResult, LedgerError, LedgerWriter, Replication
from segmentstore.contracts.runtime import Runtime

_ENTRIES: Final = 4
_ENTRY: Final = bytes(1000)


async def use_ledgers(metadata_uri: str, gateway: str) -> None:
    """Write a ledger, read it, take it from its writer, delete it.

    Raises LedgerError, ConfigError.
    """
    store = GatewayLedgerStore(
        GatewaySettings(metadata_uri=metadata_uri, attach=gateway), Runtime()
    )
    try:
        await store.open()
        writer = await store.create(Replication(1, 1, 1), {"application": b"segmentstore"})
        for _ in range(_ENTRIES):
            await _append(writer)
        async for _ in store.read(writer.ledger_id, 0, _ENTRIES - 1):
            pass
        await store.describe(writer.ledger_id)
        await store.recover(writer.ledger_id)
        await _append(writer)  # it is fenced
        await writer.close()
        await store.list_ids()
        await store.delete(writer.ledger_id)
        try:
            await store.describe(writer.ledger_id)
        except LedgerError:
            pass  # it is missing
    finally:
        await store.close()


async def _append(writer: LedgerWriter) -> None:
    """Append an entry and wait for what became of it."""
    told = asyncio.get_running_loop().create_future()

    def note(_: Sequence[AddResult]) -> None:
        if not told.done():
            told.set_result(None)

    writer.on_results = note
    writer.append([_ENTRY])
    await told


if __name__ == "__main__":
    asyncio.run(use_ledgers(*sys.argv[1:3]))
