"""How many attributes a segment may have: checked against everything accepted, never in replay."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.frame_packer import FramePacker
from durablelog.frame_requests import OperationRequest, PackedFrame, Request
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    CreateOperation,
    MergeOperation,
    Operation,
    UpdateAttributesOperation,
    commit_runs,
)
from durablelog.pending_segment import EventSession
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, KeyedUpdate, UpdateType
from segmentstore.contracts.errors import BadOffsetError, SegmentError, TooManyAttributesError
from segmentstore.contracts.metadata import ContainerMetadata
from tests.durablelog.test_frame_packer import full_frames
from tests.support.suites import examples

COUNT_MAX = 5


def key_of(number: int) -> bytes:
    return bytes([number]) * 16


def replacing(values: dict[int, int | None]) -> tuple[KeyedUpdate, ...]:
    """None removes."""
    return tuple(
        (key_of(number), UpdateType.REPLACE, ATTRIBUTE_UNSET if value is None else value, None)
        for number, value in values.items()
    )


class Bench:
    """A packer over a container with a small bound; its frames are committed by `commit_one`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count_max: int = COUNT_MAX) -> None:
        self.loop = loop
        self.metadata = ContainerMetadata(0)
        self.updater = MetadataUpdater(self.metadata, count_max)
        self.packer = FramePacker(self.updater, 4096)
        self.queue: deque[Request] = deque()
        self.in_flight: deque[PackedFrame] = deque()
        self.log: list[Operation] = []

    def submit(self, operation: Operation) -> asyncio.Future[object]:
        future: asyncio.Future[object] = self.loop.create_future()
        self.queue.append(OperationRequest(operation, future))
        return self._packed(future)

    def append(
        self,
        segment_id: int,
        updates: tuple[KeyedUpdate, ...] | None = None,
        event: tuple[bytes, int] | None = None,
        expected: int | None = None,
        data: bytes = b"data",
    ) -> asyncio.Future[object]:
        future: asyncio.Future[object] = self.loop.create_future()
        in_session = event and (*event, EventSession())
        request = (segment_id, data, future, expected, updates, in_session)
        self.queue.append(request)  # type: ignore[arg-type]
        return self._packed(future)

    def _packed(self, future: asyncio.Future[object]) -> asyncio.Future[object]:
        """Packed as the processor does: what does not fill a frame may get company."""
        while self.queue:
            self.packer.pack(self.queue, 1, 4)
            self.in_flight += full_frames(self.packer)
        return future

    def ship(self) -> None:
        self.packer.seal()
        self.in_flight += full_frames(self.packer)

    def commit_one(self) -> None:
        if self.in_flight:
            frame = self.in_flight.popleft()
            for run in commit_runs(frame.operations):
                self.updater.commit(run)
            self.log += frame.operations
            for future, value in zip(frame.futures, frame.values, strict=True):
                future.set_result(value)

    def commit_all(self) -> None:
        self.ship()
        while self.in_flight:
            self.commit_one()

    def create(self, name: str, values: dict[int, int | None]) -> int:
        operation = CreateOperation(name, updates=replacing(values))
        future = self.submit(operation)
        if not future.done():
            self.commit_all()
        future.result()
        return operation.sequence_number

    def attributes(self, segment_id: int) -> dict[int, int]:
        items = self.metadata.segments[segment_id].attributes.items()
        return {key[0]: value for key, value in items}


@pytest.fixture
def bench() -> Bench:
    with asyncio.Runner() as runner:
        return Bench(runner.get_loop())


changes = st.dictionaries(
    st.integers(0, 9), st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=4
)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["update", "append", "large append", "merge"]), changes),
        st.tuples(st.just("event"), st.integers(0, 9)),
        st.tuples(st.just("plain"), st.none()),
        st.tuples(st.sampled_from(["ship", "commit", "all"]), st.none()),
    ),
    max_size=40,
)


def after(model: dict[int, int], change: dict[int, int | None]) -> dict[int, int]:
    merged = {**model, **change}
    return {key: value for key, value in merged.items() if value is not None}


