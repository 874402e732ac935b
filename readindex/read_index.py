"""ReadIndex: every byte of every segment of one container, wherever it lies (loop).

The commit side is synchronous and called in log order, right after the metadata changed, live and in
replay alike. The read side looks in this order: memory, cache, Tier 2 (below storage_length), a merged
source, and last Tier 1 by a refill. Rules:

- a read of appended bytes that lie in memory awaits nothing; one of fetched bytes gives way to others in the loop
  when much has been handed out (DeliveryPacer), and nothing else;
- after every await everything is looked at again: the segment may have been truncated, deleted, merged or
  flushed, and the bytes evicted. The loop ends with bytes or with an error;
- the bytes of a segment id at an offset never change, so bytes in hand stay right; only whether the reader may
  still have them is asked again;
- bytes handed out are the reader's: `bytes` objects no eviction touches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from readindex.block_source import BlockSource
from readindex.cache_addresses import CacheAddresses
from readindex.cache_storage import CacheStorage
from readindex.config import ReadIndexConfig
from readindex.extent import Extent, Home
from readindex.holdings import Holdings
from readindex.merged_sources import MergedSources
from readindex.piece_fetcher import PieceFetcher
from readindex.refiller import Refiller
from readindex.segment_read_index import UNKNOWN, SegmentReadIndex
from readindex.spiller import Spiller
from readindex.statistics import ReadIndexStatistics
from readindex.waiting_reads import WaitingReads
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import (
    BadOffsetError,
    ContainerStoppedError,
    DataCorruptionError,
    EndOfSegmentError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError

_CACHED_BLOCKS_PER_READ = 16


class _Place(NamedTuple):
    """Where a byte is to be looked for, merges followed: at most `length` bytes belong together there."""

    segment: SegmentMetadata
    held: SegmentReadIndex | None
    """The segment's index, if it has one."""
    offset: int
    length: int


class _Attempt:
    """What one read has tried in vain, so that it does not try it twice."""

    __slots__ = ("lost_chunk", "refilled")

    def __init__(self) -> None:
        self.lost_chunk: ChunkRecord | None = None
        self.refilled: tuple[int, int] | None = None


