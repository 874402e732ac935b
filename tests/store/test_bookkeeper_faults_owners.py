"""Processes that own a store on a real cluster are killed in every phase of what they do, or
stopped and overtaken.

Each owner is a process of its own. docs/bookkeeper-faults.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durablelog.bookkeeper.gateway.gateway_settings import TOKEN_VARIABLE
from durablelog.bookkeeper.gateway.shared_gateway import OwnGateway
from recovery.harness.kills.bookkeeper_round import BookKeeperRound
from recovery.harness.kills.log_points import MOMENTS, POINTS, Deaths
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.test_bookkeeper_faults import SETTINGS
from tests.support.suites import slow

OWNERS = {**SETTINGS, "tail_bytes_max": 8 << 20, "cache_bytes_max": 8 << 20}
"""All that is not flushed stays in memory: to find it in the log again, ledger by ledger of 4 KiB,
takes seconds.
"""


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> BookKeeperCluster:
    shared_bookkeeper.start()
    return shared_bookkeeper


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnGateway]:
    """One that outlives the owners that use it."""
    with kept_gateway() as kept:
        monkeypatch.setenv(TOKEN_VARIABLE, kept.token)
        yield kept


def owned(
    cluster: BookKeeperCluster, folder: Path, gateway: OwnGateway | None = None
) -> BookKeeperRound:
    attached = f"&gateway=127.0.0.1:{gateway.process.port}" if gateway is not None else ""
    tier1 = cluster.url(f"/{folder.name}") + "?ledger_bytes=4KiB" + attached
    return BookKeeperRound(folder, tier1, folder.name, OWNERS)


@slow(10)
@pytest.mark.parametrize("phase", ["open", "roll", "truncate"])
def test_owners_are_killed_in_every_phase(
    cluster: BookKeeperCluster, tmp_path: Path, gateway: OwnGateway, phase: str
) -> None:
    owners = owned(cluster, tmp_path, gateway)
    owners.die("roll.list after 3")
    for point in POINTS:
        if point.startswith(phase):
            for moment in MOMENTS:
                owners.die(f"{point} {moment} {2 if phase == 'roll' else 1}")
    assert [str(each) for each in owners.finish()] == []


@slow(15)
def test_an_owner_dies_with_its_gateway(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    owners = owned(cluster, tmp_path)
    owners.die("roll.list before 2")
    assert [str(each) for each in owners.finish()] == []


@slow(30)
def test_an_owner_is_stopped_with_appends_on_their_way_and_overtaken(
    cluster: BookKeeperCluster, tmp_path: Path, gateway: OwnGateway
) -> None:
    owners = owned(cluster, tmp_path, gateway)
    assert owners.takeover(with_gateway=False) > 0
    assert [str(each) for each in owners.finish()] == []


@slow(20)
def test_an_owner_is_stopped_together_with_its_gateway_and_overtaken(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    owners = owned(cluster, tmp_path)
    assert owners.takeover(with_gateway=True) > 0
    assert [str(each) for each in owners.finish()] == []


@pytest.mark.parametrize("point", ["roll.nothing before 1", "roll.list during 1"])
def test_a_point_that_is_none_is_refused(point: str) -> None:
    with pytest.raises(ValueError, match="no point of a log"):
        Deaths(point)
