"""What tests of the mailbox share: a job that makes objects and proposes them, and an owner without
a task of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from durablelog.operations import DeletionClockOperation, OwnersOperation
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig
from storagewriter.request_processor import RequestProcessor
from tests.storagewriter.fake_container import TAG, FakeContainer, make_config
from tests.tier2.flipping_storage import FlippingStorage
from tier2.block_object import parse_block_header
from tier2.mailbox.mailbox import put_message, read_answer
from tier2.mailbox.messages import Answer, OrphanDeletionRequest, Replacement, ReplaceProposal
from tier2.memory_object_storage import MemoryBucket, MemoryObject, Method
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name
from tier2.unique_ids import new_tagged_id

JOB = "00000000feedbeef"
OTHER_JOB = "00000000deadbeef"
RNG = random.Random(7)
DAY_MS = 24 * 3600 * 1000

Mailed = ReplaceProposal | OrphanDeletionRequest


class HookedStorage(FlippingStorage):
    """Says before each call what it is about to do."""

    def __init__(self, runtime: Runtime, bucket: MemoryBucket | None = None) -> None:
        super().__init__(runtime, bucket)
        self.before: Callable[[Method, str], Awaitable[None]] | None = None

    async def _enter(self, method: Method, name: str) -> Exception | None:
        if self.before is not None:
            await self.before(method, name)
        return await super()._enter(method, name)


class Owner(FakeContainer):
    """A container whose commits can be watched, and whose mailbox is checked when a test says
    so.
    """

    def __init__(
        self,
        config: StorageWriterConfig,
        before: FakeContainer | None = None,
        *,
        evicting: bool | None = None,
    ) -> None:
        super().__init__(config, before, storage_type=HookedStorage, evicting=evicting)
        self.config = config
        self.collections: list[asyncio.Future[int]] = []
        """Of garbage, which a test began."""
        self.on_commit: Callable[[bool], None] | None = None
        """Called before (False) and after (True) an operation of the writer is committed."""

    @property
    def hooks(self) -> HookedStorage:
        assert isinstance(self.storage, HookedStorage)
        return self.storage

    @property
    def keeper(self) -> RequestProcessor:
        return self.writer.mailbox

    async def commit(self, operation: OwnersOperation) -> None:
        # Readings of the deletion clock come when they come: no test is about one.
        on_commit = None if isinstance(operation, DeletionClockOperation) else self.on_commit
        if on_commit is not None:
            on_commit(False)
        await super().commit(operation)
        if on_commit is not None:
            on_commit(True)

    def next_owner(self) -> Owner:
        """A new owner of the same log and the same Tier 2; not started."""
        after = Owner(self.config, self)
        after.put(*self.log)
        return after

    # --- a job ------------------------------------------------------------------------------------

    def plant(self, name: str, data: bytes = b"x", age_ms: int = 0) -> str:
        modified_ms = self.runtime.clock.time_ms() - age_ms
        self.storage.bucket.objects[name] = MemoryObject(data, bytes(16), modified_ms)
        return name

    def compaction_name(
        self, job_id: str = JOB, *, epoch: int | None = None, container_id: int = 7
    ) -> str:
        unique_id = new_tagged_id(TAG, RNG)
        return object_name(
            container_id, epoch or self.epoch, "compaction", unique_id, job_id=job_id
        )

    def compact(
        self, *segment_ids: int, message_id: str = "group-1", job_id: str = JOB
    ) -> ReplaceProposal:
        """Rewrite all chunks of these segments into one new object; what is to be proposed for
        it.
        """
        builder = ObjectBuilder(7, self.epoch, extent_bytes=16)
        name = self.compaction_name(job_id)
        replacements: list[Replacement] = []
        for segment_id in segment_ids:
            old = tuple(self.segment(segment_id).chunks)
            place = builder.size
            builder.add(segment_id, old[0].start_offset, [self._bytes_of(old)])
            new = (
                old[0]._replace(length=old[-1].end_offset - old[0].start_offset, object_name=name),
            )
            new = (
                new[0]._replace(
                    block_offset=place,
                    block_segment_id=segment_id,
                    block_start_offset=old[0].start_offset,
                ),
            )
            replacements.append(Replacement(segment_id, old, new))
        return self._proposal(name, b"".join(builder.parts), replacements, message_id, job_id)

    def copy(
        self, *segment_ids: int, message_id: str = "group-1", job_id: str = JOB
    ) -> ReplaceProposal:
        """Copy the blocks of all chunks of these segments, as they are, into one new object."""
        name = self.compaction_name(job_id)
        data = bytearray()
        replacements: list[Replacement] = []
        for segment_id in segment_ids:
            old, new = tuple(self.segment(segment_id).chunks), []
            for chunk in old:
                source = self.storage.bucket.objects[chunk.object_name].data[chunk.block_offset :]
                new.append(chunk._replace(object_name=name, block_offset=len(data)))
                data += source[: parse_block_header(source).block_length]
            replacements.append(Replacement(segment_id, old, tuple(new)))
        return self._proposal(name, bytes(data), replacements, message_id, job_id)

    def _proposal(
        self,
        name: str,
        data: bytes,
        replacements: Sequence[Replacement],
        message_id: str,
        job_id: str,
    ) -> ReplaceProposal:
        now_ms = self.runtime.clock.time_ms()
        self.plant(name, data)
        record = ObjectRecord(name, len(data), now_ms)
        return ReplaceProposal(7, job_id, message_id, record, tuple(replacements), now_ms)

    def _bytes_of(self, chunks: Sequence[ChunkRecord]) -> bytes:
        """The payload of neighbours, as Tier 2 has it."""
        found = bytearray()
        for chunk in chunks:
            source = self.storage.bucket.objects[chunk.object_name].data[chunk.block_offset :]
            header = parse_block_header(source)
            payload = source[header.block_length - header.payload_length : header.block_length]
            first = chunk.block_start_offset - header.start_offset
            found += payload[first : first + chunk.length]
        return bytes(found)

    async def ask(self, message: Mailed) -> Answer | None:
        """Put a message, have the owner check once, and read the answer."""
        assert await put_message(self.storage, self.runtime, message)
        await self.keeper.check_now()
        return await self.answer(message)

    async def answer(self, message: Mailed) -> Answer | None:
        return await read_answer(self.storage, *message.key)

    async def write(self, segment_id: int, count: int = 3, length: int = 100) -> None:
        """So many flushed objects of the segment's."""
        for _ in range(count):
            self.append(segment_id, length)
            await self.writer.flush(segment_id)

    async def written(self, name: str = "a", count: int = 3) -> int:
        """A segment of so many flushed objects."""
        segment_id = self.create(name)
        await self.write(segment_id, count)
        return segment_id


async def not_alone() -> str | None:
    return "another store has objects here"


def owned(
    body: Callable[[Owner], Coroutine[Any, Any, None]],
    *,
    evicting: bool | None = None,
    **changes: Any,
) -> None:
    """Run a test against a started owner without a consolidation or a check of its own; check what
    must always hold.
    """

    async def main() -> None:
        owner = Owner(
            make_config(**({"consolidation": False, "mailbox_poll_interval_s": 0.0} | changes)),
            evicting=evicting,
        )
        owner.writer.start()
        await body(owner)
        owner.check_stored()
        await owner.writer.stop()
        assert not owner.failures, owner.failures

    run_virtual(main())
