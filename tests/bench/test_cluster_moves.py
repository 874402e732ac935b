"""The cases of clusters on real processes, and the picture of their pauses. No timing."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import cluster_moves, cluster_restart, cluster_takeover
from bench.cluster_timeline import MOVE_PHASES, TAKEOVER_PHASES
from bench.floor import MIB
from bench.pause_plot import plot
from bench.report import Row
from segmentstore.cli.local_hosts import LocalHosts
from tests.support.suites import slow

RATE = 200


@slow(120)
@pytest.mark.timeout(900)
def test_containers_move_are_taken_over_and_survive_a_restart_without_an_error(
    tmp_path: Path,
) -> None:
    local = LocalHosts(tmp_path / "cluster")
    try:
        local.start(cluster_moves.HOSTS, None, cluster_moves.CONTAINERS, partial(print, end=""))
        moved = asyncio.run(cluster_moves.measure(local, 3, RATE))
        restarted = asyncio.run(cluster_restart.measure(local, 1))
        taken_over = asyncio.run(cluster_takeover.measure(local, MIB))
    finally:
        local.stop()
    for rows in (moved, restarted):
        (errors,) = (row for row in rows if row.name.endswith("errors"))
        assert errors.met
    for rows, phases in ((moved, MOVE_PHASES), (taken_over, TAKEOVER_PHASES)):
        assert rows[0].engine.median > 0
        spans = {name: row for row in rows for name in phases if f": {name}, " in row.name}
        assert spans.keys() == {*phases}
        assert sum(row.engine.median for row in spans.values()) > 0
    assert all(row.engine.median > 0 for row in restarted if row.unit)


def test_the_picture_of_pauses_has_every_phase(tmp_path: Path) -> None:
    spans = [
        {name: 0.01 * (place + 1) for place, name in enumerate(MOVE_PHASES)},
        dict.fromkeys(MOVE_PHASES, 0.02),
    ]
    rows: list[Row] = cluster_moves.phase_rows("2,000 appends/s", MOVE_PHASES, spans)
    rows += cluster_moves.phase_rows(
        "host killed", TAKEOVER_PHASES, [dict.fromkeys(TAKEOVER_PHASES, 1.0)]
    )
    picture = tmp_path / "pauses.svg"
    plot([row.to_json() for row in rows], picture)
    texts = [each.text for each in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {*MOVE_PHASES, *TAKEOVER_PHASES} <= {*texts}
    assert "6,000 ms" in texts
