"""What comes behind its like is taken in one step: by the same rules as all other conditions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.operations import CreateOperation
from durablelog.pending_segment import EventSession, PendingSegment
from segmentstore.contracts.attributes import (
    ATTRIBUTE_UNSET,
    VALUE_MAX,
    AttributeKey,
    KeyedUpdate,
    UpdateType,
)
from segmentstore.contracts.errors import BadAttributeUpdateError, BadOffsetError
from tests.durablelog.test_frame_packer import Bench
from tests.support.suites import examples

KEYS = NUMBER, COUNT, OTHER = [bytes(15) + b"%d" % number for number in range(3)]
EQUALS, ADD, REPLACE = UpdateType.REPLACE_IF_EQUALS, UpdateType.ACCUMULATE, UpdateType.REPLACE
FIRST: tuple[KeyedUpdate, ...] = ((NUMBER, REPLACE, 0, None), (COUNT, ADD, 0, None))


def pending_of(
    attributes: dict[AttributeKey, int], group: dict[AttributeKey, int] | None = None
) -> PendingSegment:
    pending = PendingSegment(1, "one", None)
    pending.attributes = {**attributes, **(group or {})}
    pending.group_attributes = None if group is None else dict(group)
    return pending


@pytest.mark.parametrize("kind", UpdateType)
@pytest.mark.parametrize("count_kind", [ADD, REPLACE, EQUALS])
@pytest.mark.parametrize("count_key", [COUNT, NUMBER])
def test_a_number_and_a_count_are_taken_as_resolve_says_or_not_at_all(
    kind: UpdateType, count_kind: UpdateType, count_key: AttributeKey
) -> None:
    taken = 0
    for before, count, number, expected, added in product(
        (None, ATTRIBUTE_UNSET, 0, 1),
        (None, ATTRIBUTE_UNSET, 1 - 2**63, 0, VALUE_MAX),
        (ATTRIBUTE_UNSET, 0, 1),
        (None, ATTRIBUTE_UNSET, 0, 1),
        (ATTRIBUTE_UNSET, -1, 0, 1),
    ):
        there = {NUMBER: before, COUNT: count}
        attributes = {key: value for key, value in there.items() if value is not None}
        updates = ((NUMBER, kind, number, expected), (count_key, count_kind, added, None))
        taken += took(attributes, updates)
    assert bool(taken) == (kind in (EQUALS, REPLACE) and count_kind is ADD and count_key is COUNT)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_other_numbers_of_updates_are_left_to_resolve(count: int) -> None:
    updates = [(key, ADD, 1, None) for key in KEYS[:count]]
    assert not took(dict.fromkeys(KEYS, 5), updates)


def took(attributes: dict[AttributeKey, int], updates: Sequence[KeyedUpdate]) -> bool:
    """Whether they are taken, on top of the same values with `resolve`."""
    pending = pending_of(attributes)
    if not pending.take_next_number(updates):
        assert (pending.attributes, pending.group_attributes) == (attributes, None)
        return False
    resolved, growth = pending_of(attributes).resolve(updates)
    assert growth == 0
    assert pending.attributes == {**attributes, **resolved}
    assert pending.group_attributes == resolved
    return True


@pytest.mark.parametrize("group", [None, {NUMBER: 4, COUNT: 7}, {OTHER: 1}])
def test_what_is_taken_belongs_to_the_open_group(group: dict[AttributeKey, int] | None) -> None:
    pending = pending_of({NUMBER: 4, COUNT: 7}, group)
    assert pending.take_next_number(((NUMBER, EQUALS, 6, 4), (COUNT, ADD, 2, None)))
    taken = {**(group or {}), NUMBER: 6, COUNT: 9}
    assert (pending.attributes, pending.group_attributes) == (taken, taken)


@pytest.mark.parametrize("before", [None, ATTRIBUTE_UNSET, 3, 4, 5])
def test_an_event_is_taken_behind_a_lower_number_alone(before: int | None) -> None:
    pending = pending_of({} if before is None else {NUMBER: before})
    assert pending.take_next_event((NUMBER, 4, EventSession())) == (before == 3)
    assert pending.attributes.get(NUMBER) == (4 if before == 3 else before)
    assert pending.group_attributes == ({NUMBER: 4} if before == 3 else None)


FEW = st.integers(0, 2)
BESIDE = st.sampled_from([None, 0, 0, 1])
ENDS = st.integers(0, 5).map(lambda drawn: drawn == 0)
KEY = st.sampled_from(KEYS)
SESSIONS = 5
EVENT = st.tuples(KEY, st.integers(0, 5), st.integers(0, SESSIONS - 1))
PAIR = st.tuples(
    st.tuples(st.just(NUMBER), st.sampled_from([EQUALS, EQUALS, REPLACE]), FEW, FEW),
    st.tuples(st.sampled_from([COUNT, COUNT, NUMBER]), st.just(ADD), FEW, st.none()),
)
ANY = st.tuples(KEY, st.sampled_from(UpdateType), st.just(ATTRIBUTE_UNSET) | FEW, st.none() | FEW)
APPENDS = (
    st.tuples(BESIDE, PAIR, st.none() | EVENT, ENDS)
    | st.tuples(BESIDE, st.none(), EVENT, ENDS)
    | st.tuples(BESIDE, st.lists(ANY, max_size=3).map(tuple), st.none(), ENDS)
)
"""(how far the expected offset is beside the length, updates, event, whether a frame ends)"""


@given(st.lists(APPENDS, min_size=5, max_size=20))
@settings(max_examples=examples(1000, 150), deadline=None)
def test_with_and_without_the_one_step_outcomes_and_logs_are_the_same(
    appends: list[tuple[Any, ...]],
) -> None:
    in_one_step = outcome(appends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PendingSegment, "take_next_number", lambda *_: False)
        patch.setattr(PendingSegment, "take_next_event", lambda *_: False)
        assert outcome(appends) == in_one_step


def outcome(appends: list[tuple[Any, ...]]) -> tuple[object, ...]:
    """What becomes of each append, the log, and the attributes at the end."""
    with asyncio.Runner() as runner:
        bench = Bench(runner.get_loop(), 400)
        created = bench.submit(CreateOperation("one"))
        bench.run()
        segment_id = int(str(created.result()))
        futures = [bench.append(segment_id, b"first", updates=FIRST)]
        sessions = [EventSession() for _ in range(SESSIONS)]
        for beside, updates, event, ends in appends:
            bench.gather()
            pending = bench.updater.find(segment_id)
            assert pending is not None
            expected = None if beside is None else pending.length + beside
            in_session = event and (*event[:2], sessions[event[2]])
            conditions = {"expected": expected, "updates": updates or None, "event": in_session}
            futures.append(bench.append(segment_id, b"data", **conditions))
            if ends:
                bench.run()
        bench.run()
        attributes = bench.metadata.segments[segment_id].attributes
        pending = bench.updater.find(segment_id)
        assert pending is not None
        assert pending.attribute_count == len(attributes)
        return (*map(told, futures), bytes(bench.log), dict(attributes.items()))


def told(future: asyncio.Future[int | None]) -> object:
    error = future.exception()
    if isinstance(error, BadAttributeUpdateError):
        return (type(error), error.attribute_id, error.current, str(error))
    if isinstance(error, BadOffsetError):
        return (type(error), error.expected, error.actual, str(error))
    return future.result()
