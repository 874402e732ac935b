"""Kill round: one real store, opened and killed again and again, and the judgement of its whole
history at the end.

A process run: the files are checked as they lie. A child opens the store (recovers), reports all it
sees in it, works, and ends as its `Kill` says. So whatever one process left is always checked by
another. Rules of this file:

- the parent never has the store open; it touches files only while no child runs, or all are
  stopped;
- an error no caller should ever see is a violation; so is a store that stops though nothing failed
  under it;
- every child is stopped on every way out.
"""

from __future__ import annotations

import dataclasses
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from recovery.harness.checkers.all_checks import evaluate, raised
from recovery.harness.history import History, Violation
from recovery.harness.history_codec import Retelling
from recovery.harness.interrupts import stop_asked
from recovery.harness.kills.files import (
    check_files,
    damage_cache,
    damage_catalogs,
    expire_locks,
    is_refused,
    remove_cache,
    remove_catalogs,
)
from recovery.harness.kills.orders import OVERTAKEN, Ending, Orders
from recovery.harness.kills.points import DECK, OWNERS, Kill, Kind, draw_kills, tracer, was_injected
from recovery.harness.kills.process import Child, ChildHungError, attend
from recovery.harness.runs.allowed_ends import FORESEEN
from recovery.harness.runs.plan import draw_active, draw_settings, draw_snapshots
from recovery.harness.workloads.catalogue import BY_NAME

if TYPE_CHECKING:
    from recovery.harness.kills.jobs import JobsProcess

RIVAL_OPERATIONS: Final = 200
FAULTY_S: Final = 3.0
"""How long a process run may go on whose system calls fail."""
NUMBERS_SPARE: Final = 1024
"""About the most calls that a process makes beyond those it was asked to make."""
_POLL_S: Final = 0.1
_JOBS_KILLED: Final = 0.5
_UNKNOWN: Final = "AppendOutcomeUnknownError"
_STOPPED: Final = (
    "ContainerStoppedError",
    "NotPrimaryError",
    _UNKNOWN,
    "DataCorruptionError",
)
"""Answers of a store that has stopped."""

Tamper = Callable[[Path, int], None]
"""Called with the store's folder and the number of the process run that comes next."""


@dataclasses.dataclass(slots=True)
class RoundResult:
    """What one store showed."""

    seed: str
    workload: str
    history: History
    violations: list[Violation]
    kills: int = 0
    takeovers: int = 0
    """Open owners that were stopped, overtaken, and came back."""
    fenced: int = 0
    """Calls that overtaken owners did not acknowledge any more."""
    longest_recovery_s: float = 0.0
    """Real time, from the start of an opening to its end."""
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    """How often each kind of end was met."""
    jobs_killed: int = 0
    """Processes of jobs beside the store."""
    answers: Counter[str] = dataclasses.field(default_factory=Counter)
    """What owners said to them."""

    @property
    def openings(self) -> int:
        """How often the store was opened, and seen as a whole."""
        return sum(process_run.opened is not None for process_run in self.history.process_runs)


