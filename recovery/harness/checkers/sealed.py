"""Sealed stays sealed: no append lands after a seal, the length is final, and only a seal seals.

Rules of this file: appends that began before the seal had ended may have come first; a repeated
event changes nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.history import Call, CallKind, CallOutcome, Violation

NAME: Final = "sealed"


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of seals."""
    for chain in index.chains.values():
        yield from _seen(index, chain)
    for incarnation in index.incarnations:
        seals = [call for call in incarnation.calls.seals if call.outcome is CallOutcome.OK]
        yield from _after(incarnation, seals)
        yield from _acknowledged(index, incarnation, seals)
    for name, named in index.names.items():
        sealing = [call.begun for call in named.seals if call.outcome is not CallOutcome.REFUSED]
        alone = (call for call in named.updates if call.kind is CallKind.UPDATE)
        for call in (*named.appends, *named.seals, *named.merges, *alone):
            if call.error == "SegmentSealedError" and not any(
                begun < (call.ended or 0) for begun in sealing
            ):
                detail = (
                    f"call {call.number} ({call.kind}) received that {name!r} is sealed, "
                    "which no call had asked for"
                )
                yield Violation(NAME, detail, [call.number])


def _seen(index: HistoryIndex, chain: Chain) -> Iterator[Violation]:
    final: int | None = None
    named = index.names.get(chain.name)
    for observation, seen in chain.seen:
        where = f"{chain.name!r} (id {chain.segment_id}), observed at {observation.begun}"
        if final is not None and (not seen.sealed or seen.length != final):
            state = "sealed" if seen.sealed else "not sealed"
            yield Violation(
                NAME, f"{where}, is {state} with length {seen.length}; it was sealed at {final}"
            )
        if seen.sealed and final is None:
            final = seen.length
            seals = [] if named is None else named.seals
            if not any(
                call.outcome is not CallOutcome.REFUSED and call.begun < observation.ended
                for call in seals
            ):
                yield Violation(NAME, f"{where}, is sealed and no call sealed it")


def _after(incarnation: Incarnation, seals: list[Call]) -> Iterator[Violation]:
    """What was acknowledged after a seal was, or beyond its length."""
    first_stamp, length = None, None
    for seal in seals:
        if first_stamp is None or (seal.ended or 0) < first_stamp:
            first_stamp, length = seal.ended, seal.result
    if incarnation.chain is not None:
        for observation, seen in incarnation.chain.seen:
            if seen.sealed:
                if first_stamp is None or observation.ended < first_stamp:
                    first_stamp = observation.ended
                length = seen.length if length is None else length
                break
    if first_stamp is None:
        return
    calls = incarnation.calls
    alone = [call for call in calls.updates if call.kind is CallKind.UPDATE]
    for call in (*calls.appends, *calls.merges, *alone, *calls.seals):
        repeated = call.kind is CallKind.EVENT and call.result is None
        if call.outcome is not CallOutcome.OK or repeated:
            continue
        if call.begun > first_stamp:
            detail = (
                f"call {call.number} ({call.kind}) began after {incarnation.name!r} was "
                "sealed and was acknowledged"
            )
            yield Violation(NAME, detail, [call.number])
        elif length is not None and call.result is not None and call.result + call.size > length:
            detail = (
                f"call {call.number} ({call.kind}) was acknowledged up to {call.result + call.size}"
            )
            yield Violation(
                NAME, f"{detail} of {incarnation.name!r}, sealed at {length}", [call.number]
            )


def _acknowledged(
    index: HistoryIndex, incarnation: Incarnation, seals: list[Call]
) -> Iterator[Violation]:
    if len(seals) > 1:
        numbers = [call.number for call in seals]
        yield Violation(
            NAME, f"{incarnation.name!r} was sealed by each of the calls {numbers}", numbers
        )
    for seal in seals:
        seen = index.seen_after(incarnation, index.latest[seal.number])
        if seen is not None and not (seen.sealed and seen.length == seal.result):
            state = "sealed" if seen.sealed else "not sealed"
            detail = (
                f"{incarnation.name!r} was sealed at {seal.result} and is {state}, with "
                f"length {seen.length}"
            )
            yield Violation(NAME, detail, [seal.number])
