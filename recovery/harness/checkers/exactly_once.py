"""Exactly once: a writer's events lie in a segment in the order of their numbers, once, without a
hole; so says its attribute.

Rules of this file:

- writers whose events may have come in with a merge as well are left out: theirs may lie there
  twice;
- an event that was acknowledged as a repetition (no offset) must be there, unless its writer itself
  went past it before the event was sent;
- the attribute is the number of the last event, no more and no less, wherever the last event was
  seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.history import Call, CallKind, CallOutcome, Violation

NAME: Final = "exactly once"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of exactly-once writing."""
    for name, named in index.names.items():
        senders: dict[int, list[Call]] = {}
        for call in named.appends:
            if call.kind is CallKind.EVENT:
                senders.setdefault(call.writer, []).append(call)
        if not senders:
            continue
        for part in index.sources(name):
            for call in index.names[part].appends if part in index.names else ():
                senders.pop(call.writer if call.kind is CallKind.EVENT else -1, None)
        for chain in index.chains_of(name):
            yield from _in_order(chain, senders)
            yield from _attribute(
                chain, senders, {update.id.int for call in named.updates for update in call.updates}
            )
        for incarnation in index.incarnations_of[name]:
            yield from _no_hole(index, incarnation, senders)
            yield from _acknowledged_attribute(index, incarnation, senders)


def _events(chain: Chain, writer: int) -> list[tuple[int, int]]:
    """(offset, number) of a writer's events, by offset."""
    return [
        (piece.offset, piece.origin.second)
        for piece in chain.pieces
        if piece.origin is not None and piece.origin.event and piece.origin.first == writer
    ]


def _in_order(chain: Chain, senders: dict[int, list[Call]]) -> Iterator[Violation]:
    last: dict[int, tuple[int, int]] = {}
    for offset, _, origin in chain.pieces:
        if origin is None or not origin.event or origin.first not in senders:
            continue
        before = last.get(origin.first)
        if before is not None and origin.second <= before[1]:
            detail = (
                f"writer {origin.first}: event {origin.second} at {offset} of {chain.name!r} "
                "lies behind"
            )
            yield Violation(NAME, f"{detail} event {before[1]} at {before[0]}")
        last[origin.first] = (offset, origin.second)


def _attribute(
    chain: Chain, senders: dict[int, list[Call]], updated: set[int]
) -> Iterator[Violation]:
    """Each observation's attribute against the events that were seen up to then."""
    for writer, sent in senders.items():
        if writer in updated:
            continue
        key = UUID(int=writer)
        events = _events(chain, writer)
        numbers = {call.event for call in sent if call.outcome is not CallOutcome.REFUSED}
        place, highest = 0, -1
        for observation, seen in chain.seen:
            while place < len(events) and events[place][0] < seen.length:
                highest = max(highest, events[place][1])
                place += 1
            value = seen.attributes.get(key)
            where = f"writer {writer} in {chain.name!r}, observed at {observation.begun}"
            if (-1 if value is None else value) < highest:
                yield Violation(
                    NAME, f"{where}: the attribute is {value}, event {highest} is there"
                )
            elif value is not None and value not in numbers:
                yield Violation(NAME, f"{where}: the attribute is {value}, which was never sent")
            elif value is not None and value > highest and chain.complete:
                yield Violation(
                    NAME, f"{where}: the attribute is {value}, the last event there is {highest}"
                )


def _acknowledged_attribute(
    index: HistoryIndex, incarnation: Incarnation, senders: dict[int, list[Call]]
) -> Iterator[Violation]:
    """No attribute is below a number that had been acknowledged."""
    chain = incarnation.chain
    highest: dict[tuple[int, int], Call] = {}
    for call in incarnation.calls.appends:
        if (
            call.kind is not CallKind.EVENT
            or call.outcome is not CallOutcome.OK
            or call.writer not in senders
            or chain is None
        ):
            continue
        entry = chain.first_after(index.latest[call.number])
        if entry is not None:
            place = (call.writer, entry[0].begun)
            if place not in highest or highest[place].event < call.event:
                highest[place] = call
    for (writer, begun), call in highest.items():
        entry = None if chain is None else chain.first_after(begun - 1)
        value = None if entry is None else entry[1].attributes.get(UUID(int=writer))
        if value is None or value < call.event:
            detail = (
                f"writer {writer} in {incarnation.name!r}, observed at {begun}: the "
                f"attribute is {value}"
            )
            yield Violation(
                NAME, f"{detail}, event {call.event} had been acknowledged", [call.number]
            )


def _no_hole(
    index: HistoryIndex, incarnation: Incarnation, senders: dict[int, list[Call]]
) -> Iterator[Violation]:
    """Events acknowledged as repetitions are there.

    Those acknowledged with an offset are checked by `content`.
    """
    chain = incarnation.chain
    if chain is None:
        return
    for call in incarnation.calls.appends:
        if (
            call.kind is not CallKind.EVENT
            or call.outcome is not CallOutcome.OK
            or call.result is not None
        ):
            continue
        writer, number = call.writer, call.event
        if writer not in senders or (True, writer, number) in chain.at:
            continue
        if chain.first_after(index.latest[call.number]) is None:
            continue
        events = _events(chain, writer)
        following = next((found for _, found in events if found > number), None)
        reaches_below = chain.complete or any(found < number for _, found in events)
        if not reaches_below or (following is None and not chain.complete):
            continue
        if not chain.complete and _cut_between(chain, events, number):
            continue
        if following is None or not _went_past(senders[writer], number, following):
            detail = (
                f"event {number} of writer {writer} was acknowledged as there already, and "
                f"is not in {chain.name!r}"
            )
            yield Violation(NAME, detail, [call.number])


def _cut_between(chain: Chain, events: list[tuple[int, int]], number: int) -> bool:
    """True if bytes were truncated unseen between the events before and after a number."""
    low = max((offset for offset, found in events if found < number), default=0)
    high = min((offset for offset, found in events if found > number), default=low)
    return any(low < seen.start_offset <= high for _, seen in chain.seen)


def _went_past(sent: list[Call], number: int, following: int) -> bool:
    """True if the writer may have sent a later event in a process run in which it had not sent this
    one before.
    """
    own = [call for call in sent if call.event == number]
    if any(call.outcome is CallOutcome.REFUSED for call in own):
        return True
    later = [
        call
        for call in sent
        if call.event == following
        and (call.outcome is CallOutcome.UNKNOWN or call.result is not None)
    ]
    return any(
        not any(
            first.process_run == call.process_run and first.number < call.number for first in own
        )
        for call in later
    )
