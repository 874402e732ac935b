"""Which host serves which container: the one node that the leader and persons write.

Pure. Format: docs/formats/cluster-nodes.md. Each write is a compare-and-set on the node's version.
Whatever the next decision must know is in the map, so that another leader decides the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from segmentstore.cluster.host_record import NUMBER_MAX, check_host_id, check_number
from segmentstore.contracts.errors import DataCorruptionError, InvalidArgumentError

VERSION: Final = 1
CONTAINERS_MAX: Final = 65536
"""A store has no more of them."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A container failed on a host, which does not get it again for a while."""

    until_ms: int
    failures: int
    """In a row, 1 or more; the time doubles with each."""
    failed_ms: int
    """`since_ms` of the failure in the host's record, by which a later one differs from it."""
    is_over: bool = False
    """`until_ms` has come: the host may start the container again if the map names it."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a host was first seen since it was last absent; kept for a while after it left."""

    started_ms: int
    """As in its record: a host that was restarted between two decisions has arrived again."""
    seen_ms: int
    """By the leader's clock."""
    returns: int = 0
    """How often it has come back, each time soon after the arrival before."""
    is_present: bool = True


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move under way from a host that was there. The owner is in `owners` already."""

    source: str
    started_ms: int


@dataclass(frozen=True, slots=True)
class AssignmentMap:
    """The owners of all containers, what persons asked for, and what the next decision must know.

    Containers are 0 to CONTAINERS_MAX - 1, hosts are named by their `host_id`.
    """

    epoch: int = 0
    """Grows by one with each write."""
    owners: Mapping[int, str] = field(default_factory=dict)
    """Of each container the one host that is to serve it. One without a host is absent."""
    pins: Mapping[int, str] = field(default_factory=dict)
    """The host that a person wants for a container. In force while that host can have it."""
    draining: frozenset[str] = frozenset()
    """Hosts that a person drains."""
    forbidden: frozenset[tuple[int, str]] = frozenset()
    """Pairs of a container and a host that may never have it."""
    passed_over: Mapping[tuple[int, str], PassedOver] = field(default_factory=dict)
    """By container and host."""
    arrivals: Mapping[str, Arrival] = field(default_factory=dict)
    """By host."""
    moves: Mapping[int, PlannedMove] = field(default_factory=dict)
    """Planned moves under way, by container."""

    def is_start_due(self, container_id: int, host_id: str, failed_ms: int | None) -> bool:
        """Whether the host is to start a container that it does not have.

        `failed_ms` is since when it reports it as failed, None if it does not. A failed container
        is started again on the same host once the leader has seen the failure and let the time for
        it pass. No clock is asked here.
        """
        if self.owners.get(container_id) != host_id:
            return False
        if failed_ms is None:
            return True
        over = self.passed_over.get((container_id, host_id))
        return over is not None and over.is_over and over.failed_ms == failed_ms


def unowned(containers: int, current: AssignmentMap) -> list[int]:
    """Containers without a host, ascending: nothing can be read from or written to them."""
    check_number("containers", containers, 1, CONTAINERS_MAX)
    return [number for number in range(containers) if number not in current.owners]


def encode_assignment_map(current: AssignmentMap) -> bytes:
    """The node's bytes."""
    passed_over: dict[str, dict[str, list[int]]] = {}
    for (number, host), over in sorted(current.passed_over.items()):
        passed_over.setdefault(host, {})[str(number)] = [
            over.until_ms,
            over.failures,
            over.failed_ms,
            int(over.is_over),
        ]
    fields = {
        "version": VERSION,
        "epoch": current.epoch,
        "owners": _by_host(current.owners.items()),
        "pins": _by_host(current.pins.items()),
        "draining": sorted(current.draining),
        "forbidden": _by_host(current.forbidden),
        "passed_over": passed_over,
        "arrivals": {
            host: [each.started_ms, each.seen_ms, each.returns, int(each.is_present)]
            for host, each in sorted(current.arrivals.items())
        },
        "moves": {
            str(number): [move.source, move.started_ms]
            for number, move in sorted(current.moves.items())
        },
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_assignment_map(data: bytes, where: str) -> AssignmentMap:
    """What the node at `where` holds.

    Raises DataCorruptionError if it is no map, or one of a later version. Then it must not be
    written: what persons asked for would be lost.
    """
    try:
        fields: Any = json.loads(data)
        if fields["version"] != VERSION:
            raise DataCorruptionError(where, f"version {fields['version']!r} is not {VERSION}")
        return AssignmentMap(
            epoch=_number(fields["epoch"]),
            owners=_one_host_each(fields["owners"]),
            pins=_one_host_each(fields["pins"]),
            draining=frozenset(map(_host, _array(fields["draining"]))),
            forbidden=frozenset(_pairs(fields["forbidden"])),
            passed_over={
                (_container(int(number)), _host(host)): _passed_over(*entry)
                for host, entries in fields["passed_over"].items()
                for number, entry in entries.items()
            },
            arrivals={_host(host): _arrival(*entry) for host, entry in fields["arrivals"].items()},
            moves={
                _container(int(number)): _move(*entry) for number, entry in fields["moves"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataCorruptionError(where, f"no assignment map ({error!r:.200})") from error


def _by_host(pairs: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for number, host in sorted(pairs):
        grouped.setdefault(host, []).append(number)
    return grouped


def _pairs(grouped: Any) -> list[tuple[int, str]]:
    return [
        (_container(number), _host(host))
        for host, numbers in grouped.items()
        for number in _array(numbers)
    ]


def _one_host_each(grouped: Any) -> dict[int, str]:
    pairs = _pairs(grouped)
    hosts = dict(pairs)
    if len(hosts) != len(pairs):
        raise InvalidArgumentError("owners", len(pairs) - len(hosts), "a container has two hosts")
    return hosts


def _passed_over(
    until_ms: Any, failures: Any, failed_ms: Any, is_over: Any, *_later: Any
) -> PassedOver:
    return PassedOver(_number(until_ms), _number(failures), _number(failed_ms), bool(is_over))


def _arrival(started_ms: Any, seen_ms: Any, returns: Any, is_present: Any, *_later: Any) -> Arrival:
    return Arrival(_number(started_ms), _number(seen_ms), _number(returns), bool(is_present))


def _move(source: Any, started_ms: Any, *_later: Any) -> PlannedMove:
    return PlannedMove(_host(source), _number(started_ms))


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _host(value: Any) -> str:
    check_host_id("host_id", value)
    return str(value)


def _container(value: Any) -> int:
    check_number("container", value, 0, CONTAINERS_MAX - 1)
    return int(value)


def _number(value: Any) -> int:
    check_number("number", value, 0, NUMBER_MAX)
    return int(value)
