"""What `make spark-versions` says at its end: by group, from a pytest that ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.suites import slow
from tests.tier2.spark import check_versions
from tests.tier2.spark.version_groups import Count, counted, faults, table

TESTS = """
import os, pytest, unittest
pytestmark = pytest.mark.filterwarnings("default")
@pytest.mark.spark_versions("whole")
def test_1(): pass
@pytest.mark.spark_versions("whole")
def test_2(): pass
@pytest.mark.spark_versions("broken")
class TestBroken:
    def test_1(self): pass
    def test_2(self): assert False
    @pytest.fixture
    def bad(self):
        yield
        raise OSError("behind a test that passed")
    def test_3(self, bad): pass
@pytest.mark.spark_versions("skipped")
def test_3(): raise unittest.SkipTest("not here")
def test_4(): raise AssertionError("not of these")
@pytest.mark.spark_versions("dead")
def test_5(): os._exit(9)
@pytest.mark.spark_versions("dead")
def test_6(): pass
"""
_MODULES = (
    check_versions.JOB_MODULES + check_versions.SOURCE_MODULES + check_versions.CONNECT_MODULES
)
ALL = ("whole", "broken", "skipped", "dead", "nowhere", "lacking")


def run(folder: Path) -> dict[str, Count | None]:
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers = spark_versions(group): as here\n", encoding="utf-8"
    )
    (folder / "test_some.py").write_text(TESTS, encoding="utf-8")
    plugin = (
        "-p",
        "tests.tier2.spark.version_groups",
        "--outcomes",
        "outcomes",
        "-m",
        "spark_versions",
    )
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        *plugin,
        str(folder),
    )
    root = str(check_versions.ROOT)
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 9, done.stdout + done.stderr
    return dict(counted((folder / "outcomes").read_text(encoding="utf-8")))


def test_each_group_is_reported_also_of_a_run_whose_process_died(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert found == {
        "whole": Count(passed=2),
        "broken": Count(passed=1, failed=2),
        "skipped": Count(not_run=1),
        "dead": Count(not_run=2),
    }
    found["lacking"] = None
    assert table(ALL, {"1.0": found, "2.0": {"whole": Count(passed=1)}}) == [
        "         1.0                 2.0",
        "whole    2 passed            1 passed",
        "broken   1 passed, 2 FAILED  NOT RUN",
        "skipped  1 NOT RUN           NOT RUN",
        "dead     2 NOT RUN           NOT RUN",
        "nowhere  NOT RUN             NOT RUN",
        "lacking  none                NOT RUN",
    ]
    assert faults(ALL, found) == [
        "broken: 1 passed, 2 FAILED",
        "skipped: 1 NOT RUN",
        "dead: 2 NOT RUN",
        "nowhere: NOT RUN",
    ]


@slow(20)
def test_every_mark_names_a_group_that_is_searched_for(tmp_path: Path) -> None:
    outcomes = tmp_path / "outcomes"
    plugin = (
        "-p",
        "tests.tier2.spark.version_groups",
        "--outcomes",
        str(outcomes),
        "-m",
        "spark_versions",
    )
    folder = Path(__file__).parent
    modules = [str(folder / name) for name in _MODULES]
    command = (sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:xdist", *plugin)
    everywhere = subprocess.run(
        [*command, str(folder)],
        cwd=check_versions.ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert everywhere.returncode == 0, everywhere.stdout + everywhere.stderr
    collected = outcomes.read_text(encoding="utf-8").splitlines()
    assert set(counted("\n".join(collected))) == set(check_versions.GROUPS)
    named = {line.split("\t")[2].partition("::")[0] for line in collected}
    assert {str(check_versions.ROOT / name) for name in named} == set(modules)
