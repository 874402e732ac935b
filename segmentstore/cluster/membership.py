"""Membership: an open store as a host of its cluster: it follows the assignment map, and stands for
election as the one that writes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

from durablelog.bookkeeper.bookkeeper_clients import translated
from segmentstore.cluster.assigner import Assigner
from segmentstore.cluster.assignment_map import unowned
from segmentstore.cluster.cluster_host import ClusterHost
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.host_addresses import HostAddresses
from segmentstore.cluster.host_reports import HostIdentity
from segmentstore.cluster.load_meter import LoadMeter
from segmentstore.cluster.pravega_nodes import FAILED_AGAIN_S, PravegaNodes
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.host_ids import host_id_of
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.store_hosts import HostPlace, StoreHosts
from segmentstore.stats_types import ClusterStats
from segmentstore.store_parts import StoreParts


class Membership:
    """Of one open store, from `join` to `leave`, both once."""

    def __init__(
        self,
        host: ClusterHost,
        assigner: Assigner | None,
        addresses: HostAddresses,
        containers: int,
    ) -> None:
        """Without an assigner, Pravega's Controller assigns."""
        self._host = host
        self._assigner = assigner
        self._addresses = addresses
        self._count = containers

    async def join(self) -> None:
        """Register, and serve what is assigned from now on."""
        await self._host.join()
        if self._assigner is not None:
            self._assigner.start()

    async def drain(self) -> None:
        """Let others have our containers, and stay a host without any."""
        await self._host.drain()

    async def leave(self) -> None:
        """Let others have our containers, as far as there are others, and be no host any more."""
        try:
            # A leader that leaves assigns its own containers, too.
            await self._host.leave()
        finally:
            if self._assigner is not None:
                await self._assigner.stop()

    def health(self) -> list[str]:
        """What is wrong, a sentence each."""
        assigner = self._assigner
        troubles = (self._host.health(), None if assigner is None else assigner.health())
        found = [each for each in troubles if each]
        if (assigner is None or assigner.leads) and (missing := self._unassigned()):
            numbers = ", ".join(map(str, missing[:9]))
            found.append(f"{len(missing)} containers have no host that may serve them: {numbers}")
        return found

    def waits_for(self) -> list[str]:
        """What keeps this host from being ready, a sentence each."""
        return self._host.waits_for()

    def statistics(self) -> ClusterStats:
        """Numbers as of now. O(containers of the store)."""
        moves = self._host.moves
        return {
            "host_id": self._host.host_id,
            "leads": self._assigner is not None and self._assigner.leads,
            "hosts": len(self._host.nodes_seen),
            "map_epoch": self._host.assigned.epoch,
            "unassigned": len(self._unassigned()),
            "assigned": moves.assigned,
            "moves_under_way": len(self._host.assigned.moves),
            "starts": self._host.starts,
            "start_failures": self._host.start_failures,
            "stops": self._host.stops,
            "moved_in": moves.moved_in,
            "taken_over": moves.taken_over,
            "arrival_s": moves.arrival_s,
            "start_s": moves.start_s,
            "stop_s": moves.stop_s,
        }

    async def hosts(self) -> StoreHosts:
        """Where clients find each container, by the map as this host has seen it last."""
        return await self._addresses.of(self._host.assigned, self._host.nodes_seen)

    async def owner(self, container: int) -> HostPlace | None:
        """Where the host is that is to serve a container, by the same map; None: none is known."""
        host_id = self._host.assigned.owners.get(container)
        node = self._host.nodes_seen.get(host_id) if host_id is not None else None
        return None if node is None else await self._addresses.place(node)

    async def places(self) -> Sequence[HostPlace]:
        """Of all hosts that are registered."""
        return await self._addresses.places(self._host.nodes_seen)

    def _unassigned(self) -> Sequence[int]:
        return unowned(self._count, self._host.assigned)


async def join_cluster(parts: StoreParts, runtime: Runtime) -> None:
    """Make an open store a host; what makes it leave is pushed on `parts.undo`.

    Raises ConfigError: its Tier 1 belongs to one process; TierUnavailableError.
    """
    config, coordination = parts.config, parts.logs.coordination()
    if coordination is None:
        raise ConfigError("serve", '"cluster" needs a store on BookKeeper, which many can open')
    if config.pravega_cluster is not None:
        name, count = config.pravega_cluster, config.containers
        nodes: ClusterNodes = PravegaNodes(*coordination, name, count)
        host_id = host_id_of(config.wire_host, config.wire_port)
    else:
        nodes = ClusterNodes(*coordination)
        host_id = config.host_id or host_id_of(runtime.processes.me().host, config.wire_port)
    me = HostIdentity(
        host_id,
        config.wire_host,
        config.wire_port,
        version("segmentstore"),
        config.host_capacity,
        config.controller_host if config.controller_port else "",
        config.controller_port,
    )
    meter = LoadMeter(lambda: parts.containers, asyncio.get_running_loop().time)
    again_s = None if config.pravega_cluster is None else FAILED_AGAIN_S
    host = ClusterHost(nodes, parts.registry, me, meter.load, runtime, again_s)
    assigner = None
    if config.pravega_cluster is None:
        assigner = Assigner(nodes, host_id, config.containers, runtime)
    membership = Membership(host, assigner, HostAddresses(nodes), config.containers)
    async with translated():
        await membership.join()
    parts.cluster_stats, parts.cluster_health = membership.statistics, membership.health
    parts.cluster_hosts, parts.cluster_waits_for = membership.hosts, membership.waits_for
    parts.cluster_drain = membership.drain
    parts.cluster_owner, parts.cluster_places = membership.owner, membership.places
    parts.undo.push(membership.leave)
