"""`segmentstore crashtest`: what it runs, what it shows, and that a failure comes with the command
that replays it.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pytest

from recovery.harness.enumeration.driver import enumerate_all
from recovery.harness.interrupts import deferred, stop_asked
from recovery.harness.kills import driver as kill_driver
from recovery.harness.kills.points import require_exact_kills
from recovery.harness.kills.round import KillRound
from recovery.harness.runs.plan import Plan, draw_plan
from recovery.harness.simulation.disk_nodes import Inode
from recovery.harness.simulation.fault_points import TABLE
from segmentstore.cli import crashtest_modes
from segmentstore.cli.crashtest_command import Mode, crashtest_command
from segmentstore.cli.crashtest_options import MEANINGLESS
from segmentstore.cli.exit_codes import ExitCode
from tests.cli.shell import Result, segmentstore
from tests.harness.test_kill import SETTINGS, cut_last_frame
from tests.support.suites import slow

RUNS = 1
"""Of each test: a run takes half a second of a core."""
SIMULATE = ("crashtest", "--runs", RUNS, "--jobs", 1)


def lines_of(result: Result) -> list[str]:
    return result.out.decode().splitlines()


@pytest.fixture
def lying_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that says it has synced a file, and has not."""
    monkeypatch.setattr(Inode, "sync", lambda _self: None)


def test_no_rule_is_broken_without_assertions() -> None:
    """`python -O` leaves them out."""
    command = [sys.executable, "-O", "-m", "segmentstore", *map(str, SIMULATE), "--seed", "clean"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@slow(2)
def test_runs_are_counted_and_shown() -> None:
    result = segmentstore(*SIMULATE, "--seed", "clean")
    assert result.code == 0
    shown = result.out.decode()
    for word in (
        "crash-recoveries",
        "simulated hours",
        "longest recovery",
        "fault points met",
        "no rule was broken",
    ):
        assert word in shown
    assert result.err == ""


@slow(3)
def test_a_seed_gives_the_same_runs_again() -> None:
    first, second = (segmentstore(*SIMULATE, "--seed", "same", "--json").json() for _ in range(2))
    for timed in ("seconds", "numbers"):
        assert first.pop(timed)
        assert second.pop(timed)
    assert first == second
    assert first["points_known"] == len(TABLE)
    assert first["seed"] == "same"


@slow(4)
def test_without_a_seed_one_is_drawn_and_reported() -> None:
    seeds = {
        segmentstore("crashtest", "--runs", 1, "--jobs", 1, "--json").json()["seed"]
        for _ in range(2)
    }
    assert len(seeds) == 2


@slow(2)
def test_every_fault_point_is_listed_when_asked_for() -> None:
    shown = lines_of(segmentstore(*SIMULATE, "--seed", "clean", "--points"))
    assert all(any(f" {name} " in line for line in shown) for name in TABLE)


@slow(6)
def test_several_processes_run_side_by_side() -> None:
    numbers = segmentstore(
        "crashtest", "--runs", 6, "--jobs", 2, "--seed", "wide", "--json"
    ).json()["numbers"]
    assert numbers["runs"] == 6


@slow(2)
@pytest.mark.parametrize("runs", [1, 2])
def test_there_are_exactly_as_many_runs_as_were_asked_for(runs: int) -> None:
    numbers = segmentstore(
        "crashtest", "--runs", runs, "--jobs", 1, "--seed", "few", "--json"
    ).json()["numbers"]
    assert numbers["runs"] == runs


@slow(2)
def test_a_run_is_reported_with_its_trace() -> None:
    result = segmentstore("crashtest", "--replay", "clean/0")
    again = segmentstore("crashtest", "--replay", "clean/0")
    assert result.code == 0
    assert result.out == again.out
    lines = lines_of(result)
    assert any("store.link" in line for line in lines)
    assert any("opens the store" in line for line in lines)
    assert lines[-1] == "clean/0: no rule was broken"


@pytest.mark.usefixtures("lying_disk")
def test_a_failure_is_shrunk_and_comes_with_the_commands_that_replay_it(tmp_path: Path) -> None:
    result = segmentstore(*SIMULATE, "--seed", "lies", "--folder", tmp_path)
    assert result.code == 1
    lines = lines_of(result)
    assert lines[-1] == "RULES WERE BROKEN"
    said = [
        line.partition(":")[2] for line in lines if line.startswith(("  again", "  what it was"))
    ]
    replay, smaller = (shlex.split(command)[1:] for command in said[:2])
    assert replay[:3] == ["crashtest", "--workload", "default"]
    assert segmentstore(*replay).code == 1
    assert segmentstore(*smaller).code == 1
    (kept,) = tmp_path.iterdir()
    plan = Plan.from_json(kept.read_text(encoding="utf-8"))
    assert len(plan.cycles) < len(draw_plan(plan.seed, plan.workload).cycles)
    assert any("VIOLATION" in line for line in lines)


@slow(3)
@pytest.mark.usefixtures("lying_disk")
def test_a_failure_in_json_has_its_violations_and_its_plan(tmp_path: Path) -> None:
    result = segmentstore(*SIMULATE, "--seed", "lies", "--folder", tmp_path, "--json")
    assert result.code == 1
    failure = result.json()["failures"][0]
    assert failure["violations"]
    assert Path(failure["plan_file"]).parent == tmp_path
    assert result.json()["failed"] >= 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--workload", "no-such"), "no such workload: no-such"),
        (("--mode", "kill", "--replay", "a/0"), "cannot be replayed"),
        (("--mode", "no-such"), "no-such"),
        (("--plan", "no-such-file"), "no-such-file"),
        (("--jobs", "0"), "--jobs"),
        (("--seconds", "0"), "--seconds must be above 0"),
        (("--seconds", "-1"), "--seconds must be above 0"),
        (("--seconds", "nan"), "--seconds must be above 0"),
        (("--folder", __file__), "--folder"),
        (("--mode", "enumerate", "--seed", "a"), "no --seed"),
        (("--mode", "enumerate", "--workload", "default"), "no --workload"),
        (("--mode", "kill", "--points"), "no --points"),
        (("--mode", "simulate", "--depth", "1"), "--mode simulate has no --depth"),
        (("--depth", "3"), "--mode simulate has no --depth"),
        (("--no-exact",), "--mode simulate has no --no-exact"),
        (("--exact",), "--mode simulate has no --exact"),
        (("--runs", "1", "--seconds", "1"), "--runs has no --seconds"),
        (("--mode", "kill", "--depth", "1"), "--mode kill has no --depth"),
        (("--mode", "kill", "--plan", __file__), "--mode kill has no --plan"),
        (("--mode", "enumerate", "--plan", __file__), "--mode enumerate has no --plan"),
        (("--mode", "enumerate", "--runs", "1"), "--mode enumerate has no --runs"),
        (("--mode", "enumerate", "--seconds", "1"), "--mode enumerate has no --seconds"),
        (("--mode", "enumerate", "--folder", "."), "--mode enumerate has no --folder"),
        (("--mode", "enumerate", "--no-exact"), "--mode enumerate has no --no-exact"),
        (
            ("--mode", "enumerate", "--replay", "object/@0.kill.0", "--depth", "1"),
            "--replay has no --depth",
        ),
        (("--replay", "clean/0", "--seed", "a"), "--replay has no --seed"),
        (("--replay", "clean/0", "--points"), "--replay has no --points"),
        (("--replay", "clean/0", "--runs", "1"), "--replay has no --runs"),
        (("--replay", "clean/0", "--jobs", "1"), "--replay has no --jobs"),
        (("--plan", __file__, "--workload", "default"), "--plan has no --workload"),
        (("--plan", __file__, "--seconds", "1"), "--plan has no --seconds"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], complaint: str) -> None:
    result = segmentstore("crashtest", *arguments)
    assert result.code == 2
    assert complaint in result.err


