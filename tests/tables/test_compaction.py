"""Compaction beside everything else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from segmentstore import TierUnavailableError
from segmentstore.service import SegmentStore
from segmentstore.tables import compaction
from segmentstore.tables.compaction import is_due, is_enough, parts_of
from segmentstore.tables.open_tables import TableLimits
from segmentstore.tables.segment_records import record_slices
from segmentstore.tables.table import AGAIN_MIN_S
from segmentstore.tables.table_pipeline import StaleTableError
from segmentstore.tables.table_records import (
    COPY,
    PUT,
    TableRecord,
    copy_length,
    decode_records,
    put_parts,
)
from segmentstore.tables.table_service import TableService
from segmentstore.tables.table_types import NO_VERSION, TableEntry
from tests.support.suites import size, sized
from tests.tables.harness import (
    ON_DISK,
    TINY_LIMITS,
    TableWorld,
    full_queue,
    tiny_writes,
    with_tables,
)

BOTH = pytest.mark.parametrize("limits", [TINY_LIMITS, ON_DISK], ids=["memory", "disk"])
CRASHES = size("TABLE_COMPACTION_CRASHES", 12, 150)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_writes(monkeypatch)


def test_when_it_is_due_and_how_far_it_goes() -> None:
    assert not is_due(100, 0, 100)
    assert is_due(101, 100, 100)
    assert not is_due(150, 150, 100)
    assert is_due(151, 150, 100)
    assert is_enough(75, 150, 100)
    assert not is_enough(76, 150, 100)
    assert is_enough(50, 0, 100)


def test_parts_fit_one_append_each() -> None:
    data = b"".join(b"".join(put_parts(b"k", b"v" * number)) for number in range(10))
    records, _ = decode_records(data, 0)
    parts = list(parts_of(records, 40))
    assert list(itertools.chain(*parts)) == records
    for part in parts:
        assert sum(copy_length(b"k", each.value_end - each.value_start) for each in part) <= 40


async def kinds(store: SegmentStore) -> list[int]:
    info = await store.get_info("t")
    return [
        record.kind
        async for records, _ in record_slices(store, "t", info.start_offset, info.length)
        for record in records
    ]


@BOTH
def test_copies_keep_their_versions_and_what_was_removed_stays_so(limits: TableLimits) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        kept = [b"%d" % number for number in range(8)]
        versions = await tables.update("t", [(key, NO_VERSION, key * 2) for key in kept])
        await tables.update("t", [(b"x", NO_VERSION, b"")])
        await tables.remove("t", [(b"x", NO_VERSION)])
        newest = -1
        for number in range(60):
            (newest,) = await tables.update("t", [(b"hot", NO_VERSION, b"v" * (number % 30))])
        await asyncio.sleep(1)
        info = await tables.info("t")
        assert info.start_offset > max(versions)
        assert COPY in await kinds(store)
        pairs = zip(kept, versions, strict=True)
        expected = [TableEntry(key, version, key * 2) for key, version in pairs]
        assert await tables.get("t", [*kept, b"x"]) == [*expected, None]
        # What is known only by its old version can be used as a condition.
        (version,) = await tables.update("t", [(kept[3], versions[3], b"new")])
        assert version > newest
        assert info.length - info.start_offset <= 600

    with_tables(work, limits)


@BOTH
def test_a_table_without_keys_goes_on_with_its_versions(limits: TableLimits) -> None:
    with TableWorld(limits=limits) as world:
        without_keys(world)


def without_keys(world: TableWorld) -> None:
    async def fill() -> list[int]:
        versions = []
        for number in range(40):
            versions += await world.tables.update("t", [(b"%d" % (number % 9), NO_VERSION, b"v")])
        for number in range(9):
            await world.tables.remove("t", [(b"%d" % number, NO_VERSION)])
        await asyncio.sleep(1)
        return versions

    highest = -1
    world.run(world.tables.create("t"))
    for reopen in (world.renew_tables, world.reopen, world.crash, world.crash):
        versions = world.run(fill())
        assert versions == sorted(set(versions))
        assert versions[0] > highest
        highest = versions[-1]
        reopen()
        info = world.run(world.tables.info("t"))
        assert info.entry_count == 0
        assert info.length - info.start_offset <= 200
    world.run(world._stop())


@BOTH
def test_no_update_is_lost_that_comes_meanwhile(limits: TableLimits) -> None:
    """Each caller knows what its key must have, at any time."""

    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        starts = set()

        async def caller(number: int) -> None:
            key = b"key %d" % number
            entry: TableEntry | None = None
            for step in range(30):
                assert await tables.get("t", [key]) == [entry]
                starts.add((await tables.info("t")).start_offset)
                if step % 5 == 4:
                    assert entry is not None
                    await tables.remove("t", [(key, entry.version)])
                    entry = None
                    continue
                value = b"v" * (step + number)
                before = NO_VERSION if entry is None else entry.version
                (version,) = await tables.update("t", [(key, before, value)])
                entry = TableEntry(key, version, value)
                if step % 3 == 0:
                    await asyncio.sleep(0.001 * number)

        async def reader() -> None:
            for _ in range(40):
                page = await tables.entries("t", 3)
                assert all(len(entry.value) < 50 for entry in page.entries)
                await tables.delta("t", 0, 3)
                await asyncio.sleep(0)

        await asyncio.gather(*(caller(number) for number in range(8)), reader())
        assert len(starts) > 5, "it was not at work"

    with_tables(work, limits)


@BOTH
def test_what_is_read_is_found_where_compaction_has_moved_it(
    limits: TableLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        (version,) = await tables.update("t", [(b"cold", NO_VERSION, b"value")])
        read = SegmentStore.read
        moved: list[int] = []

        async def late(
            self: SegmentStore, name: str, offset: int, length: int, wait: float | None = None
        ) -> bytes:
            if not moved:
                moved.append(offset)
                for number in range(60):
                    await tables.update("t", [(b"hot", NO_VERSION, b"v" * (number % 20))])
                await asyncio.sleep(1)
                assert (await tables.info("t")).start_offset > version
            return await read(self, name, offset, length, wait)

        for call in (tables.get("t", [b"cold"]), tables.entries("t", 1)):
            moved.clear()
            monkeypatch.setattr(SegmentStore, "read", late)
            found = await call
            monkeypatch.setattr(SegmentStore, "read", read)
            assert TableEntry(b"cold", version, b"value") in (
                found if isinstance(found, list) else found.entries
            )

    with_tables(work, limits)


@sized(40)
@BOTH
def test_it_may_be_cut_off_anywhere(limits: TableLimits) -> None:
    """Before each effect on the outside that a compaction has, the process dies."""
    for crash in range(CRASHES):
        with TableWorld(f"cut/{crash}", limits) as world:
            cut_off(world, 90 + crash * 160 // CRASHES, power=crash % 2 == 0)


def cut_off(world: TableWorld, effects: int, *, power: bool) -> None:
    keys = [b"%d" % number for number in range(6)]
    acknowledged: dict[bytes, tuple[int, bytes]] = {}

    async def load() -> None:
        await world.tables.create("t")
        for number in range(100):
            key = keys[number % 6] if number < 12 else keys[number % 2]
            (version,) = await world.tables.update("t", [(key, NO_VERSION, b"%d" % number)])
            acknowledged[key] = version, b"%d" % number

    task = world.begin(load())
    process = world.process
    process.dies_at = process.effects + effects
    world.world.run(lambda: process.dead or task.done())
    assert process.dead
    highest = max(version for version, _ in acknowledged.values())
    last = max(int(value) for _, value in acknowledged.values())
    world.crash(power=power)
    found = world.run(world.tables.get("t", keys))
    for key, entry in zip(keys, found, strict=True):
        assert entry is not None
        if (entry.version, entry.value) != acknowledged[key]:
            # One was on its way.
            assert int(entry.value) == last + 1
            assert entry.version > highest
            highest = entry.version
    (version,) = world.run(world.tables.update("t", [(b"new", NO_VERSION, b"")]))
    assert version > highest
    world.run(world._stop())


def test_it_is_tried_again_after_a_failure_by_a_later_commit() -> None:
    """Not by each of them, and what was truncated before the failure is not read again."""

    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await tables.update("t", [(b"%d" % number, NO_VERSION, b"v") for number in range(8)])
        truncate = SegmentStore.truncate
        failures: list[int] = []

        async def failing(self: SegmentStore, name: str, offset: int) -> None:
            if len(failures) < 2:
                failures.append(offset)
                await truncate(self, name, offset)
                raise TierUnavailableError("tier1", "away")
            await truncate(self, name, offset)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentStore, "truncate", failing)
            for failed in (1, 2):
                for number in range(200):
                    await tables.update("t", [(b"hot", NO_VERSION, b"v" * (number % 30))])
                assert len(failures) == failed
                await asyncio.sleep(AGAIN_MIN_S * 2)
            await tables.update("t", [(b"hot", NO_VERSION, b"v")])
            await asyncio.sleep(1)
        info = await tables.info("t")
        assert info.start_offset > failures[-1]
        assert info.entry_count == 9

    with_tables(work)


def test_a_first_record_that_is_large_is_copied_alone() -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        largest = store.config.append_bytes_max - copy_length(b"big", 0)
        (version,) = await tables.update("t", [(b"big", NO_VERSION, b"v" * largest)])
        for _ in range(4):
            await tables.update("t", [(b"k", NO_VERSION, b"v" * 400)])
        await asyncio.sleep(1)
        assert (await tables.info("t")).start_offset > 0
        assert await tables.get("t", [b"big"]) == [TableEntry(b"big", version, b"v" * largest)]
        assert PUT in await kinds(store)

    with_tables(work, append_bytes_max=600)


@BOTH
def test_copies_wait_for_room_as_changes_do(
    monkeypatch: pytest.MonkeyPatch, limits: TableLimits
) -> None:
    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        await store.create_segment("s")
        keys = [b"%02d" % number for number in range(20)]
        versions = await tables.update("t", [(key, NO_VERSION, b"v" * 100) for key in keys])
        for _ in range(3):
            await tables.update("t", [(b"dead", NO_VERSION, b"v" * 900)])
        appends: list[Awaitable[int]] = []

        async def slices(*arguments: Any) -> AsyncIterator[tuple[Sequence[TableRecord], bytes]]:
            async for records, data in record_slices(*arguments):
                while (room := store.room("s", 100)) is None:
                    appends.append(store.append("s", bytes(100)))
                room.cancel()
                yield records, data

        monkeypatch.setattr(compaction, "record_slices", slices)
        assert await compaction.compact(store, tables._tables._tables["t"].pipeline, 0, 200) > 0
        assert appends
        await asyncio.gather(*appends)
        assert await tables.get("t", keys) == [
            TableEntry(key, version, b"v" * 100)
            for key, version in zip(keys, versions, strict=True)
        ]

    never = replace(limits, dead_bytes_min=1 << 30)
    with_tables(work, never, queue_bytes_max=4096, append_bytes_max=4096)


def test_a_key_whose_new_value_is_refused_beside_it_keeps_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was left out for a record that is newer, and then was not appended."""

    async def work(tables: TableService, store: SegmentStore) -> None:
        await tables.create("t")
        (version,) = await tables.update("t", [(b"K", NO_VERSION, b"kept")])
        for number in range(60):
            await tables.update("t", [(b"hot", NO_VERSION, b"%04d" % number * 8)])
        pipeline = tables._tables._tables["t"].pipeline
        updates: list[asyncio.Future[list[int]]] = []

        async def slices(*arguments: Any) -> AsyncIterator[tuple[Sequence[TableRecord], bytes]]:
            async for records, data in record_slices(*arguments):
                if not updates:
                    assert records[0].key == b"K"
                    with full_queue(store, 1):
                        update = tables.update("t", [(b"K", version, b"refused")])
                        updates.append(asyncio.ensure_future(update))
                        await asyncio.sleep(0)
                yield records, data

        monkeypatch.setattr(compaction, "record_slices", slices)
        with pytest.raises(StaleTableError):
            await compaction.compact(store, pipeline, 0, 200)
        await asyncio.wait(updates)
        assert isinstance(updates[0].exception(), TierUnavailableError)
        assert await tables.get("t", [b"K"]) == [TableEntry(b"K", version, b"kept")]

    with_tables(work, TableLimits(dead_bytes_min=1 << 30))
