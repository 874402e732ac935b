"""LoggedHosts: a world of hosts whose containers are a log and nothing else.

All that decides who serves what is the production code: membership, assigner, host, election. Only
what a host would serve is small, so that very many take-overs can be tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from durablelog.bookkeeper.metadata_node import NodeRefusedError, NodeUnavailableError
from durablelog.memory_data_log import MemoryLogStore
from recovery.harness.simulation.bookkeeper_nodes import SimulatedNodes
from recovery.harness.simulation.cluster_world import ClusterWorld, HostProcess, Owner
from recovery.harness.simulation.logged_containers import LoggedContainers
from segmentstore.cluster.assigner import Assigner
from segmentstore.cluster.cluster_host import ClusterHost
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.host_addresses import HostAddresses
from segmentstore.cluster.host_record import HostLoad
from segmentstore.cluster.host_reports import HostIdentity
from segmentstore.cluster.membership import Membership
from segmentstore.container import ContainerStatus
from segmentstore.contracts.errors import TierUnavailableError

CAPACITY = 100


class LoggedHost:
    """A `HostView` of one process's containers."""

    def __init__(
        self, containers: LoggedContainers, membership: Membership, nodes: SimulatedNodes
    ) -> None:
        self.containers = containers
        self._membership = membership
        self._nodes = nodes

    def running(self, number: int) -> Owner | None:
        """As `HostView`."""
        return self.containers.running(number)

    def statuses(self) -> dict[int, ContainerStatus]:
        """As `HostView`."""
        return self.containers.statuses()

    @property
    def served(self) -> list[int]:
        """As `HostView`."""
        return self.containers.served

    @property
    def leads(self) -> bool:
        """As `HostView`."""
        return self._membership.statistics()["leads"]

    @property
    def map_epoch(self) -> int:
        """As `HostView`."""
        return self._membership.statistics()["map_epoch"]

    def is_confirming(self, number: int) -> bool:
        """As `HostView`: a log that is only appended to has no reads."""
        return False

    async def close(self) -> None:
        """As `HostView`."""
        await self._membership.leave()
        await self._nodes.close()


class LoggedHosts(ClusterWorld):
    """`root` is the node below which they meet."""

    def __init__(
        self,
        seed: str,
        root: str,
        *,
        containers: int,
        rates: Mapping[str, float],
        keep_trace: bool,
    ) -> None:
        super().__init__(
            seed, containers=containers, settings={}, rates=rates, keep_trace=keep_trace
        )
        self.logs = MemoryLogStore()
        """What every log holds, by container: it outlives all processes."""
        self._root = root

    async def open_view(self, host: HostProcess) -> LoggedHost:
        """As ClusterWorld. Raises TierUnavailableError."""
        process, runtime = host.process, host.process.runtime
        nodes = self.nodes[process.name] = SimulatedNodes(self.bookkeeper, process)
        shared = ClusterNodes(nodes, self._root)
        containers = LoggedContainers(self.logs, process, runtime.clock)
        identity = HostIdentity(host.name, "127.0.0.1", 1, "simulated", CAPACITY)
        follower = ClusterHost(shared, containers, identity, HostLoad, runtime)
        assigner = Assigner(shared, host.name, self.containers, runtime)
        membership = Membership(follower, assigner, HostAddresses(shared), self.containers)
        try:
            await membership.join()
        except (NodeUnavailableError, NodeRefusedError) as error:
            await nodes.close()
            raise TierUnavailableError("tier1", str(error)) from error
        except asyncio.CancelledError:
            await nodes.close()
            raise
        return LoggedHost(containers, membership, nodes)
