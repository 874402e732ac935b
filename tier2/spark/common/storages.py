"""Object storages of tasks: each is opened in its task and closed by it. What has a thread or a
socket is never sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from segmentstore.contracts.runtime import Runtime
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage

_T = TypeVar("_T")


def with_storage(url: str, work: Callable[[ObjectStorage], Awaitable[_T]]) -> _T:
    """What `work` gives, with the object storage at `url` open meanwhile; in an event loop of its
    own.
    """

    async def run() -> _T:
        storage = await opened(url)
        try:
            return await work(storage)
        finally:
            await storage.close()

    return asyncio.run(run())


async def opened(url: str) -> ObjectStorage:
    """The object storage at `url`, open; the caller closes it, in the same event loop."""
    return open_object_storage(url, Runtime())
