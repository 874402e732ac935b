"""Reads: what a reader was given is what the segment holds, and what was acknowledged before is
given.

Rules of this file: bytes are compared with the next observation of the same incarnation, or the
last one before, wherever they overlap. That a read must find something is required only where no
later owner can have been there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.history import Call, CallOutcome, SeenSegment, Violation

NAME: Final = "reads"
_AT_THE_END: Final = frozenset(("BadOffsetError", "EndOfSegmentError"))


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of reading."""
    for incarnation in index.incarnations:
        if not incarnation.calls.reads:
            continue
        for call in incarnation.calls.reads:
            if call.outcome is CallOutcome.OK and call.data:
                yield from _same_bytes(incarnation, call)
        yield from _own_writes(index, incarnation)


def _same_bytes(incarnation: Incarnation, call: Call) -> Iterator[Violation]:
    where = (
        f"call {call.number} read {len(call.data)} bytes at {call.offset} of {incarnation.name!r}"
    )
    if call.max_length and len(call.data) > call.max_length:
        yield Violation(NAME, f"{where}, {call.max_length} were asked for", [call.number])
    chain = incarnation.chain
    if chain is None:
        return
    after = chain.first_after(call.ended or 0)
    if after is not None and call.offset + len(call.data) > after[1].length:
        yield Violation(
            NAME, f"{where}, and it ended at {after[1].length} when observed later", [call.number]
        )
    for entry in (after, chain.last_before(call.begun)):
        if entry is not None and (compared := _compare(entry[1], call)) is not None:
            if not compared:
                detail = f"{where}, which are not the bytes observed at {entry[0].begun}"
                yield Violation(NAME, detail, [call.number])
            return


def _compare(seen: SeenSegment, call: Call) -> bool | None:
    """Whether the bytes read are those seen, where both are known; None if that is nowhere."""
    low = max(call.offset, seen.start_offset)
    high = min(call.offset + len(call.data), seen.start_offset + len(seen.content))
    if low >= high:
        return None
    read = call.data[low - call.offset : high - call.offset]
    return seen.content.startswith(read, low - seen.start_offset)


def _own_writes(index: HistoryIndex, incarnation: Incarnation) -> Iterator[Violation]:
    """A read that began after an append below whose end it reads was acknowledged gives
    something.
    """
    done = sorted(
        (call.ended or 0, call.result + call.size, call.number)
        for call in incarnation.calls.appends
        if call.outcome is CallOutcome.OK and call.result is not None
    )
    ends = [ended for ended, _, _ in done]
    highest: list[tuple[int, int]] = []
    for _, end, number in done:
        highest.append(max((end, number), highest[-1]) if highest else (end, number))
    for call in incarnation.calls.reads:
        nothing = (call.outcome is CallOutcome.OK and not call.data) or call.error in _AT_THE_END
        place = bisect_left(ends, call.begun) if nothing else 0
        if place and call.offset < highest[place - 1][0] and index.fresh(call):
            end, number = highest[place - 1]
            detail = f"call {call.number} found nothing at {call.offset} of {incarnation.name!r}"
            yield Violation(
                NAME,
                f"{detail}, though call {number} had been acknowledged up to {end}",
                [number, call.number],
            )
