"""Updates that are in flight together, and what becomes of them when one fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from segmentstore import (
    AppendOutcomeUnknownError,
    BadOffsetError,
    ContainerStoppedError,
    DataCorruptionError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.service import SegmentStore
from segmentstore.tables.errors import BadKeyVersionError
from segmentstore.tables.open_tables import TableLimits
from segmentstore.tables.table import Table
from segmentstore.tables.table_records import put_parts
from segmentstore.tables.table_service import TableService
from segmentstore.tables.table_types import NO_VERSION, NOT_EXISTS, TableEntry
from tests.tables.harness import (
    ON_DISK,
    TINY_LIMITS,
    TableWorld,
    full_queue,
    tiny_writes,
    with_tables,
)

BOTH = pytest.mark.parametrize("limits", [TINY_LIMITS, ON_DISK], ids=["memory", "disk"])


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_writes(monkeypatch)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_batches_do_not_wait_for_one_another() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.info("t")
        calls = [
            asyncio.ensure_future(tables.update("t", [(b"%d" % number, NOT_EXISTS, b"")]))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        assert (await store.get_info("t")).length == 0
        assert not any(call.done() for call in calls)
        table = tables._tables._tables["t"]
        assert len(table.pipeline._in_flight) == 20
        versions = [version for (version,) in await asyncio.gather(*calls)]
        assert versions == sorted(versions)

    with_tables(work)


def test_a_batch_sees_those_before_it_and_readers_only_what_is_durable() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        (first,) = await tables.update("t", [(b"k", NOT_EXISTS, b"1")])
        length = (await tables.info("t")).length
        # Its version is known before it is durable.
        second = asyncio.ensure_future(tables.update("t", [(b"k", first, b"2")]))
        third = asyncio.ensure_future(tables.update("t", [(b"k", length, b"3")]))
        removal = asyncio.ensure_future(tables.remove("t", [(b"k", 2 * length)]))
        again = asyncio.ensure_future(tables.update("t", [(b"k", NOT_EXISTS, b"4")]))
        await asyncio.sleep(0)
        assert not second.done()
        assert await tables.get("t", [b"k"]) == [TableEntry(b"k", first, b"1")]
        assert await second == [length]
        assert await third == [2 * length]
        await removal
        await again
        assert (await tables.get("t", [b"k"]))[0] == TableEntry(b"k", (await again)[0], b"4")

    with_tables(work, TableLimits(dead_bytes_min=1 << 30))


def test_a_refusal_waits_for_what_it_was_checked_against() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.info("t")
        update = asyncio.ensure_future(tables.update("t", [(b"k", NOT_EXISTS, b"1")]))
        refused = asyncio.ensure_future(tables.update("t", [(b"k", NOT_EXISTS, b"2")]))
        nothing = asyncio.ensure_future(tables.remove("t", [(b"x", NO_VERSION)]))
        done: list[object] = []
        update.add_done_callback(done.append)
        refused.add_done_callback(done.append)
        nothing.add_done_callback(done.append)
        await asyncio.wait((update, refused, nothing))
        assert done[0] is update
        with pytest.raises(BadKeyVersionError):
            await refused
        await nothing

    with_tables(work)


@BOTH
def test_what_others_appended_is_read(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        for number in range(9):
            await tables.update("t", [(b"%d" % number, NO_VERSION, b"ours")])
        theirs = await store.append("t", b"".join(put_parts(b"3", b"theirs")))
        calls = [tables.update("t", [(b"%d" % number, NO_VERSION, b"new")]) for number in (1, 2)]
        first, second = await asyncio.gather(*calls)
        assert theirs < first[0] < second[0]
        found = await tables.get("t", [b"3", b"1", b"0"])
        assert [entry and entry.value for entry in found] == [b"theirs", b"new", b"ours"]
        # A condition on what was overtaken does not hold any more.
        await store.append("t", b"".join(put_parts(b"1", b"theirs")))
        with pytest.raises(BadKeyVersionError):
            await tables.update("t", [(b"1", first[0], b"")])
        length = (await tables.info("t")).length
        await store.append("t", b"".join(put_parts(b"1", b"theirs")))
        with pytest.raises(BadOffsetError):
            await tables.update("t", [(b"1", NO_VERSION, b"")], length)

    with_tables(work, limits)


def test_a_read_during_which_its_table_moves_away_and_back_is_done_again() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", [(b"key", NO_VERSION, b"first")])
        moves = 0

        async def move() -> None:
            await store.stop_container(0)
            await store.start_container(0)
            # As another owner would in between, of whom this service sees nothing.
            other = TableService(store, limits=TINY_LIMITS)
            for number in range(40):
                await other.update("t", [(b"key", NO_VERSION, b"%030d" % number)])
            await asyncio.sleep(1)
            await other.close()
            assert (await store.get_info("t")).start_offset > 0

        async def read(table: Table) -> list[TableEntry | None]:
            nonlocal moves
            if not moves:
                moves += 1
                await move()
            return await tables._read(table, table.reads.get([b"key"]))

        (found,) = await tables._tables.run("t", read)
        assert found is not None
        assert found.value == b"%030d" % 39

    with_tables(work)


def test_what_is_appended_behind_as_many_bytes_of_others_has_an_unknown_outcome() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", [(b"k", NO_VERSION, b"1")])
        theirs = store.append("t", b"".join(put_parts(b"k", b"2")))
        first = asyncio.ensure_future(tables.update("t", [(b"k", NO_VERSION, b"3")]))
        behind = asyncio.ensure_future(tables.update("t", [(b"l", NOT_EXISTS, b"4")]))
        await theirs
        with pytest.raises(AppendOutcomeUnknownError, match="the segment is at"):
            await behind
        await first
        found = await tables.get("t", [b"k", b"l"])
        assert [each and each.value for each in found] == [b"3", b"4"]
        await tables.update("t", [(b"l", NO_VERSION, b"5")])

    with_tables(work)


def test_a_closed_service_has_nothing_on_its_way() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.info("t")
        update = asyncio.ensure_future(tables.update("t", [(b"k", NO_VERSION, b"1")]))
        await turns()
        before = (await store.get_info("t")).length
        await tables.close()
        assert (await store.get_info("t")).length > before == 0
        await update

    with_tables(work)


@pytest.mark.parametrize("fails", [False, True])
def test_a_table_is_opened_anew_when_what_was_in_flight_has_its_outcome(fails: bool) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.info("t")
        theirs = store.append("t", b"".join(put_parts(b"k", b"theirs"))) if fails else None
        update = asyncio.ensure_future(tables.update("t", [(b"l", NOT_EXISTS, b"ours")]))
        await asyncio.sleep(0)
        table = tables._tables._tables["t"]
        assert not table.pipeline.idle
        table.pipeline.drop()
        (found,) = await tables.get("t", [b"l"])
        # What was acknowledged by then is there.
        assert (found is not None) == (not fails)
        await update
        if theirs is not None:
            await theirs
        found, other = await tables.get("t", [b"l", b"k"])
        assert found is not None
        assert (other is not None) == fails

    with_tables(work)


def test_what_is_no_record_is_corruption_and_stays_so() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", [(b"k", NO_VERSION, b"v")])
        length = (await tables.info("t")).length
        await store.append("t", b"no record at all")
        for _ in range(2):
            with pytest.raises(DataCorruptionError) as caught:
                await tables.update("t", [(b"l", NO_VERSION, b"v")])
            assert str(length) in caught.value.where
        await tables.create("cut")
        await store.append("cut", b"".join(put_parts(b"k", b"value"))[:-1])
        with pytest.raises(DataCorruptionError):
            await tables.get("cut", [b"k"])

    with_tables(work)


def test_a_store_that_takes_nothing_more_refuses_and_the_table_goes_on() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", [(b"k", NO_VERSION, b"v")])
        table = tables._tables._tables["t"]
        with full_queue(store, 3000):
            updates = [
                tables.update("t", [(b"%d" % number, NO_VERSION, b"v" * 900)])
                for number in range(20)
            ]
            outcomes = await asyncio.gather(*updates, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, BaseException)]
        assert refused
        assert all(isinstance(each, TierUnavailableError) for each in refused)
        found = await tables.get("t", [b"%d" % number for number in range(20)])
        assert [entry is not None for entry in found] == [
            not isinstance(each, BaseException) for each in outcomes
        ]
        # Nothing of what was refused is pending any more.
        missing = [b"%d" % number for number, entry in enumerate(found) if entry is None]
        await tables.update("t", [(key, NOT_EXISTS, b"w") for key in missing])
        assert tables._tables._tables["t"] is table, "nothing had to be read again"

    with_tables(work, TableLimits(dead_bytes_min=1 << 30))


@pytest.mark.parametrize("limits", [TINY_LIMITS, ON_DISK], ids=["in memory", "on disk"])
def test_changes_wait_for_room_in_the_order_of_their_calls(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        keys = [b"%02d" % number for number in range(40)]
        await tables.update("t", [(key, NO_VERSION, b"first") for key in keys])
        appends = []
        await store.create_segment("s")
        calls: list[asyncio.Future[list[int]]] = []
        for key in keys:
            calls.append(asyncio.ensure_future(tables.update("t", [(key, NO_VERSION, b"v" * 900)])))
            # Others want the same room.
            appends.append(asyncio.ensure_future(append_in_turn(store, bytes(500))))
        removal = asyncio.ensure_future(tables.remove("t", [(keys[0], NO_VERSION)]))
        versions = [version for [version] in await asyncio.gather(*calls)]
        await removal
        await asyncio.gather(*appends)
        assert versions == sorted(versions)
        found = await tables.get("t", keys)
        assert [entry is not None and entry.value == b"v" * 900 for entry in found] == [
            number > 0 for number in range(40)
        ]

    with_tables(work, limits, queue_bytes_max=4096, append_bytes_max=4096)


async def append_in_turn(store: SegmentStore, data: bytes) -> None:
    room = store.room("s", len(data))
    if room is not None:
        await room
    await store.append("s", data)


@pytest.mark.parametrize("limits", [TINY_LIMITS, ON_DISK], ids=["in memory", "on disk"])
def test_a_change_has_its_turn_though_others_always_want_the_room(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await store.create_segment("s")
        keys = [b"%02d" % number for number in range(10)]
        await tables.update("t", [(key, NO_VERSION, b"first") for key in keys])
        count = 0

        async def fill() -> None:
            nonlocal count
            for _ in range(12):
                await append_in_turn(store, bytes(3000))
                count += 1

        others = [asyncio.ensure_future(fill()) for _ in range(3)]
        await asyncio.sleep(0)
        await tables.update("t", [(keys[0], NO_VERSION, b"v" * 2000)])
        assert count < 18
        await asyncio.gather(*others)

    never = replace(limits, dead_bytes_min=1 << 30)
    with_tables(work, never, queue_bytes_max=4096, append_bytes_max=4096)


def test_a_caller_that_is_cancelled_takes_nothing_back() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.info("t")
        calls = [
            asyncio.ensure_future(tables.update("t", [(b"k", NO_VERSION, b"%d" % number)]))
            for number in range(3)
        ]
        refused = asyncio.ensure_future(tables.update("t", [(b"k", NOT_EXISTS, b"")]))
        await asyncio.sleep(0)
        calls[1].cancel()
        calls[2].cancel()
        await calls[0]
        with pytest.raises(BadKeyVersionError):
            await refused
        (entry,) = await tables.get("t", [b"k"])
        assert entry is not None
        assert entry.value == b"2"
        await tables.update("t", [(b"k", entry.version, b"3")])

    with_tables(work)


def test_opening_is_shared_and_outlasts_its_first_caller() -> None:
    world = TableWorld()

    async def work() -> None:
        tables = world.tables
        calls = [asyncio.ensure_future(tables.get("t", [b"5"])) for _ in range(5)]
        await turns()
        calls[0].cancel()
        found = await asyncio.gather(*calls[1:])
        assert all(entry is not None and entry.value == b"v" for (entry,) in found)
        assert len(tables._tables) == 1

    async def fill() -> None:
        await world.tables.create("t")
        for number in range(50):
            await world.tables.update("t", [(b"%d" % number, NO_VERSION, b"v")])

    with world:
        world.run(fill())
        world.renew_tables()
        world.run(work())
        world.run(world._stop())


def test_updates_of_a_store_that_stops_have_an_unknown_outcome() -> None:
    world = TableWorld()

    async def work() -> list[object]:
        tables = world.tables
        await tables.create("t")
        await tables.update("t", [(b"k", NO_VERSION, b"v")])
        calls = [
            asyncio.ensure_future(tables.update("t", [(b"%d" % number, NO_VERSION, b"v")]))
            for number in range(5)
        ]
        refused = asyncio.ensure_future(tables.update("t", [(b"0", NOT_EXISTS, b"v")]))
        await asyncio.sleep(0)
        processor = world.store._containers[0]._processor
        assert processor is not None
        processor.fail(OSError("broken"))
        outcomes: list[object] = list(await asyncio.gather(*calls, refused, return_exceptions=True))
        for call in (tables.get("t", [b"k"]), tables.update("t", [(b"k", NO_VERSION, b"")])):
            with pytest.raises(SegmentStoreError) as caught:
                await call
            assert isinstance(caught.value, ContainerStoppedError | TierUnavailableError)
        return outcomes

    with world:
        for each in world.run(work()):
            assert isinstance(each, AppendOutcomeUnknownError | ContainerStoppedError)
        world.crash()
        found = world.run(world.tables.get("t", [b"k"]))
        assert found[0] is not None
        world.run(world._stop())


def test_tables_that_are_not_used_leave_memory_and_those_in_use_stay() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        names = [f"t{number}" for number in range(6)]
        for name in names:
            await tables.create(name)
            await tables.update(name, [(b"k", NO_VERSION, name.encode())])
        assert len(tables._tables) == 2
        calls = [
            asyncio.ensure_future(tables.update(name, [(b"k", NO_VERSION, b"2")])) for name in names
        ]
        await asyncio.gather(*calls)
        assert len(tables._tables) == 2
        await tables.info("t0")
        used = tables._tables._tables["t0"]
        used.users += 1
        for name in names[1:]:
            await tables.info(name)
        assert tables._tables._tables["t0"] is used
        used.users -= 1
        for name in names:
            assert (await tables.get(name, [b"k"]))[0] is not None
        assert len(tables._tables) == 2

    with_tables(work)


def test_indexes_in_memory_have_a_bound_together() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        for name in ("a", "b", "c"):
            await tables.create(name)
            for number in range(10):
                await tables.update(name, [(b"%d" % number, NO_VERSION, b"")])
        # Checked when one is opened: the last one has grown since.
        assert set(tables._tables._tables) == {"b", "c"}
        assert len((await tables.keys("a", 99)).keys) == 10
        assert set(tables._tables._tables) == {"a"}
        assert tables.statistics() == {"open": 1, "index_bytes": 10 * 301}

    with_tables(work, TableLimits(index_bytes_max=5000))
