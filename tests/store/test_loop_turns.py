"""No turn of the event loop does work for each segment of a container: all turns are bounded.

The measure is the number of calls of a turn (tests/support/turn_watch.py), which is the same on any
machine. Nanoseconds per call, measured without the watch for the longest turns: 65 to 230, mostly
some 115.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import segmentstore
from durablelog.operations import StorageUpdateOperation
from recovery.harness.runs.plan import draw_plan
from recovery.harness.runs.scenario import Scenario
from segmentstore import SegmentStore
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import WorldDisk, run, until
from tests.support.suites import size, sized, slow
from tests.support.turn_watch import Kind, TurnWatch, described

CALLS_MAX: Final = 20_000
"""Of one turn: some 2.3 ms."""
MORE_SEGMENTS = size("HARNESS_TURN_SEGMENTS", 2_000, 6_000)
SEGMENTS = MORE_SEGMENTS // 4
CHUNKS: Final = 10_000
"""Of a long segment: to remove them all takes ten times as many calls as a turn may make."""
CONSOLIDATED_SEGMENTS: Final = 1_500
CONSOLIDATED_OBJECTS: Final = 4
CALLS_OF_A_CONSOLIDATION: Final = 9_000
"""Of one turn; to pass over its 6,000 chunks takes two to ten calls each."""
CALLS_OF_A_SHORT_TURN: Final = 8_000
"""Of those that grow with the segments, turns up to here are not counted: some 0.9 ms."""
GROWTH_MAX: Final = 2.0
"""Of a longer turn, with four times as many segments."""
TOGETHER: Final = 50
"""Calls at a time."""
SETTINGS: Final[dict[str, Any]] = {
    "containers": 1,
    "inline_checkpoint_bytes_max": 0,
    "flush_age_s": 1000.0,
    "consolidation": False,
}
FEW_ACTIVE: Final = {"active_segments_max": 100}
CALLBACKS: Final = {
    "GroupCommit._writer_idle": "commit",
    "_Context._run": "commit",
    "FileLog._acknowledge": "commit",
    "OperationProcessor._frames_done": "commit",
    "OperationProcessor._pump": "packing",
}
"""It depends on the log's thread which of these commits."""

EXEMPT: Final[dict[Kind, str]] = {
    ("flush", "commit"): "operations of 128 chunks each, as many as there are uploads",
}
"""Kinds of turns that sometimes exceed a bound, and do not grow with the segments."""


async def together(call: Callable[[str], Awaitable[object]], names: Sequence[str]) -> None:
    for first in range(0, len(names), TOGETHER):
        await asyncio.gather(*map(call, names[first : first + TOGETHER]))


async def change(store: SegmentStore, names: Sequence[str]) -> None:
    await together(lambda name: store.append(name, b"some bytes"), names)
    await store.flush()
    await store.checkpoint()


async def work(watch: TurnWatch, folder: Path, segments: int) -> None:
    """Everything that passes over segments, each in a phase."""
    runtime, rng = Runtime(disk=WorldDisk()), random.Random(segments)
    watch.phase = "create"
    store = await segmentstore.open(str(folder), runtime=runtime, **SETTINGS)
    names = [f"s{number}" for number in range(segments)]
    await together(store.create_segment, names)
    watch.phase = "append"
    await together(lambda name: store.append(name, b"some bytes"), names)
    watch.phase = "flush"
    await store.flush()
    watch.phase = "checkpoint"
    await store.checkpoint()
    watch.phase = "list"
    assert len([each async for each in store.list_segments()]) == segments
    watch.phase = "change few"
    for _ in range(2):
        await change(store, rng.sample(names, 100))
    watch.phase = "export"
    await store.export_catalog()
    watch.phase = "close"
    await store.close()
    watch.phase = "open, all active"
    await (await segmentstore.open(str(folder), runtime=runtime, **SETTINGS)).close()
    watch.phase = "open, few active"
    few: dict[str, Any] = {**SETTINGS, **FEW_ACTIVE}
    store = await segmentstore.open(str(folder), runtime=runtime, **few)
    watch.phase = "activate"
    await together(store.get_info, rng.sample(names, 300))
    for _ in range(2):
        await change(store, rng.sample(names, 200))
    watch.phase = "list idle"
    assert len([each async for each in store.list_segments()]) == segments
    watch.phase = "close, few active"
    await store.close()
    shutil.rmtree(folder / "catalog")
    watch.phase = "open, catalog lost"
    store = await segmentstore.open(str(folder), runtime=runtime, **few)
    watch.phase = "delete"
    await together(store.delete, names)
    watch.phase = "checkpoint of deletions"
    await store.flush()
    await store.checkpoint()
    await store.close()


def watched(folder: Path, segments: int) -> TurnWatch:
    with TurnWatch(CALLBACKS) as watch:
        run(work(watch, folder, segments), limit_s=240)
    return watch


@sized(25)
def test_no_turn_grows_with_the_segments_or_is_long(tmp_path: Path) -> None:
    some = watched(tmp_path / "some", SEGMENTS)
    more = watched(tmp_path / "more", MORE_SEGMENTS)
    found = {**some.over(CALLS_MAX), **more.over(CALLS_MAX)}
    for kind, turn in more.over(CALLS_OF_A_SHORT_TURN).items():
        before = some.longest.get(kind)
        if before is not None and turn.calls > GROWTH_MAX * before.calls:
            found[kind] = turn
    new = [described(kind, turn) for kind, turn in found.items() if kind not in EXEMPT]
    assert new == []


