"""Narrate: a history asked to a person, in the order things happened, with what a violation is
about and little else. Pure.

A run makes hundreds of calls; a violation is about a few. It shows all process runs, and all
observations in short. Of the calls it shows those a violation names and the adjacent ones on the
same segments, and nothing more; what is omitted is counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    History,
    Observation,
    ProcessRun,
    SeenSegment,
    Update,
    Violation,
)
from segmentstore.tables.table_types import NO_VERSION, NOT_EXISTS

AROUND: Final = 3
"""Neighbours of a named call that are reported, before it and after it, on its segment."""
LAST: Final = 8
"""Where nothing is named: the last calls of each process run that are reported."""


def narrate(
    history: History, violations: Sequence[Violation] = (), *, around: int = AROUND
) -> list[str]:
    """The lines of a history. A star marks the calls that a violation names. n log n in the calls.

    A number in brackets is a stamp: one counter over everything, so of two lines the one above
    began earlier.
    """
    named = {number: True for violation in violations for number in violation.calls}
    segments = _segments_in_question(history, violations, named)
    chosen = _chosen(history, named, segments, around)
    told: list[tuple[int, list[str]]] = [
        (process_run.begun, [_opening(process_run)]) for process_run in history.process_runs
    ]
    told += [
        (
            process_run.ended,
            [f"[{process_run.ended}] life {process_run.number} is over: {process_run.ending}"],
        )
        for process_run in history.process_runs
        if process_run.ended
    ]
    told += [(seen.begun, list(_observation(seen, segments))) for seen in history.observations]
    told += [(call.begun, [_line(call, marked=call.number in named)]) for call in chosen]
    told.sort(key=lambda each: each[0])
    lines = [line for _, several in told for line in several]
    left_out = len(history.calls) - len(chosen)
    return (
        [*lines, f"({left_out:,} more calls of {len(history.calls):,} are not shown)"]
        if left_out
        else lines
    )


def describe(call: Call) -> str:
    """What a call asked for, in words."""
    text = _ASKED[call.kind](call)
    if call.expected is not None:
        text += f" if it ends at {call.expected:,}"
    if call.updates:
        text += " with " + ", ".join(_update(update) for update in call.updates)
    return text


def answer(call: Call) -> str:
    """How a call ended, in words."""
    if call.ended is None:
        return "never answered"
    if call.outcome is CallOutcome.REFUSED:
        return f"refused: {call.error}"
    if call.outcome is CallOutcome.UNKNOWN:
        return f"in doubt: {call.error}" if call.error else "in doubt"
    return _answered(call)


def _segments_in_question(
    history: History, violations: Sequence[Violation], named: Mapping[int, bool]
) -> dict[str, bool]:
    """Segments of the named calls, and those whose names stand in a violation's words."""
    words = "\n".join(violation.detail for violation in violations)
    there = {name: True for call in history.calls for name in (call.segment, call.source) if name}
    for seen in history.observations:
        there.update(dict.fromkeys(seen.segments, True))
    wanted = {
        name: True
        for number in named
        if number < len(history.calls)
        for name in _touched(history.calls[number])
    }
    wanted.update({name: True for name in there if repr(name) in words})
    return wanted


def _touched(call: Call) -> tuple[str, ...]:
    return (call.segment, call.source) if call.source else (call.segment,)


def _chosen(
    history: History, named: Mapping[int, bool], segments: Mapping[str, bool], around: int
) -> list[Call]:
    if not named and not segments:
        return _last_of_each_process_run(history)
    numbers = dict(named)
    for segment in segments:
        on_it = [call for call in history.calls if segment in _touched(call)]
        places = [place for place, call in enumerate(on_it) if call.number in named]
        if not places:
            # Only the words of a violation lead here: how the segment came to be, and what was done
            # to it last.
            places = [0, len(on_it) - 1] if on_it else []
        for place in places:
            for call in on_it[max(0, place - around) : place + around + 1]:
                numbers[call.number] = True
    return [history.calls[number] for number in sorted(numbers) if number < len(history.calls)]


def _last_of_each_process_run(history: History) -> list[Call]:
    of_process_run: dict[int, list[Call]] = {}
    for call in history.calls:
        of_process_run.setdefault(call.process_run, []).append(call)
    return [call for calls in of_process_run.values() for call in calls[-LAST:]]


def _opening(process_run: ProcessRun) -> str:
    opened = f"open at [{process_run.opened}]" if process_run.opened is not None else "never open"
    return (
        f"[{process_run.begun}] life {process_run.number}: {process_run.process} opens the store; "
        + opened
    )


def _line(call: Call, *, marked: bool) -> str:
    ended = f"-{call.ended}" if call.ended is not None else ""
    star = "*" if marked else " "
    return (
        f"  {star} [{call.begun}{ended}] call {call.number} of {call.client}: "
        f"{describe(call)} -> {answer(call)}"
    )


