"""Every case's floor and skeleton give sane numbers on tiny sizes; results come out as table and
JSON. No timing.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from bench import attribute_appends, catch_up, child, large_appends, machine, recovery, suite
from bench.engine import sum_of
from bench.floor import MIB
from bench.loads import percentile
from bench.process import Watch, open_files, resident_bytes, resident_peak_bytes
from bench.report import CaseResult, Row, Samples, extras_of, latency_ms, number, show
from bench.tail_reader import TailTimeline
from bench.workspace import BenchError, copy_store

TINY: dict[str, dict[str, float]] = {
    "concurrent_callers": {"callers": 20, "appends_each": 5},
    "one_producer": {"count": 200, "window": 16},
    "append_batch": {"callers": 8, "batches_each": 2},
    "arrivals": {"burst": 10, "seconds": 0.05},
    "large_appends": {"append_bytes": 65_536, "window": 4, "total_bytes": 2 * MIB},
    "tail_reader": {"appends": 20},
    "memory": {"total_bytes": 2 * MIB},
}


@pytest.mark.parametrize("side", ["floor", "skeleton"])
@pytest.mark.parametrize("case", sorted(TINY))
def test_floor_and_skeleton_of_a_case(
    case: str, side: str, tmp_path: Path, small_files: None
) -> None:
    module = importlib.import_module(suite.CASES[case])
    measured = getattr(module, f"{side}_round")(str(tmp_path), **TINY[case])
    assert math.isfinite(measured["value"])
    if case != "tail_reader":  # a delay may be negative: the reader may come first
        assert measured["value"] > 0
    json.dumps(measured)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preallocate 4 MiB where a bench would take 256: `file_bytes` is a default, bound when the
    function was made.
    """
    for module_name, function in (
        ("bench.floor", "synced_write_rate"),
        ("bench.skeleton", "Skeleton.__init__"),
    ):
        target: Any = importlib.import_module(module_name)
        for part in function.split("."):
            target = getattr(target, part)
        defaults = tuple(4 * MIB if value == 256 * MIB else value for value in target.__defaults__)
        monkeypatch.setattr(target, "__defaults__", defaults)


def test_appends_with_attributes_stand_beside_those_without(tmp_path: Path) -> None:
    measured = attribute_appends.engine_round(str(tmp_path), attribute_appends.TURN_APPENDS)
    assert list(measured) == list(attribute_appends.SIDES)
    assert min(measured.values()) > 0


def test_large_appends_have_tier2_on_the_disk_and_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = TINY["large_appends"]
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(large_appends, "MEMORY_FOLDER", tmp_path / "memory")
    assert large_appends.engine_round(str(tmp_path / "a"), **sizes)["value"] > 0
    assert large_appends.elsewhere_round(str(tmp_path / "b"), **sizes)["value"] > 0
    there = [(tmp_path / name / "store" / "tier2").exists() for name in "ab"]
    assert there == [True, False]
    assert not list((tmp_path / "memory").iterdir())
    monkeypatch.setattr(large_appends, "MEMORY_FOLDER", tmp_path / "missing")
    with pytest.raises(BenchError, match="room for 4 MiB"):
        large_appends.elsewhere_round(str(tmp_path / "c"), **sizes)


def test_recovery_scans_what_the_skeleton_wrote(tmp_path: Path) -> None:
    recovery.fill_skeleton(str(tmp_path), 300)
    assert recovery.skeleton_round(str(tmp_path), 300)["value"] > 0
    with pytest.raises(BenchError, match="300 records found of 301"):
        recovery.skeleton_round(str(tmp_path), 301)


def test_recovery_opens_copies_of_what_the_engine_wrote(tmp_path: Path) -> None:
    (tmp_path / "filled").mkdir()
    arguments = {"directory": str(tmp_path / "filled"), "operations": 3_000}
    child.call(recovery.__name__, "fill_engine", arguments)
    copy_store(tmp_path / "filled", tmp_path / "copy")
    arguments["directory"] = str(tmp_path / "copy")
    assert child.call(recovery.__name__, "engine_round", arguments)["replayed"] >= 3_000


def test_catch_up_reads_the_object_files_alone(tmp_path: Path) -> None:
    (tmp_path / "tier2" / "ab").mkdir(parents=True)
    (tmp_path / "tier2" / "ab" / "object").write_bytes(bytes(2 * MIB + 5))
    (tmp_path / "tier2" / "mark").write_bytes(b"m")
    assert [path.name for path in catch_up._objects(str(tmp_path))] == ["object"]
    for side in (catch_up.floor_round, catch_up.skeleton_round):
        assert side(str(tmp_path), 0, 0)["value"] > 0


@pytest.mark.parametrize("case", sorted(suite.CASES))
def test_every_case_has_the_suites_interface(case: str) -> None:
    module = importlib.import_module(suite.CASES[case])
    assert module.__name__ == f"bench.{case}"
    assert module.QUESTION
    assert callable(module.run)


