"""ClusterView: the map and the hosts as one process sees them, read again when they have changed
(loop).

A node is watched while a caller needs it, and read when its watch was called since. Records change
with each load that a host reports, so only a reader that asks for them has them watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from durablelog.bookkeeper.metadata_node import NodeWatch
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode, StoredMap, newest
from segmentstore.cluster.host_record import HostRecord
from segmentstore.contracts.owned_tasks import gather_outcomes


class ClusterSeen(NamedTuple):
    """A cluster, as of the last changes that were reported."""

    stored: StoredMap | None
    """None before the map is written."""
    nodes: dict[str, HostNode]
    """Of the hosts that are registered, by id."""
    records: dict[str, HostRecord]
    """By id; empty unless they were asked for. One that cannot be read is missing."""


class ClusterView:
    """One reader's view, from the first `read` to `close`; `changed` is called behind each change.

    Its calls raise NodeUnavailableError and NodeRefusedError.
    """

    def __init__(self, nodes: ClusterNodes, changed: Callable[[], object]) -> None:
        self._nodes = nodes
        self._changed = changed
        self._watches: dict[str, NodeWatch] = {}
        """By path."""
        self._stale: set[str] = set()
        self._turn = asyncio.Lock()
        self._stored: StoredMap | None = None
        self._names: list[HostNode] = []
        self._records: dict[str, HostRecord | None] = {}
        """By name of the node."""

    async def read(self, *, records: bool) -> ClusterSeen:
        """What there is; with `records` what the hosts say, too.

        Costs a read for each node that has changed since.
        """
        async with self._turn:
            await self._refresh(self._nodes.map_path, self._read_map)
            await self._refresh(self._nodes.hosts_path, self._read_names)
            hosts = newest(self._names)
            wanted = {node.name for node in hosts.values()} if records else frozenset[str]()
            self._forget_records(wanted)
            await self._refresh_records(sorted(wanted))
            found = {
                host_id: record
                for host_id, node in hosts.items()
                if (record := self._records.get(node.name)) is not None
            }
            return ClusterSeen(self._stored, hosts, found)

    def take_map(self, written: StoredMap) -> None:
        """The map is this now, by our own write: its watch is called later."""
        self._stored = written

    def reread_map(self) -> None:
        """The map is another than was read: its watch is called later."""
        self._stale.add(self._nodes.map_path)

    def close(self) -> None:
        """Watch nothing any more. Idempotent."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
        self._stale.clear()
        self._records.clear()

    async def _refresh(self, path: str, read: Callable[[], Awaitable[None]]) -> None:
        if path not in self._watches:
            self._watches[path] = self._nodes.watch(path, partial(self._note, path))
            self._stale.add(path)
        if path in self._stale:
            # Before the read: a change behind it is one more.
            self._stale.discard(path)
            try:
                await read()
            except BaseException:
                self._stale.add(path)
                raise

    async def _refresh_records(self, names: Sequence[str]) -> None:
        """All at once: a start waits for them. The session bounds the calls on their way."""
        outcomes = await gather_outcomes(
            *(
                self._refresh(self._nodes.record_path(name), partial(self._read_record, name))
                for name in names
            ),
            name="read record",
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def _note(self, path: str) -> None:
        self._stale.add(path)
        self._changed()

    async def _read_map(self) -> None:
        self._stored = await self._nodes.read_map()

    async def _read_names(self) -> None:
        self._names = await self._nodes.host_nodes()

    async def _read_record(self, name: str) -> None:
        self._records[name] = await self._nodes.read_record(name)

    def _forget_records(self, but: AbstractSet[str]) -> None:
        for name in self._records.keys() - but:
            del self._records[name]
            path = self._nodes.record_path(name)
            self._stale.discard(path)
            self._watches.pop(path).cancel()
