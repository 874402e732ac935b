"""WriterSource: the container, as its storage writer and its metadata backup see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from durablelog.durable_data_log import DurableDataLog
from durablelog.metadata_needs import ChunkNeed, chunks_needed
from durablelog.operation_processor import OperationProcessor
from durablelog.operations import OwnersOperation, segments_of
from readindex.read_index import ReadIndex
from readindex.unflushed_reads import RemovedError
from segmentstore.container.active_segments import ActiveSegments
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import NotPrimaryError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.waiting import note_end


class WriterSource:
    """A WriterDataSource. `processor()` gives the running one, or raises why there is none;
    `in_use(name)` is of objects; `on_fenced(error)` is called when another owner was met.
    """

    def __init__(
        self,
        store_id: str,
        metadata: ContainerMetadata,
        log: DurableDataLog,
        read_index: ReadIndex,
        active: ActiveSegments,
        processor: Callable[[], OperationProcessor],
        in_use: Callable[[str], bool],
        on_fenced: Callable[[BaseException], None],
    ) -> None:
        self.store_id = store_id
        self.metadata = metadata
        self._log = log
        self._index = read_index
        self._active = active
        self._processor = processor
        self._in_use = in_use
        self._on_fenced = on_fenced

    @property
    def epoch(self) -> int:
        """Of the log as opened by this container."""
        return self._log.epoch

    async def read_unflushed(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> Sequence[Sequence[bytes] | RemovedError]:
        """Committed bytes for an upload, from wherever they lie."""
        return await self._index.read_unflushed(ranges)

    async def commit(self, operation: OwnersOperation) -> None:
        """An operation of the storage writer, through the log, past the throttle."""
        pinned = await self._active.hold(segments_of(operation), patient=False)
        try:
            await self._active.partial.learn(chunks_needed(operation))
            future = self._processor().submit(operation, own=True)
        except BaseException:
            self._active.release(pinned)
            raise
        # They stay in memory until it is committed, though its caller may have been cancelled.
        future.add_done_callback(lambda _: self._active.release(pinned))
        future.add_done_callback(note_end)
        await asyncio.shield(future)

    def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AbstractAsyncContextManager[None]:
        """Those of the segments that there are, in memory meanwhile, and these chunks of them."""
        return self._active.held(ids, chunks)

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        """The chunks in the objects, by segment."""
        return await self._active.chunks_in(names)

    async def names_of(self, ids: Collection[int]) -> dict[int, str]:
        """The names of the segments that there are."""
        return await self._active.names_of(ids)

    async def check_primary(self) -> None:
        """Raise NotPrimaryError, and stop the container, if another owner has opened the log;
        TierUnavailableError if that is unknown.
        """
        try:
            await self._log.check_primary()
        except NotPrimaryError as error:
            self._on_fenced(error)
            raise

    def object_in_use(self, name: str) -> bool:
        """True while a read, or a consolidation, has the object open, or an upload of it is not all
        committed.
        """
        return self._in_use(name)
