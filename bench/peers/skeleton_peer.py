"""The bare skeleton: group commit into a preallocated file, and nothing else (bench/skeleton.py).

No peer, but the most that Python's loop and one writer thread can do. It has one log: segments
beside it, a restart and cold reads are not measured of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Final

from bench.floor import MIB
from bench.peers.embedded import EmbeddedPeer
from bench.peers.peer import Peer, PeerLog
from bench.skeleton import Skeleton

_FILE_BYTES: Final = 64 * MIB


class SkeletonLog:
    """Its one log. A reader gets what is committed from the moment on at which it begins."""

    def __init__(self, path: Path) -> None:
        self._readers: list[asyncio.Queue[Sequence[bytes]]] = []
        self._skeleton = Skeleton(path, _FILE_BYTES, self._committed)

    def append(self, segment: int, data: bytes) -> Awaitable[object]:
        del segment
        return self._skeleton.append(data)

    def append_batch(self, segment: int, records: Sequence[bytes]) -> Awaitable[object]:
        del segment
        return self._skeleton.append_batch(records)

    async def read(self, segment: int, *, follow: bool = False) -> AsyncIterator[bytes]:
        del segment
        assert follow, "it keeps nothing to be read again"
        queue: asyncio.Queue[Sequence[bytes]] = asyncio.Queue()
        self._readers.append(queue)
        while True:
            yield b"".join(await queue.get())

    async def flush(self) -> None:
        """There is one place alone."""

    async def delete(self) -> None:
        """The folder is removed."""

    async def close(self) -> None:
        await self._skeleton.close()

    def _committed(self, payloads: Sequence[bytes]) -> None:
        for reader in self._readers:
            reader.put_nowait(payloads)


def create() -> Peer:
    """The skeleton as a peer."""
    return EmbeddedPeer("skeleton")


async def open_log(address: str, base: str, segments: int, *, create: bool) -> PeerLog:
    """A new file in the folder `address`."""
    del base, segments, create
    return SkeletonLog(Path(address) / "skeleton")
