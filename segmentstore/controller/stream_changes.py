"""How a stream changes, as a row of steps that can be repeated. Pure.

A function that begins a change checks a request against the stream's record, and gives the record
with the change. `next_phase` gives what is to be done for it: steps on segments, then a new record
with new epochs. It is asked again until the record has no change. After a crash between the two the
same steps are done again: each takes as success that it was done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from segmentstore.controller import names
from segmentstore.controller.names import ScopedName, mark_stream, segment_name
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.segment_actions import ActionStep, SegmentState, StepKind
from segmentstore.controller.stream_cuts import (
    check_cut,
    precedes,
    wholly_between,
)
from segmentstore.controller.stream_history import StreamHistory, tile
from segmentstore.controller.stream_model import (
    SEGMENTS_MAX,
    ChangeKind,
    EpochRecord,
    StreamChange,
    StreamConfiguration,
    StreamCut,
    StreamRecord,
    StreamSegment,
    even_segments,
)


@dataclass(frozen=True, slots=True)
class ChangePhase:
    """The next part of a change: `steps` in any order, then `record` and `epochs` together."""

    steps: tuple[ActionStep, ...]
    record: StreamRecord | None
    """The stream after it; None: it is no more."""
    epochs: tuple[EpochRecord, ...] = ()
    """New ones."""
    has_mark: bool = False
    """The stream of watermarks begins with it."""


# --- the beginning --------------------------------------------------------------------------------


def begin_create(
    configuration: StreamConfiguration, now_ms: int, first: int, request_id: str = ""
) -> StreamRecord:
    """A stream that is not there yet; its segments are numbered from `first` on."""
    segments = even_segments(configuration.check().scaling.segments, first)
    return StreamRecord(
        configuration=configuration,
        created_ms=now_ms,
        active=segments,
        next_number=first + len(segments),
        request_id=request_id,
    ).with_change(ChangeKind.CREATE)


def begin_update(record: StreamRecord, configuration: StreamConfiguration) -> StreamRecord:
    """The policy is new for the segments there are; their number does not change by it."""
    _check_open(record)
    return record.with_change(ChangeKind.UPDATE, configuration=configuration.check())


def begin_truncate(
    record: StreamRecord,
    history: StreamHistory,
    cut: StreamCut,
    states: Mapping[int, SegmentState | None],
) -> StreamRecord:
    """A sealed stream can be truncated, too. `states` are those of the cut's segments."""
    check_cut(history, cut)
    if not precedes(history, head_cut(record, history), cut):
        raise RefusedRequestError(Reason.BAD_CUT, "the stream is truncated beyond the cut already")
    for segment_id, offset in cut.items():
        state = states[segment_id]
        if state is not None and offset > state.length:
            raise RefusedRequestError(
                Reason.BAD_CUT, f"segment {segment_id} ends at {state.length}, before {offset}"
            )
    return record.with_change(ChangeKind.TRUNCATE, cut=dict(cut))


def begin_scale(
    record: StreamRecord, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]
) -> StreamRecord:
    """Replace active segments by new ones with the same keys."""
    _check_open(record)
    active = {segment.segment_id: segment for segment in record.active}
    if len(set(sealed)) != len(sealed) or not sealed or not set(sealed) <= active.keys():
        raise RefusedRequestError(
            Reason.PRECONDITION_FAILED, "a scale replaces active segments, each once"
        )
    if len(active) - len(sealed) + len(ranges) > SEGMENTS_MAX:
        raise RefusedRequestError(
            Reason.PRECONDITION_FAILED, f"a stream has at most {SEGMENTS_MAX} segments"
        )
    created = tuple(
        StreamSegment(names.make_segment_id(number, record.epoch + 1), low, high)
        for number, (low, high) in enumerate(sorted(ranges), record.next_number)
    )
    kept = [segment for segment_id, segment in active.items() if segment_id not in sealed]
    if any(not 0 <= low < high <= 1 for low, high in ranges) or not tile(
        sorted([*kept, *created], key=lambda segment: segment.low)
    ):
        raise RefusedRequestError(
            Reason.PRECONDITION_FAILED, "the new ranges have not exactly the keys of the segments"
        )
    return record.with_change(ChangeKind.SCALE, sealed=tuple(sealed), created=created)


def begin_seal(record: StreamRecord) -> StreamRecord:
    """No more events, ever. The record of a sealed stream stays as it is."""
    return record if record.sealed else record.with_change(ChangeKind.SEAL)


def begin_delete(record: StreamRecord, request_id: str = "") -> StreamRecord:
    """Only a sealed stream is deleted."""
    if not record.sealed:
        raise RefusedRequestError(Reason.STREAM_NOT_SEALED, "the stream is not sealed")
    return record.with_change(ChangeKind.DELETE, request_id=request_id)


# --- what is done ---------------------------------------------------------------------------------


def needs_history(change: StreamChange) -> bool:
    """Whether `next_phase` uses the history."""
    return change.kind in (ChangeKind.TRUNCATE, ChangeKind.DELETE)


def ends_transactions(change: StreamChange) -> bool:
    """Whether no transaction may be left when the change is done."""
    return change.kind in (ChangeKind.SEAL, ChangeKind.DELETE)


