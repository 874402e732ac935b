"""Owners while they are decided: which host may have a container, and which has the most room.

Pure. The measure of balance is the sum, over hosts, of containers squared by capacity. One move
between two hosts makes it smaller or does not: that is Webster's (Sainte-Lague's) method of
apportionment. With equal capacities counts then differ by at most one. A host that comes or leaves
shifts nothing between the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from segmentstore.cluster.assignment_map import AssignmentMap, PassedOver
from segmentstore.cluster.host_record import HostRecord, ReportedState

_HELD = frozenset((ReportedState.STARTING, ReportedState.RUNNING, ReportedState.STOPPING))


class Placement:
    """The owners of one decision, from those of the map before it."""

    def __init__(
        self,
        containers: int,
        hosts: Mapping[str, HostRecord],
        before: AssignmentMap,
        passed_over: Mapping[tuple[int, str], PassedOver],
        undropped: AbstractSet[tuple[int, str]],
    ) -> None:
        """`undropped`: as `undropped_failures` has them."""
        self.containers = containers
        self.hosts = hosts
        self.pins = before.pins
        self.forbidden = before.forbidden
        self.damped: Collection[str] = ()
        """Hosts that get no planned move: they flap, or fail what others do not."""
        self.open_hosts = sorted(
            host_id
            for host_id, record in hosts.items()
            if not record.draining and host_id not in before.draining
        )
        """Those that may get containers."""
        self.owners = {
            number: host_id
            for number, host_id in before.owners.items()
            if number < containers and host_id in hosts
        }
        self.passed_over = {
            pair: over.until_ms for pair, over in passed_over.items() if not over.is_over
        }
        """Until when, of the pairs whose time has not passed."""
        self._not_now = self.passed_over.keys() | undropped
        self.restricted = {number for number, _ in self.forbidden | self._not_now}
        """Containers that some host may not have."""
        self.running: dict[int, list[str]] = {}
        """Hosts that serve a container, by their reports, sorted: two of them if one is fenced."""
        for host_id in sorted(hosts):
            for number, report in hosts[host_id].containers.items():
                if report.state is ReportedState.RUNNING:
                    self.running.setdefault(number, []).append(host_id)
        # Exact, unlike fractions of floats: what is equal here is equal for each leader.
        common = math.lcm(*(record.capacity for record in hosts.values()))
        self._weights = {host_id: common // hosts[host_id].capacity for host_id in hosts}
        counts = Counter(self.owners.values())
        self.cost = {
            host_id: (2 * counts[host_id] + 1) * weight for host_id, weight in self._weights.items()
        }
        """By how much one more container on a host makes the measure of balance larger."""

    def put(self, container_id: int, host_id: str | None) -> None:
        """Give it to another host, or to none."""
        last = self.owners.pop(container_id, None)
        if last is not None:
            self.cost[last] -= 2 * self._weights[last]
        if host_id is not None:
            self.owners[container_id] = host_id
            self.cost[host_id] += 2 * self._weights[host_id]

    def uncount_failing(self) -> set[int]:
        """Leave containers that are passed over somewhere out of the measure from now on.

        They go from host to host; others must not make room for them each time. Returns them.
        """
        failing = {number for number, _ in self.passed_over}
        for number in failing & self.owners.keys():
            self.cost[self.owners[number]] -= 2 * self._weights[self.owners[number]]
        return failing

    def allowed(self, container_id: int) -> Sequence[str]:
        """Hosts that may have it, sorted."""
        if container_id not in self.restricted:
            return self.open_hosts
        return [each for each in self.open_hosts if (container_id, each) not in self.forbidden]

    def ready(self, container_id: int) -> Sequence[str]:
        """Hosts that may have it and are not passed over for it, sorted."""
        allowed = self.allowed(container_id)
        if container_id not in self.restricted:
            return allowed
        return [each for each in allowed if (container_id, each) not in self._not_now]

    def over_at(self, container_id: int, host_id: str) -> int:
        """Until when a host that is not ready for a container is passed over."""
        return self.passed_over.get((container_id, host_id), 0)

    def refuges(self, container_id: int) -> Sequence[str]:
        """Hosts that may have it when it must leave its own: damped ones if there are no others;
        sorted.
        """
        ready = self.ready(container_id)
        return self.steady(ready) or ready

    def steady(self, host_ids: Sequence[str]) -> Sequence[str]:
        """Those that are not damped."""
        if not self.damped:
            return host_ids
        return [host_id for host_id in host_ids if host_id not in self.damped]

    def is_target(self, container_id: int, host_id: str) -> bool:
        """Whether a host that is open may have it by a planned move.

        Not one that has it in hand while another host owns it: such a host was cut off, and has not
        seen yet that it was fenced. What it reports of that would be taken for a failed start.
        """
        pair = (container_id, host_id)
        return (
            host_id not in self.damped
            and pair not in self.forbidden
            and pair not in self._not_now
            and not self.has(host_id, container_id)
        )

    def pinned_to(self, container_id: int) -> str | None:
        """The host it is pinned to, if the pin is in force: that host may have it now."""
        host_id = self.pins.get(container_id)
        if host_id is None or (container_id, host_id) in self._not_now:
            return None
        return host_id if host_id in self.allowed(container_id) else None

    def emptiest(self, host_ids: Iterable[str]) -> str:
        """The host that one more container suits best; of equal ones the first."""
        return min(host_ids, key=self.cost.__getitem__)

    def gain(self, host_id: str) -> int:
        """By how much one container less on it makes the measure smaller."""
        return self.cost[host_id] - 2 * self._weights[host_id]

    def has(self, host_id: str, container_id: int) -> bool:
        """Whether that host has it in hand, serving or not."""
        report = self.hosts[host_id].containers.get(container_id) if host_id in self.hosts else None
        return report is not None and report.state in _HELD

    def runs(self, host_id: str, container_id: int) -> bool:
        """Whether that host serves it."""
        return host_id in self.running.get(container_id, ())
