"""Set-ups: the number that a writer is given when it connects again is that of its last event.

Rules of this file:

- the number is durable, and final: what it does not cover is stored only if it is sent again;
- an owner that may have been overtaken gives a number of before, which counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.history import Call, CallKind, CallOutcome, Violation

NAME: Final = "set-ups"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of what set-ups answered."""
    for incarnation in index.incarnations:
        for call in incarnation.calls.set_ups:
            if call.outcome is CallOutcome.OK and index.fresh(call):
                yield from _acknowledged(index, incarnation, call)
                yield from _there(incarnation, call)
                yield from _final(incarnation, call)


def _sent(incarnation: Incarnation, writer: int) -> list[Call]:
    return [
        call
        for call in incarnation.calls.appends
        if call.kind is CallKind.EVENT and call.writer == writer
    ]


def _what(incarnation: Incarnation, call: Call) -> str:
    return f"set-up {call.number} of writer {call.writer} on {incarnation.name!r}: {call.result}"


def _acknowledged(index: HistoryIndex, incarnation: Incarnation, call: Call) -> Iterator[Violation]:
    """No event was acknowledged before that is above the number."""
    for sent in _sent(incarnation, call.writer):
        if (
            sent.outcome is CallOutcome.OK
            and sent.event > (call.result or 0)
            and index.latest[sent.number] < call.begun
        ):
            detail = f"event {sent.event} had been acknowledged"
            yield Violation(NAME, f"{_what(incarnation, call)}, {detail}", [call.number])
            return


def _there(incarnation: Incarnation, call: Call) -> Iterator[Violation]:
    """All events up to the number are in the segment."""
    chain = incarnation.chain
    seen = None if chain is None or call.ended is None else chain.first_after(call.ended)
    if chain is None or seen is None or not chain.complete:
        return
    for event in range(1, (call.result or 0) + 1):
        offset = chain.at.get((True, call.writer, event))
        if offset is None or offset >= seen[1].length:
            detail = f"event {event} is not there"
            yield Violation(NAME, f"{_what(incarnation, call)}, {detail}", [call.number])
            return


def _final(incarnation: Incarnation, call: Call) -> Iterator[Violation]:
    """Events above the number that are there were sent again."""
    chain = incarnation.chain
    if chain is None or call.ended is None:
        return
    later = {sent.event for sent in _sent(incarnation, call.writer) if sent.begun > call.ended}
    for event, writer, number in chain.at:
        stored = event and writer == call.writer and number > (call.result or 0)
        if stored and number not in later:
            detail = f"event {number} is there, and was not sent again"
            yield Violation(NAME, f"{_what(incarnation, call)}, {detail}", [call.number])
            return
