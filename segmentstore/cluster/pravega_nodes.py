"""PravegaNodes: the nodes of a cluster whose containers Pravega's own Controller assigns.

Pravega's part is below `/pravega/<name>/cluster`: each host has a node there with its address, and
the Controller writes which host has which container. Beside it hosts keep their own records, by
which a container is handed over without being fenced (docs/cluster.md).
"""

from __future__ import annotations

from typing import Final

from durablelog.bookkeeper.metadata_node import MetadataNodes
from segmentstore.cluster.assignment_map import Arrival, AssignmentMap
from segmentstore.cluster.cluster_nodes import ClusterNodes, HostNode, StoredMap
from segmentstore.cluster.host_record import HostRecord
from segmentstore.cluster.pravega_records import PravegaHost, decode_mapping, encode_host
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.host_ids import host_id_of

FAILED_AGAIN_S: Final = 10.0
"""A container that failed is started again after so long, as Pravega's segment store does. Its
Controller has no word of a failure.
"""


class PravegaNodes(ClusterNodes):
    """As `ClusterNodes`, but for the map, which is the Controller's: nothing here writes it."""

    def __init__(self, nodes: MetadataNodes, root: str, name: str, containers: int) -> None:
        """`name` is that of Pravega's cluster, `containers` are those of the store."""
        super().__init__(nodes, root)
        self._count = containers
        self._places = f"/pravega/{name}/cluster"
        self.map_path = f"{self._places}/segmentContainerHostMapping"
        self._held: str | None = None
        """The node of this host for the Controller."""
        self._registered: HostNode | None = None

    async def register(self, node: HostNode, record: HostRecord) -> None:
        """Be a host for Pravega's Controller, too, unless the record says that it leaves."""
        await super().register(node, record)
        self._registered = node
        host = PravegaHost(record.host, record.port)
        if record.draining:
            await self._release()
        else:
            self._held = f"{self._places}/hosts/{host.node_name}"
            await self._nodes.hold(self._held, encode_host(host))

    async def withdraw(self, node: HostNode) -> None:
        await self._release()
        await super().withdraw(node)

    async def _release(self) -> None:
        if self._held is not None:
            await self._nodes.release(self._held)
            self._held = None

    async def read_map(self) -> StoredMap | None:
        """Hosts have the ids of their addresses; this one has arrived when it is given a container.

        Raises DataCorruptionError, ConfigError: the Controller has more containers than the store.
        """
        content = await self._nodes.read(self.map_path)
        if content is None or not content.data:
            return None
        mapping = decode_mapping(content.data, self.map_path)
        if unknown := mapping.keys() - range(self._count):
            detail = (
                f"Pravega's Controller assigns container {min(unknown)}, and the store has "
                f"{self._count}: the Controller's container.count is to be that"
            )
            raise ConfigError("serve", detail)
        owners = {number: host_id_of(*host) for number, host in mapping.items()}
        epoch, own = content.version + 1, self._registered
        arrivals = {}
        if own is not None and own.host_id in owners.values():
            arrivals[own.host_id] = Arrival(own.started_ms, own.started_ms)
        return StoredMap(AssignmentMap(epoch, owners, arrivals=arrivals), content.version)
