"""What a reading takes for the log, and what for corruption: repeats, holes, strangers, damage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from durablelog.bookkeeper.ledger_store import OK, Replication
from durablelog.bookkeeper.log_metadata import RemovedLedger
from durablelog.data_frame import seal_header
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.errors import ConfigError, DataCorruptionError
from tests.contracts.durable_data_log_contract import append_all, payload, read_all, read_payloads
from tests.contracts.ledger_store_contract import Results
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, run
from tests.durablelog.bookkeeper.memory_ledgers import MemoryLedger, MemoryLedgerStore
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import LONG_S, numbers

Damage = Callable[[MemoryLedger], None]


def frame(sequence: int, data: bytes, *, epoch: int = 1, container_id: int = 3) -> bytes:
    return seal_header(container_id, epoch, sequence, 0, [data]) + data


def damaged(damage: Damage, *, before: int = 5) -> BookKeeperWorld:
    """A log of frames in one ledger that was damaged after its owner had closed it."""
    world = BookKeeperWorld()

    async def scenario() -> None:
        log = await world.opened()
        await append_all(log, range(before))
        await log.close()
        damage(world.cluster.ledgers[world.ids_listed()[0]])

    run(scenario())
    return world


def insert(at: int, *entries: bytes) -> Damage:
    def damage(ledger: MemoryLedger) -> None:
        ledger.entries[at:at] = entries

    return damage


def test_frames_that_are_there_twice_are_dropped() -> None:
    world = damaged(
        insert(
            5,
            *[frame(sequence, payload(sequence - 1)) for sequence in (3, 4, 5)],
            frame(6, payload(5)),
        )
    )

    async def scenario() -> None:
        log = await world.opened()
        assert await read_payloads(log) == numbers(6)
        await append_all(log, range(6, 8))
        frames = await read_all(log)
        assert [found.sequence for found in frames] == list(range(1, 9))
        assert [bytes(found.payload) for found in frames] == numbers(8)
        await log.close()

    run(scenario())


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (
            insert(3, frame(3, payload(99))),
            "entry 3 .*frame 3 was there already, with other content",
        ),
        (insert(3, frame(5, payload(4))), "entry 3 .*frame 5 lies where frame 4 is due"),
        (insert(0, frame(3, payload(2))), "entry 1 .*frame 1 lies where frame 4 is due"),
        (insert(3, frame(4, payload(3), epoch=2)), "entry 3 .*epoch 2 in a ledger of epoch 1"),
        (insert(3, frame(4, payload(3), container_id=4)), "entry 3 .*container 4"),
        (insert(3, b""), "entry 3 .*no frame is there"),
        (insert(3, b"rubbish" * 20), "entry 3 .*no frame begins here"),
        (insert(3, frame(4, payload(3))[:-1]), "entry 3 .*cut off"),
        (insert(3, frame(4, payload(3))[:-1] + b"x"), "entry 3 .*payload checksum"),
        (insert(3, frame(4, payload(3)) + b"x"), "entry 3 .*checksum|cut off"),
    ],
)
def test_anything_else_is_corruption_and_its_place_is_named(damage: Damage, match: str) -> None:
    world = damaged(damage)

    async def scenario() -> None:
        log = await world.opened()
        with pytest.raises(DataCorruptionError, match=match):
            await read_all(log)
        await log.close()

    run(scenario())


def test_a_last_frame_that_is_damaged_stops_the_opening() -> None:
    world = damaged(insert(5, b"rubbish" * 20))

    async def scenario() -> None:
        with pytest.raises(DataCorruptionError, match="entry 5"):
            await world.opened()

    run(scenario())


def test_a_frame_of_a_newer_format_is_not_corruption() -> None:
    newer = bytearray(frame(6, payload(5)))
    newer[4:6] = (9).to_bytes(2, "big")
    newer[44:48] = crc32c(newer[:44]).to_bytes(4, "big")
    world = damaged(insert(5, bytes(newer)))

    async def scenario() -> None:
        with pytest.raises(ConfigError, match="version 9"):
            await world.opened()

    run(scenario())


def test_ledgers_of_earlier_owners_are_closed_before_they_are_read() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(40))
        # As after a crash, and of ledgers whose sealing failed.
        for ledger in world.cluster.ledgers.values():
            ledger.closed = False
        new = await world.opened()
        assert [world.cluster.ledgers[ledger_id].closed for ledger_id in world.ids_listed()] == [
            False,
            False,
            True,
            True,
            False,
        ]
        assert await read_payloads(new) == numbers(40)
        assert all(world.cluster.ledgers[ledger_id].closed for ledger_id in world.ids_listed()[:-1])
        await log.close()
        await new.close()

    run(scenario())


def test_truncated_ledgers_stay_as_long_as_a_reader_needs_them() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(60))
        one, other = log.read(), log.read()
        seen = {
            id(batches): [bytes(found.payload) for found in await anext(batches)]
            for batches in (one, other)
        }
        await log.truncate(addresses[59])
        for batches in (one, other):
            await asyncio.sleep(LONG_S)
            assert len(world.cluster.ledgers) >= 6
            async for batch in batches:
                seen[id(batches)] += [bytes(found.payload) for found in batch]
            assert seen[id(batches)] == numbers(60)
        await asyncio.sleep(LONG_S)
        assert sorted(world.cluster.ledgers) == world.ids_listed()
        await log.close()

    run(scenario())


def test_a_ledger_is_fenced_before_it_is_deleted() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await log.close()
        writer = await MemoryLedgerStore(world.cluster).create(Replication(), {})
        results = Results(writer)
        writer.append([b"before"])
        await results.until(1)
        world.put_record(replace(world.record, removing=(RemovedLedger(writer.ledger_id, 1),)))
        world.cluster.fail("delete", -9, times=100)
        log = await world.opened()
        await asyncio.sleep(LONG_S)
        writer.append([b"after"])
        assert [result.code for result in await results.until(2)] == [OK, -101]
        await log.close()

    run(scenario())
