"""PartialSegments: chunks and attributes of active segments that the catalog alone has.

Brings them into memory when they are needed, and lets them leave it once they have been written
(docs/decisions/0060). Rules of this file:

- what memory does not know has not changed since the catalog was last written. So what was read is
  learnt only if the catalog was not written meanwhile;
- a page leaves memory that the catalog has as it is. Not while a call keeps its segment, or an
  operation that needs it is on its way;
- callers of `learn` go on in the turn of the loop in which all that they need is known.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Final

from durablelog.catalog.catalog_errors import catalog_error
from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.key_store import KeyStoreError
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.segment_loading import load_attributes, load_pages, scan_attributes
from durablelog.metadata_needs import AttributeNeed, ChunkNeed, Need, is_known
from durablelog.metadata_updater import MetadataUpdater
from segmentstore.container.eviction import CONSIDERED_IN_A_TURN
from segmentstore.contracts.attribute_table import NO_ATTRIBUTES
from segmentstore.contracts.attributes import AttributeKey
from segmentstore.contracts.chunk_list import PAGE_CHUNKS_MAX
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.metadata_sizes import (
    ATTRIBUTE_BYTES,
    CHUNK_BYTES,
    SEGMENT_BYTES,
    metadata_bytes,
)
from segmentstore.contracts.owned_tasks import own_task

SEGMENTS_OF_A_TURN: Final = 512
"""Counted without letting others run: about 1 ms."""
PAGES_OF_A_TURN: Final = 64
"""Of chunks, that leave memory without letting others run: about 1 ms."""
READ_SHARE: Final = 4
"""One part of so many of all bytes is for pages that were read, and another for attributes."""
READ_PAGES_MIN: Final = 2
READ_ATTRIBUTES_MIN: Final = 16


class PartialSegments:
    """Of one container; everything on its event loop.

    `bytes_max` is what the metadata of active segments may take in memory, about; None: there is no
    catalog that could have them. `evict(count)` has at most so many segments leave memory, of the
    next `CONSIDERED_IN_A_TURN`, and says how many did. `on_failure(error)`: the container must
    stop.
    """

    def __init__(
        self,
        updater: MetadataUpdater,
        catalog: MetadataCatalog,
        bytes_max: int | None,
        evict: Callable[[int], int],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._updater = updater
        self._metadata = updater.metadata
        self._changes = updater.changes
        self._catalog = catalog
        self._bytes_max = bytes_max
        self._evict = evict
        self._on_failure = on_failure
        self._kept: dict[int, int] = {}
        """Segment id to the number of those who keep what memory knows of it."""
        self._recent_pages: OrderedDict[tuple[int, int], None] = OrderedDict()
        """Pages that were read, by segment and key, oldest first."""
        self._recent_attributes: OrderedDict[tuple[int, AttributeKey], None] = OrderedDict()
        """The same of attributes, by segment and id."""
        self._refusal: Callable[[], BaseException] | None = None
        """Set once the container stops."""
        self._trimming: asyncio.Task[None] | None = None
        self.bytes_counted = 0
        """What all metadata in memory took, about, when they were counted last."""
        self.pages_read = 0
        self.attributes_read = 0

    # --- learning ---------------------------------------------------------------------------------

    async def learn(self, needs: Iterable[Need]) -> None:
        """Have all of this in memory, of those of the segments that are.

        Reads the catalog unless it is known. Raises TierUnavailableError, DataCorruptionError, and
        why the container has stopped.
        """
        needed = list(needs)
        if not self._unknown(needed):
            return
        ids = {need.segment_id for need in needed}
        self._keep(ids)
        try:
            await self._learn(needed)
        finally:
            self._release(ids)
        self._bound_what_was_read(needed)

    async def _learn(self, needs: Sequence[Need]) -> None:
        # What was known, or read first, may have left memory with its segment.
        while left := self._unknown(needs):
            await self._read(left)

    async def know_chunk(self, segment_id: int, offset: int) -> None:
        """Have the chunk with this offset in memory. Raises as `learn`."""
        # It is of one page, which is read at once: nothing has to be kept for it. Else pages of a
        # segment with many readers would never leave.
        needs = (ChunkNeed(segment_id, offset, offset + 1),)
        await self._learn(needs)
        self._bound_what_was_read(needs)

    @asynccontextmanager
    async def known(self, needs: Iterable[Need]) -> AsyncIterator[None]:
        """All of this in memory meanwhile. Raises as `learn`."""
        needed = list(needs)
        ids = {need.segment_id for need in needed}
        self._keep(ids)
        try:
            await self.learn(needed)
            yield
        finally:
            self._release(ids)
            self._bound_what_was_read(())

    async def attributes_from(
        self, segment: SegmentMetadata, start: AttributeKey, limit: int
    ) -> tuple[list[tuple[AttributeKey, int]], AttributeKey | None]:
        """The attributes from `start` on, in order of id, up to the one that is given beside them;
        None: all of them. About `limit` at most: those that memory alone has come on top.

        Of a segment in memory. Learns nothing. O(limit + attributes in memory, if those are not
        all). Raises as `learn`, and SegmentNotFoundError if it is deleted or merged away meanwhile.
        """
        while not segment.attributes.whole:
            writes, segment_id = self._changes.writes, segment.segment_id
            try:
                found, more = await scan_attributes(self._catalog.store, segment_id, start, limit)
            except (KeyStoreError, MetadataFormatError) as error:
                self.check_there(segment)
                raise self._error(error) from error
            self.check_there(segment)
            if writes == self._changes.writes and not segment.attributes.whole:
                last = max(found) if more and found else None
                return _merged(found, segment, start, last), last
        items = list(islice(segment.attributes.items(start), limit))
        return items, items[-1][0] if len(items) == limit else None

    def check_there(self, segment: SegmentMetadata) -> None:
        """Raise SegmentNotFoundError if a segment that was in memory is no more."""
        if self._metadata.segments.get(segment.segment_id) is not segment:
            raise SegmentNotFoundError(segment.name, "it was deleted or merged away meanwhile")

    def _error(self, error: KeyStoreError | MetadataFormatError) -> BaseException:
        """What a failed reading means to a caller."""
        if self._refusal is not None:
            return self._refusal()
        return catalog_error(self._metadata.container_id, error)

    def _unknown(self, needs: Iterable[Need]) -> list[Need]:
        return [need for need in needs if not is_known(self._metadata, need)]

    async def _read(self, needs: Sequence[Need]) -> None:
        """Read what is needed, and learn it; less of it if metadata change meanwhile."""
        there, writes, gaps = self._there(needs), self._changes.writes, self._gaps(needs)
        try:
            await self._read_pages(gaps, writes)
            await self._read_attributes_of(needs, writes)
            if writes == self._changes.writes and there == self._there(needs):
                self._check_read(needs)
        except KeyStoreError as error:
            raise self._error(error) from error
        except MetadataFormatError as error:
            # What changes while it is read may look like damage: its object may be garbage.
            now = (self._there(needs), self._changes.writes, self._gaps(needs))
            if now == (there, writes, gaps):
                raise self._error(error) from error

    def _there(self, needs: Sequence[Need]) -> list[SegmentMetadata | None]:
        """The segments in question, those that left memory and came back being others."""
        return [self._metadata.with_chunks(need.segment_id) for need in needs]

    def _gaps(self, needs: Sequence[Need]) -> list[tuple[int, int, int]]:
        """The stretches of segments whose chunks are not in memory: id, start and end."""
        return [
            (need.segment_id, *gap)
            for need in needs
            if isinstance(need, ChunkNeed)
            and (segment := self._metadata.with_chunks(need.segment_id)) is not None
            for gap in segment.chunks.gaps(need.start_offset, need.end_offset)
        ]

    async def _read_pages(self, gaps: Sequence[tuple[int, int, int]], writes: int) -> None:
        if not gaps:
            return
        async for pages in load_pages(self._catalog.store, gaps, self._metadata.objects):
            if writes != self._changes.writes:
                return
            for segment_id, key, chunks in pages:
                self._learn_page(segment_id, key, chunks)

    def _learn_page(self, segment_id: int, key: int, chunks: list[ChunkRecord]) -> None:
        segment = self._metadata.with_chunks(segment_id)
        if segment is None:
            return
        try:
            learnt = segment.chunks.learn(key, chunks)
        except ValueError as error:
            raise MetadataFormatError(f"page {key} of segment {segment_id}: {error}") from error
        if not learnt:
            return
        self.pages_read += 1
        self._recent_pages[segment_id, key] = None
        self._recent_pages.move_to_end((segment_id, key))

    def _bound_what_was_read(self, used: Sequence[Need]) -> None:
        """Have pages and attributes leave memory that were read, the oldest first, if they are too
        many; not those that the caller is about to use.
        """
        if self._bytes_max is not None:
            self._bound_pages(used, self._bytes_max // READ_SHARE)
            self._bound_attributes(used, self._bytes_max // READ_SHARE)

    def _bound_attributes(self, used: Sequence[Need], bytes_max: int) -> None:
        recent, segments = self._recent_attributes, self._metadata.segments
        excess = len(recent) - max(READ_ATTRIBUTES_MIN, bytes_max // ATTRIBUTE_BYTES)
        if excess <= 0:
            return
        in_use = {(need.segment_id, need.key) for need in used if isinstance(need, AttributeNeed)}
        in_use.intersection_update(recent)
        for attribute in in_use:
            recent.move_to_end(attribute)
        for _ in range(min(excess, len(recent) - len(in_use))):
            (segment_id, key), _ = recent.popitem(last=False)
            segment = segments.get(segment_id)
            if segment_id in self._kept:
                recent[segment_id, key] = None
            elif segment is not None:
                self._updater.forget_attribute(segment, key)

    def _bound_pages(self, used: Sequence[Need], bytes_max: int) -> None:
        pages = self._recent_pages
        excess = len(pages) - max(READ_PAGES_MIN, bytes_max // (PAGE_CHUNKS_MAX * CHUNK_BYTES))
        if excess <= 0:
            return
        in_use = self._pages_of(used)
        for page in in_use:
            pages.move_to_end(page)
        for _ in range(min(excess, len(pages) - len(in_use))):
            (segment_id, key), _ = pages.popitem(last=False)
            segment = self._metadata.with_chunks(segment_id)
            if segment_id in self._kept:
                pages[segment_id, key] = None
            elif segment is not None and self._may_forget(segment):
                self._forget_pages(segment, (key,))

    def _pages_of(self, needs: Iterable[Need]) -> set[tuple[int, int]]:
        """Those of the pages that were read that have chunks which are needed."""
        return {
            (need.segment_id, key)
            for need in needs
            if isinstance(need, ChunkNeed)
            and (segment := self._metadata.with_chunks(need.segment_id)) is not None
            for key in segment.chunks.known_keys(need.start_offset, need.end_offset)
            if (need.segment_id, key) in self._recent_pages
        }

    async def _read_attributes_of(self, needs: Sequence[Need], writes: int) -> None:
        wanted = [need for need in self._unknown(needs) if isinstance(need, AttributeNeed)]
        if not wanted:
            return
        values = await load_attributes(self._catalog.store, wanted)
        if writes != self._changes.writes:
            return
        by_segment: dict[int, dict[AttributeKey, int | None]] = {}
        for (segment_id, key), value in zip(wanted, values, strict=True):
            by_segment.setdefault(segment_id, {})[key] = value
        for segment_id, found in by_segment.items():
            segment = self._metadata.segments.get(segment_id)
            if segment is None:
                continue
            try:
                segment.attributes.learn(found)
            except ValueError as error:
                raise MetadataFormatError(f"segment {segment_id}: {error}") from error
        self.attributes_read += len(wanted)
        self._recent_attributes.update(dict.fromkeys((need[0], need[1]) for need in wanted))

    def _check_read(self, needs: Sequence[Need]) -> None:
        """All that was read is in memory, or the catalog lacks it."""
        for segment_id, start, end in self._gaps(needs):
            raise MetadataFormatError(
                f"segment {segment_id}: no page has its bytes {start} to {end}"
            )
        for need in self._unknown(needs):
            raise MetadataFormatError(f"{need} is not there")

    # --- forgetting -------------------------------------------------------------------------------

    def written(self) -> None:
        """What changed until the last checkpoint is in the catalog."""
        if self._bytes_max is not None and self._trimming is None:
            self._trimming = own_task(
                self._trim(self._bytes_max),
                name=f"active metadata {self._metadata.container_id}",
                on_failure=self._failed,
            )

    async def stop(self, refusal: Callable[[], BaseException]) -> None:
        """Let nothing leave memory any more; what cannot be read gets the refusal. Idempotent."""
        self._bytes_max, self._refusal = None, refusal
        if self._trimming is not None:
            self._trimming.cancel()
            await asyncio.wait((self._trimming,))

    def _failed(self, error: BaseException) -> None:
        if self._bytes_max is not None:
            self._on_failure(error)

    async def _trim(self, bytes_max: int) -> None:
        """Have chunks and attributes leave memory while all metadata take too much of it."""
        left = 0
        long: list[SegmentMetadata] = []
        for number, segment in enumerate(list(self._metadata.segments.values())):
            if segment.attributes is NO_ATTRIBUTES and not segment.chunks.paged:
                # Most of them.
                left += SEGMENT_BYTES + len(segment.chunks) * CHUNK_BYTES
            else:
                left += _bytes_of(segment)
                if segment.chunks.paged or segment.attributes.paged or not segment.whole:
                    long.append(segment)
            if number % SEGMENTS_OF_A_TURN == SEGMENTS_OF_A_TURN - 1:
                await asyncio.sleep(0)
        for segment in long:
            if left <= bytes_max:
                break
            left -= await self._forget(segment)
        self.bytes_counted = left
        await self._evict_some(left - bytes_max, left)
        self._trimming = None

    async def _evict_some(self, excess: int, total: int) -> None:
        """Have segments leave memory, of average size, as far as they may."""
        count = len(self._metadata.segments)
        # Twice: the first time may find that all were used.
        for _ in range(0, 2 * count, CONSIDERED_IN_A_TURN):
            if excess <= 0:
                break
            excess -= self._evict(-(-excess * count // total)) * total // count
            await asyncio.sleep(0)

    async def _forget(self, segment: SegmentMetadata) -> int:
        """Have what can of a segment leave memory, if that is still there; its bytes."""
        freed = self._forget_attributes(segment)
        # The last page stays.
        keys = [key for key, _ in segment.chunks.known_pages()[:-1]]
        for first in range(0, len(keys), PAGES_OF_A_TURN):
            await asyncio.sleep(0)
            if not self._is_there(segment):
                break
            before = _bytes_of(segment)
            if self._may_forget(segment):
                self._forget_pages(segment, keys[first : first + PAGES_OF_A_TURN])
            freed += before - _bytes_of(segment)
        await asyncio.sleep(0)
        return freed

    def _forget_attributes(self, segment: SegmentMetadata) -> int:
        before, attributes = _bytes_of(segment), segment.attributes
        may_forget = self._changes.all_written and segment.segment_id not in self._kept
        if may_forget and self._is_there(segment) and attributes.known_count > attributes.PAGE_MAX:
            self._updater.forget_attributes(segment)
        return before - _bytes_of(segment)

    def _is_there(self, segment: SegmentMetadata) -> bool:
        return self._metadata.segments.get(segment.segment_id) is segment

    def _may_forget(self, segment: SegmentMetadata) -> bool:
        return segment.segment_id not in self._kept and self._updater.may_forget_chunks(segment)

    def _forget_pages(self, segment: SegmentMetadata, keys: Sequence[int]) -> None:
        is_written, segment_id = self._changes.is_page_written, segment.segment_id
        there = [key for key in keys if is_written(segment_id, key)]
        if there:
            self._updater.forget_pages(segment, there)

    def _keep(self, ids: Iterable[int]) -> None:
        for segment_id in ids:
            self._kept[segment_id] = self._kept.get(segment_id, 0) + 1

    def _release(self, ids: Iterable[int]) -> None:
        for segment_id in ids:
            left = self._kept[segment_id] - 1
            if left:
                self._kept[segment_id] = left
            else:
                del self._kept[segment_id]


def _bytes_of(segment: SegmentMetadata) -> int:
    """What its metadata take in memory, about."""
    return metadata_bytes(1, segment.chunks.known_count, segment.attributes.known_count)


def _merged(
    found: dict[AttributeKey, int],
    segment: SegmentMetadata,
    start: AttributeKey,
    last: AttributeKey | None,
) -> list[tuple[AttributeKey, int]]:
    """What the catalog has of [start, last], as memory has it where it knows it: that is newer."""
    for key, value in _between(segment.attributes.known(), start, last):
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return sorted(found.items())


def _between(
    items: Iterable[tuple[AttributeKey, int | None]], start: AttributeKey, last: AttributeKey | None
) -> Iterator[tuple[AttributeKey, int | None]]:
    return (item for item in items if item[0] >= start and (last is None or item[0] <= last))
