"""The benches of tables, waiting reads and restarts over the wire give sane numbers on tiny sizes;
verdicts follow from figures. No timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import wire_connections, wire_keys, wire_left_writers, wire_restart, wire_tables
from bench.wire_connections import held_connections, plain_round
from bench.wire_load import java_load
from bench.wire_plain_server import PlainServer
from bench.wire_servers import OurServer
from tests.bench.wire_sides import SMALL, is_sane, side, small_server
from tests.support.suites import slow

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[OurServer]:
    with small_server(tmp_path) as server:
        yield server


def test_updates_of_a_table_are_counted(ours: OurServer) -> None:
    measured = wire_tables.updates(ours, "bench/_tables/one", 0.1)
    assert is_sane(measured)
    assert measured["value"] > 0
    rate = wire_tables.rows_of([{"p50_ms": 1}], [measured], [])[1]
    assert rate.met is None


@slow(2)
def test_an_append_answers_all_reads_that_wait(ours: OurServer, tmp_path: Path) -> None:
    for _ in range(2):
        with held_connections(ours, 30) as holder:
            assert holder.wake()["wake_s"] > 0
    plain = plain_round(tmp_path / "plain", 30)
    assert plain["wake_s"] > 0
    assert not PlainServer(tmp_path / "plain").running


@slow(6)
def test_keys_are_found_also_without_the_index(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(wire_keys, "_QUIET_S", 0.0)
    server = OurServer(tmp_path / "ours", "file", settings=SMALL)
    measured = wire_keys.many_keys(server, 3_000)
    assert not server.running
    assert measured["reopened_s"] > 0
    rows = wire_keys.rows_of({**measured, "lookup_p99_ms": 2.1}, 3_000)
    assert [row.met for row in rows] == [measured["memory_more"] <= 100, False, True]
    assert "memory_fill_s" in rows[0].extra


@slow(8)
def test_writers_that_come_once_are_known_after_a_kill(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(wire_left_writers, "_QUIET_S", 0.0)
    server = OurServer(tmp_path / "ours", "file", settings=SMALL)
    measured = wire_left_writers.left_writers(server, 200)
    assert not server.running
    assert measured["killed_s"] > 0
    rows = wire_left_writers.rows_of({**measured, "writer_slower": 1.6, "memory_more": 9.0}, 200)
    assert [row.met for row in rows[:2]] == [True, False]
    assert "writer_last_cpu_us" in rows[1].extra


def test_a_ratio_beside_the_connections_is_of_neighbours() -> None:
    def paced(*latencies: float) -> list[dict[str, Any]]:
        return [{"value": 1.0, "p50_ms": 1.0, "p99_ms": each} for each in latencies]

    held = side(more_mib=401.0, wake_s=0.5)
    rows = wire_connections.rows_of(
        7, paced(1, 1, 1), paced(1, 2, 3), paced(1.6, 2.8, 9), held, held
    )
    assert [row.met for row in rows] == [False, False, True]
    assert rows[1].ratio == pytest.approx(1.6)


def test_a_restart_is_compared_with_the_peers() -> None:
    for seconds, met in ((2.0, True), (2.2, False)):
        row = wire_restart.row_of(1, side(), [{"value": seconds}], [{"value": 4.0}])
        assert row.met is met


@slow(12)
def test_a_killed_server_acknowledges_again(ours: OurServer) -> None:
    java_load(ours, "count", stream="killed", bytes=100, count=1_000)
    assert wire_restart.restarted(ours)["value"] > 0
