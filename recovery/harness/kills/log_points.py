"""Log points: where in opening, rolling and truncating a log on BookKeeper a child can be asked to
end itself, by a SIGKILL.

A point is a call to the cluster, named by its purpose, and a moment of death. The process dies
before the call, or when it has been carried out (its answer is never seen). Rules of this file:

- what a call is for is seen from the outside: from which call it is, what is written, and whether
  the log is open yet;
- calls and answers pass unchanged.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.ledger_store import (
    LedgerDescription,
    LedgerStore,
    LedgerWriter,
    Replication,
)
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record
from durablelog.bookkeeper.metadata_node import MetadataNodes, NodeContent, NodeWatch
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.service import SegmentStore
from segmentstore.store_adapters import DefaultAdapters

T = TypeVar("T")

POINTS: Final = (
    "open.claim",
    "open.recover",
    "open.create",
    "open.list",
    "roll.create",
    "roll.list",
    "truncate.record",
    "truncate.recover",
    "truncate.delete",
)
"""A new epoch, the fencing of a ledger, the first ledger of an opening and its entry in the record.
The next ledgers and theirs. The record of a truncation, the fencing and the deletion of what it
removes.
"""
MOMENTS: Final = ("before", "after")


class Deaths:
    """What one opening is doing, and when it dies: at `point`, as "roll.list before 2": the second
    time it gets there.
    """

    def __init__(self, point: str) -> None:
        self._name, self._moment, nth = point.split()
        if self._name not in POINTS or self._moment not in MOMENTS:
            raise ValueError(f"{point!r} is no point of a log")
        self._left = int(nth)
        self._record = LogMetadata(store_id="", container_id=0)
        self.opened = False
        """The record lists a ledger of this opening."""

    async def at(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, or die of it."""
        self._left -= name == self._name
        hit = name == self._name and not self._left
        if hit and self._moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await call()
        if hit:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def purpose(self, path: str, data: bytes) -> str:
        """What a writing is for."""
        if "/containers/" not in path:
            return ""
        before, self._record = self._record, decode_record(data, path)
        if before.epoch != self._record.epoch:
            return "open.claim"
        if self._record.closed:
            return "close.record"
        if not self.opened:
            return "open.list"
        return (
            "truncate.record"
            if (before.truncation_address, before.retained)
            != (self._record.truncation_address, self._record.retained)
            else "roll.list"
        )

    def removes(self, ledger_id: int) -> bool:
        """Whether a ledger is being removed."""
        return any(each.ledger_id == ledger_id for each in self._record.removing)


async def open_to_die(location: str, settings: Mapping[str, Any], point: str) -> SegmentStore:
    """Open a store on BookKeeper with one container, that dies at a point.

    Raises as `segmentstore.open` does, ValueError.
    """
    return SegmentStore(
        await open_store(location, settings, os.environ, Runtime(), _Adapters(Deaths(point)))
    )


class _Adapters(DefaultAdapters):
    def __init__(self, deaths: Deaths) -> None:
        super().__init__()
        self._deaths = deaths

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        ledgers, nodes = await super().bookkeeper(location, environment, runtime)
        return BookKeeperClients(_Ledgers(ledgers, self._deaths), _Nodes(nodes, self._deaths))


class _Ledgers(LedgerStore):
    def __init__(self, inner: LedgerStore, deaths: Deaths) -> None:
        self._inner = inner
        self._deaths = deaths

    async def create(self, replication: Replication, custom: Mapping[str, bytes]) -> LedgerWriter:
        name = "roll.create" if self._deaths.opened else "open.create"
        return await self._deaths.at(name, lambda: self._inner.create(replication, custom))

    async def recover(self, ledger_id: int) -> LedgerDescription:
        name = (
            "truncate.recover"
            if self._deaths.removes(ledger_id)
            else ""
            if self._deaths.opened
            else "open.recover"
        )
        return await self._deaths.at(name, lambda: self._inner.recover(ledger_id))

    async def describe(self, ledger_id: int) -> LedgerDescription:
        return await self._inner.describe(ledger_id)

    async def confirmed(self, ledger_id: int) -> int:
        return await self._inner.confirmed(ledger_id)

    def read(self, ledger_id: int, first: int, last: int) -> AsyncIterator[Sequence[memoryview]]:
        return self._inner.read(ledger_id, first, last)

    async def delete(self, ledger_id: int) -> None:
        await self._deaths.at("truncate.delete", lambda: self._inner.delete(ledger_id))

    async def list_ids(self) -> Sequence[int]:
        return await self._inner.list_ids()

    async def close(self) -> None:
        await self._inner.close()

    def health(self) -> str | None:
        return self._inner.health()


class _Nodes(MetadataNodes):
    def __init__(self, inner: MetadataNodes, deaths: Deaths) -> None:
        self._inner = inner
        self._deaths = deaths

    async def read(self, path: str) -> NodeContent | None:
        return await self._inner.read(path)

    async def create(self, path: str, data: bytes, *, parents: bool = True) -> int:
        name = self._deaths.purpose(path, data)
        return await self._deaths.at(name, lambda: self._inner.create(path, data, parents=parents))

    async def write(self, path: str, data: bytes, version: int) -> int:
        name = self._deaths.purpose(path, data)
        after = await self._deaths.at(name, lambda: self._inner.write(path, data, version))
        self._deaths.opened |= name == "open.list"
        return after

    async def delete(self, path: str, version: int) -> None:
        await self._inner.delete(path, version)

    async def children(self, path: str) -> Sequence[str]:
        return await self._inner.children(path)

    async def hold(self, path: str, data: bytes) -> None:
        await self._inner.hold(path, data)

    async def release(self, path: str) -> None:
        await self._inner.release(path)

    def watch(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        return self._inner.watch(path, changed)

    async def lead(
        self, path: str, identity: str, ended: Callable[[], object] | None = None
    ) -> None:
        await self._inner.lead(path, identity, ended)

    def leads(self, path: str) -> bool:
        return self._inner.leads(path)

    async def resign(self, path: str) -> None:
        await self._inner.resign(path)

    async def address(self) -> str:
        return await self._inner.address()

    async def close(self) -> None:
        await self._inner.close()

    def health(self) -> str | None:
        return self._inner.health()