class ReadIndex:
    """One container's read index. All calls on one event loop.

    `refill(segment_id)` must rescan the log and call `insert_refilled` for what `missing_ranges` lists, in order
    of offset for each segment. `cache` and `addresses` may be shared with other containers.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        cache: CacheStorage,
        addresses: CacheAddresses,
        storage: BlockSource,
        refill: Callable[[int], Awaitable[None]],
        config: ReadIndexConfig,
        runtime: Runtime,
    ) -> None:
        self._metadata = metadata
        self._cache = cache
        self._config = config
        self._holdings = Holdings(metadata, config, addresses, cache.delete)
        self._spiller = Spiller(self._holdings, cache, config)
        self._fetcher = PieceFetcher(metadata, self._holdings, storage, config, runtime)
        self._refiller = Refiller(refill, metadata.container_id)
        self._waiting = WaitingReads()
        self._sources = MergedSources(metadata)
        self._cache_misses = 0
        self._gives_way = False
        """What was just taken, in this turn, makes its reader wait for another."""
        self._closed = False

    # --- commit side ---

    def append(self, segment_id: int, offset: int, data: bytes) -> None:
        """The segment has grown by `data` at `offset`. About 1 us for small data; larger is kept by reference.

        Raises DataCorruptionError if it does not continue what came before, SegmentNotFoundError.
        """
        holdings = self._holdings
        index = holdings.indexes.get(segment_id)
        if index is None:
            index = self._first_index(segment_id, offset, len(data))
        holdings.append(index, offset, data)
        if holdings.tail_bytes > holdings.trim_at:
            self._spiller.trim()
        self._waiting.wake(segment_id)

    def storage_advanced(self, segment_id: int) -> None:
        """storage_length or the chunks changed: what lies below storage_length may be dropped from now on."""
        segment = self._segment(segment_id)
        index = self._holdings.indexes.get(segment_id)
        if index is not None:
            self._holdings.advance(index, segment.storage_length)
        self._sweep_sources(segment_id)

    def adopt_merges(self) -> None:
        """A checkpoint has been restored: take up the merges it holds that Tier 2 has not linked. O(segments)."""
        self._sources.adopt()

    def merged(self, target_id: int, source_id: int) -> None:
        """A merge was committed: the source's readers get SegmentNotFoundError, the target's see its bytes."""
        target = self._segment(target_id)
        for merge in target.merges:
            if merge.source_id == source_id:
                index = self._holdings.index_of(target_id)
                index.check_next(merge.offset)
                self._holdings.cut(index)
                index.next_offset = merge.end_offset
                self._sources.add(target_id, source_id, merge.offset)
                break
        else:
            if source_id not in self._metadata.segments:
                self._holdings.drop_segment(source_id)
        self._waiting.wake(source_id)
        self._waiting.wake(target_id)

    def merge_linked(self, target_id: int, source_id: int) -> None:
        """The source's chunks are the target's now and its metadata is gone: what is held of it moves over."""
        target = self._segment(target_id)
        offset, nested = self._sources.link(target_id, source_id)
        if offset is None:
            self._holdings.drop_segment(source_id)
        else:
            self._holdings.move_segment(source_id, target_id, offset, target.start_offset)
        # What was merged into the source is linked with it.
        for nested_id in nested:
            self._holdings.drop_segment(nested_id)
        self.storage_advanced(target_id)

    def truncated(self, segment_id: int) -> None:
        """start_offset has grown: what lies below it is let go of."""
        segment = self._segment(segment_id)
        index = self._holdings.indexes.get(segment_id)
        if index is not None:
            self._holdings.drop_below(index, segment.start_offset)
        self._sweep_sources(segment_id)

    def sealed(self, segment_id: int) -> None:
        """The segment was sealed: readers at its end get EndOfSegmentError."""
        self._waiting.wake(segment_id)

    def deleted(self, segment_id: int) -> None:
        """The segment is gone from the metadata: its readers get SegmentNotFoundError."""
        self._holdings.drop_segment(segment_id)
        self._sweep_sources(segment_id)
        self._waiting.wake(segment_id)

    def replaced(self, segment_id: int) -> None:
        """The chunks were replaced by others with the same bytes: what is held stays right.

        A fetch that loses its object to the replacement looks its chunk up again.
        """
        self._segment(segment_id)

    def insert_refilled(self, segment_id: int, offset: int, data: bytes) -> None:
        """Bytes a rescan of the log found; those still wanted and missing are taken, the others passed over."""
        self._refiller.offer(segment_id, offset, data)
        segment = self._metadata.segments.get(segment_id)
        if segment is None or self._closed:
            return
        start = max(offset, segment.start_offset, segment.storage_length)
        end = min(offset + len(data), segment.length)
        if start < end:
            part = data if end - start == len(data) else data[start - offset : end - offset]
            self._holdings.insert_refilled(self._holdings.index_of(segment_id), start, part)

    # --- read side ---

    async def read(self, segment_id: int, offset: int, max_length: int, wait: float | None = None) -> bytes:
        """At least one byte from `offset` and at most `max_length`, where there is data.

        At the end of an open segment: b"" at once with `wait` None or 0, else once `wait` seconds have passed
        without data. Raises SegmentNotFoundError, SegmentTruncatedError, EndOfSegmentError (sealed),
        BadOffsetError (beyond the end), InvalidArgumentError, ContainerStoppedError, TierUnavailableError,
        DataCorruptionError. What lies in memory is given without awaiting, in microseconds.
        """
        if offset < 0:
            raise InvalidArgumentError("offset", offset, "an offset is at least 0")
        if max_length < 1:
            raise InvalidArgumentError("max_length", max_length, "a read is at least 1 byte long")
        segment = self._readable(segment_id, offset, str(segment_id))
        index = self._holdings.indexes.get(segment_id)
        data = None if index is None else self._read_memory(segment, index, offset, max_length)
        if data is None:
            return await self._read_slow(segment, offset, max_length, wait)
        if self._gives_way:
            await self._give_way(segment, offset)
        return data

    async def read_unflushed(self, segment_id: int, offset: int, length: int) -> list[bytes]:
        """Exactly the bytes [offset, offset + length), for the storage writer: pieces to be joined, mostly not copied.

        Merged sources are read by their own id too. Raises SegmentNotFoundError, SegmentTruncatedError,
        BadOffsetError, and whatever a refill raises.
        """
        pieces: list[bytes] = []
        attempt = _Attempt()
        end = offset + length
        name = str(segment_id)
        while offset < end:
            segment = self._present(segment_id, offset, name)
            name = segment.name
            if end > segment.length:
                raise BadOffsetError(name, end, segment.length, "un-flushed bytes were asked for beyond the end")
            place = self._locate(segment, offset, end - offset)
            found = [] if place.held is None else place.held.memory_pieces(place.offset, place.length)
            if not found:
                loaded = await self._load(place, attempt)
                found = [] if loaded is None else [loaded]
            pieces += found
            offset += sum(map(len, found))
        return pieces

    def missing_ranges(self, segment_id: int) -> list[tuple[int, int]]:
        """Un-flushed ranges, as (start, end), that are neither in memory nor in the cache nor in a merged source.

        Sources have ranges of their own, under their own ids.
        """
        segment = self._metadata.segments.get(segment_id)
        return [] if segment is None else self._holdings.missing_ranges(segment)

    def object_in_use(self, name: str) -> bool:
        """True while a fetch from this Tier-2 object is in flight."""
        return self._fetcher.object_in_use(name)

    # --- the whole ---

    @property
    def pressure(self) -> float:
        """How full the homes of un-flushed bytes are: 0 empty, 1 at the bound, above 1 beyond it. For the throttler."""
        unflushed = self._holdings.tail_bytes - self._holdings.tail_bytes_flushed
        if self._spiller.refused:
            return unflushed / self._config.tail_bytes_max
        bound = self._config.tail_bytes_max + self._config.cache_bytes_max
        return (unflushed + self._holdings.cached.bytes_unflushed) / bound

    def trim(self) -> None:
        """Bring memory below its bound now: what Tier 2 has is dropped, the rest begins to move to the cache."""
        self._spiller.trim()

    async def wait_trimmed(self) -> None:
        """Wait until nothing is on its way into the cache."""
        await self._spiller.wait_idle()

    async def close(self) -> None:
        """Stop: all who wait get ContainerStoppedError. Idempotent."""
        self._closed = True
        self._waiting.wake_all()
        await self._refiller.close()
        await self._fetcher.close()
        await self._spiller.close()

    def statistics(self) -> ReadIndexStatistics:
        """Numbers as of now. O(fetches in flight + segments with waiting readers)."""
        holdings = self._holdings
        return ReadIndexStatistics(
            segments=len(holdings.indexes),
            tail_bytes=holdings.tail_bytes,
            tail_bytes_unflushed=holdings.tail_bytes - holdings.tail_bytes_flushed,
            cached_bytes=holdings.cached.bytes_total,
            cached_bytes_unflushed=holdings.cached.bytes_unflushed,
            fetched_bytes=holdings.fetched.bytes_total,
            readers_waiting=len(self._waiting),
            fetches_in_flight=self._fetcher.in_flight,
            fetches=self._fetcher.fetches,
            fetches_random=self._fetcher.fetches_random,
            prefetches=self._fetcher.prefetches,
            fetch_bytes=self._fetcher.fetched_bytes,
            prefetch_bytes=self._fetcher.prefetched_bytes,
            read_ahead_hits=holdings.fetched.ahead_hits,
            read_ahead_wasted_bytes=holdings.fetched.ahead_wasted_bytes,
            sequential_readers=len(holdings.streams.running),
            delivery_pauses=self._fetcher.pacer.pauses,
            refills=self._refiller.refills,
            cache_misses=self._cache_misses,
            spilled_bytes=holdings.spilled_bytes,
            dropped_unflushed_bytes=holdings.dropped_unflushed_bytes,
            pressure=self.pressure,
        )

    def check(self) -> None:
        """Assert the rules of every part, and that nothing is held of segments that are gone. O(everything)."""
        self._holdings.check()
        for segment_id, index in self._holdings.indexes.items():
            segment = self._metadata.segments[segment_id]
            assert index.next_offset in (UNKNOWN, segment.length), (index, segment)
            for extent in index.extents_from(0):
                assert extent.end_offset > segment.start_offset, (extent, segment)
                assert extent.flushed == (extent.end_offset <= segment.storage_length), (extent, segment)

    # --- inside ---

    def _first_index(self, segment_id: int, offset: int, length: int) -> SegmentReadIndex:
        segment = self._segment(segment_id)
        if offset + length > segment.length:
            raise DataCorruptionError(
                f"read index of segment {segment_id}",
                f"an append of [{offset},{offset + length}) where {segment.length} bytes are committed",
            )
        return self._holdings.index_of(segment_id)

    def _segment(self, segment_id: int) -> SegmentMetadata:
        if self._closed:
            raise ContainerStoppedError(self._metadata.container_id)
        segment = self._metadata.segments.get(segment_id)
        if segment is None:
            raise SegmentNotFoundError(str(segment_id))
        return segment

    def _sweep_sources(self, target_id: int) -> None:
        for source_id in self._sources.sweep(target_id):
            self._holdings.drop_segment(source_id)

    def _present(self, segment_id: int, offset: int, name: str) -> SegmentMetadata:
        if self._closed:
            raise ContainerStoppedError(self._metadata.container_id)
        segment = self._metadata.segments.get(segment_id)
        if segment is None:
            raise SegmentNotFoundError(name)
        if offset < segment.start_offset:
            raise SegmentTruncatedError(segment.name, segment.start_offset)
        return segment

    def _readable(self, segment_id: int, offset: int, name: str) -> SegmentMetadata:
        segment = self._metadata.segments.get(segment_id)
        if segment is not None and segment.merged_into is not None and not self._closed:
            raise SegmentNotFoundError(segment.name, "it was merged into another segment")
        return self._present(segment_id, offset, name)

    def _read_memory(self, segment: SegmentMetadata, index: SegmentReadIndex, offset: int, length: int) -> bytes | None:
        tail = index.tail
        if tail is not None and tail.start_offset <= offset < index.next_offset:
            return tail.slice(offset, length)
        extent = index.find(offset)
        if extent is None or extent.data is None:
            return None
        if extent.home is Home.FETCHED:
            data = self._fetcher.read_held(segment, extent, offset, length)
            self._gives_way = self._fetcher.pacer.spend(len(data))
            return data
        if extent.end_offset - offset >= length:
            return extent.slice(offset, length)
        pieces = index.memory_pieces(offset, length)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _give_way(self, segment: SegmentMetadata, offset: int) -> None:
        self._gives_way = False
        await self._fetcher.pacer.give_way()
        self._readable(segment.segment_id, offset, segment.name)

    async def _read_slow(self, segment: SegmentMetadata, offset: int, max_length: int, wait: float | None) -> bytes:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait if wait is not None else 0.0
        attempt = _Attempt()
        segment_id, name = segment.segment_id, segment.name
        while True:
            segment = self._readable(segment_id, offset, name)
            if self._at_end(segment, offset):
                remaining = 0.0 if wait is None else deadline - loop.time()
                if remaining <= 0 or not await self._waiting.wait(segment_id, remaining):
                    return b""
                continue
            place = self._locate(segment, offset, max_length)
            data = None
            if place.held is not None:
                data = self._read_memory(place.segment, place.held, place.offset, place.length)
            if data is not None:
                if self._gives_way:
                    await self._give_way(segment, offset)
                return data
            data = await self._load(place, attempt)
            if data is not None:
                self._readable(segment_id, offset, name)
                return data

    def _at_end(self, segment: SegmentMetadata, offset: int) -> bool:
        length = segment.length
        if offset > length:
            raise BadOffsetError(segment.name, offset, length, "beyond the end")
        if offset == length:
            if segment.sealed:
                raise EndOfSegmentError(segment.name, length)
            return True
        # Committed, but the call that brings the bytes has not come yet: for the reader it is still the tail.
        index = self._holdings.indexes.get(segment.segment_id)
        return index is not None and index.next_offset != UNKNOWN and offset >= index.next_offset

    def _locate(self, segment: SegmentMetadata, offset: int, length: int) -> _Place:
        top, shift = segment, 0
        while True:
            index = self._holdings.indexes.get(segment.segment_id)
            if offset < segment.start_offset:
                raise SegmentTruncatedError(top.name, segment.start_offset + shift)
            length = min(length, segment.length - offset)
            if offset < segment.storage_length or (index is not None and index.covers(offset)):
                return _Place(segment, index, offset, length)
            merge = segment.find_merge(offset) if segment.merges else None
            if merge is None:
                return _Place(segment, index, offset, length)
            length = min(length, merge.end_offset - offset)
            offset -= merge.offset
            shift += merge.offset
            segment = self._metadata.segments[merge.source_id]

    async def _load(self, place: _Place, attempt: _Attempt) -> bytes | None:
        """Bytes that are not in memory; None if the place must be looked up again."""
        segment, index, offset, length = place
        extent = None if index is None else index.find(offset)
        if extent is not None:
            assert index is not None
            return await self._load_cached(index, offset, length)
        if offset < segment.storage_length:
            return await self._load_stored(segment, offset, length, attempt)
        if attempt.refilled == (segment.segment_id, offset):
            raise DataCorruptionError(
                f"segment {segment.name!r} offset {offset}",
                "these bytes are not in Tier 2 yet and a rescan of the log did not find them",
            )
        # Up to the next thing that is there: a merged source's bytes are not this segment's to ask for.
        wanted = next(
            (end - offset for start, end in self.missing_ranges(segment.segment_id) if start <= offset < end), 1
        )
        data = await self._refiller.want(segment.segment_id, offset, min(length, wanted))
        if data:
            return data
        attempt.refilled = (segment.segment_id, offset)
        return None

    async def _load_cached(self, index: SegmentReadIndex, offset: int, length: int) -> bytes | None:
        run = index.cached_run(offset, length, _CACHED_BLOCKS_PER_READ)
        skip = offset - run[0].start_offset
        blocks = await self._cache.get([extent.address for extent in run])
        parts: list[bytes] = []
        for extent, block in zip(run, blocks, strict=True):
            if block is None or len(block) != extent.length:
                self._forget(extent)
                break
            parts.append(block)
        if not parts:
            return None
        if len(parts) == 1 and skip == 0 and length >= len(parts[0]):
            return parts[0]
        return b"".join(parts)[skip : skip + length]

    def _forget(self, extent: Extent) -> None:
        self._cache_misses += 1
        if extent.home is Home.CACHED:
            self._holdings.release(extent)

    async def _load_stored(self, segment: SegmentMetadata, offset: int, length: int, attempt: _Attempt) -> bytes | None:
        chunk = segment.find_chunk(offset)
        where = f"segment {segment.name!r} offset {offset}"
        if chunk is None:
            raise DataCorruptionError(where, f"below storage length {segment.storage_length}, but in no chunk")
        if chunk == attempt.lost_chunk:
            raise DataCorruptionError(f"object {chunk.object_name}", f"it is gone, but {where} is still kept in it")
        try:
            data = await self._fetcher.fetch(segment, chunk, offset, length)
        except ObjectNotFoundError as error:
            # The chunk may have been replaced meanwhile, or before others began this fetch: look it up again.
            if error.name == chunk.object_name:
                attempt.lost_chunk = chunk
            return None
        except InvalidRangeError as error:
            raise DataCorruptionError(f"object {chunk.object_name}", f"too short for {where}") from error
        # After an insert the stock may ask for room in the cache.
        if self._holdings.has_demoted:
            self._spiller.trim()
        return data
