"""Short workloads: one to three operations on a small store, each run once in a calm world, every
instant kept.

Rules of this file:

- no faults, and chance only for latencies and names: the same workload gives the same instants for
  ever, and workloads that begin alike go alike until they part;
- only instants of the last operation, and of the idle time behind it, are kept: the others belong
  to shorter workloads;
- an operation that the store refuses (what is sealed, what is missing) is part of a workload like
  any other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from recovery.harness.enumeration.instants import (
    Camera,
    CopiedBucket,
    Outside,
    Recording,
    SegmentMoves,
    moves_of,
)
from recovery.harness.history import History, ProcessRun, Update
from recovery.harness.recorder import RecordedStore, RecordedWriter
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.store_world import ARCHIVE, StoreWorld
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore.contracts.errors import SegmentError

SETTINGS: Final[Mapping[str, Any]] = {
    "containers": 1,
    "frame_bytes_max": 400,
    "log_file_bytes": 8 * 1024 + 400,
    "flush_bytes": 20_000,
    "flush_age_s": 1.0,
    "object_bytes": 20_000,
    "upload_bytes_max": 40_000,
    "extent_bytes": 256,
    "deletion_lag_s": 0.5,
    "piece_bytes": 8192,
    "fetched_bytes_max": 65_536,
    "cache_bytes_max": 1 << 20,
    "append_bytes_max": 16_384,
    "queue_bytes_max": 1 << 20,
}
"""A frame is less than a batch, a log file less than two large appends; nothing is flushed but when
asked, or by age.
"""

TARGET: Final = "target"
SPENT: Final = "spent"
SOURCES: Final = ("source-0", "source-1", "source-2")
OTHERS: Final = ("other-0", "other-1", "other-2", "other-3")
"""As many as may be in memory: all the rest leaves when they are used."""
WRITER: Final = 1
COUNTER: Final = UUID(int=0xC0)
LATEST: Final = UUID(int=0x1A)

SMALL: Final = 30
LARGE: Final = 4300
"""Filler bytes of a record that needs the next log file."""
_SETTLED_S: Final = 0.2
IDLE_S: Final = 4.0
"""Longer than what is un-flushed or to be deleted may wait."""


class Actor:
    """The one client of a short workload. Knows how often each operation was asked for before."""

    def __init__(self, recorded: RecordedStore) -> None:
        self.recorded = recorded
        self._asked: dict[str, int] = {}
        self._session: RecordedWriter | None = None

    async def session(self) -> RecordedWriter:
        """An exactly-once session that stays open, whatever becomes of its segment."""
        if self._session is None:
            self._session = await self.recorded.writer(TARGET, WRITER)
        return self._session

    def next(self, what: str) -> int:
        """0, 1, 2, ... for the same words."""
        number = self._asked.get(what, 0)
        self._asked[what] = number + 1
        return number


async def _append(actor: Actor) -> None:
    await actor.recorded.append(TARGET, (SMALL,))


async def _batch(actor: Actor) -> None:
    update = Update(COUNTER, "ACCUMULATE", 3)
    await actor.recorded.append(TARGET, (200, 7, 300), updates=(update,))


async def _event(actor: Actor) -> None:
    writer = await actor.recorded.writer(TARGET, WRITER)
    await writer.append(writer.last_event_number + 1, SMALL)


async def _update(actor: Actor) -> None:
    number = actor.next("update")
    updates = (Update(COUNTER, "ACCUMULATE", 1), Update(LATEST, "REPLACE", number))
    await actor.recorded.update_attributes(TARGET, updates)


async def _truncate(actor: Actor) -> None:
    info = await actor.recorded.store.get_info(TARGET)
    await actor.recorded.truncate(TARGET, (info.start_offset + info.length) // 2)


async def _seal(actor: Actor) -> None:
    await actor.recorded.seal(TARGET)


async def _merge(actor: Actor) -> None:
    await actor.recorded.merge(TARGET, SOURCES[actor.next("merge")])


async def _delete(actor: Actor) -> None:
    if actor.next("delete") % 2:
        await actor.recorded.create(SPENT)
    else:
        await actor.recorded.delete(SPENT)


async def _flush(actor: Actor) -> None:
    await actor.recorded.flush()


async def _checkpoint(actor: Actor) -> None:
    await actor.recorded.checkpoint()


async def _roll(actor: Actor) -> None:
    await actor.recorded.append(TARGET, (LARGE,))


async def _load(actor: Actor) -> None:
    await actor.recorded.read(TARGET, 0, SMALL)


async def _claim(actor: Actor) -> None:
    await actor.recorded.create(TARGET)


async def _visit(actor: Actor) -> None:
    for name in OTHERS:
        await actor.recorded.store.get_info(name)


async def _leave(actor: Actor) -> None:
    # What only the log has, and what the catalog has not, keeps segments in memory.
    await actor.recorded.flush()
    await actor.recorded.checkpoint()
    await _visit(actor)


async def _crowd(actor: Actor) -> None:
    await _all_answered(
        actor.recorded.append(name, (SMALL,)) for name in (TARGET, *SOURCES, *OTHERS)
    )


async def _stream(actor: Actor) -> None:
    session = await actor.session()
    first = session.last_event_number + 1
    await _all_answered(session.append(first + place, SMALL) for place in range(3))


async def _all_answered(asked: Iterable[Awaitable[object]]) -> None:
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def _offload(actor: Actor) -> None:
    await actor.recorded.store.offload_prefix()


OPERATIONS: Final[Mapping[str, Callable[[Actor], Awaitable[None]]]] = {
    "append": _append,
    "batch": _batch,
    "event": _event,
    "update": _update,
    "truncate": _truncate,
    "seal": _seal,
    "merge": _merge,
    "delete": _delete,
    "flush": _flush,
    "checkpoint": _checkpoint,
    "roll": _roll,
}
"""One append; a batch larger than a frame, with an attribute; an exactly-once event; attributes;
truncation by half; a seal; a merge. Then a deletion (each second time: the name is created again);
a flush; a checkpoint; an append that needs the next log file.
"""
IDLE_OPERATIONS: Final[Mapping[str, Callable[[Actor], Awaitable[None]]]] = {
    "load": _load,
    "claim": _claim,
    "visit": _visit,
    "leave": _leave,
    "crowd": _crowd,
    "stream": _stream,
}
"""Where segments are idle: a read; a creation that is refused, for the name is taken; the use of
the other segments, for which those in memory leave. Then a flush, a checkpoint, and the same: what
changed leaves, too. Appends at once to more segments than may be in memory; and events at once of a
session that stays open while its segment leaves.
"""
ARCHIVE_OPERATIONS: Final[Mapping[str, Callable[[Actor], Awaitable[None]]]] = {
    "offload": _offload,
}
"""Where the log is archived: a wait until all sealed parts are."""


@dataclass(frozen=True, slots=True)
class StartingStage:
    """What a workload begins with."""

    tier2: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Beside SETTINGS."""
    prepared: bool = True
    """Segments with content in both tiers are there; else not even a store is."""
    warm: tuple[str, ...] = ()
    """Operations this very opening has done before."""
    own: Mapping[str, Callable[[Actor], Awaitable[None]]] = field(default_factory=dict)
    """Operations beside OPERATIONS."""
    others: tuple[str, ...] = ()
    """Further segments. All are flushed then, and in a checkpoint."""
    kernel_syncs: bool = False
    """The loop writes small groups of the log, and the kernel syncs them."""


