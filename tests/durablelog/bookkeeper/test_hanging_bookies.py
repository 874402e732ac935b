"""Bookies that hang while a log is written: what is kept for them is bounded, and the next ledger
leaves them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.gateway.bookie_watch import BookieState, parse_states
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.ledger_store import LedgerWriter, Replication
from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.runtime import Runtime
from tests.contracts.ledger_store_contract import Results, read_all
from tests.durablelog.bookkeeper.bookkeeper_world import options
from tests.durablelog.bookkeeper.gateway_world import opened
from tests.store.harness import until
from tests.support.suites import slow

BOOKIES = 4
LAG_BYTES = 1 << 20
ENTRY_BYTES = 64 << 10
IN_FLIGHT = 8
OVERHEAD = 1 << 10
"""What the gateway counts an entry for besides its bytes."""
PASSES_MS = 500
"""After so long the trouble of a bookie that no ledger has is over."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    with BookKeeperCluster(tmp_path_factory.mktemp("cluster"), BOOKIES) as running:
        yield running


@pytest.fixture(autouse=True)
def _small_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    lag = f"-Dsegmentstore.gateway.lag.bytes={LAG_BYTES}"
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS", f"{lag} -Dsegmentstore.gateway.trouble.millis={PASSES_MS}"
    )


async def states(store: GatewayLedgerStore) -> dict[str, BookieState]:
    link = await store._connected()
    return {state.bookie: state for state in parse_states(await store.ask(link, "bookies"))}


async def write(
    store: GatewayLedgerStore, writer: LedgerWriter, results: Results, entries: int
) -> int:
    """So many more, few in flight; the most that any bookie owed meanwhile."""
    most = 0
    begun = sum(result.entries for result in results.got)
    for number in range(begun, begun + entries):
        writer.append([bytes(ENTRY_BYTES)])
        await results.until(max(0, number + 1 - IN_FLIGHT))
        if number % IN_FLIGHT == 0:
            most = max([most, *(state.owed_bytes for state in (await states(store)).values())])
    await results.until(begun + entries)
    return most


@slow(15)
def test_what_is_kept_for_a_bookie_that_hangs_is_bounded_named_and_forgotten_when_it_is_back(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as store:
            # On all there are, so no other can take the place of the one that hangs. All others
            # are waited for: with a smaller quorum a slow disk leaves a second one behind.
            writer = await store.create(Replication(BOOKIES, BOOKIES, BOOKIES - 1), {})
            short: list[str] = []
            writer.on_short = short.append
            results = Results(writer)
            cluster.pause_bookie(0)
            hung = cluster.bookie_id(0)
            try:
                most = await write(store, writer, results, 8 * LAG_BYTES // ENTRY_BYTES)
                assert all(result.code == 0 for result in results.got)
                assert (
                    LAG_BYTES / 2 < most <= LAG_BYTES + (IN_FLIGHT + 1) * (ENTRY_BYTES + OVERHEAD)
                )
                while hung not in (store.health() or ""):
                    await write(store, writer, results, IN_FLIGHT)
                assert store.bookies().behind == 1
                assert store.bookies().client_bytes > 0
                assert (await states(store))[hung].missed > 0
            finally:
                cluster.resume_bookie(0)
            while store.bookies().behind or store.health() is not None:
                await write(store, writer, results, 1)
            assert short == []
            await writer.close()
            count = writer.sent  # type: ignore[attr-defined]
            assert (
                await read_all(store, writer.ledger_id, count - 3, count - 1)
                == [bytes(ENTRY_BYTES)] * 3
            )

    asyncio.run(asyncio.wait_for(scenario(), 240))


@slow(15)
def test_a_bookie_that_is_back_is_forgotten_though_nothing_is_written(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as store:
            writer = await store.create(Replication(BOOKIES, BOOKIES, BOOKIES - 1), {})
            results = Results(writer)
            lost = cluster.bookie_id(0)
            cluster.kill_bookie(0, forget=True)
            try:
                while lost not in (store.health() or ""):
                    await write(store, writer, results, 1)
                for _ in range(4):
                    # Not without the list of bookies, which it is not in.
                    await asyncio.sleep(2 * PASSES_MS / 1000)
                    assert (await states(store))[lost].troubled
            finally:
                cluster.start_bookie(0)
            await until(lambda: not store.bookies().behind and store.health() is None)
            await write(store, writer, results, 1)
            assert not (await states(store))[lost].troubled
            await writer.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))


@slow(10)
def test_the_next_ledger_leaves_out_a_bookie_that_hangs_if_there_is_another(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario() -> None:
        nodes = ZookeeperNodes(ZookeeperSettings(hosts=[cluster.zookeeper]), Runtime())
        await nodes.open()
        async with opened(cluster) as store:
            log = BookKeeperLog(
                3,
                Runtime(),
                store,
                nodes,
                "/hanging/containers/3",
                store_id="5d0c",
                options=options(ledger_bytes=1 << 30),
            )
            await log.open()
            try:
                (first,) = log._keeper.record.ledgers
                among = (await store.describe(first.ledger_id)).bookies
                hung = next(index for index in range(BOOKIES) if cluster.bookie_id(index) in among)
                cluster.pause_bookie(hung)
                try:
                    while len(log._keeper.record.ledgers) == 1:
                        await asyncio.gather(
                            *(log.append([bytes(ENTRY_BYTES)]) for _ in range(IN_FLIGHT))
                        )
                    second = log._keeper.record.ledgers[-1]
                    after = (await store.describe(second.ledger_id)).bookies
                    assert len(after) == 3
                    assert cluster.bookie_id(hung) not in after
                    await log.append([b"goes on"])
                finally:
                    cluster.resume_bookie(hung)
                # It is given nothing by which it could show that it is well: its trouble passes by
                # itself.
                while store.bookies().behind or store.health() is not None:
                    await log.append([b"goes on"])
                assert (
                    cluster.bookie_id(hung) not in (await store.describe(second.ledger_id)).bookies
                )
            finally:
                await log.close()
        await nodes.close()

    asyncio.run(asyncio.wait_for(scenario(), 240))


@slow(10)
def test_a_bookie_that_is_replaced_stays_in_the_metadata_of_the_ledger(
    cluster: BookKeeperCluster,
) -> None:
    async def scenario() -> None:
        async with opened(cluster) as store:
            writer = await store.create(Replication(3, 2, 2), {})
            results = Results(writer)
            await write(store, writer, results, IN_FLIGHT)
            (first,) = (await store.describe(writer.ledger_id)).ensembles
            lost = next(
                index for index in range(BOOKIES) if cluster.bookie_id(index) in first.bookies
            )
            cluster.kill_bookie(lost, forget=True)
            try:
                await write(store, writer, results, IN_FLIGHT)
                assert all(result.code == 0 for result in results.got)
                await writer.close()
            finally:
                cluster.start_bookie(lost)
            before, after = (await store.describe(writer.ledger_id)).ensembles
            assert before == first
            assert IN_FLIGHT <= after.first_entry <= 2 * IN_FLIGHT
            assert cluster.bookie_id(lost) not in after.bookies
            assert len(set(before.bookies) & set(after.bookies)) == 2

    asyncio.run(asyncio.wait_for(scenario(), 240))
