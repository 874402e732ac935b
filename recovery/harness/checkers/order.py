"""Order: acknowledged offsets of one segment do not overlap, leave no unexplained hole, and agree
with real time.

Rules of this file: an append that ended before another began lies before it, whichever client sent
it. So do a length that was reported and an append that began later. Appends of one client land in
the order of its calls, at whatever time they end. O(n log n).
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter, itemgetter
from typing import Final

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import HistoryIndex, Incarnation, NamedCalls
from recovery.harness.history import Call, CallKind, CallOutcome, Violation

NAME: Final = "order"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of the order of appends."""
    for incarnation in index.incarnations:
        placed = [
            call
            for call in incarnation.calls.appends
            if call.outcome is CallOutcome.OK and call.result is not None
        ]
        by_offset = sorted(placed, key=attrgetter("result", "size"))
        yield from _disjoint(by_offset, incarnation)
        yield from _dense(index, by_offset, incarnation)
        yield from _in_real_time(index, placed, incarnation)
        yield from _of_one_client(incarnation.calls, incarnation.chain)


def _disjoint(placed: list[Call], incarnation: Incarnation) -> Iterator[Violation]:
    end, before = 0, None
    for call in placed:
        assert call.result is not None
        if before is not None and call.result < end:
            detail = (
                f"calls {before.number} and {call.number} were both acknowledged for offset "
                f"{call.result}"
            )
            yield Violation(NAME, f"{detail} of {incarnation.name!r}", [before.number, call.number])
        if call.result + call.size >= end:
            end, before = call.result + call.size, call


def _dense(
    index: HistoryIndex, placed: list[Call], incarnation: Incarnation
) -> Iterator[Violation]:
    """No more bytes lie between the acknowledged ones than appends of unknown outcome can have left
    there.
    """
    named = index.names[incarnation.name]
    if (
        not incarnation.certain
        or incarnation.create is None
        or any(m.outcome is not CallOutcome.REFUSED for m in named.merges)
    ):
        return
    end = holes = 0
    for call in placed:
        assert call.result is not None
        holes += max(0, call.result - end)
        end = max(end, call.result + call.size)
    room = sum(
        call.size
        for call in named.appends
        if call.outcome is CallOutcome.UNKNOWN
        # An event of which only that is known: its updates were made, so it is stored somewhere.
        or (call.outcome is CallOutcome.OK and call.result is None and call.updates)
    )
    if holes > room:
        detail = f"{holes} bytes below {end} of {incarnation.name!r} were acknowledged to no client"
        yield Violation(NAME, f"{detail}; appends of unknown outcome have {room}")


def _in_real_time(
    index: HistoryIndex, placed: list[Call], incarnation: Incarnation
) -> Iterator[Violation]:
    """Sweep: at each beginning, the call lies behind everything that had ended."""
    calls = incarnation.calls
    merges = [
        call for call in calls.merges if call.outcome is CallOutcome.OK and call.result is not None
    ]
    seals = [
        call for call in calls.seals if call.outcome is CallOutcome.OK and call.result is not None
    ]
    infos = [
        call for call in calls.infos if call.outcome is CallOutcome.OK and call.result is not None
    ]
    known: list[tuple[int, int, int]] = [
        (call.ended or 0, (call.result or 0) + call.size, call.number)
        for call in (*placed, *merges, *infos)
    ]
    known += [
        (observation.ended, seen.length, -1)
        for observation, seen in (incarnation.chain.seen if incarnation.chain is not None else ())
    ]
    known.sort(key=itemgetter(0))
    evaluated = sorted(
        (*placed, *merges, *seals, *(call for call in infos if index.fresh(call))),
        key=attrgetter("begun"),
    )
    place = least = 0
    witness = -1
    for call in evaluated:
        while place < len(known) and known[place][0] < call.begun:
            if known[place][1] > least:
                least, witness = known[place][1], known[place][2]
            place += 1
        if call.result is not None and call.result < least:
            who = f"call {witness}" if witness >= 0 else "an observation"
            detail = (
                f"call {call.number} ({call.kind}) received {call.result} for {incarnation.name!r}"
            )
            numbers = [call.number] if witness < 0 else [witness, call.number]
            yield Violation(
                NAME, f"{detail}, but {who} had reached {least} before it began", numbers
            )


def _of_one_client(calls: NamedCalls, chain: Chain | None) -> Iterator[Violation]:
    """Appends of one client, in one process run, in the order of its calls: the acknowledged ones,
    and those that were seen.
    """
    last: dict[tuple[int, str], tuple[int, Call]] = {}
    for call in calls.appends:
        if call.outcome is CallOutcome.OK:
            offset = call.result
        elif (
            call.outcome is CallOutcome.UNKNOWN
            and call.kind is CallKind.APPEND
            and chain is not None
        ):
            offset = chain.at.get((False, call.number, 0))
        else:
            offset = None
        if offset is None:
            continue
        client = (call.process_run, call.client)
        before = last.get(client)
        if before is not None and offset < before[0]:
            detail = f"call {call.number} of {call.client} lies at {offset} of {call.segment!r}"
            detail = (
                f"{detail}, before its earlier call {before[1].number}, which ends at {before[0]}"
            )
            yield Violation(NAME, detail, [before[1].number, call.number])
        last[client] = (offset + call.size, call)
