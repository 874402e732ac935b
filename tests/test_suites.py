"""`make test` and `make test-all` run every test there is; a run reports what it left out."""

from __future__ import annotations

import ast
import gc
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest

from tests.support.run_order import Group, arrange
from tests.support.run_report import SLOWEST, told
from tests.support.shards import Shard, fits, pack, rotation
from tests.support.suites import ALL_SIZES, IN_TEST, IN_TEST_ALL, size, slow

ROOT = Path(__file__).resolve().parent.parent
PROJECT = {
    "conftest.py": """
        from tests.support.run_order import Group, arrange
        from tests.support.run_report import RunReport

        def pytest_addoption(parser):
            parser.addoption("--shares", action="store_true")

        def pytest_configure(config):
            for name in ("slow", "sized"):
                config.addinivalue_line("markers", name)
            config.pluginmanager.register(RunReport(config))
    """,
    "rooms/test_all.py": """
        import pytest
        from tests.support.suites import share, sized, slow

        def test_plain(): pass

        @slow(1)
        def test_slow(): pass

        @sized(1)
        def test_sized(): pass

        @sized(1)
        @slow(1)
        def test_both(): pass

        @pytest.mark.parametrize("case", share(range(5), 2, 1.0))
        def test_shared(case): pass
    """,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of tests with every mixture of marks."""
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(re.sub(r"(?m)^ {8}", "", text), encoding="utf-8")
    return tmp_path


def pytest_run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--rootdir",
        str(folder),
        "-p",
        "no:randomly",
        *options,
        str(folder),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def pytest_says(folder: Path, *options: str) -> list[str]:
    done = pytest_run(folder, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def chosen(folder: Path, *options: str) -> set[str]:
    lines = pytest_says(folder, "-p", "no:xdist", "--collect-only", "-q", *options)
    return {line for line in lines if "::" in line}


def recipe(target: str) -> str:
    (found,) = re.findall(
        rf"(?m)^{target}: .*\n\t@(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8")
    )
    assert isinstance(found, str)
    return found


def test_make_chooses_by_marks_alone() -> None:
    assert recipe("unit") == f'$(PYTEST) -m "{IN_TEST}"'
    assert recipe("unit-all") == f'{ALL_SIZES}=all $(PYTEST) -m "{IN_TEST_ALL}"'
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (command,) = re.findall(r"(?m)^PYTEST = (.*)$", makefile)
    assert command == "$(BIN)/pytest -q --shares -n $(JOBS) --dist worksteal $(DRAWN)"
    assert "\nDRAWN = $(if $(SEED),--hypothesis-seed=$(SEED))\n" in makefile
    assert "\n\t@$(MAKE) --no-print-directory -j 3 static unit\n" in makefile
    hiding = r"--(?:ignore|deselect|collect-in)|norecursedirs|collect_ignore|python_(?:fi|cl|fu)"
    for name in ("Makefile", ".ci/run", "pyproject.toml", "tests/conftest.py"):
        assert re.search(hiding, (ROOT / name).read_text(encoding="utf-8")) is None, name


def test_no_mixture_of_marks_falls_between(project: Path) -> None:
    everything = chosen(project)
    small, rest = chosen(project, "-m", IN_TEST), chosen(project, "-m", IN_TEST_ALL)
    assert len(everything) == 9
    assert small | rest == everything
    assert {name.partition("::")[2] for name in small} == {
        "test_plain",
        "test_sized",
        *(f"test_shared[{number}]" for number in (0, 2, 4)),
    }
    assert {name.partition("::")[2] for name in small & rest} == {"test_sized"}


@slow(25)
@pytest.mark.timeout(900)
def test_every_test_there_is_runs_in_one_of_both_or_by_a_target_of_its_own() -> None:
    """One collection: it takes 20 s of a core."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert '\t@$(PYTEST) -m by_target -k "pravega" tests/clients tests/bench\n' in makefile
    assert '\t@CLIENT_KILL_RUNS=5 $(PYTEST) -k "kills" tests/clients\n' in makefile
    in_neither = f"not (({IN_TEST}) or ({IN_TEST_ALL}))"
    by_none = ("-m", in_neither, "-k", "not (by_target and (pravega or kills))")
    done = pytest_run(ROOT / "tests", "-p", "no:xdist", "--collect-only", "-q", *by_none)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    (count,) = re.findall(r"no tests collected \((\d+) deselected\)", done.stdout)
    assert int(count) > 5000


def test_no_test_is_where_pytest_does_not_search() -> None:
    hidden = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name.startswith("test_"):
            continue
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                hidden += [f"{path.relative_to(ROOT)}: {node.name}"] * bool(
                    re.match(r"test_|Test", node.name)
                )
    assert hidden == []


def test_marks_are_set_with_their_cost() -> None:
    bare = re.compile(r"pytest\.mark\.(?:slow|sized)\b")
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if path.name != "suites.py"
        and path != Path(__file__)
        and bare.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_size_is_small_whole_or_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ALL_SIZES, raising=False)
    assert size("NUMBER_OF_A_TEST", 3, 30) == 3
    monkeypatch.setenv(ALL_SIZES, "all")
    assert size("NUMBER_OF_A_TEST", 3, 30) == 30
    monkeypatch.setenv("NUMBER_OF_A_TEST", "300")
    assert size("NUMBER_OF_A_TEST", 3, 30) == 300


# --- shards ---------------------------------------------------------------------------------------

COSTS = {f"tests/test_{number}.py": [float(number)] * 3 for number in range(20)}


