"""Conditional appends: those that went in landed where they were asked to, those that were refused
had a reason.

Rules of this file (`linearizability` asks more):

- a refusal checks what the engine has taken, acknowledged or not. So it is wrong only if nothing
  was in flight, and the length was the expected one from before the call to after it;
- attributes are checked before the offset, so a refusal of the offset is wrong if an update that
  rides on the append fails whatever the attribute was before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final
from uuid import UUID

from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.checkers.registers import Register, applying, way_of
from recovery.harness.history import Call, CallKind, CallOutcome, Update, Violation
from segmentstore.contracts.attributes import UpdateType

NAME: Final = "conditional"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of conditions on the offset."""
    for named in index.names.values():
        for call in named.appends:
            if call.expected is None:
                continue
            if call.outcome is CallOutcome.OK and call.result != call.expected:
                detail = (
                    f"call {call.number} went into {call.segment!r} at {call.result}, only "
                    f"{call.expected} was asked"
                )
                yield Violation(NAME, detail, [call.number])
            if call.error == "BadOffsetError" and _cannot_hold(call.updates):
                detail = (
                    f"call {call.number} on {call.segment!r} was refused for its offset, "
                    "with an update that fails"
                )
                yield Violation(NAME, detail, [call.number])
    for incarnation in index.incarnations:
        refused = [
            call
            for call in incarnation.calls.appends
            if call.expected is not None and call.error == "BadOffsetError" and index.fresh(call)
        ]
        if refused and incarnation.certain:
            yield from _groundless(index, incarnation, refused)


def _cannot_hold(updates: tuple[Update, ...]) -> bool:
    """True if some update fails behind an earlier one of the same call, which sets its attribute
    whatever was there.
    """
    known: dict[UUID, Register] = {}
    for update in updates:
        sets = way_of(update) is UpdateType.REPLACE
        before = (None,) if sets else known.get(update.id)
        if before is None:
            continue
        after = applying((update,))(before)
        if after is None:
            return True
        known[update.id] = after
    return False


def _groundless(
    index: HistoryIndex, incarnation: Incarnation, refused: list[Call]
) -> Iterator[Violation]:
    """Refusals at the very length the segment had all the time."""
    calls, latest = incarnation.calls, index.latest
    changing = [
        call
        for call in (*calls.appends, *calls.merges, *calls.seals)
        if call.outcome is not CallOutcome.REFUSED
    ]
    placed = [
        call for call in changing if call.outcome is CallOutcome.OK and call.result is not None
    ]
    infos = [
        call for call in calls.infos if call.outcome is CallOutcome.OK and call.result is not None
    ]
    seen = [] if incarnation.chain is None else incarnation.chain.seen
    reached = sorted(
        [(call.ended or 0, (call.result or 0) + _added(call)) for call in (*placed, *infos)]
        + [(observation.ended, found.length) for observation, found in seen]
    )
    later = sorted(
        [
            (call.begun, call.result or 0)
            for call in (*placed, *(info for info in infos if index.fresh(info)))
        ]
        + [(observation.begun, found.length) for observation, found in seen]
    )
    least = _running(reached, max)
    most = _running(later[::-1], min)[::-1]
    ends, begins = [stamp for stamp, _ in reached], [stamp for stamp, _ in later]
    for call in refused:
        before = bisect_left(ends, call.begun)
        after = bisect_right(begins, call.ended or 0)
        low = least[before - 1] if before else 0
        if after == len(most) or not low == call.expected == most[after]:
            continue
        if not any(
            other.begun < (call.ended or 0) and latest[other.number] > call.begun
            for other in changing
        ):
            detail = (
                f"call {call.number} was refused at {call.expected} of {incarnation.name!r}, "
                "its length all the time"
            )
            yield Violation(NAME, detail, [call.number])


def _added(call: Call) -> int:
    return call.size if call.kind in {CallKind.APPEND, CallKind.EVENT} else 0


def _running(stamped: list[tuple[int, int]], choose: Callable[[int, int], int]) -> list[int]:
    found: list[int] = []
    for _, length in stamped:
        found.append(choose(found[-1], length) if found else length)
    return found
