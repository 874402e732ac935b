"""Every crash point of short workloads: each instant, each state a crash can leave there, each
recovered and checked.

    enumerate_all(jobs=2)       everything
    replay("object/append,seal@3.kill.0")   one state again, with a trace

A *name* is `stage/operations@instant.disk.bucket`; a crash during the recovery adds another
`@instant.disk.bucket`, a cap that is not the usual one `~cap`. Rules of this file:

- workloads that differ in their last operation alone are a *group*. They are alike up to it, and so
  leave many equal states behind. Each of these is recovered once, and checked for each workload;
- what is too many is sampled, always the same way, and counted (`sampled`): outcomes of one power
  cut above the cap of the depth, crashes during a recovery;
- nothing is kept of what went well;
- an error of the harness itself breaks the state it came in, under its name: nothing else of the
  enumeration is lost.
"""

from __future__ import annotations

import gc
import itertools
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Final

from recovery.harness.checkers.all_checks import raised
from recovery.harness.enumeration.instants import (
    Instant,
    Recording,
    SegmentMoves,
    State,
    states,
)
from recovery.harness.enumeration.recovery import Recovered, StateRecovery
from recovery.harness.enumeration.workloads import (
    Base,
    EnumeratedWorkload,
    prepare,
    record,
    workloads,
)
from recovery.harness.history import History, Violation
from recovery.harness.interrupts import settle_worker, starting_workers, stop_asked
from segmentstore.contracts.runtime import Clock, SystemClock

CAPS: Final[Mapping[str, Sequence[int]]] = {
    "new": (64,),
    "object": (64, 64, 12, 4),
    "files": (12, 12, 4),
    "spare": (64, 64, 12),
    "snapshots": (12, 12, 4),
    "idle": (12, 12, 4, 4),
    "archive": (12, 12, 4),
    "expiry": (12, 12, 4),
    "kernel": (12, 12, 4),
}
"""Outcomes tried of one power cut, by the stage and the number of operations (more: the last one).

Where objects are files, and where a catalog is kept, many folders are not synced for long, and
their outcomes multiply.
"""
DEEPER_CAP: Final = 3
"""The same for power cuts during a recovery."""
DEEPER_OF: Final = 16
"""Of workloads of at most one operation: one recovery of so many is crashed at each of its own
effects.
"""
LONG_STAGES: Final = ("files", "idle")
DEEPER_OF_LONG: Final = 8
"""Where objects are files, or segments idle, a recovery has many effects: of these recoveries only
one of so many.
"""
FOUND_MAX: Final = 20
"""Broken states kept; more would only say the same."""

COLLECTED_AFTER: Final = 64
"""Recoveries: dead worlds are cycles of some 100 KB each."""

Group = tuple[EnumeratedWorkload, ...]


@dataclass(frozen=True, slots=True)
class BrokenState:
    """A state whose recovery broke a rule."""

    name: str
    violations: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.violations[0]}"


@dataclass(slots=True)
class EnumerationResult:
    """What an enumeration showed."""

    workloads: int = 0
    points: int = 0
    """Instants at which a crash was tried."""
    states: int = 0
    """Different states behind these, each together with the answers that clients had got."""
    recoveries: int = 0
    """Openings; a state that several workloads can leave is opened once and checked for each."""
    during_recovery: int = 0
    """States left by a crash during a recovery, among `states`."""
    sampled: int = 0
    """Instants with more outcomes than were tried."""
    moves: SegmentMoves = field(default_factory=SegmentMoves)
    """Of the stores that these opened."""
    longest_recovery_s: float = 0.0
    """Virtual."""
    violations: list[BrokenState] = field(default_factory=list)
    broken: int = 0
    """All of them, kept or not."""
    fault_points: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """Real time."""

    def add(self, other: EnumerationResult) -> None:
        """Add what another part showed."""
        self.workloads += other.workloads
        self.points += other.points
        self.states += other.states
        self.recoveries += other.recoveries
        self.during_recovery += other.during_recovery
        self.sampled += other.sampled
        self.moves = self.moves.plus(other.moves)
        self.longest_recovery_s = max(self.longest_recovery_s, other.longest_recovery_s)
        self.violations = [*self.violations, *other.violations][:FOUND_MAX]
        self.broken += other.broken
        self.fault_points.update(other.fault_points)


@dataclass(slots=True)
class Replayed:
    """One state again."""

    violations: list[str]
    history: History
    trace: list[str]
    """The workload up to the crash, and the recovery."""
    digest: str
    """Of the recovery."""


