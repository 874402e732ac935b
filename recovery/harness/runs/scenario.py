"""Scenario: one plan carried out in a simulated world: process run after process run, crash after
crash, then the judgement.

A process run: open (recover), observe, maybe recover again and observe, work, end. Then a second
owner may take over, or the process dies before one of its effects, or it closes. At the end every
fault is healed, and what is there must be whole. Rules of this file:

- the driver stands outside: nothing it does is an effect of a process;
- an error no caller should ever see (an assertion, corruption where nothing was corrupted) is a
  violation;
- the draws of the driver come from a generator of its own.
"""

from __future__ import annotations

import asyncio
import bisect
import sys
from typing import TYPE_CHECKING, Any

from recovery.harness.checkers.all_checks import evaluate, raised
from recovery.harness.checkers.tier2 import orphans
from recovery.harness.history import History, ProcessRun, Violation
from recovery.harness.observer import observe
from recovery.harness.runs.allowed_ends import (
    ASKED_FOR,
    EXCUSES,
    FORESEEN,
    Circumstances,
    is_allowed,
    is_of_death,
)
from recovery.harness.runs.archive_watch import KEPT_OF_ARCHIVE, ArchiveWatch
from recovery.harness.runs.bit_rot import plant_bit_rot
from recovery.harness.runs.catalog_damage import CatalogDamage
from recovery.harness.runs.clock_turns import turn_clock, turn_far_clock
from recovery.harness.runs.deletion_watch import DeletionWatch, outlast_the_lag
from recovery.harness.runs.files_check import check_files
from recovery.harness.runs.full_disk import wait_on_full_disk
from recovery.harness.runs.past_watch import PastWatch
from recovery.harness.runs.plan import Cycle, Plan, draw_settings
from recovery.harness.runs.quiet import quiet
from recovery.harness.runs.run_result import RunResult
from recovery.harness.simulation.store_world import StoreWorld
from recovery.harness.simulation.tiny_pages import pages_of
from recovery.harness.simulation.virtual_loop import DeadlockError, WedgedError
from recovery.harness.simulation.world import SimulatedProcess
from recovery.harness.workloads.catalogue import BY_NAME
from recovery.harness.workloads.running import run_workload
from recovery.harness.workloads.stage import Stage
from segmentstore.contracts.errors import (
    DataCorruptionError,
    StoreInUseError,
)
from segmentstore.service import SegmentStore

if TYPE_CHECKING:
    from recovery.harness.runs.jobs_beside import JobsBeside

RIVAL_TURNS = 60
"""Effects of a second owner within which the first one comes back."""
_KEPT = ("containers", "tier1", "mailbox_poll_interval_s", *KEPT_OF_ARCHIVE)
"""Settings that stay when a process run has others."""


