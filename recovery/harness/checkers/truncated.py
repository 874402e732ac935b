"""Truncated never returns: a start offset is one that was asked for, is never below an acknowledged
one, never goes back.

Rules of this file: what a stale owner's reader was given proves nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.history import CallOutcome, Violation

NAME: Final = "truncated"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of truncations."""
    for chain in index.chains.values():
        yield from _seen(index, chain)
    for incarnation in index.incarnations:
        if incarnation.calls.truncates:
            yield from _acknowledged(index, incarnation)
            yield from _reads(index, incarnation)


def _seen(index: HistoryIndex, chain: Chain) -> Iterator[Violation]:
    named = index.names.get(chain.name)
    truncates = [
        call
        for call in (named.truncates if named else ())
        if call.outcome is not CallOutcome.REFUSED
    ]
    before = 0
    for observation, seen in chain.seen:
        start = seen.start_offset
        where = (
            f"{chain.name!r} (id {chain.segment_id}), observed at {observation.begun}, "
            f"begins at {start}"
        )
        if start < before:
            yield Violation(NAME, f"{where}, after it began at {before}")
        elif start > before and not any(
            call.offset == start and call.begun < observation.ended for call in truncates
        ):
            yield Violation(NAME, f"{where}, where no call truncated it")
        before = start


def _acknowledged(index: HistoryIndex, incarnation: Incarnation) -> Iterator[Violation]:
    for call in incarnation.calls.truncates:
        if call.outcome is not CallOutcome.OK:
            continue
        seen = index.seen_after(incarnation, index.latest[call.number])
        if seen is not None and seen.start_offset < call.offset:
            detail = (
                f"{incarnation.name!r} was truncated at {call.offset} and begins at "
                f"{seen.start_offset}"
            )
            yield Violation(NAME, detail, [call.number])


def _reads(index: HistoryIndex, incarnation: Incarnation) -> Iterator[Violation]:
    """No read below a truncation that was acknowledged before the read began gives anything."""
    done = sorted(
        (call.ended or 0, call.offset, call.number)
        for call in incarnation.calls.truncates
        if call.outcome is CallOutcome.OK
    )
    highest: list[tuple[int, int]] = []
    for _, offset, number in done:
        highest.append(max((offset, number), highest[-1]) if highest else (offset, number))
    ends = [ended for ended, _, _ in done]
    for call in incarnation.calls.reads:
        place = bisect_left(ends, call.begun)
        if (
            place
            and call.outcome is CallOutcome.OK
            and call.offset < highest[place - 1][0]
            and index.fresh(call)
        ):
            offset, number = highest[place - 1]
            detail = (
                f"call {call.number} read {len(call.data)} bytes at {call.offset} of "
                f"{incarnation.name!r}"
            )
            yield Violation(
                NAME, f"{detail}, truncated at {offset} before it began", [number, call.number]
            )
