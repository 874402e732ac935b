"""ObjectUploader: makes one object from a plan and gets it into Tier 2, however long that takes.

Rules:
- bytes are read only when the upload begins, so waiting plans hold no memory. Then all of a plan
  are asked for at once, because bytes that only Tier 1 has cost a rescan of the log, for one block
  as for all;
- a Tier 1 that does not answer is asked again, which is no reason to end what it will serve again;
- after a lost reply the same object is put again under the same name and unique id: put-if-absent
  recognises its own, so there is one object whatever was lost;
- nothing here makes a chunk visible: that is the operation's, once it is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor

from durablelog.operations import StorageUpdateOperation
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    SegmentNotFoundError,
    SegmentTruncatedError,
    TierUnavailableError,
)
from segmentstore.contracts.health import HealthNote
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig
from storagewriter.data_source import WriterDataSource, nothing
from storagewriter.flush_plan import BlockPlan, ObjectPlan
from tier2.extent_codec import CODECS_BY_NAME
from tier2.object_builder import ObjectBuilder
from tier2.object_names import ObjectKind, object_name
from tier2.object_storage import (
    ObjectExistsError,
    ObjectStorage,
    ObjectStorageError,
    StorageUnavailableError,
)
from tier2.unique_ids import new_tagged_id, store_tag

BLOCKS_PER_TURN = 64
"""Small blocks built before the event loop gets a turn."""
INLINE_BYTES = 64 * 1024
"""Blocks up to this are built on the loop; handing over costs more than their checksums."""
INLINE_COMPRESSED_BYTES = 4096
"""The same for blocks that are compressed, which takes sixty times as long."""
OPERATION_CHUNKS = 128
"""Chunks that one operation makes visible, or replaces: bounds the turn of the loop that commits
it, and its size.
"""
PIECE_BYTES_MIN = 4096
"""Pieces shorter than this on average are joined: each costs about as much as the checksum of so
many bytes.
"""


_Read = Sequence[bytes] | SegmentNotFoundError | SegmentTruncatedError
"""What has come of one block."""


class ObjectUploader:
    """Uploads of one writer; many may run at once.

    `first` is done before an object is sent; it may raise StorageUnavailableError.
    """

    def __init__(
        self,
        source: WriterDataSource,
        storage: ObjectStorage,
        config: StorageWriterConfig,
        runtime: Runtime,
        executor: Executor,
        first: Callable[[], Awaitable[None]] = nothing,
    ) -> None:
        self._source = source
        self._tag = store_tag(source.store_id)
        self._storage = storage
        self._config = config
        self._runtime = runtime
        self._executor = executor
        self._first = first
        self.health = HealthNote(f"tier2 {storage.url}", runtime.clock)
        self.reading = HealthNote("reading back un-flushed bytes", runtime.clock)
        self.collisions = 0
        self.in_flight: dict[str, None] = {}
        """Names drawn for objects that are not committed yet: no orphans, whatever the metadata
        say.
        """

    def failing(self) -> str | None:
        """Which tier does not answer; None while all do."""
        return self.health.describe() or self.reading.describe()

    async def upload(
        self, plan: ObjectPlan, before: asyncio.Task[object] | None = None
    ) -> list[StorageUpdateOperation]:
        """Store the plan's bytes; return the operations that make them visible, none if
        none of them is wanted now. They are read at once, and sent when `before` is done.

        Several only for many segments: each changes at most OPERATION_CHUNKS of them, in one turn
        of the loop. Retries for ever while a tier does not answer. Raises what else reading the
        bytes raises.
        """
        builder = ObjectBuilder(
            self._source.metadata.container_id,
            self._source.epoch,
            self._config.extent_bytes,
            codec=CODECS_BY_NAME[self._config.compression],
        )
        read = deque(await self._read(plan))
        for number, block in enumerate(plan.blocks, start=1):
            await self._add_block(builder, block, read.popleft())
            if number % BLOCKS_PER_TURN == 0:
                await asyncio.sleep(0)
        if not builder.placements:
            return []
        if before is not None:
            # If it failed, this task is about to be cancelled.
            await asyncio.wait((before,))
            if not any(map(self._is_wanted, plan.blocks)):
                return []
        name = await self.store(
            "flush",
            lambda name, unique_id: self._storage.put(name, builder.parts, unique_id),
            self.health,
        )
        record = builder.record(name, self._runtime.clock.time_ms())
        operations = []
        for first in range(0, len(builder.placements), OPERATION_CHUNKS):
            chunks = builder.chunks(name, first, first + OPERATION_CHUNKS)
            operations.append(StorageUpdateOperation(objects=(record,), chunks=chunks))
            await asyncio.sleep(0)
        return operations

    def _is_wanted(self, block: BlockPlan) -> bool:
        """Whether a byte of it is still in its segment."""
        segment = self._source.metadata.segments.get(block.segment_id)
        return (
            segment is not None and not segment.detached and segment.start_offset < block.end_offset
        )

    def settled(self, name: str) -> None:
        """All that an upload led to is committed: what becomes of the object is up to the metadata
        alone.
        """
        self.in_flight.pop(name, None)

    async def _add_block(self, builder: ObjectBuilder, block: BlockPlan, read: _Read) -> None:
        segment = self._source.metadata.segments.get(block.segment_id)
        if isinstance(read, (SegmentNotFoundError, SegmentTruncatedError)):
            if segment is not None and segment.start_offset <= block.offset:
                # The metadata say the bytes are there: planning again would only come here again.
                raise read
            return
        length = sum(map(len, read))
        assert length == block.length, (block, length)
        name = segment.name if segment is not None else ""
        if block.length <= (
            INLINE_BYTES if self._config.compression == "none" else INLINE_COMPRESSED_BYTES
        ):
            _build(builder, block, read, name)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, _build, builder, block, read, name)

    def _new_backoff(self) -> Backoff:
        config = self._config
        return Backoff(self._runtime.random, min_s=config.retry_min_s, max_s=config.retry_max_s)

    async def _read(self, plan: ObjectPlan) -> Sequence[_Read]:
        """The bytes of its blocks, from wherever they lie."""
        backoff = self._new_backoff()
        while True:
            try:
                read = await self._source.read_unflushed(plan.blocks)
            except TierUnavailableError as error:
                self.reading.failed(error)
                # A successor truncates: what this owner has to flush is missing from the log then,
                # and no report of that would come.
                with contextlib.suppress(TierUnavailableError):
                    await self._source.check_primary()
            else:
                self.reading.succeeded()
                return read
            await asyncio.sleep(backoff.next_s())

    async def store(
        self, kind: ObjectKind, send: Callable[[str, bytes], Awaitable[None]], health: HealthNote
    ) -> str:
        """Have `send(name, unique_id)` make an object under a name of ours, until it succeeds;
        return the name.

        Until what it led to is `settled` the name is in flight. Raises what `send` raises about
        other objects, never that Tier 2 does not answer, or that a name is taken.
        """
        metadata = self._source.metadata
        backoff = self._new_backoff()
        unique_id = new_tagged_id(self._tag, self._runtime.random)
        while True:
            name = object_name(metadata.container_id, self._source.epoch, kind, unique_id)
            self.in_flight[name] = None
            try:
                await self._first()
                await send(name, unique_id)
            except StorageUnavailableError as error:
                health.failed(error)
            except ObjectExistsError:
                self.collisions += 1
                del self.in_flight[name]
                unique_id = new_tagged_id(self._tag, self._runtime.random)
            except ObjectStorageError:
                del self.in_flight[name]
                raise
            else:
                health.succeeded()
                return name
            await asyncio.sleep(backoff.next_s())


def _build(
    builder: ObjectBuilder, block: BlockPlan, parts: Sequence[bytes], segment_name: str
) -> None:
    if len(parts) * PIECE_BYTES_MIN > block.length:
        parts = (b"".join(parts),)
    builder.add(block.segment_id, block.offset, parts, segment_name=segment_name)
