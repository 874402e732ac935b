"""The bytes of the assignment map, what may start, and what persons ask for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.cluster import map_edits
from segmentstore.cluster.assignment_map import (
    Arrival,
    AssignmentMap,
    PassedOver,
    PlannedMove,
    decode_assignment_map,
    encode_assignment_map,
    unowned,
)
from segmentstore.contracts.errors import DataCorruptionError, InvalidArgumentError
from tests.cluster.strategies import ASSIGNMENT_MAPS
from tests.support.suites import examples

MAP = AssignmentMap(
    epoch=12,
    owners={0: "a", 1: "b", 2: "a"},
    pins={1: "b"},
    draining=frozenset({"c"}),
    forbidden=frozenset({(2, "b")}),
    passed_over={(0, "b"): PassedOver(1_760_000_060_000, 1, 1_760_000_000_000)},
    arrivals={"a": Arrival(1_760_000_000_000, 1_760_000_000_100)},
    moves={2: PlannedMove("c", 1_760_000_000_200)},
)


def fields_of(current: AssignmentMap) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(encode_assignment_map(current))
    return fields


@settings(max_examples=examples(500))
@given(ASSIGNMENT_MAPS)
def test_a_map_is_read_as_it_was_written(current: AssignmentMap) -> None:
    data = encode_assignment_map(current)
    assert decode_assignment_map(data, "map") == current
    assert encode_assignment_map(decode_assignment_map(data, "map")) == data


def test_the_format_page_has_these_bytes() -> None:
    assert encode_assignment_map(MAP).decode() == (
        '{"version":1,"epoch":12,"owners":{"a":[0,2],"b":[1]},"pins":{"b":[1]},"draining":["c"],'
        '"forbidden":{"b":[2]},"passed_over":{"b":{"0":[1760000060000,1,1760000000000,0]}},'
        '"arrivals":{"a":[1760000000000,1760000000100,0,1]},"moves":{"2":["c",1760000000200]}}'
    )


def test_a_new_map_owns_nothing() -> None:
    empty = AssignmentMap()
    assert decode_assignment_map(encode_assignment_map(empty), "map") == empty
    assert unowned(3, empty) == [0, 1, 2]
    assert unowned(4, MAP) == [3]


@settings(max_examples=examples(500))
@given(
    st.sampled_from(sorted(fields_of(MAP))),
    st.none() | st.text() | st.integers(max_value=-1) | st.lists(st.none(), min_size=1),
)
def test_a_damaged_map_is_reported_with_its_place(name: str, value: object) -> None:
    with pytest.raises(DataCorruptionError, match="/store/cluster/map"):
        decode_assignment_map(
            json.dumps({**fields_of(MAP), name: value}).encode(), "/store/cluster/map"
        )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        json.dumps({**fields_of(MAP), "version": 2}).encode(),
        json.dumps({**fields_of(MAP), "owners": {"a": [1], "b": [1]}}).encode(),
        json.dumps({**fields_of(MAP), "owners": {"a": [65536]}}).encode(),
        json.dumps({**fields_of(MAP), "owners": {"a/b": [1]}}).encode(),
    ],
)
def test_what_is_no_map_is_reported(data: bytes) -> None:
    with pytest.raises(DataCorruptionError):
        decode_assignment_map(data, "map")


def test_later_software_may_add_fields() -> None:
    fields = fields_of(MAP)
    fields["racks"] = {}
    fields["moves"]["2"].append("more")
    assert decode_assignment_map(json.dumps(fields).encode(), "map") == MAP


def test_ten_thousand_containers_take_a_sixteenth_of_a_node() -> None:
    """The number is on the format page."""
    hosts = [f"store-{number}.store.default" for number in range(100)]
    seen = Arrival(1_760_000_000_000, 1_760_000_000_000)
    current = AssignmentMap(
        epoch=1_000_000,
        owners={number: hosts[number * 37 % 100] for number in range(10_000)},
        arrivals=dict.fromkeys(hosts, seen),
    )
    assert len(encode_assignment_map(current)) == 57_590


def test_a_host_starts_what_the_map_gives_it() -> None:
    assert MAP.is_start_due(0, "a", None)
    assert not MAP.is_start_due(0, "b", None)
    assert not MAP.is_start_due(3, "a", None)


def test_a_failed_container_is_started_again_when_the_leader_let_its_time_pass() -> None:
    assert not MAP.is_start_due(0, "a", failed_ms=5)  # the leader has not seen it
    waiting = dataclasses.replace(MAP, passed_over={(0, "a"): PassedOver(60_005, 1, 5)})
    assert not waiting.is_start_due(0, "a", failed_ms=5)
    over = dataclasses.replace(MAP, passed_over={(0, "a"): PassedOver(60_005, 1, 5, is_over=True)})
    assert over.is_start_due(0, "a", failed_ms=5)
    assert not over.is_start_due(0, "a", failed_ms=6)  # it was, and failed again


@pytest.mark.parametrize(
    ("edit", "field", "value"),
    [
        (lambda m: map_edits.pin(m, 4, 3, "b"), "pins", {1: "b", 3: "b"}),
        (lambda m: map_edits.pin(m, 4, 1, "a"), "pins", {1: "a"}),
        (lambda m: map_edits.unpin(m, 4, 1), "pins", {}),
        (lambda m: map_edits.drain(m, "a"), "draining", {"a", "c"}),
        (lambda m: map_edits.undrain(m, "c"), "draining", set()),
        (lambda m: map_edits.forbid(m, 4, 1, "a"), "forbidden", {(1, "a"), (2, "b")}),
        (lambda m: map_edits.allow(m, 4, 2, "b"), "forbidden", set()),
    ],
)
def test_an_edit_changes_one_field_once(
    edit: Callable[[AssignmentMap], AssignmentMap], field: str, value: object
) -> None:
    after = edit(MAP)
    assert getattr(after, field) == value
    assert after == dataclasses.replace(MAP, epoch=13, **{field: getattr(after, field)})
    assert edit(after) is after


@pytest.mark.parametrize(
    "edit",
    [
        lambda: map_edits.pin(MAP, 4, 4, "a"),
        lambda: map_edits.pin(MAP, 4, -1, "a"),
        lambda: map_edits.pin(MAP, 0, 0, "a"),
        lambda: map_edits.pin(MAP, 4, 0, "a/b"),
        lambda: map_edits.pin(MAP, 4, 2, "b"),  # forbidden
        lambda: map_edits.unpin(MAP, 4, 4),
        lambda: map_edits.drain(MAP, ""),
        lambda: map_edits.undrain(MAP, ".."),
        lambda: map_edits.forbid(MAP, 4, 4, "a"),
        lambda: map_edits.forbid(MAP, 4, 1, "b"),  # pinned
        lambda: map_edits.allow(MAP, 4, 1, "\n"),
        lambda: unowned(0, MAP),
    ],
)
def test_an_edit_of_what_cannot_be_is_refused(edit: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError):
        edit()


def test_persons_cannot_fill_the_node() -> None:
    hosts = frozenset(f"h{number}" for number in range(map_edits.ASKED_MAX))
    with pytest.raises(InvalidArgumentError, match="draining"):
        map_edits.drain(AssignmentMap(draining=hosts), "another")
