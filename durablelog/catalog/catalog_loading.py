"""Reading a container's whole metadata from its catalog, with what is cheap to check.

The places of chunks are not read: they repeat what pages say. Tables keep their order of keys: so
objects are in the order of their names, and garbage that one operation released is, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Final, TypeVar

from durablelog.catalog.catalog_keys import (
    ATTRIBUTES,
    CHUNK_PAGES,
    DELETION_CLOCK,
    CatalogAttributeKey,
    ChunkPageKey,
    DeletionClockKey,
    GarbageKey,
    MetadataFormatError,
    NameKey,
    ObjectKey,
    SegmentIdKey,
    decode_key,
    garbage_range,
    name_range,
    object_range,
    segment_range,
)
from durablelog.catalog.catalog_records import (
    SegmentRecord,
    decode_attribute,
    decode_chunk_page,
    decode_deletion_clock,
    decode_garbage,
    decode_object,
    decode_segment,
    decode_segment_id,
)
from durablelog.catalog.key_ranges import StoreKeyRange, prefix_range
from durablelog.catalog.key_store import KeyPair, KeySnapshot, KeyStore
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.collector_pause import collector_paused
from segmentstore.contracts.metadata import ContainerMetadata, LiveObject, SegmentMetadata

RECORDS_OF_A_PORTION: Final = 2048
"""Read by one call of the store, at most."""
RECORDS_OF_A_SLICE: Final = 128
"""Decoded without letting others run, of small records."""
BYTES_OF_A_SLICE: Final = 12 * 1024
"""The same of large ones: a page of chunks is decoded in the time of fifty names."""

K = TypeVar("K")


async def load_metadata(store: KeyStore | KeySnapshot, container_id: int) -> ContainerMetadata:
    """The metadata that the catalog has, as of its sequence number.

    Nothing may be written meanwhile. Raises MetadataFormatError, which names the record, and what
    the store raises.
    """
    loading = _Loading(store, container_id)
    with collector_paused():
        await loading.load()
    return loading.metadata


class _Loading:
    def __init__(self, store: KeyStore | KeySnapshot, container_id: int) -> None:
        self.metadata = ContainerMetadata(container_id)
        self.metadata.sequence_number = store.sequence_number
        self._store = store
        self._attribute_counts: dict[int, int] = {}
        self._live_chunks: Counter[str] = Counter()
        self._live_bytes: Counter[str] = Counter()

    async def load(self) -> None:
        await self._load_objects()
        await self._load_segments()
        await self._load_names()
        await self._load_pages()
        await self._load_attributes()
        await self._load_garbage()
        await self._load_clock()
        await self._check_objects()
        await self._check_segments()

    async def _slices(self, keys: StoreKeyRange) -> AsyncIterator[list[KeyPair]]:
        rest: StoreKeyRange | None = keys
        while rest is not None:
            portion = await self._store.scan(rest, RECORDS_OF_A_PORTION)
            for pairs in _slices_of(portion.pairs):
                yield pairs
                await asyncio.sleep(0)
            rest = portion.rest

    async def _load_objects(self) -> None:
        objects = self.metadata.objects
        async for pairs in self._slices(object_range()):
            for key, value in pairs:
                record, live_chunks, live_bytes = decode_object(_key(ObjectKey, key).name, value)
                objects[record.name] = LiveObject(record, live_chunks, live_bytes)

    async def _load_segments(self) -> None:
        async for pairs in self._slices(segment_range()):
            for key, value in pairs:
                record = decode_segment(_key(SegmentIdKey, key).segment_id, value)
                if record.segment_id > self.metadata.sequence_number:
                    raise _wrong(
                        f"segment {record.segment_id}",
                        f"it is newer than {self.metadata.sequence_number}, the catalog",
                    )
                self._attribute_counts[record.segment_id] = record.attribute_count
                self.metadata.segments[record.segment_id] = _segment(record)

    async def _load_names(self) -> None:
        names, segments = self.metadata.names, self.metadata.segments
        async for pairs in self._slices(name_range()):
            for key, value in pairs:
                name, segment_id = _key(NameKey, key).name, decode_segment_id(value)
                segment = segments.get(segment_id)
                if segment is None or segment.name != name or segment.merged_into is not None:
                    raise _wrong(f"name {name}", f"segment {segment_id} does not have it")
                # One string for both.
                names[segment.name] = segment_id

    async def _load_pages(self) -> None:
        known = {name: name for name in self.metadata.objects}
        live_chunks, live_bytes = self._live_chunks, self._live_bytes
        async for pairs in self._slices(prefix_range(CHUNK_PAGES)):
            for key, value in pairs:
                segment_id, first_offset = page = _key(ChunkPageKey, key)
                chunks = decode_chunk_page(value, known)
                there = self._segment(segment_id, page).chunks
                if chunks[0].start_offset != first_offset:
                    raise _wrong(f"{page}", f"it begins at {chunks[0].start_offset}")
                if there and there.last.end_offset != first_offset:
                    raise _wrong(f"{page}", f"the page before ends at {there.last.end_offset}")
                there.extend_pages([(chunks, None)])
                for chunk in chunks:
                    live_chunks[chunk.object_name] += 1
                    live_bytes[chunk.object_name] += chunk.length

    async def _load_attributes(self) -> None:
        async for pairs in self._slices(prefix_range(ATTRIBUTES)):
            found: dict[int, dict[AttributeKey, int]] = {}
            for key, value in pairs:
                segment_id, attribute_id = _key(CatalogAttributeKey, key)
                found.setdefault(segment_id, {})[attribute_id] = decode_attribute(value)
            for segment_id, values in found.items():
                self._segment(segment_id, "attributes").apply_attributes(values)

    async def _load_garbage(self) -> None:
        async for pairs in self._slices(garbage_range()):
            for data, value in pairs:
                key = _key(GarbageKey, data)
                if key.name in self.metadata.garbage or key.name in self.metadata.objects:
                    raise _wrong(f"garbage {key.name}", "it is there twice")
                self.metadata.garbage[key.name] = decode_garbage(key, value)

    async def _load_clock(self) -> None:
        async for pairs in self._slices(prefix_range(DELETION_CLOCK)):
            for key, value in pairs:
                _key(DeletionClockKey, key)
                self.metadata.deletion_clock = decode_deletion_clock(value)

    async def _check_objects(self) -> None:
        objects = self.metadata.objects
        for number, (name, live) in enumerate(objects.items()):
            counted = (self._live_chunks[name], self._live_bytes[name])
            if (live.live_chunks, live.live_bytes) != counted:
                raise _wrong(
                    f"object {name}",
                    f"it says {live.live_chunks} chunks of {live.live_bytes} bytes,"
                    f" and {counted[0]} of {counted[1]} are there",
                )
            if _is_pause(number):
                await asyncio.sleep(0)
        for name in self._live_chunks.keys() - objects.keys():
            raise _wrong(f"object {name}", "chunks are in it, and its record is missing")

    async def _check_segments(self) -> None:
        named = sources = 0
        for number, segment in enumerate(self.metadata.segments.values()):
            self._check_segment(segment)
            named += segment.merged_into is None
            sources += len(segment.merges)
            if _is_pause(number):
                await asyncio.sleep(0)
        if named != len(self.metadata.names):
            raise _wrong("names", f"{len(self.metadata.names)} for {named} segments")
        if named + sources != len(self.metadata.segments):
            count = len(self.metadata.segments) - named
            raise _wrong("merges", f"{sources} for {count} merged segments")

    def _check_segment(self, segment: SegmentMetadata) -> None:
        where = f"segment {segment.segment_id}"
        count = self._attribute_counts[segment.segment_id]
        if len(segment.attributes) != count:
            raise _wrong(where, f"{len(segment.attributes)} of {count} attributes are there")
        if not (
            segment.start_offset <= segment.length and segment.storage_length <= segment.length
        ):
            raise _wrong(where, "it begins, or is stored, behind its end")
        if segment.start_offset < segment.storage_length and not (
            segment.chunks
            and segment.chunks.first.start_offset <= segment.start_offset
            and segment.chunks.last.end_offset == segment.storage_length
        ):
            raise _wrong(where, f"{segment.chunks!r} are not what it stores")
        for merge in segment.merges:
            source = self.metadata.segments.get(merge.source_id)
            if source is None or source.merged_into != segment.segment_id:
                raise _wrong(where, f"segment {merge.source_id} is not merged into it")
            if source.length != merge.length:
                raise _wrong(where, f"segment {merge.source_id} has not {merge.length} bytes")

    def _segment(self, segment_id: int, what: object) -> SegmentMetadata:
        segment = self.metadata.segments.get(segment_id)
        if segment is None:
            raise _wrong(f"segment {segment_id}", f"{what}, and its record is missing")
        return segment


def _segment(record: SegmentRecord) -> SegmentMetadata:
    segment = SegmentMetadata(record.segment_id, record.name, record.created_ms)
    segment.last_modified_ms = record.last_modified_ms
    segment.start_offset = record.start_offset
    segment.length = record.length
    segment.storage_length = record.storage_length
    segment.sealed = record.sealed
    segment.merged_into = record.merged_into
    segment.merges = list(record.merges)
    return segment


def _key(kind: type[K], data: bytes) -> K:
    key = decode_key(data)
    assert isinstance(key, kind), key  # Its first byte says so.
    return key


def _wrong(where: str, what: str) -> MetadataFormatError:
    return MetadataFormatError(f"{where}: {what}")


def _is_pause(number: int) -> bool:
    """Whether to let others run, from time to time."""
    return number % RECORDS_OF_A_SLICE == RECORDS_OF_A_SLICE - 1


def _slices_of(pairs: list[KeyPair]) -> Iterator[list[KeyPair]]:
    begun = size = 0
    for number, (_, value) in enumerate(pairs):
        size += len(value)
        if size >= BYTES_OF_A_SLICE or number - begun == RECORDS_OF_A_SLICE - 1:
            yield pairs[begun : number + 1]
            begun, size = number + 1, 0
    if begun < len(pairs):
        yield pairs[begun:]
