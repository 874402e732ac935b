"""Attributes: every observed value is one the acknowledged updates lead to, with any of the unknown
ones.

Rules of this file:

- calls are taken in windows, cut where everything before has ended. Within a window the calls of
  one client have the order of their calls, and sums have bounds; anything else is searched if it is
  small;
- where it is not known what a window led to, anything is possible until the next observation;
- an update that rides on an append is there if the append's record is, and is not there if the
  record is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.checkers.registers import (
    Register,
    steps_of,
    updates_by_id,
    value_of,
    way_of,
)
from recovery.harness.checkers.search import Budget, Step, end_states, windows
from recovery.harness.history import Call, CallKind, CallOutcome, Observation, Update, Violation
from segmentstore.contracts.attributes import UpdateType

NAME: Final = "attributes"
_SEARCHED_MAX: Final = 16
_VALUES_MAX: Final = 256


class _Bounds(NamedTuple):
    low: int
    high: int


_Possible = dict[Register, None] | _Bounds | None
"""Values an attribute may have; None if it may have any."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """An observed value as a step."""

    value: int | None

    def __call__(self, state: Register) -> Register | None:
        return state if state[0] == self.value else None


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of attributes."""
    for chain in index.chains.values():
        yield from _never_set(index, chain)
    budget = Budget()
    for incarnation in index.incarnations:
        if incarnation.certain and (incarnation.calls.updates or incarnation.chain is not None):
            for attribute, changes in updates_by_id(incarnation).items():
                yield from _check_bytes(index, incarnation, attribute, changes, budget)


def _never_set(index: HistoryIndex, chain: Chain) -> Iterator[Violation]:
    """Attributes that no call set, or only refused ones."""
    named = index.names.get(chain.name)
    known: dict[int, None] = {}
    for call in () if named is None else (*named.updates, *named.appends):
        if call.outcome is not CallOutcome.REFUSED:
            for update in call.updates:
                known[update.id.int] = None
            if call.kind is CallKind.EVENT:
                known[call.writer] = None
    for observation, seen in chain.seen:
        for attribute, value in seen.attributes.items():
            if attribute.int not in known:
                detail = (
                    f"attribute {attribute} of {chain.name!r} is {value} at "
                    f"{observation.begun}; no call set it"
                )
                yield Violation(NAME, detail)


def _check_bytes(
    index: HistoryIndex,
    incarnation: Incarnation,
    attribute: UUID,
    changes: list[tuple[Call, tuple[Update, ...]]],
    budget: Budget,
) -> Iterator[Violation]:
    steps = steps_of(index, incarnation, changes)
    updates = {call.number: found for call, found in changes}
    what = f"attribute {attribute} of {incarnation.name!r}"
    created = any(
        call.outcome is not CallOutcome.REFUSED for call in index.names[incarnation.name].creates
    )
    possible: _Possible = {(None,): None} if created else None
    for observation, seen in incarnation.chain.seen if incarnation.chain is not None else ():
        steps.append(_observed(observation, seen.attributes.get(attribute)))
    for call in incarnation.calls.attributes:
        if call.outcome is CallOutcome.OK and attribute in call.values and index.fresh(call):
            value = _Seen(call.values[attribute])
            steps.append(Step(call.begun, call.ended or 0, True, value, call))  # noqa: FBT003
    for window in windows(steps):
        before = possible
        possible = _after(window, before, updates, budget)
        if isinstance(possible, dict) and not possible:
            numbers = [step.call.number for step in window if step.call is not None]
            yield Violation(NAME, f"{what}: {_complaint(window, before)}", numbers)
            possible = None
        last = window[-1]
        if len(window) == 1 and isinstance(last.act, _Seen):
            possible = {(last.act.value,): None}


def _observed(observation: Observation, value: int | None) -> Step[Register]:
    return Step(observation.begun, observation.ended, True, _Seen(value))  # noqa: FBT003 - a field


def _complaint(window: Sequence[Step[Register]], before: _Possible) -> str:
    if isinstance(before, _Bounds):
        expected = f"from {before.low} to {before.high}"
    else:
        expected = " or ".join(str(state[0]) for state in before or ())
    if len(window) == 1 and isinstance(window[0].act, _Seen):
        return f"it is {window[0].act.value} at {window[0].begun}, by the calls it was {expected}"
    numbers = [step.call.number for step in window if step.call is not None]
    return (
        f"it was {expected}, and no order of the calls {numbers} explains their "
        "results and what was seen"
    )


def _after(
    window: list[Step[Register]],
    possible: _Possible,
    updates: dict[int, tuple[Update, ...]],
    budget: Budget,
) -> _Possible:
    """What the attribute may be after a window."""
    changing = [step for step in window if not isinstance(step.act, _Seen)]
    if possible is None:
        return _from_anything(window, updates)
    sums = _sums(changing, updates) if len(changing) == len(window) else None
    if isinstance(possible, _Bounds):
        if len(window) == 1 and isinstance(window[0].act, _Seen):
            value = window[0].act.value
            return {(value,): None} if possible.low <= (value or 0) <= possible.high else {}
        return None if sums is None else _add(possible, sums)
    if len(window) == 1 or _one_client(window):
        return _in_turn(window, possible)
    if sums is not None and len(window) > _SEARCHED_MAX:
        values = [state[0] or 0 for state in possible]
        return _add(_Bounds(min(values), max(values)), sums)
    if len(window) <= _SEARCHED_MAX:
        return end_states(window, possible, budget)
    return None


def _from_anything(
    window: Sequence[Step[Register]], updates: dict[int, tuple[Update, ...]]
) -> _Possible:
    """All ways to update but adding leave a value that does not depend on the one before."""
    only = window[0]
    if len(window) > 1 or not only.required or only.call is None or only.call.number not in updates:
        return None
    change = updates[only.call.number]
    if any(way_of(update) is UpdateType.ACCUMULATE for update in change):
        return None
    return {(value_of(change[-1].value),): None}


def _one_client(window: Sequence[Step[Register]]) -> bool:
    """True if all are changes by one client in one process run: then they came in the order of its
    calls.
    """
    first = window[0].call
    return first is not None and all(
        step.call is not None
        and not isinstance(step.act, _Seen)
        and (step.call.process_run, step.call.client) == (first.process_run, first.client)
        for step in window
    )


def _in_turn(window: Sequence[Step[Register]], possible: dict[Register, None]) -> _Possible:
    for step in window:
        after = {} if step.required else dict(possible)
        for state in possible:
            changed = step.act(state)
            if changed is not None:
                after[changed] = None
        if len(after) > _VALUES_MAX:
            return None
        possible = after
    return possible


def _sums(
    changing: Sequence[Step[Register]], updates: dict[int, tuple[Update, ...]]
) -> _Bounds | None:
    """Least and most that a window adds, if it only adds."""
    low = high = 0
    for step in changing:
        for update in updates[step.call.number] if step.call is not None else ():
            if way_of(update) is not UpdateType.ACCUMULATE:
                return None
            low += update.value if step.required else min(update.value, 0)
            high += update.value if step.required else max(update.value, 0)
    return _Bounds(low, high)


def _add(one: _Bounds, other: _Bounds) -> _Bounds:
    return _Bounds(one.low + other.low, one.high + other.high)