STAGES: Final[Mapping[str, StartingStage]] = {
    "new": StartingStage("object", prepared=False),
    "object": StartingStage("object"),
    "files": StartingStage("file"),
    "spare": StartingStage("object", warm=("roll", "flush", "roll", "flush", "checkpoint")),
    "snapshots": StartingStage("object", settings={"inline_checkpoint_bytes_max": 0}),
    "idle": StartingStage(
        "object",
        settings={"inline_checkpoint_bytes_max": 0, "active_segments_max": len(OTHERS)},
        # Memory is full: whatever comes into it needs another one to leave.
        warm=("visit",),
        own=IDLE_OPERATIONS,
        others=OTHERS,
    ),
    "archive": StartingStage(
        "object",
        settings={"archive": ARCHIVE, "archive_deletion_lag_s": 0.5, "offload_after_s": 1000.0},
        warm=("roll", "flush", "checkpoint", "roll"),
        own=ARCHIVE_OPERATIONS,
    ),
    "expiry": StartingStage(
        "object",
        settings={
            "archive": ARCHIVE,
            "archive_deletion_lag_s": 0.0,
            "offload_above_bytes": 10_000,
            "archive_retention_bytes": 11_000,
        },
        warm=("roll", "roll", "flush", "checkpoint"),
        own=ARCHIVE_OPERATIONS,
    ),
    "kernel": StartingStage("object", kernel_syncs=True),
}
"""Nothing; objects in an object storage; objects as files; a log that keeps truncated files for use
again; and checkpoints that name snapshots of the metadata. Then idle segments: the catalog alone
has all but four. To these no operation but `crowd` writes. And logs that are archived: when asked,
with hot copies that are retained for a while; or by themselves, with parts that expire. At last a
log that the kernel syncs.
"""