def test_shards_hold_every_file_once_and_are_alike() -> None:
    shards = pack(COSTS, 100.0)
    assert sorted(name for shard in shards for name in shard.files) == sorted(COSTS)
    assert sum(shard.seconds for shard in shards) == sum(map(sum, COSTS.values()))
    assert [80.0 < shard.seconds < 120.0 for shard in shards] == [True] * 6
    assert pack(dict(reversed(COSTS.items())), 100.0) == shards
    assert pack({}, 100.0) == []


def test_a_build_begins_where_its_commit_says_and_comes_round() -> None:
    assert rotation("0", 4) == [0, 1, 2, 3]
    assert rotation("ff03", 4) == [3, 0, 1, 2]
    assert {rotation(f"{number:040x}", 7)[0] for number in range(7)} == set(range(7))
    assert rotation("5", 0) == []


def test_a_shard_that_might_not_end_in_time_does_not_begin() -> None:
    shard = Shard(("a",), seconds=100.0, longest_s=20.0)
    assert shard.wall_s(1.0) == 90.0
    assert shard.wall_s(2.0) == 150.0
    assert Shard(("a",), seconds=100.0, longest_s=100.0).wall_s(1.0) == 130.0
    assert fits(shard, 10.0, 100.0, 1.0)
    assert not fits(shard, 11.0, 100.0, 1.0)
    assert not fits(shard, 10.0, 100.0, 1.1)


# --- the order of a run ---------------------------------------------------------------------------


def parts_of(order: Sequence[int], workers: int) -> list[list[int]]:
    """What each worker gets of a run in this order, as xdist's `worksteal` deals it out."""
    rest, parts = list(order), []
    for left in range(workers, 0, -1):
        count = len(rest) // left
        parts.append(rest[:count])
        rest = rest[count:]
    return parts


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("plain", [0, 5, 40, 401])
def test_tests_of_a_group_are_side_by_side_and_none_is_lost(workers: int, plain: int) -> None:
    groups: list[Group | None] = [None] * plain
    for name, count in (("spark 0", 30), ("spark 1", 20), ("cluster", 5), ("alone", 1)):
        groups += [Group(name, 1.0)] * count
    random.Random(plain).shuffle(groups)
    order = arrange(groups, workers)
    assert sorted(order) == list(range(len(groups)))
    named = [group.name for number in order if (group := groups[number]) is not None]
    assert [name for name, _ in groupby(named)] == list(dict.fromkeys(named))
    anywhere = [number for number in order if groups[number] is None]
    assert anywhere == sorted(anywhere), "modules stay together"


def test_each_worker_begins_with_groups_that_are_alike_and_ends_with_what_all_can_take() -> None:
    costs = {"a": 40.0, "b": 30.0, "c": 10.0, "d": 9.0, "e": 1.0}
    grouped = [Group(name, cost / 10) for name, cost in costs.items()] * 10
    groups: list[Group | None] = [*[None] * 200, *grouped]
    parts = parts_of(arrange(groups, 3), 3)
    begins = [{group.name for number in part if (group := groups[number])} for part in parts]
    assert begins == [{"a"}, {"b"}, {"c", "d", "e"}]
    for part in parts:
        fronts = [groups[number] is not None for number in part]
        assert fronts == sorted(fronts, reverse=True)


# --- what a run reports ---------------------------------------------------------------------------


def test_the_slowest_tests_and_the_share_of_each_folder_are_reported() -> None:
    seconds = {f"tests/a/test_x.py::test[{number}/{number}]": float(number) for number in range(30)}
    seconds["tests/b/test_y.py::test"] = 435.0
    lines = told(seconds)
    assert lines[0] == "the 20 slowest tests of 31, and 870 s in all:"
    assert lines[1] == "    435.0 s  tests/b/test_y.py::test"
    assert lines[SLOWEST] == "     11.0 s  tests/a/test_x.py::test[11/11]"
    assert lines[SLOWEST + 2 :] == [
        "   50.0 %    435.0 s     30 tests  tests/a",
        "   50.0 %    435.0 s      1 tests  tests/b",
    ]
    assert told({}) == []


@pytest.mark.parametrize(
    "workers", [("-p", "no:xdist"), ("-n", "2", "--dist", "worksteal")], ids=["alone", "xdist"]
)
def test_what_took_no_part_is_reported_with_workers_too(
    project: Path, workers: tuple[str, ...]
) -> None:
    lines = pytest_says(project, *workers, "-q", "--shares", "-m", IN_TEST)
    assert "4 tests took no part, by the choice of this run: rooms 4" in lines
    (head,) = (line for line in lines if "slowest tests" in line)
    assert head.startswith("the 5 slowest tests of 5, and ")
    (share_line,) = (line for line in lines if line.endswith("5 tests  rooms"))
    assert share_line.startswith("  100.0 %")


# --- sources that tests read ----------------------------------------------------------------------


class ParsesWhenCollected:
    """Garbage like a future whose error was never awaited: it is logged with its traceback."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.literal_eval("(1, 2)")


def test_a_source_is_parsed_beside_garbage_that_parses() -> None:
    source = (ROOT / "segmentstore" / "contracts" / "errors.py").read_bytes()
    thresholds, was_enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(50, 2, 2)
    gc.enable()
    try:
        for _ in range(20):
            kept = [ParsesWhenCollected() for _ in range(3)]
            del kept
            assert ast.parse(source).body
    finally:
        gc.set_threshold(*thresholds)
        if not was_enabled:
            gc.disable()