def _observation(seen: Observation, segments: Mapping[str, bool]) -> Iterator[str]:
    again = ", after recovering once more" if seen.again else ""
    length = sum(len(segment.content) for segment in seen.segments.values())
    yield (
        f"[{seen.begun}-{seen.ended}] seen in life {seen.process_run}{again}: {len(seen.segments)} "
        f"segments, {length:,} bytes"
    )
    for finding in seen.findings:
        yield f"    found in the files before: {finding}"
    for name, segment in sorted(seen.segments.items()):
        if name in segments:
            yield "    " + _segment(segment)


def _segment(segment: SeenSegment) -> str:
    digest = hashlib.blake2b(segment.content, digest_size=4).hexdigest()
    sealed = ", sealed" if segment.sealed else ""
    attributes = "".join(
        f", {key.int:#x}={value}" for key, value in sorted(segment.attributes.items())
    )
    return (
        f"{segment.name!r} (id {segment.segment_id}): {segment.start_offset:,} to "
        f"{segment.length:,}{sealed}, "
        f"in Tier 2 up to {segment.storage_length:,}, {len(segment.content):,} bytes "
        f"read ({digest}){attributes}"
    )


def _update(update: Update) -> str:
    expected = f" if {update.expected}" if update.how == "REPLACE_IF_EQUALS" else ""
    return f"{update.id.int:#x} {update.how} {update.value}{expected}"


def _append(call: Call) -> str:
    records = "a record" if len(call.lengths) == 1 else f"a batch of {len(call.lengths)} records"
    return f"append {records}, {call.size:,} bytes, to {call.segment!r}"


def _keys(call: Call) -> str:
    return ", ".join(_key(key, version) for key, version in call.keys) or "no key"


def _key(key: bytes, version: int) -> str:
    if version == NO_VERSION:
        return repr(key)
    return f"{key!r} {'if absent' if version == NOT_EXISTS else f'if at {version}'}"


_ASKED: Final[Mapping[CallKind, Callable[[Call], str]]] = {
    CallKind.CREATE: lambda call: f"create {call.segment!r}",
    CallKind.APPEND: _append,
    CallKind.EVENT: lambda call: (
        f"event {call.event} of writer {call.writer}, {call.size:,} bytes, to {call.segment!r}"
    ),
    CallKind.SEAL: lambda call: f"seal {call.segment!r}",
    CallKind.TRUNCATE: lambda call: f"truncate {call.segment!r} at {call.offset:,}",
    CallKind.MERGE: lambda call: f"merge {call.source!r} into {call.segment!r}",
    CallKind.DELETE: lambda call: f"delete {call.segment!r}",
    CallKind.UPDATE: lambda call: f"update attributes of {call.segment!r}",
    CallKind.READ: lambda call: (
        f"read {call.segment!r} from {call.offset:,}, up to {call.max_length:,} bytes"
    ),
    CallKind.INFO: lambda call: f"ask about {call.segment!r}",
    CallKind.ATTRIBUTES: lambda call: f"ask for attributes of {call.segment!r}",
    CallKind.FLUSH: lambda _call: "flush",
    CallKind.CHECKPOINT: lambda _call: "take a checkpoint",
    CallKind.SET_UP: lambda call: f"set up writer {call.writer} on {call.segment!r}",
    CallKind.TABLE_UPDATE: lambda call: f"set {_keys(call)} of {call.segment!r}",
    CallKind.TABLE_REMOVE: lambda call: f"remove {_keys(call)} of {call.segment!r}",
    CallKind.TABLE_READ: lambda call: f"read {_keys(call)} of {call.segment!r}",
}


def _answered(call: Call) -> str:
    if call.kind is CallKind.EVENT and call.result is None:
        return "it was there already"
    if call.kind in {CallKind.APPEND, CallKind.EVENT, CallKind.MERGE}:
        return "done" if call.result is None else f"done, at {call.result:,}"
    if call.kind is CallKind.READ:
        return f"{len(call.data):,} bytes ({hashlib.blake2b(call.data, digest_size=4).hexdigest()})"
    if call.kind is CallKind.ATTRIBUTES:
        return (
            ", ".join(f"{key.int:#x}={value}" for key, value in sorted(call.values.items()))
            or "none"
        )
    if call.kind is CallKind.TABLE_UPDATE:
        return f"done, at {', '.join(map(str, call.versions))}"
    if call.kind is CallKind.TABLE_READ:
        return ", ".join(f"{key!r} at {version}" for key, version, _ in call.found) or "all absent"
    if call.kind is CallKind.SET_UP:
        return f"its number is {call.result}"
    meanings = {
        CallKind.CREATE: "with id",
        CallKind.SEAL: "with length",
        CallKind.INFO: "its length is",
    }
    if call.result is not None and call.kind in meanings:
        return f"done, {meanings[call.kind]} {call.result:,}"
    return "done"