def next_phase(
    stream: ScopedName, record: StreamRecord, history: StreamHistory, now_ms: int
) -> ChangePhase:
    """What comes next for the record's change."""
    change = record.change
    assert change is not None
    done = dataclasses.replace(record, change=None)
    match change.kind:
        case ChangeKind.CREATE:
            return _create_phase(stream, done)
        case ChangeKind.UPDATE:
            assert change.configuration is not None
            return _update_phase(stream, done, change.configuration)
        case ChangeKind.TRUNCATE:
            return _truncate_phase(stream, done, change.cut, history)
        case ChangeKind.SCALE:
            return _scale_phase(stream, record, change, now_ms)
        case ChangeKind.SCALE_SEAL:
            return ChangePhase(_steps(StepKind.SEAL, stream, change.sealed), done)
        case ChangeKind.SEAL:
            return ChangePhase(
                _steps(StepKind.SEAL, stream, _ids(record.active)),
                dataclasses.replace(done, sealed=True),
            )
        case ChangeKind.DELETE:
            return _delete_phase(stream, history)


def head_cut(record: StreamRecord, history: StreamHistory) -> StreamCut:
    """Where the stream begins: its last truncation, or else the segments of epoch 0."""
    return record.head_cut or {segment.segment_id: 0 for segment in history.active_in(0)}


def mark_segment(segment_ids: Iterable[int]) -> StreamSegment:
    """The segment of a stream's watermarks, by all segments of the stream or its first ones."""
    return StreamSegment(min(map(names.number_of, segment_ids)), 0.0, 1.0)


def _create_phase(stream: ScopedName, done: StreamRecord) -> ChangePhase:
    steps = [_create_step(stream, each.segment_id, done.configuration) for each in done.active]
    has_mark = not names.is_internal(stream.name)
    if has_mark:
        mark = mark_segment(_ids(done.active))
        steps.append(_create_step(mark_stream(stream), mark.segment_id, StreamConfiguration()))
    epoch = EpochRecord(0, done.active, (), done.created_ms)
    return ChangePhase(tuple(steps), done, (epoch,), has_mark)


def _update_phase(
    stream: ScopedName, done: StreamRecord, configuration: StreamConfiguration
) -> ChangePhase:
    steps = tuple(
        ActionStep(StepKind.POLICY, segment_name(stream, segment_id), policy=configuration.scaling)
        for segment_id in _ids(done.active)
    )
    return ChangePhase(steps, dataclasses.replace(done, configuration=configuration))


def _truncate_phase(
    stream: ScopedName, done: StreamRecord, cut: StreamCut, history: StreamHistory
) -> ChangePhase:
    # `done` has the former cut: what lies between the two is deleted.
    ended = wholly_between(history, head_cut(done, history), cut)
    truncations = tuple(
        ActionStep(StepKind.TRUNCATE, segment_name(stream, segment_id), offset=offset)
        for segment_id, offset in cut.items()
        if offset
    )
    deletions = _steps(StepKind.DELETE, stream, _ids(ended))
    return ChangePhase((*deletions, *truncations), dataclasses.replace(done, cut=cut))


def _scale_phase(
    stream: ScopedName, record: StreamRecord, change: StreamChange, now_ms: int
) -> ChangePhase:
    steps = tuple(
        _create_step(stream, each.segment_id, record.configuration) for each in change.created
    )
    kept = (each for each in record.active if each.segment_id not in change.sealed)
    scaled = dataclasses.replace(
        record,
        epoch=record.epoch + 1,
        active=tuple(sorted([*kept, *change.created], key=lambda each: each.low)),
        next_number=record.next_number + len(change.created),
    ).with_change(ChangeKind.SCALE_SEAL, sealed=change.sealed)
    epoch = EpochRecord(scaled.epoch, change.created, change.sealed, now_ms)
    return ChangePhase(steps, scaled, (epoch,))


def _delete_phase(stream: ScopedName, history: StreamHistory) -> ChangePhase:
    steps = _steps(StepKind.DELETE, stream, history.segments)
    # Without an epoch the segments were deleted, and the rows that are left follow.
    if history.segments and not names.is_internal(stream.name):
        mark = mark_segment(history.segments)
        steps = (*steps, *_steps(StepKind.DELETE, mark_stream(stream), (mark.segment_id,)))
    return ChangePhase(steps, None)


def _create_step(
    stream: ScopedName, segment_id: int, configuration: StreamConfiguration
) -> ActionStep:
    return ActionStep(
        StepKind.CREATE,
        segment_name(stream, segment_id),
        policy=configuration.scaling,
        rollover_bytes=configuration.rollover_bytes,
    )


def _steps(
    kind: StepKind, stream: ScopedName, segment_ids: Iterable[int]
) -> tuple[ActionStep, ...]:
    return tuple(ActionStep(kind, segment_name(stream, each)) for each in segment_ids)


def _ids(segments: Iterable[StreamSegment]) -> list[int]:
    return [segment.segment_id for segment in segments]


def _check_open(record: StreamRecord) -> None:
    if record.sealed:
        raise RefusedRequestError(Reason.STREAM_SEALED, "the stream is sealed")
