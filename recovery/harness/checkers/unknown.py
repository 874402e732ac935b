"""Outcomes: what was refused is nowhere, and what was unknown is decided when its process run is
over.

That an unknown append is there at most once is checked with all other records (`content`). Rules of
this file: an event was refused only if every call that sent it was. An append that a stopped
container answers with ContainerStoppedError had no effect, whatever the outcome is called: that is
its contract (an unknown outcome is AppendOutcomeUnknownError). So is it that of an append which a
lost connection answers with StoreDisconnectedError. A late effect is reported only where the same
segment was seen after the end of the process run and did not have it. An event that was
acknowledged without an offset was stored by that call only if the call carries updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import NEVER, HistoryIndex
from recovery.harness.history import Call, CallKind, CallOutcome, Violation

NAME: Final = "unknown"
_NO_EFFECT: Final = ("ContainerStoppedError", "StoreDisconnectedError")


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of what an outcome says."""
    open_events = _open_events(index)
    for chain in index.chains.values():
        name = chain.name
        for origin, offset in chain.at.items():
            event, first, second = origin
            sent: Sequence[Call]
            if event:
                sent = open_events.get((name, first, second), ())
            else:
                call = index.calls[first] if first < len(index.calls) else None
                # Where an acknowledged append must lie, and since when, is checked by its content.
                sent = () if call is None or call.outcome is CallOutcome.OK else (call,)
            if sent:
                what = (
                    f"event {second} of writer {first}"
                    if event
                    else f"item {second} of call {first}"
                )
                yield from _check_bytes(index, chain, sent, offset, what)


def _open_events(index: HistoryIndex) -> dict[tuple[str, int, int], list[Call]]:
    """The calls that sent an event, of the events that were not acknowledged with an offset."""
    sent: dict[tuple[str, int, int], list[Call]] = {}
    placed: dict[tuple[str, int, int], None] = {}
    for named in index.names.values():
        for call in named.appends:
            if call.kind is CallKind.EVENT:
                key = (call.segment, call.writer, call.event)
                if call.outcome is CallOutcome.OK and call.result is not None:
                    placed[key] = None
                else:
                    sent.setdefault(key, []).append(call)
    return {key: calls for key, calls in sent.items() if key not in placed}


def _check_bytes(
    index: HistoryIndex, chain: Chain, sent: Sequence[Call], offset: int, what: str
) -> Iterator[Violation]:
    if all(call.outcome is CallOutcome.REFUSED or call.error in _NO_EFFECT for call in sent):
        detail = f"{what} was refused ({sent[0].error}) and lies at {offset} of {chain.name!r}"
        yield Violation(NAME, detail, [call.number for call in sent])
    elif sent[0].segment == chain.name:
        yield from _late(index, chain, sent, offset, what)


def _late(
    index: HistoryIndex, chain: Chain, sent: Sequence[Call], offset: int, what: str
) -> Iterator[Violation]:
    place = chain.seen_first(offset)
    if not 0 < place < len(chain.begins):
        return
    effective = [
        call
        for call in sent
        if call.outcome is CallOutcome.UNKNOWN or (call.outcome is CallOutcome.OK and call.updates)
    ]
    decided = max((index.latest[call.number] for call in effective), default=NEVER)
    if decided < chain.begins[place - 1]:
        detail = (
            f"{what} at {offset} of {chain.name!r} was not there when observed at "
            f"{chain.begins[place - 1]}"
        )
        yield Violation(
            NAME, f"{detail}, though it was decided by {decided}", [call.number for call in sent]
        )
