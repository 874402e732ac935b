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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from recovery.harness.enumeration.instants import Camera, CopiedBucket, Recording
from recovery.harness.history import History, ProcessRun, Update
from recovery.harness.recorder import RecordedStore
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.store_world import StoreWorld
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


STAGES: Final[Mapping[str, StartingStage]] = {
    "new": StartingStage("object", prepared=False),
    "object": StartingStage("object"),
    "files": StartingStage("file"),
    "spare": StartingStage("object", warm=("roll", "flush", "roll", "flush", "checkpoint")),
    "snapshots": StartingStage("object", settings={"inline_checkpoint_bytes_max": 0}),
}
"""Nothing; objects in an object storage; objects as files; a log that keeps truncated files for use
again; and checkpoints that name snapshots of the metadata.
"""


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
        if stage not in STAGES or any(operation not in OPERATIONS for operation in operations):
            raise ValueError(f"no such workload: {name}")
        return cls(stage, operations, together)


PAIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "files": ("batch", "merge", "delete", "flush", "checkpoint"),
    "snapshots": ("append", "merge", "delete", "flush", "checkpoint"),
}
"""Those whose pairs are tried where objects are files, and where checkpoints name snapshots: the
rest does nothing else to Tier 2, or to the metadata.
"""


def workloads(depth: int, operations: tuple[str, ...]) -> Iterator[EnumeratedWorkload]:
    """All up to `depth` operations on the stage "object"; up to two on the others; pairs that are
    asked for together.

    Those that differ in the last operation alone stand together.
    """
    yield EnumeratedWorkload("new", ())
    for stage in ("object", "files", "spare", "snapshots"):
        for count in range((depth if stage == "object" else min(depth, 2)) + 1):
            among = operations
            if stage in PAIRED and count > 1:
                among = tuple(operation for operation in operations if operation in PAIRED[stage])
            for chosen in itertools.product(among, repeat=count):
                yield EnumeratedWorkload(stage, chosen)
    if depth > 1:
        for chosen in itertools.product(operations, repeat=2):
            yield EnumeratedWorkload("object", chosen, together=True)


@dataclass(frozen=True, slots=True)
class Base:
    """What is outside before a workload, and how it came about.

    Workloads share it and leave it as it is.
    """

    image: DiskImage
    bucket: CopiedBucket
    now_us: int
    history: History


def record(workload: EnumeratedWorkload, base: Base, *, keep_trace: bool = False) -> Recording:
    """Run a workload once, on its prepared stage. Some 10 ms."""
    stage = workload.stage
    image, bucket = base.image.copy(), base.bucket.twin()
    world = make_world(f"short/{stage}", stage, image, bucket, base.now_us, keep_trace=keep_trace)
    history = History(
        list(base.history.calls), list(base.history.process_runs), [], [], base.history.stamp
    )
    camera = Camera(world, history)
    process = world.process("owner")
    world.run_task(process, _live(world, process, workload, history, camera))
    camera.take(process, "")
    world.close()
    return Recording(stage, history, camera.instants, world.trace.lines)


def prepare(stage: str) -> Base:
    """What workloads of a stage begin with: segments whose bytes lie in Tier 2, in the log, and in
    both; closed.
    """
    history, bucket = History(), CopiedBucket()
    if not STAGES[stage].prepared:
        return Base(DiskImage(), bucket, 0, history)
    world = make_world(f"short/{stage}", stage, DiskImage(), bucket, 0)
    process = world.process("maker")
    world.run_task(process, _prepare(world, process, history))
    world.kill(process)
    bucket.settle_all()
    return Base(world.image, bucket, world.time.now_us, history)


def make_world(
    seed: str, stage: str, image: DiskImage, bucket: CopiedBucket, now_us: int, **options: Any
) -> StoreWorld:
    """A calm world of a stage, that goes on from what is given."""
    start = STAGES[stage]
    settings = {**SETTINGS, **start.settings}
    world = StoreWorld(seed, settings=settings, tier2=start.tier2, **options)
    world.image, world.bucket, world.time.now_us = image, bucket, now_us
    return world


async def _live(
    world: StoreWorld,
    process: SimulatedProcess,
    workload: EnumeratedWorkload,
    history: History,
    camera: Camera,
) -> None:
    process_run = ProcessRun(len(history.process_runs), process.name, history.next_stamp())
    history.process_runs.append(process_run)
    if not workload.operations:
        camera.watch(process)
    store = await world.open_store(process)
    process_run.opened = history.next_stamp()
    actor = Actor(RecordedStore(store, history, process_run.number, "short"))
    for operation in STAGES[workload.stage].warm:
        await OPERATIONS[operation](actor)
    await asyncio.sleep(_SETTLED_S)
    if workload.together:
        camera.watch(process)
        await asyncio.gather(*(_try(operation, actor) for operation in workload.operations))
    else:
        for place, operation in enumerate(workload.operations):
            if place == len(workload.operations) - 1:
                camera.watch(process)
            await _try(operation, actor)
    await asyncio.sleep(IDLE_S)


async def _try(operation: str, actor: Actor) -> None:
    try:
        await OPERATIONS[operation](actor)
    except SegmentError:
        pass  # refused, and written down as such


async def _prepare(world: StoreWorld, process: SimulatedProcess, history: History) -> None:
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
    await store.close()
    process_run.ended = history.next_stamp()
    process_run.ending = "closed"
