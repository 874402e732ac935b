"""Whole containers on one log: an owner that lost it says nothing to jobs, and the present one
answers; a close in the middle loses nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from readindex.cache_addresses import CacheAddresses
from readindex.memory_cache import MemoryCache
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.config import StoreConfig
from segmentstore.container import ContainerResources, ContainerState, SegmentContainer
from segmentstore.contracts.chunks import ObjectRecord
from segmentstore.contracts.errors import AppendOutcomeUnknownError, NotPrimaryError
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig
from tests.storagewriter.fake_container import STORE_ID, TAG
from tests.support.loop_clock import LoopClock
from tier2.block_reader import BlockReader
from tier2.mailbox.mailbox import put_message, read_answer
from tier2.mailbox.messages import Replacement, ReplaceProposal
from tier2.memory_object_storage import MemoryBucket, MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name
from tier2.object_storage import StorageUnavailableError
from tier2.unique_ids import new_tagged_id

JOB = "00000000feedbeef"

CONFIG = StoreConfig(
    tier1="memory",
    writer=StorageWriterConfig(
        flush_age_s=1000.0,
        consolidation=False,
        orphan_sweep_interval_s=0.0,
        mailbox_poll_interval_s=0.0,
    ),
)


class Place:
    """A log and a bucket, which outlive their owners."""

    def __init__(self) -> None:
        self.runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        self.log = MemoryLogStore()
        self.bucket = MemoryBucket()
        self.storage = MemoryObjectStorage(self.runtime, self.bucket)
        self.storage_of: list[MemoryObjectStorage] = []
        """Of each owner."""

    async def owner(self) -> SegmentContainer:
        """The next owner, which fences the one before."""
        cache = MemoryCache(1 << 20)
        await cache.open()
        self.storage_of.append(MemoryObjectStorage(self.runtime, self.bucket))
        container = SegmentContainer(
            0,
            ContainerResources(
                log=MemoryDataLog(self.log, 0),
                storage=self.storage_of[-1],
                cache=cache,
                addresses=CacheAddresses(),
                cache_bytes=1 << 20,
                config=CONFIG,
                runtime=self.runtime,
                store_id=STORE_ID,
                # Never used: its few metadata are in its checkpoints.
                catalog=MetadataCatalog(
                    "", KeyStoreIdentity(STORE_ID, 0), self.runtime, MemoryKeyStore
                ),
            ),
        )
        await container.start()
        return container

    async def compact(
        self, container: SegmentContainer, segment_id: int, message_id: str
    ) -> ReplaceProposal:
        """What a job would propose that read the catalog of this owner; it is in the mailbox."""
        old = tuple(container.segments[segment_id].chunks)
        reader = BlockReader(self.storage, 0, self.runtime)
        parts = [await reader.read(chunk, chunk.start_offset, chunk.length) for chunk in old]
        await reader.close()
        builder = ObjectBuilder(0, container.epoch)
        builder.add(segment_id, old[0].start_offset, parts)
        unique_id = new_tagged_id(TAG, self.runtime.random)
        name = object_name(0, container.epoch, "compaction", unique_id, job_id=JOB)
        await self.storage.put(name, builder.parts, unique_id)
        record, placed = builder.finish(name, self.runtime.clock.time_ms())
        replacement = Replacement(segment_id, old, tuple(chunk for _, chunk in placed))
        proposal = ReplaceProposal(
            0, JOB, message_id, ObjectRecord(*record), (replacement,), record.created_ms
        )
        assert await put_message(self.storage, self.runtime, proposal)
        return proposal

    async def verdict(self, proposal: ReplaceProposal) -> str | None:
        answer = await read_answer(self.storage, *proposal.key)
        return answer.verdict if answer is not None else None


async def _write(container: SegmentContainer, name: str, pieces: Sequence[bytes]) -> int:
    """A segment of so many flushed objects."""
    if name not in container.segment_ids:
        await container.create_segment(name, ())
    segment_id = container.segment_ids[name]
    for piece in pieces:
        await container.append(segment_id, piece)
        await container.flush(name)
    return segment_id


async def _read(container: SegmentContainer, segment_id: int) -> bytes:
    segment = container.segments[segment_id]
    found = b""
    while segment.start_offset + len(found) < segment.length:
        found += await container.read(segment_id, segment.start_offset + len(found), 1 << 20, 0.0)
    return found


def _run(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


def test_a_stale_owner_refuses_nothing_that_it_only_does_not_know() -> None:
    async def main() -> None:
        place = Place()
        stale = await place.owner()
        segment_id = await _write(stale, "a", (b"one", b"two"))
        owner = await place.owner()
        await _write(owner, "a", (b"three", b"four"))
        # Of the new owner's epoch, and of chunks the old one has never received.
        proposal = await place.compact(owner, segment_id, "group-1")
        with pytest.raises(NotPrimaryError):
            await stale._writer.mailbox.check_now()
        assert await place.verdict(proposal) is None
        await stale.stop()
        assert isinstance(stale.failure, NotPrimaryError)
        assert await owner._writer.mailbox.check_now() == 1
        assert await place.verdict(proposal) == "committed"
        assert await _read(owner, segment_id) == b"onetwothreefour"
        await owner.stop()

    _run(main())


def test_a_stale_owner_commits_nothing_though_it_seems_to_fit() -> None:
    async def main() -> None:
        place = Place()
        stale = await place.owner()
        segment_id = await _write(stale, "a", (b"one", b"two", b"three"))
        proposal = await place.compact(stale, segment_id, "group-1")
        owner = await place.owner()
        await owner.truncate("a", 4)
        # Whether the operation is in the log, only the new owner can know: it answers.
        with pytest.raises(AppendOutcomeUnknownError):
            await stale._writer.mailbox.check_now()
        assert await place.verdict(proposal) is None
        await stale.stop()
        assert stale.state is ContainerState.STOPPED
        assert await owner._writer.mailbox.check_now() == 1
        assert await place.verdict(proposal) == "refused_changed"
        assert proposal.object.name in owner.metadata.garbage
        assert await _read(owner, segment_id) == b"wothree"
        await owner.stop()

    _run(main())


def test_a_new_owner_knows_from_its_log_what_the_old_one_did_not_answer() -> None:
    async def main() -> None:
        place = Place()
        old = await place.owner()
        segment_id = await _write(old, "a", (b"one", b"two", b"three"))
        proposal = await place.compact(old, segment_id, "group-1")
        place.storage_of[0].fail("put", 1)
        with pytest.raises(StorageUnavailableError):
            await old._writer.mailbox.check_now()
        assert proposal.object.name in old.metadata.objects
        assert await place.verdict(proposal) is None
        owner = await place.owner()
        await old.stop()
        assert await owner.process_mailbox() == 1
        assert await place.verdict(proposal) == "committed"
        assert list(owner.metadata.objects) == [proposal.object.name]
        assert await _read(owner, segment_id) == b"onetwothree"
        await owner.stop()

    _run(main())


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_a_close_in_the_middle_of_a_check_loses_nothing(turns: int) -> None:
    async def main() -> None:
        place = Place()
        old = await place.owner()
        ids = [await _write(old, f"s{number}", (b"one", b"two", b"three")) for number in range(3)]
        proposals = [await place.compact(old, each, f"group-{each}") for each in ids]
        looking = asyncio.ensure_future(old.process_mailbox())
        for _ in range(turns):
            await asyncio.sleep(0)
        await old.stop()
        await asyncio.wait([looking])
        assert old.failure is None
        owner = await place.owner()
        await owner.process_mailbox()
        assert [await place.verdict(proposal) for proposal in proposals] == ["committed"] * 3
        assert [await _read(owner, each) for each in ids] == [b"onetwothree"] * 3
        assert not looking.cancelled()
        await owner.stop()

    _run(main())


def test_a_container_polls_its_mailbox_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        place = Place()
        monkeypatch.setitem(
            globals(),
            "CONFIG",
            StoreConfig(
                tier1="memory",
                writer=StorageWriterConfig(flush_age_s=1000.0, consolidation=False),
            ),
        )
        owner = await place.owner()
        segment_id = await _write(owner, "a", (b"one", b"two"))
        proposal = await place.compact(owner, segment_id, "group-1")
        await asyncio.sleep(31)
        assert await place.verdict(proposal) == "committed"
        assert owner.stats()["storage_writer"]["messages_answered"] == 1
        await owner.stop()

    _run(main())
