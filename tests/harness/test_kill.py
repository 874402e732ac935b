"""Real processes on real files, killed at random instants and exact system calls, stopped,
overtaken: nothing is lost.

More of it: HARNESS_KILL_CYCLES. The seed of a run is in its output: HARNESS_KILL_SEED draws the
same kinds again.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from durablelog.file.frame_reports import read_only_frames
from recovery.harness.checkers import all_checks
from recovery.harness.checkers.index import HistoryIndex
from recovery.harness.history import CallOutcome, Violation
from recovery.harness.history_codec import Event
from recovery.harness.kills import process as kill_process
from recovery.harness.kills.driver import PROCESS_RUNS, KillResult, kill_store, run_kills
from recovery.harness.kills.orders import Orders
from recovery.harness.kills.points import (
    DECK,
    POINTS,
    MissingToolError,
    draw_kills,
    require_exact_kills,
    tracer,
)
from recovery.harness.kills.process import Child, ChildHungError, attend
from recovery.harness.kills.round import KillRound
from segmentstore.contracts.disk import OsDisk
from tests.store.harness import UNFLUSHED
from tests.support.suites import share, size, sized, slow

CYCLES = size("HARNESS_KILL_CYCLES", len(DECK), PROCESS_RUNS)
"""Of each part."""
PARTS = ("default", "everything", "lifecycle", "exactly-once", "connect")
SETTINGS = {
    **UNFLUSHED,
    "containers": 1,
    "checkpoint_operations": 100_000,
    "checkpoint_bytes": 1 << 30,
    "tail_bytes_max": 1 << 20,
}
"""Nothing but appends goes to the log: a spiller that falls behind a smaller tail makes flushes."""


@sized(35)
@pytest.mark.timeout(300 + 20 * CYCLES)
@pytest.mark.parametrize("workload", share(PARTS, 5, 35))
def test_nothing_acknowledged_is_lost_by_kills(workload: str, tmp_path: Path) -> None:
    try:
        require_exact_kills()
    except MissingToolError as error:
        pytest.fail(str(error))
    seed = os.environ.get("HARNESS_KILL_SEED", f"{random.SystemRandom().getrandbits(32):x}")
    print(f"HARNESS_KILL_SEED={seed}")
    result = run_kills(tmp_path, seed=f"{seed}/{workload}", workload=workload, cycles=CYCLES)
    print(told(result))
    assert [str(violation) for failure in result.failures for violation in failure.violations] == []
    rounds = CYCLES // len(DECK)
    # Of the 15 that a round can have: each of its three overtaken owners may have given up and
    # ended by itself before.
    assert result.kills >= 12 * rounds
    assert result.exact_kills >= 4 * rounds
    # Clients of `connect` send again what a kill has cut off.
    assert workload == "connect" or result.failed_calls >= rounds // 2
    assert result.takeovers >= rounds
    assert result.openings >= 7 * rounds
    assert list(tmp_path.iterdir()) == []


def told(result: KillResult) -> str:
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(result.kinds.items()))
    numbers = (
        f"{result.kills} kills, {result.takeovers} takeovers ({result.fenced} calls fenced), "
        f"{result.calls} calls"
    )
    return (
        f"{numbers} in {result.seconds:.1f} s, longest recovery "
        f"{result.longest_recovery_s:.2f} s: {kinds}"
    )


def cut_last_frame(location: Path) -> Path:
    """What was acknowledged last is missing from the log of container 0; the file it was in."""
    frames = [
        each
        for each in read_only_frames(str(location / "log" / "0"), OsDisk())
        if each.status == "ok"
    ]
    os.truncate(frames[-1].path, frames[-1].position)
    return Path(frames[-1].path)


def test_a_lost_frame_is_found(tmp_path: Path) -> None:
    """The checks are checked: the test cuts the last frame off the log of a store that was
    closed.
    """
    cut: list[Path] = []

    def cut_after_two_process_runs(location: Path, process_run: int) -> None:
        if process_run == 2:
            cut.append(cut_last_frame(location))

    process_runs = KillRound(
        tmp_path / "store",
        "lost",
        "appends",
        3,
        deck=("close",),
        settings=SETTINGS,
        tamper=cut_after_two_process_runs,
    )
    result = process_runs.run()
    assert cut
    named = {number for violation in result.violations for number in violation.calls}
    lost = [result.history.calls[number] for number in sorted(named)]
    assert any(call.outcome is CallOutcome.OK and call.process_run < 2 for call in lost), (
        result.violations
    )


@slow(3)
def test_what_is_wrong_with_the_files_of_a_relative_folder_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def lose_object(location: Path, process_run: int) -> None:
        if process_run == 1:
            next(
                each for each in sorted((location / "tier2").rglob("*")) if each.is_file()
            ).unlink()

    settings = {"containers": 1, "flush_bytes": 1, "flush_age_s": 0.01}
    process_runs = KillRound(
        Path("store"), "once", "appends", 2, deck=("close",), settings=settings, tamper=lose_object
    )
    violations = [
        (each.checker, each.detail, tuple(each.calls)) for each in process_runs.run().violations
    ]
    assert violations
    assert len(violations) == len(dict.fromkeys(violations))
    assert not any("ValueError" in detail for _, detail, _ in violations)


@slow(8)
def test_only_who_was_killed_counts_as_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that is overtaken while it opens gives up, and has ended by itself when it would be
    killed.
    """
    killed: dict[int, bool] = {}
    kill = Child.kill

    def noted(child: Child) -> Event:
        if child.has_parted:
            attend([child], lambda: child.ended)
            child._process.wait()
        event = kill(child)
        killed[child.orders.process_run] = child.was_killed
        return event

    monkeypatch.setattr(Child, "kill", noted)
    result = KillRound(
        tmp_path / "store", "counted", "appends", 3, deck=("race",), settings=SETTINGS
    ).run()
    assert [str(violation) for violation in result.violations] == []
    assert result.kills == sum(killed.values())


