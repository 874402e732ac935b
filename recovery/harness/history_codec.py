"""History codec: what happened in one process, as lines, and the history of all processes, rebuilt
from these.

A process that may die at any instant writes its history to a pipe, one JSON object a line. The
reader puts the lines of all processes in the order of their times and builds one `History` of them.
Pure. Rules of this file:

- a line without its newline was never written: what it would have said is not known;
- times are nanoseconds of one clock that all processes of a machine share. The beginning of a call
  is timed before the store is asked and its end after the answer: so what ended before another
  began did so, in whatever process;
- numbers of calls are given out in advance (a record holds the number of its call); those that
  no call used become calls that were refused, of nothing.
"""

from __future__ import annotations

import base64
import bisect
import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    History,
    Observation,
    ProcessRun,
    SeenEntry,
    SeenSegment,
    Update,
)

NO_CLIENT: Final = "no client"
"""The client of numbers that no call used."""
_ARGUMENTS: Final = (
    *("size", "expected", "writer", "event", "source", "behind", "offset", "max_length"),
)
_ANSWERS: Final = ("error", "result")
_BARE: Final = Call(0, 0, "", CallKind.INFO, "", 0)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: `what` it was, when by the shared clock, in which process run; the
    rest as `what` needs it.

    Of calls: begun, ended. Of process runs: opening, opened, observing, seen, observed, done,
    failed, over.
    """

    what: str
    at: int
    process_run: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> bytes:
        """As it is reported, newline included."""
        told = {"what": self.what, "at": self.at, "life": self.process_run, **self.fields}
        return json.dumps(told, separators=(",", ":")).encode() + b"\n"


def parse_event(line: bytes) -> Event:
    """The event of one line. Raises ValueError or KeyError on what no `Event.line` wrote."""
    fields = json.loads(line)
    return Event(fields.pop("what"), fields.pop("at"), fields.pop("life"), fields)


def call_begun(call: Call, at: int) -> Event:
    """A call and its arguments, before the store is asked."""
    fields: dict[str, Any] = {
        "call": call.number,
        "client": call.client,
        "kind": call.kind.value,
        "segment": call.segment,
        **_said(call, _ARGUMENTS),
    }
    if call.lengths:
        fields["lengths"] = call.lengths
    if call.updates:
        fields["updates"] = [
            (each.id.hex, each.how, each.value, each.expected) for each in call.updates
        ]
    if call.keys:
        fields["keys"] = [(key.hex(), version) for key, version in call.keys]
    return Event("begun", at, call.process_run, fields)


def call_ended(call: Call, at: int) -> Event:
    """The answer of a call."""
    fields: dict[str, Any] = {
        "call": call.number,
        "outcome": call.outcome.value,
        **_said(call, _ANSWERS),
    }
    if call.data:
        fields["data"] = base64.b64encode(call.data).decode()
    if call.values:
        fields["values"] = _attributes_out(call.values)
    if call.versions:
        fields["versions"] = call.versions
    if call.found:
        fields["found"] = _entries_out(call.found)
    return Event("ended", at, call.process_run, fields)


def observed(observation: Observation, process_run: int, at: int) -> Event:
    """What was seen; when it was is reported by the events "observing" and "seen" of the same
    process run before it.
    """
    segments = [
        {
            "name": seen.name,
            "id": seen.segment_id,
            "container": seen.container_id,
            "start": seen.start_offset,
            "length": seen.length,
            "stored": seen.storage_length,
            "sealed": seen.sealed,
            "attributes": _attributes_out(seen.attributes),
            "content": base64.b64encode(seen.content).decode(),
            "entries": None if seen.entries is None else _entries_out(seen.entries),
        }
        for seen in observation.segments.values()
    ]
    fields = {
        "segments": segments,
        "sequences": sorted(observation.sequence_numbers.items()),
        "time": observation.time_ms,
    }
    return Event("observed", at, process_run, fields)


@dataclass(frozen=True, slots=True)
class _Observing:
    """An observation under way, or the last one that was kept."""

    begun: int
    calls: int
    """Begun before it."""
    alone: bool
    """True if no other process run was there."""
    settled: bool
    """False if a call of this process run may still take effect: its outcome is unknown.

    The store may serve what was before until it has stopped; the next owner settles it.
    """
    seen: int = 0


class Retelling:
    """One history, rebuilt from the events of many processes."""

    def __init__(self) -> None:
        self.history = History()
        self.findings: list[str] = []
        """Harmful findings in the files, reported with the next observation."""
        self._begun = 0
        self._unsettled: dict[int, set[int]] = {}
        """Calls that have not ended, or whose outcome is unknown, by process run."""
        self._observing: dict[int, _Observing] = {}
        self._last: _Observing | None = None

    @property
    def next_call(self) -> int:
        """The first call number that is free."""
        return len(self.history.calls)

    def replay(self, *processes: Iterable[Event]) -> None:
        """Add the events of processes, each in order, by their times.

        Raises ValueError if they do not make sense.
        """
        for event in merge(*processes, key=attrgetter("at")):
            self._replay(event)

    def _replay(self, event: Event) -> None:
        history, stamp = self.history, self.history.next_stamp()
        if event.what == "begun":
            self._begin(event, stamp)
        elif event.what == "ended":
            self._end(event, stamp)
        elif event.what == "opening":
            if event.process_run != len(history.process_runs):
                raise ValueError(
                    f"life {event.process_run} begins as number {len(history.process_runs)}"
                )
            history.process_runs.append(
                ProcessRun(event.process_run, str(event.fields["process"]), stamp)
            )
        elif event.what == "opened":
            history.process_runs[event.process_run].opened = stamp
        elif event.what == "over":
            if (
                event.process_run < len(history.process_runs)
                and history.process_runs[event.process_run].ended is None
            ):
                (
                    history.process_runs[event.process_run].ended,
                    history.process_runs[event.process_run].ending,
                ) = (
                    stamp,
                    str(event.fields["ending"]),
                )
        elif event.what == "observing":
            alone = all(
                process_run.ended is not None or process_run.number == event.process_run
                for process_run in history.process_runs
            )
            settled = not self._unsettled.get(event.process_run)
            self._observing[event.process_run] = _Observing(stamp, self._begun, alone, settled)
        elif event.what == "seen":
            look = self._observing[event.process_run]
            self._observing[event.process_run] = dataclasses.replace(look, seen=stamp)
        elif event.what == "observed":
            self._observe(event)

    # --- calls ------------------------------------------------------------------------------------

    def _begin(self, event: Event, stamp: int) -> None:
        calls, fields = self.history.calls, event.fields
        number = int(fields["call"])
        while len(calls) <= number:
            unused = Call(len(calls), event.process_run, NO_CLIENT, CallKind.FLUSH, "", stamp)
            unused.ended, unused.outcome = stamp, CallOutcome.REFUSED
            calls.append(unused)
        if calls[number].client != NO_CLIENT:
            raise ValueError(f"call {number} began twice")
        call = Call(
            number,
            event.process_run,
            fields["client"],
            CallKind(fields["kind"]),
            fields["segment"],
            stamp,
        )
        for name in _ARGUMENTS:
            setattr(call, name, fields.get(name, getattr(call, name)))
        call.lengths = tuple(fields.get("lengths", ()))
        call.updates = tuple(
            Update(UUID(hex=key), *rest) for key, *rest in fields.get("updates", ())
        )
        call.keys = tuple((bytes.fromhex(key), version) for key, version in fields.get("keys", ()))
        calls[number] = call
        self._begun += 1
        self._unsettled.setdefault(event.process_run, set()).add(number)

    def _end(self, event: Event, stamp: int) -> None:
        fields = event.fields
        call = self.history.calls[int(fields["call"])]
        if call.ended is not None or call.process_run != event.process_run:
            raise ValueError(
                f"call {call.number} ended, and is not under way in life {event.process_run}"
            )
        call.ended, call.outcome = stamp, CallOutcome(fields["outcome"])
        if call.outcome is not CallOutcome.UNKNOWN:
            self._unsettled[event.process_run].discard(call.number)
        call.error, call.result = fields.get("error", ""), fields.get("result")
        call.data = base64.b64decode(fields.get("data", ""))
        call.values = _attributes_in(fields.get("values", {}))
        call.versions = tuple(fields.get("versions", ()))
        call.found = _entries_in(fields.get("found", ()))

    # --- observations -----------------------------------------------------------------------------

    def _observe(self, event: Event) -> None:
        look, last = self._observing.pop(event.process_run), self._last
        again = (
            last is not None
            and last.settled
            and last.alone
            and look.alone
            and last.calls == look.calls
        )
        segments = {each["name"]: _segment_in(each) for each in event.fields["segments"]}
        observation = Observation(
            look.begun,
            look.seen,
            event.process_run,
            segments,
            again,
            tuple(self.findings),
            dict(event.fields.get("sequences", ())),
            event.fields.get("time", 0),
        )
        self.findings = []
        # What had to be proven first is reported late.
        bisect.insort(self.history.observations, observation, key=attrgetter("ended"))
        self._last = look


def _said(call: Call, names: Iterable[str]) -> dict[str, Any]:
    """The fields that are set."""
    return {name: value for name in names if (value := getattr(call, name)) != getattr(_BARE, name)}


def _segment_in(fields: Mapping[str, Any]) -> SeenSegment:
    return SeenSegment(
        name=fields["name"],
        segment_id=fields["id"],
        container_id=fields["container"],
        start_offset=fields["start"],
        length=fields["length"],
        storage_length=fields["stored"],
        sealed=fields["sealed"],
        attributes=_attributes_in(fields["attributes"]),
        content=base64.b64decode(fields["content"]),
        entries=None if fields["entries"] is None else _entries_in(fields["entries"]),
    )


def _entries_out(entries: Iterable[SeenEntry]) -> list[tuple[str, int, str]]:
    return [(key.hex(), version, value.hex()) for key, version, value in entries]


def _entries_in(entries: Iterable[tuple[str, int, str]]) -> tuple[SeenEntry, ...]:
    return tuple(
        SeenEntry(bytes.fromhex(key), version, bytes.fromhex(value))
        for key, version, value in entries
    )


def _attributes_out(values: Mapping[UUID, int]) -> dict[str, int]:
    return {key.hex: value for key, value in values.items()}


def _attributes_in(values: Mapping[str, int]) -> dict[UUID, int]:
    return {UUID(hex=key): value for key, value in values.items()}
