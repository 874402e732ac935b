"""Requests that need what memory lacks: they wait at the head of their queue, and all behind them
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from durablelog.frame_packer import REQUESTS_AHEAD
from durablelog.frame_requests import LARGE_APPEND_BYTES, REQUEST_BYTES, OperationRequest
from durablelog.metadata_needs import ALL_CHUNKS, AttributeNeed, ChunkNeed, Need
from durablelog.operations import (
    ChunkReplacement,
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    ReplaceChunksOperation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from durablelog.pending_segment import EventSession
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.contracts.errors import BadOffsetError, SegmentSealedError
from tests.durablelog.partial_bench import KEYS, PartialBench, chunk, replace
from tests.durablelog.test_frame_packer import full_frames


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)


@pytest.fixture
def bench() -> Iterator[PartialBench]:
    with asyncio.Runner() as runner:
        yield PartialBench(runner.get_loop())


def test_a_stalled_append_stays_at_the_head_and_nothing_behind_it_overtakes(
    bench: PartialBench,
) -> None:
    one, two = bench.create("one", (0, 7)), bench.create("two")
    bench.forget()
    first = bench.append(one, b"first")
    stalled = bench.append(one, b"stalled", updates=replace((0, 8)))
    behind = [bench.append(one, b"plain"), bench.append(two, b"other")]
    sealed = bench.submit(SealOperation(two))
    requests = list(bench.queue)
    taken = bench.packer.bytes_taken
    assert (bench.pack(), bench.packer.stalled) == ([], True)
    assert list(bench.queue) == requests[1:]
    # The one before it was taken.
    assert bench.packer.bytes_taken == taken + len(b"first") + REQUEST_BYTES
    assert bench.updater.pending[one].parts == [b"first"]
    assert bench.updater.pending[one].length == 5
    before = bench.state()
    for _ in range(3):
        assert bench.pack() == []
        assert bench.state() == before
    assert bench.packer.lacks(bench.queue) == [AttributeNeed(one, KEYS[0])]
    bench.run()
    assert [each.result() for each in (first, stalled, *behind)] == [0, 5, 12, 0]
    assert sealed.result() == 5
    assert dict(bench.metadata.segments[one].attributes.known()) == {KEYS[0]: 8}
    assert bench.packer.bytes_taken == taken + 4 * REQUEST_BYTES + 5 + 7 + 5 + 5


def test_a_frame_that_is_begun_is_shipped_while_a_request_waits(bench: PartialBench) -> None:
    one = bench.create("one", (0, 7))
    bench.forget()
    first = bench.append(one, b"first")
    stalled = bench.append(one, b"stalled", event=(KEYS[0], 8, EventSession()))
    assert bench.pack() == []
    bench.packer.seal()
    (frame,) = full_frames(bench.packer)
    bench._commit(frame)
    assert first.result() == 0
    assert bench.packer.idle
    assert bench.pack() == []
    assert bench.packer.seal() is None
    bench.run()
    assert stalled.result() == 5


SIZES: dict[str, tuple[int, int]] = {
    "gathered": (500, 20),
    "in a frame of its own": (500, 440),
    "in no frame": (500, 700),
    "large": (3 * LARGE_APPEND_BYTES, LARGE_APPEND_BYTES),
    "large and in no frame": (500, LARGE_APPEND_BYTES),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("what", ["event", "update"])
def test_an_append_of_any_size_stalls_without_being_taken(
    size: str, what: str, *, behind: bool
) -> None:
    payload_bytes_max, length = SIZES[size]
    with asyncio.Runner() as runner:
        bench = PartialBench(runner.get_loop(), payload_bytes_max)
        one = bench.create("one", (0, 7))
        bench.forget()
        before = [bench.append(one, b"before")] if behind else []
        needing: dict[str, object] = (
            {"event": (KEYS[0], 8, EventSession())}
            if what == "event"
            else {"updates": replace((0, 8))}
        )
        stalled = bench.append(one, bytes(length), **needing)
        request, taken = bench.queue[-1], bench.packer.bytes_taken
        frames = bench.pack()
        # A frame that was full before is to be taken; then the queue waits.
        frames += bench.pack()
        assert bench.packer.stalled
        assert list(bench.queue) == [request]
        taken += (len(b"before") + REQUEST_BYTES) * behind
        assert bench.packer.bytes_taken == taken
        view = bench.updater.pending[one]
        assert (view.length, view.attributes) == (len(b"before") * behind, {})
        assert not stalled.done()
        for frame in frames:
            bench._commit(frame)
        bench.run()
        assert stalled.result() == len(b"before") * behind
        assert [each.result() for each in before] == [0] * behind
        assert bench.packer.bytes_taken == taken + length + REQUEST_BYTES
        segment = bench.metadata.segments[one]
        assert dict(segment.attributes.known()) == {KEYS[0]: 8}
        replayed, _ = bench.replayed()
        bench.learn_all()
        assert replayed.segments[one].length == segment.length
        assert replayed.segments[one].attributes.get(KEYS[0]) == 8


def test_what_needs_nothing_goes_on_though_its_segment_is_known_in_part(
    bench: PartialBench,
) -> None:
    one = bench.create("one", *((key, key) for key in range(4)))
    two = bench.create("two", (0, 1))
    segment = bench.store(one, 7)
    sealed = bench.submit(SealOperation(two))
    bench.run()
    bench.forget()
    cancelled = bench.append(one, b"x", updates=replace((0, 1)))
    cancelled.cancel()
    futures: list[asyncio.Future[Any]] = [
        bench.append(one, b"plain"),
        bench.append(one, b"plain", expected=75),
        bench.append(two, b"refused", updates=replace((0, 1))),
        bench.submit(TruncateOperation(one, 0)),
        bench.submit(UpdateAttributesOperation(one)),
        bench.submit(SealOperation(one)),
    ]
    assert bench.packer.lacks(bench.queue)[1:] == [AttributeNeed(two, KEYS[0])]
    bench.run()
    assert bench.stalls == 0
    assert not segment.whole
    assert sealed.result() == 0
    assert [each.result() for each in futures[:2]] == [70, 75]
    assert isinstance(futures[2].exception(), SegmentSealedError)
    assert [each.result() for each in futures[3:]] == [None, None, 80]


def test_attributes_are_read_before_an_offset_is_refused(bench: PartialBench) -> None:
    one = bench.create("one", (0, 7))
    bench.forget()
    refused = bench.append(one, b"x", expected=5, updates=replace((0, 8)))
    bench.run()
    assert bench.stalls == 1
    assert isinstance(refused.exception(), BadOffsetError)
    assert dict(bench.metadata.segments[one].attributes.known()) == {KEYS[0]: 7}


def test_a_repeated_event_is_found_once_its_number_is_known(bench: PartialBench) -> None:
    one = bench.create("one", (0, 7))
    bench.forget()
    repeated, new = (
        bench.append(one, b"x", event=(KEYS[0], number, EventSession())) for number in (7, 8)
    )
    again = bench.append(one, b"x", event=(KEYS[0], 8, EventSession()))
    bench.run()
    assert bench.stalls == 1
    assert [each.result() for each in (repeated, new, again)] == [None, 0, None]


def test_what_is_accepted_and_not_committed_is_known(bench: PartialBench) -> None:
    one = bench.create("one", (0, 7))
    bench.forget()
    _ = bench.append(one, b"x", event=(KEYS[0], 8, EventSession()))
    assert bench.pack() == []
    bench.learn(bench.packer.lacks(bench.queue))
    _ = bench.append(one, b"y", event=(KEYS[0], 9, EventSession()))
    new = bench.submit(CreateOperation("new", updates=replace((1, 1))))
    assert bench.packer.lacks(bench.queue) == []
    assert bench.pack() == []
    assert not bench.packer.stalled
    # Its creation is on its way: it has no attributes but those.
    (segment_id,) = [each for each, view in bench.updater.pending.items() if view.base is None]
    _ = bench.append(segment_id, b"z", event=(KEYS[3], 1, EventSession()))
    assert bench.packer.lacks(bench.queue) == []
    bench.run()
    assert new.result() == segment_id
    assert bench.stalls == 0


def test_what_the_next_requests_need_is_given_once_and_in_their_order(bench: PartialBench) -> None:
    one, two, three = (bench.create(name, (0, 1), (1, 2)) for name in ("one", "two", "three"))
    bench.store(one, 7)
    bench.store(two, 7)
    bench.forget()
    bench.learn([AttributeNeed(two, KEYS[1])])
    _ = bench.append(two, b"x", updates=replace((0, 1), (1, 1)), event=(KEYS[2], 1, EventSession()))
    _ = bench.append(one, b"x", event=(KEYS[0], 5, EventSession()))
    _ = bench.append(two, b"x", event=(KEYS[2], 2, EventSession()))
    _ = bench.append(999, b"x", event=(KEYS[2], 2, EventSession()))
    _ = bench.submit(TruncateOperation(one, 35))
    _ = bench.submit(TruncateOperation(two, 0))
    _ = bench.submit(MergeOperation(one, two, updates=replace((0, 9), (3, 9))))
    _ = bench.submit(TruncateOperation(one, 35))
    _ = bench.submit(UpdateAttributesOperation(three, updates=replace((0, 1))))
    expected: list[Need] = [
        AttributeNeed(two, KEYS[0]),
        AttributeNeed(two, KEYS[2]),
        AttributeNeed(one, KEYS[0]),
        ChunkNeed(one, 0, 35),
        AttributeNeed(one, KEYS[3]),
        AttributeNeed(three, KEYS[0]),
    ]
    assert bench.packer.lacks(bench.queue) == expected
    bench.learn(expected)
    assert bench.packer.lacks(bench.queue) == []
    bench.run()
    assert bench.stalls == 0


def test_no_more_requests_are_considered_than_are_read_for_together(bench: PartialBench) -> None:
    one = bench.create("one", (0, 1), (1, 2))
    bench.forget()
    for _ in range(REQUESTS_AHEAD - 1):
        _ = bench.append(one, b"", event=(KEYS[0], 5, EventSession()))
    _ = bench.append(one, b"", event=(KEYS[1], 5, EventSession()))
    _ = bench.append(one, b"", event=(KEYS[2], 5, EventSession()))
    needs: list[Need] = [AttributeNeed(one, key) for key in KEYS[:2]]
    assert bench.packer.lacks(bench.queue) == needs
    bench.run()
    assert bench.stalls == 2


Make = Callable[[int, int], Operation]

OPERATIONS: dict[str, tuple[Make, Callable[[int, int], list[Need]]]] = {
    "truncate": (
        lambda one, _: TruncateOperation(one, 35),
        lambda one, _: [ChunkNeed(one, 0, 35)],
    ),
    "delete": (
        lambda one, _: DeleteOperation(one),
        lambda one, _: [ChunkNeed(one, 0, ALL_CHUNKS)],
    ),
    "merge with attributes": (
        lambda one, two: MergeOperation(one, two, updates=replace((0, 1), (3, 1))),
        lambda one, _: [AttributeNeed(one, KEYS[0]), AttributeNeed(one, KEYS[3])],
    ),
    "replace": (
        lambda one, _: ReplaceChunksOperation(
            [ObjectRecord("n", 1, 1)],
            [
                ChunkReplacement(
                    one,
                    (chunk(one, 20), chunk(one, 30)),
                    (chunk(one, 20, 20)._replace(object_name="n"),),
                )
            ],
        ),
        lambda one, _: [ChunkNeed(one, 20, 40)],
    ),
    "update attributes": (
        lambda one, _: UpdateAttributesOperation(
            one, updates=replace((0, 1), (1, ATTRIBUTE_UNSET))
        ),
        lambda one, _: [AttributeNeed(one, KEYS[0]), AttributeNeed(one, KEYS[1])],
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_stalls_until_all_that_it_needs_is_known(
    bench: PartialBench, name: str
) -> None:
    make, needed = OPERATIONS[name]
    one, two = (bench.create(each, (0, 1), (1, 2)) for each in ("one", "two"))
    for segment_id in (one, two):
        bench.store(segment_id, 7)
    bench.forget()
    taken = bench.packer.bytes_taken
    future: asyncio.Future[object] = bench.loop.create_future()
    request = OperationRequest(make(one, two), future, REQUEST_BYTES)
    bench.queue.append(request)
    behind = bench.append(two, b"behind")
    needs = needed(one, two)
    for number in range(len(needs)):
        assert bench.pack() == []
        assert bench.packer.stalled
        assert bench.packer.idle
        assert next(iter(bench.queue)) is request
        assert len(bench.queue) == 2
        assert bench.packer.bytes_taken == taken
        assert not bench.updater.pending or all(
            view.idle and not view.removed for view in bench.updater.pending.values()
        )
        assert bench.packer.lacks(bench.queue) == needs[number:]
        bench.learn(needs[number : number + 1])
    bench.run()
    assert bench.stalls == 0
    assert future.done()
    assert future.exception() is None
    assert bench.packer.bytes_taken == taken + 2 * REQUEST_BYTES + len(b"behind")
    assert behind.done()
    replayed, _ = bench.replayed()
    assert replayed.segments.keys() == bench.metadata.segments.keys()
    assert replayed.names == bench.metadata.names
    for segment in bench.metadata.segments.values():
        other = replayed.segments[segment.segment_id]
        assert len(segment.chunks) == len(other.chunks)
        assert len(segment.attributes) == len(other.attributes)


def test_a_stalled_request_is_given_back_when_packing_ends(bench: PartialBench) -> None:
    one = bench.create("one", (0, 7))
    bench.forget()
    first = bench.append(one, b"first")
    stalled = bench.append(one, b"x", event=(KEYS[0], 8, EventSession()))
    assert bench.pack() == []
    # It is in the queue as well; a future is failed once.
    assert len(bench.queue) == 1
    abandoned: list[asyncio.Future[Any]] = list(bench.packer.abandon())
    assert abandoned == [first, stalled]
