"""The checker of rebuilt states: each way in which one may differ is a violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.checkers.past import check
from recovery.harness.history import History, Observation, SeenSegment
from recovery.harness.seen_past import PastMoment, PastSegment, SeenPast

NOTED = PastSegment(2, "a", 1, 4, sealed=False, attributes={b"k" * 16: 7})
REBUILT = replace(NOTED, content=b"123")
SEEN = SeenSegment("a", 2, 0, 2, 6, 0, False, {}, b"2345")


def violations(rebuilt: PastMoment, noted: PastMoment | None = None) -> list[str]:
    known = noted if noted is not None else PastMoment(0, 9, {2: NOTED})
    history = History(
        observations=[Observation(1, 2, 0, {"a": SEEN})], past=SeenPast([known], [rebuilt])
    )
    return [each.detail for each in check(HistoryIndex(history))]


def test_what_is_equal_is_no_violation() -> None:
    assert violations(PastMoment(0, 9, {2: REBUILT})) == []
    unknown = replace(NOTED, attributes=None)
    assert violations(PastMoment(0, 9, {2: REBUILT}), PastMoment(0, 9, {2: unknown})) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "b"}, "name of"),
        ({"length": 5, "content": b"1234"}, "length of"),
        ({"start_offset": 0, "content": b"0123"}, "start_offset of"),
        ({"sealed": True}, "sealed of"),
        ({"attributes": {}}, "attributes of"),
        ({"content": b"133"}, "other bytes of"),
        ({"content": b"12"}, "2 bytes of"),
    ],
)
def test_each_difference_is_one(change: dict[str, Any], says: str) -> None:
    [said] = violations(PastMoment(0, 9, {2: replace(REBUILT, **change)}))
    assert says in said


def test_segments_that_lack_or_were_not_are_violations() -> None:
    assert "is rebuilt without 'a'" in violations(PastMoment(0, 9, {}))[0]
    other = replace(REBUILT, segment_id=3)
    [said] = violations(PastMoment(0, 9, {2: REBUILT, 3: other}))
    assert "with segment 3, which was not" in said
    partial = PastMoment(0, 9, {2: NOTED}, whole=False)
    assert violations(PastMoment(0, 9, {2: REBUILT, 3: other}), partial) == []


def test_what_cannot_be_rebuilt_is_a_violation() -> None:
    assert violations(PastMoment(0, 9, error="nothing there")) == [
        "container 0 at operation 9 cannot be rebuilt: nothing there"
    ]
    assert violations(PastMoment(0, 9, {2: REBUILT}, lost=3)) == [
        "container 0 at operation 9 lacks 3 bytes"
    ]
