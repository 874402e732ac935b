"""What the requests of a TiB cost: 1 TiB a day over 1, 100 and 10,000 segments, at the list prices
of S3 in us-east-1.

No time is measured. The real storage writer runs with its default proportions, all sizes divided by
a scale, in virtual time against a store in memory. Each call is counted as the requests that the S3
adapter makes of it at full size. What comes out is multiplied by the scale. Consolidation, garbage
collection and the search for orphans are in it; what readers ask for is not.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final

from bench.report import CaseResult, Row, Samples
from durablelog.metadata_needs import ChunkNeed
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    AppendOperation,
    CreateOperation,
    Operation,
    OwnersOperation,
)
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from storagewriter.config import StorageWriterConfig
from storagewriter.storage_writer import StorageWriter
from tier2.block_header import MAGIC
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_storage import NO_METADATA, ObjectRange

QUESTION = "requests of 1 TiB a day at default settings, in dollars"
MIB = 1 << 20
TIB = 1 << 40
DAY_S = 86_400.0
DOLLARS_MAX = 1.0
SPREAD_MAX = 1.2
SEGMENTS = (1, 100, 10_000)

MULTIPART_BYTES = 128 * MIB
"""Objects of this size and more are put in parts."""
PART_BYTES = 64 * MIB
COMPOSE_BYTES_MIN = 5 * MIB

PRICES: Final[Mapping[str, float]] = {
    "put": 0.005 / 1000,
    "copy": 0.005 / 1000,
    "post": 0.005 / 1000,
    "list": 0.005 / 1000,
    "get": 0.0004 / 1000,
    "delete": 0.0,
}
"""Dollars for a request, S3 Standard in us-east-1. HEAD is billed as GET."""


def put_requests(size: int) -> Counter[str]:
    """Requests of one put of `size` bytes: one, or begin, parts and completion."""
    if size < MULTIPART_BYTES:
        return Counter(put=1)
    return Counter(post=2, put=-(-size // PART_BYTES))


def compose_requests(ranges: int) -> Counter[str]:
    """Requests of one server-side copy of so many ranges: begin, copies and completion."""
    return Counter(post=2, copy=ranges)


def dollars(requests: Mapping[str, float]) -> float:
    """What requests cost, by kind (a key of PRICES). KeyError for another."""
    return sum(PRICES[kind] * count for kind, count in requests.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What came of one simulation, for a TiB."""

    requests: Mapping[str, float]
    objects_written: float
    consolidations: float
    copied: float
    """Bytes copied by the store itself, for each byte flushed."""
    rewritten: float
    """Bytes downloaded and uploaded again, for each byte flushed."""

    @property
    def dollars(self) -> float:
        """At the list prices."""
        return dollars(self.requests)


