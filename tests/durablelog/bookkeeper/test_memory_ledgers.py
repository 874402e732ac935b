"""Ledgers in memory against the contract, and their planted failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from durablelog.bookkeeper.ledger_store import (
    OK,
    LedgerError,
    LedgerStore,
    LedgerWriter,
    Replication,
)
from tests.contracts.ledger_store_contract import LedgerStoreContract, LedgerWorld, Results
from tests.durablelog.bookkeeper.memory_ledgers import MemoryCluster, MemoryLedgerStore


class _MemoryWorld(LedgerWorld):
    def __init__(self) -> None:
        self.cluster = MemoryCluster()

    async def connect(self) -> LedgerStore:
        return MemoryLedgerStore(self.cluster)


class TestMemoryLedgers(LedgerStoreContract):
    def make_world(self, tmp_path: Path) -> LedgerWorld:
        return _MemoryWorld()


async def _codes(writer: LedgerWriter, entries: int) -> list[int]:
    results = Results(writer)
    for number in range(entries):
        writer.append([b"%d" % number])
    return [result.code for result in await results.until(entries)]


@pytest.mark.parametrize("kept", [0, 1, 2, 9])
def test_entries_of_a_failed_writer_may_be_there_all_the_same(kept: int) -> None:
    async def scenario() -> None:
        cluster = MemoryCluster()
        store = MemoryLedgerStore(cluster)
        writer = await store.create(Replication(), {})
        cluster.fail_add(-12, after=2, kept=kept)
        assert await _codes(writer, 6) == [OK, OK, -12, -11, -11, -11]
        assert (await store.recover(writer.ledger_id)).last_entry == 1 + min(kept, 4)

    asyncio.run(scenario())


def test_too_few_bookies_fail_adds_creates_and_recoveries_until_they_are_back() -> None:
    async def scenario() -> None:
        cluster = MemoryCluster()
        store = MemoryLedgerStore(cluster)
        writer = await store.create(Replication(), {})
        assert await _codes(writer, 1) == [OK]
        cluster.bookies_up = 1
        assert store.health() is not None
        assert await _codes(writer, 2) == [-6, -11]
        for call, code in (
            (store.create(Replication(), {}), -6),
            (store.recover(writer.ledger_id), -10),
        ):
            with pytest.raises(LedgerError) as caught:
                await call
            assert caught.value.code == code
        cluster.bookies_up = 2
        assert (await store.recover(writer.ledger_id)).last_entry == 1
        with pytest.raises(LedgerError):
            await store.create(Replication(), {})
        await store.create(Replication(2, 2, 2), {})

    asyncio.run(scenario())


@pytest.mark.parametrize("happens", [False, True])
def test_a_call_without_an_answer_may_have_happened(happens: bool) -> None:
    async def scenario() -> None:
        cluster = MemoryCluster()
        store = MemoryLedgerStore(cluster)
        cluster.fail("create", -23, happens=happens)
        cluster.fail("delete", -9, happens=happens, times=2)
        with pytest.raises(LedgerError):
            await store.create(Replication(), {})
        assert len(await store.list_ids()) == happens
        writer = await store.create(Replication(), {})
        for _ in range(2):
            with pytest.raises(LedgerError):
                await store.delete(writer.ledger_id)
        assert (writer.ledger_id in await store.list_ids()) is not happens

    asyncio.run(scenario())
