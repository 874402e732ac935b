"""Order and bounds of what goes on while the throttle holds callers back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog import fair_admission
from durablelog.fair_admission import CHECKS_MAX, RELIEF_BYTES, FairAdmission
from durablelog.frame_requests import OperationRequest, Request
from durablelog.operations import (
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from tests.support.suites import examples

NAMES = st.integers(0, 4)
REQUESTS = st.one_of(
    st.tuples(st.just("append"), NAMES, st.integers(0, 60)),
    st.tuples(st.just("seal"), NAMES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("merge"), NAMES, NAMES),
    st.tuples(st.just("create")),
)
STEPS = st.lists(
    st.one_of(
        REQUESTS,
        st.tuples(
            st.just("begin"),
            st.integers(-50, 200),
            st.integers(0, 100),
            st.none() | st.integers(0, 4).map(lambda count: count * RELIEF_BYTES),
        ),
        st.tuples(st.just("sort")),
        st.tuples(st.just("release"), st.integers(1, 100)),
        st.tuples(st.just("flush"), NAMES),
        st.tuples(st.just("take")),
    ),
    max_size=80,
)


def request_of(step: tuple[Any, ...], future: asyncio.Future[Any]) -> Request:
    kind, *parts = step
    if kind == "append":
        return (parts[0], bytes(parts[1]), future, None, None, None)
    if kind == "seal":
        return OperationRequest(SealOperation(parts[0]), future)
    if kind == "delete":
        return OperationRequest(DeleteOperation(parts[0]), future)
    if kind == "merge":
        return OperationRequest(MergeOperation(parts[0], parts[1]), future)
    return OperationRequest(CreateOperation("again"), future)


def touches(request: Request) -> set[int]:
    if isinstance(request, tuple):
        return {request[0]}
    operation = request.operation
    if isinstance(operation, MergeOperation):
        return {operation.target_id, operation.source_id}
    if isinstance(operation, CreateOperation):
        return set()
    return {operation.segment_id}  # type: ignore[attr-defined]


def must_stay_behind(later: Request, earlier: Request) -> bool:
    if touches(later) & touches(earlier):
        return True
    creates = not isinstance(later, tuple) and isinstance(later.operation, CreateOperation)
    return creates and not isinstance(earlier, tuple)


@settings(max_examples=examples(300), deadline=None)
@given(STEPS)
def test_no_request_overtakes_one_that_it_follows_and_admitted_bytes_have_room(
    steps: list[tuple[Any, ...]],
) -> None:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Any] = loop.create_future()
    unflushed: dict[int, int] = dict.fromkeys(range(5), 0)
    fair = FairAdmission(unflushed.__getitem__)
    queue: deque[Request] = deque()
    called: list[Request] = []
    done: list[Request] = []

    def take() -> None:
        while fair.admitted:
            request = fair.admitted.popleft()
            done.append(request)
            if isinstance(request, tuple):
                unflushed[request[0]] += len(request[1])

    for step in steps:
        if step[0] == "begin":
            before = len(fair.admitted)
            fair.begin(step[1], step[2], step[3])
            assert sum(
                len(item[1]) for item in list(fair.admitted)[before:] if isinstance(item, tuple)
            ) <= max(0, step[1])
        elif step[0] == "sort":
            fair.sort(queue)
            assert not queue
        elif step[0] == "release":
            waiting = list(fair.deferred)
            fair.release(step[1])
            assert list(fair.deferred) == waiting[len(waiting) - len(fair.deferred) :]
            assert not waiting or len(fair.deferred) < len(waiting)
        elif step[0] == "flush":
            unflushed[step[1]] = 0
        elif step[0] == "take":
            take()
        else:
            queue.append(request_of(step, future))
            called.append(queue[-1])
    assert len(fair) + len(queue) + len(done) == len(called)
    fair.sort(queue)
    fair.release(1 << 30)
    take()
    assert not fair
    assert {id(request) for request in done} == {id(request) for request in called}
    places = {id(request): place for place, request in enumerate(done)}
    for number, later in enumerate(called):
        for earlier in called[:number]:
            if must_stay_behind(later, earlier):
                assert places[id(earlier)] < places[id(later)]
    loop.close()


def test_a_heavy_segment_waits_and_a_light_one_goes_on_within_its_share() -> None:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Any] = loop.create_future()
    fair = FairAdmission({1: 1000, 2: 0}.__getitem__)
    fair.begin(500, 100)
    queue: deque[Request] = deque(
        (segment_id, bytes(40), future, None, None, None) for segment_id in (1, 2, 2, 2, 1)
    )
    fair.sort(queue)
    assert [item[0] for item in fair.admitted if isinstance(item, tuple)] == [2, 2]
    assert [item[0] for item in fair.deferred if isinstance(item, tuple)] == [1, 2, 1]
    fair.begin(500, 100)
    # A new pause, a new share; nothing was committed meanwhile.
    assert [item[0] for item in fair.admitted if isinstance(item, tuple)] == [2, 2, 2]
    loop.close()


def test_with_a_full_log_only_what_lets_go_of_data_goes_on_and_within_a_bound() -> None:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Any] = loop.create_future()
    fair = FairAdmission(lambda _segment_id: 0)
    fair.begin(1 << 30, 1 << 30, 3 * RELIEF_BYTES)
    held: list[Operation] = [
        SealOperation(1),
        UpdateAttributesOperation(2, {}),
        CreateOperation("x"),
    ]
    relieving: list[Operation] = [TruncateOperation(3, 0)] * 100 + [DeleteOperation(4)]
    queue: deque[Request] = deque(
        OperationRequest(operation, future) for operation in held + relieving
    )
    queue.append((5, b"", future, None, None, None))
    fair.sort(queue)
    admitted = [
        request.operation for request in fair.admitted if isinstance(request, OperationRequest)
    ]
    assert admitted == relieving[:3]
    assert len(fair.admitted) == 3, "an append without data takes room for its record"
    fair.admitted.clear()
    fair.begin(1 << 30, 1 << 30)
    assert len(fair.admitted) == 102, "with room again all go on"
    loop.close()


def test_a_pause_checks_a_bounded_number_again() -> None:
    loop = asyncio.new_event_loop()
    future: asyncio.Future[Any] = loop.create_future()
    looks: list[int] = []

    def unflushed_of(segment_id: int) -> int:
        looks.append(segment_id)
        return 1000

    fair = FairAdmission(unflushed_of)
    fair.begin(1 << 30, 10)
    fair.sort(deque((number, b"x", future, None, None, None) for number in range(3 * CHECKS_MAX)))
    looks.clear()
    fair.begin(1 << 30, 10)
    assert looks == list(range(CHECKS_MAX))
    loop.close()


@pytest.mark.parametrize("stage", ["begin", "sort", "release"])
@pytest.mark.parametrize("call", range(1, 8))
def test_an_interrupt_loses_no_request(
    stage: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        requests: list[Request] = [
            (number % 3, bytes(40), loop.create_future(), None, None, None) for number in range(24)
        ]
        fair = FairAdmission(lambda _segment_id: 0)
        fair.begin(100, 50)
        queue = deque(requests[:12])
        fair.sort(queue)
        assert fair.deferred
        queue = deque(requests[12:])
        left = [call]

        segments_of = fair_admission._segments

        def interrupted(request: Request) -> tuple[int, ...]:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return tuple(segments_of(request))

        monkeypatch.setattr(fair_admission, "_segments", interrupted)
        stages: dict[str, Callable[[], object]] = {
            "begin": lambda: fair.begin(400, 200),
            "sort": lambda: fair.sort(queue),
            "release": lambda: fair.release(1000),
        }
        with pytest.raises(KeyboardInterrupt):
            stages[stage]()
        kept = {id(request) for request in (*fair.take_all(), *queue)}
        assert kept == {id(request) for request in requests}
