"""The log and its record: lost replies, outages, tools, other stores; and that `close` works at any
moment.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from durablelog.bookkeeper.log_metadata import LedgerItem, LogDisabledError, RemovedLedger
from durablelog.bookkeeper.memory_process import MemoryProcess
from segmentstore.contracts.errors import (
    ConfigError,
    ContainerStoppedError,
    DataCorruptionError,
    NotPrimaryError,
    TierUnavailableError,
)
from segmentstore.contracts.owned_tasks import owned_tasks
from tests.contracts.durable_data_log_contract import append_all, payload, read_all, read_payloads
from tests.durablelog.bookkeeper.bookkeeper_world import PATH, BookKeeperWorld, options, run
from tests.durablelog.bookkeeper.test_bookkeeper_log_failures import LONG_S, numbers, until_said


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("call", ["read", "create", "write"])
def test_an_opening_whose_reply_was_lost_goes_on(call: str, happens: bool) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        world.tree.fail(call, happens=happens, times=2)  # type: ignore[arg-type]
        log = await world.opened()
        assert log.epoch == 1
        await append_all(log, range(3))
        await log.close()
        world.tree.fail("write", happens=happens)
        log = await world.opened()
        assert log.epoch == 2
        assert await read_payloads(log) == numbers(3)
        assert sorted(world.cluster.ledgers) == world.ids_listed()
        await log.close()

    run(scenario())


@pytest.mark.parametrize("happens", [False, True])
def test_a_roll_and_a_truncation_whose_replies_were_lost_happen_once(happens: bool) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        world.tree.fail("write", happens=happens, times=3)
        addresses = await append_all(log, range(40))
        assert [item.sequence for item in world.record.ledgers] == [1, 2, 3, 4]
        world.tree.fail("write", happens=happens, times=3)
        await log.truncate(addresses[15])
        assert world.record.truncation_address == addresses[15]
        assert await read_payloads(log) == numbers(40)[15:]
        await asyncio.sleep(LONG_S)
        assert sorted(world.cluster.ledgers) == world.ids_listed()
        await log.close()

    run(scenario())


@pytest.mark.parametrize("happens", [False, True])
def test_a_conflict_without_a_rival_changes_nothing(happens: bool) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        world.tree.conflict("create", happens=happens)
        world.tree.conflict("write", happens=happens)
        log = await world.opened()
        assert log.epoch == 1
        world.tree.conflict("write", happens=happens, times=3)
        addresses = await append_all(log, range(40))
        world.tree.conflict("write", happens=happens, times=2)
        await log.truncate(addresses[15])
        assert [item.sequence for item in world.record.ledgers] == [2, 3, 4]
        assert await read_payloads(log) == numbers(40)[15:]
        await log.close()
        world.tree.conflict("write", happens=happens)
        log = await world.opened()
        assert log.epoch == 2
        await log.close()

    run(scenario())


def test_an_outage_of_the_nodes_stops_no_append_until_a_ledger_is_full() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(3))
        world.tree.outage = True
        await append_all(log, range(3, 10))
        with pytest.raises(TierUnavailableError):
            await log.check_primary()
        rolling = [log.append([payload(number)]) for number in range(10, 20)]
        truncating = asyncio.create_task(log.truncate(addresses[1]))
        assert "record does not answer" in await until_said(log, "record does not answer")
        await asyncio.sleep(LONG_S)
        assert not rolling[-1].done()
        assert not truncating.done()
        world.tree.outage = False
        await asyncio.gather(truncating, *rolling)
        assert log.health() is None
        assert await read_payloads(log) == numbers(20)[1:]
        await log.close()

    run(scenario())


def test_an_opening_during_an_outage_gives_up_after_its_timeout() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        world.tree.outage = True
        with pytest.raises(TierUnavailableError, match="record does not answer"):
            await world.opened()
        world.tree.outage = False
        log = await world.opened()
        assert log.epoch == 1
        await log.close()

    run(scenario())


def test_missing_rights_are_said_at_once() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        world.tree.refuse("read")
        with pytest.raises(ConfigError, match=PATH):
            await world.opened()
        world.tree.refuse("create")
        with pytest.raises(ConfigError, match=PATH):
            await world.opened()
        log = await world.opened()
        addresses = await append_all(log, range(3))
        world.tree.refuse("write")
        with pytest.raises(ConfigError):
            await log.truncate(addresses[1])
        with pytest.raises(ConfigError):
            await log.append([payload(3)])
        await log.close()

    run(scenario())


def test_a_disabled_log_refuses_every_opening_and_stops_its_owner() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(3))
        world.put_record(replace(world.record, enabled=False))
        with pytest.raises(LogDisabledError, match="container 3"):
            await log.truncate(addresses[1])
        await log.close()
        before = world.record
        with pytest.raises(LogDisabledError):
            await world.opened()
        assert world.record == before
        world.put_record(replace(before, enabled=True))
        log = await world.opened()
        assert await read_payloads(log) == numbers(3)
        await log.close()

    run(scenario())


def test_what_a_tool_changed_without_a_new_epoch_is_kept() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(3))
        world.put_record(replace(world.record, removing=(RemovedLedger(4711, 1),)))
        await log.truncate(addresses[1])
        assert 4711 in world.ids_removing()
        await asyncio.sleep(LONG_S)
        await log.truncate(addresses[2])
        assert 4711 not in world.ids_removing()
        await log.close()

    run(scenario())


def test_the_node_of_another_store_or_container_is_left_alone() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await log.close()
        before = world.record
        with pytest.raises(ConfigError, match="other"):
            await world.log(store_id="other").open()
        assert world.record == before
        world.put_record(replace(before, container_id=4))
        with pytest.raises(ConfigError, match="container 4"):
            await world.opened()

    run(scenario())


def test_a_record_that_is_none_is_corruption_and_is_left_as_it_is() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        world.tree.make(PATH, b"no record")
        with pytest.raises(DataCorruptionError, match=PATH):
            await world.opened()
        content = world.tree.content(PATH)
        assert content is not None
        assert content.data == b"no record"

    run(scenario())


def test_an_owner_whose_record_is_missing_is_none() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        content = world.tree.content(PATH)
        assert content is not None
        world.tree.remove(PATH, content.version)
        with pytest.raises(NotPrimaryError, match="missing"):
            await log.check_primary()
        with pytest.raises(NotPrimaryError):
            await log.append([payload(3)])
        await log.close()

    run(scenario())


def test_a_log_that_follows_a_lost_one_begins_in_a_higher_epoch() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = world.log(epoch_min=12)
        await log.open()
        assert log.epoch == 12
        await log.close()
        log = world.log(epoch_min=5)
        await log.open()
        assert log.epoch == 13
        await log.close()

    run(scenario())


def test_empty_ledgers_of_owners_that_never_wrote_leave_the_list() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        for _ in range(5):
            log = await world.opened()
            await asyncio.sleep(LONG_S)
            await log.close()
        assert len(world.record.ledgers) == 1
        assert world.record.ledgers[0].sequence == 5
        assert sorted(world.cluster.ledgers) == world.ids_listed()

    run(scenario())


def test_an_empty_ledger_that_is_missing_is_no_matter() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(3))
        await log.close()
        record = world.record
        gone = LedgerItem(
            sequence=2,
            ledger_id=77,
            epoch=1,
            replication=record.ledgers[0].replication,
            last_entry=-1,
            length=0,
        )
        closed = replace(record.ledgers[0], last_entry=2, length=504)
        world.put_record(replace(record, ledgers=(closed, gone)))
        log = await world.opened()
        assert await read_payloads(log) == numbers(3)
        assert [item.sequence for item in world.record.ledgers] == [1, 3]
        await log.close()

    run(scenario())


@pytest.mark.parametrize("entries", [0, 2])
def test_a_ledger_that_is_shorter_than_the_record_says_is_corruption(entries: int) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(15))
        await log.close()
        first, second = (world.cluster.ledgers[ledger_id] for ledger_id in world.ids_listed())
        kept = list(first.entries)
        del first.entries[entries:]
        with pytest.raises(
            DataCorruptionError, match=f"ledger {first.ledger_id} .*the record says 10"
        ):
            await world.opened()
        first.entries[:] = kept
        log = await world.opened()
        await log.truncate(addresses[14])
        await log.close()
        del second.entries[entries:]
        with pytest.raises(DataCorruptionError, match=f"ledger {second.ledger_id} "):
            await world.opened()

    run(scenario())


@pytest.mark.parametrize(
    "moment", ["opening", "rolling", "settling", "truncating", "waiting", "removing"]
)
def test_close_works_at_any_moment_and_ends_every_task(moment: str) -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = world.log(log_options=options(open_timeout_s=1e9))
        opening = asyncio.create_task(log.open())
        if moment == "opening":
            world.cluster.bookies_up = 0
            await until_said(log, "NotEnoughBookies")
            await log.close()
            with pytest.raises(ContainerStoppedError):
                await opening
            await asyncio.sleep(0)
            assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}
            return
        await opening
        addresses = await append_all(log, range(3))
        futures = []
        tasks = []
        if moment == "rolling":
            world.tree.outage = True
            futures = [log.append([payload(number)]) for number in range(3, 20)]
            await until_said(log, "does not answer")
        elif moment == "settling":
            world.cluster.bookies_up = 1
            futures = [log.append([payload(number)]) for number in range(3, 6)]
            await until_said(log, "recovering")
        elif moment == "waiting":
            for _ in range(30):
                world.cluster.fail_add(-101)
            futures = [log.append([payload(3)])]
            await until_said(log, "nothing acknowledged")
        elif moment == "truncating":
            world.tree.outage = True
            tasks = [asyncio.create_task(log.truncate(addresses[1]))]
            await until_said(log, "does not answer")
        else:
            addresses += await append_all(log, range(3, 20))
            world.cluster.fail("delete", -9, times=100)
            await log.truncate(addresses[19])
            await until_said(log, "cannot be deleted")
        await asyncio.gather(log.close(), log.close())
        for result in await asyncio.gather(*futures[-1:], *tasks, return_exceptions=True):
            assert isinstance(result, ContainerStoppedError)
        assert all(future.done() for future in futures)
        assert log.health() is None
        assert log.statistics().frames_in_flight == 0
        await asyncio.sleep(0)
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}

    run(scenario())


def test_close_does_not_wait_for_ever_for_a_cluster_that_does_not_answer() -> None:
    async def scenario() -> None:
        world, process = BookKeeperWorld(), MemoryProcess()
        log = await world.opened(process)
        await append_all(log, range(11))
        waiting = log.append([payload(11)])
        process.die()
        await asyncio.wait_for(log.close(), 60)
        with pytest.raises(ContainerStoppedError):
            await waiting
        await asyncio.sleep(0)
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}

    run(scenario())


def test_a_cancelled_opening_lets_go_of_everything() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        world.tree.outage = True
        opening = asyncio.create_task(world.opened())
        await asyncio.sleep(1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.sleep(0)
        assert asyncio.all_tasks() | owned_tasks() == {asyncio.current_task()}

    run(scenario())


def test_a_ledger_created_ahead_and_not_needed_is_removed_at_the_end() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(11))
        await asyncio.sleep(1)
        assert len(world.cluster.ledgers) == 2
        assert len(world.record.ledgers) == 1
        await log.close()
        assert sorted(world.cluster.ledgers) == world.ids_listed()

    run(scenario())


def test_two_that_open_at_once_one_wins_and_the_other_leaves_nothing() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        logs = [world.log() for _ in range(5)]
        results = await asyncio.gather(*[log.open() for log in logs], return_exceptions=True)
        winners = [log for log, result in zip(logs, results, strict=True) if result is None]
        assert all(result is None or isinstance(result, NotPrimaryError) for result in results)
        owners = []
        for log in winners:
            try:
                await log.append([payload(0)])
                owners.append(log)
            except NotPrimaryError:
                pass
        (owner,) = owners
        assert len(await read_all(owner)) == 1
        for log in logs:
            await log.close()
        last = await world.opened()
        await asyncio.sleep(LONG_S)
        assert sorted(world.cluster.ledgers) == world.ids_listed()
        await last.close()

    run(scenario())


def test_ledgers_say_whose_they_are() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        await append_all(log, range(20))
        expected = {
            "application": b"segmentstore",
            "store": b"5d0c",
            "container": b"3",
            "epoch": b"1",
        }
        assert [ledger.custom for ledger in world.cluster.ledgers.values()] == [expected] * len(
            world.cluster.ledgers
        )
        await log.close()

    run(scenario())


def test_log_bytes_are_known_within_a_ledger_that_was_recovered() -> None:
    async def scenario() -> None:
        world = BookKeeperWorld()
        log = await world.opened()
        addresses = await append_all(log, range(40))
        assert log.statistics().log_bytes == 40 * 168
        assert log.statistics().files == 4
        await log.truncate(addresses[15])
        assert log.statistics().log_bytes == 25 * 168
        await log.close()
        log = await world.opened()
        assert log.statistics().log_bytes == 25 * 168
        await log.truncate(addresses[17])
        assert log.statistics().log_bytes == 23 * 168
        await log.close()

    run(scenario())


def test_payload_bounds_and_options_that_make_no_sense_are_refused() -> None:
    for changes in (
        {"ledger_bytes": 0},
        {"open_timeout_s": -1.0},
        {"replication": (3, 2, 3)},
        {"replication": (1, 2, 1)},
        {"degraded_replication": (3, 3, 2)},
        {"degraded_replication": (0, 0, 0)},
    ):
        fields = {
            name: type(options().replication)(*value) if isinstance(value, tuple) else value
            for name, value in changes.items()
        }
        with pytest.raises(ConfigError) as caught:
            options(**fields)
        assert caught.value.setting == next(iter(changes))
