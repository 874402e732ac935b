"""Reading a container's metadata from its catalog, with what is cheap to check.

All of them, or all but the segments that may be idle: `segment_loading.py` reads those on demand.
The places of chunks are not read: they repeat what pages say. Tables keep their order of keys: so
objects are in the order of their names, and garbage that one operation released is, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

from durablelog.catalog.catalog_keys import (
    ATTRIBUTES,
    CHUNK_PAGES,
    DELETION_CLOCK,
    TOTALS,
    CatalogAttributeKey,
    ChunkPageKey,
    DeletionClockKey,
    GarbageKey,
    NameKey,
    ObjectKey,
    SegmentIdKey,
    TotalsKey,
    UnflushedKey,
    garbage_range,
    name_range,
    object_range,
    segment_range,
    unflushed_range,
)
from durablelog.catalog.catalog_records import (
    CatalogTotals,
    LongChunks,
    decode_attribute,
    decode_deletion_clock,
    decode_garbage,
    decode_object,
    decode_segment,
    decode_segment_id,
    decode_totals,
)
from durablelog.catalog.key_ranges import StoreKeyRange, prefix_range
from durablelog.catalog.key_store import KeyPair, KeySnapshot, KeyStore
from durablelog.catalog.segment_loading import (
    RECORDS_OF_A_PORTION,
    RECORDS_OF_A_SLICE,
    add_page,
    check_long_chunks,
    check_merges,
    check_segment,
    decoded,
    decoded_key,
    find_ids,
    load_segments,
    segment_of,
    slices_of,
    wrong,
)
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.collector import collector_paused
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_sizes import metadata_bytes
from segmentstore.contracts.object_states import LiveObject

_SEGMENTS_OF_A_CALL: Final = 512
"""Unflushed segments that are read together."""


async def load_metadata(store: KeyStore | KeySnapshot, container_id: int) -> ContainerMetadata:
    """The metadata that the catalog has, as of its sequence number: all of them.

    Nothing may be written meanwhile. Raises MetadataFormatError, which names the record, and what
    the store raises.
    """
    loading = _Loading(store, container_id)
    with collector_paused():
        await loading.load()
    return loading.metadata


async def load_active(store: KeyStore, container_id: int) -> ContainerMetadata:
    """The same without the segments that may be idle: they are counted.

    For a catalog that has totals. O(objects + garbage + what belongs to unflushed segments).
    """
    loading = _Loading(store, container_id)
    with collector_paused():
        await loading.load_active(store)
    return loading.metadata


async def load_bounded(
    store: KeyStore, container_id: int, segments_max: int, bytes_max: int
) -> ContainerMetadata:
    """All of them if they are of at most so many segments and take at most so many bytes in memory;
    else as `load_active`.

    In the latter case, if they are so few segments, O(their records) on top.
    """
    totals = await load_totals(store)
    assert totals is not None, "a catalog of version 1 is read whole"
    if totals.segments <= segments_max:
        loading = _Loading(store, container_id)
        with collector_paused():
            if await loading.load_if_within(bytes_max):
                return loading.metadata
    return await load_active(store, container_id)


async def load_totals(store: KeyStore | KeySnapshot) -> CatalogTotals | None:
    """The numbers of what the catalog has; None: it is of version 1, which has none."""
    portion = await store.scan(prefix_range(TOTALS), 1)
    for key, value in portion.pairs:
        decoded_key(TotalsKey, key)
        return decode_totals(value)
    return None


class _Loading:
    def __init__(self, store: KeyStore | KeySnapshot, container_id: int) -> None:
        self.metadata = ContainerMetadata(container_id)
        self.metadata.sequence_number = store.sequence_number
        self._store = store
        self._attribute_counts: dict[int, int] = {}
        self._long_chunks: dict[int, LongChunks] = {}
        self._live_chunks: Counter[str] = Counter()
        self._live_bytes: Counter[str] = Counter()

    async def load(self) -> None:
        await self._load_objects()
        await self._load_segments()
        await self._load_parts()

    async def load_if_within(self, bytes_max: int) -> bool:
        """Load all of it, unless it takes more bytes: False, and it is of no use."""
        await self._load_objects()
        await self._load_segments()
        chunks = sum(live.live_chunks for live in self.metadata.objects.values())
        attributes = sum(self._attribute_counts.values())
        if metadata_bytes(len(self.metadata.segments), chunks, attributes) > bytes_max:
            return False
        await self._load_parts()
        return True

    async def _load_parts(self) -> None:
        await self._load_names()
        await self._load_pages()
        await self._load_attributes()
        await self._load_garbage()
        await self._load_clock()
        await self._check_objects()
        await self._check_segments()
        await self._check_merges()
        await self._check_totals()

    async def load_active(self, store: KeyStore) -> None:
        await self._load_objects()
        await self._load_garbage()
        await self._load_clock()
        ids = await self._unflushed_ids()
        for begin in range(0, len(ids), _SEGMENTS_OF_A_CALL):
            await self._load_unflushed(store, ids[begin : begin + _SEGMENTS_OF_A_CALL])
        await self._check_merges()
        totals, named = await load_totals(store), len(self.metadata.names)
        if totals is None or totals.segments < named:
            counted = totals and totals.segments
            raise wrong("totals", f"{counted}, and {named} unflushed segments have names")
        self.metadata.archive = totals.archive
        self.metadata.idle = totals.segments - named

    async def _load_unflushed(self, store: KeyStore, ids: Sequence[int]) -> None:
        """Some of the segments that are listed as unflushed."""
        named = []
        found = await load_segments(store, ids, self.metadata.objects)
        for segment_id, segment in zip(ids, found, strict=True):
            if segment is None or segment.flushed:
                there = "missing" if segment is None else "flushed"
                raise wrong(f"segment {segment_id}", f"it is listed as unflushed, and is {there}")
            self._check_age(segment_id)
            self._add(segment)
            if not segment.whole:
                self.metadata.partial.add(segment_id)
            if segment.merged_into is None and not segment.deleted:
                named.append(segment)
        known = await find_ids(store, [segment.name for segment in named])
        for segment, named_id in zip(named, known, strict=True):
            if named_id != segment.segment_id:
                raise wrong(f"name {segment.name}", f"it is of {named_id}, and {segment!r} has it")
            self.metadata.names[segment.name] = named_id

    def _add(self, segment: SegmentMetadata) -> None:
        """A segment, or what is left of a deleted one."""
        if not segment.deleted:
            self.metadata.segments[segment.segment_id] = segment
        if segment.releasing:
            self.metadata.releasing[segment.segment_id] = segment

    async def _unflushed_ids(self) -> list[int]:
        """Of the segments that are listed, ascending."""
        found: list[int] = []
        async for pairs in self._slices(unflushed_range()):
            for key, value in pairs:
                segment_id = decoded_key(UnflushedKey, key).segment_id
                if value:
                    raise wrong(f"unflushed segment {segment_id}", "there are bytes with it")
                found.append(segment_id)
        return found

    async def _check_totals(self) -> None:
        totals, listed = await load_totals(self._store), set(await self._unflushed_ids())
        if totals is None:
            if listed:
                raise wrong("totals", f"they are missing, and {len(listed)} segments are unflushed")
            return
        named = len(self.metadata.names)
        if totals.segments != named:
            raise wrong("totals", f"{totals.segments}, and {named} segments have names")
        self.metadata.archive = totals.archive
        for number, segment in enumerate(self.metadata.all_records()):
            if segment.flushed == (segment.segment_id in listed):
                raise wrong(f"{segment!r}", "it is listed as unflushed, or not, by mistake")
            listed.discard(segment.segment_id)
            if _is_pause(number):
                await asyncio.sleep(0)
        if listed:
            raise wrong(f"segment {min(listed)}", "it is listed as unflushed, and is missing")

    async def _slices(self, keys: StoreKeyRange) -> AsyncIterator[list[KeyPair]]:
        rest: StoreKeyRange | None = keys
        while rest is not None:
            portion = await self._store.scan(rest, RECORDS_OF_A_PORTION)
            for pairs in slices_of(portion.pairs):
                yield pairs
                await asyncio.sleep(0)
            rest = portion.rest

    async def _load_objects(self) -> None:
        objects = self.metadata.objects
        async for pairs in self._slices(object_range()):
            for key, value in pairs:
                record, live_chunks, live_bytes = decode_object(
                    decoded_key(ObjectKey, key).name, value
                )
                objects[record.name] = LiveObject(record, live_chunks, live_bytes)

    async def _load_segments(self) -> None:
        async for pairs in self._slices(segment_range()):
            for key, value in pairs:
                record = decode_segment(decoded_key(SegmentIdKey, key).segment_id, value)
                self._check_age(record.segment_id)
                self._attribute_counts[record.segment_id] = record.attribute_count
                if record.long_chunks is not None:
                    self._long_chunks[record.segment_id] = record.long_chunks
                self._add(segment_of(record))

    async def _load_names(self) -> None:
        names, segments = self.metadata.names, self.metadata.segments
        async for pairs in self._slices(name_range()):
            for key, value in pairs:
                named = decoded_key(NameKey, key)
                name, segment_id = named.name, decoded(decode_segment_id, named, value)
                segment = segments.get(segment_id)
                if segment is None or segment.name != name or segment.merged_into is not None:
                    raise wrong(f"name {name}", f"segment {segment_id} does not have it")
                # One string for both.
                names[segment.name] = segment_id

    async def _load_pages(self) -> None:
        objects = self.metadata.objects
        live_chunks, live_bytes = self._live_chunks, self._live_bytes
        async for pairs in self._slices(prefix_range(CHUNK_PAGES)):
            for key, value in pairs:
                page = decoded_key(ChunkPageKey, key)
                chunks = add_page(self._segment(page.segment_id, page), page, value, objects)
                for chunk in chunks:
                    live_chunks[chunk.object_name] += 1
                    live_bytes[chunk.object_name] += chunk.length

    async def _load_attributes(self) -> None:
        async for pairs in self._slices(prefix_range(ATTRIBUTES)):
            found: dict[int, dict[AttributeKey, int]] = {}
            for key, value in pairs:
                attribute = decoded_key(CatalogAttributeKey, key)
                values = found.setdefault(attribute.segment_id, {})
                values[attribute.attribute_id] = decoded(decode_attribute, attribute, value)
            for segment_id, values in found.items():
                self._segment(segment_id, "attributes").apply_attributes(values)

    async def _load_garbage(self) -> None:
        async for pairs in self._slices(garbage_range()):
            for data, value in pairs:
                key = decoded_key(GarbageKey, data)
                if key.name in self.metadata.garbage or key.name in self.metadata.objects:
                    raise wrong(f"garbage {key.name}", "it is there twice")
                self.metadata.garbage[key.name] = decode_garbage(key, value)

    async def _load_clock(self) -> None:
        async for pairs in self._slices(prefix_range(DELETION_CLOCK)):
            for key, value in pairs:
                decoded_key(DeletionClockKey, key)
                self.metadata.deletion_clock = decode_deletion_clock(value)

    async def _check_objects(self) -> None:
        objects = self.metadata.objects
        for number, (name, live) in enumerate(objects.items()):
            counted = (self._live_chunks[name], self._live_bytes[name])
            if (live.live_chunks, live.live_bytes) != counted:
                raise wrong(
                    f"object {name}",
                    f"it says {live.live_chunks} chunks of {live.live_bytes} bytes,"
                    f" and {counted[0]} of {counted[1]} are there",
                )
            if _is_pause(number):
                await asyncio.sleep(0)

    async def _check_segments(self) -> None:
        named, is_old = 0, await load_totals(self._store) is None
        for number, segment in enumerate(self.metadata.all_records()):
            check_segment(segment, self._attribute_counts[segment.segment_id])
            if not is_old:
                check_long_chunks(segment, self._long_chunks.get(segment.segment_id))
            named += segment.merged_into is None and not segment.deleted
            if _is_pause(number):
                await asyncio.sleep(0)
        if named != len(self.metadata.names):
            raise wrong("names", f"{len(self.metadata.names)} for {named} segments")

    async def _check_merges(self) -> None:
        """Behind the names: what has none is merged."""
        sources, segments = 0, self.metadata.segments
        for number, segment in enumerate(segments.values()):
            check_merges(segment, segments)
            sources += len(segment.merges)
            if _is_pause(number):
                await asyncio.sleep(0)
        merged = len(segments) - len(self.metadata.names)
        if sources != merged:
            raise wrong("merges", f"{sources} for {merged} merged segments")

    def _check_age(self, segment_id: int) -> None:
        newest = self.metadata.sequence_number
        if segment_id > newest:
            raise wrong(f"segment {segment_id}", f"it is newer than {newest}, the catalog")

    def _segment(self, segment_id: int, what: object) -> SegmentMetadata:
        segment = self.metadata.with_chunks(segment_id)
        if segment is None:
            raise wrong(f"segment {segment_id}", f"{what}, and its record is missing")
        return segment


def _is_pause(number: int) -> bool:
    """Whether to let others run, from time to time."""
    return number % RECORDS_OF_A_SLICE == RECORDS_OF_A_SLICE - 1
