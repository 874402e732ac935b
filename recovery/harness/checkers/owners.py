"""Owners: once a later owner has opened, an old one acknowledges nothing new, and what it did
acknowledge was not lost.

Rules of this file: a call may begin before the later opening ended and be acknowledged after it. It
either reached the log in time, and its effect is in the first observation of the later owner, or it
must not have been acknowledged. A repeated event, and an update of nothing, write nothing and may
be acknowledged by any owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.history import Call, CallKind, CallOutcome, Observation, ProcessRun, Violation

NAME: Final = "owners"
_CHANGES: Final = frozenset(
    (
        *(
            CallKind.CREATE,
            CallKind.APPEND,
            CallKind.EVENT,
            CallKind.SEAL,
            CallKind.TRUNCATE,
            CallKind.MERGE,
            CallKind.DELETE,
            CallKind.UPDATE,
        ),
        CallKind.CHECKPOINT,
    )
)


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations by owners that were overtaken."""
    overtaken: dict[int, tuple[ProcessRun, Observation | None]] = {}
    for process_run in index.history.process_runs:
        later = index.takeover(process_run)
        if later is not None:
            seen = next(
                (found for found in index.observations if found.process_run == later.number), None
            )
            overtaken[process_run.number] = (later, seen)
    if not overtaken:
        return
    by_number = {call.number: found for found in index.incarnations for call in _calls_of(found)}
    for call in index.calls:
        if (
            call.process_run not in overtaken
            or call.outcome is not CallOutcome.OK
            or not _changes(call)
        ):
            continue
        later, observation = overtaken[call.process_run]
        if call.ended is None or later.opened is None or call.ended <= later.opened:
            continue
        who = f"call {call.number} ({call.kind} {call.segment!r}) of life {call.process_run}"
        if call.begun > later.opened:
            yield Violation(
                NAME,
                f"{who} began after life {later.number} had opened and was acknowledged",
                [call.number],
            )
        elif observation is not None and not _is_in(
            index, call, by_number.get(call.number), observation
        ):
            detail = (
                f"{who} was acknowledged after life {later.number} had opened, which does "
                "not have it"
            )
            yield Violation(NAME, detail, [call.number])


def _changes(call: Call) -> bool:
    if call.kind is CallKind.EVENT:
        return call.result is not None
    return call.kind in _CHANGES and (call.kind is not CallKind.UPDATE or bool(call.updates))


def _calls_of(incarnation: Incarnation) -> Iterator[Call]:
    calls = incarnation.calls
    for found in (calls.creates, calls.appends, calls.seals, calls.truncates, calls.merges):
        yield from found


def _is_in(
    index: HistoryIndex, call: Call, incarnation: Incarnation | None, observation: Observation
) -> bool:
    """False if the effect of a call is certainly not in an observation."""
    if incarnation is None:
        return True
    seen = observation.segments.get(call.segment)
    if seen is None:
        return not index.must_exist(incarnation, observation)
    if incarnation.create is not None and seen.segment_id != incarnation.create.result:
        return bool(incarnation.removals)
    if call.kind is CallKind.SEAL:
        return seen.sealed and seen.length == call.result
    if call.kind is CallKind.TRUNCATE:
        return seen.start_offset >= call.offset
    if call.kind in {CallKind.APPEND, CallKind.EVENT}:
        return seen.length >= (call.result or 0) + call.size
    if call.kind is CallKind.MERGE:
        return seen.length >= (call.result or 0)
    return True
