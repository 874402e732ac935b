"""ArchivedPartsLists: reads and writes the closed lists of one container's archive.

Lists that were read are kept, at most KEPT_LISTS of them, until they have been idle for IDLE_S. A
part is found with at most two requests, whatever their number.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from segmentstore.contracts.archive_metadata import (
    LIST_PARTS,
    NODE_LISTS,
    NODE_PARTS,
    ArchiveMetadata,
    PartsBound,
)
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.errors import DataCorruptionError
from tier2.archive import parts_plan
from tier2.archive.entry_reading import FETCHES_MAX
from tier2.archive.parts_objects import (
    LIST_BYTES,
    NODE_BYTES,
    PartsFormatError,
    content_id,
    decode_list,
    decode_node,
    encode_list,
    encode_node,
    list_name,
    node_name,
)
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError, ObjectStorage

KEPT_LISTS: Final = 16
"""In memory at one time, of one container: about 100 KiB each."""
IDLE_S: Final = 60.0

_T = TypeVar("_T")


class PartsListMissingError(DataCorruptionError):
    """A closed list, or a node of them, is not in the archive, and the metadata name it.

    The caller's move: read the metadata again. The list is damage unless they have removed all
    parts before the index `end`: their owner deletes it then.
    """

    def __init__(self, name: str, end: int) -> None:
        super().__init__(name, "it is missing in the archive")
        self.end = end
        """The index behind its last part."""


class FoundPart(NamedTuple):
    """A part of the archive, and its index."""

    place: int
    part: ArchivedPart


class ArchivedPartsLists:
    """Of one container, whose metadata `archive()` gives; everything on its event loop.

    What reads raises DataCorruptionError for a list that is damaged, PartsListMissingError for one
    that is missing, and StorageUnavailableError.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        store_id: str,
        container_id: int,
        archive: Callable[[], ArchiveMetadata],
    ) -> None:
        self._storage = storage
        self._store_id = store_id
        self._container_id = container_id
        self._archive = archive
        self._lists: OrderedDict[int, tuple[list[ArchivedPart], float]] = OrderedDict()
        self.gets = 0
        """Requests made to read lists and nodes."""

    # --- finding ----------------------------------------------------------------------------------

    async def find_sequence(self, sequence_number: int) -> FoundPart | None:
        """The oldest part that has the operation, or a later one; None if the archive has none."""
        return await self._find("last_sequence", sequence_number)

    async def find_time(self, time_ms: int) -> FoundPart | None:
        """The oldest part that has an operation of this time, or of a later one; None if the
        archive has none.
        """
        return await self._find("last_ms", time_ms)

    async def at(self, index: int) -> ArchivedPart:
        """The complete part of this index. IndexError if there is none, or no more."""
        archive = self._archive()
        if not archive.swept <= index < archive.count:
            raise IndexError(index)
        ordinal, position = divmod(index, LIST_PARTS)
        if ordinal >= archive.lists:
            return archive.tail[index - archive.lists * LIST_PARTS]
        parts = await self._list(ordinal)
        return parts_plan.with_state(self._archive(), index, parts[position])

    async def parts(self, begin: int = 0) -> AsyncGenerator[FoundPart, None]:
        """The parts from the index `begin` on, from the first on at least, in order; those that
        come meanwhile too.
        """
        index = max(begin, self._archive().first)
        while index < self._archive().count:
            index = max(index, self._archive().first)
            yield FoundPart(index, await self.at(index))
            index += 1

    async def left_of(self, begin: int, end: int) -> list[ArchivedPart]:
        """The parts from one index to another, all of one list, to be deleted; none if the list is:
        it goes behind its parts.
        """
        archive = self._archive()
        ordinal = begin // LIST_PARTS
        if ordinal >= archive.lists:
            offset = archive.lists * LIST_PARTS
            return list(archive.tail[begin - offset : end - offset])
        name = list_name(self._store_id, self._container_id, ordinal)
        if ordinal not in self._lists and await self._storage.head(name) is None:
            return []
        offset = ordinal * LIST_PARTS
        return (await self._list(ordinal))[begin - offset : end - offset]

    async def _find(self, key: parts_plan.SearchKey, least: int) -> FoundPart | None:
        archive = self._archive()
        place = parts_plan.find_place(archive, key, least)
        if place is None:
            return None
        if isinstance(place, parts_plan.InTail):
            index = archive.lists * LIST_PARTS + place.position
        else:
            ordinal = place.ordinal
            if isinstance(place, parts_plan.InNode):
                # The nodes before it, and the lists, may be deleted.
                ordinal = max(ordinal, archive.first // NODE_PARTS)
                bounds = await self._node(ordinal) if ordinal < archive.nodes else ()
                ordinal = parts_plan.list_in_node(ordinal, bounds, key, least)
            ordinal = max(ordinal, archive.first // LIST_PARTS)
            index = ordinal * LIST_PARTS
            if ordinal < archive.lists:
                index += parts_plan.first_part(await self._list(ordinal), key, least)
        index = max(index, self._archive().first)
        return FoundPart(index, await self.at(index)) if index < self._archive().count else None

    async def _list(self, ordinal: int) -> list[ArchivedPart]:
        now = asyncio.get_running_loop().time()
        kept = self._lists.get(ordinal)
        if kept is not None:
            self._lists[ordinal] = (kept[0], now)
            self._lists.move_to_end(ordinal)
            return kept[0]
        name = list_name(self._store_id, self._container_id, ordinal)
        end = (ordinal + 1) * LIST_PARTS
        decode = partial(decode_list, container_id=self._container_id, ordinal=ordinal)
        parts = await self._read(name, LIST_BYTES, end, decode)
        self._lists[ordinal] = (parts, now)
        while len(self._lists) > KEPT_LISTS:
            self._lists.popitem(last=False)
        return parts

    async def _node(self, ordinal: int) -> tuple[PartsBound, ...]:
        name = node_name(self._store_id, self._container_id, ordinal)
        end = (ordinal + 1) * NODE_PARTS
        decode = partial(decode_node, container_id=self._container_id, ordinal=ordinal)
        return await self._read(name, NODE_BYTES, end, decode)

    async def _read(self, name: str, length: int, end: int, decode: Callable[[bytes], _T]) -> _T:
        """An object of parts before the index `end`; what is no such is fetched again, twice."""
        for left in reversed(range(FETCHES_MAX)):
            self.gets += 1
            try:
                return decode(await self._storage.get_range(name, 0, length))
            except ObjectNotFoundError as error:
                raise PartsListMissingError(name, end) from error
            except InvalidRangeError as error:
                raise DataCorruptionError(name, f"it ends too early: {error}") from error
            except PartsFormatError as error:
                if not left:
                    raise DataCorruptionError(name, str(error)) from error
        raise AssertionError

    def evict_idle(self) -> None:
        """Forget lists unused for IDLE_S. O(KEPT_LISTS)."""
        before = asyncio.get_running_loop().time() - IDLE_S
        for ordinal in [each for each, (_, used) in self._lists.items() if used < before]:
            del self._lists[ordinal]

    @property
    def kept_lists(self) -> int:
        """Lists in memory."""
        return len(self._lists)

    # --- writing ----------------------------------------------------------------------------------

    async def close_list(self) -> int:
        """Put the list that is due, and its node if it is the last of one; gives its ordinal.

        The metadata do not know it yet. Raises StorageUnavailableError; may be called again then.
        """
        archive = self._archive()
        ordinal = archive.lists
        parts = archive.tail[:LIST_PARTS]
        swept = archive.swept >= (ordinal + 1) * LIST_PARTS
        if not swept:  # no caller asks for a swept list, and no sweep would delete it
            content = encode_list(self._container_id, ordinal, parts)
            name = list_name(self._store_id, self._container_id, ordinal)
            await self._storage.put(name, [content], content_id(content))
        bounds = (*archive.list_bounds, archive.next_bound())
        if len(bounds) == NODE_LISTS and not swept:
            number = ordinal // NODE_LISTS
            content = encode_node(self._container_id, number, bounds)
            name = node_name(self._store_id, self._container_id, number)
            await self._storage.put(name, [content], content_id(content))
        return ordinal

    async def delete_before(self, begin: int, end: int) -> None:
        """Delete the lists and nodes all of whose parts are before the index `end`; those before
        `begin` are. Raises StorageUnavailableError.
        """
        for ordinal in parts_plan.lists_before(begin, end):
            await self._storage.delete(list_name(self._store_id, self._container_id, ordinal))
            self._lists.pop(ordinal, None)
        for ordinal in parts_plan.nodes_before(begin, end):
            await self._storage.delete(node_name(self._store_id, self._container_id, ordinal))
