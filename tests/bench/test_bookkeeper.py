"""The BookKeeper benches give sane numbers on tiny sizes, against a real cluster; verdicts follow
from figures. No timing.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import bookkeeper_engine, bookkeeper_takeover
from bench.bookkeeper_frames import SHAPES, Shape, pipelined_for, ratios_of, rows_of, turns_round
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.support.suites import slow


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> BookKeeperCluster:
    shared_bookkeeper.start()
    return shared_bookkeeper


@slow(8)
def test_all_sides_of_a_round_of_frames_carry_entries_of_the_same_size(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    shapes = [["small", 1024, 4, 0.95], ["large", 300_000, 2, 0.9]]
    measured = turns_round(str(tmp_path), cluster.url("/frames"), 0.05, 2, shapes)
    json.dumps(measured)
    for name, entry_bytes, _, _ in shapes:
        sides = measured[str(name)]
        assert {side: len(found) for side, found in sides.items()} == {
            "floor": 2,
            "native": 2,
            "log": 2,
            "path": 2,
        }
        for side in ("native", "log", "path"):
            for one in sides[side]:
                assert one["value"] == pytest.approx(
                    one["per_s"] * int(str(entry_bytes)) / 1e6, rel=0.01, abs=0.001
                )
        assert all(one["python_us"] > 0 for one in sides["log"])
    assert not (tmp_path / "floor").exists()


@slow(5)
def test_the_engine_runs_on_both_kinds_of_tier1(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    for tier1 in ("", cluster.url("/engine")):
        measured = bookkeeper_engine.engine_round(str(tmp_path / str(len(tier1))), tier1, 8, 3)
        assert math.isfinite(measured["value"])


@slow(7)
def test_a_killed_owner_is_followed_by_one_who_replays_everything(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    measured = bookkeeper_takeover.takeover(tmp_path, cluster.url("/takeover"), 50)
    assert measured["replayed"] >= 50
    parts = measured["python_s"] + measured["open_s"] + measured["append_s"]
    assert measured["value"] == pytest.approx(parts)
    assert measured["with_java_s"] == pytest.approx(parts + measured["java_s"])


def test_a_ratio_is_of_neighbours_and_its_bar_of_their_median() -> None:
    def side(*values: float) -> list[dict[str, Any]]:
        return [{"value": value, "p50_ms": 1.0, "python_us": 4.0} for value in values]

    assert ratios_of(side(1, 4, 9), side(2, 4, 3)) == [0.5, 1.0, 3.0]
    sides = {
        "floor": side(1),
        "native": side(100, 10, 1),
        "log": side(96, 5, 2),
        "path": side(1, 1, 1),
    }
    rate, cpu = rows_of(Shape("1 KiB x 256", 1024, 256, 0.95), sides)
    assert (rate.ratio, rate.met, cpu.met) == (0.96, True, True)


def test_one_at_a_time_is_checked_by_what_it_adds_to_the_latency() -> None:
    def side(*latencies: float) -> list[dict[str, Any]]:
        return [{"value": 1.0, "p50_ms": one} for one in latencies]

    for added, met in ((0.2, True), (0.4, False)):
        sides = {
            "floor": side(0.1),
            "native": side(1, 5, 2),
            "log": side(1 + added, 5, 2.5),
            "path": side(1, 1, 1),
        }
        rate, latency = rows_of(next(shape for shape in SHAPES if shape.window == 1), sides)
        assert rate.met is None
        assert latency.extra["added_ms"] == pytest.approx(added)
        assert latency.met is met


def test_the_load_waits_for_everything_it_sent() -> None:
    async def work() -> None:
        futures: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()

        def append() -> asyncio.Future[None]:
            futures.append(loop.create_future())
            loop.call_soon(futures[-1].set_result, None)
            return futures[-1]

        count, latencies = await pipelined_for(append, 0.01, 4)
        assert count == len(futures) == len(latencies) + 3
        assert all(future.done() for future in futures)

    asyncio.run(work())
