"""What deletes ledgers goes on whatever goes wrong, and begins nothing once it was closed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from durablelog.bookkeeper.ledger_deleter import LedgerDeleter
from durablelog.bookkeeper.ledger_store import LedgerDescription, Replication
from durablelog.bookkeeper.log_metadata import LedgerItem, LogMetadata, RemovedLedger
from segmentstore.contracts.health import HealthNotes
from segmentstore.contracts.owned_tasks import owned_tasks
from tests.contracts.durable_data_log_contract import append_all, payload
from tests.durablelog.bookkeeper.bookkeeper_world import STORE_ID, BookKeeperWorld, run
from tests.durablelog.bookkeeper.memory_ledgers import MemoryCluster, MemoryLedgerStore
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import LONG_S, until_said


class BrokenStore(MemoryLedgerStore):
    """Some recoveries end in a way that no LedgerStore should."""

    broken = 0

    async def recover(self, ledger_id: int) -> LedgerDescription:
        if self.broken:
            self.broken -= 1
            raise OSError(24, "Too many open files")
        return await super().recover(ledger_id)


async def record_of(cluster: MemoryCluster, ledgers: int) -> LogMetadata:
    """All of them ours, none of them needed."""
    store = MemoryLedgerStore(cluster)
    ids = [(await store.create(Replication(), {})).ledger_id for _ in range(ledgers)]
    items = tuple(
        LedgerItem(sequence=i, ledger_id=i, epoch=1, replication=Replication()) for i in ids
    )
    return LogMetadata(store_id=STORE_ID, container_id=3, epoch=1, ledgers=items)


def without_its_ledgers(record: LogMetadata) -> LogMetadata:
    return replace(
        record,
        ledgers=(),
        removing=tuple(RemovedLedger(item.ledger_id, item.epoch) for item in record.ledgers),
    )


def test_an_unexpected_error_is_reported_and_deleting_goes_on() -> None:
    async def scenario() -> None:
        cluster, notes = MemoryCluster(), HealthNotes()
        record = await record_of(cluster, 3)
        store = BrokenStore(cluster)
        remover = LedgerDeleter(store, random.Random(1), notes)
        remover.begin()
        remover.take(record)
        store.broken = 2
        remover.take(without_its_ledgers(record))
        await asyncio.sleep(0.01)
        assert "Too many open files" in (notes.describe() or "")
        await asyncio.sleep(LONG_S)
        assert not cluster.ledgers
        assert sorted(remover.deleted) == [1, 2, 3]
        assert notes.describe() is None
        await remover.close()

    run(scenario())


@pytest.mark.parametrize("later_owner", [False, True])
def test_what_is_handed_over_after_the_end_stays_in_the_record(later_owner: bool) -> None:
    async def scenario() -> None:
        cluster = MemoryCluster()
        record = await record_of(cluster, 3)
        remover = LedgerDeleter(MemoryLedgerStore(cluster), random.Random(1), HealthNotes())
        remover.begin()
        remover.take(record)
        await remover.close()
        remover.take(replace(without_its_ledgers(record), epoch=2 if later_owner else 1))
        await asyncio.sleep(0)
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}
        await asyncio.sleep(LONG_S)
        assert sorted(cluster.ledgers) == [1, 2, 3]

    run(scenario())


@pytest.mark.parametrize("turns", range(24))
def test_a_close_in_the_middle_of_a_roll_leaves_no_task_behind(turns: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(20))
        world.cluster.fail("delete", -9, times=100)
        await log.truncate(addresses[-1])
        await until_said(log, "cannot be deleted")
        rolling = [log.append([payload(number)]) for number in range(20, 32)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await log.close()
        await asyncio.gather(*rolling, return_exceptions=True)
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}

    run(scenario())