class CountingStorage(MemoryObjectStorage):
    """Counts each call as the requests it would be if everything were `scale` times larger."""

    def __init__(self, runtime: Runtime, scale: int) -> None:
        super().__init__(runtime, compose_bytes_min=COMPOSE_BYTES_MIN // scale)
        self.requests: Counter[str] = Counter()
        self._scale = scale

    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        # There are as many blocks as at full size, and their headers are as long.
        headers = sum(len(part) for part in parts if part[:8] == MAGIC)
        self.requests += put_requests(headers + (sum(map(len, parts)) - headers) * self._scale)
        await super().put(name, parts, unique_id, metadata)

    async def compose(self, name: str, ranges: Sequence[ObjectRange], unique_id: bytes) -> None:
        self.requests += compose_requests(len(ranges))
        await super().compose(name, ranges, unique_id)

    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        self.requests["get"] += 1
        return await super().get_range(name, offset, length)

    async def head(self, name: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self.requests["get"] += 1
        return await super().head(name)

    async def delete(self, name: str) -> None:
        self.requests["delete"] += 1
        await super().delete(name)


class SimulatedContainer:
    """What a storage writer sees of a container whose log is instant and whose bytes are all
    zero.
    """

    epoch = 1
    store_id = "00000000-0000-4000-8000-000000000000"

    def __init__(self, config: StorageWriterConfig, scale: int) -> None:
        runtime = Runtime(clock=_LoopClock(), random=random.Random(1), executor=inline_executor)
        self.storage = CountingStorage(runtime, scale)
        self.metadata = ContainerMetadata(1)
        self.writer = StorageWriter(self, self.storage, config, runtime)
        self._updater = MetadataUpdater(self.metadata)

    async def check_primary(self) -> None:
        """There is no other owner."""

    def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AbstractAsyncContextManager[None]:
        """No segment is idle."""
        del ids, chunks
        return nullcontext()

    async def names_of(self, ids: Collection[int]) -> dict[int, str]:
        """No segment is idle."""
        segments = self.metadata.segments
        return {each: segments[each].name for each in ids if each in segments}

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        """As the engine passes over active segments."""
        found: dict[int, list[ChunkRecord]] = {}
        for segment_id, segment in self.metadata.segments.items():
            chunks = [chunk for chunk in segment.chunks if chunk.object_name in names]
            if chunks:
                found[segment_id] = chunks
        return found

    async def read_unflushed(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> Sequence[Sequence[bytes]]:
        return [(bytes(length),) for _, _, length in ranges]

    async def commit(self, operation: OwnersOperation) -> None:
        await asyncio.sleep(0)
        self.put(operation)

    def object_in_use(self, name: str) -> bool:
        return self.writer.consolidator.in_use(name)

    def put(self, operation: Operation) -> None:
        """Commit an operation."""
        operation.sequence_number = self.metadata.sequence_number + 1
        operation.timestamp_ms = int(asyncio.get_running_loop().time() * 1000)
        self._updater.replay(operation)
        self.writer.add((operation,))

    def create(self, name: str) -> int:
        """A new segment's id."""
        operation = CreateOperation(name)
        self.put(operation)
        return operation.sequence_number


class _LoopClock:
    def time_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def scaled_config(scale: int) -> StorageWriterConfig:
    """The defaults, with every size divided by `scale` and times as they are, but for a deletion
    lag worth waiting for.
    """
    plain = StorageWriterConfig()
    return StorageWriterConfig(
        flush_bytes=plain.flush_bytes // scale,
        object_bytes=plain.object_bytes // scale,
        unflushed_target_bytes=plain.unflushed_target_bytes // scale,
        upload_bytes_max=plain.upload_bytes_max // scale,
        consolidation_bytes=plain.consolidation_bytes // scale,
        deletion_lag_s=5.0,
    )


def simulate(segments: int, *, scale: int, objects: int) -> Costs:
    """What a TiB costs at 1 TiB a day, from the appends of so many full objects, spread evenly.

    CPU seconds, no time.
    """

    async def main() -> Costs:
        config = scaled_config(scale)
        c = SimulatedContainer(config, scale)
        c.writer.start()
        ids = [c.create(f"scaled/segment-{number}") for number in range(segments)]
        total = objects * config.object_bytes
        # Every segment several times in an object, where it can be; in few enough appends to
        # simulate.
        append = max(1, min(config.object_bytes // 64, config.object_bytes // segments))
        rate = TIB / scale / DAY_S
        written = 0
        for segment_id in cycle(ids):
            if written >= total:
                break
            segment = c.metadata.segments[segment_id]
            c.put(AppendOperation(segment_id, segment.length, bytes(append)))
            before, written = written, written + append
            # A turn each 64th of an object: often enough that nothing comes in bursts.
            if before * 64 // config.object_bytes != written * 64 // config.object_bytes:
                await asyncio.sleep(config.object_bytes / 64 / rate)
        # Time for what is on its way and for deletion, not for the little that would fill the next
        # object.
        await asyncio.sleep(config.flush_age_s * 0.75)
        statistics = c.writer.statistics()
        await c.writer.stop()
        flushed = statistics.bytes_written
        factor = TIB / scale / flushed
        # In proportion to bytes: the pause at the end is not a part of the day.
        listings = DAY_S / config.orphan_sweep_interval_s
        return Costs(
            requests={kind: count * factor for kind, count in c.storage.requests.items()}
            | {"list": listings},
            objects_written=statistics.objects_written * factor,
            consolidations=statistics.consolidations * factor,
            copied=statistics.bytes_copied / flushed,
            rewritten=statistics.bytes_rewritten / flushed,
        )

    return run_virtual(main())


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 15 s quick, a minute else. Nothing is written to disk."""
    del directory
    objects = 32 if quick else 96
    costs = {segments: simulate(segments, scale=64, objects=objects) for segments in SEGMENTS}
    least = min(each.dollars for each in costs.values())
    rows = [
        Row(
            name=f"{segments:,} segments",
            unit="$/TiB",
            engine=Samples((each.dollars,)),
            ratio=each.dollars / least,
            bar=f"≤ ${DOLLARS_MAX:.0f}, within 20 % of each other",
            met=each.dollars <= DOLLARS_MAX and each.dollars <= SPREAD_MAX * least,
            extra={
                **each.requests,
                "objects": each.objects_written,
                "consolidations": each.consolidations,
                "copied": each.copied,
                "rewritten": each.rewritten,
            },
        )
        for segments, each in costs.items()
    ]
    return CaseResult(
        case="request_costs", question=QUESTION, rows=rows, notes=("ratio: to the cheapest",)
    )


if __name__ == "__main__":
    from bench.suite import main

    main("request_costs")
