"""The history of a container: the state at any moment is the model's, by the parts it needs."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.operations import SnapshotCheckpointOperation
from recovery.archived_history import ArchivedHistory
from recovery.moments import AtCheckpoint, AtSequence, AtTime, MomentNotKeptError, parse_moment
from segmentstore.cli.past_commands import operations_between
from segmentstore.contracts.errors import DataCorruptionError, InvalidArgumentError
from segmentstore.contracts.metadata import ContainerMetadata
from tests.recovery.archived_logs import STEP_MS, ArchivedLog, ListedParts, on_a_loop

KEY = bytes(range(16))


def busy_log(seed: int, parts: int = 6, operations: int = 9) -> ArchivedLog:
    """Creations, appends, seals, truncations, merges, deletions, checkpoints at random."""
    rng = random.Random(seed)
    log = ArchivedLog(operations_in_frame=rng.choice([1, 2, 5]))
    for number in range(parts):
        for _ in range(rng.randrange(1, operations)):
            _step(log, rng)
        if number % 2 or rng.random() < 0.3:
            log.checkpoint()
        _step(log, rng)
        log.end_part()
    return log


def _step(log: ArchivedLog, rng: random.Random) -> None:
    named = [log.model.segments[each] for each in log.model.names.values()]
    free = [segment for segment in named if not segment.sealed]
    kind = rng.randrange(10)
    if not free or kind == 0:
        log.create(f"s{log.sequence}")
        return
    segment = rng.choice(free)
    others = [each for each in free if each is not segment and not each.start_offset]
    if kind == 1 and others:
        log.merge(segment.segment_id, rng.choice(others).segment_id)
    elif kind == 2 and len(named) > 2:
        log.delete(segment.segment_id)
    elif kind == 3 and segment.length > segment.start_offset:
        log.truncate(segment.segment_id, rng.randrange(segment.start_offset, segment.length) + 1)
    elif kind == 4:
        log.set_attribute(segment.segment_id, KEY, log.sequence)
    elif kind == 5 and len(free) > 2:
        log.seal(segment.segment_id)
    else:
        log.append(segment.segment_id, rng.randbytes(rng.randrange(1, 200)))


@pytest.mark.parametrize("seed", range(12))
@on_a_loop
async def test_the_state_at_every_operation_is_the_models(seed: int) -> None:
    log = busy_log(seed)
    history = log.history()
    for sequence_number in range(1, log.sequence + 1):
        state = await history.state_at(AtSequence(sequence_number))
        assert state.sequence_number == sequence_number
        assert encode_checkpoint(state.metadata) == log.states[sequence_number]
        timed = await history.state_at(AtTime(log.times[sequence_number] + STEP_MS - 1))
        assert timed.sequence_number == sequence_number


def log_of_a_clock_that_is_set(seed: int) -> ArchivedLog:
    """One that is set forward and back now and then."""
    rng = random.Random(seed)
    log = ArchivedLog(operations_in_frame=rng.choice([1, 3]))
    log.shift_clock(1 << 20)
    for number in range(6):
        for _ in range(rng.randrange(2, 7)):
            if rng.random() < 0.2:
                log.shift_clock(rng.choice([-1, 1]) * rng.randrange(1, 12) * STEP_MS)
            _step(log, rng)
        if number % 2:
            log.checkpoint()
            _step(log, rng)
        log.end_part()
    for _ in range(5):
        _step(log, rng)
    return log


def last_before(log: ArchivedLog, time_ms: int) -> int:
    """The last operation before the first one that is later, by the rule; 0: there is none."""
    later = (number for number, time in log.times.items() if time > time_ms)
    return next(later, log.sequence + 1) - 1


@pytest.mark.parametrize("seed", range(12))
@on_a_loop
async def test_a_time_is_the_same_operation_wherever_the_log_begins(seed: int) -> None:
    log = log_of_a_clock_that_is_set(seed)
    times = {time + step for time in log.times.values() for step in (-1, 0)}
    for checkpoint in log.checkpoints:
        tail = log.tail(checkpoint)
        for time_ms in times:
            expected = last_before(log, time_ms)
            if not expected:
                with pytest.raises(MomentNotKeptError):
                    await log.history(tail).state_at(AtTime(time_ms))
                continue
            state = await log.history(tail).state_at(AtTime(time_ms))
            assert state.sequence_number == expected
            assert encode_checkpoint(state.metadata) == log.states[expected]


@pytest.mark.parametrize("seed", range(12))
@on_a_loop
async def test_the_time_of_an_operation_is_the_highest_up_to_it(seed: int) -> None:
    log = log_of_a_clock_that_is_set(seed)
    for checkpoint in log.checkpoints:
        history = log.history(log.tail(checkpoint))
        for number in range(1, log.sequence + 1):
            assert await history.time_of(number) == highest_up_to(log, number)


def highest_up_to(log: ArchivedLog, number: int) -> int:
    return max(time for each, time in log.times.items() if each <= number)


@pytest.mark.parametrize("seed", range(12))
@on_a_loop
async def test_what_is_printed_between_two_times_is_so_wherever_the_log_begins(seed: int) -> None:
    log = log_of_a_clock_that_is_set(seed)
    times = sorted(set(log.times.values()))
    for checkpoint in log.checkpoints:
        for begin, end in zip(times, times[3:], strict=False):
            history = log.history(log.tail(checkpoint))
            between = operations_between(history, AtTime(begin), AtTime(end))
            found = [past.operation.sequence_number async for batch in between for past in batch]
            assert found == [
                number for number in log.times if begin <= highest_up_to(log, number) <= end
            ]


@pytest.mark.parametrize("seed", range(12))
@on_a_loop
async def test_what_is_printed_from_an_operation_to_a_time_heeds_what_was_before(seed: int) -> None:
    log = log_of_a_clock_that_is_set(seed)
    for checkpoint in log.checkpoints:
        for begin in range(1, log.sequence + 1, 3):
            for end in sorted(set(log.times.values()))[::4]:
                history = log.history(log.tail(checkpoint))
                between = operations_between(history, AtSequence(begin), AtTime(end))
                found = [each.operation.sequence_number async for some in between for each in some]
                assert found == [
                    number
                    for number in log.times
                    if begin <= number and highest_up_to(log, number) <= end
                ]


@on_a_loop
async def test_a_time_behind_the_part_that_is_kept_first_is_not_kept_if_it_was_set_back() -> None:
    log = ArchivedLog()
    log.shift_clock(1000)
    segment_id = log.create("while-it-was-ahead")
    log.end_part()
    log.shift_clock(-1000)
    log.checkpoint()
    moment = AtTime(log.times[log.append(segment_id, b"x")])
    log.end_part()
    tail = log.tail(log.checkpoint())
    behind = AtTime(log.times[log.append(segment_id, b"y")])
    for each in (moment, behind):
        assert (await log.history(tail).state_at(each)).sequence_number == 1
        with pytest.raises(MomentNotKeptError, match="is later: the clock was set back"):
            await log.history(tail, first=1).state_at(each)
    # Nothing that is kept was ever archived: the log alone has it.
    with pytest.raises(MomentNotKeptError, match="is later: the clock was set back"):
        await log.history(tail, first=2).state_at(behind)


@on_a_loop
async def test_a_moment_that_log_and_archive_have_costs_one_part_at_most() -> None:
    log = ArchivedLog()
    segment_id = log.create("a")
    for _ in range(6):
        log.checkpoint()
        for _ in range(4):
            log.append(segment_id, b"x")
        log.end_part()
    last = log.listed[-1]
    tail = log.tail(last.checkpoint_sequence)
    for sequence_number in range(last.checkpoint_sequence, log.sequence + 1):
        log.opened.clear()
        state = await log.history(tail).state_at(AtTime(log.times[sequence_number]))
        assert (state.sequence_number, state.begun_with) == (
            sequence_number,
            last.checkpoint_sequence,
        )
        assert log.opened in ([], [last.number])


@on_a_loop
async def test_only_the_parts_between_checkpoint_and_moment_are_opened() -> None:
    log = ArchivedLog()
    segment_id = log.create("a")
    for number in range(30):
        if number % 5 == 0:
            log.checkpoint()
        for _ in range(4):
            log.append(segment_id, b"x")
        log.end_part()
    for number, begins in ((12, 10), (10, 10), (29, 25)):
        log.opened.clear()
        await log.history().state_at(AtSequence(log.listed[number].last_sequence))
        assert log.opened == [part.number for part in log.listed[begins : number + 1]]


@on_a_loop
async def test_a_moment_before_a_parts_checkpoint_begins_with_an_earlier_one() -> None:
    log = ArchivedLog()
    segment_id = log.create("a")
    log.end_part()
    before = log.append(segment_id, b"one")
    log.checkpoint()
    log.end_part()
    state = await log.history().state_at(AtSequence(before))
    assert state.begun_with == 1
    assert encode_checkpoint(state.metadata) == log.states[before]


@on_a_loop
async def test_a_checkpoint_is_asked_for_by_its_number_and_nothing_else_is_one() -> None:
    log = ArchivedLog()
    number = log.checkpoint()
    other = log.create("a")
    log.end_part()
    state = await log.history().state_at(AtCheckpoint(number))
    assert (state.sequence_number, state.operations) == (number, 1)
    with pytest.raises(MomentNotKeptError, match=f"there is no checkpoint {other}"):
        await log.history().state_at(AtCheckpoint(other))


@on_a_loop
async def test_moments_outside_of_the_history_are_refused_with_its_ends() -> None:
    log = busy_log(1)
    with pytest.raises(MomentNotKeptError, match=f"operation {log.sequence} is the last one"):
        await log.history().state_at(AtSequence(log.sequence + 1))
    with pytest.raises(MomentNotKeptError, match="nothing to begin with"):
        await log.history().state_at(AtTime(0))
    late = await log.history().state_at(AtTime(log.times[log.sequence] + 10_000))
    assert late.sequence_number == log.sequence
    log = ArchivedLog()
    log.create("x")
    tail = log.tail(log.checkpoint())
    for moment in (AtSequence(1), AtTime(log.times[1])):
        with pytest.raises(MomentNotKeptError, match="the log begins with operation 3 of 1970"):
            await log.history(tail).state_at(moment)


@on_a_loop
async def test_a_part_that_is_not_complete_counts_for_nothing() -> None:
    log = ArchivedLog()
    segment_id = log.create("a")
    log.end_part()
    last = log.append(segment_id, b"x")
    log.leave_incomplete(log.end_part().number)
    with pytest.raises(MomentNotKeptError):
        await log.history().state_at(AtSequence(last))


@on_a_loop
async def test_a_part_that_is_not_there_is_named_and_no_earlier_one_tried() -> None:
    log = busy_log(2)
    log.forget_part(log.listed[3].number)
    with pytest.raises(MomentNotKeptError, match=f"no ledger {log.listed[3].ledger_id}"):
        await log.history().state_at(AtSequence(log.listed[3].last_sequence))
    assert log.opened.count(log.listed[0].number) <= 1


@on_a_loop
async def test_a_damaged_frame_on_the_way_is_corruption_that_names_ledger_and_entry() -> None:
    log = busy_log(2)
    part = log.listed[2]
    log.damage(part.number, 0)
    with pytest.raises(DataCorruptionError, match=f"ledger {part.ledger_id} entry 0"):
        await log.history().state_at(AtSequence(part.last_sequence))


@on_a_loop
async def test_a_part_that_is_left_out_of_the_list_is_a_hole() -> None:
    log = ArchivedLog()
    segment_id = log.create("a")
    for _ in range(3):
        log.append(segment_id, b"x")
        log.end_part()
    del log.listed[1]
    with pytest.raises(DataCorruptionError, match="is due"):
        await log.history().state_at(AtSequence(log.sequence))


@on_a_loop
async def test_a_checkpoint_by_reference_that_is_not_there_is_passed_over() -> None:
    log = ArchivedLog()
    segment_id = log.create("a")
    log.end_part()
    reference = SnapshotCheckpointOperation(1, bytes(16))
    before = log.states[log.sequence]
    number = log.other(reference)
    last = log.append(segment_id, b"x")
    part = log.end_part()
    log.listed[-1] = part.__class__(
        **{
            **{name: getattr(part, name) for name in part.__slots__},
            "checkpoint_sequence": number,
            "checkpoint_entry": 0,
        }
    )
    asked: list[int] = []

    async def there(operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        asked.append(operation.sequence_number)
        return log.state(number - 1)

    async def missing(operation: SnapshotCheckpointOperation) -> ContainerMetadata:
        raise DataCorruptionError(str(operation.sequence_number), "deleted")

    assert before
    for load, begun_with in ((there, number), (missing, 1), (None, 1)):
        history = ArchivedHistory(0, ListedParts(log.listed), log.open_part, load=load)
        state = await history.state_at(AtSequence(last))
        assert state.begun_with == begun_with
        assert encode_checkpoint(state.metadata) == log.states[last]
    assert asked == [number]


@pytest.mark.parametrize("seed", range(4))
@on_a_loop
async def test_operations_are_given_whole_and_in_order(seed: int) -> None:
    log = busy_log(seed)
    rng = random.Random(seed)
    for _ in range(30):
        first = rng.randrange(1, log.sequence + 1)
        last = rng.randrange(first, log.sequence + 3)
        numbers = [
            past.operation.sequence_number
            async for batch in log.history().operations(first, last)
            for past in batch
        ]
        assert numbers == list(range(first, min(last, log.sequence) + 1))


@on_a_loop
async def test_operations_that_lie_in_several_parts_are_given_whole() -> None:
    log = ArchivedLog(operations_in_frame=1, frame_bytes=100)
    segment_id = log.create("a")
    for length in (500, 20, 900, 3, 3, 700):
        log.append(segment_id, bytes(length))
        log.end_part(leave=1)
    log.end_part()
    for first in range(1, log.sequence + 1):
        found = [each async for batch in log.history().operations(first, first) for each in batch]
        assert [each.operation.sequence_number for each in found] == [first]
    for sequence_number in log.states:
        state = await log.history().state_at(AtSequence(sequence_number))
        assert encode_checkpoint(state.metadata) == log.states[sequence_number]


@pytest.mark.parametrize(("cut", "given"), [(150, 4), (700, 4 + 32), (4000, 4 + 32 + 140)])
@on_a_loop
async def test_an_operation_that_is_cut_costs_the_end_of_the_part_before(
    cut: int, given: int
) -> None:
    log = ArchivedLog(operations_in_frame=1, frame_bytes=100)
    segment_id = log.create("a")
    for _ in range(96):
        log.append(segment_id, b"x")
    first = log.append(segment_id, bytes(cut))
    log.end_part(leave=1)
    last = log.append(segment_id, b"y")
    log.end_part()
    found = [each async for batch in log.history().operations(first, last) for each in batch]
    assert [each.operation.sequence_number for each in found] == [first, last]
    of_before = [each.given for each in log.handles if each.ledger_id == log.listed[0].ledger_id]
    assert sum(of_before) == given


@on_a_loop
async def test_windows_cover_all_operations_backward_without_overlap() -> None:
    log = busy_log(3, parts=20)
    windows = [each async for each in log.history().windows_before(log.sequence, 1)]
    assert windows[0][1] == log.sequence
    assert windows[-1][0] == 1
    assert all(later[0] == earlier[1] + 1 for later, earlier in pairwise(windows))
    assert len(windows) <= 20


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("17", AtSequence(17)),
        ("checkpoint:17", AtCheckpoint(17)),
        ("1970-01-01T00:00:01.250", AtTime(1250)),
        ("1970-01-01T01:00:01+01:00", AtTime(1000)),
    ],
)
def test_moments_are_read(text: str, moment: object) -> None:
    assert parse_moment(text) == moment


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("9999-12-31T23:59:59.999999", "9999-12-31T23:59:59.999+00:00"),
        ("9999-12-31T23:59:59-12:00", "the end"),
        ("0001-01-01", "0001-01-01T00:00:00.000+00:00"),
        ("0001-01-01T00:00:00+12:00", "the beginning"),
    ],
)
def test_the_first_and_the_last_times_are_shown(text: str, shown: str) -> None:
    assert str(parse_moment(text)) == shown


@pytest.mark.parametrize("text", ["", "checkpoint:", "yesterday", "-3", "checkpoint:x", str(2**64)])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="at="):
        parse_moment(text)
