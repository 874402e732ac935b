"""Instants: what is outside of a process just before each of its effects, and the states a crash
there can leave.

Rules of this file:

- an instant lies before an effect, or at the end: between two effects nothing outside changes but
  what is on its way;
- a killed process leaves the disk as it is seen, with what was not synced still pending, and a
  power cut leaves one of the image's outcomes. Each comes with every outcome of the changes that
  were on their way to the object storage;
- states that a recovery cannot distinguish have equal keys.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from recovery.harness.history import Call, CallOutcome, History, ProcessRun
from recovery.harness.simulation.disk_image import DiskImage
from recovery.harness.simulation.object_storage import SimulatedBucket
from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.world import SimulatedProcess
from segmentstore.service import SegmentStore

RECOVERED_AT_US: Final = 3_600_000_000
"""Every recovery begins an hour after the world did, whenever the crash was: equal states, equal
recoveries.
"""
_EFFECT_US: Final = 4000
"""What lands during a recovery does so one after another, so far apart: the first openings take
that long.
"""


class CopiedBucket(SimulatedBucket):
    """A bucket that can be had with each outcome of what is on its way."""

    def twin(self) -> CopiedBucket:
        """As it is now, with the same changes on their way."""
        made = self._empty()
        for _, _, change in sorted(self._ahead, key=lambda item: item[:2]):
            made.send(dataclasses.replace(change))
        return made

    def outcomes(self) -> list[CopiedBucket]:
        """None of the changes on their way lands; each subset of them; or all land during the
        recovery.
        """
        count = len(self._ahead)
        chosen = itertools.chain.from_iterable(
            itertools.combinations(range(count), n) for n in range(count + 1)
        )
        made = [self._with_effects(places) for places in chosen]
        if count:
            made.append(self._with_effects((), late=range(count)))
        return made

    def key(self) -> str:
        """Equal for buckets of which a recovery sees the same."""
        ahead = [
            f"{change.name} {change.data is None}"
            for _, _, change in sorted(self._ahead, key=lambda x: x[:2])
        ]
        return " ".join([self.fingerprint(), *ahead])

    def _empty(self) -> CopiedBucket:
        made = CopiedBucket(wrong_bodies=self.wrong_bodies)
        made.objects = dict(self.objects)
        return made

    def _with_effects(self, places: Sequence[int], late: Sequence[int] = ()) -> CopiedBucket:
        changes = [change for _, _, change in sorted(self._ahead, key=lambda item: item[:2])]
        made = self._empty()
        for place in places:
            made.send(dataclasses.replace(changes[place], owner=None))
        made.settle_all()
        for place in late:
            due_us = RECOVERED_AT_US + _EFFECT_US * (place + 1)
            made.send(dataclasses.replace(changes[place], owner=None, due_us=due_us))
        return made


@dataclass(slots=True)
class Outside:
    """What outlives a process: the disk, Tier 2, and the archive of the logs."""

    image: DiskImage
    bucket: CopiedBucket
    archive: CopiedBucket

    def copy(self) -> Outside:
        """As it is now, with the same changes on their way."""
        return Outside(self.image.copy(), self.bucket.twin(), self.archive.twin())

    def settle_all(self) -> None:
        """Apply whatever is on its way to the buckets."""
        self.bucket.settle_all()
        self.archive.settle_all()


@dataclass(slots=True)
class Instant:
    """What is outside at one instant, and how far the history was."""

    before: str
    """The effect that was about to happen; empty at the end."""
    after: str
    """The effect that happened last; empty if there was none."""
    outside: Outside
    process: str
    calls: int
    stamp: int
    traced: int
    """Lines the trace had."""


@dataclass(slots=True)
class State:
    """What one crash leaves."""

    name: str
    """Within its instant: "kill" or the number of the power cut's outcome, a dot, the number of
    the buckets'.
    """
    key: str
    outside: Outside
    killed: bool
    pending: bool
    """Killed, and not all that is seen is durable."""


@dataclass(frozen=True, slots=True)
class SegmentMoves:
    """How often segments moved between memory and the catalog alone."""

    activations: int = 0
    evictions: int = 0

    def since(self, before: SegmentMoves) -> SegmentMoves:
        """Without those that were before."""
        return SegmentMoves(
            self.activations - before.activations, self.evictions - before.evictions
        )

    def plus(self, other: SegmentMoves) -> SegmentMoves:
        """Both."""
        return SegmentMoves(self.activations + other.activations, self.evictions + other.evictions)


def moves_of(store: SegmentStore) -> SegmentMoves:
    """Of an open store, since it was opened."""
    parts = [each["active_segments"] for each in store.stats()["containers"].values()]
    return SegmentMoves(
        sum(part["activations"] for part in parts), sum(part["evictions"] for part in parts)
    )


@dataclass(slots=True)
class Recording:
    """A history, and the instants of its last process run."""

    stage: str
    history: History
    instants: list[Instant]
    trace: list[str] | None = None
    moves: SegmentMoves = SegmentMoves()
    """Between these instants."""

    def history_at(self, instant: Instant, ending: str) -> History:
        """What was known when the last process run ended so, at this instant: what had not ended
        then never did.

        Calls and observations are shared, not copied: the caller must not change them.
        """
        stamp, known = instant.stamp, self.history
        calls = [_call_at(call, stamp) for call in known.calls[: instant.calls]]
        process_runs = [
            _process_run_at(process_run, stamp)
            for process_run in known.process_runs
            if process_run.begun <= stamp
        ]
        seen = [observation for observation in known.observations if observation.ended <= stamp]
        made = History(calls, process_runs, seen, [], stamp)
        if process_runs and process_runs[-1].ended is None:
            process_runs[-1].ended, process_runs[-1].ending = made.next_stamp(), ending
        return made

    def phase(self, instant: Instant) -> str:
        """What the last process run was at: opening, running or idle."""
        if not instant.before:
            return "idle"
        process_runs = [
            process_run
            for process_run in self.history.process_runs
            if process_run.begun <= instant.stamp
        ]
        opened = process_runs[-1].opened if process_runs else None
        return "opening" if opened is None or opened > instant.stamp else "running"


class Camera:
    """Copies the outside before each effect of a process."""

    def __init__(self, world: StoreWorld, history: History) -> None:
        self.instants: list[Instant] = []
        self._world = world
        self._history = history

    def watch(self, process: SimulatedProcess) -> None:
        """From now on."""
        process.on_effect = self.take

    def take(self, process: SimulatedProcess, kind: str) -> None:
        """The instant before an effect of this kind; the end, if it is none."""
        world, history = self._world, self._history
        assert isinstance(world.bucket, CopiedBucket)
        assert isinstance(world.archive, CopiedBucket)
        for service in (world.bucket, world.archive):
            service.settle(world.time.now_us)
        self.instants.append(
            Instant(
                kind,
                process.last_effect,
                Outside(world.image.copy(), world.bucket.twin(), world.archive.twin()),
                process.name,
                len(history.calls),
                history.stamp,
                world.trace.length,
            )
        )


def states(instant: Instant, cap: int) -> Iterator[State]:
    """Every state, with at most `cap` outcomes of the power cut: then a sample, always the same."""
    rng = random.Random(f"outcomes/{instant.before}")
    for number, image in enumerate(instant.outside.image.outcomes(cap, rng)):
        yield from _with_buckets(f"{number}", instant, image)
    image = instant.outside.image.copy()
    image.release_locks(instant.process)
    yield from _with_buckets("kill", instant, image, killed=True)


def _with_buckets(
    name: str, instant: Instant, image: DiskImage, *, killed: bool = False
) -> Iterator[State]:
    pending = killed and image.outcome_count(1) > 1
    seen = f"{image.fingerprint()} {'pending' if pending else ''}"
    both = itertools.product(instant.outside.bucket.outcomes(), instant.outside.archive.outcomes())
    for number, (bucket, archive) in enumerate(both):
        key = f"{seen} {bucket.key()} {archive.key()}"
        yield State(f"{name}.{number}", key, Outside(image, bucket, archive), killed, pending)


def _call_at(call: Call, stamp: int) -> Call:
    if call.ended is None or call.ended <= stamp:
        return call
    return dataclasses.replace(
        call, ended=None, outcome=CallOutcome.UNKNOWN, error="", result=None, data=b"", values={}
    )


def _process_run_at(process_run: ProcessRun, stamp: int) -> ProcessRun:
    opened = (
        process_run.opened
        if process_run.opened is not None and process_run.opened <= stamp
        else None
    )
    if process_run.ended is not None and process_run.ended <= stamp:
        return dataclasses.replace(process_run, opened=opened)
    return dataclasses.replace(process_run, opened=opened, ended=None, ending="")