def operations_of(stage: str) -> Mapping[str, Callable[[Actor], Awaitable[None]]]:
    """The operations that are tried on a stage, by name."""
    return {**OPERATIONS, **STAGES[stage].own}


@dataclass(frozen=True, slots=True)
class EnumeratedWorkload:
    """Operations on a stage, one after another; or all asked for at once.

    Without any it is the opening itself.
    """

    stage: str
    operations: tuple[str, ...]
    together: bool = False

    def __str__(self) -> str:
        return f"{self.stage}/{('+' if self.together else ',').join(self.operations)}"

    @classmethod
    def parse(cls, name: str) -> EnumeratedWorkload:
        """The workload of this name. Raises ValueError if there is none."""
        stage, _, text = name.partition("/")
        together = "+" in text
        operations = tuple(text.split("+" if together else ",")) if text else ()
        if stage not in STAGES or any(each not in operations_of(stage) for each in operations):
            raise ValueError(f"no such workload: {name}")
        return cls(stage, operations, together)


PAIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "files": ("batch", "merge", "delete", "flush", "checkpoint"),
    "snapshots": ("append", "merge", "delete", "flush", "checkpoint"),
    "archive": ("append", "flush", "checkpoint", "roll", "offload"),
    "expiry": ("flush", "checkpoint", "roll", "offload"),
    "kernel": ("append", "batch", "checkpoint", "roll"),
}
"""Those whose pairs are tried where objects are files, where checkpoints name snapshots, where logs
are archived, and where the kernel syncs. The rest does nothing else to Tier 2, to the metadata, to
parts of the log, or to its groups.
"""
CHAINS: Final[Sequence[Sequence[tuple[str, ...]]]] = (
    (
        ("append", "batch", "event", "update", "truncate", "seal", "merge", "delete", "crowd"),
        ("leave",),
    ),
    (("delete",), ("append", "merge", "delete")),
    (("append", "delete"), ("checkpoint", "crowd")),
    (("append", "merge", "delete", "crowd"), ("leave",), ("append", "merge", "delete")),
    (("stream",), ("leave",), ("stream",)),
)
"""What is tried in sequence where segments are idle, one of each place: what changed leaves memory
again. A deletion that the catalog does not have yet, and what follows it; a creation of the name
too. Checkpoints and a lack of room while one has changes that only the log has. And what has left
again is used.
"""


def workloads(
    depth: int, operations: Collection[str] | None = None
) -> Iterator[EnumeratedWorkload]:
    """All up to `depth` operations on the stage "object"; up to two on the others; pairs that are
    asked for together, there and where the kernel syncs; CHAINS. Of `operations` alone, if they are
    given.

    Those that differ in the last operation alone stand together.
    """
    yield EnumeratedWorkload("new", ())
    for stage in ("object", "files", "spare", "snapshots"):
        yield from _of_stage(stage, depth if stage == "object" else min(depth, 2), operations)
    if depth > 1:
        yield from _together("object", operations)
    yield from _of_stage("idle", min(depth, 1), operations)
    for chain in CHAINS:
        if len(chain) <= depth:
            for chosen in itertools.product(*chain):
                if operations is None or set(chosen) <= set(operations):
                    yield EnumeratedWorkload("idle", chosen)
    for stage in ("archive", "expiry", "kernel"):
        yield from _of_stage(stage, min(depth, 2), operations)
    if depth > 1:
        yield from _together("kernel", operations)


def _together(stage: str, operations: Collection[str] | None) -> Iterator[EnumeratedWorkload]:
    for chosen in itertools.product(_asked(stage, 2, operations), repeat=2):
        yield EnumeratedWorkload(stage, chosen, together=True)


def _of_stage(
    stage: str, depth: int, operations: Collection[str] | None
) -> Iterator[EnumeratedWorkload]:
    for count in range(depth + 1):
        for chosen in itertools.product(_asked(stage, count, operations), repeat=count):
            yield EnumeratedWorkload(stage, chosen)


def _asked(stage: str, count: int, operations: Collection[str] | None) -> list[str]:
    """The operations of which a workload of so many on a stage may consist."""
    among = PAIRED[stage] if stage in PAIRED and count > 1 else operations_of(stage)
    return [each for each in among if operations is None or each in operations]


@dataclass(frozen=True, slots=True)
class Base:
    """What is outside before a workload, and how it came about.

    Workloads share it and leave it as it is.
    """

    outside: Outside
    now_us: int
    history: History


