"""HostAddresses: the assignment map with the address of each host, as clients are given it.

The address of a registered process does not change, so its record is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from durablelog.bookkeeper.metadata_node import NodeRefusedError, NodeUnavailableError
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode
from segmentstore.contracts.store_hosts import HostPlace, StoreHost, StoreHosts


class HostAddresses:
    """Of one cluster."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self._nodes = nodes
        self._known: dict[str, HostPlace] = {}
        """By the name of the node."""

    async def of(self, assigned: AssignmentMap, nodes: Mapping[str, HostNode]) -> StoreHosts:
        """The registered hosts by id, and what the map assigns to each.

        One whose address is not known yet, and cannot be read now, is missing. O(containers).
        """
        found = await self.places(nodes)
        containers: dict[str, list[int]] = {host_id: [] for host_id in nodes}
        for number, host_id in sorted(assigned.owners.items()):
            if host_id in containers:
                containers[host_id].append(number)
        return StoreHosts(
            assigned.epoch,
            tuple(
                StoreHost(each.host, each.port, tuple(containers[each.host_id])) for each in found
            ),
        )

    async def places(self, nodes: Mapping[str, HostNode]) -> list[HostPlace]:
        """Of the registered hosts, in the order of their ids, but for those that `of` misses."""
        names = {node.name for node in nodes.values()}
        self._known = {name: each for name, each in self._known.items() if name in names}
        found = [await self.place(node) for _, node in sorted(nodes.items())]
        return [each for each in found if each is not None]

    async def place(self, node: HostNode) -> HostPlace | None:
        """Of a host; None: it is not known yet, and cannot be read now."""
        if node.name not in self._known:
            with suppress(NodeUnavailableError, NodeRefusedError):
                record = await self._nodes.read_record(node.name)
                if record is not None:
                    self._known[node.name] = HostPlace(
                        node.host_id,
                        record.host,
                        record.port,
                        record.controller_host,
                        record.controller_port,
                    )
        return self._known.get(node.name)
