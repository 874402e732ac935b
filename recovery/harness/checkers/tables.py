"""Tables: an order of the calls exists that explains every answer and all that was seen; versions
never come back.

The model is a whole table: the version and the value of each key. Rules of this file:

- a call takes effect whole or not at all. One of unknown outcome may take effect until its process
  run is over, or until its end if its client knows that it was decided;
- each new version is above all that any answer had shown. Those of a call without an answer are
  unknown: what shows its value later gives them;
- a refusal and a read are about what was durable: they bind as any other answer does, and what they
  show survives a crash;
- what a table gives is what its segment's records say, read here by themselves
  (docs/formats/table-records.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from recovery.harness.checkers.index import HistoryIndex, NamedCalls
from recovery.harness.checkers.search import Budget, Step, end_states, windows
from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    SeenEntry,
    SeenSegment,
    Violation,
)
from recovery.harness.records import append_record, parse_records
from recovery.harness.workloads.wire_tables import DECIDED
from segmentstore.tables.table_types import NO_VERSION, NOT_EXISTS

NAME: Final = "tables"
_STEPS: Final = 300_000
"""Tried in all searches of a history."""
_HEAD: Final = struct.Struct(">BHI")
_COPIED_VERSION: Final = struct.Struct(">q")
_REMOVAL: Final = 2
_COPY: Final = 3


class _Held(NamedTuple):
    """What a key has."""

    call: int
    """That set it."""
    version: int | None
    """None: no answer has shown it."""


class _Table(NamedTuple):
    """A state of a table."""

    highest: int
    """Of all versions that an answer has shown."""
    keys: tuple[_Held | None, ...]
    """In the order of the model's keys; None: absent."""


