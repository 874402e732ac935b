"""What a task does with one group: check, copy or write anew, put the new object, propose it to the
owner.

Rules of this file:

- no byte is passed on unchecked: what is downloaded goes through BlockReader and gets checksums of
  its own again. Before the store copies a block itself, its header and extent table were read and
  checked (with `verify_copies` all of it). The headers and extent tables of new objects are read
  back and compared before they are reported;
- an object has a name of its own for each attempt; nothing is ever deleted here. What an attempt
  leaves behind that did not get to propose it, or came second, is an object without a reference:
  reconciliation finds it by its name;
- the proposal is the group's: put if absent under the group's id. A second attempt says so and is
  as well off;
- a source that is missing or corrupt fails its group, with names, and no other; so do a storage
  that stays away and an unforeseen error. Never the job.

Memory: the bytes of one group, what is fetched at a time, and, while a thread writes blocks, what a
codec makes of them.

A coroutine over ObjectStorage and Runtime; no pyspark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tier2.block_object import NAMED_HEADER_BYTES_MAX
from tier2.copy_plan import CopyPlan, blocks_to_write, plan_copy
from tier2.extent_codec import CODECS_BY_NAME
from tier2.mailbox.mailbox import put_message
from tier2.mailbox.messages import Replacement, ReplaceProposal, one_sentence
from tier2.object_builder import ObjectBuilder
from tier2.object_names import MessageKey, message_name, object_name
from tier2.object_storage import ObjectNotFoundError, ObjectStorage, ObjectStorageError
from tier2.spark.compact.group import COPY, REWRITE, Group, GroupResult
from tier2.spark.compact.options import KEEP, CompactionOptions
from tier2.spark.compact.plan import pieces_of
from tier2.spark.compact.readback import check_written
from tier2.spark.compact.sources import ChunkKey, GroupSources, chunk_key, with_retries
from tier2.unique_ids import new_tagged_id, store_tag

PIECE_BYTES_MIN: Final = 4096
"""Pieces shorter than this on average are joined before they are written."""
UNFORESEEN: Final = "unforeseen "
"""How the reason begins of what is neither the sources' fault nor the storage's; the name of the
error's class comes next.
"""


class _NewObject(NamedTuple):
    """An object that is there, and what it replaces."""

    method: str
    record: ObjectRecord
    replacements: tuple[Replacement, ...]
    copied: int


async def execute_group(
    storage: ObjectStorage,
    runtime: Runtime,
    group: Group,
    *,
    job_id: str,
    options: CompactionOptions,
    verify_copies: bool = False,
) -> GroupResult:
    """Make the group's object and propose it; a group that was proposed already is left as it is.

    `verify_copies` also reads the bodies of blocks that the store copies itself, which costs their
    download. What is wrong with an object is reported in the result, not raised; so is anything
    else but a cancellation. The requests it counts are those of `storage`: nothing else should use
    it meanwhile.
    """
    loop = asyncio.get_running_loop()
    begun, before = loop.time(), storage.statistics()
    attempt = _Attempt(storage, runtime, group, job_id, options, verify_copies=verify_copies)
    try:
        result = await _outcome(attempt)
    finally:
        await attempt.close()
    after = storage.statistics()
    return replace(
        result,
        requests=after.requests() - before.requests(),
        bytes_received=after.bytes_received - before.bytes_received,
        bytes_sent=after.bytes_sent - before.bytes_sent,
        seconds=loop.time() - begun,
    )


async def _outcome(attempt: _Attempt) -> GroupResult:
    group = attempt.group
    result = GroupResult(
        container_id=group.container_id, group_id=group.group_id, outcome="proposed", first=False
    )
    try:
        if await attempt.is_proposed():
            return result
        created = await attempt.make()
        result = replace(
            result,
            method=created.method,
            object_name=created.record.name,
            object_bytes=created.record.size,
            chunks_after=sum(len(each.new) for each in created.replacements),
            bytes_copied=created.copied,
        )
        return replace(result, first=await attempt.propose(created))
    except (DataCorruptionError, ObjectStorageError) as error:
        gone = (
            error.name
            if isinstance(error, ObjectNotFoundError) and error.name in group.objects
            else ""
        )
        return replace(result, outcome="failed", reason=str(error), missing=gone)
    except Exception as error:  # noqa: BLE001
        # Spark would try it again, then end the job for all groups.
        return replace(
            result,
            outcome="failed",
            reason=one_sentence(f"{UNFORESEEN}{type(error).__name__}: {error}"),
        )


class _Attempt:
    """One attempt at one group."""

    def __init__(
        self,
        storage: ObjectStorage,
        runtime: Runtime,
        group: Group,
        job_id: str,
        options: CompactionOptions,
        *,
        verify_copies: bool,
    ) -> None:
        self.group = group
        self._storage = storage
        self._runtime = runtime
        self._job_id = job_id
        self._key = MessageKey(group.container_id, job_id, group.group_id)
        self._options = options
        self._verify_copies = verify_copies
        self._sources = GroupSources(storage, runtime, group, options.extent_bytes)
        self._executor = runtime.executor("compaction", 1)

    async def close(self) -> None:
        """Release the threads."""
        await self._sources.close()
        self._executor.shutdown()

    async def is_proposed(self) -> bool:
        """Whether an attempt at this group got as far as its proposal."""
        name = message_name(self._key)
        return await with_retries(self._runtime, lambda: self._storage.head(name)) is not None

    async def make(self) -> _NewObject:
        """The new object, by the cheaper way that keeps the promises."""
        self._sources.check_places()
        plan = await self._copy_plan()
        return await (self._rewrite() if plan is None else self._copy(plan))

    async def propose(self, created: _NewObject) -> bool:
        """Put the group's proposal; False if another attempt's is there."""
        proposal = ReplaceProposal(
            *self._key,
            created.record,
            created.replacements,
            created.record.created_ms,
            self.group.store_id,
        )
        return await with_retries(
            self._runtime, lambda: put_message(self._storage, self._runtime, proposal)
        )

    # --- copied by the store itself ---------------------------------------------------------------

    async def _copy_plan(self) -> CopyPlan | None:
        """How the store copies the group; None if it cannot, or if what came out would be worth
        another compaction.
        """
        bytes_min, options, group = self._storage.compose_bytes_min, self._options, self.group
        if bytes_min is None or options.compression != KEEP or group.payload_bytes < bytes_min:
            return None
        chunks = [chunk for run in group.runs for chunk in run.chunks]
        if group.payload_bytes < bytes_min * len(chunks) // 2:
            # Before their headers are fetched: blocks so short are hardly ever in one range.
            return None
        if any(
            a.length + b.length <= options.join_bytes
            for run in group.runs
            for a, b in pairwise(run.chunks)
        ):
            return None
        plan = plan_copy(
            group.runs,
            group.objects,
            bytes_min,
            options.extent_bytes,
            await self._sources.block_ends(),
        )
        if plan is None:
            return None
        # Ranges that were too short went last, and blocks of which a part is dead came along whole.
        moved = [tuple(_moved(chunk, plan, "") for chunk in run.chunks) for run in group.runs]
        if any(pieces_of(run, options.join_bytes) > 1 for run in moved):
            return None
        dead = plan.size - group.payload_bytes - NAMED_HEADER_BYTES_MAX * len(chunks)
        return plan if dead < options.delete_ratio_threshold * plan.size else None

    async def _copy(self, plan: CopyPlan) -> _NewObject:
        if self._verify_copies:
            await self._sources.check()
        name = await self._put(
            lambda name, unique_id: self._storage.compose(name, plan.ranges, unique_id)
        )
        record = ObjectRecord(name, plan.size, self._runtime.clock.time_ms())
        # Chunk by chunk: one that changed meanwhile is refused alone.
        replacements = tuple(
            Replacement(run.segment_id, (chunk,), (_moved(chunk, plan, name),))
            for run in self.group.runs
            for chunk in run.chunks
        )
        return _NewObject(COPY, record, replacements, plan.size)

    # --- downloaded, checked, written anew --------------------------------------------------------

    async def _rewrite(self) -> _NewObject:
        payloads = await self._sources.download()
        builder = ObjectBuilder(
            self.group.container_id,
            self.group.epoch,
            self._options.extent_bytes,
            codec=self._codec(),
        )
        loop = asyncio.get_running_loop()
        written = await loop.run_in_executor(self._executor, self._build, builder, payloads)
        name = await self._put(
            lambda name, unique_id: self._storage.put(name, builder.parts, unique_id)
        )
        record, placed = builder.finish(name, self._runtime.clock.time_ms())
        builder.parts.clear()
        await check_written(self._storage, self._runtime, name, builder.beginnings)
        # Block by block: what changed meanwhile is refused with its block, and no other.
        replacements = tuple(
            Replacement(segment_id, old, (new,))
            for old, (segment_id, new) in zip(written, placed, strict=True)
        )
        return _NewObject(REWRITE, record, replacements, 0)

    def _build(
        self, builder: ObjectBuilder, payloads: dict[ChunkKey, list[tuple[int, Buffer]]]
    ) -> list[tuple[ChunkRecord, ...]]:
        """Write all runs, each in as few blocks as may be; the chunks that went into each block.

        In a thread.
        """
        written: list[tuple[ChunkRecord, ...]] = []
        for run in self.group.runs:
            for chunks in blocks_to_write(run, self._options.block_bytes):
                parts = [
                    data
                    for chunk in chunks
                    for _, data in sorted(payloads.pop(chunk_key(chunk)), key=_offset_of)
                ]
                length = chunks[-1].end_offset - chunks[0].start_offset
                assert sum(map(len, parts)) == length, (run.segment_id, chunks[0], length)
                if len(parts) * PIECE_BYTES_MIN > length:
                    parts = [b"".join(parts)]
                name = self.group.names[run.segment_id]
                builder.add(run.segment_id, chunks[0].start_offset, parts, segment_name=name)
                written.append(chunks)
        return written

    def _codec(self) -> int:
        """Of the new blocks."""
        if self._options.compression != KEEP:
            return CODECS_BY_NAME[self._options.compression]
        return CODECS_BY_NAME["zstd" if self._sources.hold_compressed() else "none"]

    async def _put(self, send: Callable[[str, bytes], Awaitable[None]]) -> str:
        """Have `send(name, unique_id)` make the object, under one name however often it is tried;
        return the name.
        """
        unique_id = new_tagged_id(store_tag(self.group.store_id), self._runtime.random)
        name = object_name(
            self.group.container_id, self.group.epoch, "compaction", unique_id, job_id=self._job_id
        )
        await with_retries(self._runtime, lambda: send(name, unique_id))
        return name


def _moved(chunk: ChunkRecord, plan: CopyPlan, name: str) -> ChunkRecord:
    return chunk._replace(
        object_name=name, block_offset=plan.places[chunk.object_name, chunk.block_offset]
    )


def _offset_of(payload: tuple[int, Buffer]) -> int:
    return payload[0]
