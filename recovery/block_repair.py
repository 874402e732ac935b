"""Blocks in Tier 2 that fail their checks, written anew from the history of the log.

Theory of operation. Objects are never changed, and a name is never used twice. So a repair is what
a compaction is: the bytes go into a new object, and the owner of the store is asked to refer to it
instead (`tier2.mailbox`). It compares the proposal with its own metadata and the object's headers,
and logs what it takes; what is damaged becomes garbage by the ordinary way. Rules of this file:

- nothing is written before `write`: `search` says what it would do;
- a chunk is repaired whole or not at all;
- what was written is read back and checked before it is proposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from recovery.archived_history import ArchivedHistory
from recovery.history_search import HistorySearch
from recovery.restore_report import Gap
from recovery.tier2_scan import retried
from recovery.wanted_bytes import FoundBytes, WantedBytes
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from tier2.block_reader import BlockReader
from tier2.block_walk import BlockWalk
from tier2.mailbox.messages import Replacement, ReplaceProposal
from tier2.object_builder import ObjectBuilder
from tier2.object_names import object_name
from tier2.object_storage import ObjectNotFoundError, ObjectStorage
from tier2.unique_ids import new_tagged_id, store_tag

OBJECT_BYTES: Final = 32 * 1024 * 1024
"""Of chunks that are written into one object, and held in memory meanwhile."""


class DamagedChunk(NamedTuple):
    """A chunk that fails its checks, or is in an object that does."""

    segment_id: int
    segment: str
    chunk: ChunkRecord
    reason: str


class Repairable(NamedTuple):
    """What a search came to."""

    chunks: list[DamagedChunk]
    """All their bytes are in the history."""
    lacking: list[tuple[DamagedChunk, list[Gap]]]
    """And what of them is not."""
    damage: list[str]
    """Of the history, met in the search."""


class BlockRepair:
    """Of one container."""

    def __init__(
        self,
        history: ArchivedHistory,
        metadata: ContainerMetadata,
        storage: ObjectStorage,
        runtime: Runtime,
    ) -> None:
        """`metadata` are those of now, all in memory, and `history` ends with them or later."""
        self._history = history
        self._metadata = metadata
        self._storage = storage
        self._runtime = runtime

    async def find(self, names: Iterable[str]) -> list[DamagedChunk]:
        """The damaged chunks in these objects. Reads them whole. Raises TierUnavailableError."""
        wanted = set(names)
        found: list[DamagedChunk] = []
        by_object: dict[str, list[tuple[int, ChunkRecord]]] = {}
        for segment in self._metadata.segments.values():
            for chunk in segment.chunks:
                if chunk.object_name in wanted:
                    by_object.setdefault(chunk.object_name, []).append((segment.segment_id, chunk))
        for name, chunks in sorted(by_object.items()):
            faults = await retried(partial(self._faults, name, [chunk for _, chunk in chunks]))
            for segment_id, chunk in chunks:
                if chunk in faults:
                    called = self._metadata.segments[segment_id].name
                    found.append(DamagedChunk(segment_id, called, chunk, faults[chunk]))
        return found

    async def _faults(self, name: str, chunks: Sequence[ChunkRecord]) -> dict[ChunkRecord, str]:
        stored = await self._storage.head(name)
        if stored is None:
            return dict.fromkeys(chunks, "the object is missing")
        record = self._metadata.objects[name].record
        walk = BlockWalk(self._storage, self._metadata.container_id, record, chunks)
        try:
            faults = await walk.run()
        except ObjectNotFoundError:
            return dict.fromkeys(chunks, "the object is missing")
        found: dict[ChunkRecord, str] = {}
        if stored.size != record.size:
            # Chunks that can be read, too: for as long as one of them is in it the object stays.
            detail = f"the object has {stored.size} bytes where {record.size} are recorded"
            found = dict.fromkeys(chunks, detail)
        return found | {chunk: str(fault.error) for fault in faults for chunk in fault.chunks}

    async def search(self, damaged: Sequence[DamagedChunk]) -> Repairable:
        """Which of them the history has whole. Raises TierUnavailableError."""
        wanted = _wanted(damaged)
        search = HistorySearch(self._history, wanted, _pass_over)
        await search.run(self._metadata.sequence_number)
        left = wanted.left()
        whole: list[DamagedChunk] = []
        lacking: list[tuple[DamagedChunk, list[Gap]]] = []
        for each in damaged:
            gaps = [
                Gap(max(gap.start_offset, each.chunk.start_offset), end)
                for gap in left.get(each.segment_id, ())
                if (end := min(gap.end_offset, each.chunk.end_offset))
                > max(gap.start_offset, each.chunk.start_offset)
            ]
            if gaps:
                lacking.append((each, gaps))
            else:
                whole.append(each)
        return Repairable(whole, lacking, search.damage)

    async def write(
        self, repairable: Sequence[DamagedChunk], store_id: str, epoch: int, job_id: str
    ) -> list[ReplaceProposal]:
        """Write the chunks into new objects; what is to be proposed to the owner.

        `epoch` is at most the owner's. Raises TierUnavailableError, DataCorruptionError.
        """
        proposals = []
        for number, some in enumerate(_batches(repairable)):
            proposals.append(await self._write(some, store_id, epoch, job_id, number))
        return proposals

    async def _write(
        self, chunks: Sequence[DamagedChunk], store_id: str, epoch: int, job_id: str, number: int
    ) -> ReplaceProposal:
        container_id = self._metadata.container_id
        contents = await self._contents(chunks)
        builder = ObjectBuilder(container_id, epoch)
        for each, content in zip(chunks, contents, strict=True):
            builder.add(
                each.segment_id, each.chunk.start_offset, [content], segment_name=each.segment
            )
        unique_id = new_tagged_id(store_tag(store_id), self._runtime.random)
        name = object_name(container_id, epoch, "compaction", unique_id, job_id=job_id)
        await retried(lambda: self._storage.put(name, builder.parts, unique_id))
        now_ms = self._runtime.clock.time_ms()
        record, placed = builder.finish(name, now_ms)
        await self._read_back([chunk for _, chunk in placed], contents)
        return ReplaceProposal(
            container_id=container_id,
            job_id=job_id,
            message_id=f"repair-{number}",
            object=record,
            replacements=tuple(
                Replacement(each.segment_id, (each.chunk,), (chunk,))
                for each, (_, chunk) in zip(chunks, placed, strict=True)
            ),
            created_ms=now_ms,
            store_id=store_id,
        )

    async def _contents(self, chunks: Sequence[DamagedChunk]) -> list[bytearray]:
        contents = {
            (each.segment_id, each.chunk.start_offset): bytearray(each.chunk.length)
            for each in chunks
        }
        starts: dict[int, list[DamagedChunk]] = {}
        for each in chunks:
            starts.setdefault(each.segment_id, []).append(each)

        async def take(found: FoundBytes) -> None:
            # Each piece that is met is of one chunk.
            for each in starts[found.segment_id]:
                begin = found.offset - each.chunk.start_offset
                if 0 <= begin < each.chunk.length:
                    content = contents[each.segment_id, each.chunk.start_offset]
                    content[begin : begin + len(found.data)] = found.data

        wanted = _wanted(chunks)
        await HistorySearch(self._history, wanted, take).run(self._metadata.sequence_number)
        if wanted:
            raise DataCorruptionError(
                f"container {self._metadata.container_id}", "the history has changed meanwhile"
            )
        return list(contents.values())

    async def _read_back(
        self, chunks: Sequence[ChunkRecord], contents: Sequence[bytearray]
    ) -> None:
        reader = BlockReader(self._storage, self._metadata.container_id, self._runtime)
        try:
            for chunk, content in zip(chunks, contents, strict=True):
                read = partial(reader.read, chunk, chunk.start_offset, chunk.length)
                if await retried(read) != content:
                    raise DataCorruptionError(
                        f"object {chunk.object_name}", "it does not give what was put"
                    )
        finally:
            await reader.close()


def _wanted(chunks: Iterable[DamagedChunk]) -> WantedBytes:
    wanted = WantedBytes()
    for each in chunks:
        wanted.add(each.segment_id, each.chunk.start_offset, each.chunk.end_offset)
    return wanted


async def _pass_over(found: FoundBytes) -> None:
    """That it is there suffices."""
    del found


def _batches(chunks: Iterable[DamagedChunk]) -> Iterator[list[DamagedChunk]]:
    batch: list[DamagedChunk] = []
    size = 0
    for each in chunks:
        if batch and size + each.chunk.length > OBJECT_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.chunk.length
    if batch:
        yield batch
