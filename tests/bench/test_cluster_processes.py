"""The case of several processes on one machine, with tiny sizes. No timing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cluster_processes
from bench.bookkeeper_service import bookkeeper_service
from tests.support.suites import slow


def test_stores_of_two_processes_are_measured_together(tmp_path: Path) -> None:
    both = cluster_processes.together(tmp_path, processes=2, callers=8, appends_each=5)
    assert all(both[key] > 0 for key in ("value", "cpu_us", "p50_ms", "p99_ms"))
    assert sorted(path.name for path in tmp_path.glob("store-*")) == ["store-0", "store-1"]


def test_figures_of_processes_are_joined_from_the_first_beginning_to_the_last_end() -> None:
    parts = [
        {"begun": 10.0, "ended": 12.0, "appends": 100, "cpu_s": 1.0, "p50_ms": 1, "p99_ms": 9},
        {"begun": 11.0, "ended": 14.0, "appends": 300, "cpu_s": 3.0, "p50_ms": 2, "p99_ms": 8},
    ]
    joined = {"value": 100.0, "cpu_us": 10_000.0, "p50_ms": 2, "p99_ms": 9}
    assert cluster_processes.joined(parts) == joined


def test_the_callers_alone_are_measured(tmp_path: Path) -> None:
    both = cluster_processes.together(tmp_path, 2, 20, 5, "callers_round")
    assert both["value"] > 0
    assert both["cpu_us"] > 0


@pytest.mark.parametrize(("two", "met"), [(160.0, True), (159.0, False)])
def test_the_bar_is_of_the_ratio(two: float, met: bool) -> None:
    row = cluster_processes.row_of(
        "r", [{"value": 100.0, "cpu_us": 5.0}], [{"value": two, "cpu_us": 6.0}], ratio_min=1.6
    )
    assert (row.met, row.extra) == (met, {"one_cpu_us": 5.0, "cpu_us": 6.0})


@slow(30)
def test_hosts_of_one_store_are_measured(tmp_path: Path) -> None:
    with bookkeeper_service(tmp_path) as cluster:
        measured = cluster_processes.hosts_round(
            str(tmp_path), cluster.url("/hosts"), processes=2, callers=16, appends_each=4
        )
    assert measured["value"] > 0
