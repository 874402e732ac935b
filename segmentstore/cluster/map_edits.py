"""What a person may ask of the assignment: pin, drain, forbid, and the opposites.

Pure. Each returns the map to write, or the map itself where it holds already what was asked for.
Repeating one is harmless.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from segmentstore.cluster.assignment_map import CONTAINERS_MAX, AssignmentMap
from segmentstore.cluster.host_record import check_host_id, check_number
from segmentstore.contracts.errors import InvalidArgumentError

ASKED_MAX: Final = 10_000
"""Pins, forbidden pairs and drained hosts, of each: the node must stay below ZooKeeper's limit."""


def pin(before: AssignmentMap, containers: int, container_id: int, host_id: str) -> AssignmentMap:
    """Want a container on a host, which need not be registered now.

    Raises InvalidArgumentError for a pair that is forbidden.
    """
    _check(containers, container_id, host_id)
    if (container_id, host_id) in before.forbidden:
        raise InvalidArgumentError(
            "host_id", host_id, f"it is forbidden for container {container_id}: allow it first"
        )
    return _edited(before, pins={**before.pins, container_id: host_id})


def unpin(before: AssignmentMap, containers: int, container_id: int) -> AssignmentMap:
    """Want a container nowhere in particular. It stays where it is unless balance moves it."""
    _check(containers, container_id)
    return _edited(
        before,
        pins={number: host for number, host in before.pins.items() if number != container_id},
    )


def drain(before: AssignmentMap, host_id: str) -> AssignmentMap:
    """Give a host no container, and move its own to others."""
    check_host_id("host_id", host_id)
    return _edited(before, draining=before.draining | {host_id})


def undrain(before: AssignmentMap, host_id: str) -> AssignmentMap:
    """Let a host have containers again."""
    check_host_id("host_id", host_id)
    return _edited(before, draining=before.draining - {host_id})


def forbid(
    before: AssignmentMap, containers: int, container_id: int, host_id: str
) -> AssignmentMap:
    """Never have a container on a host, even if no other host is there.

    Raises InvalidArgumentError if the container is pinned to the host.
    """
    _check(containers, container_id, host_id)
    if before.pins.get(container_id) == host_id:
        raise InvalidArgumentError(
            "host_id", host_id, f"container {container_id} is pinned to it: unpin it first"
        )
    return _edited(before, forbidden=before.forbidden | {(container_id, host_id)})


def allow(before: AssignmentMap, containers: int, container_id: int, host_id: str) -> AssignmentMap:
    """Take a `forbid` back."""
    _check(containers, container_id, host_id)
    return _edited(before, forbidden=before.forbidden - {(container_id, host_id)})


def _check(containers: int, container_id: int, host_id: str | None = None) -> None:
    check_number("containers", containers, 1, CONTAINERS_MAX)
    check_number("container", container_id, 0, containers - 1)
    if host_id is not None:
        check_host_id("host_id", host_id)


def _edited(before: AssignmentMap, **change: Any) -> AssignmentMap:
    ((name, asked),) = change.items()
    if asked == getattr(before, name):
        return before
    if len(asked) > ASKED_MAX:
        raise InvalidArgumentError(name, len(asked), f"the map has room for {ASKED_MAX} of them")
    return dataclasses.replace(before, epoch=before.epoch + 1, **change)
