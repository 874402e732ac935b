"""The closed ledgers of a log against the contract of read handles: in memory, viewed, real."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper import ledger_parts
from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.bookkeeper_log_view import BookKeeperLogView
from durablelog.bookkeeper.ledger_store import LedgerDescription, LedgerError, LedgerState
from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.durable_data_log import DurableDataLog
from recovery.harness.services.bookkeeper_cluster import BookKeeperCluster
from segmentstore.contracts.ledgers import LedgerMetadata, ReadHandle
from segmentstore.contracts.runtime import Runtime
from tests.contracts.log_world import append_all
from tests.contracts.read_handle_contract import HandleWorld, ReadHandleContract, read
from tests.durablelog.bookkeeper.bookkeeper_world import (
    PATH,
    STORE_ID,
    BookKeeperWorld,
    options,
    run,
)
from tests.durablelog.bookkeeper.kept_gateway import kept_gateway
from tests.durablelog.bookkeeper.memory_ledgers import MemoryLedgerStore
from tests.durablelog.bookkeeper.real_log import RealLog
from tests.support.loop_clock import LoopClock
from tests.support.suites import slow

LEDGER_BYTES = 10_000
_numbers = itertools.count()


class Damaged(MemoryLedgerStore):
    """One entry of every ledger fails its digest on all bookies, once `damaged` says which."""

    damaged: int | None = None
    readings = 0
    """Under way: a real client has four at most."""

    async def _read(
        self, ledger_id: int, first: int, last: int
    ) -> AsyncIterator[Sequence[memoryview]]:
        bad = self.damaged
        whole = last if bad is None or not first <= bad <= last else bad - 1
        self.readings += 1
        try:
            async for batch in super()._read(ledger_id, first, whole):
                yield batch
        finally:
            self.readings -= 1
        if whole < last:
            raise LedgerError(-5, "read", f"entry {bad} of ledger {ledger_id}")


class LedgerWorld(HandleWorld):
    """The first ledger of a log in memory."""

    batch_bytes_max = 1 << 20

    def __init__(self, log: DurableDataLog, world: BookKeeperWorld, store: Damaged) -> None:
        self.log = log
        self.store = store
        self.cluster = world.cluster
        self.part = log.sealed_parts()[0]
        self.ledger = world.cluster.ledgers[self.part.ledger_id]
        self.entries = list(self.ledger.entries)

    async def open(self) -> ReadHandle:
        return await self.log.open_part(self.part.number)

    async def damage(self, entry: int) -> bool:
        self.store.damaged = entry
        return True

    async def delete(self) -> bool:
        self.cluster.drop(self.part.ledger_id)
        return True


def log_on(world: BookKeeperWorld, store: Damaged) -> BookKeeperLog:
    return BookKeeperLog(
        3,
        Runtime(clock=LoopClock(), random=world.rng),
        store,
        MemoryNodes(world.tree, MemoryProcess()),
        PATH,
        store_id=STORE_ID,
        options=options(ledger_bytes=LEDGER_BYTES),
    )


def view_on(world: BookKeeperWorld, store: Damaged) -> BookKeeperLogView:
    return BookKeeperLogView(
        3,
        Runtime(clock=LoopClock(), random=world.rng),
        store,
        MemoryNodes(world.tree, MemoryProcess()),
        PATH,
        store_id=STORE_ID,
        options=options(),
    )


class TestLedgersOfALog(ReadHandleContract):
    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        run(coroutine)

    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            inner = BookKeeperWorld()
            store = Damaged(inner.cluster)
            log = log_on(inner, store)
            await log.open()
            await append_all(log, range(200))
            yield LedgerWorld(log, inner, store)
            await log.close()

        return world()


class TestLedgersOfAView(ReadHandleContract):
    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        run(coroutine)

    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            inner = BookKeeperWorld()
            store = Damaged(inner.cluster)
            log = log_on(inner, store)
            await log.open()
            await append_all(log, range(200))
            view = view_on(inner, store)
            await view.open()
            yield LedgerWorld(view, inner, store)
            await view.close()
            await log.close()

        return world()


class RealLedgerWorld(HandleWorld):
    """The first ledger of a log on a real cluster; what was sent is what is expected."""

    batch_bytes_max = 8 << 20

    def __init__(self, log: RealLog, entries: list[bytes]) -> None:
        self.log = log
        self.part = log.sealed_parts()[0]
        self.entries = entries

    async def open(self) -> ReadHandle:
        return await self.log.open_part(self.part.number)

    async def delete(self) -> bool:
        await self.log.ledger_client.delete(self.part.ledger_id)
        return True


@pytest.fixture(scope="module")
def cluster(shared_bookkeeper: BookKeeperCluster) -> Iterator[BookKeeperCluster]:
    shared_bookkeeper.start()
    with kept_gateway():
        yield shared_bookkeeper


@slow(3)
class TestLedgersOfARealCluster(ReadHandleContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: BookKeeperCluster) -> None:
        self.cluster = cluster

    def make_world(self, tmp_path: Path) -> AbstractAsyncContextManager[HandleWorld]:
        @asynccontextmanager
        async def world() -> AsyncIterator[HandleWorld]:
            path = f"/handles-{next(_numbers)}/containers/3"
            log = RealLog(self.cluster, path, log_options=options(ledger_bytes=LEDGER_BYTES))
            await log.open()
            await append_all(log, range(200))
            (first, *_) = log.sealed_parts()
            last = first.end - first.first - 1
            batches = log.ledger_client.read(first.ledger_id, 0, last)
            sent = [bytes(entry) async for batch in batches for entry in batch]
            yield RealLedgerWorld(log, sent)
            await log.close()

        return world()


def test_metadata_are_bookkeepers_own() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(60))
        found: list[LedgerMetadata] = []
        for part in log.sealed_parts():
            handle = await log.open_part(part.number)
            found.append(handle.metadata)
            await handle.close()
        assert len(found) >= 3
        for metadata in found:
            custom = dict(metadata.custom)
            assert custom["store"] == STORE_ID.encode()
            assert custom["container"] == b"3"
            assert metadata.ensembles[0].bookies == ("memory:0", "memory:1", "memory:2")
            assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 2)
        await log.close()

    run(scenario())


def test_a_ledger_that_is_read_is_deleted_when_its_last_reader_is_done() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(60))
        part, other, *_ = log.sealed_parts()
        ledgers = world.cluster.ledgers
        handles = [await log.open_part(part.number) for _ in range(2)]
        await log.truncate(addresses[-1])
        for _ in range(1000):
            if len(ledgers) == 2:
                break
            await asyncio.sleep(0)
        assert part.ledger_id in ledgers
        assert other.ledger_id not in ledgers
        held = log.statistics().held_bytes
        assert held == part.length
        assert log.health() == f"{held} bytes of truncated ledgers are kept, for they are read"
        for handle in handles:
            assert part.ledger_id in ledgers
            assert await read(handle, 0, handle.last_entry) == ledgers[part.ledger_id].entries
            await handle.close()
        for _ in range(1000):
            if part.ledger_id not in ledgers:
                break
            await asyncio.sleep(0)
        assert len(ledgers) == 1
        assert log.health() is None
        await log.close()

    run(scenario())


@pytest.mark.parametrize("step", [1, 1000, 1 << 20])
def test_a_reader_that_waits_holds_none_of_the_few_readings(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_parts, "STEP_BYTES", step)

    async def scenario() -> None:
        world = BookKeeperWorld()
        store = Damaged(world.cluster)
        log = log_on(world, store)
        await log.open()
        await append_all(log, range(200))
        part = log.sealed_parts()[0]
        handle = await log.open_part(part.number)
        found: list[bytes] = []
        async for batch in handle.read(0, handle.last_entry):
            assert store.readings == 0
            assert len(batch) == 1 or sum(len(entry.data) for entry in batch) < step + 16 * 200
            found += [bytes(entry.data) for entry in batch]
        assert found == world.cluster.ledgers[part.ledger_id].entries
        await handle.close()
        await log.close()

    run(scenario())


def test_when_ledgers_of_earlier_owners_were_sealed_is_asked_for() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(60))
        await log.close()
        log = await world.opened()
        first = log.sealed_parts()
        # Nothing is known but that they were there at the opening.
        assert len({part.sealed_ms for part in first}) == 1
        ids = [item.ledger_id for item in world.record.ledgers]
        # In memory a ledger's time of creation is its id; the last one was sealed by the opening.
        wanted = ids[1 : len(first)]
        known: list[int] = []
        for _ in range(1000):
            known = [part.sealed_ms for part in log.sealed_parts()]
            if known[:-1] == wanted:
                break
            await asyncio.sleep(0)
        assert known == [*wanted, first[-1].sealed_ms]
        await log.close()

    run(scenario())


def test_ledgers_without_a_time_were_sealed_at_the_opening_at_the_latest() -> None:
    class Timeless(Damaged):
        described = 0

        async def describe(self, ledger_id: int) -> LedgerDescription:
            self.described += 1
            return replace(await super().describe(ledger_id), created_ms=-1)

    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(60))
        await log.close()
        store = Timeless(world.cluster)
        log = log_on(world, store)
        await log.open()
        first = log.sealed_parts()
        for _ in range(1000):
            if store.described == len(first):
                break
            await asyncio.sleep(0)
        assert store.described == len(first)
        assert log.sealed_parts() == first
        assert first[0].sealed_ms >= LoopClock().offset_ms
        await log.close()

    run(scenario())


def test_a_ledger_that_was_left_open_is_recovered_before_it_is_read_and_never_for_a_view() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(60))
        (first, *_) = log.sealed_parts()
        ledger = world.cluster.ledgers[first.ledger_id]
        ledger.closed = False
        view = view_on(world, Damaged(world.cluster))
        await view.open()
        handle = await view.open_part(first.number)
        assert handle.last_entry == len(ledger.entries) - 1
        await handle.close()
        await view.close()
        assert ledger.describe().state is LedgerState.OPEN
        handle = await log.open_part(first.number)
        assert ledger.describe().state is LedgerState.CLOSED
        await handle.close()
        await log.close()

    run(scenario())
