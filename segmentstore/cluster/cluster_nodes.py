"""ClusterNodes: what the hosts of one store share in ZooKeeper: records, the assignment map, the
election of a leader.

Formats: docs/formats/cluster-nodes.md. Rules of this file:

- a host's record goes with its session, under a name that belongs to one process alone. A process
  that follows a dead one does not wait for the end of that session;
- of two records with one host id the later start is the host;
- the map is written by compare-and-set alone, so two who believe that they lead do no harm.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Self

from durablelog.bookkeeper.metadata_node import MetadataNodes, NodeWatch
from segmentstore.cluster.assignment_map import (
    AssignmentMap,
    decode_assignment_map,
    encode_assignment_map,
)
from segmentstore.cluster.host_record import (
    HostRecord,
    decode_host_record,
    encode_host_record,
)

_log = logging.getLogger(__name__)

_HOST_NODE: Final = re.compile(r"([^@/]+)@(\d{1,16})-([0-9a-f]{16})", re.ASCII)


class StoredMap(NamedTuple):
    """The map, and the version of its node."""

    map: AssignmentMap
    version: int


class HostNode(NamedTuple):
    """The name of a host's node: it says whose record that is, and which of two is newer."""

    host_id: str
    started_ms: int
    tag: str
    """Of the process."""

    @property
    def name(self) -> str:
        """Its name below the node of all hosts."""
        return f"{self.host_id}@{self.started_ms}-{self.tag}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """None of a name that is no host's."""
        match = _HOST_NODE.fullmatch(name)
        return None if match is None else cls(match[1], int(match[2]), match[3])


def newest(nodes: Iterable[HostNode]) -> dict[str, HostNode]:
    """By id, of each the process that was started last."""
    found: dict[str, HostNode] = {}
    for node in nodes:
        there = found.get(node.host_id)
        if there is None or there < node:
            found[node.host_id] = node
    return found


class ClusterNodes:
    """Below the root node of a store; its calls raise NodeUnavailableError and NodeRefusedError."""

    def __init__(self, nodes: MetadataNodes, root: str) -> None:
        self._nodes = nodes
        self.root = root
        self.map_path = f"{root}/cluster/map"
        self.hosts_path = f"{root}/cluster/hosts"
        self._leader_path = f"{root}/cluster/leader"

    def watch(self, path: str, changed: Callable[[], object]) -> NodeWatch:
        """As `MetadataNodes.watch`, of a path of ours."""
        return self._nodes.watch(path, changed)

    # --- hosts ------------------------------------------------------------------------------------

    def record_path(self, name: str) -> str:
        """The node of a host, by its name there."""
        return f"{self.hosts_path}/{name}"

    async def register(self, node: HostNode, record: HostRecord) -> None:
        """Have this record as long as our session lasts, in place of an earlier one there."""
        await self._nodes.hold(self.record_path(node.name), encode_host_record(record))

    async def withdraw(self, node: HostNode) -> None:
        """Be a host no more."""
        await self._nodes.release(self.record_path(node.name))

    async def host_nodes(self) -> list[HostNode]:
        """Of the processes that have a session."""
        names = map(HostNode.parse, await self._nodes.children(self.hosts_path))
        return [node for node in names if node is not None]

    async def read_record(self, name: str) -> HostRecord | None:
        """None if it has left, or cannot be read."""
        content = await self._nodes.read(self.record_path(name))
        record = None if content is None else decode_host_record(content.data)
        if content is not None and record is None:
            _log.warning("the record of host %s cannot be read", name)
        return record

    async def hosts(self) -> dict[str, HostRecord]:
        """All records, by id: a read for each."""
        nodes = newest(await self.host_nodes()).values()
        records = [await self.read_record(node.name) for node in nodes]
        return {record.host_id: record for record in records if record is not None}

    # --- the map ----------------------------------------------------------------------------------

    async def read_map(self) -> StoredMap | None:
        """None before the first write. Raises DataCorruptionError."""
        content = await self._nodes.read(self.map_path)
        if content is None:
            return None
        return StoredMap(decode_assignment_map(content.data, self.map_path), content.version)

    async def write_map(self, after: AssignmentMap, before: StoredMap | None) -> StoredMap:
        """Put `after` in the place of `before`. Raises NodeConflictError: another wrote first."""
        data = encode_assignment_map(after)
        if before is None:
            return StoredMap(after, await self._nodes.create(self.map_path, data))
        return StoredMap(after, await self._nodes.write(self.map_path, data, before.version))

    # --- the leader -------------------------------------------------------------------------------

    async def lead(self, host_id: str, ended: Callable[[], object]) -> None:
        """As `MetadataNodes.lead`, of the election of this cluster."""
        await self._nodes.lead(self._leader_path, host_id, ended)

    def leads(self) -> bool:
        """Whether this process leads, as far as is known here."""
        return self._nodes.leads(self._leader_path)

    async def resign(self) -> None:
        """Lead no more. Idempotent."""
        await self._nodes.resign(self._leader_path)
