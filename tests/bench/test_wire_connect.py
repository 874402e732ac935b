"""The bench of `connect` gives sane numbers on tiny sizes; verdicts follow from figures."""

from __future__ import annotations

from pathlib import Path

from bench import wire_connect
from bench.child import Measured
from tests.support.suites import slow

TINY = {"appends": 2_000, "followed": 50, "segments": 20}


@slow(2)
def test_both_sides_have_all_figures(tmp_path: Path) -> None:
    sides = {
        "floor": [wire_connect.floor_round(str(tmp_path), **TINY)],
        "embedded": [wire_connect.embedded_round(str(tmp_path / "embedded"), **TINY)],
        "connected": [wire_connect.connected_round(str(tmp_path / "connected"), **TINY)],
    }
    assert all(value > 0 for (measured,) in sides.values() for value in measured.values())
    rows = wire_connect.rows_of(sides)
    assert len(rows) == 4
    assert [row.skeleton is not None for row in rows] == [True] * 4


def test_verdicts_compare_with_the_embedded_store() -> None:
    def figures(appended: float, batched: float, followed: float, listed: float) -> Measured:
        return {
            "appended_per_s": appended,
            "batched_per_s": batched,
            "followed_p50_ms": followed,
            "followed_p99_ms": followed,
            "listed_s": listed,
        }

    def met(connected: Measured) -> list[bool | None]:
        sides = {"floor": [{"value": 1.0}], "embedded": [figures(1, 100, 2, 0)]}
        return [row.met for row in wire_connect.rows_of({**sides, "connected": [connected]})]

    assert met(figures(100_000, 60, 2.5, 0.4)) == [True] * 4
    assert met(figures(99_999, 59, 2.6, 0.41)) == [False] * 4
