"""What a person sees of a cluster, and changes in its assignment map; no host has to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from durablelog.bookkeeper.metadata_node import NodeConflictError
from segmentstore.cluster.assignment_map import AssignmentMap, unowned
from segmentstore.cluster.cluster_nodes import ClusterNodes
from segmentstore.cluster.host_record import HostRecord, ReportedState
from segmentstore.contracts.errors import TierUnavailableError

_TRIES: Final = 20


class ContainerRow(NamedTuple):
    """One container of a cluster."""

    container: int
    host: str | None
    """Which is to serve it; None: no host may."""
    state: str
    """What that host reports of it; `waiting` before it reports anything."""
    since_ms: int | None
    cause: str
    pinned_to: str | None
    also_on: tuple[str, ...]
    """Hosts that still have it: it moves."""


class HostRow(NamedTuple):
    """One host of a cluster."""

    host: str
    address: str
    version: str
    capacity: int
    started_ms: int
    draining: bool
    """It leaves, or a person drains it."""
    assigned: int
    """Containers that it is to serve."""
    running: int
    failed: int
    bytes_in_per_s: int
    bytes_out_per_s: int
    unflushed_bytes: int
    active_segments: int


class ClusterPicture(NamedTuple):
    """A cluster as its nodes show it at one moment."""

    map: AssignmentMap
    hosts: dict[str, HostRecord]
    containers: int

    @property
    def serving(self) -> int:
        """Containers that the host of the map serves."""
        return sum(row.state == ReportedState.RUNNING.value for row in self.container_rows())

    @property
    def unowned(self) -> list[int]:
        """Containers that no host is to serve, ascending."""
        return unowned(self.containers, self.map)

    def known_hosts(self) -> list[str]:
        """Hosts that are registered, or that the map has anything of, sorted: one that left is
        remembered for a few minutes.
        """
        current = self.map
        return sorted(
            {
                *self.hosts,
                *current.owners.values(),
                *current.pins.values(),
                *current.draining,
                *(host_id for _, host_id in current.forbidden),
                *current.arrivals,
            }
        )

    def container_rows(self) -> list[ContainerRow]:
        """Of all containers, by number. O(containers + reports)."""
        holders: dict[int, list[str]] = {}
        for host_id, host in sorted(self.hosts.items()):
            for number, report in host.containers.items():
                if report.state is not ReportedState.FAILED:
                    holders.setdefault(number, []).append(host_id)
        return [self._container_row(number, holders) for number in range(self.containers)]

    def _container_row(self, number: int, holders: dict[int, list[str]]) -> ContainerRow:
        owner = self.map.owners.get(number)
        host = None if owner is None else self.hosts.get(owner)
        report = None if host is None else host.containers.get(number)
        return ContainerRow(
            container=number,
            host=owner,
            state="waiting" if report is None else report.state.value,
            since_ms=None if report is None else report.since_ms,
            cause="" if report is None else report.cause,
            pinned_to=self.map.pins.get(number),
            also_on=tuple(each for each in holders.get(number, ()) if each != owner),
        )

    def host_rows(self) -> list[HostRow]:
        """Of all registered hosts, by id. O(containers + reports)."""
        assigned: dict[str, int] = {}
        for owner in self.map.owners.values():
            assigned[owner] = assigned.get(owner, 0) + 1
        return [
            _host_row(host, assigned.get(host_id, 0), drained=host_id in self.map.draining)
            for host_id, host in sorted(self.hosts.items())
        ]


def _host_row(host: HostRecord, assigned: int, *, drained: bool) -> HostRow:
    states = [report.state for report in host.containers.values()]
    return HostRow(
        host=host.host_id,
        address=f"[{host.host}]:{host.port}" if ":" in host.host else f"{host.host}:{host.port}",
        version=host.version,
        capacity=host.capacity,
        started_ms=host.started_ms,
        draining=host.draining or drained,
        assigned=assigned,
        running=states.count(ReportedState.RUNNING),
        failed=states.count(ReportedState.FAILED),
        bytes_in_per_s=host.load.bytes_in_per_s,
        bytes_out_per_s=host.load.bytes_out_per_s,
        unflushed_bytes=host.load.unflushed_bytes,
        active_segments=host.load.active_segments,
    )


async def read_cluster(nodes: ClusterNodes, containers: int) -> ClusterPicture:
    """Read everything. Raises NodeUnavailableError, NodeRefusedError, DataCorruptionError."""
    stored = await nodes.read_map()
    hosts = await nodes.hosts()
    return ClusterPicture(AssignmentMap() if stored is None else stored.map, hosts, containers)


async def edit_map(
    nodes: ClusterNodes, change: Callable[[AssignmentMap], AssignmentMap]
) -> AssignmentMap:
    """Write what `change` makes of the map, beside a leader that writes it, too; the map then.

    Raises what `change` raises, TierUnavailableError (others wrote first, again and again), and as
    `read_cluster`. After a NodeUnavailableError it may have happened: do it again, for a change
    that is there already is harmless.
    """
    for _ in range(_TRIES):
        stored = await nodes.read_map()
        before = AssignmentMap() if stored is None else stored.map
        after = change(before)
        if after is before:
            return before
        try:
            return (await nodes.write_map(after, stored)).map
        except NodeConflictError:
            continue  # another wrote first
    raise TierUnavailableError("tier1", "the assignment map changes faster than it can be edited")
