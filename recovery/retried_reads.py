"""RetriedReads, RetriedCalls: another object storage, whose calls are repeated a few times while it
does not answer.

For a caller that has no second attempt of its own. Of a store's past some thousand objects of its
archive may be read: one answer of 503 must not end that, nor an export of a catalog.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial

from recovery.tier2_scan import RETRY_DELAYS_S, TRIED_S, tried_again
from segmentstore.contracts.checksum import Buffer
from tier2.object_storage import (
    NO_METADATA,
    StorageUnavailableError,
    StoredObject,
    WholeObject,
)
from tier2.read_only_object_storage import ReadOnlyObjectStorage


class RetriedReads(ReadOnlyObjectStorage):
    """Reads of `storage`, as `tried_again` repeats them."""

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        return await tried_again(partial(super().get_range, name, offset, length))

    async def get_whole(self, name: str, bytes_max: int) -> WholeObject:
        return await tried_again(partial(super().get_whole, name, bytes_max))

    async def head(self, name: str) -> StoredObject | None:
        return await tried_again(partial(super().head, name))

    async def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        """A page that does not come is asked for again, from the end of the one before it."""
        loop = asyncio.get_running_loop()
        delays, end_s = iter(RETRY_DELAYS_S), loop.time() + TRIED_S
        while True:
            try:
                async for page in super().list(prefix, start_after):
                    if page:
                        start_after = page[-1].name
                        delays = iter(RETRY_DELAYS_S)
                    yield page
                    end_s = loop.time() + TRIED_S
            except StorageUnavailableError:
                delay = next(delays, None)
                if delay is None or loop.time() >= end_s:
                    raise
                await asyncio.sleep(delay)
            else:
                return


class RetriedCalls(RetriedReads):
    """As RetriedReads; objects are put and deleted as well.

    A put is repeated with its unique id: an object whose reply was lost is recognised. A deletion
    is tried once: what stays is deleted another time.
    """

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        await tried_again(partial(self._storage.put, name, parts, unique_id, metadata))

    async def delete(self, name: str) -> None:
        await self._storage.delete(name)