def enumerate_all(
    *,
    depth: int = 3,
    cap: int | None = None,
    deeper_of: int = DEEPER_OF,
    operations: Sequence[str] | None = None,
    jobs: int = 1,
    on_progress: Callable[[EnumerationResult], None] = lambda _result: None,
    clock: Clock | None = None,
) -> EnumerationResult:
    """Every workload of up to `depth` operations.

    `cap` replaces CAPS, `deeper_of` (0: none) DEEPER_OF. Some 5 ms a state and core.

    Ends early once FOUND_MAX states are broken, and when `stop_asked`.
    """
    clock = clock if clock is not None else SystemClock()
    begun_ms = clock.time_ms()
    result = EnumerationResult()
    chosen = groups(depth, operations)
    with _workers(jobs) as run:
        for part in run(partial(enumerate_group, cap=cap, deeper_of=deeper_of), chosen):
            result.add(part)
            result.seconds = (clock.time_ms() - begun_ms) / 1000
            on_progress(result)
            if result.broken >= FOUND_MAX or stop_asked():
                break
    return result


def groups(depth: int = 3, operations: Sequence[str] | None = None) -> list[Group]:
    """All workloads, those that differ in the last operation together."""
    keyed = itertools.groupby(
        workloads(depth, operations),
        key=lambda each: (each.stage, each.together, each.operations[:-1]),
    )
    return [tuple(group) for _, group in keyed]


