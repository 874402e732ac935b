"""What `make bench-report` writes into the page, and what it says when it cannot. No timing: the
results are invented.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.peers import bars, page
from bench.peers.page import BEGIN, END, PeersPageError, parsed_results, report, with_report

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = f"# Title\n\nbefore\n\n{BEGIN}\n\nold\n\n{END}\n\nbehind\n"


def peer(median: float, **others: Any) -> dict[str, Any]:
    measured = {"client_us": 1.0, "server_us": 0.0, "foreign_cores": 0.1}
    value = {"min": median, "median": median, "max": median, "rounds": [median]}
    return {"value": value, "ratio": 1.0, "disturbed": False, "series": [], **measured, **others}


def results(**others: Any) -> dict[str, Any]:
    peers = {
        "engine": peer(4.0, series=[[1.0, 2.0, 1.5]]),
        "kafka": peer(8.0, ratio=0.5, disturbed=True, foreign_cores=0.7),
    }
    cell = {
        "name": "W2 100 B, single",
        "unit": "records/s",
        "floor": {"median": 9.0},
        "peers": peers,
        "errors": {"nats": "did not come up\nin /somewhere"},
        "left_out": ["pravega"],
    }
    facts = {"cores": 2, "file_system": "ext4"}
    run = {"machine": facts, "date": "2026-01-02", "quick": True, "cells": [cell], "bars": []}
    return {**run, **others}


def folder_with(tmp_path: Path, content: str) -> tuple[Path, Path]:
    found, target = tmp_path / "results.json", tmp_path / "page.md"
    found.write_text(content, encoding="utf-8")
    target.write_text(PAGE, encoding="utf-8")
    return found, target


def test_the_report_says_when_where_and_how_it_was_measured() -> None:
    text = report(results(), "unused")
    said = " ".join(text.splitlines())
    assert "A run of 2026-01-02 with quick sizes. Machine: cores 2, file system ext4." in said
    assert "Foreign load: 0.4 cores in the median of the rows, 0.7 at most." in said
    assert "1 of 2 rows have the mark (`!`)" in said
    assert "Not measured of W2 100 B, single: nats, pravega." in said
    assert "| W2 100 B, single, records/s | 4 | 8 ! | 9 |" in text
    assert "(images/peers.svg)" in text
    assert "cut off" not in text


def test_a_run_that_was_cut_off_or_has_no_date_is_reported_as_such() -> None:
    run = results(quick=False)
    del run["bars"], run["date"]
    text = report(run, "2026-03-04")
    assert "A run of 2026-03-04 with full sizes." in text
    assert "The run was cut off" in " ".join(text.splitlines())


def test_every_bar_is_met_missed_or_not_measured() -> None:
    lines = report(results(), "unused").splitlines()
    assert f"Bars: 0 met, 1 missed, {len(bars._ALL) - 1} not measured." in lines
    assert "| W2 100 B, single | ≥ 1 x Kafka | 0.50 | **no** |" in lines
    open_bars = [line for line in lines if line.endswith("not measured |")]
    assert len(open_bars) == len(bars._ALL) - 1
    assert "| W5 | ≤ 0.3 s | | not measured |" in open_bars


def test_lines_are_short_outside_of_tables() -> None:
    facts = {f"some fact number {number}": "a value" for number in range(20)}
    lines = report(results(machine=facts), "unused").splitlines()
    assert [line for line in lines if not line.startswith("|") and len(line) > 100] == []


def test_the_text_between_the_comments_is_replaced_and_nothing_else() -> None:
    replaced = with_report(PAGE, "new\n\nmore", "page.md")
    assert replaced == PAGE.replace("old", "new\n\nmore")
    assert with_report(replaced, "old", "page.md") == PAGE


@pytest.mark.parametrize(
    "text",
    ["no comment\n", f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}\n{BEGIN}\n{END}\n"],
)
def test_a_page_without_its_comments_is_refused(text: str) -> None:
    with pytest.raises(PeersPageError, match=r"page\.md needs one line .* run make bench-report"):
        with_report(text, "new", "page.md")


def test_the_page_of_this_repository_has_its_comments() -> None:
    text = (ROOT / page.PAGE).read_text(encoding="utf-8")
    assert "new" in with_report(text, "new", "the page")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("{", "it is no JSON"),
        ("[]", "it has no object"),
        ('{"machine": {}}', "the run has no quick, cells"),
        (json.dumps(results(cells=[])), "it has no cells"),
        (json.dumps(results(cells=[{"name": "W1"}])), "a cell has no unit"),
        (json.dumps(results(cells=[3])), "a cell is no object"),
        (json.dumps(results()).replace('"ratio"', '"other"'), "W2 100 B, single: engine has no r"),
        (json.dumps(results()).replace('"kafka"', '"nobodys"'), "no peer is called 'nobodys'"),
    ],
)
def test_a_file_without_results_is_refused_with_the_next_step(content: str, cause: str) -> None:
    with pytest.raises(PeersPageError, match=rf"(?s)a\.json .*{cause}.*make bench-peers, or name"):
        parsed_results(content, "a.json")


def test_page_and_picture_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = results()
    del run["date"]
    found, target = folder_with(tmp_path, json.dumps(run))
    os.utime(found, (86_400, 86_400))
    page.main([str(found), "--page", str(target)])
    text = target.read_text(encoding="utf-8")
    assert "A run of 1970-01-02" in text
    assert text.endswith("\n\nbehind\n")
    picture = (tmp_path / "images" / "peers.svg").read_text(encoding="utf-8")
    assert "in each second" in picture, "the series of W7"
    assert "page.md" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "page.md", "images"}


@pytest.mark.parametrize("missing", ["results.json", "page.md"])
def test_a_missing_file_ends_the_command_with_2_and_writes_nothing(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, target = folder_with(tmp_path, json.dumps(results()))
    (tmp_path / missing).unlink()
    with pytest.raises(SystemExit) as ended:
        page.main([str(found), "--page", str(target)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"{missing} cannot be read" in said
    assert ": run make bench-" in said
    assert not (tmp_path / "images").exists()


def test_a_place_that_cannot_be_written_is_an_error_too(tmp_path: Path) -> None:
    found, target = folder_with(tmp_path, json.dumps(results()))
    (tmp_path / "images").write_text("a file", encoding="utf-8")
    with pytest.raises(PeersPageError, match="cannot write"):
        page.write(found, target)
    assert target.read_text(encoding="utf-8") == PAGE
