"""Recovery: the segments that must be there are there, no others are, and checking twice shows the
same.

Rules of this file: an id belongs to one name for ever, and a name that nothing removed has one id.
A recovery of an untouched store may change only how much of it is in Tier 2, and that only grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from recovery.harness.checkers.index import HistoryIndex, Incarnation
from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    Observation,
    SeenSegment,
    Violation,
)

NAME: Final = "recovery"
_SAME: Final = tuple(field.name for field in fields(SeenSegment) if field.name != "storage_length")


def check(index: HistoryIndex) -> Iterator[Violation]:
    """Violations by what is there after a recovery, and what is not."""
    before: Observation | None = None
    for observation in index.observations:
        for finding in observation.findings:
            yield Violation(
                NAME, f"before the opening of life {observation.process_run}: {finding}"
            )
        if observation.again and before is not None:
            yield from _changed(before, observation)
        for seen in observation.segments.values():
            yield from _bounds(seen)
            yield from _created(index, seen, observation)
        before = observation
    yield from _ids(index)
    for incarnation in index.incarnations:
        yield from _there(index, incarnation)
    for name, removals in index.removals.items():
        yield from _removed(index, name, removals)
    yield from _answers(index)


def _changed(before: Observation, after: Observation) -> Iterator[Violation]:
    where = f"between {before.begun} and {after.begun} nothing was written"
    for name, old in before.segments.items():
        new = after.segments.get(name)
        if new is None:
            yield Violation(NAME, f"{where}, and {name!r} is gone")
            continue
        for field in _SAME:
            if getattr(old, field) != getattr(new, field):
                values = f"from {getattr(old, field)!r:.60} to {getattr(new, field)!r:.60}"
                yield Violation(NAME, f"{where}, and {field} of {name!r} went {values}")
    for name in after.segments:
        if name not in before.segments:
            yield Violation(NAME, f"{where}, and {name!r} has come")


def _bounds(seen: SeenSegment) -> Iterator[Violation]:
    if not 0 <= seen.start_offset <= seen.length or not 0 <= seen.storage_length <= seen.length:
        numbers = (
            f"start offset {seen.start_offset}, storage length {seen.storage_length}, length "
            f"{seen.length}"
        )
        yield Violation(NAME, f"{seen.name!r} has {numbers}")


def _created(
    index: HistoryIndex, seen: SeenSegment, observation: Observation
) -> Iterator[Violation]:
    named = index.names.get(seen.name)
    creates = [] if named is None else named.creates
    possible = [
        call
        for call in creates
        if call.outcome is not CallOutcome.REFUSED and call.begun < observation.ended
    ]
    if not possible:
        yield Violation(
            NAME, f"{seen.name!r} is there at {observation.begun}, and no call created it"
        )
    elif all(
        call.outcome is CallOutcome.OK and call.result != seen.segment_id for call in possible
    ):
        ids = ", ".join(str(call.result) for call in possible)
        detail = (
            f"{seen.name!r} has id {seen.segment_id} at {observation.begun}, it was created "
            f"with {ids}"
        )
        yield Violation(NAME, detail, [call.number for call in possible])


def _ids(index: HistoryIndex) -> Iterator[Violation]:
    owners: dict[tuple[int, int], str] = {}
    for chain in index.chains.values():
        stored = 0
        for observation, seen in chain.seen:
            name = owners.setdefault((seen.container_id, seen.segment_id), seen.name)
            if name != seen.name:
                detail = (
                    f"id {seen.segment_id} of container {seen.container_id} is {seen.name!r} "
                    f"and was {name!r}"
                )
                yield Violation(NAME, detail)
            if seen.storage_length < stored:
                detail = (
                    f"storage length of {seen.name!r} went back from {stored} to "
                    f"{seen.storage_length}"
                )
                yield Violation(NAME, f"{detail} at {observation.begun}")
            stored = max(stored, seen.storage_length)
    for name, named in index.names.items():
        if name in index.removals:
            continue
        made = [call for call in named.creates if call.outcome is CallOutcome.OK]
        if len(made) > 1:
            numbers = [call.number for call in made]
            yield Violation(
                NAME,
                f"{name!r} was created by each of the calls {numbers}, and nothing removed it",
                numbers,
            )
        ids = [chain.segment_id for chain in index.chains_of(name)]
        if len(ids) > 1:
            yield Violation(NAME, f"{name!r} was seen with the ids {ids}, and nothing removed it")


def _there(index: HistoryIndex, incarnation: Incarnation) -> Iterator[Violation]:
    """A segment that exists is in every observation; it is reported once."""
    for observation in index.observations:
        if not index.must_exist(incarnation, observation):
            continue
        seen = observation.segments.get(incarnation.name)
        create = incarnation.create
        if seen is None or (create is not None and seen.segment_id != create.result):
            what = "is not there" if seen is None else f"has id {seen.segment_id}"
            made = (
                "" if create is None else f", made by call {create.number} with id {create.result},"
            )
            numbers = [] if create is None else [create.number]
            yield Violation(
                NAME, f"{incarnation.name!r}{made} {what} at {observation.begun}", numbers
            )
            return


def _removed(index: HistoryIndex, name: str, removals: list[Call]) -> Iterator[Violation]:
    """What existed before an acknowledged removal is missing after it."""
    for removal in removals:
        if removal.outcome is not CallOutcome.OK:
            continue
        for chain in index.chains_of(name):
            existed = chain.begins[0] < removal.begun or any(
                call.result == chain.segment_id and index.latest[call.number] < removal.begun
                for call in index.names[name].creates
                if call.outcome is CallOutcome.OK
            )
            entry = chain.first_after(index.latest[removal.number]) if existed else None
            if entry is not None:
                what = (
                    "deleted"
                    if removal.kind is CallKind.DELETE
                    else f"merged into {removal.segment!r}"
                )
                detail = (
                    f"{name!r} (id {chain.segment_id}) was {what} and is there at {entry[0].begun}"
                )
                yield Violation(NAME, detail, [removal.number])


def _answers(index: HistoryIndex) -> Iterator[Violation]:
    """No caller received that a segment does not exist when it did, nor that it does when it had
    never been created.
    """
    since = {
        found.name: found.since for found in index.incarnations if found.name not in index.removals
    }
    for call in index.calls:
        if not call.error or call.outcome is not CallOutcome.REFUSED:
            continue
        if call.error == "SegmentNotFoundError" and call.kind is not CallKind.MERGE:
            if since.get(call.segment, call.begun) < call.begun and index.fresh(call):
                detail = (
                    f"call {call.number} ({call.kind}) received that {call.segment!r} does "
                    "not exist, and it does"
                )
                yield Violation(NAME, detail, [call.number])
        elif call.error == "SegmentExistsError" and not any(
            other.outcome is not CallOutcome.REFUSED and other.begun < (call.ended or 0)
            for other in index.names[call.segment].creates
        ):
            detail = (
                f"call {call.number} received that {call.segment!r} exists; it was never created"
            )
            yield Violation(NAME, detail, [call.number])
