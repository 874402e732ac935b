"""What a host does next with the containers that the assignment map gives to it, and takes from it.
Pure.

Pravega's rules, of its container monitor: a container is started or stopped as the map says, and
one that a failure stopped is not repaired by its host, but reported. It is started again when the
map says so (`AssignmentMap.is_start_due`). Ours besides: a container that another host still has is
started when that host's record shows it no more. So it drains, and nothing is fenced. Behind
HANDOVER_S it is started all the same, and its log fences the other.

No more are begun than start at a time: one that would only wait is not reported as starting, and
the leader may give it to another host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.host_record import HostRecord, ReportedState
from segmentstore.container import PRESENT, STARTS_AT_ONCE, ContainerStatus, HostState

HANDOVER_S: Final = 30.0
"""How long the owner before is waited for."""

_STOPPABLE: Final = frozenset((HostState.STARTING, HostState.RUNNING, HostState.FAILED))


class Steps(NamedTuple):
    """To be begun now."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    again_s: float | None
    """When something is due that no change shows; None: nothing is."""


def steps(
    now_s: float,
    me: str,
    assigned: AssignmentMap,
    hosts: Mapping[str, HostRecord],
    statuses: Mapping[int, ContainerStatus],
    waited_since_s: dict[int, float],
) -> Steps:
    """What the map calls for, given what this host has and what the others report.

    Times are of one clock that only goes forward, in seconds. `waited_since_s` is kept from step to
    step: since when the owner before is waited for, by container; it is brought up to date.
    O(containers of the map and of the records).
    """
    wanted = sorted(number for number, owner in assigned.owners.items() if owner == me)
    ours = frozenset(wanted)
    stops = tuple(
        number
        for number, status in sorted(statuses.items())
        if number not in ours and status.state in _STOPPABLE
    )
    held = {
        number
        for host in hosts.values()
        if host.host_id != me
        for number, report in host.containers.items()
        if report.state is not ReportedState.FAILED
    }
    for number in waited_since_s.keys() - (ours & held):
        del waited_since_s[number]
    starts: list[int] = []
    room = STARTS_AT_ONCE - sum(status.state is HostState.STARTING for status in statuses.values())
    due: list[float] = []
    for number in wanted:
        status = statuses.get(number)
        if status is not None and status.state in PRESENT:
            # The end of a stop is a change, and asks again.
            waited_since_s.pop(number, None)
            continue
        failed = status is not None and status.state is HostState.FAILED
        failed_ms = status.since_ms if status is not None and failed else None
        if not assigned.is_start_due(number, me, failed_ms):
            continue
        start_s = now_s
        if number in held:
            start_s = waited_since_s.setdefault(number, now_s) + HANDOVER_S
        if start_s > now_s:
            due.append(start_s)
        elif len(starts) < room:
            # The end of a start is a change, too.
            starts.append(number)
    return Steps(tuple(starts), stops, min(due, default=None))