class KillRound:
    """One store, opened `lives` times; used once.

    `tamper` is for tests of checkers: it breaks what they must find.
    """

    def __init__(
        self,
        location: Path,
        seed: str,
        workload: str,
        process_runs: int,
        *,
        exact: bool = True,
        deck: Sequence[Kind] = DECK,
        settings: Mapping[str, Any] | None = None,
        phases: int = 1,
        tamper: Tamper | None = None,
        prepare: Callable[[Kind], None] | None = None,
    ) -> None:
        """`prepare` is called with the kind of each process run before it begins."""
        self.location = location.resolve()
        self.settings = (
            settings
            if settings is not None
            else {
                **draw_settings(random.Random(f"{seed}/settings")),
                **draw_snapshots(random.Random(f"{seed}/snapshots")),
                **draw_active(random.Random(f"{seed}/active")),
            }
        )
        self._kills = islice(draw_kills(seed, exact=exact, deck=deck), process_runs)
        self._rng = random.Random(f"{seed}/files")
        self._phases = phases
        self._tamper = tamper
        self._ready_for = prepare
        self._jobs = self._jobs_beside(seed) if BY_NAME[workload].jobs_beside else None
        self._retelling = Retelling()
        self._result = RoundResult(seed, workload, self._retelling.history, [])

    def run(self) -> RoundResult:
        """Carry it out and check it.

        Never raises: a fault of the store is a violation, and so is one of its checkers.
        """
        try:
            self._carry_out()
        except Exception as error:  # noqa: BLE001
            # Whatever it is, seed and files must not be lost with it.
            self._result.violations.append(raised(error))
        found = evaluate(self._retelling.history).violations
        self._result.violations = _each_once([*self._result.violations, *found])
        return self._result

    def _carry_out(self) -> None:
        try:
            self._live_and_die()
        finally:
            if self._jobs is not None:
                self._end_jobs(self._jobs)
        self._finish()

    def _live_and_die(self) -> None:
        for kill in self._kills:
            if stop_asked():
                break
            self._prepare(kill)
            if kill.kind in OWNERS:
                self._takeover(kill)
            elif not self._live(kill):
                # It was done before it came to its system call: another one comes to it sooner.
                sooner = dataclasses.replace(kill, nth=1, cache="", deep=False)
                self._prepare(sooner)
                self._live(sooner)

    # --- jobs beside them -------------------------------------------------------------------------

    def _jobs_beside(self, seed: str) -> JobsProcess:
        # Not at the top: other rounds need nothing of what jobs are made with.
        from recovery.harness.kills.jobs import JobsProcess  # noqa: PLC0415

        self.settings = {**self.settings, "mailbox_poll_interval_s": _POLL_S}
        return JobsProcess(
            (self.location / "tier2").as_uri(), int(self.settings["containers"]), f"{seed}/jobs"
        )

    def _tend_jobs(self, jobs: JobsProcess) -> None:
        """Kill them at some instant, whatever they are at, and have others begin."""
        if self._rng.random() < _JOBS_KILLED and (said := jobs.kill()):
            self._note(f"the jobs ended by themselves: {said}")
        if self.location.exists():
            jobs.begin()

    def _end_jobs(self, jobs: JobsProcess) -> None:
        if said := jobs.end():
            self._note(f"the jobs ended by themselves: {said}")
        self._result.jobs_killed = jobs.killed
        self._result.answers.update(jobs.verdicts())

    # --- one process run
    # ---------------------------------------------------------------------------------

    def _prepare(self, kill: Kill) -> None:
        """Before a child is let loose on the files."""
        if self._tamper is not None:
            self._tamper(self.location, self._next_process_run)
        if self._ready_for is not None:
            self._ready_for(kill.kind)
        if self._jobs is not None:
            self._tend_jobs(self._jobs)
        if kill.cache == "removed":
            remove_cache(self.location)
            remove_catalogs(self.location)
        elif kill.cache == "damaged":
            damage_cache(self.location, self._rng)
            damage_catalogs(self.location, self._rng)
        self._check(deep=kill.deep)

    def _live(self, kill: Kill) -> bool:
        """One process run of one owner; False if it did not reach its system call."""
        ending: Ending = "killed" if kill.kind in {"random", "call"} else "closed"
        output = self.location.with_name(f"{self.location.name}.strace")
        with Child(self._orders(kill, ending), tracer(kill, output)) as child:
            try:
                self._wait(child, kill)
            except ChildHungError as error:
                self._note(f"life {child.orders.process_run} hangs: {error}")
            died = child.ended
            self._retelling.replay(child.events, [child.kill()])
            hit = {"call": died and child.was_killed, "error": was_injected(output)}.get(
                kill.kind, True
            )
            self._result.kinds[kill.name if hit else f"{kill.kind}, not met"] += 1
            self._result.kills += child.was_killed
            self._note_errors(child, *(FORESEEN if kill.kind == "error" else ()))
            if died and not child.was_killed and not child.has_parted:
                self._note(f"life {child.orders.process_run} died by itself: {child.errors()}")
        output.unlink(missing_ok=True)
        return hit

    def _wait(self, child: Child, kill: Kill) -> None:
        if kill.kind == "error":
            # A flush waits as long as Tier 2 is away, and a close for what it has begun: this may
            # be for ever.
            attend([child], lambda: child.ended, FAULTY_S)
            return
        if kill.kind == "close":
            attend([child], lambda: child.ended)
            return
        attend(
            [child],
            lambda: child.idle or (kill.kind == "random" and len(child.events) > kill.lines),
        )
        attend([child], lambda: child.ended, kill.moment_s)

    @property
    def _next_process_run(self) -> int:
        return len(self._retelling.history.process_runs)

    def _orders(self, kill: Kill, ending: Ending) -> Orders:
        return Orders(
            location=str(self.location),
            process_run=self._next_process_run,
            seed=kill.seed,
            workload=self._result.workload,
            first_call=self._retelling.next_call,
            operations=kill.operations,
            ending=ending,
            phases=self._phases,
            settings=self.settings,
        )

    # --- two owners -------------------------------------------------------------------------------

    def _takeover(self, kill: Kill) -> None:
        """The first owner is stopped, a second one opens the store, the first one comes back, and
        both are killed.
        """
        orders = dataclasses.replace(self._orders(kill, "killed"), proves=True)
        with Child(orders) as first:
            if not self._stop(first, kill):
                self._retelling.replay(first.events, [first.kill()])
                self._result.kills += first.was_killed
                self._note_errors(first)
                return
            if "opened" in first.said and not is_refused(self.location, self.settings):
                self._note("a second owner opened the store of a living one")
            expire_locks(self.location)
            rival_orders = dataclasses.replace(
                orders,
                process_run=orders.process_run + 1,
                seed=f"{kill.seed}/rival",
                first_call=orders.first_call + first.used_calls + orders.operations + NUMBERS_SPARE,
                operations=RIVAL_OPERATIONS,
            )
            with Child(rival_orders) as rival:
                self._together(first, rival, kill)
        self._result.takeovers += "opened" in first.said and "opened" in rival.said
        self._result.kinds[kill.name] += 1
        # A child that had to give way, or found nothing to do, may have ended by itself before.
        self._result.kills += first.was_killed + rival.was_killed

    def _stop(self, first: Child, kill: Kill) -> bool:
        """Let it get as far as it shall, and stop it; False if it has ended before."""
        stage, lines = ("opening", 0) if kill.kind == "race" else ("opened", kill.lines)
        try:
            attend(
                [first], lambda: first.idle or (stage in first.said and len(first.events) > lines)
            )
        except ChildHungError as error:
            self._note(f"life {first.orders.process_run} hangs: {error}")
        attend([first], lambda: first.ended, kill.moment_s)
        return not first.ended and first.stop()

    def _together(self, first: Child, rival: Child, kill: Kill) -> None:
        try:
            attend([rival], lambda: rival.ended or len(rival.events) > kill.back_after)
            first.signal(signal.SIGCONT)
            attend([first, rival], lambda: rival.idle or "opened" in rival.said)
            attend([first, rival], lambda: first.idle and rival.idle, kill.together_s)
        except ChildHungError as error:
            self._note(f"life {rival.orders.process_run} hangs while it takes over: {error}")
        died = [child for child in (first, rival) if child.ended and not child.has_parted]
        ends = [first.kill(), rival.kill()]
        if first.orders.first_call + first.used_calls > rival.orders.first_call:
            raise RuntimeError("the first owner has used the call numbers of the second one")
        self._retelling.replay([*first.events, ends[0]], [*rival.events, ends[1]])
        self._result.fenced += sum(event.fields.get("error") in _STOPPED for event in first.events)
        for child in (first, rival):
            self._note_errors(child, *OVERTAKEN)
        for child in died:
            self._note(f"life {child.orders.process_run} died by itself: {child.errors()}")

    # --- around the process runs
    # -------------------------------------------------------------------------

    def _check(self, *, deep: bool, settled: bool = False) -> None:
        told = self._retelling
        try:
            told.findings += check_files(
                self.location, self.settings, told.history, deep=deep, settled=settled
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the round has shown
            self._note(f"the check of the files ends in {type(error).__name__}: {error}")

    def _finish(self) -> None:
        """All must be there, go to Tier 2, and be there again for another process that has nothing
        but the files.
        """
        for ending in ("checked", "closed"):
            self._check(
                deep=True, settled=ending == "closed"
            )  # the one before has flushed everything
            remove_cache(self.location)
            remove_catalogs(self.location)
            kill = Kill("close", seed="", operations=0)
            if self._ready_for is not None:
                self._ready_for(kill.kind)
            with Child(self._orders(kill, "checked" if ending == "checked" else "closed")) as child:
                try:
                    over = child.wait()
                except ChildHungError as error:
                    self._note(f"the last life hangs: {error}")
                    over = child.kill()
                self._retelling.replay(child.events, [over])
                self._note_errors(child)
                if "over" not in child.said:
                    self._note(f"the last life did not end well: {child.errors()}")
        self._check(deep=True)
        for finding in self._retelling.findings:
            self._note(f"at the end: {finding}")

    def _note_errors(self, child: Child, *foreseen: type[Exception]) -> None:
        """What a child reported of errors, and how long it took to recover."""
        names = [each.__name__ for each in foreseen]
        # A cut connection, too, leaves a call without an answer.
        cut = (_UNKNOWN,) if BY_NAME[self._result.workload].connected else ()
        stops = [each for each in _STOPPED if each not in (*names, *cut)]
        opening = 0
        for event in child.events:
            if event.what == "opening":
                opening = event.at
            elif event.what == "opened":
                seconds = (event.at - opening) / 1e9
                self._result.longest_recovery_s = max(self._result.longest_recovery_s, seconds)
            elif event.what == "failed" and any(
                error not in names for error in event.fields["errors"]
            ):
                self._note(f"life {event.process_run} failed: {event.fields['text']}")
            elif event.what == "ended" and event.fields.get("error") in stops:
                error = event.fields["error"]
                self._note(
                    f"call {event.fields['call']} ended in {error}, and nothing had "
                    "failed under the store"
                )

    def _note(self, detail: str) -> None:
        self._result.violations.append(Violation("errors", detail))


def _each_once(violations: Sequence[Violation]) -> list[Violation]:
    # What is wrong with the files is seen before every later process run, and says the same each
    # time.
    different = {(each.checker, each.detail, tuple(each.calls)): each for each in violations}
    return list(different.values())