_Act = Callable[[_Table], _Table | None]


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of tables."""
    budget = Budget(_STEPS)
    for named in index.names.values():
        if named.tables:
            yield from _sound(index, named)
            yield from _Model(index, named).check(budget)
    for observation in index.observations:
        for seen in observation.segments.values():
            if seen.entries is not None and (fault := _fault_of(seen)):
                yield Violation(NAME, f"{seen.name!r} at {observation.begun}: {fault}")


# --- what no call set -----------------------------------------------------------------------------


def _sound(index: HistoryIndex, named: NamedCalls) -> Iterator[Violation]:
    """Each value that an answer or an observation shows was sent, for its key."""
    for call in named.tables:
        for entry in call.found:
            if _origin(index, named.name, entry) is None:
                yield Violation(NAME, f"call {call.number} read {entry}, never sent", [call.number])
    for observation in index.observations:
        seen = observation.segments.get(named.name)
        for entry in (seen and seen.entries) or ():
            if _origin(index, named.name, entry) is None:
                where = f"{named.name!r} at {observation.begun}"
                yield Violation(NAME, f"{where} has {entry}, never sent")


def _origin(index: HistoryIndex, name: str, entry: SeenEntry) -> int | None:
    """Number of the call that sent an entry; None if none did."""
    for _, _, origin in parse_records(entry.value):
        if origin is None or origin.event or origin.first >= len(index.calls):
            return None
        call = index.calls[origin.first]
        if (
            call.kind is CallKind.TABLE_UPDATE
            and call.segment == name
            and origin.second < len(call.keys)
            and call.keys[origin.second][0] == entry.key
            and append_record(call.number, origin.second, call.lengths[origin.second])
            == entry.value
        ):
            return call.number
        return None
    return None


# --- an order of the calls ------------------------------------------------------------------------


class _Model:
    """The calls on one table as steps of a search."""

    def __init__(self, index: HistoryIndex, named: NamedCalls) -> None:
        self._index = index
        self._named = named
        keys = dict.fromkeys(key for call in named.tables for key, _ in call.keys)
        self._places = {key: place for place, key in enumerate(keys)}

    def check(self, budget: Budget) -> Iterator[Violation]:
        """Search window by window; one that is not decided leaves all open until the table is
        observed alone.
        """
        counts = self._index.windows
        states: dict[_Table, None] | None = {
            _Table(-1, (None,) * len(self._places)): None,
        }
        for window in windows([*self._calls(), *self._observed()]):
            if states is None:
                if len(window) == 1 and window[0].call is None:
                    unknown = tuple(_Held(-1, None) for _ in self._places)
                    found = window[0].act(_Table(-1, unknown))
                    states = None if found is None else {found: None}
                continue
            before, states = states, end_states(window, states, budget)
            counts["undecided" if states is None else "decided"] += 1
            if states is not None and not states:
                numbers = [step.call.number for step in window if step.call is not None]
                detail = f"{self._named.name!r}: no order of the calls {numbers} explains their"
                shown = ", ".join(self._shown(state) for state in list(before)[:3])
                yield Violation(NAME, f"{detail} results and what was seen, from {shown}", numbers)
                states = None

    def _shown(self, state: _Table) -> str:
        held = {key: state.keys[place] for key, place in self._places.items()}
        return f"{ {key: tuple(each) for key, each in held.items() if each is not None} }"

    def _calls(self) -> Iterator[Step[_Table]]:
        index = self._index
        for call in self._named.tables:
            latest = index.latest[call.number]
            if call.outcome is CallOutcome.UNKNOWN:
                if call.kind is CallKind.TABLE_READ:
                    continue
                if call.error == DECIDED and call.ended is not None:
                    latest = min(latest, call.ended)
                yield Step(call.begun, latest, False, self._changing(call), call)  # noqa: FBT003
            elif call.outcome is CallOutcome.OK and call.kind is not CallKind.TABLE_READ:
                yield Step(call.begun, latest, True, self._changing(call), call)  # noqa: FBT003
            elif index.fresh(call):
                refused = call.outcome is CallOutcome.REFUSED
                act = self._refusing(call) if refused else self._showing(call.keys, call.found)
                yield Step(call.begun, call.ended or 0, True, act, call)  # noqa: FBT003

    def _observed(self) -> Iterator[Step[_Table]]:
        keys = [(key, NO_VERSION) for key in self._places]
        for observation in self._index.observations:
            seen = observation.segments.get(self._named.name)
            if seen is not None and seen.entries is not None:
                act = self._showing(keys, seen.entries)
                yield Step(observation.begun, observation.ended, True, act)  # noqa: FBT003

    def _changing(self, call: Call) -> _Act:
        """An update or a removal that takes effect."""
        places = [(self._places[key], version) for key, version in call.keys]
        versions: Sequence[int | None] = call.versions or (None,) * len(places)

        def act(state: _Table) -> _Table | None:
            highest, held = state.highest, list(state.keys)
            if any(_refusal_of(held[place], version) for place, version in places):
                return None
            for (place, _), version in zip(places, versions, strict=True):
                if call.kind is CallKind.TABLE_REMOVE:
                    held[place] = None
                    continue
                if version is not None and version <= highest:
                    return None
                highest = highest if version is None else version
                held[place] = _Held(call.number, version)
            return _Table(highest, tuple(held))

        return act

    def _refusing(self, call: Call) -> _Act:
        places = [(self._places[key], version) for key, version in call.keys]

        def act(state: _Table) -> _Table | None:
            reasons = {_refusal_of(state.keys[place], version) for place, version in places}
            may_be = call.error in reasons or (
                call.error == "BadKeyVersionError"
                and any(
                    held is not None and held.version is None and version >= 0
                    for held, version in ((state.keys[place], at) for place, at in places)
                )
            )
            return state if may_be else None

        return act

    def _showing(self, keys: Sequence[tuple[bytes, int]], found: Sequence[SeenEntry]) -> _Act:
        """What shows these keys, and of them the found ones alone."""
        shown: dict[int, _Held | None] = {
            self._places[key]: None for key, _ in keys if key in self._places
        }
        for entry in found:
            origin = _origin(self._index, self._named.name, entry)
            if origin is not None:
                shown[self._places[entry.key]] = _Held(origin, entry.version)
        top = max((entry.version for entry in found), default=-1)

        def act(state: _Table) -> _Table | None:
            held = list(state.keys)
            for place, now in shown.items():
                before = held[place]
                if before is None or now is None:
                    if before is not now and (before is None or before.call >= 0):
                        return None
                elif before.call not in {now.call, -1} or before.version not in {now.version, None}:
                    return None
                held[place] = now
            return _Table(max(state.highest, top), tuple(held))

        return act


def _refusal_of(held: _Held | None, expected: int) -> str:
    """Why a key that has this is refused; "" if it is not."""
    if expected == NO_VERSION:
        return ""
    if held is None:
        return "" if expected == NOT_EXISTS else "KeyNotFoundError"
    if expected == NOT_EXISTS or held.version not in {expected, None}:
        return "BadKeyVersionError"
    return ""


# --- what the segment has -------------------------------------------------------------------------


def _fault_of(seen: SeenSegment) -> str:
    """In what the entries of a table differ from its segment's records; "" if in nothing."""
    assert seen.entries is not None
    try:
        records = _folded(seen.content, seen.start_offset)
    except struct.error:
        return "its segment ends in the middle of a record"
    given = {entry.key: (entry.version, entry.value) for entry in seen.entries}
    for key in dict.fromkeys((*records, *given)):
        if records.get(key) != given.get(key):
            return f"key {key!r} is {given.get(key)}, and by its records {records.get(key)}"
    return ""


def _folded(content: bytes, start: int) -> dict[bytes, tuple[int, bytes]]:
    """The version and the value of each key. Raises struct.error."""
    entries: dict[bytes, tuple[int, bytes]] = {}
    position = 0
    while position < len(content):
        version = start + position
        kind, key_length, value_length = _HEAD.unpack_from(content, position)
        position += _HEAD.size
        if kind == _COPY:
            (version,) = _COPIED_VERSION.unpack_from(content, position)
            position += _COPIED_VERSION.size
        if position + key_length + value_length > len(content):
            raise struct.error
        key = content[position : position + key_length]
        position += key_length + value_length
        if kind == _REMOVAL:
            entries.pop(key, None)
        else:
            entries[key] = (version, content[position - value_length : position])
    return entries
