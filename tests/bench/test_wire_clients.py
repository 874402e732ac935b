"""The benches of Pravega's clients give sane numbers on tiny sizes; verdicts follow from figures.
No timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import wire_catch_up, wire_clients, wire_restart, wire_tables
from bench.report import Row
from bench.wire_clients import FAST, LOADS, ClientLoad, Sizes, rows_of
from bench.wire_load import java_load, wheel_load
from bench.wire_servers import OurServer, PravegaServer, bookkeeper_url, one_bookie, running
from bench.wire_variants import certificates
from tests.bench.wire_sides import SMALL, is_sane, side, small_server
from tests.clients.conftest import HAS_WHEEL
from tests.support.suites import by_target, slow

pytestmark = pytest.mark.timeout(600)

TINY = Sizes(rounds=1, warm_s=0, seconds=1, read_events=200)
PROGRAMS = {"java", "wheel"} if HAS_WHEEL else {"java"}


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[OurServer]:
    with small_server(tmp_path) as server:
        yield server


def test_a_rate_is_at_least_and_a_latency_at_most_so_much_of_the_peers() -> None:
    floors = side(bytes_per_s=1e8, p50_ms=0.1, p99_ms=1.0)

    def verdicts(load: ClientLoad, found: Any, others: Any) -> list[bool | None]:
        rows: list[Row] = rows_of(load, floors, found, others)
        return [row.met for row in rows]

    for value, met in ((0.49, False), (0.51, True)):
        found = side(server_us=3.0)
        assert verdicts(FAST, [{**found[0], "value": value}], side()) == [met]
    paced = LOADS[1]
    found = side(p50_ms=1.0, p99_ms=2.1, p999_ms=3.0)
    others = side(p50_ms=1.1, p99_ms=2.0, p999_ms=3.0)
    assert verdicts(paced, found, others) == [True, False, None]
    assert verdicts(paced, found, []) == [None] * 3
    (row,) = rows_of(FAST, floors, side(server_us=3.0), side(server_us=4.0))
    assert row.floor is not None
    assert (row.floor.median, row.extra["ours_server_us"]) == (1e6, 3.0)
    assert row.extra["beside_server_us"] == 4.0


@slow(12)
def test_pravegas_clients_are_measured(ours: OurServer) -> None:
    for load in LOADS:
        if load.program in PROGRAMS:
            measured = load.run(ours, None, f"{load.program}-{load.load}", TINY)
            assert is_sane(measured)
            assert measured["count"] > 0
    java_load(ours, "count", stream="cold", bytes=1024, count=200)
    assert wire_catch_up.READ.run(ours, None, "cold", TINY)["count"] == 200
    assert java_load(
        ours, "burst", stream="burst", bytes=100, large=1024, count=50, warm=0, idle=0,
        rate=1_000, seconds=1,
    )["count"] == 1_050  # fmt: skip


@slow(10)
def test_the_clients_are_measured_with_tls(tmp_path: Path) -> None:
    secured = OurServer(tmp_path / "ours", "file", certificates(tmp_path), SMALL)
    with running(secured) as server:
        assert FAST.run(server, None, "java", TINY)["count"] > 0
        if HAS_WHEEL:
            given = {"stream": "wheel", "bytes": 100, "warm": 0, "seconds": 1}
            assert wheel_load(server, "flush", None, **given)["count"] > 0


@by_target
def test_pravega_runs_on_the_same_bookie(tmp_path: Path) -> None:
    with one_bookie(tmp_path) as cluster:
        ours = OurServer(tmp_path / "ours", bookkeeper_url(cluster, "ours"), settings=SMALL)
        with running(ours), running(PravegaServer(tmp_path / "peer", cluster)) as peer:
            rows = wire_clients.compare(tmp_path, cluster, ours, peer, LOADS[:1], TINY)
            assert wire_tables.updates(peer, "bench/_tables/one", 0.5)["value"] > 0
            java_load(peer, "count", stream="killed", bytes=100, count=1_000)
            assert wire_restart.restarted(peer)["value"] > 0
    assert rows[0].ratio is not None
