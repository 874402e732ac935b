"""The two ways of checkpoints are what their names say; the picture has all figures. No timing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench import metadata_growth, suite
from bench.metadata_growth import CHECKPOINTS, engine_round, fill_round, floor_round
from bench.metadata_plot import COLORS, PLOTS, plot
from bench.report import CaseResult
from bench.workspace import BenchError
from tests.support.suites import slow

SEGMENTS = 500
"""Enough for more metadata than fit a checkpoint by default."""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One turn of each way."""
    measured = {}
    for way in metadata_growth.WAYS:
        directory = str(tmp_path_factory.mktemp(way))
        fill_round(directory, way, SEGMENTS)
        measured[way] = engine_round(directory, way, SEGMENTS, 0)
    return measured


def test_inline_logs_every_segment_and_the_catalog_a_reference(
    turns: dict[str, dict[str, Any]],
) -> None:
    for checkpoint in turns["inline"]["checkpoints"]:
        assert checkpoint["log"] > 60 * SEGMENTS
        assert checkpoint["tier2"] >= checkpoint["log"]
    for checkpoint in turns["catalog"]["checkpoints"]:
        assert 0 < checkpoint["log"] < 200
        assert checkpoint["tier2"] > 0


@slow(7)
def test_a_store_that_writes_no_inline_checkpoints_is_not_measured_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(metadata_growth.WAYS, "inline", {})
    fill_round(str(tmp_path), "inline", SEGMENTS)
    with pytest.raises(BenchError, match="a checkpoint of 500 segments has 51 bytes"):
        engine_round(str(tmp_path), "inline", SEGMENTS, 0)


@slow(14)
def test_a_turn_has_all_figures_as_json(turns: dict[str, dict[str, Any]]) -> None:
    for turn in turns.values():
        assert json.loads(json.dumps(turn)) == turn
        assert len(turn["checkpoints"]) == CHECKPOINTS
        assert all(each["ms"] > 0 < each["block_ms"] for each in turn["checkpoints"])
        assert turn["open_ms"] > 0
        assert turn["checkpoint_bytes"] > 0
        assert turn["metadata_bytes"] > 60 * SEGMENTS


def test_floor_writes_and_reads_so_many_bytes(tmp_path: Path) -> None:
    measured = floor_round(str(tmp_path), 3000, 100_000)
    assert measured["write_ms"] > 0 < measured["read_ms"]
    assert not list(tmp_path.iterdir())


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Of a run in which nothing is measured."""

    def measured(_: str, function: str, arguments: dict[str, Any], **__: object) -> dict[str, Any]:
        segments = arguments.get("segments", 0)
        figures = dict.fromkeys(("ms", "cpu_ms", "block_ms", "bytes", "log", "tier2"), segments)
        opened = ("ms", "cpu_ms", "block_ms", "resident_mib")
        if function == "floor_round":
            return {"write_ms": 0.5, "read_ms": 0.25}
        return {
            "checkpoints": [figures] * CHECKPOINTS,
            **{f"open_{key}": segments for key in opened},
            "checkpoint_bytes": segments,
            "metadata_bytes": segments,
        }

    monkeypatch.setattr("bench.child.call", measured)
    monkeypatch.delenv("SEGMENTSTORE_BENCH_LARGE", raising=False)
    result: CaseResult = metadata_growth.run(tmp_path, quick=False)
    return [row.to_json() for row in result.rows]


def test_the_picture_has_all_figures_of_both_ways_with_their_floors(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "picture.svg"
    plot(rows, path)
    root = ET.fromstring(path.read_bytes())
    texts = {element.text for element in root.iter(f"{SVG}text")}
    assert texts > {*PLOTS.values(), "1 k", "100 k", "0.1"}
    for color in COLORS.values():
        circles = [each for each in root.iter(f"{SVG}circle") if each.get("fill") == color]
        assert len(circles) == len(PLOTS) * len(metadata_growth.SIZES)
        lines = [each for each in root.iter(f"{SVG}polyline") if each.get("stroke") == color]
        # Of the checkpoint and of the restart.
        assert len([each for each in lines if each.get("stroke-dasharray") != "none"]) == 2


def test_the_same_figures_in_any_order_of_runs_are_the_same_text(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    plot(rows, tmp_path / "one.svg")
    half = len(rows) // 2
    for name, some in (("a", rows[half:]), ("b", rows[:half])):
        (tmp_path / f"{name}.json").write_text(json.dumps([{"rows": some}]), encoding="utf-8")
    files = [str(tmp_path / name) for name in ("two.svg", "a.json", "b.json")]
    subprocess.run([sys.executable, "-m", "bench.metadata_plot", *files], check=True)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_case_with_a_picture_draws_it_where_it_is_asked_to(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "picture.svg"
    monkeypatch.setattr(suite, "run", lambda *_: [{"rows": rows}])
    monkeypatch.setattr(sys, "argv", ["metadata_growth", "--plot", str(path)])
    with pytest.raises(SystemExit, match="0"):
        suite.main("metadata_growth", plot=plot)
    assert path.is_file()
