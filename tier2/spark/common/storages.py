"""Object storages of drivers and tasks: each is opened in its task and closed by it. What has a
thread or a socket is never sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from segmentstore.contracts.runtime import Runtime
from tier2.locations import open_object_storage
from tier2.object_storage import ObjectStorage
from tier2.retried_reads import RetriedCalls

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
    """As `open_retried`, with a runtime of its own."""
    return open_retried(url, Runtime())


def open_retried(url: str, runtime: Runtime) -> ObjectStorage:
    """The object storage at `url`, whose calls are repeated for some seconds while it does not
    answer; the caller closes it, in the same event loop.

    A folder is asked once, which has no server that is asked to do too much.
    """
    storage = open_object_storage(url, runtime)
    return storage if storage.is_local else RetriedCalls(storage)
