"""The exact rules of the assignment, by example."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from segmentstore.cluster import map_edits
from segmentstore.cluster.assignment import MOVE_MS_MAX, MOVES_AT_ONCE, assign
from segmentstore.cluster.assignment_map import AssignmentMap, PassedOver, PlannedMove, unowned
from segmentstore.cluster.host_arrivals import CALM_MS, FLAP_WINDOW_MS, FLAPPING_MS, FLAPPING_MS_MAX
from segmentstore.cluster.host_record import ContainerReport, HostRecord, ReportedState
from segmentstore.cluster.start_failures import (
    FORGOTTEN_MS,
    PASS_OVER_MS,
    PASS_OVER_MS_MAX,
    PASSED_OVER_MAX,
)
from segmentstore.contracts.errors import InvalidArgumentError
from tests.cluster.hosts_model import START_MS, host, hosts, reports, with_state

NOW = START_MS + 3_600_000
EMPTY = AssignmentMap()


def counts(current: AssignmentMap) -> dict[str, int]:
    return dict(Counter(current.owners.values()))


def settled(
    containers: int, records: dict[str, HostRecord], before: AssignmentMap = EMPTY
) -> tuple[AssignmentMap, dict[str, HostRecord]]:
    """A map, and the hosts that serve what it says."""
    current = assign(NOW, containers, records, before)
    return current, reports(records, current)


def moved(before: AssignmentMap, after: AssignmentMap) -> set[int]:
    return {number for number, owner in after.owners.items() if before.owners.get(number) != owner}


def failed(records: dict[str, HostRecord], host_id: str, number: int, since_ms: int) -> None:
    records[host_id] = with_state(records[host_id], number, ReportedState.FAILED, since_ms)


# --- counts -------------------------------------------------------------------------------------


def test_a_first_decision_divides_all_containers() -> None:
    current = assign(NOW, 8, hosts(3), AssignmentMap())
    assert counts(current) == {"h00": 3, "h01": 3, "h02": 2}
    assert (current.epoch, unowned(8, current), current.moves) == (1, [], {})


def test_a_host_gets_containers_by_its_capacity() -> None:
    records = {"a": host("a", 300), "b": host("b", 100), "c": host("c", 1)}
    assert counts(assign(NOW, 8, records, AssignmentMap())) == {"a": 6, "b": 2}


def test_a_decision_without_a_change_is_the_map_before() -> None:
    current, records = settled(8, hosts(3))
    assert assign(NOW + 60_000, 8, records, current) is current


def test_without_a_host_no_container_has_an_owner() -> None:
    current, _ = settled(3, hosts(2))
    empty = assign(NOW, 3, {}, current)
    assert (empty.owners, empty.epoch, unowned(3, empty)) == ({}, 2, [0, 1, 2])
    assert assign(NOW, 3, {}, empty) is empty


@pytest.mark.parametrize("containers", [0, 65537, 1.0])
def test_a_number_of_containers_that_no_store_has_is_refused(containers: int) -> None:
    with pytest.raises(InvalidArgumentError, match="containers"):
        assign(NOW, containers, hosts(1), AssignmentMap())


def test_a_record_under_another_hosts_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="its record is of a"):
        assign(NOW, 1, {"b": host("a")}, AssignmentMap())


# --- hosts that come and leave ------------------------------------------------------------------


def test_all_containers_of_a_lost_host_are_placed_at_once() -> None:
    current, records = settled(1024, hosts(16))
    lost = {number for number, owner in current.owners.items() if owner == "h03"}
    del records["h03"]
    after = assign(NOW, 1024, records, current)
    assert moved(current, after) == lost
    assert after.moves == {}
    assert sorted(set(counts(after).values())) == [68, 69]
    assert assign(NOW, 1024, reports(records, after), after) is after


def test_a_new_host_gets_its_share_by_a_few_moves_at_a_time() -> None:
    current, records = settled(1024, hosts(16))
    records["new"] = host("new")
    rounds = 0
    all_moved: set[int] = set()
    while (after := assign(NOW, 1024, records, current)) is not current:
        # All moves of the round before have ended.
        changed = moved(current, after)
        assert set(after.moves) == changed
        assert len(changed) <= MOVES_AT_ONCE
        assert not changed & all_moved
        all_moved |= changed
        current, records, rounds = after, reports(records, after), rounds + 1
    assert counts(current)["new"] == 60 == len(all_moved)
    assert rounds == 60 // MOVES_AT_ONCE + 1  # the last ends the last moves


def test_a_new_host_gets_at_once_what_no_host_has_begun_to_start() -> None:
    first = assign(NOW, 64, hosts(1), AssignmentMap())
    after = assign(NOW, 64, hosts(4), first)
    assert set(counts(after).values()) == {16}
    assert after.moves == {}


def test_what_starts_is_not_moved_for_balance() -> None:
    current = assign(NOW, 8, hosts(1), AssignmentMap())
    records = hosts(2)
    for number in range(8):
        records["h00"] = with_state(records["h00"], number, ReportedState.STARTING)
    assert counts(assign(NOW, 8, records, current)) == {"h00": 8}


def test_of_containers_to_move_the_one_that_started_last_is_taken() -> None:
    current, records = settled(4, hosts(1))
    records["h00"] = with_state(records["h00"], 2, ReportedState.RUNNING, START_MS + 9)
    records["h01"] = host("h01")
    assert list(assign(NOW, 4, records, current).moves) == [2, 0]


def test_a_restarted_host_keeps_its_containers() -> None:
    current, records = settled(8, hosts(2))
    records["h00"] = host("h00", started_ms=NOW)
    after = assign(NOW + 5, 8, records, current)
    assert after.owners == current.owners
    assert (after.arrivals["h00"].seen_ms, after.arrivals["h00"].returns) == (NOW + 5, 1)
    after = assign(NOW + FLAP_WINDOW_MS, 8, records, current)
    assert after.arrivals["h00"].returns == 0


def test_a_host_is_remembered_for_a_while_after_it_left() -> None:
    current = assign(NOW, 1, hosts(2), AssignmentMap())
    left = assign(NOW + 1, 1, hosts(1), current)
    assert not left.arrivals["h01"].is_present
    assert assign(NOW + FLAP_WINDOW_MS - 1, 1, hosts(1), left) is left
    assert set(assign(NOW + FLAP_WINDOW_MS, 1, hosts(1), left).arrivals) == {"h00"}


def flapped(times: int) -> tuple[AssignmentMap, dict[str, HostRecord]]:
    """h01 came back so often, a second apart; h00 serves all."""
    current, records = settled(4, {"h00": host("h00"), "h01": host("h01")})
    for number in range(times):
        current = assign(NOW + number, 4, {"h00": records["h00"]}, current)
        records = reports({"h00": host("h00")}, current) | {"h01": host("h01")}
        if number < times - 1:
            # Present for a moment, in which h00 has not released anything.
            current = assign(NOW + number, 4, records, current)
    return current, records


def test_a_host_that_came_back_twice_gets_its_share_again() -> None:
    current, records = flapped(2)
    after = assign(NOW + 10, 4, records, current)
    assert (after.arrivals["h01"].returns, len(after.moves)) == (2, 2)


def test_a_host_that_left_in_order_does_not_flap_however_often() -> None:
    current, records = settled(8, hosts(2))
    for times in range(1, 6):
        now_ms = NOW + 1000 * times
        leaving = {**records, "h01": dataclasses.replace(records["h01"], draining=True)}
        current = assign(now_ms, 8, leaving, current)
        alone = reports({"h00": records["h00"]}, current)
        current = assign(now_ms + 1, 8, alone, current)
        back = host("h01", started_ms=START_MS + times)
        current = assign(now_ms + 2, 8, {**alone, "h01": back}, current)
        assert current.arrivals["h01"].returns == 0
        records = reports({"h00": records["h00"], "h01": back}, current)


def test_a_flapping_host_gets_no_planned_move_until_it_stayed() -> None:
    current, records = flapped(3)
    after = assign(NOW + 10, 4, records, current)
    assert (after.arrivals["h01"].returns, after.moves) == (3, {})
    records = reports(records, after)
    assert assign(NOW + 9 + FLAPPING_MS, 4, records, after) is after
    assert len(assign(NOW + 10 + FLAPPING_MS, 4, records, after).moves) == 2


def test_a_host_flaps_for_longer_with_each_further_return() -> None:
    for times, span_ms in ((4, 2 * FLAPPING_MS), (5, 4 * FLAPPING_MS), (9, FLAPPING_MS_MAX)):
        current, records = flapped(times)
        after = assign(NOW + 10, 4, records, current)
        records = reports(records, after)
        assert assign(NOW + 9 + span_ms, 4, records, after) is after
        assert len(assign(NOW + 10 + span_ms, 4, records, after).moves) == 2


def test_a_host_that_served_for_a_while_between_its_returns_does_not_flap() -> None:
    current, records = settled(4, hosts(2))
    now_ms = NOW
    for _ in range(9):
        now_ms += CALM_MS
        gone = assign(now_ms, 4, {"h00": records["h00"]}, current)
        records = reports({"h00": host("h00")}, gone) | {"h01": host("h01")}
        current = assign(now_ms, 4, records, gone)
        assert current.arrivals["h01"].returns == 1
        assert len(current.moves) == 2
        records = reports(records, current)
        current = assign(now_ms, 4, records, current)


def test_where_most_hosts_flap_none_is_held_to_do_so() -> None:
    """Else the last one would be given everything, and keep it."""
    current, records = flapped(3)
    current = assign(NOW + 10, 4, records, current)
    other = dataclasses.replace(current.arrivals["h01"], started_ms=START_MS)
    both = dataclasses.replace(current, arrivals=dict.fromkeys(("h00", "h01"), other))
    assert len(assign(NOW + 11, 4, records, both).moves) == 2


def test_a_host_that_leaves_does_not_wait_for_one_that_flaps() -> None:
    current, records = flapped(3)
    leaving = {**records, "h00": dataclasses.replace(records["h00"], draining=True)}
    assert len(assign(NOW + 10, 4, leaving, current).moves) == 4
    drained = map_edits.drain(current, "h00")
    assert len(assign(NOW + 10, 4, records, drained).moves) == 4


def test_a_flapping_host_serves_if_there_is_no_other() -> None:
    current, _ = flapped(3)
    assert counts(assign(NOW + 10, 4, {"h01": host("h01")}, current)) == {"h01": 4}


def test_a_lost_hosts_containers_do_not_go_to_one_that_flaps() -> None:
    current, records = flapped(3)
    records["h02"] = host("h02")
    del records["h00"]
    assert counts(assign(NOW + 10, 4, records, current)) == {"h02": 4}


# --- planned moves ------------------------------------------------------------------------------


def test_a_move_is_under_way_until_the_new_owner_runs_and_the_old_one_released() -> None:
    current, records = settled(12, hosts(1))
    records["h01"] = host("h01")
    first = assign(NOW, 12, records, current)
    assert first.moves == dict.fromkeys(range(4), PlannedMove("h00", NOW))
    records["h01"] = with_state(records["h01"], 0, ReportedState.STARTING)
    records["h00"] = with_state(records["h00"], 1, ReportedState.STOPPING)
    assert assign(NOW, 12, records, first) is first
    records["h01"] = with_state(records["h01"], 0, ReportedState.RUNNING)
    assert assign(NOW, 12, records, first) is first  # the old owner still lists it
    records["h00"] = with_state(records["h00"], 0, None)
    assert set(assign(NOW, 12, records, first).moves) == {1, 2, 3, 4}


def test_a_move_that_hangs_makes_room_after_a_while() -> None:
    current, records = settled(12, hosts(1))
    records["h01"] = host("h01")
    first = assign(NOW, 12, records, current)
    assert assign(NOW + MOVE_MS_MAX - 1, 12, records, first) is first
    assert set(assign(NOW + MOVE_MS_MAX, 12, records, first).moves) == {4, 5}


def test_a_container_whose_new_owner_vanished_stays_where_it_still_runs() -> None:
    current, records = settled(12, hosts(1))
    first = assign(NOW, 12, {**records, "h01": host("h01")}, current)
    assert counts(first) == {"h00": 8, "h01": 4}
    after = assign(NOW, 12, records, first)
    assert (after.owners, after.moves) == (current.owners, {})


def test_a_container_whose_new_owner_vanished_remains_a_move_if_its_host_drains() -> None:
    current, records = settled(1, hosts(1))
    current = map_edits.drain(current, "h00")
    first = assign(NOW, 1, {**records, "h01": host("h01")}, current)
    after = assign(NOW + 1, 1, {**records, "h02": host("h02")}, first)
    assert (after.owners, after.moves) == ({0: "h02"}, {0: PlannedMove("h00", NOW)})


# --- failed starts ------------------------------------------------------------------------------


def test_a_container_that_failed_goes_elsewhere_at_once() -> None:
    current, records = settled(9, hosts(3))
    for number in range(0, 9, 3):
        assert current.owners[number] == "h00"
        failed(records, "h00", number, START_MS + 7)
    after = assign(NOW, 9, records, current)
    assert moved(current, after) == {0, 3, 6}
    assert after.moves == {}
    expected = PassedOver(NOW + PASS_OVER_MS, 1, START_MS + 7)
    assert after.passed_over == dict.fromkeys([(0, "h00"), (3, "h00"), (6, "h00")], expected)


def test_a_host_gets_a_failed_container_again_when_its_time_has_passed() -> None:
    current, records = settled(2, hosts(2))
    failed(records, "h00", 0, START_MS + 7)
    after = assign(NOW, 2, records, current)
    records = reports(records, after)
    assert assign(NOW + PASS_OVER_MS - 1, 2, records, after) is after
    later = assign(NOW + PASS_OVER_MS, 2, records, after)
    assert later.passed_over[0, "h00"].is_over
    assert (later.owners[0], set(later.moves)) == ("h00", {0})  # by balance


def test_a_host_that_fails_what_others_do_not_gets_no_planned_move() -> None:
    current, records = settled(12, hosts(1))
    records["bad"] = host("bad")
    now, tried = NOW, set()
    for span in (60, 120, 240):
        current = assign(now, 12, records, current)
        assert len(current.moves) == MOVES_AT_ONCE
        tried |= set(current.moves)
        records = reports(records, current)
        for number in current.moves:
            failed(records, "bad", number, now)
        current = assign(now, 12, records, current)
        assert counts(current) == {"h00": 12}
        records = reports(records, current, since_ms=now)
        assert assign(now + span * 1000 - 1, 12, records, current) is current
        now += span * 1000
    assert tried == {0, 1, 2, 3}  # the same few, less and less often


def test_a_host_that_was_fenced_is_not_passed_over_once_it_has_dropped_what_it_had() -> None:
    """It was stopped for longer than its session: the owner that the map names has fenced it."""
    current, records = settled(4, hosts(2))
    lost = {number for number, owner in current.owners.items() if owner == "h01"}
    current = assign(NOW, 4, {"h00": records["h00"]}, current)
    records = reports({"h00": records["h00"]}, current) | {"h01": host("h01")}
    for number in lost:
        failed(records, "h01", number, START_MS + 7)
    after = assign(NOW + 1, 4, records, current)
    assert after.passed_over == {}
    assert {number for number in after.moves if after.owners[number] == "h01"} == set(
        range(4)
    ) - lost
    records["h01"] = host("h01")
    records = reports(records, after)
    assert counts(assign(NOW + 2, 4, records, after)) == {"h00": 2, "h01": 2}


@pytest.mark.parametrize("pinned", [False, True])
def test_a_host_that_was_cut_off_does_not_get_what_it_still_has(pinned: bool) -> None:
    """It reports what it served before, until it has seen that other hosts have fenced it."""
    current, records = settled(6, hosts(3))
    lost = {number for number, owner in current.owners.items() if owner == "h02"}
    returned = records.pop("h02")
    current = assign(NOW, 6, records, current)
    records = reports(records, current)
    for number in lost:
        # They have run for the shortest time, and so would be the first to move.
        owner = current.owners[number]
        records[owner] = with_state(records[owner], number, ReportedState.RUNNING, NOW)
        if pinned:
            current = map_edits.pin(current, 6, number, "h02")
    records["h02"] = returned
    after = assign(NOW + 1, 6, records, current)
    assert not moved(current, after) & lost
    for number in lost:
        failed(records, "h02", number, NOW + 2)
    after = assign(NOW + 2, 6, records, after)
    assert after.passed_over == {}
    records["h02"] = host("h02")
    records = reports(records, after)
    after = assign(NOW + 3, 6, records, after)
    assert counts(after) == {"h00": 2, "h01": 2, "h02": 2}


def test_a_container_that_fails_on_several_hosts_neither_causes_nor_stops_planned_moves() -> None:
    current, records = settled(9, hosts(3))
    for host_id in ("h00", "h01", "h02"):
        assert current.owners[0] == host_id
        failed(records, host_id, 0, START_MS)
        current = assign(NOW, 9, records, current)
        assert current.moves == {}
    records["new"] = host("new")
    after = assign(NOW, 9, records, current)
    assert (len(after.moves), after.owners[0]) == (2, "new")


def test_on_the_only_host_it_is_started_again_when_its_time_has_passed() -> None:
    current, records = settled(1, hosts(1))
    now, since = NOW, START_MS
    for span in (60, 120, 240, 480, 600, 600):
        since += 1
        failed(records, "h00", 0, since)
        current = assign(now, 1, records, current)
        assert current.owners == {0: "h00"}
        assert not current.is_start_due(0, "h00", since)
        assert assign(now + span * 1000 - 1, 1, records, current) is current
        now += span * 1000
        current = assign(now, 1, records, current)
        assert current.is_start_due(0, "h00", since)
        assert assign(now + PASS_OVER_MS_MAX * 9, 1, records, current) is current


def test_where_all_hosts_failed_the_first_whose_time_passes_gets_it() -> None:
    current, records = settled(1, hosts(2))
    failed(records, "h00", 0, START_MS)
    current = assign(NOW, 1, records, current)
    failed(records, "h01", 0, START_MS)
    current = assign(NOW + 1, 1, records, current)
    assert current.owners == {0: "h01"}
    current = assign(NOW + PASS_OVER_MS, 1, records, current)
    assert current.owners == {0: "h00"}
    assert current.is_start_due(0, "h00", START_MS)


def test_a_lost_hosts_container_goes_to_a_passed_over_one_if_there_is_no_other() -> None:
    current, records = settled(1, hosts(2))
    failed(records, "h00", 0, START_MS)
    current = assign(NOW, 1, records, current)
    del records["h01"]
    assert assign(NOW + 1, 1, records, current).owners == {0: "h00"}


def test_a_failure_is_forgotten_after_a_while_in_which_it_did_not_come_back() -> None:
    current, records = settled(1, hosts(1))
    failed(records, "h00", 0, START_MS)
    current = assign(NOW, 1, records, current)
    records = reports(records, current)
    end = NOW + PASS_OVER_MS + FORGOTTEN_MS
    assert assign(end - 1, 1, records, current).passed_over[0, "h00"].failures == 1
    assert assign(end, 1, records, current).passed_over == {}


def test_of_more_failures_than_the_map_has_room_for_those_of_owners_are_kept() -> None:
    current, records = settled(PASSED_OVER_MAX + 10, hosts(2))
    owned = {number for number, owner in current.owners.items() if owner == "h01"}
    report = ContainerReport(ReportedState.FAILED, START_MS)
    records["h01"] = dataclasses.replace(records["h01"], containers=dict.fromkeys(owned, report))
    records["h02"] = dataclasses.replace(
        host("h02"), containers=dict.fromkeys(current.owners, report)
    )
    noted = PassedOver(NOW + PASS_OVER_MS_MAX, 5, START_MS)
    before = dataclasses.replace(
        current, passed_over={(number, "h02"): noted for number in current.owners}
    )
    kept = assign(NOW, PASSED_OVER_MAX + 10, records, before).passed_over
    assert len(kept) == PASSED_OVER_MAX
    assert {(number, "h01") for number in owned} <= kept.keys()


def test_a_clock_that_is_behind_passes_nothing_over_for_long() -> None:
    current, records = settled(1, hosts(1))
    failed(records, "h00", 0, START_MS)
    current = assign(NOW, 1, records, current)
    behind = assign(NOW - 3_600_000, 1, records, current)
    assert behind.is_start_due(0, "h00", START_MS)


# --- what persons ask for -----------------------------------------------------------------------


def test_a_drained_host_loses_its_containers_by_planned_moves_and_gets_none() -> None:
    current, records = settled(9, hosts(3))
    current = map_edits.drain(current, "h00")
    first = assign(NOW, 9, records, current)
    assert set(first.moves) == {0, 3, 6}
    assert counts(first) == {"h01": 5, "h02": 4}
    del records["h02"]
    assert counts(assign(NOW, 9, reports(records, first), first)) == {"h01": 9}


def test_a_host_that_is_about_to_stop_is_emptied_before_one_that_a_person_drains() -> None:
    current, records = settled(24, hosts(3))
    records["h01"] = dataclasses.replace(records["h01"], draining=True)
    after = assign(NOW, 24, records, map_edits.drain(current, "h00"))
    assert {move.source for move in after.moves.values()} == {"h01"}


def test_where_all_hosts_drain_containers_stay_and_lost_ones_have_no_owner() -> None:
    current, records = settled(4, hosts(2))
    current = map_edits.drain(map_edits.drain(current, "h00"), "h01")
    assert assign(NOW, 4, records, current) is current
    del records["h01"]
    after = assign(NOW, 4, records, current)
    assert unowned(4, after) == [1, 3]


def test_a_pin_wins_over_balance_by_a_planned_move() -> None:
    current, records = settled(6, hosts(3))
    for number in range(6):
        current = map_edits.pin(current, 6, number, "h02")
    current = assign(NOW, 6, records, current)
    assert set(current.moves) == {0, 1, 3, 4}
    assert counts(current) == {"h02": 6}
    assert assign(NOW, 6, reports(records, current), current).owners == current.owners


def test_others_even_out_what_pins_fill() -> None:
    current = AssignmentMap(pins={0: "h00", 1: "h00", 2: "h00"})
    assert counts(assign(NOW, 6, hosts(3), current)) == {"h00": 3, "h01": 2, "h02": 1}


def test_a_pinned_container_returns_when_its_host_does() -> None:
    current, records = settled(4, hosts(2), AssignmentMap(pins={3: "h00"}))
    alone = {"h01": records["h01"]}
    away = assign(NOW, 4, alone, current)
    assert away.owners[3] == "h01"
    back = assign(NOW, 4, {**reports(alone, away), "h00": host("h00")}, away)
    assert (back.owners[3], back.moves[3].source) == ("h00", "h01")


def test_a_drain_wins_over_a_pin() -> None:
    current, records = settled(2, hosts(2), AssignmentMap(pins={0: "h00"}))
    after = assign(NOW, 2, records, map_edits.drain(current, "h00"))
    assert after.owners == {0: "h01", 1: "h01"}


def test_a_forbidden_container_moves_and_has_no_owner_where_no_other_host_is() -> None:
    current, records = settled(4, hosts(2))
    current = map_edits.forbid(current, 4, 0, "h00")
    after = assign(NOW, 4, records, current)
    assert (after.owners[0], after.moves[0]) == ("h01", PlannedMove("h00", NOW))
    del records["h01"]
    alone = assign(NOW, 4, records, current)
    assert (unowned(4, alone), counts(alone)) == ([0], {"h00": 3})


def test_containers_that_may_go_to_few_hosts_are_placed_first() -> None:
    forbidden = frozenset((number, "h00") for number in range(3, 6))
    after = assign(NOW, 6, hosts(2), AssignmentMap(forbidden=forbidden))
    assert counts(after) == {"h00": 3, "h01": 3}
