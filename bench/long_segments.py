"""What a segment of very many chunks, or of very many writers, costs: in the catalog, and in part
in memory.

The chunks of the first are committed as the storage writer commits them, all in one object which is
not there. What is measured is the metadata part of a read: no byte is read. The second gets its
attributes through the store. Then the store is opened again, in a fresh process. At the end the
first is merged into another one, until all its chunks are linked.
Floor: one look-up of a random key of the same table in the catalog, without anything of the engine.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import segmentstore
from bench import child
from bench.child import Measured
from bench.engine import open_store
from bench.loads import percentile
from bench.metadata_checkpoints import Blocks
from bench.process import resident_bytes
from bench.report import CaseResult, Row, Samples
from bench.workspace import subfolder

if TYPE_CHECKING:
    from durablelog.catalog.key_store import KeyStore
    from segmentstore.container import SegmentContainer

QUESTION = "a segment of very many chunks, and one of very many writers"
CHUNKS = 100_000
ATTRIBUTES = 100_000
CHUNKS_LARGE = 1_000_000
ATTRIBUTES_LARGE = 500_000
"""`SEGMENTSTORE_BENCH_LARGE=1` adds these: they take some four minutes."""
LOOKUPS = 2_000
SEGMENT = "bench/long"
_TARGET = "bench/target"
_CHUNK_BYTES = 16
_PAGE_MS_MAX = 1
_TURN_MS_MAX = 20
_ATTRIBUTE_MS_MAX = 2
_CHUNKS_OF_AN_OPERATION = 5_000
_ATTRIBUTES_OF_AN_OPERATION = 1_000
_SETTINGS: Final = {
    "containers": 1,
    "active_metadata_bytes_max": 1 << 20,
    "flush_bytes": 1 << 30,
    "flush_age_s": 1e6,
    "object_bytes": 1 << 30,
    "upload_bytes_max": 1 << 30,
    "consolidation": False,
}


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About half a minute quick, with 30,000 of each."""
    sizes = [(30_000, 30_000) if quick else (CHUNKS, ATTRIBUTES)]
    if os.environ.get("SEGMENTSTORE_BENCH_LARGE"):
        sizes.append((CHUNKS_LARGE, ATTRIBUTES_LARGE))
    rows: list[Row] = []
    for chunks, attributes in sizes:
        for kind, count in (("chunks", chunks), ("attributes", attributes)):
            with subfolder(directory, f"{kind}-{count}") as folder:
                rows += _rows_of(kind, count, folder)
                if kind == "chunks":
                    rows += _rows_of_merge(count, folder)
    return CaseResult(case="long_segments", question=QUESTION, rows=rows)


def _rows_of(kind: str, count: int, folder: Path) -> list[Row]:
    def call(function: str) -> Measured:
        return child.call(__name__, function, {"directory": str(folder), "count": count})

    call(f"make_{kind}")
    found = call(f"find_{kind}")
    most = _PAGE_MS_MAX if kind == "chunks" else _ATTRIBUTE_MS_MAX
    name = f"{count:,} {kind}"
    p99 = found["p99_ms"]
    return [
        Row(
            name=f"{name}: look-up, p99",
            unit="ms",
            floor=Samples((found["floor_ms"],)),
            engine=Samples((p99,)),
            ratio=p99 / most,
            bar=f"≤ {most} ms",
            met=p99 <= most,
            extra={key: found[key] for key in ("p50_ms", "open_s", "block_ms")},
        ),
        Row(
            name=f"{name}: resident, by the look-ups",
            unit="MiB",
            engine=Samples((found["grown_mib"],)),
            extra={"resident_mib": found["resident_mib"]},
        ),
    ]


def _rows_of_merge(count: int, folder: Path) -> list[Row]:
    found = child.call(__name__, "merge_chunks", {"directory": str(folder), "count": count})
    turn = found["block_ms"]
    return [
        Row(
            name=f"{count:,} chunks: merged, longest turn",
            unit="ms",
            engine=Samples((turn,)),
            ratio=turn / _TURN_MS_MAX,
            bar=f"≤ {_TURN_MS_MAX} ms",
            met=turn <= _TURN_MS_MAX,
            extra={key: found[key] for key in ("merge_ms", "link_s", "grown_mib")},
        )
    ]


def make_chunks(directory: str, count: int) -> Measured:
    """A store with a segment of so many chunks, a multiple of 5,000."""
    # The engine is not part of what floors load.
    from durablelog.operations import StorageUpdateOperation  # noqa: PLC0415
    from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord  # noqa: PLC0415

    async def make() -> None:
        async with open_store(Path(directory) / "store", **_SETTINGS) as store:
            await store.create_segment(SEGMENT)
            data = bytes(_CHUNK_BYTES * _CHUNKS_OF_AN_OPERATION)
            container = _container(store)
            segment_id = container.segment_ids[SEGMENT]
            writer = container._writer  # noqa: SLF001 - no other task commits chunks
            record = ObjectRecord("00/00000000/0000000000000001/bench", count, 0)
            for first in range(0, count, _CHUNKS_OF_AN_OPERATION):
                offset = await store.append(SEGMENT, data)
                number = min(_CHUNKS_OF_AN_OPERATION, count - first)
                starts = range(offset, offset + number * _CHUNK_BYTES, _CHUNK_BYTES)
                chunks = [
                    (segment_id, ChunkRecord(at, _CHUNK_BYTES, record.name, at, segment_id, at))
                    for at in starts
                ]
                operation = StorageUpdateOperation(objects=(record,), chunks=chunks)
                await writer._source.commit(operation)  # noqa: SLF001
            await _written(store)

    asyncio.run(make())
    return {"value": 0.0}


