"""A container without an engine: objects with real blocks, metadata that know them, and an owner
who believes every proposal.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.operations import ChunkReplacement, ReplaceChunksOperation
from durablelog.storage_metadata import apply_replace_chunks
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.object_states import LiveObject
from segmentstore.contracts.runtime import Runtime
from tests.tier2.catalog.metadata_maker import STORE_ID
from tier2.block_object import CODEC_NONE
from tier2.block_reader import BlockReader
from tier2.catalog.catalog_tables import build_tables
from tier2.mailbox.mailbox import list_messages, read_message
from tier2.mailbox.messages import ReplaceProposal
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name, parse_object_name
from tier2.object_storage import ObjectStorage
from tier2.spark.compact.group import Group, GroupResult
from tier2.spark.compact.options import CompactionOptions
from tier2.spark.compact.plan import plan_groups
from tier2.spark.compact.task import execute_group

CONTAINER = 3
EPOCH = 7
JOB = "00000000000000ab"
NOW_MS = 2_000_000_000_000
EXTENT = 16


def options(target: int = 1000, **more: object) -> CompactionOptions:
    chosen: dict[str, object] = {
        "older_than_ms": 0,
        "extent_bytes": EXTENT,
        "block_bytes": 400,
        "min_input_files": 2,
    }
    values = chosen | more
    return CompactionOptions(target_file_size_bytes=target, **values)  # type: ignore[arg-type]


class Bed:
    """`put` writes objects, `compact` plans and works, `commit` takes up what was proposed, `check`
    reads everything back.
    """

    def __init__(
        self, storage: ObjectStorage, runtime: Runtime | None = None, seed: int = 1
    ) -> None:
        self.storage = storage
        self.runtime = runtime if runtime is not None else Runtime()
        self.random = random.Random(seed)
        self.metadata = ContainerMetadata(CONTAINER)
        self.metadata.sequence_number = 1000
        self.content: dict[int, bytearray] = {}

    def segment(self, segment_id: int) -> SegmentMetadata:
        if segment_id not in self.metadata.segments:
            self.metadata.segments[segment_id] = SegmentMetadata(segment_id, f"s/{segment_id}", 0)
            self.metadata.names[f"s/{segment_id}"] = segment_id
            self.content[segment_id] = bytearray()
        return self.metadata.segments[segment_id]

    def random_bytes(self, length: int) -> bytes:
        return self.random.randbytes(length)

    async def put(
        self,
        *blocks: tuple[int, bytes],
        codec: int = CODEC_NONE,
        dead: Sequence[bytes] = (),
        extent_bytes: int = EXTENT,
        moved_by: int = 0,
        cut: int = 0,
    ) -> str:
        """One object; blocks of segment 9 lie behind, for `dead`. Returns its name.

        With `moved_by` its blocks say another segment and offset, as after a merge; with `cut` each
        block has so many bytes before those that its chunk means.
        """
        builder = ObjectBuilder(CONTAINER, EPOCH - 1, extent_bytes, codec=codec)
        for segment_id, data in blocks:
            segment = self.segment(segment_id)
            start = segment.storage_length + moved_by
            parts = [self.random_bytes(cut), data] if cut else [data]
            builder.add(
                segment_id + (100 if moved_by else 0), start, parts, segment_name=segment.name
            )
        for data in dead:
            builder.add(9, 0, [data])
        unique_id = self.random_bytes(16)
        name = object_name(CONTAINER, EPOCH - 1, "flush", unique_id)
        await self.storage.put(name, builder.parts, unique_id)
        record, placed = builder.finish(name, NOW_MS - 10)
        live = self.metadata.objects[name] = LiveObject(record)
        for (segment_id, data), (_, chunk) in zip(blocks, placed, strict=False):
            segment = self.segment(segment_id)
            segment.own_chunks().append(
                ChunkRecord(
                    segment.storage_length,
                    len(data),
                    name,
                    chunk.block_offset,
                    chunk.block_segment_id,
                    chunk.block_start_offset + cut,
                )
            )
            segment.storage_length = segment.length = segment.storage_length + len(data)
            self.content[segment_id] += data
            live.live_chunks += 1
            live.live_bytes += len(data)
        assert_metadata_valid(self.metadata)
        return name

    def plan(self, chosen: CompactionOptions, now_ms: int = NOW_MS) -> list[Group]:
        tables = build_tables(self.metadata)
        plan = plan_groups(
            tables.segments,
            tables.chunks,
            chosen,
            container_id=CONTAINER,
            epoch=EPOCH,
            now_ms=now_ms,
            store_id=STORE_ID,
        )
        return [plan.group(planned) for planned in plan.groups]

    async def execute(self, group: Group, chosen: CompactionOptions, **more: bool) -> GroupResult:
        travelled = Group.decode(group.encode())
        return await execute_group(
            self.storage, self.runtime, travelled, job_id=JOB, options=chosen, **more
        )

    async def compact(self, chosen: CompactionOptions, **more: bool) -> list[GroupResult]:
        """One run: plan, work at everything, commit, and look whether all is as it was and nothing
        is left to do.
        """
        results = [await self.execute(group, chosen, **more) for group in self.plan(chosen)]
        await self.commit()
        await self.check()
        assert self.plan(chosen, now_ms=2 * NOW_MS) == []
        return results

    async def proposals(self) -> list[ReplaceProposal]:
        entries = await list_messages(self.storage, CONTAINER)
        messages = [await read_message(self.storage, entry.key) for entry in entries]
        return [message for message in messages if isinstance(message, ReplaceProposal)]

    async def commit(self) -> None:
        for proposal in await self.proposals():
            stored = await self.storage.head(proposal.object.name)
            assert stored is not None
            assert stored.size == proposal.object.size
            named = parse_object_name(stored.name)
            assert named is not None
            assert (named.container_id, named.epoch, named.kind, named.job_id) == (
                CONTAINER,
                EPOCH,
                "compaction",
                JOB,
            )
            replacements = [ChunkReplacement(*each) for each in proposal.replacements]
            operation = ReplaceChunksOperation((proposal.object,), replacements)
            apply_replace_chunks(self.metadata, MetadataChanges(), operation)
            assert_metadata_valid(self.metadata)

    async def check(self) -> None:
        """Every byte of every segment is what it was."""
        reader = BlockReader(self.storage, CONTAINER, self.runtime, extent_bytes=EXTENT)
        for segment_id, segment in self.metadata.segments.items():
            found = [
                await reader.read(chunk, chunk.start_offset, chunk.length)
                for chunk in segment.chunks
            ]
            assert b"".join(found) == self.content[segment_id]
        await reader.close()

    async def objects(self) -> list[str]:
        """Names of the compaction objects there are."""
        return [
            stored.name
            async for page in self.storage.list()
            for stored in page
            if (named := parse_object_name(stored.name)) is not None and named.kind == "compaction"
        ]


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(100):
        await asyncio.sleep(0)
