"""The packer and the updater together: what is packed and replayed is what was accepted, at any
frame size.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.frame_packer import FramePacker
from durablelog.frame_requests import LARGE_APPEND_BYTES, OperationRequest, PackedFrame, Request
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
    commit_runs,
)
from durablelog.pending_segment import EventSession
from recovery.replay import Replay
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.attributes import UpdateType
from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    BadOffsetError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from tests.support.suites import examples

KEY = b"k" * 16
PLACED = 30
"""Appends of so many bytes are committed with their places."""


def full_frames(packer: FramePacker) -> list[PackedFrame]:
    """Those that are full, on their way now."""
    full = list(packer.full)
    packer.full.clear()
    return full


class Bench:
    """A packer over a fresh container, whose frames are committed at once and kept."""

    def __init__(self, loop: asyncio.AbstractEventLoop, payload_bytes_max: int) -> None:
        self.loop = loop
        self.metadata = ContainerMetadata(0)
        self.updater = MetadataUpdater(self.metadata)
        self.packer = FramePacker(self.updater, payload_bytes_max, placed_min=PLACED)
        self.log = bytearray()
        """The payloads, one behind the other: an address is a position in it."""
        self.queue: deque[Request] = deque()
        self.frames: list[PackedFrame] = []
        self.time_ms = 0
        self.places = 0
        """Of all appends committed."""
        self.calls: dict[asyncio.Future[object], tuple[int, int]] = {}
        """Segment and size of each append."""
        for frame in self._checkpoint():
            self._commit(frame)

    def _checkpoint(self) -> list[PackedFrame]:
        operation = CheckpointOperation(encode_checkpoint(self.metadata))
        self.updater.accept(operation, self.time_ms)
        self.packer.pack_checkpoint(operation)
        return full_frames(self.packer)

    def append(
        self, segment_id: int, data: bytes, **conditions: object
    ) -> asyncio.Future[int | None]:
        future: asyncio.Future[int | None] = self.loop.create_future()
        request = (
            segment_id,
            data,
            future,
            *(conditions.get(name) for name in ("expected", "updates", "event")),
        )
        self.queue.append(request)  # type: ignore[arg-type]
        self.calls[future] = (segment_id, len(data))  # type: ignore[index]
        return future

    def submit(self, operation: Operation) -> asyncio.Future[object]:
        future: asyncio.Future[object] = self.loop.create_future()
        self.queue.append(OperationRequest(operation, future))
        return future

    def run(self, *, frames_max: int = 1) -> None:
        """Pack what waits and commit all of it."""
        self.time_ms += 1
        packed: list[PackedFrame] = []
        while self.queue:
            self.packer.pack(self.queue, self.time_ms, frames_max)
            packed += full_frames(self.packer)
        self.packer.seal()
        for frame in [*packed, *full_frames(self.packer)]:
            self._commit(frame)
        assert self.packer.idle
        assert all(pending.idle for pending in self.updater.pending.values())
        assert_metadata_valid(self.metadata)

    def gather(self) -> None:
        """Pack what waits, and leave the frame open that is not full."""
        while self.queue:
            self.packer.pack(self.queue, self.time_ms, 1)
            for frame in full_frames(self.packer):
                self._commit(frame)

    def _commit(self, frame: PackedFrame) -> None:
        frame.note_places(LogAddress(len(self.log)))
        self.log += b"".join(frame.payload)
        for operation in frame.operations:
            if isinstance(operation, AppendOperation):
                self._check_places(operation)
        for run in commit_runs(frame.operations):
            self.updater.commit(run)
        if frame.payload:
            self.frames.append(frame)
        for future, value in zip(frame.futures, frame.values, strict=True):
            self._check_committed(future, value)
            if not future.cancelled():
                future.set_result(value)

    def _check_committed(self, future: asyncio.Future[object], value: object) -> None:
        """What is acknowledged is in this frame, or in one before it."""
        segment_id, size = self.calls.get(future, (0, 0))
        if isinstance(value, int) and segment_id in self.metadata.segments:
            assert value + size <= self.metadata.segments[segment_id].length

    def _check_places(self, operation: AppendOperation) -> None:
        if len(operation.data) < PLACED:
            assert not operation.places
            return
        found = [self.log[address : address + length] for address, length in operation.places]
        assert all(found)
        assert b"".join(found) == operation.data
        self.places += len(found)

    def replayed(self) -> tuple[ContainerMetadata, list[Operation]]:
        metadata = ContainerMetadata(0)
        replay = Replay(MetadataUpdater(metadata), LogPositions())
        reader = DataFrameReader()
        operations: list[Operation] = []
        for number, frame in enumerate(self.frames, 1):
            payload = memoryview(b"".join(frame.payload))
            records = reader.feed(LogFrame(LogAddress(number), number, 1, payload))
            operations += [replay.apply(*record[:3]) for record in records]
        replay.finish()
        return metadata, operations


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


def test_appends_of_a_frame_become_one_operation_per_segment(
    loop: asyncio.AbstractEventLoop,
) -> None:
    bench = Bench(loop, 1000)
    one, two = bench.submit(CreateOperation("one")), bench.submit(CreateOperation("two"))
    bench.run()
    ids = [int(str(one.result())), int(str(two.result()))]
    futures = [bench.append(ids[number % 2], b"%d," % number) for number in range(6)]
    bench.run()
    assert [future.result() for future in futures] == [0, 0, 2, 2, 4, 4]
    _, operations = bench.replayed()
    assert [getattr(operation, "data", None) for operation in operations[3:]] == [
        b"0,2,4,",
        b"1,3,5,",
    ]


@pytest.mark.parametrize("payload_bytes_max", [64, 100, 1000])
def test_an_append_larger_than_a_frame_spans_frames(
    loop: asyncio.AbstractEventLoop, payload_bytes_max: int
) -> None:
    bench = Bench(loop, payload_bytes_max)
    created = bench.submit(CreateOperation("one"))
    bench.run()
    segment_id = int(str(created.result()))
    data = [bytes([number]) * (number * 37) for number in range(12)]
    futures = [bench.append(segment_id, item) for item in data]
    bench.run()
    assert [future.result() for future in futures] == [
        sum(map(len, data[:number])) for number in range(12)
    ]
    metadata, operations = bench.replayed()
    assert metadata.segments[segment_id].length == sum(map(len, data))
    assert b"".join(getattr(operation, "data", b"") for operation in operations) == b"".join(data)


def test_large_appends_stand_alone_between_gathered_ones(loop: asyncio.AbstractEventLoop) -> None:
    bench = Bench(loop, 3 * LARGE_APPEND_BYTES)
    one, two = bench.submit(CreateOperation("one")), bench.submit(CreateOperation("two"))
    bench.run()
    ids = [int(str(one.result())), int(str(two.result()))]
    large = bytes(LARGE_APPEND_BYTES)
    data = [b"a", b"b", large, b"c", b"d", large, large, b"e", large[:-1], b"f"]
    futures = [bench.append(ids[number % 2], item) for number, item in enumerate(data)]
    bench.run()
    for which in (0, 1):
        mine = data[which::2]
        assert [future.result() for future in futures[which::2]] == [
            sum(map(len, mine[:n])) for n in range(len(mine))
        ]
    metadata, operations = bench.replayed()
    assert [metadata.segments[i].length for i in ids] == [
        sum(map(len, data[0::2])),
        sum(map(len, data[1::2])),
    ]
    assert sum(getattr(operation, "data", b"") == large for operation in operations) == 3


@pytest.mark.parametrize("frames_max", [1, 100])
@pytest.mark.parametrize("beyond", range(40, 240, 5))
def test_what_comes_behind_a_large_append_that_ends_a_frame_is_acknowledged_with_its_own(
    loop: asyncio.AbstractEventLoop, beyond: int, frames_max: int
) -> None:
    bench = Bench(loop, LARGE_APPEND_BYTES + beyond)
    created = bench.submit(CreateOperation("one"))
    bench.run()
    segment_id = int(str(created.result()))
    calls = [bench.append(segment_id, bytes(size)) for size in (20, LARGE_APPEND_BYTES, 20, 30, 20)]
    bench.run()
    assert [call.result() for call in calls] == [0, 20, *(16404, 16424, 16454)]


def test_refusals_change_nothing_and_name_the_reason(loop: asyncio.AbstractEventLoop) -> None:
    bench = Bench(loop, 200)
    one, two = bench.submit(CreateOperation("one")), bench.submit(CreateOperation("two"))
    twice = bench.submit(CreateOperation("one"))
    bench.run()
    assert isinstance(twice.exception(), SegmentExistsError)
    one_id, two_id = int(str(one.result())), int(str(two.result()))
    refused: dict[asyncio.Future[Any], type[Exception]] = {
        bench.append(one_id, b"x", expected=5): BadOffsetError,
        bench.append(
            one_id, b"x", updates=[(KEY, UpdateType.REPLACE_IF_EQUALS, 1, 7)], expected=5
        ): BadAttributeUpdateError,
        bench.append(999, b"x"): SegmentNotFoundError,
        bench.submit(
            UpdateAttributesOperation(
                one_id,
                updates=[(KEY, UpdateType.REPLACE, 1, None), (KEY, UpdateType.NONE, 2, None)],
            )
        ): BadAttributeUpdateError,
        bench.submit(TruncateOperation(one_id, 1)): BadOffsetError,
        bench.submit(MergeOperation(one_id, 999)): SegmentNotFoundError,
        bench.submit(
            MergeOperation(one_id, two_id, updates=[(KEY, UpdateType.REPLACE_IF_EQUALS, 1, 7)])
        ): BadAttributeUpdateError,
    }
    bench.run()
    for future, kind in refused.items():
        assert isinstance(future.exception(), kind)
    assert bench.metadata.segments[one_id].length == 0
    assert not bench.metadata.segments[one_id].attributes
    assert set(bench.metadata.names) == {"one", "two"}

    sealed = bench.submit(SealOperation(one_id))
    refused = {
        bench.append(one_id, b"x"): SegmentSealedError,
        bench.submit(SealOperation(one_id)): SegmentSealedError,
        bench.submit(MergeOperation(one_id, two_id)): SegmentSealedError,
        bench.submit(
            UpdateAttributesOperation(one_id, updates=[(KEY, UpdateType.REPLACE, 1, None)])
        ): SegmentSealedError,
    }
    grown = bench.append(two_id, b"abc")
    truncated = bench.submit(TruncateOperation(two_id, 2))
    bench.run()
    assert sealed.result() == 0
    assert grown.result() == 0
    assert truncated.result() is None
    for future, kind in refused.items():
        assert isinstance(future.exception(), kind)
    three = bench.submit(CreateOperation("three"))
    bench.run()
    cut = bench.submit(MergeOperation(int(str(three.result())), two_id))
    bench.run()
    assert isinstance(cut.exception(), SegmentTruncatedError)


def test_an_event_behind_one_on_its_way_keeps_its_other_conditions(
    loop: asyncio.AbstractEventLoop,
) -> None:
    bench = Bench(loop, 1000)
    created = bench.submit(CreateOperation("one"))
    bench.run()
    segment_id = int(str(created.result()))
    other = bytes(15) + b"2"
    _ = bench.append(segment_id, b"first", event=(KEY, 5, EventSession()))
    refused = bench.append(segment_id, b"wrong offset", event=(KEY, 6, EventSession()), expected=4)
    updates = ((other, UpdateType.ACCUMULATE, 3, None),)
    taken = bench.append(segment_id, b"second", event=(KEY, 7, EventSession()), updates=updates)
    bench.run()
    assert isinstance(refused.exception(), BadOffsetError)
    assert taken.result() == 5
    attributes = bench.metadata.segments[segment_id].attributes
    assert (attributes.get(KEY), attributes.get(other)) == (7, 3)


@pytest.mark.parametrize("first", [True, False])
def test_behind_a_refused_event_all_of_its_session_are_refused(
    loop: asyncio.AbstractEventLoop, first: bool
) -> None:
    """A later number would hide that this event is missing."""
    bench = Bench(loop, 1000)
    created = bench.submit(CreateOperation("one"))
    bench.run()
    segment_id, session = int(str(created.result())), EventSession()
    if not first:
        _ = bench.append(segment_id, b"first", event=(KEY, 4, session))
    refused = bench.append(segment_id, b"wrong offset", event=(KEY, 5, session), expected=9)
    behind = bench.append(segment_id, b"second", event=(KEY, 6, session))
    large = bench.append(segment_id, bytes(LARGE_APPEND_BYTES), event=(KEY, 7, session))
    anew = bench.append(segment_id, b"again", event=(KEY, 5, EventSession()))
    bench.run()
    assert isinstance(refused.exception(), BadOffsetError)
    assert behind.exception() is large.exception() is refused.exception() is session.refusal
    assert anew.result() == (0 if first else 5)


def test_a_repeated_event_is_acknowledged_with_what_it_repeats_and_dropped(
    loop: asyncio.AbstractEventLoop,
) -> None:
    bench = Bench(loop, 200)
    created = bench.submit(CreateOperation("one"))
    bench.run()
    segment_id = int(str(created.result()))
    first = bench.append(segment_id, b"event", event=(KEY, 5, EventSession()))
    repeated = bench.append(segment_id, b"event", event=(KEY, 5, EventSession()))
    older = bench.append(segment_id, b"older", event=(KEY, 4, EventSession()))
    bench.packer.pack(bench.queue, 1, 1)
    assert not bench.packer.full
    assert not repeated.done()
    bench.run()
    assert (first.result(), repeated.result(), older.result()) == (0, None, None)
    assert bench.metadata.segments[segment_id].length == 5
    assert bench.metadata.segments[segment_id].attributes == AttributeTable({KEY: 5})


def test_merge_moves_names_lengths_and_attributes_at_once(loop: asyncio.AbstractEventLoop) -> None:
    bench = Bench(loop, 100)
    one, two = bench.submit(CreateOperation("one")), bench.submit(CreateOperation("two"))
    bench.run()
    one_id, two_id = int(str(one.result())), int(str(two.result()))
    _ = bench.append(one_id, b"abc")
    _ = bench.append(two_id, b"de")
    merged = bench.submit(
        MergeOperation(one_id, two_id, updates=[(KEY, UpdateType.ACCUMULATE, 2, None)])
    )
    late = bench.append(two_id, b"x")
    again = bench.submit(CreateOperation("two"))
    bench.run()
    assert merged.result() == 3
    assert isinstance(late.exception(), SegmentNotFoundError)
    assert bench.metadata.names["two"] == again.result() != two_id
    assert bench.metadata.segments[one_id].length == 5
    assert bench.metadata.segments[one_id].attributes == AttributeTable({KEY: 2})
    assert bench.metadata.segments[two_id].merged_into == one_id


def test_rollback_forgets_everything_pending(loop: asyncio.AbstractEventLoop) -> None:
    bench = Bench(loop, 200)
    created = bench.submit(CreateOperation("one"))
    bench.run()
    segment_id = int(str(created.result()))
    before = encode_checkpoint(bench.metadata)
    _ = bench.append(segment_id, b"abc", updates=[(KEY, UpdateType.REPLACE, 1, None)])
    _ = bench.submit(SealOperation(segment_id))
    _ = bench.submit(CreateOperation("two"))
    bench.packer.pack(bench.queue, 1, 100)
    assert bench.updater.pending
    bench.updater.rollback()
    assert not bench.updater.pending
    assert encode_checkpoint(bench.metadata) == before


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 150)),
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("create"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("seal"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 3), st.integers(0, 100)),
        st.tuples(st.just("merge"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("run"), st.just(0), st.integers(1, 4)),
    ),
    max_size=60,
)


@settings(max_examples=examples(150), deadline=None)
@given(actions, st.integers(16, 300))
def test_replay_gives_the_committed_state_back(
    steps: list[tuple[str, int, int]], payload_bytes_max: int
) -> None:
    with asyncio.Runner() as runner:
        bench = Bench(runner.get_loop(), payload_bytes_max)
        results: list[asyncio.Future[object]] = []
        for action, which, number in steps:
            _act(bench, results, action, f"segment-{which}", number)
        bench.run()
        assert all(future.done() for future in results)
        for future in results:
            future.exception()
        replayed, _ = bench.replayed()
        assert_metadata_valid(replayed)
        assert encode_checkpoint(replayed) == encode_checkpoint(bench.metadata)


def _act(
    bench: Bench, results: list[asyncio.Future[object]], action: str, name: str, number: int
) -> None:
    segment_id = bench.metadata.names.get(name, 0)
    if action == "run":
        bench.run(frames_max=number)
    elif action == "append":
        future = bench.append(segment_id, bytes([number % 251]) * number)
        results.append(future)  # type: ignore[arg-type]
    elif action == "create":
        results.append(bench.submit(CreateOperation(name)))
    elif action == "seal":
        results.append(bench.submit(SealOperation(segment_id)))
    elif action == "truncate":
        results.append(bench.submit(TruncateOperation(segment_id, number)))
    elif action == "merge":
        source_id = bench.metadata.names.get(f"segment-{number}", 0)
        if source_id != segment_id:
            results.append(bench.submit(MergeOperation(segment_id, source_id)))
    else:
        results.append(bench.submit(DeleteOperation(segment_id)))


@pytest.mark.parametrize("size", [PLACED - 1, PLACED, 60, 200, 20_000])
def test_an_append_is_committed_with_its_places(loop: asyncio.AbstractEventLoop, size: int) -> None:
    """Gathered, alone, and over several frames, behind others and as the first of a frame."""
    bench = Bench(loop, 100)
    created = bench.submit(CreateOperation("one"))
    bench.run()
    segment_id = int(str(created.result()))
    for before in range(0, 80, 7):
        data = bytes(range(100)) * (size // 100) + bytes(range(size % 100))
        futures = [bench.append(segment_id, each) for each in (bytes(before), data)]
        bench.run()
        assert all(future.done() for future in futures)
    assert (bench.places > 0) == (size >= PLACED or size + 77 >= PLACED)