def lower_cap(group: Group, share: int) -> int:
    """The CAPS of these workloads, divided by `share`, for a short run: every point, fewer outcomes
    of each power cut.
    """
    return max(2, _cap(group[0], None) // share)


def enumerate_group(
    group: Group, *, cap: int | None = None, deeper_of: int = DEEPER_OF, base: Base | None = None
) -> EnumerationResult:
    """Every state of the workloads of one group, which share `base` (what `prepare` gives for their
    stage).
    """
    with _calm():
        return _Group(cap, deeper_of).run(
            group, base if base is not None else prepare(group[0].stage)
        )


def replay(name: str, *, base: Base | None = None) -> Replayed:
    """Make and check the state of this name once more. Raises ValueError if there is none."""
    text, _, asked = name.partition("~")
    text, *crashes = text.split("@")
    workload = EnumeratedWorkload.parse(text)
    cap = _cap(workload, int(asked) if asked else None)
    if not crashes:
        raise ValueError(f"{name} names no crash")
    with _calm():
        begins_with = base if base is not None else prepare(workload.stage)
        recording = record(workload, begins_with, keep_trace=True)
        lines = list[str]()
        while True:
            place, instant, state = _find(recording, crashes.pop(0), DEEPER_CAP if lines else cap)
            lines += (recording.trace or [])[: instant.traced]
            lines.append(
                f"--- crash {place}: {'kill' if state.killed else 'power cut'} before "
                f"{instant.before or 'the end'}"
            )
            try:
                recovered = _recover(
                    recording, instant, state, watched=bool(crashes), keep_trace=True
                )
            except Exception as error:  # noqa: BLE001
                # Whatever it is, it is what the state has shown.
                known = recording.history_at(instant, "kill" if state.killed else "power")
                return Replayed([str(raised(error))], known, lines, "")
            if not crashes:
                break
            recording = Recording(
                recording.stage, recovered.history, recovered.instants, recovered.trace
            )
    try:
        violations = [str(each) for each in recovered.check_own()]
    except Exception as error:  # noqa: BLE001 - likewise
        violations = [str(raised(error))]
    return Replayed(
        violations, recovered.history, [*lines, *(recovered.trace or [])], recovered.digest
    )


def _find(recording: Recording, crash: str, cap: int) -> tuple[str, Instant, State]:
    number, _, name = crash.partition(".")
    if number.isdecimal() and int(number) < len(recording.instants):
        instant = recording.instants[int(number)]
        for state in states(instant, cap):
            if state.name == name:
                return crash, instant, state
    raise ValueError(f"no crash {crash} here: there are {len(recording.instants)} instants")


def _recover(
    recording: Recording,
    instant: Instant,
    state: State,
    *,
    watched: bool = False,
    keep_trace: bool = False,
) -> Recovered:
    known = recording.history_at(instant, "kill" if state.killed else "power")
    return StateRecovery(
        state, recording.stage, known, watched=watched, keep_trace=keep_trace
    ).run()


def _cap(workload: EnumeratedWorkload, cap: int | None) -> int:
    caps = CAPS[workload.stage]
    return cap if cap is not None else caps[min(len(workload.operations), len(caps) - 1)]


class _Group:
    """The enumeration of one group."""

    def __init__(self, cap: int | None, deeper_of: int) -> None:
        self._cap = cap
        self._deeper_of = deeper_of
        self._result = EnumerationResult()
        self._recovered: dict[str, Recovered] = {}
        self._created = 0

    def run(self, group: Group, base: Base) -> EnumerationResult:
        for workload in group:
            self._result.workloads += 1
            deeper = self._deeper_of if len(workload.operations) <= 1 else 0
            if workload.stage in LONG_STAGES:
                deeper *= DEEPER_OF_LONG
            self._all_states(
                str(workload), record(workload, base), _cap(workload, self._cap), deeper=deeper
            )
        return self._result

    def _all_states(
        self, name: str, recording: Recording, cap: int, *, deeper: int, inner: bool = False
    ) -> None:
        result = self._result
        evaluated: dict[tuple[str, int, int], None] = {}
        for number, instant in enumerate(recording.instants):
            result.points += 1
            result.sampled += instant.outside.image.outcome_count(cap) > cap
            for state in states(instant, cap):
                key = (state.key, instant.calls, instant.stamp)
                if key in evaluated:
                    continue
                evaluated[key] = None
                result.states += 1
                result.during_recovery += inner
                self._count(recording, instant, state, inner=inner)
                self._one_state(
                    f"{name}@{number}.{state.name}", recording, instant, state, deeper=deeper
                )

    def _one_state(
        self, name: str, recording: Recording, instant: Instant, state: State, *, deeper: int
    ) -> None:
        result = self._result
        try:
            violations = self._evaluated(name, recording, instant, state, deeper=deeper)
        except Exception as error:  # noqa: BLE001
            # Whatever it is, the name must not be lost with it.
            violations = [raised(error)]
        if violations:
            result.broken += 1
            if len(result.violations) < FOUND_MAX:
                full = name if self._cap is None else f"{name}~{self._cap}"
                result.violations.append(BrokenState(full, tuple(map(str, violations))))

    def _evaluated(
        self, name: str, recording: Recording, instant: Instant, state: State, *, deeper: int
    ) -> list[Violation]:
        """What the recovery of a state breaks in the history that led to it; crashed itself if it
        is one of `deeper`.
        """
        result = self._result
        recovered = self._recovered.get(state.key)
        if recovered is None:
            watched = deeper > 0 and zlib.crc32(state.key.encode()[::-1]) % deeper == 0
            recovered = _recover(recording, instant, state, watched=watched)
            self._created += 1
            if self._created % COLLECTED_AFTER == 0:
                gc.collect()
            result.recoveries += recovered.openings
            result.moves = result.moves.plus(recovered.moves)
            result.longest_recovery_s = max(result.longest_recovery_s, recovered.opening_us / 1e6)
            violations = recovered.check_own()
            if watched:
                inside = Recording(recording.stage, recovered.history, recovered.instants)
                self._all_states(name, inside, DEEPER_CAP, deeper=0, inner=True)
            self._recovered[state.key] = replace(recovered, instants=[])
        else:
            violations = recovered.evaluate(
                recording.history_at(instant, "kill" if state.killed else "power")
            )
        return violations

    def _count(self, recording: Recording, instant: Instant, state: State, *, inner: bool) -> None:
        points = self._result.fault_points
        if instant.before:
            points[f"crash.before.{instant.before}"] += 1
        if instant.after:
            points[f"crash.after.{instant.after}"] += 1
        points["crash.kill" if state.killed else "power.cut"] += 1
        phase = recording.phase(instant)
        points["crash.opening-again" if inner and phase == "opening" else f"crash.{phase}"] += 1


@contextmanager
def _calm() -> Iterator[None]:
    """Collections only between recoveries, and no log of what stops containers: here they stop all
    the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.unfreeze()
        if enabled:
            gc.enable()


Run = Callable[[Callable[[Group], EnumerationResult], Sequence[Group]], Iterator[EnumerationResult]]


@contextmanager
def _workers(jobs: int) -> Iterator[Run]:
    """A `map` on so many processes; what has not begun when it is left never does."""
    if jobs <= 1:
        yield map
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=settle_worker)

    def run(
        function: Callable[[Group], EnumerationResult], items: Sequence[Group]
    ) -> Iterator[EnumerationResult]:
        with starting_workers():
            return pool.map(function, items)

    try:
        yield run
    finally:
        pool.shutdown(cancel_futures=True)
