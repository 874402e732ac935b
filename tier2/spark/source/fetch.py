"""SegmentBytes: the bytes of one segment out of Tier 2, in order, every one checked, fetched ahead
of their consumer.

Rules of this file:

- every byte comes through BlockReader: the block is the one the catalog means, and the checksums
  hold, or DataCorruptionError;
- an object that is missing may have been consolidated or compacted since the snapshot, and deleted
  after its lag: the newest snapshot is asked once where the bytes lie now. What it does not have
  any more is RangeLostError, which is the caller's to check; an object that it still names is
  MissingObjectError;
- a store that does not answer is asked some times more, waiting longer each time;
- a few fetches are in flight, started and awaited here; `close` ends them.

Coroutines of one event loop. Between two calls the loop may stand still: fetches go on in the
storage's own threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.runtime import Runtime
from tier2.block_reader import BlockReader
from tier2.block_runs import BlockRun, ChunkStretch, StretchPayload, plan_runs
from tier2.object_storage import (
    ObjectNotFoundError,
    ObjectStorage,
    StorageRefusedError,
    StorageUnavailableError,
)
from tier2.spark.source.catalog import find_segment, load_chunks, load_snapshots
from tier2.spark.source.chunks import SegmentChunks, SourceChunk
from tier2.spark.source.errors import MissingObjectError, SourceCatalogError
from tier2.spark.source.options import SourceOptions
from tier2.spark.source.plan import SourceSegment

if TYPE_CHECKING:
    from random import Random

RUN_BYTES: Final = 1024 * 1024
"""What is given out at once: about one batch of rows, and small enough for the processor's cache,
which makes lines of it at twice the rate of larger ones. Fetches are as large, or what the storage
likes best.
"""
IN_FLIGHT: Final = 8
IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""Fetches under way, the one that is waited for among them: so many, and so many bytes, but at
least two.
"""
IN_FLIGHT_FILES: Final = 2
"""The same for a folder of this machine: more threads that copy out of the page cache only stand in
each other's way.
"""
TRIES: Final = 5
"""Of one fetch that gets no answer."""
RETRY_MIN_S: Final = 0.4
RETRY_MAX_S: Final = 3.2
"""Of the back-off between them."""


class RangeLostError(Exception):
    """Bytes [start, end) of the segment are not in the newest snapshot."""

    def __init__(self, start: int, end: int, why: str) -> None:
        super().__init__(why)
        self.start = start
        self.end = end
        self.why = why


