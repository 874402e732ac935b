"""This store, embedded: `segmentstore.open` with its defaults, the log in files, Tier 2 a folder.

Its flush to Tier 2 runs meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

from bench.engine import Store, open_store
from bench.peers.embedded import EmbeddedPeer
from bench.peers.peer import Peer, PeerLog

_AT_ONCE: Final = 1000


class EngineLog:
    """Segments of a store of its own."""

    def __init__(
        self, opened: AbstractAsyncContextManager[Store], store: Store, names: list[str]
    ) -> None:
        self._opened = opened
        self._store = store
        self._names = names

    def append(self, segment: int, data: bytes) -> Awaitable[object]:
        return self._store.append(self._names[segment], data)

    def append_batch(self, segment: int, records: Sequence[bytes]) -> Awaitable[object]:
        return self._store.append_batch(self._names[segment], records)

    async def read(self, segment: int, *, follow: bool = False) -> AsyncIterator[bytes]:
        async for data in self._store.reader(self._names[segment], offset=0, follow=follow):
            yield data

    async def flush(self) -> None:
        await self._store.flush()

    async def delete(self) -> None:
        """The folder is removed."""

    async def close(self) -> None:
        await self._opened.__aexit__(None, None, None)


def create() -> Peer:
    """The engine as a peer among others."""
    return EmbeddedPeer("engine")


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """The store in the folder `address`."""
    opened = open_store(Path(address) / "store")
    store = await opened.__aenter__()
    names = [f"bench/{base}-{number}" for number in range(segments)]
    if create:
        for start in range(0, segments, _AT_ONCE):
            chunk = names[start : start + _AT_ONCE]
            await asyncio.gather(*(store.create_segment(name) for name in chunk))
    return EngineLog(opened, store, names)