def test_every_option_that_is_said_to_mean_nothing_is_one_of_the_command() -> None:
    known = inspect.signature(crashtest_command).parameters
    for asked, options in MEANINGLESS.items():
        mode = re.fullmatch(r"--mode (\w+)", asked)
        assert Mode(mode[1]) if mode else asked.removeprefix("--") in known, asked
        assert set(options) <= set(known)


@pytest.mark.parametrize("change", ["workload", "rates", "cycles", "text"])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, change: str) -> None:
    fields = json.loads(draw_plan("a", "default").to_json())
    fields[change] = {
        "workload": "no-such",
        "rates": {"no-such": 1.0},
        "cycles": [{"no": "such"}],
        "text": 1,
    }[change]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    result = segmentstore("crashtest", "--plan", path)
    assert result.code == 2
    assert "no" in result.err


def test_a_plan_and_a_seed_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(draw_plan("a", "default").to_json(), encoding="utf-8")
    assert segmentstore("crashtest", "--plan", path, "--replay", "a/0").code == 2


def test_progress_goes_to_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    result = segmentstore(*SIMULATE, "--seed", "clean", "--json")
    assert f"{RUNS} runs, " in result.err
    assert result.json()["numbers"]["runs"] == RUNS


def test_real_processes_are_killed_and_counted(tmp_path: Path) -> None:
    result = segmentstore(
        "crashtest",
        "--mode",
        "kill",
        "--runs",
        2,
        "--jobs",
        1,
        "--no-exact",
        "--folder",
        tmp_path,
        "--json",
    )
    assert result.code == 0
    numbers = result.json()["numbers"]
    assert numbers["kills"] > 0
    assert numbers["kills at exact system calls"] == 0
    assert result.json()["failures"] == []
    assert list(tmp_path.iterdir()) == []


