"""Which host serves which container: one decision, from what hosts report and the map before it.

Pure; why it is so: docs/decisions/0070-assignment-by-an-elected-leader.md. A container that its
host does not have in hand is placed at once. One that it has is moved by plan, few at a time: the
map names the new owner, the old one releases it, then the new one starts it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from segmentstore.cluster.assignment_map import CONTAINERS_MAX, AssignmentMap, PlannedMove
from segmentstore.cluster.host_arrivals import flapping_hosts, noted_arrivals
from segmentstore.cluster.host_record import NUMBER_MAX, HostRecord, check_number
from segmentstore.cluster.placement import Placement
from segmentstore.cluster.start_failures import (
    failed_since,
    failing_hosts,
    noted_failures,
    undropped_failures,
)
from segmentstore.contracts.errors import InvalidArgumentError

MOVES_AT_ONCE: Final = 4
_DECISIONS_MAX: Final = 4
"""One upon another, in one map."""
MOVE_MS_MAX: Final = 10 * 60 * 1000
"""A move that takes longer makes room for others: a host that hangs does not stop all of them."""


def assign(
    now_ms: int, containers: int, hosts: Mapping[str, HostRecord], before: AssignmentMap
) -> AssignmentMap:
    """The map to write, or `before` itself where nothing is to change.

    `now_ms` is the leader's clock, `hosts` those registered, by id. The same arguments give the
    same map. It takes time in proportion to containers, and to containers times hosts where most of
    them are placed anew. Raises InvalidArgumentError.
    """
    check_number("now_ms", now_ms, 0, NUMBER_MAX)
    check_number("containers", containers, 1, CONTAINERS_MAX)
    for host_id, record in hosts.items():
        if record.host_id != host_id:
            raise InvalidArgumentError("hosts", host_id, f"its record is of {record.host_id}")
    after, decided = before, _decided(now_ms, containers, hosts, before)
    # What is noted of a placement, or placed, may change what else is decided. Else the next
    # decision would change the map again, though nothing has happened.
    for _ in range(_DECISIONS_MAX):
        if decided == after:
            break
        after, decided = decided, _decided(now_ms, containers, hosts, decided)
    return before if after == before else dataclasses.replace(after, epoch=before.epoch + 1)


def _decided(
    now_ms: int, containers: int, hosts: Mapping[str, HostRecord], before: AssignmentMap
) -> AssignmentMap:
    """The map in the epoch of the one before."""
    arrivals = noted_arrivals(now_ms, hosts, before.arrivals)
    passed_over = noted_failures(now_ms, containers, hosts, before)
    undropped = undropped_failures(hosts, passed_over)
    placement = Placement(containers, hosts, before, passed_over, undropped)
    flapping = flapping_hosts(now_ms, arrivals, placement.open_hosts)
    placement.damped = flapping | failing_hosts(passed_over)
    _place_unserved(placement)
    moves = {
        number: move
        for number, move in before.moves.items()
        if number < containers and _is_under_way(now_ms, placement, before, number, move)
    }
    _Planner(now_ms, placement, moves).plan()
    after = dataclasses.replace(before, owners=placement.owners, passed_over=passed_over)
    if any(placement.owners.get(number) == host_id for number, host_id in undropped):
        # Without another choice. It is started there when its time has passed.
        passed_over = noted_failures(now_ms, containers, hosts, after)
    return dataclasses.replace(after, passed_over=passed_over, arrivals=arrivals, moves=moves)


# --- containers that no host serves -------------------------------------------------------------


def _place_unserved(placement: Placement) -> None:
    """Give each container without a host, and each that failed on its host, to another at once."""
    waiting = [
        number
        for number in range(placement.containers)
        if (owner := placement.owners.get(number)) is None
        or _has_failed(placement, number, owner)
        or ((number, owner) in placement.forbidden and not placement.allowed(number))
    ]

    # Those with the least choice first: what comes behind them evens the counts out.
    def choice(number: int) -> tuple[bool, bool, int]:
        return number not in placement.pins, number not in placement.restricted, number

    for number in sorted(waiting, key=choice):
        _place(placement, number)


def _has_failed(placement: Placement, number: int, owner: str) -> bool:
    return (number, owner) in placement.passed_over and (
        failed_since(placement.hosts[owner], number) is not None
    )


def _place(placement: Placement, number: int) -> None:
    owner = placement.owners.get(number)
    allowed = placement.allowed(number)
    ready = placement.ready(number)
    if not ready:
        if owner in allowed:
            return  # It is started again there when its time has passed.
        if allowed:
            soonest = min(allowed, key=lambda each: (placement.over_at(number, each), each))
            placement.put(number, soonest)
        elif owner is not None and (number, owner) in placement.forbidden:
            placement.put(number, None)
        return
    # A target that vanished in a move leaves a container that still runs where it was.
    running = [each for each in placement.running.get(number, ()) if each in ready]
    pinned = placement.pinned_to(number)
    if running:
        placement.put(number, running[0])
    elif pinned is not None:
        placement.put(number, pinned)
    else:
        placement.put(number, placement.emptiest(placement.refuges(number)))


def _is_under_way(
    now_ms: int, placement: Placement, before: AssignmentMap, number: int, move: PlannedMove
) -> bool:
    """Whether a move of the map before is not at its end: by success, failure, loss or time."""
    owner = placement.owners.get(number)
    if owner is None or owner == move.source or _has_failed(placement, number, owner):
        return False
    if not 0 <= now_ms - move.started_ms < MOVE_MS_MAX:
        return False
    if placement.has(move.source, number):
        return True
    return owner == before.owners.get(number) and not placement.runs(owner, number)


# --- planned moves ------------------------------------------------------------------------------


class _Planner:
    """Moves of containers that a host has in hand, within the bound, and of idle ones at once."""

    def __init__(self, now_ms: int, placement: Placement, moves: dict[int, PlannedMove]) -> None:
        self._now_ms = now_ms
        self._placement = placement
        self._moves = moves

    def plan(self) -> None:
        """In this order: off hosts that must not have them, to their pins, for balance."""
        # What leaves a host evens the counts out by itself; balance before it moves too much.
        if self._move_off() and self._move_to_pins():
            self._balance()

    def _move(self, number: int, target: str) -> bool:
        """Move it; whether there was room for it."""
        source = self._placement.owners[number]
        if self._placement.has(source, number):
            if len(self._moves) >= MOVES_AT_ONCE:
                return False
            self._moves[number] = PlannedMove(source, self._now_ms)
        self._placement.put(number, target)
        return True

    def _move_off(self) -> bool:
        """Off draining hosts, those that are about to stop first, and off forbidden ones."""
        placement = self._placement
        unwanted = set(placement.hosts).difference(placement.open_hosts)
        leaving = [
            (host_id not in unwanted, not placement.hosts[host_id].draining, host_id, number)
            for number, host_id in placement.owners.items()
            if number not in self._moves
            and (host_id in unwanted or (number, host_id) in placement.forbidden)
        ]
        is_done = True
        for *_, number in sorted(leaving):
            # A host that flaps is better than one that ends: that would interrupt it, too.
            if refuges := placement.refuges(number):
                target = placement.pinned_to(number)
                if target is None or target not in refuges:
                    target = placement.emptiest(refuges)
                is_done &= self._move(number, target)
        return is_done

    def _move_to_pins(self) -> bool:
        placement = self._placement
        is_done = True
        for number in sorted(placement.pins):
            owner, target = placement.owners.get(number), placement.pinned_to(number)
            if owner is None or target is None or target == owner or number in self._moves:
                continue
            if placement.is_target(number, target) and self._is_movable(number, owner):
                is_done &= self._move(number, target)
        return is_done

    def _is_movable(self, number: int, owner: str) -> bool:
        """Not while it starts: that would begin again elsewhere."""
        return self._placement.runs(owner, number) or not self._placement.has(owner, number)

    def _balance(self) -> None:
        """One container at a time from the fullest host to the emptiest, while it helps."""
        failing = self._placement.uncount_failing()
        movable: dict[str, list[int]] = {host_id: [] for host_id in self._placement.open_hosts}
        for number, owner in self._placement.owners.items():
            if (
                owner in movable
                and number not in self._moves
                and number not in failing
                and self._placement.pinned_to(number) is None
                and self._is_movable(number, owner)
            ):
                movable[owner].append(number)
        for host_id, numbers in movable.items():
            numbers.sort(key=lambda number: self._costs_least(number, host_id))
        while True:
            if len(self._moves) >= MOVES_AT_ONCE:
                movable = {
                    host_id: [each for each in numbers if not self._placement.has(host_id, each)]
                    for host_id, numbers in movable.items()
                }
            step = self._better_step(movable)
            if step is None:
                return
            number, source, target = step
            self._move(number, target)
            movable[source].remove(number)

    def _costs_least(self, number: int, owner: str) -> tuple[int, int]:
        """An idle one first, then the one that runs for the shortest time: its cache is cold."""
        report = self._placement.hosts[owner].containers.get(number)
        return (-NUMBER_MAX if report is None else -report.since_ms), number

    def _better_step(self, movable: Mapping[str, list[int]]) -> tuple[int, str, str] | None:
        """A move that makes the counts more even: container, source and target."""
        placement = self._placement
        sources = sorted(filter(movable.get, movable), key=placement.gain, reverse=True)
        targets = sorted(placement.steady(placement.open_hosts), key=placement.cost.__getitem__)
        for source in sources:
            for target in targets:
                if placement.gain(source) <= placement.cost[target]:
                    break
                for number in movable[source]:
                    if placement.is_target(number, target):
                        return number, source, target
        return None