class Scenario:
    """One run of a plan; used once."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.world = StoreWorld(
            plan.seed,
            settings=plan.settings,
            rates=plan.rates,
            tier1=plan.tier1,
            tier2=plan.tier2,
            kernel_syncs=plan.kernel_syncs and plan.tier1 == "file",
            keep_trace=keep_trace,
        )
        self.history = History()
        self.stage = Stage()
        self._workload = BY_NAME[plan.workload]
        self._rng = self.world.random("driver")
        self._far_rng = self.world.random("far clocks")
        self._catalogs = CatalogDamage(self.world, plan)
        self._deletions = DeletionWatch(self.world.time)
        self._archive = ArchiveWatch(self.world, plan)
        self._past = PastWatch(self.history.past, self.world.random("past"))
        self._unforeseen: list[Violation] = []
        self._phases: dict[str, str] = {}
        self._crashes = self._openings = 0
        self._longest_us = 0
        self._bit_rot = False
        self._cancelled = False
        """The tasks of the owner that is checked were cancelled under it."""
        self._full = self._was_full = False
        """The disk may have become full in this process run, and in the one before."""
        self._struck_before = 0
        self._stores: dict[str, SegmentStore] = {}
        self._stopped: SimulatedProcess | None = None
        """The owner that another one is about to take over from."""
        self._jobs = _jobs_beside(self.world, plan) if self._workload.jobs_beside else None

    def run(self) -> RunResult:
        """Carry the plan out and check it.

        Never raises: a fault of the store is a violation, and so is one of its checkers.
        """
        with quiet(), pages_of(self.plan.settings):
            try:
                self._carry_out()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, the seed must not be lost with it.
                self._unforeseen.append(raised(error))
            return self._result()

    def _carry_out(self) -> None:
        try:
            for cycle in self.plan.cycles:
                self._cycle(cycle)
            self._finish()
        except (DeadlockError, WedgedError) as error:
            self._note(error, "hangs")
        finally:
            self.world.close()

    # --- one process run --------------------------------------------------------------------------

    def _cycle(self, cycle: Cycle) -> None:
        findings = (
            check_files(self.world, self.plan, self.history, deep=False) if cycle.checked else ()
        )
        undo = plant_bit_rot(self.world, cycle.rot, self._rng) if cycle.rot else None
        self._bit_rot = undo is not None
        self._catalogs.strike(cycle.catalog)
        self._was_full, self._full = self._full, cycle.fills_at is not None
        self._struck_before = self.world.points.struck(*EXCUSES)
        self.world.settings = self._settings(cycle)
        if self._jobs is not None and (error := self._jobs.tend()) is not None:
            self._note(error, "a job")
        process = self.world.process("owner")
        process.fills_at = cycle.fills_at
        if cycle.ending == "takeover":
            process.stops_at, process.stops_behind = cycle.dies_at, cycle.stops_behind
        else:
            process.dies_at = cycle.dies_at
            process.dies_before, process.dies_after = cycle.dies_before, cycle.dies_after
            process.let_pass = cycle.nth
            process.cancels_at, process.cancels_again = cycle.cancelled_at, cycle.cancelled_again
        task = process.start(self._live(process, cycle, findings))
        if self._full:
            self._unforeseen += wait_on_full_disk(
                self.world,
                lambda: task.done() or process.dead or process.paused,
                lambda: self._stores.get(process.name),
            )
        self.world.run(lambda: task.done() or process.dead or process.paused)
        if process.paused:
            self._takeover(process, task, cycle)
        else:
            self._end(process, task, cycle)
        if undo is not None:
            undo()
            self._bit_rot = False

    async def _live(
        self, process: SimulatedProcess, cycle: Cycle, findings: tuple[str, ...]
    ) -> None:
        self._phases[process.name] = "opening"
        process_run, store = await self._open(process)
        await self._observe(store, process_run, cycle, findings=findings)
        if cycle.again:
            await store.close()
            self._end_process_run(process_run, "closed")
            self._phases[process.name] = "opening"
            process_run, store = await self._open(process)
            await self._observe(store, process_run, cycle, again=True)
        self._phases[process.name] = "running"
        if cycle.clock:
            asyncio.get_running_loop().call_later(
                self._rng.uniform(0, 2), turn_clock, self.world, cycle.clock, self._rng
            )
        if cycle.far_clock:
            rng = self._far_rng
            asyncio.get_running_loop().call_later(
                rng.uniform(0, 2), turn_far_clock, self.world, cycle.far_clock, rng
            )
        rng = process.world.random(f"workload/{process.name}")
        work = run_workload(
            self._workload,
            store,
            self.history,
            process_run.number,
            self.stage,
            rng,
            operations=cycle.operations,
        )
        if cycle.ending != "close":
            await work
        elif not cycle.under_load:
            await work
            await self._close(process, store, process_run, cycle)
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(work)
                await asyncio.sleep(rng.choice([0.0, 0.001, 0.01, 0.1, 1.0]) * rng.random())
                await self._close(process, store, process_run, cycle)
        if process.cancellations:
            await self._open_again(process, store, process_run, cycle)
        self._phases[process.name] = "idle"

    async def _open_again(
        self, process: SimulatedProcess, store: SegmentStore, process_run: ProcessRun, cycle: Cycle
    ) -> None:
        """Whatever became of its tasks: it closes, and releases everything, so that this very
        process can open it again.
        """
        if process_run.ended is None:
            await self._close(process, store, process_run, cycle)
        process.cancels_at = None
        self._phases[process.name] = "opening"
        process_run, store = await self._open(process)
        await self._observe(store, process_run, cycle)

    async def _close(
        self, process: SimulatedProcess, store: SegmentStore, process_run: ProcessRun, cycle: Cycle
    ) -> None:
        self._phases[process.name] = "closing"
        if cycle.closes_at is not None:
            process.dies_at = process.effects + cycle.closes_at
        await store.close()
        self._end_process_run(process_run, "closed")

    async def _observe(
        self,
        store: SegmentStore,
        process_run: ProcessRun,
        cycle: Cycle,
        *,
        again: bool = False,
        findings: tuple[str, ...] = (),
    ) -> None:
        """Check everything.

        Where two owners may be about, a fenced one can read old data. Then it must prove
        afterwards, by writing, that it is the owner still, or its reads do not count. And the other
        may have written meanwhile.
        """
        alone = cycle.ending != "takeover"
        observation = await observe(
            store, self.history, process_run.number, again=again and alone, findings=findings
        )
        if not alone:
            self.history.observations.remove(observation)
            await store.checkpoint()
            bisect.insort(self.history.observations, observation, key=lambda each: each.ended)

    async def _open(self, process: SimulatedProcess) -> tuple[ProcessRun, SegmentStore]:
        process_run = ProcessRun(
            len(self.history.process_runs), process.name, self.history.next_stamp()
        )
        self.history.process_runs.append(process_run)
        begun_us = self.world.time.now_us
        self._deletions.opening()
        store = await self.world.open_store(process)
        self._deletions.attach(store, begun_us)
        self._archive.attach(store)
        self._past.attach(store)
        self._stores[process.name] = store
        process_run.opened = self.history.next_stamp()
        if self._stopped is not None and process is not self._stopped:
            self._overtake(self._stopped)
        self._openings += 1
        self._longest_us = max(self._longest_us, self.world.time.now_us - begun_us)
        return process_run, store

    def _end(
        self,
        process: SimulatedProcess,
        task: asyncio.Task[None],
        cycle: Cycle,
        *,
        two_owners: bool = False,
    ) -> None:
        """The process has died, or its work is done one way or another: bring the process run to
        its end.
        """
        self._cancelled = process.cancellations > 0
        self._check_end(process, task, two_owners=two_owners)
        self._cancelled = False
        phase = self._phases.get(process.name, "idle")
        if process.dead:
            again = phase == "opening" and self._follows_a_cut_opening(process)
            self.world.reach("crash.opening-again" if again else f"crash.{phase}")
        elif phase == "idle" and cycle.ending != "close":
            self.world.reach("crash.idle")
        self._crashes += process.dead or cycle.ending != "close"
        if cycle.ending == "power" or (cycle.ending == "takeover" and self._rng.random() < 0.5):
            self.world.cut_power()
            self.world.reach("power.cut")
        else:
            self.world.kill(process)
            self.world.reach("crash.kill")
        for process_run in self.history.process_runs:
            if process_run.ended is None and process_run.process == process.name:
                self._end_process_run(process_run, cycle.ending)

    def _follows_a_cut_opening(self, process: SimulatedProcess) -> bool:
        """Whether the process run before the latest one of this process never came to have the
        store open.
        """
        process_runs = self.history.process_runs
        number = max(each.number for each in process_runs if each.process == process.name)
        return number > 0 and process_runs[number - 1].opened is None

    def _end_process_run(self, process_run: ProcessRun, ending: str) -> None:
        process_run.ended, process_run.ending = self.history.next_stamp(), ending

    # --- two owners -------------------------------------------------------------------------------

    def _takeover(
        self, first: SimulatedProcess, first_task: asyncio.Task[None], cycle: Cycle
    ) -> None:
        """The first owner is stopped; a second one takes over; the first one comes back, sooner or
        later.
        """
        world = self.world
        if not cycle.locks_expire:
            self._be_refused(first)
        world.image.expire_locks(first.name)
        world.reach("owner.locks-expire")
        second = world.process("rival")
        second.dies_at, second.stops_behind = cycle.rival_dies_at, cycle.rival_stops_behind
        self._stopped = first
        task = second.start(self._live(second, cycle, ()))
        drawn = self._rng.randrange(RIVAL_TURNS)
        turns = drawn if cycle.returns_at is None else cycle.returns_at
        comes_back_at = turns if cycle.rival_stops_behind is None else sys.maxsize
        world.run(
            lambda: task.done() or second.dead or second.paused or second.effects >= comes_back_at
        )
        first.stops_at = first.stops_behind = None
        first.resume()
        world.reach("owner.resumes")
        if second.paused:
            goes_on_at = first.effects + turns
            world.run(lambda: first_task.done() or first.dead or first.effects >= goes_on_at)
            second.resume()
        world.run(lambda: (task.done() or second.dead) and (first_task.done() or first.dead))
        self._stopped = None
        self._check_end(first, first_task, two_owners=True)
        world.kill(first)
        for process_run in self.history.process_runs:
            if process_run.ended is None and process_run.process == first.name:
                self._end_process_run(process_run, "takeover")
        self._crashes += 1
        self._end(second, task, cycle, two_owners=True)

    def _overtake(self, first: SimulatedProcess) -> None:
        """A second owner has opened the store while this one, stopped or awake again, was still
        there.
        """
        self._stopped = None
        self.world.reach("owner.takeover")
        process_runs = {
            process_run.number
            for process_run in self.history.process_runs
            if process_run.process == first.name
        }
        if any(
            call.process_run in process_runs and call.ended is None for call in self.history.calls
        ):
            self.world.reach("owner.overlap")

    def _be_refused(self, first: SimulatedProcess) -> None:
        """A process that stops before it has taken the lock has nothing to refuse with."""
        holds = any(
            process_run.process == first.name
            and process_run.opened is not None
            and process_run.ended is None
            for process_run in self.history.process_runs
        )
        rival = self.world.process("refused")
        try:
            self.world.run_task(rival, self.world.open_store(rival))
        except StoreInUseError:
            self.world.reach("owner.refused")
        except FORESEEN:
            pass  # the disk failed under it
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the run has shown
            if not (isinstance(error, DataCorruptionError) and self._bit_rot):
                self._note(error, "a second owner")
        else:
            if holds:
                self._unforeseen.append(
                    Violation("owners", "a second owner opened the store of a living one")
                )
        self.world.kill(rival)

    # --- around the process runs ------------------------------------------------------------------

    def _finish(self) -> None:
        """Heal everything; all must be there, go to Tier 2, survive one more crash, and be there
        again.
        """
        if self._jobs is not None:
            if (error := self._jobs.error()) is not None:
                self._note(error, "a job")
            self._jobs.end()
        self.world.rates = {}
        self.world.settings = dict(self.plan.settings)
        if any(cycle.far_clock for cycle in self.plan.cycles):
            self.world.settings["orphan_sweep_interval_s"] = 0.0
        self.world.clock.thaw()
        for service in (self.world.bucket, self.world.archive, self.world.bookkeeper):
            service.heal()
        process = self.world.process("last")
        self._last(process, flush=True)
        self.world.cut_power()
        self._end_process_run(self.history.process_runs[-1], "power")
        findings = check_files(self.world, self.plan, self.history, deep=True, settled=True)
        self._last(self.world.process("verifier"), flush=False, findings=findings)

    def _last(
        self, process: SimulatedProcess, *, flush: bool, findings: tuple[str, ...] = ()
    ) -> None:
        try:
            self.world.run_task(
                process, self._last_process_run(process, flush=flush, findings=findings)
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the run has shown
            self._note(error, "after everything was healed")

    async def _last_process_run(
        self, process: SimulatedProcess, *, flush: bool, findings: tuple[str, ...]
    ) -> None:
        process_run, store = await self._open(process)
        await observe(store, self.history, process_run.number, again=not flush, findings=findings)
        if flush:
            await store.flush()
            await store.checkpoint()
            await observe(store, self.history, process_run.number, again=True)
            if any(cycle.far_clock for cycle in self.plan.cycles):
                self._unforeseen.extend(await outlast_the_lag(store))
        else:
            await self._archive.check_all(store)
            await store.close()
            self._end_process_run(process_run, "closed")

    # --- how a process run ended ------------------------------------------------------------------

    def _check_end(
        self, process: SimulatedProcess, task: asyncio.Task[None], *, two_owners: bool
    ) -> None:
        """Whether its end, and that of its containers, was one that the world gave reason for."""
        errors = (
            [task.exception()] if task.done() and not task.cancelled() and not process.dead else []
        )
        store = self._stores.pop(process.name, None)
        if store is not None:
            for container in store._parts.containers:  # noqa: SLF001
                # Why it stopped is not reported outside.
                failure = container.failure
                errors.append(failure)
                if failure is not None and not isinstance(failure, ASKED_FOR):
                    self._note(failure, f"container {container.container_id} stopped")
        for error in errors:
            self._note_error(error, two_owners=two_owners)

    def _note_error(self, error: BaseException | None, *, two_owners: bool) -> None:
        if error is None or is_of_death(error):
            return
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                self._note_error(each, two_owners=two_owners)
            return
        if not is_allowed(error, self._circumstances(two_owners=two_owners)):
            self._note(error, "unforeseen")

    def _circumstances(self, *, two_owners: bool) -> Circumstances:
        struck, process_runs = self.world.points.struck, self.history.process_runs
        never_opened = all(process_run.opened is None for process_run in process_runs)
        return Circumstances(
            two_owners=two_owners,
            cancelled=self._cancelled,
            rot=self._bit_rot,
            struck_now=struck(*EXCUSES) > self._struck_before,
            struck_tier1=struck("bookkeeper.", "node.") > 0,
            struck_tier2=struck("object.") > 0,
            sound_files=self.plan.tier1 == "file" and not self.plan.rates,
            no_room=self._full and (self._was_full or never_opened),
        )

    def _settings(self, cycle: Cycle) -> dict[str, Any]:
        if not cycle.new_settings:
            return dict(self.plan.settings)
        kept = {name: self.plan.settings[name] for name in _KEPT if name in self.plan.settings}
        return {**draw_settings(self._rng), **kept}

    def _note(self, error: BaseException, when: str) -> None:
        self._unforeseen.append(Violation("errors", f"{when}: {type(error).__name__}: {error}"))

    def _result(self) -> RunResult:
        history = self.history
        evaluation = evaluate(history)
        return RunResult(
            plan=self.plan,
            violations=[
                *self._unforeseen,
                *(
                    Violation("errors", f"in the background: {each}")
                    for each in self.world.unhandled
                ),
                *self._deletions.violations,
                *self._archive.violations,
                *evaluation.violations,
            ],
            crashes=self._crashes,
            openings=self._openings,
            calls=len(history.calls),
            appends=sum(
                1
                for call in history.calls
                if call.kind in {"append", "event"} and call.outcome == "ok"
            ),
            virtual_s=self.world.time.now_us / 1e6,
            longest_recovery_s=self._longest_us / 1e6,
            effects=self.world.effects,
            points=self.world.points.counts(),
            digest=self.world.trace.digest(),
            history=history,
            trace=self.world.trace.lines,
            answers=dict(sorted(self._jobs.answers.items())) if self._jobs is not None else {},
            windows=evaluation.windows,
            tiers={
                "looks": len(history.tiers),
                "objects": sum(len(tiers.listed) for tiers in history.tiers),
                "orphans": sum(len(orphans(tiers)) for tiers in history.tiers),
            },
        )


def _jobs_beside(world: StoreWorld, plan: Plan) -> JobsBeside:
    # Not at the top: other worlds need nothing of what jobs are made with.
    from recovery.harness.runs.jobs_beside import JobsBeside  # noqa: PLC0415

    return JobsBeside(world, plan.settings.get("containers", 1))
