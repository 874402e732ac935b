"""A store at work on a real cluster whose parts die, hang, fill up and forget: nothing is lost,
nothing is there twice.

Ledgers are so small that the log rolls and is truncated during each fault that lets it
(`moves_on`), and in every test. docs/bookkeeper-faults.md has the table.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from durablelog.bookkeeper import ledger_deleter
from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.gateway.gateway_ledger_store import GatewayLedgerStore
from durablelog.bookkeeper.gateway.gateway_settings import GatewaySettings
from durablelog.bookkeeper.gateway.shared_gateway import OwnGateway
from durablelog.bookkeeper.ledger_addresses import FIRST_SEQUENCE
from durablelog.bookkeeper.ledger_store import Replication
from durablelog.bookkeeper.zookeeper_nodes import ZookeeperNodes, ZookeeperSettings
from durablelog.data_frame import FRAME_HEADER_LENGTH, FRAME_MAGIC
from durablelog.durable_data_log import LogFrame
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from recovery.harness.services.bookkeeper_faults import FaultedStore, Script, WorkingStore
from recovery.harness.services.cut_proxy import CutProxy
from segmentstore.contracts.errors import DataCorruptionError, NotPrimaryError
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import PAYLOAD_BYTES_MAX, append_all, payload
from tests.durablelog.bookkeeper.bookkeeper_world import options
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.store.harness import TINY
from tests.support.suites import slow

ALL_THREE = "?ledger_bytes=4KiB"
DEGRADED = "?ledger_bytes=4KiB&degraded=2/2/2"
"""Rolls go on with two bookies."""
SETTINGS = {
    **TINY,
    "frame_bytes_max": 1000,
    "log_file_bytes": 16 * 1024,
    "checkpoint_operations": 200,
    "flush_bytes": 2000,
    "flush_age_s": 0.5,
    "object_bytes": 16 * 1024,
    "upload_bytes_max": 32 * 1024,
    "unflushed_target_bytes": 1 << 20,
}
BOUND_S = 240.0
"""Below the bound of a test, for what takes some 20 s on a quiet machine."""
OUTAGE_S = float(os.environ.get("HARNESS_BOOKKEEPER_OUTAGE_S", "0"))
"""How long two bookies stay away beyond what is needed; 60 for the longer run."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[OwnGateway]:
    with kept_gateway() as kept:
        yield kept


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookKeeperCluster]:
    with BookKeeperCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def cluster(module_cluster: BookKeeperCluster, gateway: OwnGateway) -> BookKeeperCluster:
    """Whole, whatever the test before has left."""
    module_cluster.start()
    return module_cluster


def check(folder: Path, tier1: str, script: Script) -> None:
    """A life during which `script` breaks things, and the judgement of everything."""

    async def main() -> None:
        async with asyncio.timeout(BOUND_S):
            store = FaultedStore(folder, tier1, folder.name, SETTINGS)
            await store.live(script)
            await rolled_and_truncated(store)
            assert [str(each) for each in await store.evaluate()] == []
            assert len(store.history.calls) > 100

    asyncio.run(main())


async def rolled_and_truncated(store: FaultedStore) -> None:
    """In its first life."""
    record = await store.log_record()
    assert record.epoch == 1
    assert record.ledgers[-1].sequence > FIRST_SEQUENCE
    assert record.truncation_address > 0


def url(cluster: BookKeeperCluster, folder: Path, query: str, *, at: str | None = None) -> str:
    path = f"/{folder.name}"
    return cluster.url(path) + query if at is None else f"bookkeeper://{at}{path}{query}"


async def outside(call: Callable[..., object], *arguments: object) -> None:
    """Something that blocks."""
    await asyncio.to_thread(call, *arguments)