async def work_on_consolidation(watch: TurnWatch, folder: Path) -> None:
    """Objects that have a chunk of each segment, most of them idle, are consolidated."""
    runtime = Runtime(disk=WorldDisk())
    watch.phase = "append"
    store = await segmentstore.open(str(folder), runtime=runtime, **SETTINGS)
    names = [f"s{number}" for number in range(CONSOLIDATED_SEGMENTS)]
    await together(store.create_segment, names)
    for _ in range(CONSOLIDATED_OBJECTS):
        await together(lambda name: store.append(name, b"some bytes"), names)
        await store.flush()
    await store.checkpoint()
    await store.close()
    settings: dict[str, Any] = {
        **SETTINGS,
        "active_segments_max": 500,
        "consolidation": True,
        "consolidation_bytes": CONSOLIDATED_OBJECTS * CONSOLIDATED_SEGMENTS * len(b"some bytes"),
    }
    watch.phase = "consolidate"
    store = await segmentstore.open(str(folder), runtime=runtime, **settings)
    (container,) = store._containers
    writer = container._writer
    assert writer is not None
    await until(lambda: writer.statistics().consolidations == 1)
    assert container.metadata.idle
    assert writer.statistics().consolidated_objects == CONSOLIDATED_OBJECTS
    watch.phase = "close"
    await store.close()


@slow(3)
def test_no_turn_of_a_consolidation_passes_over_all_its_chunks(tmp_path: Path) -> None:
    with TurnWatch(CALLBACKS) as watch:
        run(work_on_consolidation(watch, tmp_path / "store"), limit_s=120)
    found = watch.over(CALLS_OF_A_CONSOLIDATION)
    assert [described(kind, turn) for kind, turn in found.items() if kind[0] != "append"] == []


async def with_chunks(store: SegmentStore, name: str) -> None:
    """A segment of CHUNKS chunks of one byte, as uploads of 128 report them."""
    await store.create_segment(name)
    await store.append(name, bytes(CHUNKS))
    (container,) = store._containers
    segment_id = container.segment_ids[name]
    record = ObjectRecord(f"00/00000000/0000000000000001/{name}", CHUNKS, 0)
    for first in range(0, CHUNKS, 128):
        chunks = [
            (segment_id, ChunkRecord(at, 1, record.name, at, segment_id, at))
            for at in range(first, min(first + 128, CHUNKS))
        ]
        assert container._writer is not None
        await container._writer._source.commit(StorageUpdateOperation((record,), chunks))


async def released(store: SegmentStore) -> None:
    await until(lambda: not store._containers[0].metadata.releasing)


async def work_on_long_segments(watch: TurnWatch, folder: Path) -> None:
    """Whatever removes very many chunks, live and in replay, of what is known and in part."""
    runtime = Runtime(disk=WorldDisk())
    settings = {**SETTINGS, "active_metadata_bytes_max": 1_000_000, "checkpoint_bytes": 1 << 30}
    watch.phase = "make"
    store = await segmentstore.open(str(folder), runtime=runtime, **settings)
    for name in ("deleted", "truncated", "known"):
        await with_chunks(store, name)
    watch.phase = "delete what is known"
    await store.delete("known")
    await released(store)
    watch.phase = "checkpoint"
    await store.checkpoint()
    await store.close()
    store = await segmentstore.open(str(folder), runtime=runtime, **settings)
    for name in ("deleted", "truncated"):
        await store.get_info(name)
    assert len(store._containers[0].metadata.partial) == 2
    watch.phase = "truncate"
    await store.truncate("truncated", CHUNKS - 5)
    await released(store)
    watch.phase = "delete"
    await store.delete("deleted")
    await released(store)
    watch.phase = "close"
    await store.close()
    watch.phase = "open"
    store = await segmentstore.open(str(folder), runtime=runtime, **settings)
    assert (await store.get_info("truncated")).start_offset == CHUNKS - 5
    assert len(store._containers[0].metadata.objects) == 1
    await store.close()


@slow(2)
def test_no_turn_removes_very_many_chunks(tmp_path: Path) -> None:
    with TurnWatch(CALLBACKS) as watch:
        run(work_on_long_segments(watch, tmp_path / "store"))
    found = {kind: turn for kind, turn in watch.over(CALLS_MAX).items() if kind[0] != "make"}
    assert [described(kind, turn) for kind, turn in found.items()] == []


def test_turns_of_a_simulated_run_are_short() -> None:
    """Threads of the simulated world run within turns: their calls are counted, too.

    The harness checks the files of a stopped store in one turn: that is none of the engine's.
    """
    with TurnWatch() as watch:
        result = Scenario(draw_plan("turns/0", "everything")).run()
    assert result.violations == []
    assert sum(turn.turns for turn in watch.longest.values()) > 1000
    found = {kind: turn for kind, turn in watch.over(CALLS_MAX).items() if kind[1] != "_check"}
    assert [described(kind, turn) for kind, turn in found.items()] == []
