"""Registers: one attribute of one segment as a state, and the calls that changed it as steps.

A state is `(value,)` or `(None,)` for an absent attribute. The values come from the engine's own
contract (`resolve_updates`), so that the five ways to update mean here what they mean there, 64-bit
bounds included.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.checkers.search import Step
from recovery.harness.history import Call, CallKind, CallOutcome, Update
from segmentstore.contracts.attributes import (
    ATTRIBUTE_UNSET,
    AttributeConditionError,
    KeyedUpdate,
    UpdateType,
    resolve_updates,
)

Register = tuple[int | None]
_WAYS = {name: way for way in UpdateType for name in (way.name, way.name.replace("_", ""))}
_KEY = b""
"""A register has one attribute, whose id does not matter."""


def way_of(update: Update) -> UpdateType:
    """The way of an update, by its name: ours (`REPLACE_IF_GREATER`) or Pravega's
    (ReplaceIfGreater).
    """
    way = _WAYS.get(update.how)
    return way if way is not None else _WAYS[update.how.replace("_", "").upper()]


def updates_by_id(incarnation: Incarnation) -> dict[UUID, list[tuple[Call, tuple[Update, ...]]]]:
    """The updates of each attribute, with the calls that carry them."""
    found: dict[UUID, list[tuple[Call, tuple[Update, ...]]]] = {}
    for call in incarnation.calls.updates:
        if len(call.updates) == 1:
            found.setdefault(call.updates[0].id, []).append((call, call.updates))
            continue
        parts: dict[UUID, list[Update]] = {}
        for update in call.updates:
            parts.setdefault(update.id, []).append(update)
        for attribute, updates in parts.items():
            found.setdefault(attribute, []).append((call, tuple(updates)))
    return found


def value_of(resolved: int) -> int | None:
    """What an attribute is after an update that led to `resolved`; None where that removes it."""
    return None if resolved == ATTRIBUTE_UNSET else resolved


def applying(updates: tuple[Update, ...]) -> Callable[[Register], Register | None]:
    """What the updates of one call make of a register; None where a condition does not hold."""
    keyed: list[KeyedUpdate] = [
        (_KEY, way_of(update), update.value, update.expected) for update in updates
    ]

    def act(state: Register) -> Register | None:
        there = {} if state[0] is None else {_KEY: state[0]}
        try:
            return (value_of(resolve_updates(keyed, there, {})[0][_KEY]),)
        except AttributeConditionError:
            return None

    return act


def refusing(updates: tuple[Update, ...]) -> Callable[[Register], Register | None]:
    """The reverse: possible only where a condition does not hold, and then nothing changes."""
    act = applying(updates)
    return lambda state: state if act(state) is None else None


def allowing(updates: tuple[Update, ...]) -> Callable[[Register], Register | None]:
    """Possible only where every condition holds, and nothing changes all the same."""
    act = applying(updates)
    return lambda state: state if act(state) is not None else None


def steps_of(
    index: HistoryIndex, incarnation: Incarnation, changes: list[tuple[Call, tuple[Update, ...]]]
) -> list[Step[Register]]:
    """The changes that took effect, or may have.

    An update that rides on an append shares its fate, which may be known.
    """
    steps = []
    for call, updates in changes:
        if call.outcome is CallOutcome.REFUSED:
            continue
        landed = True if call.outcome is CallOutcome.OK else fate(index, incarnation.chain, call)
        if landed is not False:
            steps.append(
                Step(call.begun, index.latest[call.number], landed is True, applying(updates), call)
            )
    return steps


def fate(index: HistoryIndex, chain: Chain | None, call: Call) -> bool | None:
    """Whether an append of unknown outcome landed; None if that was not seen."""
    if call.kind is not CallKind.APPEND or not call.lengths or chain is None:
        return None
    if (False, call.number, 0) in chain.at:
        return True
    decided = chain.complete and chain.first_after(index.latest[call.number]) is not None
    return False if decided else None
