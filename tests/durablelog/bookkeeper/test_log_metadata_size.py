"""A record that grows towards what a node of ZooKeeper can hold: said in time, refused before it is
sent, mended by a truncation.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from durablelog.bookkeeper.ledger_addresses import make_address
from durablelog.bookkeeper.log_metadata import encode_record
from durablelog.bookkeeper.log_metadata_size import OPENING_BYTES_MAX, ROLL_BYTES_MAX
from durablelog.durable_data_log import LogAddress
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.owned_tasks import owned_tasks
from tests.contracts.durable_data_log_contract import append_all, payload, read_payloads
from tests.durablelog.bookkeeper.bookkeeper_world import PATH, BookKeeperWorld, run
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import numbers
from tests.support.suites import slow

ZOOKEEPER_TAKES = 0xFFFFF


async def world_with_ledgers(record_bytes: int) -> BookKeeperWorld:
    """A log of twenty frames whose record lists ledgers before them, until it has about so many
    bytes.
    """
    world = BookKeeperWorld()
    log = await world.opened()
    await append_all(log, range(20))
    await log.close()
    record = world.record
    first, second = record.ledgers
    before = [
        replace(first, ledger_id=100_000 + i, sequence=1000 + i, last_entry=11, length=1900)
        for i in range(7000)
    ]
    item_bytes = (
        len(encode_record(replace(record, ledgers=tuple(before)))) - len(encode_record(record))
    ) / 7000
    count = int((record_bytes - len(encode_record(record))) / item_bytes)
    own = (replace(first, sequence=1000 + count), replace(second, sequence=1001 + count))
    world.put_record(replace(record, ledgers=(*before[:count], *own)))
    return world


def first_own_frame(world: BookKeeperWorld) -> LogAddress:
    """Of the twenty."""
    return make_address(world.record.ledgers[-2].sequence, 0)


def size(world: BookKeeperWorld) -> int:
    return len(encode_record(world.record))


def test_what_is_refused_here_is_less_than_zookeeper_refuses() -> None:
    assert ROLL_BYTES_MAX < OPENING_BYTES_MAX < ZOOKEEPER_TAKES - 2 * 1024 - len(PATH)


@slow(1)
def test_a_record_beyond_half_is_said_until_a_truncation_makes_it_small() -> None:
    async def scenario() -> None:
        world = await world_with_ledgers(ROLL_BYTES_MAX // 2 - 1000)
        frames = first_own_frame(world)
        log = await world.opened()
        assert log.health() is None
        await append_all(log, range(20, 130))
        assert "the log's record has" in (log.health() or "")
        assert str(ROLL_BYTES_MAX) in (log.health() or "")
        await log.truncate(frames)
        assert log.health() is None
        await log.close()

    run(scenario())


@slow(3)
def test_a_roll_that_makes_the_record_too_large_is_refused_and_sends_nothing() -> None:
    async def scenario() -> None:
        world = await world_with_ledgers(ROLL_BYTES_MAX - 1000)
        log = await world.opened()
        futures = [log.append([payload(number)]) for number in range(20, 100)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        error = results[-1]
        assert isinstance(error, TierUnavailableError)
        assert PATH in str(error)
        assert str(ROLL_BYTES_MAX) in str(error)
        acknowledged = sum(isinstance(result, int) for result in results)
        assert acknowledged
        assert size(world) <= ROLL_BYTES_MAX
        await log.close()
        await truncated_it_goes_on(world, 20 + acknowledged)

    run(scenario())


async def truncated_it_goes_on(world: BookKeeperWorld, frames: int) -> None:
    """With the record as the refused roll left it."""
    last = world.record.ledgers[-1]
    log = await world.opened()
    await log.truncate(make_address(last.sequence, 0))
    rest = await read_payloads(log)
    assert rest == numbers(frames)[-len(rest) :]
    await append_all(log, range(frames, frames + 100))
    assert await read_payloads(log) == [*rest, *numbers(frames + 100)[frames:]]
    assert log.health() is None
    await log.close()


async def openings_with_a_frame_each(world: BookKeeperWorld, at_most: int) -> tuple[int, str]:
    """How many succeeded before one was refused, and why that was."""
    for opened in range(at_most):
        try:
            log = await world.opened()
        except TierUnavailableError as error:
            return opened, str(error)
        await log.append([payload(opened)])
        await log.close()
    return at_most, ""


@slow(2)
def test_openings_find_room_where_a_roll_does_not_but_not_for_ever() -> None:
    async def scenario() -> None:
        world = await world_with_ledgers(OPENING_BYTES_MAX - 800)
        opened, why_not_more = await openings_with_a_frame_each(world, 10)
        assert 2 <= opened <= 5
        assert str(OPENING_BYTES_MAX) in why_not_more
        assert size(world) <= OPENING_BYTES_MAX + 100
        await asyncio.sleep(0)
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}

    run(scenario())