@settings(max_examples=examples(600), deadline=None)
@given(st.integers(0, 8), steps)
def test_the_bound_holds_for_everything_accepted(
    began_with: int, script: list[tuple[str, object]]
) -> None:
    with asyncio.Runner() as runner:
        bench = Bench(runner.get_loop())
        # One that began with more has them from a time with a higher bound.
        there = bench.create("s", dict.fromkeys(range(min(began_with, COUNT_MAX)), 0))
        target = bench.updater.metadata.segments[there]
        if began_with > COUNT_MAX:
            more = {key_of(number): 0 for number in range(began_with)}
            bench.updater.replay(_recorded(there, more, bench.metadata.sequence_number + 1))
            bench.updater.begin_epoch()
        model = dict.fromkeys(range(began_with), 0)
        number = 10
        for what, given_with in script:
            number += 1
            if what in {"ship", "commit", "all"}:
                {"ship": bench.ship, "commit": bench.commit_one, "all": bench.commit_all}[what]()
                continue
            change: dict[int, int | None]
            if what == "event":
                change = {given_with: number}  # type: ignore[dict-item] # an int
                key = key_of(given_with)  # type: ignore[arg-type] # likewise
                future = bench.append(there, event=(key, number))
            elif what == "plain":
                change = {}
                future = bench.append(there)
            else:
                change = given_with  # type: ignore[assignment] # drawn as a dict
                updates = replacing(change)
                if what == "update":
                    future = bench.submit(UpdateAttributesOperation(there, updates=updates))
                elif what == "merge":
                    source = bench.create(f"source {number}", {})
                    future = bench.submit(MergeOperation(there, source, updates=updates))
                else:
                    size = 20_000 if what == "large append" else 4
                    future = bench.append(there, updates, data=bytes(size))
            result = after(model, change)
            refused = len(result) > max(COUNT_MAX, len(model))
            assert (future.done() and future.exception() is not None) == refused, (what, change)
            if refused:
                error = future.exception()
                assert isinstance(error, TooManyAttributesError)
                assert (error.name, error.count, error.count_max) == ("s", len(model), COUNT_MAX)
            else:
                model = result
        bench.commit_all()
        assert bench.attributes(there) == model
        pending = bench.updater.find(there)
        assert pending is not None
        assert pending.attribute_count == len(target.attributes) == len(model)


def _recorded(
    segment_id: int, attributes: dict[bytes, int], sequence_number: int
) -> UpdateAttributesOperation:
    return UpdateAttributesOperation(segment_id, attributes, sequence_number=sequence_number)


def test_a_log_with_more_than_the_bound_replays_and_then_takes_no_more(bench: Bench) -> None:
    one = bench.create("one", dict.fromkeys(range(3), 1))
    source = bench.create("source", {})
    taken = [
        bench.submit(UpdateAttributesOperation(one, updates=replacing({3: 1}))),
        bench.append(one, event=(key_of(4), 7)),
        bench.submit(MergeOperation(one, source, updates=replacing({4: 8, 2: None, 5: 1}))),
    ]
    bench.commit_all()
    assert [future.exception() for future in taken] == [None] * 3
    again = Bench(bench.loop, 2)
    for operation in bench.log:
        again.updater.replay(operation)
    assert again.attributes(one) == bench.attributes(one) == {0: 1, 1: 1, 3: 1, 4: 8, 5: 1}
    again.updater.begin_epoch()
    assert isinstance(again.append(one, replacing({6: 1})).exception(), TooManyAttributesError)
    allowed = (replacing({0: 2, 1: None}), replacing({6: 1, 5: None}), replacing({3: None}))
    futures = [again.append(one, updates) for updates in allowed]
    refused = again.append(one, event=(key_of(9), 1)).exception()
    assert isinstance(refused, TooManyAttributesError)
    again.commit_all()
    assert [future.exception() for future in futures] == [None] * 3
    assert again.attributes(one) == {0: 2, 4: 8, 6: 1}


def test_a_refused_operation_changes_nothing(bench: Bench) -> None:
    one = bench.create("one", dict.fromkeys(range(COUNT_MAX - 1), 1))
    source = bench.create("source", {})
    too_much = replacing({0: 5, 7: 1, 8: 1})
    with pytest.raises(TooManyAttributesError):
        bench.create("new", dict.fromkeys(range(COUNT_MAX + 1), 1))
    refused = [
        bench.submit(UpdateAttributesOperation(one, updates=too_much)),
        bench.submit(MergeOperation(one, source, updates=too_much)),
        bench.append(one, too_much),
        bench.append(one, too_much, data=bytes(20_000)),
        bench.append(one, replacing({7: 1}), (key_of(8), 1)),
    ]
    assert all(isinstance(future.exception(), TooManyAttributesError) for future in refused)
    # Nor does one with another refusal count.
    for _ in range(3):
        wrong = bench.append(one, replacing({7: 1}), expected=99)
        assert isinstance(wrong.exception(), BadOffsetError)
    taken = bench.append(one, None, (key_of(8), 1))
    assert isinstance(bench.append(one, None, (key_of(9), 1)).exception(), SegmentError)
    repeated = bench.append(one, None, (key_of(8), 1))
    bench.commit_all()
    assert (taken.result(), repeated.result()) == (0, None)
    assert bench.attributes(one) == {**dict.fromkeys(range(COUNT_MAX - 1), 1), 8: 1}
    assert set(bench.metadata.names) == {"one", "source"}
    assert bench.create("new", dict.fromkeys(range(COUNT_MAX), 1))


def test_an_update_and_an_event_of_one_attribute_count_once(bench: Bench) -> None:
    one = bench.create("one", dict.fromkeys(range(COUNT_MAX - 1), 1))
    taken = [
        bench.append(one, replacing({8: 1}), (key_of(8), 2)),
        bench.append(one, replacing({8: None}), (key_of(8), 3)),
    ]
    assert isinstance(bench.append(one, replacing({9: 1})).exception(), TooManyAttributesError)
    taken += [bench.append(one, replacing({8: None})), bench.append(one, replacing({9: 1}))]
    bench.commit_all()
    assert [future.exception() for future in taken] == [None] * 4
    assert bench.attributes(one) == {**dict.fromkeys(range(COUNT_MAX - 1), 1), 9: 1}