class SegmentBytes:
    """Bytes of one segment.

    `chunks` are what is known of where they lie; the catalog is asked for more when it is needed.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        runtime: Runtime,
        segment: SourceSegment,
        chunks: Sequence[SourceChunk],
        options: SourceOptions,
        held: Mapping[ChunkRecord, bytes] = MappingProxyType({}),
    ) -> None:
        """`held` are chunks that were fetched already, whole and checked; those of others may be
        among them.
        """
        self._storage = storage
        self._segment = segment
        self._options = options
        self._runtime = runtime
        self._held = held
        self._chunks = list(chunks)
        self._sizes = {chunk.object_name: size for chunk, size, _ in chunks}
        self._newest: tuple[SourceSegment, SegmentChunks | None] | None = None
        self._reader: BlockReader | None = None

    async def close(self) -> None:
        """Release the thread. Every iterator must be closed; the storage stays open."""
        if self._reader is not None:
            await self._reader.close()

    async def pieces(
        self, start: int, end: int, run_bytes: int | None = None
    ) -> AsyncGenerator[Buffer]:
        """The bytes [start, end) in order, in pieces of at most RUN_BYTES.

        Close it if it is not taken to its end.

        `run_bytes` bounds what one fetch takes, where that should be less than the storage likes
        best. Raises RangeLostError, MissingObjectError, DataCorruptionError,
        StorageUnavailableError.
        """
        position = start
        if run_bytes is None:
            run_bytes = max(RUN_BYTES, self._storage.get_bytes_best)
        if self._held:
            for chunk, _, _ in self._chunks:
                data = self._held.get(chunk)
                if position >= end or data is None or chunk.start_offset > position:
                    break
                if chunk.end_offset > position:
                    view = memoryview(data)[
                        position - chunk.start_offset : end - chunk.start_offset
                    ]
                    position += len(view)
                    yield view
        while position < end:
            if self._known_end(position) <= position:
                await self._ask(position, end)
            known = min(end, self._known_end(position))
            try:
                async with aclosing(self._fetched(position, known, run_bytes)) as fetched:
                    async for payload in fetched:
                        assert payload.offset == position, (payload.offset, position)
                        view = memoryview(payload.data)
                        for place in range(0, len(view), RUN_BYTES):
                            piece = view[place : place + RUN_BYTES]
                            position += len(piece)
                            yield piece
            except ObjectNotFoundError as error:
                await self._find_again(position, end, error)

    async def read(self, start: int, end: int) -> bytes:
        """The bytes [start, end), in one piece. Raises what `pieces` raises."""
        async with aclosing(self.pieces(start, end)) as pieces:
            return b"".join([piece async for piece in pieces])

    def _size_of(self, object_name: str) -> int | None:
        return self._sizes.get(object_name)

    def _known_end(self, position: int) -> int:
        """Up to where it is known, without a gap, where the bytes from `position` on lie."""
        for chunk, _, _ in self._chunks:
            if chunk.start_offset <= position < chunk.end_offset:
                position = chunk.end_offset
        return position

    async def _fetched(
        self, start: int, end: int, run_bytes: int
    ) -> AsyncGenerator[StretchPayload]:
        runs = plan_fetches(self._chunks, start, end, run_bytes)
        running: deque[asyncio.Task[list[StretchPayload]]] = deque()
        in_flight = min(IN_FLIGHT, max(2, IN_FLIGHT_BYTES // run_bytes))
        if self._storage.url.startswith("file://"):
            in_flight = IN_FLIGHT_FILES
        try:
            for run in runs:
                running.append(asyncio.create_task(self._fetch(run)))
                if len(running) == in_flight:
                    for payload in await running.popleft():
                        yield payload
            while running:
                for payload in await running.popleft():
                    yield payload
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _fetch(self, run: BlockRun) -> list[StretchPayload]:
        if self._reader is None:
            container_id = self._segment.container_id
            self._reader = BlockReader(
                self._storage, container_id, self._runtime, object_size=self._size_of
            )
        return await fetch_run(self._reader, run, self._runtime.random)

    async def _find_again(self, position: int, end: int, error: ObjectNotFoundError) -> None:
        """After an object was not there: take the newest snapshot's word for where the bytes
        lie.
        """
        held = next(chunk for chunk, _, _ in self._chunks if chunk.object_name == error.name)
        lost_from = max(position, held.start_offset)
        if self._newest is None:
            await self._ask(position, end, from_newest=True)
            return
        # The newest was asked after its names were known: it is worth asking again only if it is
        # another one now.
        before = self._chunks
        await self._ask(position, end, from_newest=True)
        if self._chunks == before or any(
            chunk.object_name == error.name for chunk, _, _ in self._chunks
        ):
            raise MissingObjectError(self._segment.name, lost_from, error.name) from error

    async def _ask(self, position: int, end: int, *, from_newest: bool = False) -> None:
        """Learn from the newest snapshot where the bytes from `position` on lie."""
        if self._newest is None or from_newest:
            self._newest = await self._resolve(position, end)
        segment, chunks = self._newest
        if segment.start_offset > position:
            lost_to = min(segment.start_offset, end)
            raise RangeLostError(
                position, lost_to, f"the segment is truncated up to {segment.start_offset}"
            )
        if segment.storage_length < end or chunks is None:
            raise SourceCatalogError(
                f"the newest catalog of container {segment.container_id} has segment "
                f"{segment.name!r} up to offset"
                f" {segment.storage_length}, and {end} was there: an older catalog has "
                "taken a newer one's place"
            )
        self._chunks = list(chunks.between(position, end))
        self._sizes.update({chunk.object_name: size for chunk, size, _ in self._chunks})

    async def _resolve(self, position: int, end: int) -> tuple[SourceSegment, SegmentChunks | None]:
        snapshots = await load_snapshots(self._storage, self._options)
        manifest = snapshots.get(self._segment.container_id)
        if manifest is None:
            raise SourceCatalogError(
                f"the catalog of container {self._segment.container_id} is not there any more"
            )
        segment = await find_segment(self._storage, manifest, self._segment.segment_id)
        if segment is None:
            raise RangeLostError(position, end, "the segment was deleted, or merged into another")
        chunks = await load_chunks(self._storage, manifest, (segment.segment_id,))
        return segment, chunks.get(segment.segment_id)


async def fetch_run(reader: BlockReader, run: BlockRun, random: Random) -> list[StretchPayload]:
    """The bytes of a run. A store that does not answer is asked TRIES times. Raises what
    `BlockReader.read_run` raises.
    """
    backoff = Backoff(random, min_s=RETRY_MIN_S, max_s=RETRY_MAX_S)
    for attempt in range(TRIES):
        try:
            return await reader.read_run(run)
        except StorageRefusedError:
            raise
        except StorageUnavailableError:
            if attempt == TRIES - 1:
                raise
        await asyncio.sleep(backoff.next_s())
    raise AssertionError("the last try returns or raises")


def plan_fetches(
    chunks: Sequence[SourceChunk], start: int, end: int, run_bytes: int
) -> Iterator[BlockRun]:
    """Fetches of at most `run_bytes` that cover [start, end), in order.

    The chunks cover it, in order. Pure.
    """
    whole: list[SourceChunk] = []
    for each in chunks:
        chunk = each.chunk
        if chunk.end_offset <= start or chunk.start_offset >= end:
            continue
        follows = whole and (
            whole[-1].chunk.object_name == chunk.object_name
            and whole[-1].chunk.block_offset <= chunk.block_offset
        )
        if whole and not follows:
            yield from _runs(whole, run_bytes)
            whole = []
        if chunk.start_offset >= start and chunk.end_offset <= end and chunk.length < run_bytes:
            whole.append(each)
            continue
        if whole:
            yield from _runs(whole, run_bytes)
            whole = []
        position = max(start, chunk.start_offset)
        while position < min(end, chunk.end_offset):
            # Cut at multiples from the chunk's beginning, where extents begin.
            border = position + run_bytes - (position - chunk.start_offset) % run_bytes
            after = min(border, end, chunk.end_offset)
            yield BlockRun(
                chunk.object_name, 0, 0, (ChunkStretch(chunk, position, after - position),)
            )
            position = after
    if whole:
        yield from _runs(whole, run_bytes)


def _runs(whole: Sequence[SourceChunk], run_bytes: int) -> list[BlockRun]:
    return plan_runs(
        whole[0].chunk.object_name,
        whole[0].object_size,
        [chunk for chunk, _, _ in whole],
        run_bytes=run_bytes,
    )