def record(workload: EnumeratedWorkload, base: Base, *, keep_trace: bool = False) -> Recording:
    """Run a workload once, on its prepared stage. Some 10 ms."""
    stage = workload.stage
    outside = base.outside.copy()
    world = make_world(f"short/{stage}", stage, outside, base.now_us, keep_trace=keep_trace)
    history = History(
        list(base.history.calls), list(base.history.process_runs), [], [], base.history.stamp
    )
    camera = Camera(world, history)
    process = world.process("owner")
    moves = world.run_task(process, _live(world, process, workload, history, camera))
    camera.take(process, "")
    world.close()
    return Recording(stage, history, camera.instants, world.trace.lines, moves)


def prepare(stage: str) -> Base:
    """What workloads of a stage begin with: segments whose bytes lie in Tier 2, in the log, and in
    both, or all in Tier 2 and the catalog; closed.
    """
    history, outside = History(), Outside(DiskImage(), CopiedBucket(), CopiedBucket())
    if not STAGES[stage].prepared:
        return Base(outside, 0, history)
    world = make_world(f"short/{stage}", stage, outside, 0)
    process = world.process("maker")
    world.run_task(process, _prepare(world, process, history, STAGES[stage].others))
    world.kill(process)
    outside.settle_all()
    return Base(outside, world.time.now_us, history)


def make_world(seed: str, stage: str, outside: Outside, now_us: int, **options: Any) -> StoreWorld:
    """A calm world of a stage, that goes on from what is given."""
    start = STAGES[stage]
    settings = {**SETTINGS, **start.settings}
    world = StoreWorld(
        seed, settings=settings, tier2=start.tier2, kernel_syncs=start.kernel_syncs, **options
    )
    world.image, world.bucket, world.archive = outside.image, outside.bucket, outside.archive
    world.time.now_us = now_us
    return world


async def _live(
    world: StoreWorld,
    process: SimulatedProcess,
    workload: EnumeratedWorkload,
    history: History,
    camera: Camera,
) -> SegmentMoves:
    """Returns what moved while the camera watched."""
    process_run = ProcessRun(len(history.process_runs), process.name, history.next_stamp())
    history.process_runs.append(process_run)
    if not workload.operations:
        camera.watch(process)
    store = await world.open_store(process)
    process_run.opened = history.next_stamp()
    actor = Actor(RecordedStore(store, history, process_run.number, "short"))
    before = SegmentMoves()
    for operation in STAGES[workload.stage].warm:
        await operations_of(workload.stage)[operation](actor)
    await asyncio.sleep(_SETTLED_S)
    if workload.together:
        before = moves_of(store)
        camera.watch(process)
        asked = (operations_of(workload.stage)[each] for each in workload.operations)
        await asyncio.gather(*(_try(operation, actor) for operation in asked))
    else:
        for place, operation in enumerate(workload.operations):
            if place == len(workload.operations) - 1:
                before = moves_of(store)
                camera.watch(process)
            await _try(operations_of(workload.stage)[operation], actor)
    await asyncio.sleep(IDLE_S)
    return moves_of(store).since(before)


async def _try(operation: Callable[[Actor], Awaitable[None]], actor: Actor) -> None:
    try:
        await operation(actor)
    except SegmentError:
        pass  # refused, and written down as such


async def _prepare(
    world: StoreWorld, process: SimulatedProcess, history: History, others: tuple[str, ...]
) -> None:
    process_run = ProcessRun(0, process.name, history.next_stamp())
    history.process_runs.append(process_run)
    store = await world.open_store(process)
    process_run.opened = history.next_stamp()
    recorded = RecordedStore(store, history, 0, "maker")
    for name in (TARGET, SPENT, *SOURCES):
        await recorded.create(name, (Update(COUNTER, "REPLACE", 1),))
    await recorded.append(SPENT, (SMALL,))
    await recorded.flush(SPENT)
    for name in (TARGET, TARGET, *SOURCES[:2]):
        await recorded.append(name, (SMALL,))
    await recorded.flush()
    for name in (TARGET, *SOURCES[1:]):
        await recorded.append(name, (SMALL,))
    if others:
        for name in others:
            await recorded.create(name)
            await recorded.append(name, (SMALL,))
        await recorded.flush()
        await recorded.checkpoint()
        # The log begins with that checkpoint once its snapshot is in Tier 2.
        await asyncio.sleep(IDLE_S)
    await store.close()
    process_run.ended = history.next_stamp()
    process_run.ending = "closed"
