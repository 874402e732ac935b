"""A tiny store in memory that keeps every promise, and writes the history of what was asked of it.

It takes calls in order against what it has taken (as the engine does), makes them durable in that
order, and answers when it is asked to. It can die or be fenced in between: what was taken and is
not durable is lost then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from recovery.harness.checkers.registers import way_of
from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    History,
    Observation,
    ProcessRun,
    SeenSegment,
    Update,
)
from recovery.harness.records import HEADER_BYTES, append_record, event_record
from segmentstore.contracts.attributes import AttributeConditionError, resolve_updates


@dataclass(frozen=True)
class Segment:
    segment_id: int
    content: bytes = b""
    start: int = 0
    sealed: bool = False
    attributes: dict[bytes, int] = field(default_factory=dict)


State = dict[str, Segment]


class RefusedError(Exception):
    """A definite no; its text is the name of the error."""


class Owner:
    """One opening: what it has taken, what of it is durable."""

    def __init__(self, process_run: ProcessRun, state: State) -> None:
        self.process_run = process_run
        self.taken = self.durable = state
        self.queue: list[tuple[Call, int | None, State]] = []
        self.answers: dict[int, tuple[Call, CallOutcome, Any]] = {}
        self.fenced = False


class SmallStore:
    def __init__(self) -> None:
        self.history = History()
        self.state: State = {}
        self.ids = 0
        self.owner = self.open()

    # --- owners -----------------------------------------------------------------------------------

    def open(self, keep: int = 0) -> Owner:
        """A new owner; if the one before is still there it is overtaken, with `keep` of what it has
        taken made durable.
        """
        history = self.history
        process_run = ProcessRun(
            len(history.process_runs), f"process-{len(history.process_runs)}", history.next_stamp()
        )
        history.process_runs.append(process_run)
        old = getattr(self, "owner", None)
        if old is not None and old.process_run.ended is None:
            self.commit(keep, old)
            old.fenced = True
        process_run.opened = history.next_stamp()
        self.owner = Owner(process_run, self.state)
        return self.owner

    def end(self, owner: Owner, keep: int = 0, ending: str = "killed") -> None:
        """The owner dies; `keep` of what it has taken became durable without any notice."""
        if not owner.fenced:
            self.commit(keep, owner)
        owner.process_run.ended = self.history.next_stamp()
        owner.process_run.ending = ending

    def reopen(self, keep: int = 0) -> Owner:
        self.end(self.owner, keep)
        return self.open()

    # --- calls ------------------------------------------------------------------------------------

    def begin(
        self,
        kind: CallKind,
        segment: str,
        client: str = "one",
        owner: Owner | None = None,
        **arguments: Any,
    ) -> Call:
        """Ask; the answer is there once it is durable (or refused), and given by `finish`."""
        owner = owner or self.owner
        history = self.history
        call = Call(
            len(history.calls),
            owner.process_run.number,
            client,
            kind,
            segment,
            history.next_stamp(),
            **arguments,
        )
        if kind in {CallKind.APPEND, CallKind.EVENT}:
            call.size = sum(call.lengths) + HEADER_BYTES * len(call.lengths)
        history.calls.append(call)
        try:
            if kind in {CallKind.READ, CallKind.INFO, CallKind.ATTRIBUTES}:
                owner.answers[call.number] = (
                    call,
                    CallOutcome.OK,
                    self._read_state(owner.durable, call),
                )
            else:
                result, after = self._take(owner.taken, call)
                owner.taken = after
                owner.queue.append((call, result, after))
        except RefusedError as error:
            owner.answers[call.number] = (call, CallOutcome.REFUSED, str(error))
        return call

    def commit(self, count: int, owner: Owner | None = None) -> None:
        """The next `count` of what was taken become durable."""
        owner = owner or self.owner
        if owner.fenced:
            return
        for _ in range(min(count, len(owner.queue))):
            call, result, after = owner.queue.pop(0)
            owner.durable = self.state = after
            owner.answers[call.number] = (call, CallOutcome.OK, result)

    def finish(self, number: int, owner: Owner | None = None) -> None:
        """Give the answer of a call."""
        call, outcome, answer = (owner or self.owner).answers.pop(number)
        call.outcome = outcome
        call.ended = self.history.next_stamp()
        if outcome is CallOutcome.REFUSED:
            call.error = answer
        elif call.kind is CallKind.READ:
            call.data = answer
        elif call.kind is CallKind.ATTRIBUTES:
            call.values = answer
        else:
            call.result = answer

    def call(self, kind: CallKind, segment: str, client: str = "one", **arguments: Any) -> Call:
        """Ask and wait for the answer."""
        call = self.begin(kind, segment, client, **arguments)
        self.commit(len(self.owner.queue))
        self.finish(call.number)
        return call

    # --- short forms ------------------------------------------------------------------------------

    def create(self, name: str, *updates: Update) -> Call:
        return self.call(CallKind.CREATE, name, updates=updates)

    def append(self, name: str, *lengths: int, **arguments: Any) -> Call:
        return self.call(CallKind.APPEND, name, lengths=lengths or (10,), **arguments)

    def event(self, name: str, writer: int, number: int) -> Call:
        return self.call(
            CallKind.EVENT,
            name,
            writer=writer,
            event=number,
            lengths=(event_length(writer, number),),
        )

    def lost(self, name: str, *lengths: int, **arguments: Any) -> Call:
        """An append whose caller gets no answer. After `reopen(1)` it is stored."""
        return self.begin(CallKind.APPEND, name, lengths=lengths or (10,), **arguments)

    def observe(self, *, again: bool = False, findings: Sequence[str] = ()) -> Observation:
        history = self.history
        begun = history.next_stamp()
        segments = {
            name: SeenSegment(
                name=name,
                segment_id=segment.segment_id,
                container_id=0,
                start_offset=segment.start,
                length=len(segment.content),
                storage_length=segment.start,
                sealed=segment.sealed,
                attributes={UUID(bytes=key): value for key, value in segment.attributes.items()},
                content=segment.content[segment.start :],
            )
            for name, segment in sorted(self.state.items())
        }
        seen = Observation(
            begun,
            history.next_stamp(),
            self.owner.process_run.number,
            segments,
            again=again,
            findings=tuple(findings),
        )
        history.observations.append(seen)
        return seen

    # --- what the calls mean ----------------------------------------------------------------------

    def _read_state(self, state: State, call: Call) -> Any:
        segment = _find(state, call.segment)
        if call.kind is CallKind.INFO:
            return len(segment.content)
        if call.kind is CallKind.ATTRIBUTES:
            return {UUID(bytes=key): value for key, value in segment.attributes.items()}
        if call.offset < segment.start:
            raise RefusedError("SegmentTruncatedError")
        if call.offset > len(segment.content):
            raise RefusedError("BadOffsetError")
        if call.offset == len(segment.content) and segment.sealed:
            raise RefusedError("EndOfSegmentError")
        return segment.content[call.offset : call.offset + call.max_length]

    def _take(self, state: State, call: Call) -> tuple[int | None, State]:
        name = call.segment
        if call.kind is CallKind.CREATE:
            if name in state:
                raise RefusedError("SegmentExistsError")
            attributes = _resolve(call.updates, {})
            self.ids += 1
            return self.ids, {**state, name: Segment(self.ids, attributes=attributes)}
        segment = _find(state, name)
        length = len(segment.content)
        if call.kind is CallKind.DELETE:
            return None, {found: other for found, other in state.items() if found != name}
        if call.kind is CallKind.TRUNCATE:
            if not segment.start <= call.offset <= length:
                raise RefusedError("BadOffsetError")
            return None, {**state, name: replace(segment, start=call.offset)}
        if segment.sealed:
            raise RefusedError("SegmentSealedError")
        if call.kind is CallKind.SEAL:
            return length, {**state, name: replace(segment, sealed=True)}
        data, rest = b"", state
        attributes = dict(segment.attributes)
        if call.kind is CallKind.EVENT:
            key = UUID(int=call.writer).bytes
            if call.event <= attributes.get(key, -1):
                return None, state
            attributes[key] = call.event
            data = event_record(call.writer, call.event, call.lengths[0])
        attributes |= _resolve(call.updates, segment.attributes)
        if call.kind is CallKind.APPEND:
            if call.expected not in {None, length}:
                raise RefusedError("BadOffsetError")
            data = b"".join(
                append_record(call.number, item, size) for item, size in enumerate(call.lengths)
            )
        elif call.kind is CallKind.MERGE:
            source = _find(state, call.source)
            if source.start:
                raise RefusedError("SegmentTruncatedError")
            data = source.content
            rest = {found: other for found, other in state.items() if found != call.source}
        changed = replace(segment, content=segment.content + data, attributes=attributes)
        return None if call.kind is CallKind.UPDATE else length, {**rest, name: changed}


def event_length(writer: int, number: int) -> int:
    """An event is the same whenever it is sent."""
    return (writer * 7 + number * 13) % 40


def _find(state: State, name: str) -> Segment:
    if name not in state:
        raise RefusedError("SegmentNotFoundError")
    return state[name]


def _resolve(updates: Sequence[Update], current: dict[bytes, int]) -> dict[bytes, int]:
    keyed = [(update.id.bytes, way_of(update), update.value, update.expected) for update in updates]
    try:
        return resolve_updates(keyed, current, {})[0]
    except AttributeConditionError:
        raise RefusedError("BadAttributeUpdateError") from None
