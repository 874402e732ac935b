"""Lists of archived parts: found with few requests, bounded in memory, deleted whole."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from segmentstore.contracts.archive_codec import encode_archive
from segmentstore.contracts.archive_metadata import (
    LIST_PARTS,
    NODE_LISTS,
    NODE_PARTS,
    ArchiveMetadata,
    FirstPartMoved,
    PartsListClosed,
    PartsSwept,
)
from segmentstore.contracts.archived_parts import OffloadState
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tests.tier2.archive.sample_parts import (
    LENGTH,
    STEP,
    archive_of,
    hot_deleted,
    part_of_index,
    with_part,
)
from tier2.archive.archived_parts_lists import IDLE_S, KEPT_LISTS, ArchivedPartsLists
from tier2.archive.entry_reading import FETCHES_MAX
from tier2.archive.parts_objects import (
    LIST_BYTES,
    PartsFormatError,
    decode_list,
    decode_node,
    encode_list,
    encode_node,
    list_name,
    node_name,
)
from tier2.memory_object_storage import MemoryObjectStorage

STORE = "0f0e0d0c-0b0a-4908-8706-050403020100"
MILLION = 1_000_000


class World:
    """The archive of container 3, with the lists that its metadata name."""

    def __init__(self, archive: ArchiveMetadata) -> None:
        self.archive = archive
        self.storage = MemoryObjectStorage(Runtime())
        self.lists = self.cold()

    def cold(self) -> ArchivedPartsLists:
        return ArchivedPartsLists(self.storage, STORE, 3, lambda: self.archive)

    async def close_list(self) -> None:
        self.archive = self.archive.after(PartsListClosed(await self.lists.close_list()))

    async def put(self, ordinals: Sequence[int], nodes: Sequence[int] = ()) -> None:
        for ordinal in ordinals:
            begin = ordinal * LIST_PARTS
            parts = [part_of_index(index) for index in range(begin, begin + LIST_PARTS)]
            name = list_name(STORE, 3, ordinal)
            await self.storage.put(name, [encode_list(3, ordinal, parts)], bytes(16))
        for ordinal in nodes:
            bounds = [
                (end * STEP, end * STEP, end * LENGTH)
                for end in range(
                    ordinal * NODE_PARTS + LIST_PARTS, (ordinal + 1) * NODE_PARTS + 1, LIST_PARTS
                )
            ]
            name = node_name(STORE, 3, ordinal)
            await self.storage.put(name, [encode_node(3, ordinal, _bounds(bounds))], bytes(16))

    async def names(self) -> list[str]:
        return [each.name async for page in self.storage.list() for each in page]


def _bounds(rows: Sequence[tuple[int, int, int]]) -> list[Any]:
    from segmentstore.contracts.archive_metadata import PartsBound

    return [PartsBound(*row) for row in rows]


def test_a_million_parts_have_a_small_head_and_are_found_with_two_requests() -> None:
    async def main() -> None:
        archive = archive_of(MILLION)
        head = len(encode_archive(archive)) - len(archive.tail) * 104
        assert head <= 4096
        assert len(archive.tail) <= LIST_PARTS
        world = World(archive)
        for index in (0, 1, NODE_PARTS - 1, NODE_PARTS, 777_777, archive.lists * LIST_PARTS - 1):
            ordinal = index // LIST_PARTS
            node = ordinal // NODE_LISTS
            nodes = [node] if node < archive.nodes else []
            world.storage = MemoryObjectStorage(Runtime())
            await world.put([ordinal], nodes)
            for low in (index * STEP + 1, (index + 1) * STEP):
                for by_time in (False, True):
                    lists = world.cold()
                    find = lists.find_time if by_time else lists.find_sequence
                    assert await find(low) == (index, part_of_index(index))
                    assert lists.gets <= 2
        lists = world.cold()
        newest = (MILLION - 1, part_of_index(MILLION - 1))
        assert await lists.find_sequence(MILLION * STEP) == newest
        assert await lists.find_sequence(MILLION * STEP + 1) is None
        assert lists.gets == 0, "the tail is in the metadata"

    asyncio.run(main())


def test_one_more_part_puts_one_list_at_most_and_changes_none() -> None:
    async def main() -> None:
        world = World(archive_of(LIST_PARTS * (NODE_LISTS - 1) + 1))
        for index in range(world.archive.count, LIST_PARTS * NODE_LISTS + 3):
            before = len(await world.names())
            if world.archive.list_due:
                await world.close_list()
            world.archive = with_part(world.archive, part_of_index(index))
            puts = len(await world.names()) - before
            assert puts == (2 if index == LIST_PARTS * NODE_LISTS else 0), "a list and its node"
        ordinal = NODE_LISTS - 1
        name = list_name(STORE, 3, ordinal)
        data = await world.storage.get_range(name, 0, LIST_BYTES)
        first = ordinal * LIST_PARTS
        assert decode_list(data, 3, ordinal)[0] == part_of_index(first)
        assert await world.names() == [name, node_name(STORE, 3, 0)]

    asyncio.run(main())


def test_closing_a_list_again_is_no_other_list() -> None:
    """An owner that was fenced, or whose operation was lost, wrote the same bytes."""

    async def main() -> None:
        world = World(archive_of(LIST_PARTS))
        world.archive = hot_deleted(world.archive, 5)
        assert await world.lists.close_list() == 0
        world.archive = hot_deleted(world.archive, 9)
        await world.close_list()
        assert world.archive.tail == ()
        assert (await world.lists.at(8)).state is OffloadState.HOT_DELETED
        assert (await world.lists.at(9)).state is OffloadState.COMPLETE

    asyncio.run(main())


def test_memory_holds_few_lists_and_none_that_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = World(archive_of(LIST_PARTS * 40 + 1))
        await world.put(range(40))
        async for place, part in world.lists.parts():
            assert part == part_of_index(place)
        assert world.lists.kept_lists == KEPT_LISTS
        parts = [await world.lists.at(index) for index in range(30 * LIST_PARTS, 31 * LIST_PARTS)]
        size = sum(sys.getsizeof(part) + 12 * 36 for part in parts)
        assert size * KEPT_LISTS <= 16 << 20
        world.lists.evict_idle()
        assert world.lists.kept_lists == KEPT_LISTS
        loop = asyncio.get_running_loop()
        later = loop.time() + IDLE_S + 1
        monkeypatch.setattr(loop, "time", lambda: later)
        world.lists.evict_idle()
        assert world.lists.kept_lists == 0

    asyncio.run(main())


def test_lists_and_nodes_are_deleted_whole_behind_the_pointer() -> None:
    async def main() -> None:
        world = World(archive_of(NODE_PARTS + LIST_PARTS * 2 + 10))
        await world.put(range(NODE_LISTS + 2), [0])
        world.archive = hot_deleted(world.archive, world.archive.count)
        first = NODE_PARTS + LIST_PARTS + 7
        world.archive = world.archive.after(FirstPartMoved(first, first * LENGTH))
        # What is before the pointer is not found any more, wherever its objects are.
        for _ in range(2):
            found = await world.cold().find_sequence(1)
            assert found is not None
            assert found.place == first
            await world.lists.delete_before(0, LIST_PARTS)
        await world.lists.delete_before(LIST_PARTS, first)
        assert await world.names() == [list_name(STORE, 3, NODE_LISTS + 1)]
        assert await world.lists.left_of(0, LIST_PARTS) == []
        left = await world.cold().left_of(first - 7, first)
        assert [part.number for part in left] == list(range(first - 6, first + 1))
        world.archive = world.archive.after(PartsSwept(first))
        found = await world.cold().find_time(1)
        assert found is not None
        assert found.place == first
        with pytest.raises(IndexError):
            await world.lists.at(first - 1)

    asyncio.run(main())


def test_a_list_of_swept_parts_is_not_put_any_more() -> None:
    async def main() -> None:
        archive = hot_deleted(archive_of(LIST_PARTS), LIST_PARTS)
        archive = archive.after(FirstPartMoved(LIST_PARTS, LIST_PARTS * LENGTH))
        world = World(archive.after(PartsSwept(LIST_PARTS)))
        await world.close_list()
        assert await world.names() == []
        assert (world.archive.kept, world.archive.tail) == (0, ())

    asyncio.run(main())


def test_a_missing_or_damaged_list_is_named() -> None:
    async def main() -> None:
        world = World(archive_of(LIST_PARTS + 1))
        with pytest.raises(DataCorruptionError, match="missing in the archive"):
            await world.lists.at(3)
        await world.storage.put(list_name(STORE, 3, 0), [bytes(LIST_BYTES)], bytes(16))
        with pytest.raises(DataCorruptionError, match="list-0000000000000000"):
            await world.lists.at(3)
        assert world.lists.gets == 1 + FETCHES_MAX

    asyncio.run(main())


def test_a_list_or_node_that_is_too_short_is_damaged() -> None:
    async def main() -> None:
        world = World(archive_of(NODE_PARTS + 1))
        for name in (list_name(STORE, 3, 0), node_name(STORE, 3, 0)):
            await world.storage.put(name, [b"short"], bytes(16))
        with pytest.raises(DataCorruptionError, match="list-0000000000000000: it ends too early"):
            await world.lists.at(3)
        with pytest.raises(DataCorruptionError, match="node-0000000000000000: it ends too early"):
            await world.lists.find_sequence(1)

    asyncio.run(main())


class OneWrongAnswer(MemoryObjectStorage):
    answers = 0

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        data = await super().get_range(name, offset, length)
        self.answers += 1
        return bytes([data[0] ^ 1]) + data[1:] if self.answers == 1 else data


def test_a_damaged_answer_is_no_damaged_list() -> None:
    async def main() -> None:
        world = World(archive_of(LIST_PARTS + 1))
        world.storage = OneWrongAnswer(Runtime())
        lists = world.cold()
        await world.put([0])
        assert await lists.at(3) == part_of_index(3)
        assert lists.gets == 2

    asyncio.run(main())


def test_lists_and_nodes_are_refused_at_every_damage() -> None:
    parts = [part_of_index(index) for index in range(LIST_PARTS)]
    data = encode_list(3, 0, parts)
    assert decode_list(data, 3, 0) == parts
    for place in range(0, len(data), 97):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(PartsFormatError):
            decode_list(bytes(damaged), 3, 0)
    for wrong in ((4, 0), (3, 1)):
        with pytest.raises(PartsFormatError, match="it is number 0 of container 3"):
            decode_list(data, *wrong)
    with pytest.raises(PartsFormatError, match="bytes, not"):
        decode_list(data[:-1], 3, 0)
    with pytest.raises(PartsFormatError):
        decode_node(data, 3, 0)
    with pytest.raises(ValueError, match="256 parts"):
        encode_list(3, 0, parts[1:])
    with pytest.raises(ValueError, match="64 lists"):
        encode_node(3, 0, [])
