"""RetriedReads, RetriedCalls: another object storage, whose calls are repeated a few times while it
does not answer.

For a caller that has no second attempt of its own. Of a store's past some thousand objects of its
archive may be read: one answer of 503 must not end that, nor an export of a catalog. Nor must it
end a job of Spark: its driver is not run again, and a stream that is planned by it runs for months.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from segmentstore.contracts.checksum import Buffer
from tier2.object_storage import (
    NO_METADATA,
    StorageUnavailableError,
    StoredObject,
    WholeObject,
)
from tier2.read_only_object_storage import ReadOnlyObjectStorage

RETRY_DELAYS_S: Final = (0.1, 0.5, 2.0, 8.0)
"""A server that is asked to do too much says 503 for seconds. A restore cannot be continued."""
TRIED_S: Final = 75.0
"""Nothing is asked again after so long. Some libraries try for a minute by themselves; S3 gives a
silent server up after one.
"""

_T = TypeVar("_T")


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


async def tried_again(call: Callable[[], Awaitable[_T]]) -> _T:
    """What the call gives, made again a few times while the storage does not answer.

    Raises StorageUnavailableError.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + TRIED_S
    for delay in RETRY_DELAYS_S:
        try:
            return await call()
        except StorageUnavailableError:
            if loop.time() >= end:
                raise
            await asyncio.sleep(delay)
    return await call()