def test_a_child_gives_back_its_result_and_its_last_words() -> None:
    result: object = child.call("bench.loads", "percentile", {"ordered": [1.0, 2.0], "share": 0.5})
    assert result == 2.0
    with pytest.raises(BenchError, match="exit code 1"):
        child.call("bench.loads", "percentile", {"ordered": [], "share": 0.5})


def test_machine_facts_are_json(tmp_path: Path) -> None:
    facts = machine.facts(tmp_path)
    assert json.loads(json.dumps(facts)) == facts
    assert {"cores", "python", "kernel", "fdatasync_p50_ms"} <= facts.keys()
    assert not list(tmp_path.iterdir())


def row(*, met: bool | None) -> Row:
    return Row(
        name="r",
        unit="x/s",
        floor=Samples((3.0, 2.0)),
        engine=Samples((2.0, 1.0, 9.0)),
        ratio=0.5,
        bar="≥ 1",
        met=met,
    )


def case_module(run: object) -> ModuleType:
    module = ModuleType("bench.imagined")
    module.QUESTION = "q"  # type: ignore[attr-defined]
    module.run = run  # type: ignore[attr-defined]
    return module


def test_suite_runs_on_after_a_case_that_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(directory: Path, *, quick: bool) -> CaseResult:
        raise BenchError(f"no luck in {directory.name[:4]} {quick}")

    def fine(directory: Path, *, quick: bool) -> CaseResult:
        (directory / "left").write_bytes(b"x")
        return CaseResult(case="fine", question="q", rows=[row(met=True)], notes=["a note"])

    monkeypatch.setattr(
        suite, "CASES", {"broken": "bench.imagined_broken", "fine": "bench.imagined_fine"}
    )
    monkeypatch.setitem(sys.modules, "bench.imagined_broken", case_module(broken))
    monkeypatch.setitem(sys.modules, "bench.imagined_fine", case_module(fine))
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    path = tmp_path / "out.json"
    results = suite.run(None, True, path, console=console, work_parent=tmp_path / "work")
    assert results[0]["error"] == "no luck in run- True"
    assert results[1]["rows"][0]["floor"] == {
        "min": 2.0,
        "median": 2.5,
        "max": 3.0,
        "rounds": [3.0, 2.0],
    }
    assert json.loads(path.read_text(encoding="utf-8")) == results
    assert "a note" in printed.getvalue()
    assert "no luck" in printed.getvalue()
    assert suite.failed(results)
    assert not suite.failed(results[1:])
    assert not list((tmp_path / "work").iterdir())


def test_a_missed_bar_is_a_failure_and_no_bar_is_none() -> None:
    assert suite.failed([{"rows": [row(met=False).to_json()]}])
    assert not suite.failed([{"rows": [row(met=None).to_json()]}])


def test_an_unknown_case_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no such case: nonsense"):
        suite.run(["memory", "nonsense"], True, None, work_parent=tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_table_shows_median_range_and_verdict() -> None:
    printed = io.StringIO()
    show(
        CaseResult(case="c", question="q", rows=[row(met=False)]), Console(file=printed, width=200)
    )
    assert "2 (1 .. 9)" in printed.getvalue()
    assert " no " in printed.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1234, "0.123"),
        (99.9, "99.9"),
        (1234.5, "1,234"),
        (12_345, "12.3 k"),
        (4_280_000, "4.28 M"),
        (2e9, "2 G"),
    ],
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert number(value) == text


def test_percentiles_are_nearest_rank() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert (percentile(ordered, 0.0), percentile(ordered, 0.5), percentile(ordered, 1.0)) == (
        1.0,
        51.0,
        100.0,
    )
    assert latency_ms([]) == {}
    assert latency_ms([0.001])["p99_ms"] == 1.0


def test_extras_are_medians_without_the_value() -> None:
    assert extras_of([{"value": 1, "a": 1.0}, {"value": 2, "a": 3.0}]) == {"a": 2.0}


def test_timeline_charges_each_append_with_the_read_that_brought_its_last_byte() -> None:
    timeline = TailTimeline(3, 10)
    timeline.read_up_to(9)
    assert len(timeline.read) == 0
    timeline.read_up_to(25)
    assert len(timeline.read) == 2
    timeline.read_up_to(30)
    assert len(timeline.read) == 3
    assert timeline.summary()["value"] > 0


def test_counts_in_statistics_are_found_at_any_depth_and_never_invented() -> None:
    containers = {
        0: {"recovery": {"operations": 3}, "operations": 50},
        1: {"recovery": {"operations": 4}},
    }
    stats = {"operations": 100, "containers": containers, "healthy": True}
    assert sum_of(stats, "recovery", "operations") == 7
    with pytest.raises(BenchError, match=r"no number recovery\.frames"):
        sum_of(stats, "recovery", "frames")


def test_the_kernel_knows_our_memory_and_files(tmp_path: Path) -> None:
    async def watch() -> Watch:
        async with Watch() as watching:
            with (tmp_path / "file").open("wb"):
                before = open_files()
            assert open_files() == before - 1
        return watching

    watching = asyncio.run(watch())
    assert MIB < resident_bytes() <= resident_peak_bytes()
    assert min(watching.files) > 0
    assert watching.resident
