"""What a host begins next: starts, stops, and waits for the owner before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from segmentstore.cluster.assignment_map import AssignmentMap, PassedOver
from segmentstore.cluster.follow_plan import (
    HANDOVER_S,
    Steps,
    steps,
)
from segmentstore.cluster.host_record import ContainerReport, HostRecord, ReportedState
from segmentstore.container import ContainerStatus, HostState

NOTHING = Steps((), (), None)


def assigned(**owners: str) -> AssignmentMap:
    """Containers by number behind a `c`: `c0="one"`."""
    return AssignmentMap(owners={int(name[1:]): owner for name, owner in owners.items()})


def other(*numbers: int, state: ReportedState = ReportedState.RUNNING) -> dict[str, HostRecord]:
    """Another host, which has these containers."""
    reports = {number: ContainerReport(state, 0) for number in numbers}
    return {"other": HostRecord("other", "h", 1, "1", 0, containers=reports)}


def here(**states: HostState) -> dict[int, ContainerStatus]:
    """What this host has: `c0=HostState.RUNNING`."""
    return {int(name[1:]): ContainerStatus(state, 0) for name, state in states.items()}


def test_what_the_map_gives_is_started_and_what_it_takes_is_stopped() -> None:
    waited: dict[int, float] = {}
    first = steps(0, "me", assigned(c0="me", c1="other", c2="me"), {}, {}, waited)
    assert first == Steps((0, 2), (), None)
    statuses = here(c0=HostState.RUNNING, c2=HostState.STARTING)
    assert steps(1, "me", assigned(c0="me", c2="me"), {}, statuses, waited) == NOTHING
    later = steps(2, "me", assigned(c0="other", c2="other"), {}, statuses, waited)
    assert later == Steps((), (0, 2), None)
    failed = here(c0=HostState.FAILED, c1=HostState.STOPPED, c2=HostState.STOPPING)
    assert steps(3, "me", assigned(), {}, failed, waited) == Steps((), (0,), None)


@pytest.mark.parametrize(
    "state", [ReportedState.STARTING, ReportedState.RUNNING, ReportedState.STOPPING]
)
def test_the_owner_before_is_waited_for_and_not_for_ever(state: ReportedState) -> None:
    waited: dict[int, float] = {}
    ours = assigned(c0="me", c1="me")
    assert steps(5, "me", ours, other(1, state=state), {}, waited) == ((0,), (), 5 + HANDOVER_S)
    statuses = here(c0=HostState.RUNNING)
    soon = 5 + HANDOVER_S - 1
    assert steps(soon, "me", ours, other(1), statuses, waited) == ((), (), 5 + HANDOVER_S)
    assert steps(soon, "me", ours, other(), statuses, waited) == Steps((1,), (), None)
    # It has another one once more: that is another wait.
    steps(100, "me", ours, other(1), statuses, waited)
    assert steps(100 + HANDOVER_S, "me", ours, other(1), statuses, waited).starts == (1,)


def test_what_failed_with_the_owner_before_is_not_waited_for() -> None:
    failed = other(0, state=ReportedState.FAILED)
    assert steps(0, "me", assigned(c0="me"), failed, {}, {}).starts == (0,)


def test_a_failed_container_is_started_again_when_the_map_says_so() -> None:
    failed = {0: ContainerStatus(HostState.FAILED, since_ms=77, cause=OSError())}
    ours = assigned(c0="me")
    assert steps(0, "me", ours, {}, failed, {}) == NOTHING
    for over, starts in (
        (PassedOver(1_000, 1, failed_ms=77), ()),
        (PassedOver(1_000, 1, failed_ms=76, is_over=True), ()),
        (PassedOver(1_000, 1, failed_ms=77, is_over=True), (0,)),
    ):
        passed = replace(ours, passed_over={(0, "me"): over})
        assert steps(0, "me", passed, {}, failed, {}).starts == starts


def test_a_container_that_is_taken_away_is_not_waited_for() -> None:
    waited: dict[int, float] = {}
    steps(0, "me", assigned(c0="me", c1="me"), other(0, 1), {}, waited)
    assert waited == {0: 0, 1: 0}
    steps(1, "me", assigned(c1="me"), other(0, 1), {}, waited)
    assert waited == {1: 0}


def test_no_more_are_begun_than_start_at_a_time() -> None:
    ours = assigned(c0="me", c1="me", c2="me", c3="me")
    assert steps(0, "me", ours, {}, {}, {}).starts == (0, 1)
    statuses = here(c0=HostState.RUNNING, c1=HostState.STARTING)
    assert steps(0, "me", ours, {}, statuses, {}).starts == (2,)
    statuses |= here(c2=HostState.STARTING)
    assert steps(0, "me", ours, {}, statuses, {}) == NOTHING
