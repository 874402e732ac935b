"""Linearizability: an order of the calls exists in which every answer, refusals too, is the only
right one.

Two models: a segment as (length, sealed) under appends, conditional appends and seals; an attribute
as a register. Rules of this file:

- the engine decides when it takes a call, before it is durable. So a refusal may be caused by a
  call that was taken and then lost with its owner. Refusals of a process run are ignored once a
  call of it has been lost, or may have been;
- reads show what is durable, not what was taken: they are checked elsewhere;
- what a window leads to is known when no fate in it is open; else the search says it, or the rest
  is left alone;
- what is left alone is counted (`HistoryIndex.windows`): a checker that says nothing must not seem
  like one that agrees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final

from recovery.harness.checkers.index import NEVER, HistoryIndex, Incarnation
from recovery.harness.checkers.registers import (
    Register,
    allowing,
    fate,
    refusing,
    steps_of,
    updates_by_id,
)
from recovery.harness.checkers.search import Budget, Step, end_states, windows
from recovery.harness.history import Call, CallKind, CallOutcome, Update, Violation

NAME: Final = "linearizability"
_Length = tuple[int, bool]
"""Length of a segment, and whether it is sealed."""


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of linearizability, as far as a bounded search finds them."""
    budget = Budget()
    for incarnation in index.incarnations:
        if incarnation.certain and incarnation.create is not None:
            yield from _segment(index, incarnation, budget)
            yield from _attributes(index, incarnation, budget)


# --- a segment ------------------------------------------------------------------------------------


def _segment(index: HistoryIndex, incarnation: Incarnation, budget: Budget) -> Iterator[Violation]:
    calls = incarnation.calls
    if not any(call.expected is not None for call in calls.appends):
        return
    if any(call.outcome is not CallOutcome.REFUSED for call in calls.merges):
        return
    steps, lost = _changes(index, incarnation)
    for call in calls.appends:
        answer = _refusal(call)
        if (
            answer is not None
            and index.fresh(call)
            and lost.get(call.process_run, NEVER) > (call.ended or 0)
        ):
            # A field.
            steps.append(Step(call.begun, call.ended or 0, True, answer, call))  # noqa: FBT003
    yield from _explain(steps, (0, False), f"segment {incarnation.name!r}", budget, index.windows)


def _changes(
    index: HistoryIndex, incarnation: Incarnation
) -> tuple[list[Step[_Length]], dict[int, int]]:
    """Appends and seals that took effect, or may have; and since when each process run has lost
    some.
    """
    chain, latest = incarnation.chain, index.latest
    steps: list[Step[_Length]] = []
    lost: dict[int, int] = {}
    events = {
        (call.writer, call.event)
        for call in incarnation.calls.appends
        if call.kind is CallKind.EVENT and call.result is not None
    }
    for call in sorted(
        (*incarnation.calls.appends, *incarnation.calls.seals), key=attrgetter("begun")
    ):
        last = latest[call.number]
        if call.outcome is CallOutcome.OK and call.result is not None:
            act = (
                _sealing(call.result)
                if call.kind is CallKind.SEAL
                else _appending(call.result, call.size)
            )
            steps.append(Step(call.begun, last, True, act, call))  # noqa: FBT003
        elif call.outcome is CallOutcome.UNKNOWN and call.size + (call.kind is CallKind.SEAL):
            lost[call.process_run] = min(lost.get(call.process_run, NEVER), call.begun)
            landed = fate(index, chain, call)
            if landed and chain is not None:
                act = _appending(chain.at[False, call.number, 0], call.size)
                steps.append(Step(call.begun, last, True, act, call))  # noqa: FBT003
            elif landed is None and not (
                call.kind is CallKind.EVENT and (call.writer, call.event) in events
            ):
                act = _sealing(None) if call.kind is CallKind.SEAL else _appending(None, call.size)
                steps.append(Step(call.begun, last, False, act, call))  # noqa: FBT003
    return steps, lost


def _appending(offset: int | None, size: int) -> Callable[[_Length], _Length | None]:
    def act(state: _Length) -> _Length | None:
        length, sealed = state
        return (
            None if sealed or (offset is not None and length != offset) else (length + size, False)
        )

    return act


def _sealing(length: int | None) -> Callable[[_Length], _Length | None]:
    return lambda state: (
        None if state[1] or (length is not None and state[0] != length) else (state[0], True)
    )


def _refusal(call: Call) -> Callable[[_Length], _Length | None] | None:
    expected = call.expected
    if call.outcome is not CallOutcome.REFUSED:
        return None
    if call.error == "SegmentSealedError":
        return lambda state: state if state[1] else None
    if call.error == "BadOffsetError" and expected is not None:
        return lambda state: state if state[0] != expected and not state[1] else None
    return None


# --- its attributes -------------------------------------------------------------------------------


def _attributes(
    index: HistoryIndex, incarnation: Incarnation, budget: Budget
) -> Iterator[Violation]:
    lost: dict[int, int] = {}
    for call in incarnation.calls.updates:
        if call.outcome is CallOutcome.UNKNOWN:
            lost[call.process_run] = min(lost.get(call.process_run, NEVER), call.begun)
    for attribute, changes in updates_by_id(incarnation).items():
        refusals: list[Step[Register]] = [
            Step(call.begun, call.ended or 0, True, answer, call)  # noqa: FBT003
            for call, updates in changes
            if (answer := _update_refusal(call, updates)) is not None
            and index.fresh(call)
            and lost.get(call.process_run, NEVER) > (call.ended or 0)
        ]
        if refusals:
            steps = steps_of(index, incarnation, changes) + refusals
            yield from _explain(
                steps,
                (None,),
                f"attribute {attribute} of {incarnation.name!r}",
                budget,
                index.windows,
            )


def _update_refusal(
    call: Call, updates: tuple[Update, ...]
) -> Callable[[Register], Register | None] | None:
    """What a refusal says of the attribute of these updates, which are all or some of those of the
    call.
    """
    if call.error == "BadAttributeUpdateError" and len(updates) == len(call.updates):
        return refusing(updates)
    if call.error == "BadOffsetError" and call.expected is not None:
        # Attributes are checked before the offset: it was the offset's turn, so every update would
        # have been made.
        return allowing(updates)
    return None


# --- both -----------------------------------------------------------------------------------------

_State = _Length | Register


def _explain(
    steps: list[Step[Any]], start: _State, what: str, budget: Budget, counts: Counter[str]
) -> Iterator[Violation]:
    states: dict[Any, None] = {start: None}
    left = list(windows(steps))
    for place, window in enumerate(left):
        found = end_states(window, states, budget)
        if found is None:
            counts["undecided"] += len(left) - place
            return
        counts["decided"] += 1
        states = found
        if not states:
            numbers = [step.call.number for step in window if step.call is not None]
            yield Violation(
                NAME,
                f"{what}: no order of the calls {numbers} explains their results",
                numbers,
            )
            return
