"""The history codec: what one process reports, another one knows; reports of several become one
history in true order.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from recovery.harness.checkers.all_checks import check_history
from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    Observation,
    SeenEntry,
    SeenSegment,
    Update,
)
from recovery.harness.history_codec import (
    NO_CLIENT,
    Event,
    Retelling,
    call_begun,
    call_ended,
    observed,
    parse_event,
)
from segmentstore.tables.table_types import NO_VERSION

UPDATE = Update(UUID(int=7), "ACCUMULATE", -(1 << 62), 3)
CALLS = (
    Call(0, 0, "a", CallKind.CREATE, "s", 0, updates=(UPDATE,), outcome=CallOutcome.OK, result=1),
    Call(
        1,
        0,
        "a",
        CallKind.APPEND,
        "s",
        0,
        (0, 12, 300),
        402,
        17,
        (UPDATE,),
        outcome=CallOutcome.OK,
        result=0,
    ),
    Call(
        2,
        0,
        "b",
        CallKind.EVENT,
        "s",
        0,
        (5,),
        35,
        writer=9,
        event=4,
        outcome=CallOutcome.OK,
        result=None,
    ),
    Call(
        3,
        0,
        "b",
        CallKind.MERGE,
        "s",
        0,
        source="t/ä\n",
        outcome=CallOutcome.REFUSED,
        error="SegmentNotFoundError",
    ),
    Call(
        4,
        0,
        "b",
        CallKind.READ,
        "s",
        0,
        offset=3,
        max_length=99,
        outcome=CallOutcome.OK,
        data=bytes(range(256)),
    ),
    Call(
        5,
        0,
        "b",
        CallKind.ATTRIBUTES,
        "s",
        0,
        outcome=CallOutcome.OK,
        values={UUID(int=7): -1, UUID(int=8): 1 << 63},
    ),
    Call(
        6,
        0,
        "b",
        CallKind.SEAL,
        "s",
        0,
        outcome=CallOutcome.UNKNOWN,
        error="AppendOutcomeUnknownError",
    ),
    Call(
        7,
        0,
        "b",
        CallKind.TABLE_UPDATE,
        "t",
        0,
        (3, 4),
        keys=((b"a", -1), (b"\xff", NO_VERSION)),
        outcome=CallOutcome.OK,
        versions=(0, 20),
    ),
    Call(
        8,
        0,
        "b",
        CallKind.TABLE_READ,
        "t",
        0,
        keys=((b"a", NO_VERSION),),
        outcome=CallOutcome.OK,
        found=(SeenEntry(b"a", 20, b"\x00v"),),
    ),
)
TABLE = SeenSegment("t", 2, 2, 0, 1, 0, False, {}, b"x", (SeenEntry(b"k", 5, b"\xff"),))
SEGMENT = SeenSegment("s", 1, 2, 3, 6, 4, True, {UUID(int=1): 5}, b"\x00\xff\n")


def sent(events: Sequence[Event]) -> list[Event]:
    """Through the pipe and back."""
    text = b"".join(event.line() for event in events)
    return [parse_event(line) for line in text.splitlines()]


def say(what: str, at: int, process_run: int = 0, **fields: Any) -> Event:
    return Event(what, at, process_run, fields)


def appended(number: int, at: int, process_run: int = 0) -> list[Event]:
    call = Call(number, process_run, "a", CallKind.FLUSH, "", 0, outcome=CallOutcome.OK)
    return [call_begun(call, at), call_ended(call, at + 1)]


def looked(at: int, process_run: int) -> list[Event]:
    seen = Observation(0, 0, process_run, {"s": SEGMENT, "t": TABLE})
    return [
        say("observing", at, process_run),
        say("seen", at + 1, process_run),
        observed(seen, process_run, at + 2),
    ]


def opened(at: int, process_run: int) -> list[Event]:
    return [
        say("opening", at, process_run, process=f"p{process_run}"),
        say("opened", at + 1, process_run),
    ]


def over(at: int, process_run: int, ending: str = "killed") -> Event:
    return say("over", at, process_run, ending=ending)


def test_every_field_of_a_call_arrives() -> None:
    events = [event for call in CALLS for event in (call_begun(call, 1), call_ended(call, 1))]
    told = Retelling()
    told.replay(sent(events))
    again = [dataclasses.replace(call, begun=0, ended=None) for call in told.history.calls]
    assert [dataclasses.asdict(call) for call in again] == [
        dataclasses.asdict(call) for call in CALLS
    ]
    assert [(call.begun, call.ended) for call in told.history.calls] == [
        (2 * n + 1, 2 * n + 2) for n in range(len(CALLS))
    ]


def test_what_was_seen_arrives_with_the_stamps_of_the_check() -> None:
    told = Retelling()
    told.findings = ["something is wrong"]
    told.replay(sent([*opened(1, 0), *looked(3, 0), over(9, 0)]))
    (seen,) = told.history.observations
    assert seen.segments == {"s": SEGMENT, "t": TABLE}
    assert (seen.begun, seen.ended, seen.process_run, seen.findings) == (
        3,
        4,
        0,
        ("something is wrong",),
    )
    assert told.findings == []
    (process_run,) = told.history.process_runs
    assert (process_run.begun, process_run.opened, process_run.ended, process_run.ending) == (
        1,
        2,
        6,
        "killed",
    )


def test_a_call_that_never_ended_is_unknown() -> None:
    told = Retelling()
    told.replay([call_begun(CALLS[0], 1)])
    assert (told.history.calls[0].outcome, told.history.calls[0].ended) == (
        CallOutcome.UNKNOWN,
        None,
    )


def test_two_processes_are_reported_in_the_order_of_their_times() -> None:
    first = [*opened(1, 0), *appended(0, 10), *appended(1, 40)]
    second = [*opened(20, 1), *appended(5, 30, process_run=1)]
    told = Retelling()
    told.replay(sent([*first, over(60, 0)]), sent([*second, over(61, 1)]))
    history = told.history
    clients = [call.client for call in history.calls]
    assert clients == ["a", "a", NO_CLIENT, NO_CLIENT, NO_CLIENT, "a"]
    assert [call.number for call in history.calls] == list(range(6))
    begun = {number: history.calls[number].begun for number in (0, 1, 5)}
    assert begun[0] < (history.process_runs[1].opened or 0) < begun[5] < begun[1]
    assert told.next_call == 6
    assert check_history(history) == []


def test_a_close_that_was_reported_is_not_a_kill() -> None:
    told = Retelling()
    told.replay([*opened(1, 0), over(5, 0, "closed")], [over(6, 0)])
    assert told.history.process_runs[0].ending == "closed"


@pytest.mark.parametrize(
    ("between", "again"),
    [
        ([over(10, 0)], True),
        ([*appended(0, 8), over(10, 0)], False),
        ([], False),  # the process run before may still do something
    ],
    ids=["nothing was asked", "a call", "two owners"],
)
def test_an_observation_is_one_of_an_untouched_store_only_if_nothing_was_asked(
    between: Sequence[Event], again: bool
) -> None:
    told = Retelling()
    told.replay([*opened(1, 0), *looked(3, 0), *between], [*opened(20, 1), *looked(22, 1)])
    assert [seen.again for seen in told.history.observations] == [False, again]


def test_an_observation_beside_a_call_of_unknown_outcome_proves_nothing() -> None:
    """The store served what was before; what the next owner shows is what became of the call."""
    told = Retelling()
    called = [event for event in appended(0, 8) if event.what == "begun"]
    told.replay(
        [*opened(1, 0), *called, *looked(10, 0), over(15, 0)], [*opened(20, 1), *looked(22, 1)]
    )
    assert [seen.again for seen in told.history.observations] == [False, False]


def test_what_had_to_be_proven_first_stands_where_it_was_seen() -> None:
    proven = looked(3, 0)[-1]
    told = Retelling()
    told.replay(
        [*opened(1, 0), *looked(3, 0)[:2], Event(proven.what, 90, 0, proven.fields)],
        [*opened(20, 1), *looked(22, 1)],
    )
    assert [seen.process_run for seen in told.history.observations] == [0, 1]


@pytest.mark.parametrize(
    "events",
    [
        [call_begun(CALLS[0], 1), call_begun(CALLS[0], 2)],
        [call_begun(CALLS[0], 1), call_ended(CALLS[0], 2), call_ended(CALLS[0], 3)],
        [call_begun(CALLS[1], 1), call_ended(CALLS[0], 2)],
        opened(1, 3),
    ],
    ids=["begun twice", "ended twice", "ended, never begun", "a life is missing"],
)
def test_what_makes_no_sense_is_refused(events: Sequence[Event]) -> None:
    with pytest.raises(ValueError, match=r"ended|begin|began"):
        Retelling().replay(events)


def test_half_a_line_is_no_event() -> None:
    line = call_begun(CALLS[1], 1).line()
    for length in range(len(line) - 1):
        with pytest.raises(json.JSONDecodeError):
            parse_event(line[:length])
