"""Any requests, with all metadata in memory and with few: frames and results are the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.operations import (
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    SealOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from durablelog.pending_segment import EventSession
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET, UpdateType
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tests.durablelog.partial_bench import KEYS, PartialBench, replace
from tests.durablelog.test_frame_packer import Bench
from tests.support.suites import examples


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(0, 150)),
        st.tuples(st.just("event"), st.integers(0, 2), st.integers(0, 40)),
        st.tuples(st.just("update"), st.integers(0, 2), st.integers(0, 40)),
        st.tuples(st.just("attributes"), st.integers(0, 2), st.integers(0, 40)),
        st.tuples(st.just("create"), st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("store"), st.integers(0, 2), st.integers(1, 9)),
        st.tuples(st.just("seal"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 2), st.integers(0, 100)),
        st.tuples(st.just("merge"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("delete"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("run"), st.just(0), st.integers(1, 4)),
    ),
    max_size=60,
)

BEGINNING = [
    (action, which, number)
    for action, number in (
        ("create", 3),
        ("run", 1),
        ("append", 70),
        ("run", 1),
        ("store", 5),
        ("run", 1),
    )
    for which in range(3)
]


@settings(max_examples=examples(150), deadline=None)
@given(actions, st.integers(60, 300))
def test_stalls_change_neither_frames_nor_results(
    steps: list[tuple[str, int, int]], payload_bytes_max: int
) -> None:
    with asyncio.Runner() as runner:
        benches = [kind(runner.get_loop(), payload_bytes_max) for kind in (Bench, PartialBench)]
        outcomes, frames = [], []
        for bench in benches:
            results: list[asyncio.Future[Any]] = []
            for action, which, number in [*BEGINNING, *steps, ("run", 0, 1)]:
                _act(bench, results, action, f"segment-{which}", number)
            outcomes.append([_outcome(future) for future in results])
            frames.append([b"".join(frame.payload) for frame in bench.frames])
        assert outcomes[0] == outcomes[1]
        assert frames[0] == frames[1]
        replayed, _ = benches[1].replayed()
        assert encode_checkpoint(replayed) == encode_checkpoint(benches[0].metadata)


def _outcome(future: asyncio.Future[Any]) -> object:
    error = future.exception()
    return future.result() if error is None else (type(error), str(error))


def _act(
    bench: Bench, results: list[asyncio.Future[Any]], action: str, name: str, number: int
) -> None:
    segment_id = bench.metadata.names.get(name, 0)
    key = number % len(KEYS)
    if action == "run":
        bench.run(frames_max=number)
        if isinstance(bench, PartialBench):
            bench.forget()
    elif action == "append":
        results.append(bench.append(segment_id, bytes(number)))
    elif action == "event":
        results.append(
            bench.append(segment_id, bytes(number), event=(KEYS[key], number // 5, EventSession()))
        )
    elif action == "update":
        updates = [(KEYS[key], UpdateType.ACCUMULATE, 1, None)]
        results.append(bench.append(segment_id, bytes(number), updates=updates))
    elif action == "attributes":
        value = ATTRIBUTE_UNSET if number % 3 == 0 else number
        updated = UpdateAttributesOperation(segment_id, updates=replace((key, value)))
        results.append(bench.submit(updated))
    elif action == "create":
        values = [(each, each) for each in range(number)]
        results.append(bench.submit(CreateOperation(name, updates=replace(*values))))
    elif action == "store":
        segment = bench.metadata.segments.get(segment_id)
        if segment is None or segment.merges:
            return
        record = ObjectRecord(f"o{bench.time_ms}-{len(results)}", 1000, 1)
        starts = range(segment.storage_length, segment.length, number)
        found = [
            (
                segment_id,
                ChunkRecord(at, min(number, segment.length - at), record.name, 0, segment_id, at),
            )
            for at in starts
        ]
        results.append(bench.submit(StorageUpdateOperation([record], found)))
        bench.run()
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
