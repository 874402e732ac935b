"""Whatever callers and Tier 2 do: no byte is forgotten, none comes twice, the log keeps what is
needed. 91, 104, 106, 114.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.chunk_slices import Slices
from durablelog.operations import AppendOperation
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.metadata import SegmentMetadata
from storagewriter.config import StorageWriterConfig
from storagewriter.pending_segments import PendingSegments
from storagewriter.segment_aggregator import RUN_BYTES, SegmentAggregator
from tests.storagewriter.fake_container import (
    FakeContainer,
    LocalStorage,
    StorageWithoutCompose,
    make_config,
)
from tests.support.suites import examples
from tier2.memory_object_storage import MemoryObjectStorage, Method


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slices, "chunks_max", 2)


ACTIONS = [
    "create", "append", "append", "append", "append", "append", "batch", "seal", "truncate",
    "delete", "merge", "merge",
    "nap", "wait", "flush", "fail", "fail others", "lose reply", "heal", "restart",
]  # fmt: skip

STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2**32)), min_size=20, max_size=120
)


def _named(c: FakeContainer, *, open_only: bool) -> list[int]:
    return [each for each in c.names.values() if not (open_only and c.segment(each).sealed)]


async def _act(
    c: FakeContainer, action: str, rng: random.Random, number: int, config: Any
) -> FakeContainer:
    segments, open_segments = _named(c, open_only=False), _named(c, open_only=True)
    if action == "create" or not segments:
        c.create(f"s{number}")
    elif action == "append" and open_segments:
        c.append(rng.choice(open_segments), rng.choice((0, 1, 9, 30, 99, 150, 450)))
    elif action == "batch" and open_segments:
        segment_id = rng.choice(open_segments)
        offset = c.segment(segment_id).length
        c.put(*(AppendOperation(segment_id, offset + 3 * i, b"abc") for i in range(10)))
    elif action == "seal" and open_segments:
        c.seal(rng.choice(open_segments))
    elif action == "truncate":
        segment = c.segment(rng.choice(segments))
        offset = rng.randint(segment.start_offset, segment.length)
        c.truncate(segment.segment_id, offset, in_slices=rng.random() < 0.5)
    elif action == "delete":
        c.delete(rng.choice(segments), in_slices=rng.random() < 0.5)
    elif action == "merge" and open_segments:
        target = rng.choice(open_segments)
        sources = [each for each in segments if each != target and not c.segment(each).start_offset]
        if sources:
            c.merge(target, rng.choice(sources))
    elif action == "nap":
        await asyncio.sleep(rng.choice((0, 0, 0.0005, 0.001, 0.01)))
    elif action == "wait":
        await asyncio.sleep(rng.choice((1, 5, 11)))
    elif action == "flush":
        c.storage.heal()
        wanted = {each: c.segment(each).length for each in segments}
        await c.writer.flush()
        assert all(c.segment(each).storage_length >= length for each, length in wanted.items())
    elif action in {"fail", "lose reply"}:
        c.storage.fail("put", rng.randint(1, 4), after_effect=action == "lose reply")
    elif action == "fail others":
        methods: tuple[Method, ...] = ("compose", "get_range")
        method = rng.choice(methods)
        c.storage.fail(method, rng.randint(1, 4), after_effect=rng.random() < 0.5)
    elif action == "heal":
        c.storage.heal()
    elif action == "restart":
        await c.writer.stop()
        assert not c.failures, c.failures
        c = c.restart(config)
        c.writer.start()
    return c


@settings(max_examples=examples(150), deadline=None)
@given(
    steps=STEPS,
    seed=st.integers(0, 2**32),
    target=st.sampled_from([200, 100_000]),
    object_bytes=st.sampled_from([100, 400]),
    evicting=st.booleans(),
    storage_type=st.sampled_from([MemoryObjectStorage, LocalStorage]),
)
def test_no_byte_is_lost_or_doubled(
    steps: list[tuple[str, int]],
    seed: int,
    target: int,
    object_bytes: int,
    evicting: bool,
    storage_type: type[MemoryObjectStorage],
) -> None:
    config = make_config(
        unflushed_target_bytes=target, object_bytes=object_bytes, object_segments_max=4
    )
    container = FakeContainer(config, storage_type=storage_type, evicting=evicting)
    run_virtual(_run(container, config, steps, seed))


GROWTH = ["append"] * 30 + ["wait"] * 10
"""So that there is more to consolidate than is deleted."""


@pytest.mark.parametrize("compose_bytes_min", [1, 400, None])
@pytest.mark.parametrize("seed", range(20))
def test_no_byte_is_lost_or_doubled_by_consolidation(
    seed: int, compose_bytes_min: int | None
) -> None:
    rng = random.Random(seed)
    config = make_config(
        flush_bytes=rng.choice([1, 50]),
        unflushed_target_bytes=rng.choice([50, 100_000]),
        object_segments_max=4,
        consolidation_bytes=rng.choice([30, 300, 2000]),
        deletion_lag_s=rng.choice([0.0, 3.0, 1000.0]),
    )
    storage_type = partial(StorageWithoutCompose, compose_bytes_min=compose_bytes_min)
    steps = [(rng.choice(ACTIONS + GROWTH), rng.getrandbits(32)) for _ in range(200)]
    container = FakeContainer(config, storage_type=storage_type, evicting=bool(seed % 2))
    run_virtual(_run(container, config, steps, seed))


async def _run(
    c: FakeContainer, config: StorageWriterConfig, steps: list[tuple[str, int]], seed: int
) -> None:
    c.writer.start()
    for number, (action, draw) in enumerate(steps):
        c = await _act(c, action, random.Random(seed ^ draw), number, config)
        c.check_covered()
        c.check_stored()
    c.storage.heal()
    await c.writer.flush()
    c.check_covered()
    c.check_stored()
    for segment in c.segments.values():
        assert segment.storage_length == segment.length
        assert segment.merged_into is None
        assert not segment.merges
    await asyncio.sleep(40)
    assert not c.metadata.releasing
    c.check_stored()
    assert c.writer.health() is None
    # An upload cut by a restart is garbage without a record; every other object is accounted for.
    assert c.metadata.objects.keys() <= set(c.storage.bucket.objects)
    if all(action != "restart" for action, _ in steps):
        assert (
            set(c.storage.bucket.objects) == c.metadata.objects.keys() | c.metadata.garbage.keys()
        )
    await c.writer.stop()
    assert not c.failures, c.failures


@given(
    appends=st.lists(st.integers(1, RUN_BYTES), min_size=1, max_size=20),
    stops=st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), max_size=5),
)
def test_aggregator_covers_every_byte(appends: list[int], stops: list[tuple[int, float]]) -> None:
    aggregator = SegmentAggregator(1, 0)
    ends: list[int] = []
    flushed = 0
    for number, length in enumerate(appends):
        for at, share in stops:
            if at == number and ends:
                aggregator.close_run()
                flushed = max(flushed, int(ends[-1] * share))
                aggregator.advance(flushed)
        offset = ends[-1] if ends else 0
        assert aggregator.append(offset, length, number, float(number)) == length
        ends.append(offset + length)
        assert aggregator.pending_bytes == ends[-1] - flushed
        oldest = next(number for number, end in enumerate(ends) if end > flushed)
        assert aggregator.first_sequence_number <= oldest
        assert aggregator.first_time == aggregator.first_sequence_number
    assert aggregator.advance(ends[-1]) == ends[-1] - flushed
    assert aggregator.pending_bytes == 0


def test_operations_that_tier_2_has_already_are_passed_over() -> None:
    """105: no storage update follows them, so only the metadata can know."""
    container = FakeContainer(make_config())
    segment = SegmentMetadata(1, "a", 0)
    segment.length, segment.storage_length = 130, 100
    container.metadata.segments[1] = segment
    pending = PendingSegments(container, make_config())
    pending.add([AppendOperation(1, 50, bytes(50), sequence_number=2)], 0.0)
    assert not pending.dirty
    pending.add([AppendOperation(1, 90, bytes(40), sequence_number=3)], 0.0)
    assert (pending.unflushed_bytes, pending.first_sequence_number()) == (30, 3)


def test_what_was_flushed_before_an_old_segment_is_removed_in_steps() -> None:
    """One call may not pass over all of them: they are as many as segments were pending."""
    count = 1000
    container = FakeContainer(make_config())
    pending = PendingSegments(container, make_config())
    for each in range(1, count + 1):
        segment = container.metadata.segments[each] = SegmentMetadata(each, f"{each}", 0)
        segment.length = 10
        pending.add([AppendOperation(each, 0, bytes(10), sequence_number=each)], float(each))
    for each in range(count, 1, -1):
        container.metadata.segments[each].storage_length = 10
        pending.settle(each)
    assert (pending.first_sequence_number(), pending.first_time()) == (1, 1.0)
    assert not pending.correct_first(1)
    container.metadata.segments[1].storage_length = 10
    pending.settle(1)
    assert not pending.dirty
    too_low = pending.first_sequence_number()
    assert too_low is not None
    assert too_low < count // 10
    age = pending.first_time()
    assert age is not None
    assert too_low < age < count // 5
    steps = 1
    while pending.correct_first(100):
        steps += 1
    assert steps > (count - age) // 100
    assert (pending.first_sequence_number(), pending.first_time()) == (None, None)


class TestAggregator:
    def test_what_tier_2_has_is_passed_over_and_what_it_has_in_part_is_cut(self) -> None:
        """105."""
        aggregator = SegmentAggregator(1, 100)
        assert aggregator.append(50, 50, 1, 0.0) == 0
        assert aggregator.append(90, 20, 2, 0.0) == 10
        assert aggregator.pending_bytes == 10

    def test_overlapping_appends_are_our_bug(self) -> None:
        """91."""
        aggregator = SegmentAggregator(1, 0)
        aggregator.append(0, 10, 1, 0.0)
        with pytest.raises(AssertionError):
            aggregator.append(5, 10, 2, 0.0)

    def test_a_flush_in_part_moves_the_first_sequence_number(self) -> None:
        aggregator = SegmentAggregator(1, 0)
        aggregator.append(0, 10, 1, 0.0)
        aggregator.close_run()
        aggregator.append(10, 10, 2, 5.0)
        aggregator.advance(10)
        assert (aggregator.first_sequence_number, aggregator.first_time) == (2, 5.0)
