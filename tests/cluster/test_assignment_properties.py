"""What holds for each decision, whatever the hosts report and whatever the map was before."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.cluster.assignment import MOVES_AT_ONCE, assign
from segmentstore.cluster.assignment_map import (
    Arrival,
    AssignmentMap,
    PassedOver,
    PlannedMove,
    decode_assignment_map,
    encode_assignment_map,
)
from segmentstore.cluster.host_record import ContainerReport, HostRecord, ReportedState
from tests.cluster.decision_checks import check_decision, spread
from tests.cluster.hosts_model import START_MS, host, reports
from tests.support.suites import examples

NOW = START_MS + 3_600_000
HOST_IDS = [f"h{number}" for number in range(6)]
CONTAINERS = 12
TIMES = st.sampled_from([0, 30_000, 70_000, 500_000, 3_600_000, 4_000_000]).map(
    lambda ago_ms: NOW + 400_000 - ago_ms
)
NUMBERS = st.integers(0, CONTAINERS + 1)
PAIRS = st.tuples(NUMBERS, st.sampled_from(HOST_IDS))
CAPACITIES = st.sampled_from([1, 50, 100, 100, 100, 300])


@st.composite
def any_hosts(draw: st.DrawFn) -> dict[str, HostRecord]:
    report = st.builds(ContainerReport, st.sampled_from(ReportedState), TIMES)
    return {
        host_id: HostRecord(
            host_id,
            "10.0.0.1",
            9090,
            "0.1.0",
            draw(TIMES),
            draw(CAPACITIES),
            draw(st.booleans()),
            containers=draw(st.dictionaries(NUMBERS, report, max_size=8)),
        )
        for host_id in draw(st.lists(st.sampled_from(HOST_IDS), unique=True))
    }


ANY_MAPS = st.builds(
    AssignmentMap,
    epoch=st.integers(0, 99),
    owners=st.dictionaries(NUMBERS, st.sampled_from(HOST_IDS), max_size=CONTAINERS),
    pins=st.dictionaries(NUMBERS, st.sampled_from(HOST_IDS), max_size=4),
    draining=st.frozensets(st.sampled_from(HOST_IDS), max_size=3),
    forbidden=st.frozensets(PAIRS, max_size=8),
    passed_over=st.dictionaries(
        PAIRS, st.builds(PassedOver, TIMES, st.integers(1, 9), TIMES, st.booleans()), max_size=6
    ),
    arrivals=st.dictionaries(
        st.sampled_from(HOST_IDS),
        st.builds(Arrival, TIMES, TIMES, st.integers(0, 5), st.booleans()),
    ),
    moves=st.dictionaries(
        NUMBERS,
        st.builds(PlannedMove, st.sampled_from(HOST_IDS), TIMES),
        max_size=MOVES_AT_ONCE,
    ),
)


def shuffled(records: Mapping[str, HostRecord], seed: int) -> dict[str, HostRecord]:
    items = list(records.items())
    random.Random(seed).shuffle(items)
    return dict(items)


@settings(max_examples=examples(1_500), deadline=None)
@given(any_hosts(), ANY_MAPS, st.integers())
def test_any_decision_is_total_legal_bounded_stable_and_the_same_for_each_leader(
    records: dict[str, HostRecord], before: AssignmentMap, seed: int
) -> None:
    after = assign(NOW, CONTAINERS, records, before)
    check_decision(CONTAINERS, records, before, after)
    assert assign(NOW, CONTAINERS, records, after) is after
    read = decode_assignment_map(encode_assignment_map(before), "map")
    again = assign(NOW, CONTAINERS, shuffled(records, seed), read)
    assert encode_assignment_map(again) == encode_assignment_map(after)


def test_a_decision_heeds_what_it_notes_itself() -> None:
    """The only host is given a container that it has not dropped, and a failure is noted with it.
    So the move of the container that was under way is over.
    """
    since_ms = NOW + 400_000
    starting = {0: ContainerReport(ReportedState.STARTING, since_ms)}
    failed = {0: ContainerReport(ReportedState.FAILED, since_ms)}
    record = HostRecord("h0", "10.0.0.1", 9090, "0.1.0", since_ms, 1, draining=True)
    records = {
        "h0": dataclasses.replace(record, containers=starting),
        "h1": dataclasses.replace(record, host_id="h1", draining=False, containers=failed),
        "h2": dataclasses.replace(record, host_id="h2"),
    }
    before = AssignmentMap(moves={0: PlannedMove("h0", NOW - 100_000)})
    after = assign(NOW, CONTAINERS, records, before)
    check_decision(CONTAINERS, records, before, after)
    assert after.epoch == 1
    assert (0, "h1") in after.passed_over
    assert assign(NOW, CONTAINERS, records, after) is after


def test_a_decision_is_not_taken_back_by_the_next_one() -> None:
    """Placed for the first time, a container stood where the next decision moved another away."""
    capacities = {"h1": 50, "h0": 1, "h3": 300, "h2": 1, "h4": 1, "h5": 1}
    since_ms = NOW + 400_000
    records = {
        name: HostRecord(name, "10.0.0.1", 9090, "0.1.0", since_ms, capacity)
        for name, capacity in capacities.items()
    }
    running = {0: ContainerReport(ReportedState.RUNNING, since_ms)}
    records["h5"] = dataclasses.replace(records["h5"], containers=running)
    before = AssignmentMap(
        owners={1: "h1", 2: "h0", 3: "h0"}, forbidden=frozenset([(0, "h3"), (1, "h1")])
    )
    after = assign(NOW, 12, records, before)
    check_decision(12, records, before, after)
    assert assign(NOW, 12, records, after) is after


FLEETS = st.lists(CAPACITIES, min_size=1, max_size=8).map(
    lambda capacities: {
        f"h{number}": host(f"h{number}", capacity) for number, capacity in enumerate(capacities)
    }
)


@settings(max_examples=examples(600), deadline=None)
@given(FLEETS, st.integers(1, 100))
def test_no_move_makes_a_decision_more_even(
    records: dict[str, HostRecord], containers: int
) -> None:
    current = assign(NOW, containers, records, AssignmentMap())
    least = spread(current, records)
    example = {owner: number for number, owner in current.owners.items()}
    for number in example.values():
        for host_id in records:
            other = dataclasses.replace(current, owners={**current.owners, number: host_id})
            assert spread(other, records) >= least
    if len({record.capacity for record in records.values()}) == 1:
        counts = Counter(current.owners.values())
        assert max(counts.values()) - min(counts[host_id] for host_id in records) <= 1


@settings(max_examples=examples(600), deadline=None)
@given(FLEETS, st.integers(1, 100), st.data())
def test_a_host_that_leaves_and_another_that_comes_move_no_more_than_they_have(
    records: dict[str, HostRecord], containers: int, data: st.DataObject
) -> None:
    """For any capacities: nothing moves between the others."""
    current = assign(NOW, containers, records, AssignmentMap())
    records = reports(records, current)
    lost = data.draw(st.sampled_from(sorted(records)))
    left = {host_id: record for host_id, record in records.items() if host_id != lost}
    after = assign(NOW, containers, left, current)
    assert all(
        owner == current.owners[number] or current.owners[number] == lost
        for number, owner in after.owners.items()
    )
    if left:
        left = reports(left, after)
        assert assign(NOW, containers, left, after) is after

    joined = {**records, "new": host("new", data.draw(CAPACITIES))}
    before = current
    while (after := assign(NOW, containers, joined, before)) is not before:
        assert all(
            owner in (before.owners[number], "new") for number, owner in after.owners.items()
        )
        before, joined = after, reports(joined, after)
    assert spread(before, joined) == spread(
        assign(
            NOW,
            containers,
            {key: host(key, one.capacity) for key, one in joined.items()},
            AssignmentMap(),
        ),
        joined,
    )


@settings(max_examples=examples(400), deadline=None)
@given(FLEETS, st.integers(1, 60), st.data())
def test_a_drained_host_is_empty_in_as_few_rounds_as_the_bound_allows(
    records: dict[str, HostRecord], containers: int, data: st.DataObject
) -> None:
    records["spare"] = host("spare")
    current = assign(NOW, containers, records, AssignmentMap())
    drained = data.draw(st.sampled_from(sorted(records)))
    held = sum(owner == drained for owner in current.owners.values())
    current = dataclasses.replace(current, draining=frozenset({drained}))
    for _ in range(-(-held // MOVES_AT_ONCE)):
        records = reports(records, current)
        after = assign(NOW, containers, records, current)
        changed = [key for key, owner in after.owners.items() if owner != current.owners[key]]
        assert {current.owners[number] for number in changed} == {drained}
        current = after
    assert drained not in current.owners.values()
    after = assign(NOW, containers, reports(records, current), current)
    assert (after.owners, after.moves) == (current.owners, {})