def make_attributes(directory: str, count: int) -> Measured:
    """A store with a segment of so many writers."""
    from segmentstore import AttributeUpdate, UpdateType  # noqa: PLC0415

    async def make() -> None:
        async with open_store(Path(directory) / "store", **_SETTINGS) as store:
            await store.create_segment(SEGMENT)
            for first in range(0, count, _ATTRIBUTES_OF_AN_OPERATION):
                numbers = range(first, min(count, first + _ATTRIBUTES_OF_AN_OPERATION))
                updates = [
                    AttributeUpdate(_writer(number), UpdateType.REPLACE, 1) for number in numbers
                ]
                await store.update_attributes(SEGMENT, updates)  # type: ignore[attr-defined]
            await _written(store)

    asyncio.run(make())
    return {"value": 0.0}


def find_chunks(directory: str, count: int) -> Measured:
    """Times of finding the chunk of a random offset, and of one look-up of a page's key."""
    from durablelog.catalog.catalog_keys import chunk_page_range  # noqa: PLC0415
    from durablelog.metadata_needs import ChunkNeed  # noqa: PLC0415

    rng = random.Random(count)
    offsets = [rng.randrange(count * _CHUNK_BYTES) for _ in range(LOOKUPS)]

    async def engine(container: SegmentContainer, number: int) -> None:
        segment_id, offset = container.segment_ids[SEGMENT], offsets[number]
        async with container.held((segment_id,), [ChunkNeed(segment_id, offset, offset + 1)]):
            container.segments[segment_id].find_chunk(offset)

    def floor(container: SegmentContainer, number: int) -> Awaitable[object]:
        keys = chunk_page_range(container.segment_ids[SEGMENT], offsets[-number])
        return _catalog(container).find_last([keys])

    return asyncio.run(_find(directory, engine, floor))


def merge_chunks(directory: str, count: int) -> Measured:
    """Times of a merge of the segment into another one, and until it is linked."""

    async def merge() -> Measured:
        segmentstore.tune_gc()
        async with open_store(Path(directory) / "store", **_SETTINGS) as store:
            await store.create_segment(_TARGET)
            await store.append(_TARGET, b"first")
            await store.flush()
            before = resident_bytes()
            with Blocks() as blocks:
                begun = time.perf_counter()
                await store.merge(_TARGET, SEGMENT)  # type: ignore[attr-defined]
                merged = time.perf_counter()
                await store.flush(_TARGET)
                linked = time.perf_counter()
            container = _container(store)
            target = container.segments[container.segment_ids[_TARGET]]
            assert len(target.chunks) > count
            return {
                "value": blocks.longest_ms,
                "block_ms": blocks.longest_ms,
                "merge_ms": (merged - begun) * 1e3,
                "link_s": linked - merged,
                "grown_mib": (resident_bytes() - before) / (1 << 20),
            }

    return asyncio.run(merge())


def find_attributes(directory: str, count: int) -> Measured:
    """Times of entering the session of a random returning writer, and of one look-up of a key."""
    from durablelog.catalog.catalog_keys import CatalogAttributeKey  # noqa: PLC0415

    rng = random.Random(count)
    writers = [_writer(number) for number in rng.sample(range(count), LOOKUPS)]

    def engine(container: SegmentContainer, number: int) -> Awaitable[object]:
        from segmentstore.sessions import SegmentWriter  # noqa: PLC0415

        return SegmentWriter(container, SEGMENT, writers[number], 1 << 20, None).open()

    def floor(container: SegmentContainer, number: int) -> Awaitable[object]:
        key = CatalogAttributeKey(container.segment_ids[SEGMENT], writers[-number].bytes)
        return _catalog(container).get([key.encode()])

    return asyncio.run(_find(directory, engine, floor))


async def _find(
    directory: str,
    engine: Callable[[SegmentContainer, int], Awaitable[object]],
    floor: Callable[[SegmentContainer, int], Awaitable[object]],
) -> Measured:
    begun = time.perf_counter()
    async with open_store(Path(directory) / "store", **_SETTINGS) as store:
        await store.append(SEGMENT, b"first")
        open_s = time.perf_counter() - begun
        container = _container(store)
        before = resident_bytes()
        with Blocks() as blocks:
            times = await _times(lambda number: engine(container, number))
        resident = resident_bytes()
        floors = await _times(lambda number: floor(container, number))
    return {
        "value": percentile(times, 0.99) * 1e3,
        "p50_ms": percentile(times, 0.5) * 1e3,
        "p99_ms": percentile(times, 0.99) * 1e3,
        "floor_ms": percentile(floors, 0.99) * 1e3,
        "open_s": open_s,
        "block_ms": blocks.longest_ms,
        "grown_mib": (resident - before) / (1 << 20),
        "resident_mib": resident / (1 << 20),
    }


async def _times(call: Callable[[int], Awaitable[object]]) -> list[float]:
    times = []
    for number in range(LOOKUPS):
        begun = time.perf_counter()
        await call(number)
        times.append(time.perf_counter() - begun)
    return sorted(times)


async def _written(store: Any) -> None:
    """Everything is in the catalog."""
    await store.checkpoint()
    while store.stats()["containers"][0]["snapshots"]["in_progress"]:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)


def _container(store: Any) -> SegmentContainer:
    (container,) = store._containers  # noqa: SLF001 - a measurement of the inside
    result: SegmentContainer = container
    return result


def _catalog(container: SegmentContainer) -> KeyStore:
    catalog = container._catalog  # noqa: SLF001 - what the engine asks as well
    return catalog.store


def _writer(number: int) -> uuid.UUID:
    return uuid.UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835) % (1 << 128))


if __name__ == "__main__":
    from bench.suite import main

    main("long_segments")
