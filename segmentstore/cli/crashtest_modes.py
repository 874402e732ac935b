"""The modes of `segmentstore crashtest`: simulated worlds, real processes that are killed, every
crash point.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Final

from recovery.harness.enumeration.driver import (
    BrokenState,
    EnumerationResult,
    enumerate_all,
    replay,
)
from recovery.harness.history import Violation
from recovery.harness.interrupts import stop_asked
from recovery.harness.kills.driver import PROCESS_RUNS, KillFailure, KillResult, run_kills
from recovery.harness.kills.points import MissingToolError
from recovery.harness.reporting.narrate import narrate
from segmentstore.cli.crashtest_runs import (
    COMMAND,
    SHRUNK_MAX,
    VIOLATIONS_SHOWN_MAX,
    Asked,
    RunDescription,
    RunOutcome,
    ShownFailure,
    describe_history,
    progress,
    simulate,
)
from segmentstore.cli.exit_codes import CommandError


def enumerate_points(asked: Asked) -> RunOutcome:
    """Every crash point of every short workload, however long that takes."""
    with progress(None) as bar:
        result = enumerate_all(
            depth=asked.depth,
            jobs=asked.jobs,
            on_progress=lambda so_far: bar.say(_enumerated(so_far)),
        )
        failures = [_broken(state) for state in result.violations]
        for failure in failures[: 0 if stop_asked() else SHRUNK_MAX]:
            failure.lines = list(describe_point(failure.name).lines)
    return RunOutcome(
        mode="enumerate",
        seed="",
        workload=f"every one of up to {asked.depth} operations",
        seconds=result.seconds,
        numbers={
            "workloads": result.workloads,
            "crash points": result.points,
            "different states left by them": result.states,
            "of these, left by a crash during a recovery": result.during_recovery,
            "recoveries": result.recoveries,
            "crash points with more outcomes than were tried": result.sampled,
            "longest recovery, simulated seconds": result.longest_recovery_s,
            "states with violations": result.broken,
        },
        points=dict(result.fault_points),
        failed=result.broken,
        failures=failures,
    )


def describe_point(name: str) -> RunDescription:
    """One enumerated state again. Raises CommandError if there is none of this name."""
    try:
        again = replay(name)
    except ValueError as error:
        raise CommandError(f"no such crash point: {error}") from error
    violations = [
        Violation(checker, detail)
        for checker, _, detail in (each.partition(": ") for each in again.violations)
    ]
    return describe_history(name, again.trace, again.digest, again.history, violations)


def _enumerated(result: EnumerationResult) -> str:
    return (
        f"{result.workloads:,} workloads, {result.points:,} crash points, {result.states:,} "
        f"states, {result.broken:,} failed"
    )


def _broken(state: BrokenState) -> ShownFailure:
    command = f"{COMMAND} --mode enumerate --replay {shlex.quote(state.name)}"
    return ShownFailure(state.name, list(state.violations[:VIOLATIONS_SHOWN_MAX]), command)


def kill_processes(asked: Asked) -> RunOutcome:
    """Real processes, killed until the time is over, at exact system calls too.

    A store that broke a rule is kept.
    """
    with progress(asked.seconds if asked.runs is None else None) as bar:
        try:
            result = run_kills(
                asked.folder,
                seed=asked.seed,
                workload=asked.workload,
                cycles=asked.runs,
                seconds=asked.seconds if asked.runs is None else None,
                jobs=asked.jobs,
                exact=asked.exact,
                on_progress=lambda so_far: bar.say(_said(so_far)),
            )
        except MissingToolError as error:
            raise CommandError(f"{error}; or leave these kills out: --no-exact") from error
    return RunOutcome(
        mode="kill",
        seed=asked.seed,
        workload=asked.workload,
        seconds=result.seconds,
        numbers={
            "stores": result.stores,
            "kills": result.kills,
            "kills at exact system calls": result.exact_kills,
            "takeovers": result.takeovers,
            "openings": result.openings,
            "calls": result.calls,
            "acknowledged appends": result.appends,
            "longest recovery, seconds": result.longest_recovery_s,
            "stores with violations": result.failed,
            **{f"ended by: {kind}": number for kind, number in sorted(result.kinds.items())},
        },
        points={},
        failed=result.failed,
        failures=[_killed(failure, asked) for failure in result.failures],
    )


def _said(result: KillResult) -> str:
    return (
        f"{result.kills:,} kills, {result.takeovers:,} takeovers, {result.openings:,} "
        f"openings, {result.failed:,} failed"
    )


def _killed(failure: KillFailure, asked: Asked) -> ShownFailure:
    violations = [str(violation) for violation in failure.violations[:VIOLATIONS_SHOWN_MAX]]
    # The seed of a store ends in its number: so many lives come to it and carry it through.
    process_runs = PROCESS_RUNS * (int(failure.seed.rpartition("/")[2]) + 1)
    retry = shlex.join(
        [
            *COMMAND.split(),
            *("--mode", "kill", "--seed", asked.seed, "--workload", failure.workload),
            *("--runs", str(process_runs if asked.runs is None else min(process_runs, asked.runs))),
            *([] if asked.exact else ["--no-exact"]),
        ]
    )
    lines = [
        f"the files of the store are kept in {failure.folder}",
        *narrate(failure.history, failure.violations),
    ]
    return ShownFailure(
        f"{failure.workload}, seed {failure.seed}", violations, retry=retry, lines=lines
    )


RUNNERS: Final[Mapping[str, Callable[[Asked], RunOutcome]]] = {
    "simulate": simulate,
    "kill": kill_processes,
    "enumerate": enumerate_points,
}
"""By the names of the modes."""
