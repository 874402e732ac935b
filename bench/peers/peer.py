"""What a workload asks of a peer: in the process of the suite (`Peer`), and in the process that
presses on it (`PeerLog`).
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, cast

from bench.workspace import BenchError

MODULES: Final = MappingProxyType(
    {
        "engine": "bench.peers.engine_peer",
        "skeleton": "bench.peers.skeleton_peer",
        "sqlite": "bench.peers.sqlite_peer",
        "lmdb": "bench.peers.lmdb_peer",
        "rocksdb": "bench.peers.rocksdb_peer",
        "redis": "bench.peers.redis_peer",
        "nats": "bench.peers.nats_peer",
        "kafka": "bench.peers.kafka_peer",
        "pravega": "bench.peers.pravega_peer",
    }
)
"""Peer to module, in the order of the table.

A module of a peer has `create() -> Peer` and the coroutine function `open_log(address, base,
segments, create=...) -> PeerLog`.
"""
UNLIMITED: Final = 1 << 40
ENGINE: Final = "engine"
"""The peer that the others are compared with."""


class PeerLog(Protocol):
    """Some logs of a peer, open in this process; `segment` is the number of one, from 0."""

    def append(self, segment: int, data: bytes) -> Awaitable[object]:
        """Enqueue a record when called; it is durable when the awaitable is done."""

    def append_batch(self, segment: int, records: Sequence[bytes]) -> Awaitable[object]:
        """The same of records that are sent together."""

    def read(self, segment: int, *, follow: bool = False) -> AsyncIterator[bytes]:
        """The bytes of the records from the first one on, in order, in parts of any length.

        Ends at the tail, or with `follow` never.
        """

    async def flush(self) -> None:
        """Where a reader finds cold bytes, they are now. Nothing where there is one place alone."""

    async def delete(self) -> None:
        """Delete these logs, so that a server does not keep them for the rest of the run."""

    async def close(self) -> None:
        """Release what this process has of it; all appends must have been awaited."""


class Peer(Protocol):
    """One peer, in the process of the suite. A server runs from `start` to `stop`."""

    name: str
    segments_max: int
    """So many logs of it can be created in reasonable time."""
    in_flight_max: int
    """More records than this that are not acknowledged would only wait, for seconds."""
    embedded: bool
    """It runs in the process that presses on it, and a fresh folder is a fresh store."""

    def install(self) -> None:
        """Fetch what it is made of, if it is not there; minutes the first time.

        Raises BenchError, which names what to install.
        """

    def start(self, folder: Path) -> None:
        """Start it with its data in `folder`. Raises BenchError if it does not come up."""

    def address(self, folder: Path) -> str:
        """What `open_log` takes; `folder` is where an embedded peer keeps its data."""

    def processes(self) -> list[int]:
        """Of the server, all that work for it included."""

    def kill(self) -> None:
        """SIGKILL, of the server; an embedded one is killed with its process."""

    def restart(self, *, kill: bool = False) -> None:
        """End it, if it runs, and start it at the same address, with the same data."""

    def data_files(self, folder: Path) -> list[Path]:
        """Its files, for the kernel to drop their pages."""

    def stop(self) -> None:
        """End it."""


class _PeerModule(Protocol):
    def create(self) -> Peer:
        """The peer, not started."""

    async def open_log(self, address: str, base: str, segments: int, *, create: bool) -> PeerLog:
        """Logs of that peer, by name of their `base`."""


def _module(name: str) -> _PeerModule:
    return cast("_PeerModule", importlib.import_module(MODULES[name]))


def create(name: str) -> Peer:
    """A peer by its name. Raises BenchError for an unknown one."""
    if name not in MODULES:
        raise BenchError(f"no such peer: {name}; there are {', '.join(MODULES)}")
    return _module(name).create()


async def open_log(
    peer: str, address: str, base: str, *, segments: int = 1, create: bool = True
) -> PeerLog:
    """`segments` logs at `address`, which are created or, without `create`, have been."""
    return await _module(peer).open_log(address, base, segments, create=create)
