"""SegmentLoader: brings segments that are idle from the catalog into memory, many by one call.

What the catalog has of a segment changes only while that is in memory, or after it was deleted
there. So what was read is used of those that were not in memory meanwhile, and are not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from durablelog.catalog.catalog_errors import catalog_error
from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.key_store import KeyStore, KeyStoreError
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.segment_loading import chunks_in, find_ids, load_records, load_segments
from durablelog.metadata_updater import MetadataUpdater
from segmentstore.container.segment_waiters import SegmentKey
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.metadata import SegmentMetadata

LOADED_AT_ONCE: Final = 256
"""Names and ids of one reading of the catalog."""
NAMES_AT_ONCE: Final = 1024
"""Names of one reading that asks whether they are free."""
CHUNKS_OF_A_TURN: Final = 1024
"""Passed over without letting others run."""
TRIES_MAX: Final = 5
"""Of gathering chunks, while the catalog is being written."""


class SegmentLoader:
    """Of one container. `on_active(segment)` is called in the turn in which one comes into memory.

    Every method that reads may be called by several tasks at once.
    """

    def __init__(
        self,
        updater: MetadataUpdater,
        catalog: MetadataCatalog,
        on_active: Callable[[SegmentMetadata], None],
    ) -> None:
        self._updater = updater
        self._metadata = updater.metadata
        self._catalog = catalog
        self._on_active = on_active
        self._readings: dict[int, set[SegmentKey]] = {}
        """Of each reading under way, what came into memory or left it since it began."""
        self.activations = 0

    @property
    def newest_id(self) -> int:
        """No segment in the catalog has a larger id, while nothing is written into it."""
        return self._catalog.store.sequence_number

    def in_memory(self, key: SegmentKey) -> SegmentMetadata | None:
        """The segment if it is active. O(1)."""
        segment_id = self._metadata.names.get(key) if isinstance(key, str) else key
        return None if segment_id is None else self._metadata.segments.get(segment_id)

    def may_be_idle(self, key: SegmentKey) -> bool:
        """Whether the catalog has to be asked for a segment that is not in memory. O(1)."""
        return bool(self._metadata.idle) and not self._updater.changes.is_lost(key)

    def touched(self, segment: SegmentMetadata) -> None:
        """The segment has come into memory, or left it: what was being read of it may be old."""
        for reading in self._readings.values():
            reading.add(segment.segment_id)
            reading.add(segment.name)

    async def load(
        self, keys: Sequence[SegmentKey]
    ) -> list[SegmentMetadata | SegmentStoreError | None]:
        """For each key the segment, which was in memory meanwhile; None if there is none; or why
        that is not known. At most `LOADED_AT_ONCE` keys.
        """
        try:
            return [*await self._read(keys)]
        except KeyStoreError as error:
            failure = catalog_error(self._metadata.container_id, error)
        except MetadataFormatError as error:
            if len(keys) > 1:
                # Not all of them suffer for one.
                return [each for key in keys for each in await self.load([key])]
            failure = catalog_error(self._metadata.container_id, error)
        return [failure] * len(keys)

    async def free_names(self, keys: Sequence[SegmentKey]) -> list[str]:
        """The names among the keys that no segment has, for sure: not all of them, it may be.

        They are free in the turn of the loop in which this returns. At most NAMES_AT_ONCE keys.
        """
        names = [key for key in keys if isinstance(key, str)]
        if not names:
            return []
        touched: set[SegmentKey] = set()
        self._readings[id(touched)] = touched
        try:
            ids = await find_ids(self._catalog.store, names)
        except (KeyStoreError, MetadataFormatError):
            # Who loads them finds it again, and of which name it is true.
            return []
        finally:
            del self._readings[id(touched)]
        pairs = zip(names, ids, strict=True)
        return [
            name
            for name, segment_id in pairs
            if segment_id is None and name not in touched and self.in_memory(name) is None
        ]

    async def names_of(self, ids: Collection[int]) -> dict[int, str]:
        """The names of those of the segments that there are; idle ones stay idle.

        Raises TierUnavailableError, DataCorruptionError.
        """
        segments = self._metadata.segments
        found = {each: segments[each].name for each in ids if each in segments}
        idle = [each for each in ids if each not in segments and self.may_be_idle(each)]
        if idle:
            try:
                records = await load_records(self._catalog.store, idle)
            except (KeyStoreError, MetadataFormatError) as error:
                raise catalog_error(self._metadata.container_id, error) from error
            # A name never changes, so it is right even of one that came into memory meanwhile.
            for record in records:
                if record is not None and not self._updater.changes.is_lost(record.segment_id):
                    found[record.segment_id] = record.name
        return found

    async def _read(self, keys: Sequence[SegmentKey]) -> list[SegmentMetadata | None]:
        """The segments of the keys, now in memory if there are any."""
        store = self._catalog.store
        touched: set[SegmentKey] = set()
        self._readings[id(touched)] = touched
        try:
            return await self._read_untouched(store, keys, touched)
        finally:
            del self._readings[id(touched)]

    async def _read_untouched(
        self, store: KeyStore, keys: Sequence[SegmentKey], touched: set[SegmentKey]
    ) -> list[SegmentMetadata | None]:
        while True:
            touched.clear()
            unknown = list(filter(self._is_stored, keys))
            try:
                ids = await self._ids_of(store, unknown)
                wanted = list(dict.fromkeys(found for found in ids.values() if found is not None))
                found = await load_segments(store, wanted, self._metadata.objects)
            except MetadataFormatError:
                # What changes while it is read may look like damage.
                if not touched and all(map(self._is_stored, unknown)):
                    raise
                continue
            read = {*ids, *wanted}
            # With all keys in `unknown` there is none left to ask for.
            whole = len(unknown) == len(keys) or ids.keys() >= set(filter(self._is_stored, keys))
            if whole and not touched & read:
                loaded = dict(zip(wanted, found, strict=True))
                return [self._activate(key, ids, loaded) for key in keys]

    async def _ids_of(
        self, store: KeyStore, keys: Sequence[SegmentKey]
    ) -> dict[SegmentKey, int | None]:
        names = [key for key in keys if isinstance(key, str)]
        found: dict[SegmentKey, int | None] = {key: key for key in keys if isinstance(key, int)}
        if names:
            found.update(zip(names, await find_ids(store, names), strict=True))
        return found

    def _is_stored(self, key: SegmentKey) -> bool:
        """Whether the catalog alone says what there is of it."""
        return self.in_memory(key) is None and not self._updater.changes.is_lost(key)

    def _activate(
        self,
        key: SegmentKey,
        ids: dict[SegmentKey, int | None],
        loaded: dict[int, SegmentMetadata | None],
    ) -> SegmentMetadata | None:
        segment = self.in_memory(key)
        changes = self._updater.changes
        if segment is not None or changes.is_lost(key):
            return segment
        segment_id = ids.get(key)
        found = loaded.get(segment_id) if segment_id is not None else None
        if found is None or changes.is_lost(found.segment_id):
            return None
        there = self._metadata.segments.get(found.segment_id)
        if there is not None:
            # Found by its id and by its name at once.
            return there
        if not found.flushed or (isinstance(key, str) and found.name != key):
            raise MetadataFormatError(f"{found!r} cannot be idle, or have the name {key!r}")
        self._updater.activate(found)
        self.touched(found)
        self.activations += 1
        self._on_active(found)
        return found

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        """The chunks in the objects, by segment, of active and of idle segments.

        Gathered in slices: a chunk that is moved or removed meanwhile may be among them or not.
        O(active chunks + chunks in the objects). Raises TierUnavailableError, DataCorruptionError.
        """
        found: dict[int, list[ChunkRecord]] = {}
        for _ in range(TRIES_MAX):
            # What an earlier try found: to free all of it at once takes as long as a long turn.
            while found:
                for _ in range(min(len(found), CHUNKS_OF_A_TURN)):
                    found.popitem()
                await asyncio.sleep(0)
            writes, whole = self._updater.changes.writes, self._metadata.whole
            found = {} if whole else await self._stored_chunks(names)
            await self._add_active_chunks(names, found)
            if writes == self._updater.changes.writes and whole == self._metadata.whole:
                # Else one that was active at first may have changed, been written, and have left,
                # or some of its chunks.
                break
        is_lost = self._updater.changes.is_lost
        for number, segment_id in enumerate(list(found), start=1):
            if is_lost(segment_id):
                del found[segment_id]
            else:
                found[segment_id].sort(key=_start_of)
            if number % CHUNKS_OF_A_TURN == 0:
                await asyncio.sleep(0)
        return found

    async def _stored_chunks(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        found: dict[int, list[ChunkRecord]] = {}
        try:
            for name in names:
                stored = await chunks_in(self._catalog.store, name)
                for number, (segment_id, chunk) in enumerate(stored, start=1):
                    found.setdefault(segment_id, []).append(chunk)
                    if number % CHUNKS_OF_A_TURN == 0:
                        await asyncio.sleep(0)
        except (KeyStoreError, MetadataFormatError) as error:
            raise catalog_error(self._metadata.container_id, error) from error
        return found

    async def _add_active_chunks(
        self, names: Collection[str], found: dict[int, list[ChunkRecord]]
    ) -> None:
        """Put those of active segments in the place of what the catalog has, but for chunks that
        memory does not know: it is newer. Those that are only to be released are not among them.
        """
        passed = 0
        for segment in list(self._metadata.segments.values()):
            knows, start_offset = segment.chunks.knows, segment.start_offset
            stored = [
                chunk
                for chunk in found.pop(segment.segment_id, ())
                if not knows(chunk.start_offset, chunk.end_offset)
                and chunk.end_offset > start_offset
            ]
            if stored:
                found[segment.segment_id] = stored
            for _, (records, count) in segment.chunks.known_pages():
                chunks = [
                    each
                    for each in islice(records, count)
                    if each.object_name in names and each.end_offset > start_offset
                ]
                if chunks:
                    found.setdefault(segment.segment_id, []).extend(chunks)
                passed += count
                if passed >= CHUNKS_OF_A_TURN:
                    passed = 0
                    await asyncio.sleep(0)
            passed += 1
            if passed >= CHUNKS_OF_A_TURN:  # Most may have no chunk at all.
                passed = 0
                await asyncio.sleep(0)


_start_of = attrgetter("start_offset")
