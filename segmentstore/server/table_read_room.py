"""TableReadRoom: how much of tables the requests of one connection read at a time.

A reply of a table is put together in memory, and has up to READ_BYTES_MAX. Requests for thousands
of them take a few kilobytes, and all may wait for the same disk. So those wait here that might
bring more than the bound, first come, first served. Others have no part in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from segmentstore.tables.table_types import ENTRY_BYTES_MAX, PAGE_BYTES_MAX, READ_BYTES_MAX
from segmentstore.wire.commands import (
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
)

READING_BYTES_MAX: Final = 64 << 20
"""Of one connection: four of the largest replies."""
TABLE_READS: Final = frozenset({ReadTable, ReadTableEntries, ReadTableEntriesDelta, ReadTableKeys})


class TableReadRoom:
    """That of one connection."""

    def __init__(self) -> None:
        self._free = READING_BYTES_MAX
        self._door = asyncio.Lock()
        self._returned = asyncio.Event()

    @asynccontextmanager
    async def of(self, request: Any) -> AsyncIterator[None]:
        """Room for the reply to one of TABLE_READS, until it is sent."""
        size = _reply_bytes_max(request)
        async with self._door:
            while self._free < size:
                self._returned.clear()
                await self._returned.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._returned.set()


def _reply_bytes_max(request: Any) -> int:
    if isinstance(request, ReadTable):
        return min(READ_BYTES_MAX, len(request.keys) * ENTRY_BYTES_MAX)
    return PAGE_BYTES_MAX
