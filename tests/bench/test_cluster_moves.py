"""The case of moves between hosts of a cluster, on real processes. No timing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from bench import cluster_moves
from segmentstore.cli.local_hosts import LocalHosts
from tests.support.suites import slow


@slow(90)
@pytest.mark.timeout(900)
def test_containers_move_and_are_taken_over_without_an_error(tmp_path: Path) -> None:
    local = LocalHosts(tmp_path / "cluster")
    try:
        local.start(cluster_moves.HOSTS, None, cluster_moves.CONTAINERS, partial(print, end=""))
        result = asyncio.run(cluster_moves.measure(local, moves=3))
    finally:
        local.stop()
    rows = {row.name: row for row in result.rows}
    assert rows["errors in all moves"].met
    assert all(row.engine.median > 0 for row in result.rows if row.unit)
