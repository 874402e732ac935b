"""Peers that are servers: installed, started, killed and started again, nothing acknowledged lost;
and all peers sync for each append.
"""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.peers import suite
from bench.peers.cell import QUICK, PeerSizes
from bench.peers.durability import APPENDS, syncs_of_appends
from bench.peers.measure import Measurement
from bench.peers.peer import open_log
from tests.support.suites import slow

SERVERS = ("redis", "nats", "kafka", "pravega")
TINY = PeerSizes(1, 1, 0.0, 0.05, 1 << 18, 1, (1, 2), 50, 1 << 18, 3)


def quiet(_: str) -> None:
    """No progress."""


@slow(25)
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_keeps_what_it_acknowledged_when_it_is_killed(name: str, tmp_path: Path) -> None:
    records = [b"%05d" % number for number in range(40)]

    async def write(address: str) -> None:
        log = await open_log(name, address, "kept", segments=2)
        await asyncio.gather(*(log.append(0, record) for record in records))
        await log.append_batch(1, records[:3])
        await log.close()

    async def read(address: str) -> None:
        log = await open_log(name, address, "kept", segments=2, create=False)
        await log.append(1, b"more")
        found = [b"".join([data async for data in log.read(segment)]) for segment in (0, 1)]
        await log.delete()
        await log.close()
        assert found == [b"".join(records), b"".join(records[:3]) + b"more"]

    with Measurement(tmp_path, [name], QUICK, quiet) as measurement:
        (peer,) = measurement.peers
        asyncio.run(write(peer.address(tmp_path)))
        assert peer.processes()
        peer.restart(kill=True)
        asyncio.run(read(peer.address(tmp_path)))


@slow(60)
@pytest.mark.parametrize("name", SERVERS)
def test_every_workload_runs_on_a_server(name: str, tmp_path: Path) -> None:
    cells = ["W1 16", "W2 1 KiB", "W3 tail at 1,000", "W4", "W5", "W6 2", "W6 behind 0.25", "W7"]
    result = suite.run(
        [name],
        cells,
        quick=True,
        console=Console(file=io.StringIO()),
        work_parent=tmp_path,
        sizes=TINY,
    )
    assert {cell["name"]: cell["errors"] for cell in result["cells"] if cell["errors"]} == {}
    assert all(set(cell["peers"]) == {name} for cell in result["cells"])


@slow(15)
@pytest.mark.parametrize("name", ["engine", "skeleton", "sqlite", "lmdb", "rocksdb", *SERVERS])
def test_each_append_is_synced(name: str, tmp_path: Path) -> None:
    with Measurement(tmp_path, [name], QUICK, quiet) as measurement:
        (peer,) = measurement.peers
        traced = tmp_path / "traced"
        traced.mkdir()
        assert syncs_of_appends(peer, traced, QUICK) >= APPENDS
