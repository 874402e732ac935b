"""Narrating: what a violation is about is reported, in order, and the rest is only counted."""

from __future__ import annotations

from uuid import UUID

import pytest

from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    History,
    Observation,
    ProcessRun,
    SeenEntry,
    SeenSegment,
    Update,
    Violation,
)
from recovery.harness.reporting.narrate import LAST, answer, describe, narrate


def made(history: History, segment: str, **fields: object) -> Call:
    """One append, answered at once."""
    call = Call(
        len(history.calls), 0, "writer", CallKind.APPEND, segment, history.next_stamp(), (10,), 40
    )
    call.ended, call.outcome, call.result = (
        history.next_stamp(),
        CallOutcome.OK,
        40 * len(history.calls),
    )
    for name, value in fields.items():
        setattr(call, name, value)
    history.calls.append(call)
    return call


def one_process_run(calls: int) -> History:
    history = History()
    history.process_runs.append(
        ProcessRun(0, "owner.1", history.next_stamp(), history.next_stamp())
    )
    for number in range(calls):
        made(history, f"s{number % 2}")
    seen = {
        name: SeenSegment(name, 7, 0, 0, 400, 80, False, {UUID(int=1): 5}, b"x" * 400)
        for name in ("s0", "s1")
    }
    history.observations.append(
        Observation(history.next_stamp(), history.next_stamp(), 0, seen, findings=("torn",))
    )
    history.process_runs[0].ended = history.next_stamp()
    history.process_runs[0].ending = "power"
    return history


def numbers_reported(lines: list[str]) -> list[int]:
    return [
        int(line.partition("] call ")[2].partition(" ")[0]) for line in lines if "] call " in line
    ]


def test_named_calls_and_their_neighbours_on_the_segment_are_reported() -> None:
    lines = narrate(one_process_run(40), [Violation("content", "lost", (20,))], around=2)
    assert numbers_reported(lines) == [16, 18, 20, 22, 24]
    assert [line.lstrip()[0] for line in lines if "] call " in line] == ["[", "[", "*", "[", "["]
    assert lines[-1] == "(35 more calls of 40 are not shown)"


def test_a_segment_that_only_the_words_name_is_distinguished_from_its_ends() -> None:
    lines = narrate(one_process_run(40), [Violation("recovery", "'s1' is not there")], around=1)
    assert numbers_reported(lines) == [1, 3, 37, 39]
    assert any(line.strip().startswith("'s1' (id 7): 0 to 400") for line in lines)
    assert not any(line.strip().startswith("'s0'") for line in lines)


def test_without_anything_named_the_last_calls_of_each_process_run_are_reported() -> None:
    assert numbers_reported(narrate(one_process_run(40))) == list(range(40 - LAST, 40))
    assert numbers_reported(
        narrate(one_process_run(40), [Violation("errors", "it hangs")])
    ) == list(range(40 - LAST, 40))


def test_process_runs_and_observations_stand_where_they_happened() -> None:
    lines = narrate(one_process_run(2))
    kinds = [
        "opens the store",
        "call 0",
        "call 1",
        "seen in life 0",
        "found in the files before: torn",
        "over: power",
    ]
    places = [next(place for place, line in enumerate(lines) if kind in line) for kind in kinds]
    assert places == sorted(places)


def test_calls_beyond_the_history_are_passed_over() -> None:
    assert numbers_reported(
        narrate(one_process_run(2), [Violation("content", "odd", (1, 99))])
    ) == [1]


def call(kind: CallKind, **fields: object) -> Call:
    result = Call(0, 0, "c", kind, "s", 1)
    result.ended, result.outcome = 2, CallOutcome.OK
    for name, value in fields.items():
        setattr(result, name, value)
    return result


@pytest.mark.parametrize("kind", list(CallKind))
def test_every_kind_of_call_can_be_reported(kind: CallKind) -> None:
    assert describe(call(kind, source="t"))
    assert answer(call(kind))


@pytest.mark.parametrize(
    ("told", "asked", "answered"),
    [
        (
            call(CallKind.APPEND, lengths=(1, 2), size=60, expected=1000, result=1000),
            "append a batch of 2 records, 60 bytes, to 's' if it ends at 1,000",
            "done, at 1,000",
        ),
        (
            call(CallKind.UPDATE, updates=(Update(UUID(int=16), "REPLACE_IF_EQUALS", 3, 2),)),
            "update attributes of 's' with 0x10 REPLACE_IF_EQUALS 3 if 2",
            "done",
        ),
        (
            call(CallKind.EVENT, event=4, writer=2, size=30),
            "event 4 of writer 2, 30 bytes, to 's'",
            "it was there already",
        ),
        (call(CallKind.SEAL, ended=None), "seal 's'", "never answered"),
        (
            call(
                CallKind.MERGE, source="t", outcome=CallOutcome.REFUSED, error="SegmentSealedError"
            ),
            "merge 't' into 's'",
            "refused: SegmentSealedError",
        ),
        (
            call(CallKind.DELETE, outcome=CallOutcome.UNKNOWN, error="NotPrimaryError"),
            "delete 's'",
            "in doubt: NotPrimaryError",
        ),
        (
            call(CallKind.ATTRIBUTES, values={UUID(int=2): -1}),
            "ask for attributes of 's'",
            "0x2=-1",
        ),
        (call(CallKind.CREATE, result=9), "create 's'", "done, with id 9"),
        (call(CallKind.SET_UP, writer=3, result=8), "set up writer 3 on 's'", "its number is 8"),
        (
            call(CallKind.TABLE_UPDATE, keys=((b"a", -1), (b"b", 7)), versions=(40, 50)),
            "set b'a' if absent, b'b' if at 7 of 's'",
            "done, at 40, 50",
        ),
        (
            call(
                CallKind.TABLE_READ,
                keys=((b"a", -(2**63)),),
                found=(SeenEntry(b"a", 40, b"v"),),
            ),
            "read b'a' of 's'",
            "b'a' at 40",
        ),
    ],
)
def test_words(told: Call, asked: str, answered: str) -> None:
    assert describe(told) == asked
    assert answer(told) == answered
