"""The log on a real cluster: BookKeeper, ZooKeeper and the gateway together keep the contract of
logs.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.ledger_store import LedgerState, Replication
from durablelog.durable_data_log import DurableDataLog
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from tests.contracts.durable_data_log_contract import (
    DurableDataLogContract,
    LogWorld,
    append_all,
    payload,
    read_payloads,
)
from tests.durablelog.bookkeeper.bookkeeper_world import options
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.durablelog.bookkeeper.real_log import RealLog, never
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import until_said
from tests.support.suites import slow

_numbers = itertools.count()


class _World(LogWorld):
    container_id = 3

    def __init__(self, cluster: BookKeeperCluster) -> None:
        self.cluster = cluster
        self.path = f"/log-{next(_numbers)}/containers/3"
        self._left = 1 << 30

    def make_log(self) -> DurableDataLog:
        return RealLog(self.cluster, self.path, self._take)

    def usurp(self) -> None:
        """Nothing here shows a live owner on BookKeeper."""

    def fail_append_after(self, appends: int) -> None:
        self._left = appends + 1

    def _take(self) -> int:
        self._left -= 1
        if self._left <= 0:
            self._left = 1 << 30
            return 0
        return self._left


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> Iterator[BookKeeperCluster]:
    shared_bookkeeper.start()
    with kept_gateway():
        yield shared_bookkeeper


class TestOnARealCluster(DurableDataLogContract):
    @pytest.fixture(autouse=True)
    def _world(self, cluster: BookKeeperCluster) -> None:
        self.world = _World(cluster)

    def make_world(self, tmp_path: Path) -> LogWorld:
        return self.world


@slow(15)
def test_a_bookie_that_dies_and_two_that_die_and_come_back(cluster: BookKeeperCluster) -> None:
    async def scenario() -> None:
        log = RealLog(cluster, "/dying/containers/3", never)
        await log.open()
        await append_all(log, range(5))
        cluster.kill_bookie(0)
        await append_all(log, range(5, 9))
        cluster.kill_bookie(1)
        waiting = [log.append([payload(number)]) for number in range(9, 30)]
        await until_said(log, "ledger")
        assert not waiting[-1].done()
        for number in (0, 1):
            await asyncio.to_thread(cluster.start_bookie, number)
        await asyncio.gather(*waiting)
        assert await read_payloads(log) == [payload(number) for number in range(30)]
        await log.close()

    asyncio.run(asyncio.wait_for(scenario(), 240))


def test_a_bookie_of_three_that_dies_ends_no_ledger(cluster: BookKeeperCluster) -> None:
    async def scenario() -> None:
        log = RealLog(cluster, "/one-dies/containers/3", never, options(ledger_bytes=1 << 20))
        try:
            await log.open()
            await append_all(log, range(5))
            (item,) = log._keeper.record.ledgers
            await asyncio.to_thread(cluster.kill_bookie, 0)
            for first in range(5, 105, 10):
                await append_all(log, range(first, first + 10))
            assert log._keeper.record.ledgers == (item,)
            # On a busy machine the dead one owes entries, and is named.
            assert cluster.bookie_id(0) in (log.health() or cluster.bookie_id(0))
            ledger = await log.ledger_client.describe(item.ledger_id)
            assert ledger.state is LedgerState.OPEN
            assert cluster.bookie_id(0) in ledger.bookies
            assert await read_payloads(log) == [payload(number) for number in range(105)]
        finally:
            await asyncio.to_thread(cluster.start_bookie, 0)
            await log.close()

    asyncio.run(asyncio.wait_for(scenario(), 240))


@slow(15)
def test_a_ledger_on_fewer_bookies_is_named_until_the_next_one_is_on_all(
    cluster: BookKeeperCluster,
) -> None:
    log_options = options(degraded_replication=Replication(2, 2, 2))
    numbers = itertools.count()

    async def append_until(log: BookKeeperLog, *, named: bool) -> None:
        while ("is on 2/2/2" in (log.health() or "")) is not named:
            await log.append([payload(next(numbers))])

    async def scenario() -> None:
        log = RealLog(cluster, "/fewer/containers/3", never, log_options)
        try:
            await log.open()
            await asyncio.to_thread(functools.partial(cluster.kill_bookie, 0, forget=True))
            await append_until(log, named=True)
            item = log._keeper.record.ledgers[-1]
            assert item.replication == Replication(2, 2, 2)
            ledger = await log.ledger_client.describe(item.ledger_id)
            assert ledger.replication == Replication(2, 2, 2)
            assert cluster.bookie_id(0) not in ledger.bookies
            await asyncio.to_thread(cluster.start_bookie, 0)
            assert f"ledger {item.ledger_id} is on 2/2/2" in (log.health() or "")
            await append_until(log, named=False)
            newest = log._keeper.record.ledgers[-1]
            assert newest.sequence > item.sequence
            assert newest.replication == Replication(3, 3, 2)
            # The bookie is well once it has answered an entry of that ledger; the next beat says
            # so.
            while log.health() is not None:
                await log.append([payload(next(numbers))])
            assert await read_payloads(log) == [payload(number) for number in range(next(numbers))]
        finally:
            await asyncio.to_thread(cluster.start_bookie, 0)
            await log.close()

    asyncio.run(asyncio.wait_for(scenario(), 240))
