"""How long containers took to come, by one clock, and which of them were handed over."""

from __future__ import annotations

from segmentstore.cluster.assignment_map import AssignmentMap, PlannedMove
from segmentstore.cluster.move_times import MoveTimes


def test_an_arrival_begins_with_the_map_that_names_the_host() -> None:
    times = MoveTimes()
    moves = {1: PlannedMove("b", 0)}
    times.follow(10.0, "a", AssignmentMap(epoch=1, owners={0: "a", 1: "a", 2: "b"}, moves=moves))
    times.follow(11.0, "a", AssignmentMap(epoch=2, owners={0: "a", 1: "a", 2: "a"}))
    assert times.assigned == 3
    assert times.missing([0]) == [1, 2]
    times.started(0, 10.0, 12.0)
    times.started(1, 13.0, 13.5)
    times.started(2, 11.5, 14.0)
    assert times.arrival_s == {0: 2.0, 1: 3.5, 2: 3.0}
    assert times.start_s == {0: 2.0, 1: 0.5, 2: 2.5}
    assert (times.moved_in, times.taken_over) == (1, 2)
    assert times.missing([0, 1, 2]) == []


def test_a_container_that_leaves_has_the_time_of_its_stop() -> None:
    times = MoveTimes()
    times.follow(0.0, "a", AssignmentMap(owners={0: "a"}))
    times.started(0, 0.0, 1.0)
    times.follow(5.0, "a", AssignmentMap(owners={0: "b"}, moves={0: PlannedMove("a", 0)}))
    assert times.assigned == 0
    times.stopped(0, 5.0, 5.25)
    assert (times.arrival_s, times.start_s, times.stop_s) == ({}, {}, {0: 0.25})
    times.follow(9.0, "a", AssignmentMap(owners={0: "a"}))
    times.started(0, 9.0, 9.5)
    assert times.stop_s == {}


def test_a_start_that_fails_and_is_tried_again_counts_from_the_map() -> None:
    times = MoveTimes()
    times.follow(0.0, "a", AssignmentMap(owners={0: "a"}))
    times.started(0, 60.0, 61.0)
    assert times.arrival_s == {0: 61.0}
    # One that was taken away meanwhile begins anew.
    times.follow(70.0, "a", AssignmentMap())
    times.follow(80.0, "a", AssignmentMap(owners={0: "a"}))
    times.started(0, 80.0, 82.0)
    assert times.arrival_s == {0: 2.0}


def test_a_container_that_was_given_back_before_its_stop_has_not_arrived() -> None:
    times = MoveTimes()
    times.follow(1.0, "a", AssignmentMap(owners={1: "a"}))
    times.started(1, 1.0, 2.0)
    times.follow(3.0, "a", AssignmentMap(owners={1: "b"}))
    times.follow(4.0, "a", AssignmentMap(owners={1: "a"}))
    times.kept(1)
    times.started(1, 100.0, 101.0)
    assert times.arrival_s == {1: 1.0}
