"""ChunkReleaser: releases the chunks that truncations and deletions of many have left.

Each operation releases some of them, from the head of their segments on; the next one follows when
it is committed. A crash between two of them loses nothing: what is left is in the metadata
(docs/decisions/0067).
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import islice

from durablelog.chunk_slices import RELEASES_MAX, Slices
from durablelog.operations import ReleaseChunksOperation
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import DataCorruptionError, TierUnavailableError
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.runtime import Runtime
from storagewriter.chunk_reach import reach_of
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import WriterDataSource


class ChunkReleaser:
    """The releasing part of a storage writer, which owns the task that runs it."""

    def __init__(
        self, source: WriterDataSource, config: StorageWriterConfig, runtime: Runtime
    ) -> None:
        self._source = source
        self._backoff = Backoff(runtime.random, min_s=config.retry_min_s, max_s=config.retry_max_s)
        self._wake = asyncio.Event()
        self.health = HealthNote("release of chunks", runtime.clock)

    def notice(self) -> None:
        """There may be chunks to release now. O(1)."""
        if self._source.metadata.releasing:
            self._wake.set()

    async def run(self) -> None:
        """Release until cancelled; the log has been replayed. Raises what a commit raises."""
        while True:
            self._wake.clear()
            try:
                while self._source.metadata.releasing:
                    await self.release_some()
                    self._backoff.reset()
                    self.health.succeeded()
                await self._wake.wait()
            except (TierUnavailableError, DataCorruptionError) as error:
                # The catalog has the chunks: the container stops soon, or the disk recovers.
                self.health.failed(error)
                await asyncio.sleep(self._backoff.next_s())

    async def release_some(self) -> None:
        """Commit the next operation. Raises TierUnavailableError and DataCorruptionError if what
        there is cannot be known.
        """
        left, releases = Slices.chunks_max, list[tuple[int, int]]()
        async with AsyncExitStack() as held:
            for segment_id in list(islice(self._source.metadata.releasing, RELEASES_MAX)):
                end, count = await self._reach(segment_id, left, held)
                releases.append((segment_id, end))
                left -= count
                if left <= 0:
                    break
            if releases:
                await self._source.commit(ReleaseChunksOperation(releases))

    async def _reach(
        self, segment_id: int, chunks_max: int, held: AsyncExitStack
    ) -> tuple[int, int]:
        """Up to which offset the next chunks of a segment can be released, at most so many; and
        their number. They stay in memory with `held`.
        """
        segment = self._source.metadata.releasing.get(segment_id)
        if segment is None:
            # It is passed over.
            return 0, 0
        return await reach_of(self._source, segment, segment.release_end, chunks_max, held)