@slow(2)
def test_a_temporary_folder_is_removed_when_nothing_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    result = segmentstore(
        "crashtest", "--mode", "kill", "--runs", 1, "--jobs", 1, "--no-exact", "--json"
    )
    assert result.code == 0
    assert result.json()["failures"] == []
    assert result.json()["folder"] == ""
    assert os.listdir() == ["temporary"], "nothing is left in the current folder"
    assert not [
        name for name in os.listdir("temporary") if name.startswith("segmentstore-crashtest-")
    ]


@slow(2)
@pytest.mark.usefixtures("lying_disk")
def test_a_temporary_folder_is_kept_and_named_when_something_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = segmentstore(*SIMULATE, "--seed", "lies")
    assert result.code == 1
    (kept,) = tmp_path.glob("segmentstore-crashtest-*")
    assert f"files of what failed are kept in {kept}" in lines_of(result)
    assert list(kept.glob("*.json"))


@slow(12)
def test_ctrl_c_shows_what_was_done_without_a_traceback(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "segmentstore",
        "crashtest",
        "--seconds",
        "3600",
        "--jobs",
        "2",
        "--json",
    ]
    # Rich's own variable: progress is shown as on a terminal.
    environment = {**os.environ, "TTY_COMPATIBLE": "1", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=PIPE, stderr=PIPE, start_new_session=True
    ) as child:
        assert child.stderr is not None
        said = b""
        while b" runs, " not in said:
            part = os.read(child.stderr.fileno(), 4096)
            assert part, said
            said += part
        # As a terminal does it: to the workers, too.
        os.killpg(child.pid, signal.SIGINT)
        out, rest = child.communicate()
    assert child.returncode == ExitCode.INTERRUPTED
    document = json.loads(out)
    assert document["interrupted"]
    assert document["numbers"]["runs"] > 0
    assert b"stopping after what is under way" in said + rest
    assert b"Traceback" not in said + rest
    assert list(tmp_path.iterdir()) == []


def test_a_killed_store_is_checked_after_the_process_run_it_is_in(tmp_path: Path) -> None:
    with deferred(lambda: None):
        signal.raise_signal(signal.SIGINT)
        assert stop_asked()
        stopped = KillRound(tmp_path / "a", "seed", "appends", 5, exact=False).run()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert not stop_asked()
    assert stopped.violations == []
    assert stopped.kills == 0


@slow(6)
def test_a_store_that_was_killed_and_broke_a_rule_comes_with_the_command_that_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_frame(location: Path, life: int) -> None:
        if life == 2:
            cut_last_frame(location)

    lossy = partial(KillRound, deck=("close",), settings=SETTINGS, tamper=lose_frame)
    monkeypatch.setattr(kill_driver, "KillRound", lambda *args, exact: lossy(*args, exact=exact))
    asked = (
        "--mode",
        "kill",
        "--seed",
        "a lost frame",
        "--workload",
        "appends",
        "--runs",
        "3",
        "--no-exact",
    )
    result = segmentstore("crashtest", *asked, "--jobs", 1, "--folder", tmp_path)
    assert result.code == 1
    said = [
        line.partition(":")[2] for line in lines_of(result) if line.startswith("  the same kinds")
    ]
    assert [shlex.split(command) for command in said] == [["segmentstore", "crashtest", *asked]]
    told = [line for line in lines_of(result) if line.startswith("  content: ")]
    assert told
    assert len(told) == len(dict.fromkeys(told))


def test_kills_that_need_a_tool_that_is_not_there_break_no_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    require_exact_kills.cache_clear()
    result = segmentstore("crashtest", "--mode", "kill", "--runs", 1, "--folder", tmp_path)
    require_exact_kills.cache_clear()
    assert result.code == 2
    assert "--no-exact" in result.err


ENUMERATE = ("crashtest", "--mode", "enumerate")


@slow(40)
def test_crash_points_are_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        crashtest_modes, "enumerate_all", partial(enumerate_all, cap=1)
    )  # the rest has tests of its own
    result = segmentstore(*ENUMERATE, "--depth", 0, "--jobs", 1, "--json")
    assert result.code == 0
    numbers = result.json()["numbers"]
    assert numbers["crash points"] > 20
    assert numbers["recoveries"] > numbers["states with violations"] == 0


@slow(8)
@pytest.mark.usefixtures("lying_disk")
def test_a_broken_state_comes_with_the_command_that_makes_it_again() -> None:
    result = segmentstore(*ENUMERATE, "--depth", 1, "--jobs", 1, "--json")
    assert result.code == 1
    failure = result.json()["failures"][0]
    again = segmentstore(*shlex.split(failure["replay"])[1:])
    assert again.code == 1
    assert lines_of(again)[-1] == f"{failure['name']}: RULES WERE BROKEN"
    assert failure["lines"]


@pytest.mark.parametrize(
    "name", ["no-such", "object/append", "object/append@9999.kill", "object/append~x@1.kill"]
)
def test_a_crash_point_that_does_not_exist_is_refused(name: str) -> None:
    result = segmentstore(*ENUMERATE, "--replay", name)
    assert result.code == 2
    assert "no such crash point" in result.err
