"""The parts that an archive keeps, beside an owner that removes some: removed is not damaged."""

from __future__ import annotations

import pytest

from recovery.archived_parts_listing import PartRemovedError
from segmentstore.contracts.archive_metadata import (
    LIST_PARTS,
    NODE_PARTS,
    ArchiveMetadata,
    FirstPartMoved,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.kept_parts import KeptParts
from tests.recovery.archived_logs import on_a_loop
from tests.tier2.archive.sample_parts import LENGTH, STEP, archive_of, part_of_index
from tier2.archive.archived_parts_lists import ArchivedPartsLists, PartsListMissingError
from tier2.archive.parts_objects import encode_list, list_name
from tier2.memory_object_storage import MemoryObjectStorage

STORE = "0f0e0d0c-0b0a-4908-8706-050403020100"


class Beside:
    """A listing of 4 closed lists and a tail, and what the owner has made of the archive since."""

    def __init__(self, parts: int = 4 * LIST_PARTS + 3) -> None:
        self.listed = self.now = archive_of(parts)
        self.storage = MemoryObjectStorage(Runtime())
        self.lists = ArchivedPartsLists(self.storage, STORE, 3, lambda: self.listed)
        self.asked = 0

    async def put(self) -> None:
        for ordinal in range(self.listed.lists):
            begin = ordinal * LIST_PARTS
            parts = [part_of_index(index) for index in range(begin, begin + LIST_PARTS)]
            name = list_name(STORE, 3, ordinal)
            await self.storage.put(name, [encode_list(3, ordinal, parts)], bytes(16))

    async def again(self) -> ArchiveMetadata:
        self.asked += 1
        return self.now

    def kept(self) -> KeptParts:
        return KeptParts(3, self.lists, self.listed, self.again)

    async def remove(self, end: int) -> None:
        """As an owner does it: in the metadata, then the lists."""
        self.now = self.now.after(FirstPartMoved(end, end * LENGTH))
        await self.lists.delete_before(0, end)


@on_a_loop
async def test_a_list_that_its_owner_has_deleted_is_of_removed_parts() -> None:
    beside = Beside()
    await beside.put()
    kept = beside.kept()
    await beside.remove(2 * LIST_PARTS + 5)
    for call in (
        kept.at(0),
        kept.at(2 * LIST_PARTS - 1),
        kept.find_sequence(1),
        kept.find_time(LIST_PARTS * STEP + 1),
    ):
        with pytest.raises(PartRemovedError, match=f"has removed {2 * LIST_PARTS + 5} parts"):
            await call
    for index in (2 * LIST_PARTS + 5, beside.listed.count - 1):
        assert (await kept.at(index)).number == part_of_index(index).number
        number = part_of_index(index).number
        found = await kept.find_number(number)
        assert found is not None
        assert found.number == number
    assert await kept.find_number(part_of_index(7).number) is None
    uids = {part_of_index(index).uid for index in range(2 * LIST_PARTS + 5, beside.listed.count)}
    assert await kept.uids() == uids


@on_a_loop
async def test_a_list_of_parts_that_are_not_removed_is_missing() -> None:
    beside = Beside()
    await beside.put()
    kept = beside.kept()
    await beside.remove(LIST_PARTS)
    await beside.storage.delete(list_name(STORE, 3, 1))
    with pytest.raises(PartRemovedError):
        await kept.at(LIST_PARTS - 1)
    for call in (kept.at(LIST_PARTS), kept.find_sequence(LIST_PARTS * STEP + 1)):
        with pytest.raises(PartsListMissingError, match="it is missing"):
            await call
    assert await kept.first_now() == LIST_PARTS


@on_a_loop
async def test_a_node_that_its_owner_has_deleted_is_of_removed_parts() -> None:
    beside = Beside(NODE_PARTS + LIST_PARTS)
    kept = beside.kept()
    with pytest.raises(PartsListMissingError):
        await kept.find_sequence(1)
    await beside.remove(NODE_PARTS)
    with pytest.raises(PartRemovedError):
        await kept.find_sequence(1)


@on_a_loop
async def test_where_no_owner_is_nothing_is_removed() -> None:
    beside = Beside()
    kept = KeptParts(3, beside.lists, beside.listed)
    with pytest.raises(PartsListMissingError):
        await kept.at(0)
    assert await kept.first_now() == 0
