"""Merged once: a merge that is an event of a writer is done once, and its writer's in order.

Rules of this file:

- such a merge has a source of its own, each time with the records of one append: records of two
  appends are two merges;
- a writer goes on to the next number once the target has the last one, so all numbers up to the
  attribute are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from recovery.harness.checkers.contents import Chain
from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.history import Violation

NAME: Final = "merged once"


class _Event(NamedTuple):
    writer: int
    number: int


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations of merges that are events."""
    for name, named in index.names.items():
        events = {
            merge.source: _Event(merge.writer, merge.event) for merge in named.merges if merge.event
        }
        if events:
            for chain in index.chains_of(name):
                found = list(_found(index, chain, events))
                yield from _once_and_in_order(chain, found)
                yield from _all_there(chain, found, {event.writer for event in events.values()})


def _found(
    index: HistoryIndex, chain: Chain, events: dict[str, _Event]
) -> Iterator[tuple[int, _Event, int]]:
    """The offset, the event and the append of each record that a merge has brought."""
    for offset, _, origin in chain.pieces:
        if origin is None or origin.event or origin.first >= len(index.calls):
            continue
        event = events.get(index.calls[origin.first].segment)
        if event is not None:
            yield offset, event, origin.first


def _once_and_in_order(chain: Chain, found: list[tuple[int, _Event, int]]) -> Iterator[Violation]:
    appends: dict[_Event, int] = {}
    last: dict[int, int] = {}
    for offset, event, append in found:
        what = f"event {event.number} of {event.writer} at {offset} of {chain.name!r}"
        if appends.setdefault(event, append) != append:
            yield Violation(NAME, f"{what} was merged before", [appends[event], append])
        elif event.number < last.get(event.writer, 0):
            yield Violation(NAME, f"{what} lies behind event {last[event.writer]}", [append])
        last[event.writer] = event.number


def _all_there(
    chain: Chain, found: list[tuple[int, _Event, int]], writers: set[int]
) -> Iterator[Violation]:
    if not chain.complete:
        return
    for observation, seen in chain.seen:
        there: dict[int, set[int]] = {writer: set() for writer in sorted(writers)}
        for offset, event, _ in found:
            if offset < seen.length:
                there[event.writer].add(event.number)
        for writer, numbers in there.items():
            value = seen.attributes.get(UUID(int=writer), 0)
            if numbers != set(range(1, value + 1)):
                detail = f"the attribute of writer {writer} is {value}, and of its events"
                where = f"{chain.name!r} has {sorted(numbers)}, observed at {observation.begun}"
                yield Violation(NAME, f"{detail} {where}")
