"""The health of hosts as a tree: host, containers, parts, each with state, cause and since when.
Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict


class HealthState(enum.Enum):
    """How a host, a container or a part is."""

    WELL = "well"
    IMPAIRED = "impaired"
    """It works, and something in it does not; `causes`, or those of its parts, say what."""
    STARTING = "starting"
    STOPPING = "stopping"
    FAILED = "failed"
    """It does nothing any more; `causes` say why."""


class HealthNode(TypedDict):
    """One node of the tree."""

    name: str
    state: str
    """A HealthState."""
    since_ms: int
    """Since when it is so, in milliseconds since 1970 UTC. Exact for containers; for a part the
    time of the first call that saw it so.
    """
    causes: list[str]
    """Sentences; those of its parts stand there."""
    parts: list[HealthNode]


class StoreHealth(TypedDict):
    """What `store.health()` gives."""

    ready: bool
    """Whether each host serves all containers that are assigned to it."""
    waits_for: list[str]
    """What is missing for that, a sentence each."""
    hosts: list[HealthNode]
    """This process alone; the client of a cluster has those that answer."""


class PartSeen(NamedTuple):
    """A part when it was last asked for."""

    is_well: bool
    since_ms: int


PartPath = tuple[int | None, str]
"""A container, None for the host, and the name of a part of it."""


def observed(
    now_ms: int, before: Mapping[PartPath, PartSeen], causes: Mapping[PartPath, Sequence[str]]
) -> dict[PartPath, PartSeen]:
    """Since when each part is as it is; parts that are not there any more are forgotten."""
    after: dict[PartPath, PartSeen] = {}
    for path, found in causes.items():
        last = before.get(path)
        is_well = not found
        is_new = last is None or last.is_well is not is_well
        after[path] = PartSeen(is_well, now_ms) if is_new or last is None else last
    return after


def part_node(name: str, causes: Sequence[str], since_ms: int) -> HealthNode:
    """A part, which has none of its own."""
    state = HealthState.IMPAIRED if causes else HealthState.WELL
    return _node(name, state, since_ms, causes, ())


def joined_node(
    name: str,
    state: HealthState,
    since_ms: int,
    causes: Sequence[str],
    parts: Sequence[HealthNode],
) -> HealthNode:
    """A node above others: impaired if one of them is, or has failed.

    One that is `state` by itself, other than well, is that since `since_ms`.
    """
    if state is not HealthState.WELL:
        return _node(name, state, since_ms, causes, parts)
    unwell = [each["since_ms"] for each in parts if each["state"] in _UNWELL]
    if unwell:
        return _node(name, HealthState.IMPAIRED, min(unwell), causes, parts)
    well = (each["since_ms"] for each in parts if each["state"] == HealthState.WELL.value)
    return _node(name, state, max((since_ms, *well)), causes, parts)


def joined_health(of_hosts: Sequence[StoreHealth]) -> StoreHealth:
    """Of several hosts of one cluster."""
    return {
        "ready": all(each["ready"] for each in of_hosts),
        "waits_for": [
            f"{host['name']}: {sentence}"
            for each in of_hosts
            for host in each["hosts"]
            for sentence in each["waits_for"]
        ],
        "hosts": [host for each in of_hosts for host in each["hosts"]],
    }


_UNWELL = frozenset((HealthState.IMPAIRED.value, HealthState.FAILED.value))


def _node(
    name: str,
    state: HealthState,
    since_ms: int,
    causes: Sequence[str],
    parts: Sequence[HealthNode],
) -> HealthNode:
    return {
        "name": name,
        "state": state.value,
        "since_ms": since_ms,
        "causes": list(causes),
        "parts": list(parts),
    }
