"""ReadIndex: every byte of every segment of one container, wherever it lies (loop).

The commit side is synchronous and called in log order, right after the metadata changed, live and
in replay alike. The read side searches in this order: memory, cache, Tier 2 (below storage_length),
a merged source, and last Tier 1 by a refill. Rules:

- a read of appended bytes that lie in memory awaits nothing. One of fetched bytes gives way to
  others in the loop when much has been delivered (FairDelivery), and nothing else;
- after every await everything is checked again: the segment may have been truncated, deleted,
  merged or flushed, and the bytes evicted. The loop ends with bytes or with an error;
- the bytes of a segment id at an offset never change, so bytes in hand stay right; only whether the
  reader may still have them is asked again;
- bytes handed out are the reader's: `bytes` objects no eviction touches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from readindex.append_intake import AppendIntake
from readindex.cache_addresses import CacheAddresses
from readindex.cache_manager import CacheManager
from readindex.cache_storage import CacheStorage
from readindex.cached_blocks import CachedBlocks
from readindex.config import ReadIndexConfig
from readindex.extent import Home
from readindex.fair_delivery import FairDelivery
from readindex.fetched_extents import FetchedExtents
from readindex.loader import Attempt, Loader
from readindex.log_rescanner import LogRescanner
from readindex.logged_bytes import LoggedBytes, ReadLog, read_nothing
from readindex.merged_sources import MergedSources
from readindex.places import Places
from readindex.prefetcher import KnowChunk, Prefetcher
from readindex.segment_read_index import UNKNOWN, SegmentIndexes, SegmentReadIndex, index_of
from readindex.spiller import Spiller
from readindex.statistics import Pressure, ReadIndexStatistics
from readindex.tail_memory import HARD_BOUND, CommittedAppend, TailMemory
from readindex.unflushed_reads import RemovedError, UnflushedReads
from readindex.waiting_reads import WaitingReads
from segmentstore.contracts.errors import (
    BadOffsetError,
    EndOfSegmentError,
    InvalidArgumentError,
)
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.runtime import Runtime

if TYPE_CHECKING:
    from readindex.block_source import BlockSource, FetchWatch

_CROWDED = 1.5
"""Share of `tail_bytes_max` from which what can wait does so until more has been spilled."""
_ROOMY = 1.25
"""Share down to which a caller that can wait does so: so that it and the spiller do not take turns
frame by frame.
"""


def _none_known() -> int:
    return 0


def _nothing() -> None:
    pass


async def _is_known(_segment_id: int, _offset: int) -> None:
    pass


class ReadIndex:
    """One container's read index. All calls on one event loop.

    `refill(wanted)` must rescan the log and call `insert_refilled` with the bytes of these segments
    that `missing_ranges` lists, in order of offset for each. It may do so for others that will be
    wanted soon. `wanted` maps each to how many missing bytes are taken without being kept. `cache`
    and `addresses` may be shared with other containers. `unflushed_bytes()` gives all un-flushed
    bytes there are, those included that are not held. `on_spilled()` is called, soon and often,
    when some of the tail has been moved to the cache. `read_log` gives the bytes at places in the
    log (address, length, CRC32C), None for each that is not there whole. `know_chunk` has a chunk
    in memory that the metadata lack.
    """

    def __init__(
        self,
        metadata: ContainerMetadata,
        cache: CacheStorage,
        addresses: CacheAddresses,
        storage: BlockSource,
        refill: Callable[[Mapping[int, int]], Awaitable[None]],
        config: ReadIndexConfig,
        runtime: Runtime,
        *,
        unflushed_bytes: Callable[[], int] = _none_known,
        on_spilled: Callable[[], None] = _nothing,
        read_log: ReadLog = read_nothing,
        know_chunk: KnowChunk = _is_known,
    ) -> None:
        self._metadata = metadata
        self._config = config
        self._indexes: SegmentIndexes = {}
        self._tail = TailMemory(config, self._indexes)
        self._fetched = FetchedExtents(config, self._indexes)
        self._cached = CachedBlocks(config, self._indexes, cache, addresses)
        self._logged = LoggedBytes(config, self._indexes, read_log)
        self._cache_manager = CacheManager(
            metadata,
            config,
            self._indexes,
            self._tail,
            self._fetched,
            self._cached,
            self._logged,
        )
        self._spiller = Spiller(self._cache_manager, self._cached, config, on_spilled)
        self._pacer = FairDelivery(config.turn_bytes, lambda: self._tail.position)
        self._fetcher = Prefetcher(
            metadata,
            self._indexes,
            self._fetched,
            self._pacer,
            storage,
            config,
            runtime,
            know_chunk,
        )
        self._log_rescanner = LogRescanner(refill, metadata.container_id)
        self._places = Places(metadata, self._indexes)
        self._loader = Loader(
            self._cached,
            self._logged,
            self._fetched,
            self._fetcher,
            self._log_rescanner,
            self._spiller,
            config.tail_bytes_max,
            know_chunk,
        )
        self._unflushed = UnflushedReads(
            metadata,
            self._indexes,
            self._cache_manager,
            self._places,
            self._loader,
            self._log_rescanner,
        )
        self._waiting = WaitingReads()
        self._intake = AppendIntake(
            config,
            self._indexes,
            self._places,
            self._tail,
            self._cache_manager,
            self._spiller,
            self._waiting,
        )
        self._sources = MergedSources(metadata)
        self._unflushed_bytes = unflushed_bytes
        self._gives_way = False
        """What was just taken, in this turn, makes its reader wait for another."""

    # --- commit side ---

    def append(self, appends: Sequence[CommittedAppend], *, replayed: bool = False) -> None:
        """Segments have grown by these appends, in this order; their readers are woken.

        About 0.4 us each that is small; the bytes of larger ones are kept by reference. What
        `read_log` finds at its places is left there when memory is full, and at once if `replayed`.

        Raises DataCorruptionError if one does not continue what came before, SegmentNotFoundError.
        """
        self._intake.take(appends, replayed=replayed)

    def storage_advanced(self, segment_id: int) -> None:
        """storage_length or the chunks changed: what lies below storage_length may be dropped from
        now on.
        """
        self._advance(self._places.segment(segment_id))
        self._sweep_sources(segment_id)

    def adopt_merges(self) -> None:
        """A checkpoint has been restored: take up the merges it holds that Tier 2 has not linked.

        O(segments).
        """
        self._sources.adopt()

    def merged(self, target_id: int, source_id: int) -> None:
        """A merge was committed, the newest: the source's readers get SegmentNotFoundError, the
        target's its bytes.
        """
        target = self._places.segment(target_id)
        merge = target.merges[-1] if target.merges else None
        if merge is not None and merge.source_id == source_id:
            index = index_of(self._indexes, target_id)
            index.check_next(merge.offset)
            self._tail.cut(index)
            index.next_offset = merge.end_offset
            self._sources.add(target_id, source_id, merge.offset)
        elif source_id not in self._metadata.segments:
            self._cache_manager.drop_segment(source_id)
        self._waiting.wake(source_id)
        self._waiting.wake(target_id)

    def merge_linked(self, target_id: int, source_id: int) -> None:
        """The source's chunks are the target's now and its metadata is deleted: its held bytes move
        over.
        """
        target = self._places.segment(target_id)
        offset, nested = self._sources.link(target_id, source_id)
        if offset is None:
            self._cache_manager.drop_segment(source_id)
        else:
            self._cache_manager.move_segment(source_id, target_id, offset, target.start_offset)
        # What was merged into the source is linked with it.
        for nested_id in nested:
            self._cache_manager.drop_segment(nested_id)
        # Nothing is swept: sources that were linked with this one follow, in the same turn.
        self._advance(target)

    def merge_linked_in_part(self, target_id: int, source_id: int) -> None:
        """Some of the source's chunks may be the target's now. What is held of them is released: no
        read comes to the source for it any more.
        """
        source = self._places.segment(source_id)
        index = self._indexes.get(source_id)
        if index is not None:
            self._cache_manager.drop_below(index, source.start_offset)
        self._advance(self._places.segment(target_id))

    def truncated(self, segment_id: int) -> None:
        """start_offset has grown: what lies below it is released."""
        segment = self._places.segment(segment_id)
        index = self._indexes.get(segment_id)
        if index is not None:
            self._cache_manager.drop_below(index, segment.start_offset)
        self._sweep_sources(segment_id)

    def sealed(self, segment_id: int) -> None:
        """The segment was sealed: readers at its end get EndOfSegmentError."""
        self._waiting.wake(segment_id)

    def evicted(self, segment_id: int) -> None:
        """The segment has left memory, where it was not in use: nothing is held of it any more."""
        self._cache_manager.drop_segment(segment_id)

    def deleted(self, segment_id: int) -> None:
        """The segment is deleted from the metadata: its readers get SegmentNotFoundError."""
        self._cache_manager.drop_segment(segment_id)
        self._sweep_sources(segment_id)
        self._waiting.wake(segment_id)

    def replaced(self, segment_id: int) -> None:
        """The chunks were replaced by others with the same bytes: what is held stays right, and
        fetches check again.
        """
        self._places.segment(segment_id)

    def insert_refilled(self, segment_id: int, offset: int, data: bytes) -> None:
        """Bytes a rescan of the log found; those still wanted and missing are taken, the others
        passed over.

        Kept for later is what an upload does not take away at once, as far as memory and cache have
        room for it.
        """
        taken = self._log_rescanner.offer(segment_id, offset, data)
        segment = self._metadata.segments.get(segment_id)
        if segment is None or taken or self._places.closed:
            return
        start = max(offset, segment.start_offset, segment.storage_length)
        end = min(offset + len(data), segment.length)
        if start < end:
            part = data if end - start == len(data) else data[start - offset : end - offset]
            self._cache_manager.insert_refilled(
                index_of(self._indexes, segment_id), start, part, spills=not self._spiller.refused
            )
            if self._tail.bytes_total > self._spiller.trim_at:
                self._spiller.trim()

    @property
    def refill_answered(self) -> bool:
        """True when the rescan under way has nothing left to find for those it was begun for."""
        return self._log_rescanner.answered

    @property
    def refill_in_vain(self) -> bool:
        """True if there is a want for which the rescan under way has found nothing."""
        return self._log_rescanner.in_vain

    @property
    def refill_room_bytes(self) -> int:
        """Un-flushed bytes that memory and cache can hold beside those they hold. O(1)."""
        return max(0, self._cache_manager.unflushed_room(spills=not self._spiller.refused))

    def give_up_unflushed(self, segment_id: int) -> None:
        """Release un-flushed bytes of a segment, to make room for others: a rescan brings them
        back when they are wanted.

        O(extents of the segment).
        """
        self._cache_manager.drop_unflushed(segment_id)

    # --- read side ---

    async def read(self, segment_id: int, offset: int, max_length: int) -> bytes:
        """At least one byte from `offset` and at most `max_length`, where there is data.

        At the end of an open segment: b"" at once; `changed`, in the same turn, waits for more.
        Raises SegmentNotFoundError, SegmentTruncatedError, EndOfSegmentError (sealed),
        BadOffsetError (beyond the end), InvalidArgumentError, ContainerStoppedError,
        TierUnavailableError, DataCorruptionError. What lies in memory is given without awaiting, in
        microseconds.
        """
        if offset < 0:
            raise InvalidArgumentError("offset", offset, "an offset is at least 0")
        if max_length < 1:
            raise InvalidArgumentError("max_length", max_length, "a read is at least 1 byte long")
        segment = self._places.readable(segment_id, offset, str(segment_id))
        index = self._indexes.get(segment_id)
        data = None if index is None else self._read_memory(segment, index, offset, max_length)
        if data is None:
            return await self._read_slow(segment, offset, max_length)
        if self._gives_way:
            await self._give_way(segment, offset)
        return data

    async def changed(self, segment_id: int, seconds: float) -> bool:
        """Wait until the segment grows, is sealed, merged away or deleted, or all ends; False once
        so many seconds have passed. It need not be in memory. Costs a future and a timer.
        """
        return await self._waiting.wait(segment_id, seconds)

    async def read_held(self, segment_id: int, offset: int, max_length: int) -> bytes:
        """The bytes in memory that follow each other from `offset`, at most `max_length`; b"" if
        there are none.

        It waits for no tier and no cache, at most for its turn. Raises SegmentNotFoundError,
        SegmentTruncatedError, ContainerStoppedError.
        """
        segment = self._places.readable(segment_id, offset, str(segment_id))
        if offset >= segment.length:
            return b""
        place = self._places.locate(segment, offset, max_length)
        if place.segment_index is None:
            return b""
        data = self._read_memory(place.segment, place.segment_index, place.offset, place.length)
        if data is None:
            return b""
        if self._gives_way:
            await self._give_way(segment, offset)
        return data

    async def read_unflushed(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> list[Sequence[bytes] | RemovedError]:
        """For each (segment id, offset, length) exactly these un-flushed bytes, for the storage
        writer: pieces to be joined, mostly not copied. SegmentNotFoundError or
        SegmentTruncatedError take the place of removed ranges.

        What only Tier 1 has is asked for at once, for all of them: one rescan of the log brings it.
        Holds as much memory as the ranges are long. Merged sources are read by their own id too.
        Raises BadOffsetError, DataCorruptionError, ContainerStoppedError, and whatever a refill
        raises.
        """
        return await self._unflushed.read(ranges)

    def missing_ranges(self, segment_id: int) -> list[tuple[int, int]]:
        """Un-flushed ranges, as (start, end), that are neither in memory nor in the cache nor in a
        merged source.

        Sources have ranges of their own, under their own ids.
        """
        segment = self._metadata.segments.get(segment_id)
        return [] if segment is None else self._cache_manager.missing_ranges(segment)

    def object_in_use(self, name: str) -> bool:
        """True while a fetch from this Tier-2 object is in flight."""
        return self._fetcher.fetches.object_in_use(name)

    # --- the whole ---

    def watch(self, watch: FetchWatch) -> None:
        """Report each fetch."""
        self._fetcher.fetches.report_to(watch)

    @property
    def pressure(self) -> Pressure:
        """How full memory and cache are of un-flushed bytes. O(1)."""
        tail, cached, memory_max = self._tail, self._cached, self._config.tail_bytes_max
        # What the log gives back by place needs neither.
        wanting_room = self._unflushed_bytes() - self._logged.bytes_total
        unflushed = max(wanting_room, tail.bytes_unflushed + cached.bytes_unflushed)
        if self._spiller.refused:
            return Pressure(unflushed, memory_max, 0.0)
        tail_share = tail.bytes_held / (HARD_BOUND * memory_max)
        return Pressure(unflushed, memory_max + cached.bytes_max, tail_share)

    @property
    def crowded(self) -> bool:
        """True while what can wait should, because the tail is well above its bound.

        See `wait_spilled`.
        """
        return self._tail.bytes_total > _CROWDED * self._config.tail_bytes_max

    @property
    def placed_bytes_min(self) -> int:
        """Appends from so many bytes on may be left in the log, at their places."""
        return self._config.small_bytes

    @property
    def room_bytes(self) -> int:
        """What may be appended at one go after `wait_roomy` without anything being dropped."""
        return int((HARD_BOUND - _CROWDED) * self._config.tail_bytes_max)

    async def wait_spilled(self) -> bool:
        """Wait until some more of the tail is in the cache; False at once if nothing can be moved
        there.
        """
        return await self._spiller.step()

    async def wait_roomy(self) -> None:
        """While crowded, wait until much of the tail is in the cache, or nothing more can be moved
        there.
        """
        if self.crowded:
            while (
                self._tail.bytes_total > _ROOMY * self._config.tail_bytes_max
                and await self._spiller.step()
            ):
                pass

    def resize_cache(self, bytes_max: int) -> bool:
        """Have this share of the cache from now on; as `CachedBlocks.resize`."""
        return self._cached.resize(bytes_max)

    def trim(self) -> None:
        """Bring memory below its bound now: what Tier 2 has is dropped, the rest begins to move to
        the cache.
        """
        self._spiller.trim()

    async def wait_trimmed(self) -> None:
        """Wait until nothing is on its way into the cache."""
        await self._spiller.wait_idle()

    async def close(self) -> None:
        """Stop: all who wait get ContainerStoppedError. Idempotent."""
        self._places.close()
        self._waiting.wake_all()
        await self._log_rescanner.close()
        self._pacer.close()
        await self._fetcher.close()
        await self._spiller.close()

    def statistics(self) -> ReadIndexStatistics:
        """Numbers as of now. O(fetches in flight + segments with waiting readers)."""
        fetches = self._fetcher.fetches
        return ReadIndexStatistics(
            segments=len(self._indexes),
            tail_bytes=self._tail.bytes_total,
            tail_bytes_unflushed=self._tail.bytes_unflushed,
            cached_bytes=self._cached.bytes_total,
            cached_bytes_unflushed=self._cached.bytes_unflushed,
            logged_bytes=self._logged.bytes_total,
            fetched_bytes=self._fetched.bytes_total,
            readers_waiting=len(self._waiting),
            fetches_in_flight=len(fetches),
            fetches=fetches.started,
            fetches_random=self._fetcher.fetches_random,
            prefetches=fetches.started_ahead,
            fetch_bytes=fetches.bytes_fetched,
            prefetch_bytes=fetches.bytes_fetched_ahead,
            read_ahead_hits=self._fetched.ahead_hits,
            read_ahead_wasted_bytes=self._fetched.ahead_wasted_bytes,
            sequential_readers=len(self._fetched.readers.running),
            delivery_pauses=self._pacer.pauses,
            refills=self._log_rescanner.refills,
            cache_misses=self._cached.misses + self._logged.misses,
            spilled_bytes=self._cache_manager.spilled_bytes,
            dropped_unflushed_bytes=self._tail.dropped_unflushed_bytes
            + self._cached.dropped_unflushed_bytes,
            pressure=self.pressure.share,
        )

    def check(self) -> None:
        """Assert the rules of every part, as `CacheManager.check`. O(everything)."""
        self._cache_manager.check()

    # --- inside ---

    def _advance(self, segment: SegmentMetadata) -> None:
        index = self._indexes.get(segment.segment_id)
        if index is not None:
            self._cache_manager.advance(index, segment.storage_length)

    def _sweep_sources(self, target_id: int) -> None:
        for source_id in self._sources.sweep(target_id):
            self._cache_manager.drop_segment(source_id)

    def _read_memory(
        self, segment: SegmentMetadata, index: SegmentReadIndex, offset: int, length: int
    ) -> bytes | None:
        tail = index.tail
        if tail is not None and tail.start_offset <= offset < index.next_offset:
            return tail.slice(offset, length)
        extent = index.find(offset)
        if extent is None or not extent.in_memory:
            return None
        if extent.home is Home.FETCHED:
            data = self._fetcher.read_held(segment, extent, offset, length)
            self._gives_way = self._pacer.spend(len(data))
            return data
        if extent.end_offset - offset >= length:
            return extent.slice(offset, length)
        pieces = index.memory_pieces(offset, length)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _give_way(self, segment: SegmentMetadata, offset: int) -> None:
        self._gives_way = False
        await self._pacer.give_way()
        self._places.readable(segment.segment_id, offset, segment.name)

    async def _read_slow(self, segment: SegmentMetadata, offset: int, max_length: int) -> bytes:
        attempt = Attempt()
        segment_id, name = segment.segment_id, segment.name
        while True:
            segment = self._places.readable(segment_id, offset, name)
            if self._at_end(segment, offset):
                return b""
            place = self._places.locate(segment, offset, max_length)
            data = None
            if place.segment_index is not None:
                data = self._read_memory(
                    place.segment, place.segment_index, place.offset, place.length
                )
            if data is not None:
                if self._gives_way:
                    await self._give_way(segment, offset)
                return data
            data = await self._loader.load(place, attempt)
            if data is not None:
                self._places.readable(segment_id, offset, name)
                return data

    def _at_end(self, segment: SegmentMetadata, offset: int) -> bool:
        length = segment.length
        if offset > length:
            raise BadOffsetError(segment.name, offset, length, "beyond the end")
        if offset == length:
            if segment.sealed:
                raise EndOfSegmentError(segment.name, length)
            return True
        # Committed, but the call that brings the bytes has not come yet: for the reader it is still
        # the tail.
        index = self._indexes.get(segment.segment_id)
        return index is not None and index.next_offset != UNKNOWN and offset >= index.next_offset
