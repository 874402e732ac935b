"""Recovery of one state: opened by the production code, read through and through, checked by all
checkers.

Rules of this file:

- a recovery depends on nothing but the state (its seed is the state's key, its time always the
  same). So one recovery of a state is checked against each history that may have led to it;
- what a recovered store has shown must be there for good. After a kill that left something pending,
  the power is cut behind the recovery (CUT_OF), and another one must show the same;
- some states, chosen by their keys, show more: their files are checked before they are opened
  (CHECKED_OF), they are recovered twice (AGAIN_OF), or worked with (WORKED_OF).
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from durablelog.metadata_updater import SEQUENCE_GAP
from recovery.harness.archived_operations import objects_of_no_part, operations_in_parts
from recovery.harness.checkers.all_checks import check_history
from recovery.harness.enumeration.instants import (
    RECOVERED_AT_US,
    Camera,
    Instant,
    SegmentMoves,
    State,
    moves_of,
)
from recovery.harness.enumeration.workloads import TARGET, make_world
from recovery.harness.history import History, Observation, ProcessRun, Violation
from recovery.harness.observer import observe
from recovery.harness.recorder import RecordedStore
from recovery.harness.seen_tiers import SeenTiers
from recovery.harness.simulation.power_cut import Nothing
from recovery.harness.simulation.store_world import (
    ARCHIVE,
    LOCATION,
    StoreWorld,
    stopped_catalogs,
)
from recovery.harness.simulation.world import SimulatedProcess
from recovery.harness.tier_observer import file_probe, observe_tiers
from recovery.store_check import check_store
from segmentstore.contracts.errors import SegmentError
from segmentstore.contracts.findings import harmful_lines
from segmentstore.service import SegmentStore
from segmentstore.store_folder import log_directory

CHECKED_OF: Final = 6
"""The files of one state of so many are checked."""
CUT_OF: Final = 2
"""After one of so many kills that left something pending, the power is cut behind the recovery."""
AGAIN_OF: Final = 16
"""One of so many states is recovered once more, and must be the same."""
WORKED_OF: Final = 16
"""And one of so many is worked with, up to another crash."""


@dataclass(slots=True)
class Recovered:
    """What one recovery showed, on top of the history it went on from."""

    stamp: int
    """Of that history, when the recovery began."""
    process_run: int
    process_runs: list[ProcessRun]
    observations: list[Observation]
    tiers: list[SeenTiers]
    unforeseen: list[Violation]
    history: History
    """All of it, with the work that may have followed."""
    openings: int
    moves: SegmentMoves
    """While everything was read, in all openings."""
    opening_us: int
    """Virtual time of the first opening."""
    effects: int
    digest: str
    trace: list[str] | None
    instants: list[Instant]
    """Of the first opening and the check of everything, if these were asked for."""

    def evaluate(self, known: History) -> list[Violation]:
        """Every rule that is broken if this recovery came after `known`, which it goes on with."""
        later, process_runs_later = (
            known.stamp - self.stamp,
            len(known.process_runs) - self.process_run,
        )
        known.process_runs += [
            _process_run_later(process_run, later, process_runs_later)
            for process_run in self.process_runs
        ]
        known.observations += [
            _seen_later(seen, later, process_runs_later) for seen in self.observations
        ]
        known.tiers += [
            dataclasses.replace(tiers, stamp=tiers.stamp + later) for tiers in self.tiers
        ]
        known.stamp = self.history.stamp + later
        return [*self.unforeseen, *check_history(known)]

    def check_own(self) -> list[Violation]:
        """Every rule that is broken by the recovery in its own history, the work behind it
        included.
        """
        return [*self.unforeseen, *check_history(self.history)]


class StateRecovery:
    """The recovery of one state; used once."""

    def __init__(
        self,
        state: State,
        stage: str,
        history: History,
        *,
        watched: bool = False,
        keep_trace: bool = False,
    ) -> None:
        self._state = state
        self._history = history
        self._stage = stage
        self._watched = watched
        self._world = make_world(
            state.key,
            stage,
            state.outside.copy(),
            RECOVERED_AT_US,
            keep_trace=keep_trace,
        )
        self._camera = Camera(self._world, history)
        self._draw = zlib.crc32(state.key.encode())
        self._unforeseen: list[Violation] = []
        self._openings = self._opening_us = 0
        self._moves = SegmentMoves()
        self._store: SegmentStore

    def run(self) -> Recovered:
        """Carry it out. Never raises for a fault of the store: that is a violation."""
        state, history, world = self._state, self._history, self._world
        stamp, process_run, seen, looks = (
            history.stamp,
            len(history.process_runs),
            len(history.observations),
            len(history.tiers),
        )
        findings = self._check_files() if self._draw % CHECKED_OF == 0 else ()
        process = world.process("owner")
        if self._watched:
            self._camera.watch(process)
        goes_on = self._try(process, self._observe_store(process, findings=findings))
        if self._watched and goes_on:
            self._camera.take(process, "")
            process.on_effect = None
        if goes_on and self._draw // CHECKED_OF % (CUT_OF if state.pending else AGAIN_OF) == 0:
            process, goes_on = self._recover_again(process)
        process_runs, observations = (
            _copied(history.process_runs[process_run:]),
            history.observations[seen:],
        )
        if (
            goes_on
            and self._draw // CHECKED_OF % WORKED_OF == 1
            and self._try(process, self._work(process))
        ):
            self._recover_again(process)
        world.close()
        return Recovered(
            stamp,
            process_run,
            process_runs,
            observations,
            history.tiers[looks:],
            self._unforeseen,
            history,
            self._openings,
            self._moves,
            self._opening_us,
            world.effects,
            world.trace.digest(),
            world.trace.lines,
            self._camera.instants,
        )

    def _recover_again(self, process: SimulatedProcess) -> tuple[SimulatedProcess, bool]:
        """The power goes, with all that is not durable; what the store has shown is there again."""
        world, history = self._world, self._history
        world.kill(process)
        world.image.cut(Nothing(), _ignore)
        process_run = history.process_runs[-1]
        process_run.ended, process_run.ending = history.next_stamp(), "power"
        process = world.process("again")
        return process, self._try(process, self._observe_store(process, again=True))

    async def _observe_store(
        self, process: SimulatedProcess, *, again: bool = False, findings: tuple[str, ...] = ()
    ) -> None:
        history, world = self._history, self._world
        process_run = ProcessRun(len(history.process_runs), process.name, history.next_stamp())
        history.process_runs.append(process_run)
        begun_us = world.time.now_us
        self._store = await world.open_store(process)
        process_run.opened = history.next_stamp()
        if not self._openings:
            self._opening_us = world.time.now_us - begun_us
        self._openings += 1
        await observe(self._store, history, process_run.number, again=again, findings=findings)
        await self._check_archive()
        self._moves = self._moves.plus(moves_of(self._store))

    async def _check_archive(self) -> None:
        """Archive and log have every operation, from the first part that is kept on, and the
        archive nothing else.
        """
        store, world = self._store, self._world
        if world.settings.get("archive") != ARCHIVE:
            return
        for report in await store.offload_prefix():
            for part in report.parts:
                if part.failure is not None:
                    self._say(f"part {part.number} is not archived: {part.failure}")
        for owned in store._parts.containers:  # noqa: SLF001
            found = sorted(await operations_in_parts(store, owned))
            first = found[0] if owned.metadata.archive.first else SEQUENCE_GAP + 1
            self._unforeseen += [
                Violation("archive", f"of the operations behind {before} {after} is the first")
                for before, after in itertools.pairwise([first - 1, *found])
                if after - before not in {1, SEQUENCE_GAP + 1}
            ]
        if self._state.outside.archive.in_flight():
            return  # What lands behind the deletion of an attempt stays.
        for name in objects_of_no_part(store, world.archive.objects):
            self._say(f"{name} is of no part, and of no attempt that the log knows")

    def _say(self, detail: str) -> None:
        self._unforeseen.append(Violation("archive", detail))

    async def _work(self, process: SimulatedProcess) -> None:
        """What is not refused is durable, and all is observed at the end."""
        recorded = RecordedStore(
            self._store, self._history, len(self._history.process_runs) - 1, "after"
        )
        await recorded.create("after")
        try:
            await recorded.append(TARGET, (1,))
        except SegmentError:
            pass  # it is sealed, or was never made
        await recorded.flush()
        await recorded.checkpoint()
        await observe(self._store, self._history, recorded.process_run)

    def _try(self, process: SimulatedProcess, main: Coroutine[Any, Any, None]) -> bool:
        """Run it in the process; an error is a violation."""
        try:
            self._world.run_task(process, main)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the state has shown
            self._unforeseen.append(
                Violation("errors", f"{process.name}: {type(error).__name__}: {error}")
            )
            return False
        return True

    def _check_files(self) -> tuple[str, ...]:
        """Harmful findings in the files as they lie, in a world of their own; both tiers are
        observed.
        """
        state = self._state
        world = make_world(state.key, self._stage, state.outside.copy(), RECOVERED_AT_US)
        process = world.process("check")
        try:
            return world.run_task(process, _check(world, process, self._history))
        except Exception as error:  # noqa: BLE001 - likewise
            return (f"{type(error).__name__}: {error}",)
        finally:
            world.close()


async def _check(world: StoreWorld, process: SimulatedProcess, history: History) -> tuple[str, ...]:
    if not process.runtime.disk.exists(f"{LOCATION}/log"):
        return ()
    storage = world.object_storage(process)
    logs = {0: log_directory(LOCATION, 0)}
    catalogs = await stopped_catalogs(process)
    findings = await check_store(logs, storage, process.runtime, catalogs=catalogs)
    look = file_probe(logs[0], process.runtime.disk)
    await observe_tiers(history, {0: look}, storage, catalogs, process.runtime, deep=True)
    await storage.close()
    return harmful_lines(findings)


def _copied(process_runs: list[ProcessRun]) -> list[ProcessRun]:
    return [dataclasses.replace(process_run) for process_run in process_runs]


def _process_run_later(process_run: ProcessRun, later: int, process_runs_later: int) -> ProcessRun:
    return dataclasses.replace(
        process_run,
        number=process_run.number + process_runs_later,
        begun=process_run.begun + later,
        opened=None if process_run.opened is None else process_run.opened + later,
        ended=None if process_run.ended is None else process_run.ended + later,
    )


def _seen_later(seen: Observation, later: int, process_runs_later: int) -> Observation:
    return dataclasses.replace(
        seen,
        begun=seen.begun + later,
        ended=seen.ended + later,
        process_run=seen.process_run + process_runs_later,
    )


def _ignore(point: str) -> None:
    """A cut that is not chance's counts as no fault."""
