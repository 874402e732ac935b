"""Retained ledgers of a log: openings leave them alone, and none is deleted early, or forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from durablelog.bookkeeper.ledger_addresses import make_address
from durablelog.bookkeeper.ledger_deleter import DELETE_AFTER_S
from durablelog.bookkeeper.ledger_store import LedgerDescription
from durablelog.bookkeeper.log_metadata import RETAINED_MAX, encode_record
from durablelog.bookkeeper.log_metadata_size import ROLL_BYTES_MAX
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.orphan_ledgers import LedgerVerdict, classify, owner_of
from tests.contracts.durable_data_log_contract import append_all, read_all
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, run
from tests.durablelog.bookkeeper.memory_ledgers import MemoryLedgerStore
from tests.durablelog.bookkeeper.test_log_metadata import RECORD

LONG_S = 2 * DELETE_AFTER_S


class WatchedLedgers(MemoryLedgerStore):
    """Notes which ledgers are asked for anything."""

    touched: set[int]

    async def recover(self, ledger_id: int) -> LedgerDescription:
        self.touched.add(ledger_id)
        return await super().recover(ledger_id)

    async def describe(self, ledger_id: int) -> LedgerDescription:
        self.touched.add(ledger_id)
        return await super().describe(ledger_id)

    def read(self, ledger_id: int, first: int, last: int) -> AsyncIterator[Sequence[memoryview]]:
        self.touched.add(ledger_id)
        return super().read(ledger_id, first, last)


async def retaining(world: BookKeeperWorld) -> list[int]:
    """A log was closed that retains all ledgers but those of its last frames; gives their ids."""
    log = await world.opened()
    addresses = await append_all(log, range(100))
    await log.truncate(addresses[-1], retain_from=1)
    await log.close()
    kept = [item.ledger_id for item in world.record.retained]
    assert len(kept) > 5
    return kept


def test_an_opening_neither_recovers_nor_reads_retained_ledgers() -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        kept = await retaining(world)
        process = MemoryProcess()
        log = world.log(process)
        watched = WatchedLedgers(world.cluster, process)
        watched.touched = set()
        for user in (log, log._calls, log._reader, log._parts, log._remover):
            name = "ledgers" if user is log._calls else "_ledgers"
            assert hasattr(user, name)
            setattr(user, name, watched)
        await log.open()
        assert len(await read_all(log)) == 1
        log.sealed_parts()
        await asyncio.sleep(LONG_S)
        log.sealed_parts()
        assert watched.touched
        assert not watched.touched & set(kept)
        assert set(kept) <= world.cluster.ledgers.keys()
        await log.close()

    run(main())


def test_a_next_owner_deletes_them_by_way_of_removing() -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        kept = await retaining(world)
        log = await world.opened()
        first = world.record.retained[0].sequence
        await log.delete_retained(first + 2)
        assert [item.ledger_id for item in world.record.retained] == kept[2:]
        assert set(kept[:2]) <= set(world.ids_removing())
        await asyncio.sleep(1)
        assert not set(kept[:2]) & world.cluster.ledgers.keys()
        await log.close()
        assert set(kept[2:]) <= world.cluster.ledgers.keys()
        log = await world.opened()
        await log.delete_retained()
        await asyncio.sleep(LONG_S)
        assert not set(kept) & world.cluster.ledgers.keys()
        await append_all(log, range(30))
        assert not set(kept) & set(world.ids_removing())
        await log.close()

    run(main())


def test_the_owner_that_wrote_them_deletes_them_at_once() -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(100))
        await log.truncate(addresses[-1], retain_from=1)
        kept = [item.ledger_id for item in world.record.retained]
        await append_all(log, range(100, 130))
        await log.delete_retained()
        await asyncio.sleep(1)
        assert not set(kept) & world.cluster.ledgers.keys()
        await log.close()

    run(main())


def test_a_search_for_orphans_knows_them() -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        for ledger_id in await retaining(world):
            ours = owner_of(world.cluster.ledgers[ledger_id].custom, world.record.store_id)
            verdict = classify(ledger_id, ours, world.record, world.record.store_id)
            assert verdict is LedgerVerdict.KNOWN

    run(main())


def test_of_too_many_the_oldest_go_so_that_the_record_stays_small() -> None:
    (first, last) = RECORD.ledgers
    many = [
        replace(first, ledger_id=(1 << 62) + index, sequence=1000 + index)
        for index in range(RETAINED_MAX + 3)
    ]
    ledgers = (*many, replace(last, sequence=1 << 30))
    record = replace(RECORD, ledgers=ledgers, retained=(), truncation_address=make_address(1000, 0))
    cut = record.truncated(make_address(1 << 30, 0), retain_from=1)
    assert [item.sequence for item in cut.retained] == [item.sequence for item in many[3:]]
    assert cut.removing == (*RECORD.removing, *((item.ledger_id, item.epoch) for item in many[:3]))
    assert len(encode_record(cut)) < ROLL_BYTES_MAX // 8
    assert len(encode_record(cut)) < len(encode_record(record)), "truncating always finds room"
    assert cut.truncated(make_address(1 << 30, 1), retain_from=1).retained == cut.retained
