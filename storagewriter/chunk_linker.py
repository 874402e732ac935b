"""ChunkLinker: commits the links of merges, of long sources a slice at a time.

What an operation needs of long segments is read from the catalog first. Between two slices all that
there is to know is in the metadata (docs/decisions/0091).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from durablelog.chunk_slices import Slices
from durablelog.operations import LinkChunksOperation, StorageUpdateOperation
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.runtime import Runtime
from storagewriter.chunk_reach import reach_of
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import WriterDataSource
from storagewriter.link_plan import LinkPlan


class ChunkLinker:
    """The linking part of a storage writer."""

    def __init__(
        self, source: WriterDataSource, config: StorageWriterConfig, runtime: Runtime
    ) -> None:
        self._source = source
        self._backoff = Backoff(runtime.random, min_s=config.retry_min_s, max_s=config.retry_max_s)
        self.health = HealthNote("links of merges", runtime.clock)
        self.links = 0
        """Merges completed in Tier 2."""

    async def link(self, plan: LinkPlan) -> None:
        """Commit what is planned, or the next slice of it. Raises what a commit raises."""
        while True:
            try:
                await self._commit(plan)
            except (TierUnavailableError, DataCorruptionError) as error:
                # The catalog has the chunks: the container stops soon, or the disk recovers.
                self.health.failed(error)
                await asyncio.sleep(self._backoff.next_s())
            else:
                self._backoff.reset()
                self.health.succeeded()
                return

    async def _commit(self, plan: LinkPlan) -> None:
        if plan.in_slices:
            await self._link_some(*plan.links[0])
        else:
            await self._source.commit(StorageUpdateOperation(links=plan.links))
            self.links += len(plan.links)

    async def _link_some(self, target_id: int, source_id: int) -> None:
        segment = self._source.metadata.segments.get(source_id)
        if segment is None:
            # It was deleted with its target.
            return
        # The last chunk is known always, and stays for the link behind all slices.
        end, chunks_max = segment.chunks.last.start_offset, Slices.linked_max
        async with AsyncExitStack() as held:
            reached, _ = await reach_of(self._source, segment, end, chunks_max, held)
            await self._source.commit(LinkChunksOperation(target_id, source_id, reached))
