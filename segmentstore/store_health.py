"""The health of an open store: the tree, the sentences of `stats()`, and whether it is ready.

All three are made of the same findings of the parts. Rules of this file: nothing here waits, asks a
service, or takes time that grows with segments or objects, for probes call it every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from segmentstore.container import ContainerStatus, HostState, SegmentContainer
from segmentstore.contracts.errors import describe
from segmentstore.contracts.health_tree import (
    HealthNode,
    HealthState,
    PartPath,
    StoreHealth,
    joined_node,
    observed,
    part_node,
)

if TYPE_CHECKING:
    from segmentstore.store_parts import StoreParts

_STATES: Final = {
    HostState.STARTING: HealthState.STARTING,
    HostState.RUNNING: HealthState.WELL,
    HostState.STOPPING: HealthState.STOPPING,
    HostState.FAILED: HealthState.FAILED,
}


def health_sentences(parts: StoreParts) -> list[str]:
    """One for each thing that is wrong; empty when all is well. O(containers)."""
    said = tuple(parts.logs.health())
    return [
        *(f"tier1: {finding}" for finding in said),
        *(
            sentence
            for container in parts.containers
            for sentence in _sentences(container)
            if not _is_of_tier1(sentence, said)
        ),
        *parts.registry.health(),
        *(cause for causes in _host_parts(parts).values() for cause in causes),
    ]


def store_health(parts: StoreParts) -> StoreHealth:
    """The tree as of now, and whether the store is ready. O(containers)."""
    waits_for = _waits_for(parts)
    return {"ready": not waits_for, "waits_for": waits_for, "hosts": [_host_node(parts)]}


# --- findings -----------------------------------------------------------------------------------


def _host_parts(parts: StoreParts) -> dict[str, Sequence[str]]:
    """What is wrong with each part that the containers have in common, but Tier 1."""
    found: dict[str, Sequence[str]] = {
        "cache": _of_cache(parts),
        "opening": parts.findings,
        "tier2": [*parts.tier2_start.health(), *parts.markers.health()],
    }
    if parts.losses is not None:
        found["losses"] = parts.losses.health()
    if parts.scrub is not None:
        found["scrub"] = parts.scrub.health()
    if parts.exporter is not None:
        found["catalog"] = parts.exporter.health()
    if parts.cluster_health is not None:
        found["membership"] = parts.cluster_health()
    if parts.controller_health is not None:
        found["controller"] = parts.controller_health()
    return found


def _of_cache(parts: StoreParts) -> Sequence[str]:
    works = parts.cache.statistics().healthy
    return () if works else ("the cache does not work: reads of what it had go to Tier 2",)


def _sentences(container: SegmentContainer) -> list[str]:
    number = container.container_id
    failure = container.failure
    stopped = [] if failure is None else [f"container {number} is stopped: {describe(failure)}"]
    found = (finding for finding in container.health().values() if finding is not None)
    return [*stopped, *(f"container {number}: {finding}" for finding in found)]


def _is_of_tier1(finding: str | None, said: tuple[str, ...]) -> bool:
    """What is wrong with a Tier 1 that is shared is said once, not by each container."""
    return finding is not None and bool(said) and finding.endswith(said)


# --- the tree -----------------------------------------------------------------------------------


def _host_node(parts: StoreParts) -> HealthNode:
    said = tuple(parts.logs.health())
    causes: dict[PartPath, Sequence[str]] = {(None, "tier1"): said}
    causes.update({(None, name): found for name, found in _host_parts(parts).items()})
    for container in parts.containers:
        for name, finding in container.health().items():
            is_own = finding is not None and not _is_of_tier1(finding, said)
            causes[container.container_id, name] = (finding,) if finding and is_own else ()
    now_ms = parts.runtime.clock.time_ms()
    parts.observations = observed(now_ms, parts.observations, causes)
    leaves: dict[int | None, list[HealthNode]] = {}
    for (number, name), found in causes.items():
        since_ms = parts.observations[number, name].since_ms
        leaves.setdefault(number, []).append(part_node(name, found, since_ms))
    containers = [
        _container_node(number, status, leaves.get(number, ()))
        for number, status in parts.registry.statuses().items()
        if status.state is not HostState.STOPPED
    ]
    name = _name(parts)
    return joined_node(name, HealthState.WELL, 0, (), [*leaves[None], *containers])


def _name(parts: StoreParts) -> str:
    """Of the host in its cluster; of a store of one process its id."""
    if parts.cluster_stats is not None:
        return f"host {parts.cluster_stats()['host_id']}"
    return f"store {parts.store_id}"


def _container_node(
    number: int, status: ContainerStatus, leaves: Sequence[HealthNode]
) -> HealthNode:
    causes = [] if status.cause is None else [describe(status.cause)]
    state = _STATES[status.state]
    return joined_node(f"container {number}", state, status.since_ms, causes, leaves)


# --- readiness ----------------------------------------------------------------------------------


def _waits_for(parts: StoreParts) -> list[str]:
    """What keeps the store from serving all that is assigned to it."""
    if parts.closing is not None:
        return ["it is being closed"]
    if parts.cluster_waits_for is not None:
        return parts.cluster_waits_for()
    if parts.config.joins_cluster:
        return ["it has not joined its cluster yet"]
    return not_serving(parts.registry.statuses())


def not_serving(statuses: Mapping[int, ContainerStatus]) -> list[str]:
    """A sentence for each container that was asked for and does not serve."""
    return [
        f"container {number} is {status.state.value}"
        for number, status in statuses.items()
        if status.state not in (HostState.RUNNING, HostState.STOPPED)
    ]
