"""HostAddresses: the assignment map with the address of each host, as clients are given it.

The address of a registered process does not change, so its record is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from durablelog.bookkeeper.metadata_node import NodeRefusedError, NodeUnavailableError
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode
from segmentstore.contracts.store_hosts import StoreHost, StoreHosts


class HostAddresses:
    """Of one cluster."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self._nodes = nodes
        self._known: dict[str, tuple[str, int]] = {}
        """By the name of the node."""

    async def of(self, assigned: AssignmentMap, nodes: Mapping[str, HostNode]) -> StoreHosts:
        """The registered hosts by id, and what the map assigns to each.

        One whose address is not known yet, and cannot be read now, is missing. O(containers).
        """
        await self._read(nodes.values())
        containers: dict[str, list[int]] = {host_id: [] for host_id in nodes}
        for number, host_id in sorted(assigned.owners.items()):
            if host_id in containers:
                containers[host_id].append(number)
        return StoreHosts(
            assigned.epoch,
            tuple(
                StoreHost(*self._known[node.name], tuple(containers[host_id]))
                for host_id, node in sorted(nodes.items())
                if node.name in self._known
            ),
        )

    async def _read(self, nodes: Iterable[HostNode]) -> None:
        names = {node.name for node in nodes}
        self._known = {name: each for name, each in self._known.items() if name in names}
        for name in sorted(names - self._known.keys()):
            with suppress(NodeUnavailableError, NodeRefusedError):
                record = await self._nodes.read_record(name)
                if record is not None:
                    self._known[name] = (record.host, record.port)