def test_a_bookie_is_killed_and_brought_back(
    shared_bookkeeper: BookKeeperCluster, gateway: OwnGateway, tmp_path: Path
) -> None:
    """On the cluster of other tests: it leaves that whole."""
    cluster = shared_bookkeeper
    cluster.start()

    async def script(working: WorkingStore) -> None:
        await working.acknowledges(50)
        await outside(cluster.kill_bookie, 0)
        await working.acknowledges(150)
        await working.moves_on()
        await outside(cluster.start_bookie, 0)
        await working.acknowledges(100)
        await working.is_well()

    check(tmp_path, url(cluster, tmp_path, DEGRADED), script)


@slow(15)
def test_ledgers_are_on_two_bookies_while_one_is_not_registered(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    async def script(working: WorkingStore) -> None:
        await working.acknowledges(50)
        await outside(functools.partial(cluster.kill_bookie, 0, forget=True))
        await working.says("is on 2/2/2", "too few bookies for 3/3/2")
        await working.moves_on()
        await working.says("is on 2/2/2", "too few bookies for 3/3/2")
        await outside(cluster.start_bookie, 0)
        await working.is_well()
        await working.acknowledges(50)

    async def main() -> None:
        async with asyncio.timeout(BOUND_S):
            store = FaultedStore(
                tmp_path, url(cluster, tmp_path, DEGRADED), tmp_path.name, SETTINGS
            )
            await store.live(script)
            await rolled_and_truncated(store)
            assert (await store.log_record()).ledgers[-1].replication == Replication(3, 3, 2)
            assert [str(each) for each in await store.evaluate()] == []

    asyncio.run(main())


async def nothing_is_acknowledged(working: WorkingStore, cluster: BookKeeperCluster) -> None:
    """While one bookie is left of three, and health says so."""
    before = working.acknowledged
    assert await asyncio.to_thread(cluster.registered) == [cluster.bookie_id(2)]
    await asyncio.sleep(OUTAGE_S)
    assert working.acknowledged == before
    assert any("ing a ledger failed with" in finding for finding in working.findings())
    assert working.runs


@slow(20)
def test_two_bookies_are_killed_and_brought_back(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    async def script(working: WorkingStore) -> None:
        await working.acknowledges(50)
        await outside(functools.partial(cluster.kill_bookies, 0, 1, forget=True))
        # What is in doubt cannot be recovered from one bookie; if nothing was, there is none for
        # another ledger.
        await working.says("ing a ledger failed with")
        await nothing_is_acknowledged(working, cluster)
        await outside(cluster.start_bookie, 0)
        await outside(cluster.start_bookie, 1)
        await working.acknowledges(100)
        await working.moves_on()
        await working.is_well()

    check(tmp_path, url(cluster, tmp_path, ALL_THREE), script)


@slow(20)
def test_two_bookies_are_killed_one_after_the_other_and_brought_back(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    async def script(working: WorkingStore) -> None:
        await working.acknowledges(50)
        await outside(functools.partial(cluster.kill_bookie, 0, forget=True))
        await working.says(
            "creating a ledger failed with -6 NotEnoughBookies",
            "3/3/2 needs 3 bookies, 2 are registered",
            cluster.bookie_id(1),
        )
        await outside(functools.partial(cluster.kill_bookie, 1, forget=True))
        await nothing_is_acknowledged(working, cluster)
        assert any("NotEnoughBookies" in finding for finding in working.findings())
        await outside(cluster.start_bookie, 1)
        await outside(cluster.start_bookie, 0)
        await working.acknowledges(100)
        await working.moves_on()
        await working.is_well()

    check(tmp_path, url(cluster, tmp_path, ALL_THREE), script)


@slow(15)
def test_a_bookie_hangs_and_goes_on(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    async def script(working: WorkingStore) -> None:
        await working.acknowledges(50)
        cluster.pause_bookie(1)
        try:
            await working.acknowledges(50)
            await working.moves_on()
        finally:
            cluster.resume_bookie(1)
        await working.acknowledges(100)

    check(tmp_path, url(cluster, tmp_path, "?ledger_bytes=16KiB"), script)


@slow(15)
def test_a_bookie_comes_back_without_its_ledgers(
    cluster: BookKeeperCluster, tmp_path: Path
) -> None:
    async def script(working: WorkingStore) -> None:
        await working.acknowledges(100)
        await outside(cluster.wipe_bookie, 2)
        await working.moves_on()
        await outside(cluster.start_bookie, 2)
        await working.acknowledges(100)
        await working.moves_on()
        await working.is_well()

    check(tmp_path, url(cluster, tmp_path, DEGRADED), script)


@slow(15)
def test_the_disk_of_a_bookie_is_full(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    async def script(working: WorkingStore) -> None:
        await working.acknowledges(50)
        cluster.fill_bookie(2)
        await outside(cluster.wait_for_bookie_end, 2, BOUND_S)
        await working.moves_on()
        await outside(cluster.start_bookie_read_only, 2)
        await working.acknowledges(50)
        await working.moves_on()
        await outside(cluster.stop_bookie, 2)
        await outside(cluster.start_bookie, 2)
        await working.acknowledges(50)
        await working.is_well()

    check(tmp_path, url(cluster, tmp_path, DEGRADED), script)


@slow(8)
def test_zookeeper_is_killed_and_restarted(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    async def script(working: WorkingStore) -> None:
        await working.acknowledges(50)
        await outside(cluster.kill_zookeeper)
        await working.says("zookeeper")
        await outside(cluster.start_zookeeper)
        await working.acknowledges(100)
        await working.moves_on()
        await working.is_well()

    check(tmp_path, url(cluster, tmp_path, ALL_THREE), script)


@slow(20)
def test_sessions_with_zookeeper_expire(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    async def script_of(proxy: CutProxy, working: WorkingStore) -> None:
        await working.acknowledges(50)
        assert await proxy.expire_sessions() >= 2
        await working.acknowledges(100)
        await working.moves_on()
        await working.is_well()

    through_proxy(cluster, tmp_path, script_of)


def through_proxy(
    cluster: BookKeeperCluster,
    folder: Path,
    script: Callable[[CutProxy, WorkingStore], Awaitable[None]],
    later: Callable[[CutProxy], Awaitable[None]] | None = None,
) -> None:
    """As `check`, with `later` for the time of the judgement."""

    async def main() -> None:
        async with asyncio.timeout(BOUND_S), CutProxy(cluster.zookeeper) as proxy:
            tier1 = url(cluster, folder, ALL_THREE, at=proxy.address)
            store = FaultedStore(folder, tier1, folder.name, SETTINGS)
            await store.live(lambda working: script(proxy, working))
            await rolled_and_truncated(store)
            done = asyncio.ensure_future(later(proxy)) if later is not None else None
            assert [str(each) for each in await store.evaluate()] == []
            if done is not None:
                await done

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "root"),
    [("write", "record"), ("create", "ledgers"), ("write", "ledgers")],
    ids=["our-record", "a-new-ledger", "a-ledger's-end"],
)
@slow(12)
def test_replies_of_zookeeper_to_changes_are_lost(
    cluster: BookKeeperCluster, tmp_path: Path, kind: str, root: str
) -> None:
    path = f"/{tmp_path.name}/containers/" if root == "record" else "/ledgers/"

    async def script(proxy: CutProxy, working: WorkingStore) -> None:
        # BookKeeper's own client is silent for its whole session after each of these.
        for _ in range(6 if root == "record" else 1):
            await working.acknowledges(20)
            await proxy.lose_reply(kind, path)
        await working.acknowledges(60)
        await working.moves_on()
        await working.is_well()

    async def lose_the_claim(proxy: CutProxy) -> None:
        await proxy.lose_reply(kind, path)

    through_proxy(cluster, tmp_path, script, lose_the_claim if root == "record" else None)


@slow(10)
def test_the_gateway_is_killed(
    cluster: BookKeeperCluster, tmp_path: Path, gateway: OwnGateway
) -> None:
    async def script(working: WorkingStore) -> None:
        await working.acknowledges(100)
        os.kill(gateway.process.pid, signal.SIGKILL)
        await working.acknowledges(100)
        await working.moves_on()
        await working.is_well()

    check(tmp_path, url(cluster, tmp_path, ALL_THREE), script)


def damage(folder: Path) -> int:
    """Change a byte of every frame on a bookie's disk; how many."""
    count = 0
    for path in sorted((folder / "ledgers").rglob("*.log")):
        data = bytearray(path.read_bytes())
        place = data.find(FRAME_MAGIC)
        while place >= 0:
            data[place + FRAME_HEADER_LENGTH - 1] ^= 0xFF
            count += 1
            place = data.find(FRAME_MAGIC, place + 1)
        path.write_bytes(data)
    return count


@slow(15)
def test_entries_are_damaged_on_disk(cluster: BookKeeperCluster, tmp_path: Path) -> None:
    """One good copy of each is enough; without one the store does not open."""

    def damage_bookies(*indices: int) -> None:
        for index in indices:
            cluster.stop_bookie(index)
            assert damage(cluster.bookie_folder(index)) > 10
            cluster.start_bookie(index)

    async def main() -> None:
        async with asyncio.timeout(BOUND_S):
            store = FaultedStore(tmp_path, url(cluster, tmp_path, ALL_THREE), "damage", SETTINGS)
            await store.live(lambda working: working.acknowledges(60))
            await outside(damage_bookies, 0, 1)
            assert [str(each) for each in await store.evaluate()] == []
            await store.live(lambda working: working.acknowledges(60))
            await outside(damage_bookies, 0, 1, 2)
            with pytest.raises(DataCorruptionError, match="ledger"):
                await store.evaluate()

    asyncio.run(main())


@asynccontextmanager
async def opened_log(
    cluster: BookKeeperCluster, path: str
) -> AsyncIterator[tuple[BookKeeperLog, GatewayLedgerStore]]:
    ledgers = GatewayLedgerStore(
        GatewaySettings(metadata_uri=cluster.metadata_uri, password=b"secret"), Runtime()
    )
    nodes = ZookeeperNodes(ZookeeperSettings(hosts=[cluster.zookeeper]), Runtime())
    log = BookKeeperLog(
        3,
        Runtime(),
        ledgers,
        nodes,
        path,
        store_id="5d0c",
        options=options(),
        payload_bytes_max=PAYLOAD_BYTES_MAX,
    )
    try:
        await ledgers.open()
        await nodes.open()
        await log.open()
        yield log, ledgers
    finally:
        await log.close()
        await ledgers.close()
        await nodes.close()


async def take_all(reading: AsyncIterator[Sequence[LogFrame]], found: list[bytes]) -> None:
    async for frames in reading:
        found += [bytes(frame.payload) for frame in frames]


@pytest.mark.parametrize("by_a_new_owner", [False, True])
@slow(12)
def test_ledgers_are_deleted_under_a_reader(
    cluster: BookKeeperCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_a_new_owner: bool,
) -> None:
    # A new owner spares those of earlier ones for so long, for such a reader.
    monkeypatch.setattr(ledger_deleter, "DELETE_AFTER_S", 0.0)
    path = f"/{tmp_path.name}/containers/3"

    async def main() -> None:
        async with asyncio.timeout(BOUND_S), opened_log(cluster, path) as (log, ledgers):
            addresses = await append_all(log, range(200))
            reading = log.read()
            found = [bytes(frame.payload) for frame in await anext(reading)]
            listed = [item.ledger_id for item in log._keeper.record.ledgers]
            assert len(listed) > 5
            if by_a_new_owner:
                async with opened_log(cluster, path) as (new, _):
                    await new.truncate(addresses[-1])
                    while set(listed[:-1]) - set(new._remover.deleted):  # noqa: ASYNC110
                        # Nothing reports it.
                        await asyncio.sleep(0.02)
            else:
                for ledger_id in listed:
                    await ledgers.delete(ledger_id)
            with pytest.raises(NotPrimaryError if by_a_new_owner else DataCorruptionError):
                await take_all(reading, found)
            assert found == [payload(number) for number in range(len(found))]
        if not by_a_new_owner:
            with pytest.raises(DataCorruptionError, match="missing"):
                async with opened_log(cluster, path):
                    pass

    asyncio.run(main())