@slow(1)
def test_a_store_whose_checker_raises_has_failed_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(index: HistoryIndex) -> Iterator[Violation]:
        raise KeyError(f"{len(index.calls)} calls")

    monkeypatch.setattr(all_checks, "CHECKERS", (planted,))
    result = kill_store(tmp_path, "raises/0", 0, "appends", exact=False)
    (failure,) = result.failures
    assert (failure.seed, Path(failure.folder).is_dir()) == ("raises/0", True)
    assert [str(each)[:17] for each in failure.violations] == ["harness: KeyError"]
    assert "test_kill.py" in failure.violations[0].detail


def test_without_exact_kills_no_other_program_is_needed(tmp_path: Path) -> None:
    kills = list(islice(draw_kills("seed", exact=False), 40))
    assert {kill.kind for kill in kills} == {"random", "takeover", "race", "close"}
    assert [tracer(kill, tmp_path) for kill in kills] == [[]] * 40


def test_a_seed_draws_the_same_kills_and_every_point_has_its_turn() -> None:
    kills = list(islice(draw_kills("seed"), 10 * len(DECK)))
    assert kills == list(islice(draw_kills("seed"), 10 * len(DECK)))
    assert {kill.point for kill in kills if kill.kind == "call"} == set(POINTS)
    assert {kill.error for kill in kills if kill.kind == "error"} == {"EAGAIN", "EIO", "ENOSPC"}
    for start in range(0, len(kills), len(DECK)):
        assert sorted(kill.kind for kill in kills[start : start + len(DECK)]) == sorted(DECK)


def test_who_lacks_the_tool_learns_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    require_exact_kills.cache_clear()
    with pytest.raises(MissingToolError, match="apt-get install strace"):
        run_kills(tmp_path / "stores", seed="none", cycles=1)


def test_who_may_not_trace_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "strace"
    program.write_text(
        "#!/bin/sh\necho 'ptrace: Operation not permitted' >&2\nexit 1\n", encoding="utf-8"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    require_exact_kills.cache_clear()
    with pytest.raises(MissingToolError, match=r"ptrace must be allowed.*Operation not permitted"):
        require_exact_kills()


@pytest.fixture(autouse=True)
def _ask_again() -> None:
    require_exact_kills.cache_clear()


def test_a_child_that_hangs_is_found_and_reports_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = Orders(str(tmp_path / "store"), 0, "seed", "default", 0, 0, settings=SETTINGS)
    with Child(orders) as child:
        attend([child], lambda: child.idle)
        monkeypatch.setattr(kill_process, "SILENT_S", 0.1)
        with pytest.raises(ChildHungError, match=r"in _live|run_forever|select"):
            attend([child], lambda: False)
        assert not child.was_killed
    assert list(child.said) == [
        "born",
        "opening",
        "opened",
        "observing",
        "seen",
        "observed",
        "done",
    ]


def test_a_stopped_child_reports_nothing_until_it_goes_on(tmp_path: Path) -> None:
    orders = Orders(str(tmp_path / "store"), 0, "seed", "appends", 0, 2000, settings=SETTINGS)
    with Child(orders) as child:
        attend([child], lambda: len(child.events) > 20)
        assert child.stop()
        told_before = len(child.events)
        attend([child], lambda: False, 0.2)
        assert len(child.events) == told_before
        child.signal(signal.SIGCONT)
        attend([child], lambda: len(child.events) > told_before)
        assert child.used_calls > 0
        child.kill()
        assert child.was_killed
