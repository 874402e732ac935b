"""BlockListing: what a container has in Tier 2, while it is changed.

Segments come one after another, each as it is in its turn, idle ones out of the catalog. No segment
becomes active by it, and nothing is locked. A chunk that is moved or removed meanwhile is given or
not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from durablelog.catalog.catalog_errors import catalog_error
from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.key_store import KeyStoreError
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.catalog.segment_loading import load_pages
from segmentstore.container.segment_scan import SegmentScan
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentStoreError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.reports import BlockEntry
from segmentstore.listed_entries import block_entry, garbage_entry

PASSED_OF_A_TURN: Final = 1024
"""Segments and chunks passed without letting others run."""


class BlockListing:
    """Of one container. `scan` finds the segments whose names begin with a prefix."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        changes: MetadataChanges,
        catalog: MetadataCatalog,
        scan: Callable[[str], SegmentScan],
        check_running: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._changes = changes
        self._catalog = catalog
        self._scan = scan
        self._check_running = check_running
        self._passed = 0

    async def blocks(self, name: str | None) -> AsyncGenerator[BlockEntry, None]:
        """Those of the segment of this name. Without a name those of all segments, of merged and
        deleted ones that still have some, and the objects that wait for their deletion.

        O(active names + blocks). Raises SegmentNotFoundError, TierUnavailableError,
        DataCorruptionError, and what `check_running` raises once the container has stopped.
        """
        self._check_running()
        scan, is_found = self._scan(name or ""), False
        while (found := await scan.next_name()) is not None and name in {None, found}:
            segment = await scan.take()
            if segment is not None:
                is_found = True
                async for entry in self._blocks_of(segment):
                    yield entry
            await self._pass(1)
        if name is not None:
            if not is_found:
                raise SegmentNotFoundError(name)
            return
        # Some are in both.
        for segment_id in dict.fromkeys((*self._metadata.segments, *self._metadata.releasing)):
            former = self._metadata.with_chunks(segment_id)
            if former is not None and (former.deleted or former.merged_into is not None):
                async for entry in self._blocks_of(former):
                    yield entry
            await self._pass(1)
        for garbage in list(self._metadata.garbage.values()):
            yield garbage_entry(garbage)
            await self._pass(1)

    async def _blocks_of(self, segment: SegmentMetadata) -> AsyncGenerator[BlockEntry, None]:
        end = segment.storage_length
        if self._metadata.with_chunks(segment.segment_id) is segment:
            # Taken in this turn: memory is newer than the catalog.
            known, gaps = segment.chunks.known_pages(), segment.chunks.gaps(0, end)
        else:
            known = []
            gaps = [(segment.start_offset, end)] if segment.start_offset < end else []
        for _, (records, count) in known:
            for entry in self._entries(segment, islice(records, count)):
                yield entry
            await self._pass(count)
        if gaps:
            async for chunks in self._stored(segment, gaps):
                for entry in self._entries(segment, chunks):
                    yield entry

    async def _stored(
        self, segment: SegmentMetadata, gaps: Sequence[tuple[int, int]]
    ) -> AsyncGenerator[list[ChunkRecord], None]:
        """The pages that the catalog alone has."""
        wanted = [(segment.segment_id, *gap) for gap in gaps]
        writes = self._changes.writes
        try:
            async for pages in load_pages(self._catalog.store, wanted, None):
                for _, _, chunks in pages:
                    yield chunks
        except KeyStoreError as error:
            raise self._error_of(error) from error
        except MetadataFormatError as error:
            # What changes while it is read may look like damage.
            if writes == self._changes.writes and not self._changes.is_lost(segment.segment_id):
                raise self._error_of(error) from error

    def _error_of(self, error: KeyStoreError | MetadataFormatError) -> SegmentStoreError:
        self._check_running()
        return catalog_error(self._metadata.container_id, error)

    def _entries(
        self, segment: SegmentMetadata, chunks: Iterable[ChunkRecord]
    ) -> Iterator[BlockEntry]:
        for chunk in chunks:
            live = self._metadata.objects.get(chunk.object_name)
            if live is not None:
                yield block_entry(segment, chunk, live.record.size)

    async def _pass(self, count: int) -> None:
        self._passed += count
        if self._passed >= PASSED_OF_A_TURN:
            self._passed = 0
            await asyncio.sleep(0)
