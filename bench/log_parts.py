"""Reading the sealed parts of a log beside appends to it, and as operations.

A log in files is filled; the next opening has its files as sealed parts. Then the log alone gets
appends of 1 KiB, 500 a second by the clock, each charged from when it was due. The column "floor"
has them by themselves. The column "engine" has them beside a reader of all parts at a rate, again
and again: the archive reads a log so. The two take turns, in processes of their own. The bar is the
writer's: its slowest hundredth may take half as long again beside the reader.

The second row is what recovery does with parts that it reads as a log, without the metadata that it
updates. Entries become verified frames, frames records, records operations. The parts are in the
kernel's cache, as is what was fetched from an archive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench import child
from bench.child import Measured
from bench.floor import MIB
from bench.report import CaseResult, Row, Samples, extras_of
from bench.tail_reader import TailTimeline, append_at_rate
from bench.workspace import require_free_bytes, subfolder
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.data_frame_reader import DataFrameReader
from durablelog.file.file_log import FileLog
from durablelog.operation_codec import decode_operation, encode_operation, encoded_length
from durablelog.operations import AppendOperation
from durablelog.part_frames import PartFrames
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.paced_reading import PacedReadHandle
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Runtime

QUESTION = "sealed parts of a log: read beside appends, and as operations"
APPENDS_PER_S = 500
APPEND_BYTES = 1024
OPERATION_BYTES = 100
FRAME_BYTES = 64 * 1024
READ_BYTES_PER_S = 64 * MIB
RATIO_MAX = 1.5
OPERATIONS_PER_S = 150_000


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 30 s and 128 MiB quick, 2 min and 512 MiB else."""
    total_bytes = (128 if quick else 512) * MIB
    seconds = 3 if quick else 8
    require_free_bytes(directory, 2 * total_bytes)
    alone: list[Measured] = []
    beside: list[Measured] = []
    replayed: list[Measured] = []
    with subfolder(directory, "filled") as folder:
        arguments: dict[str, object] = {"directory": str(folder)}
        child.call(__name__, "fill", {**arguments, "total_bytes": total_bytes})
        for _ in range(2 if quick else 5):
            for rounds, rate in ((alone, 0), (beside, READ_BYTES_PER_S)):
                rounds.append(
                    child.call(
                        __name__,
                        "append_round",
                        {**arguments, "seconds": seconds, "read_bytes_per_s": rate},
                    )
                )
            replayed.append(child.call(__name__, "replay_round", arguments))
    floor, engine = Samples.of(alone, "append_p99_ms"), Samples.of(beside, "append_p99_ms")
    ratio = engine.median / floor.median
    operations = Samples.of(replayed)
    return CaseResult(
        case="log_parts",
        question=QUESTION,
        rows=[
            Row(
                name="p99 of an append",
                unit="ms",
                floor=floor,
                engine=engine,
                ratio=ratio,
                bar=f"≤ {RATIO_MAX} x alone",
                met=ratio <= RATIO_MAX,
                extra=extras_of(beside),
            ),
            Row(
                name="operations read",
                unit="1/s",
                engine=operations,
                bar=f"≥ {OPERATIONS_PER_S:,}",
                met=operations.median >= OPERATIONS_PER_S,
                extra=extras_of(replayed),
            ),
        ],
        notes=["floor: appends alone; engine: beside a reader of the sealed parts, at 64 MiB/s"],
    )


@asynccontextmanager
async def opened(directory: str) -> AsyncIterator[FileLog]:
    """The log in this folder."""
    log = FileLog(directory, 0, Runtime())
    await log.open()
    try:
        yield log
    finally:
        await log.close()


def fill(directory: str, total_bytes: int) -> Measured:
    """Frames full of small appends, as large as that in all."""

    async def main() -> Measured:
        payload = _payload(FRAME_BYTES, OPERATION_BYTES)
        async with opened(directory) as log:
            for _ in range(total_bytes // FRAME_BYTES):
                await log.append(payload)
        return {}

    return asyncio.run(main())


def _payload(frame_bytes: int, operation_bytes: int) -> list[Buffer]:
    """A frame of appends, as many as it takes."""
    operation = encode_operation(AppendOperation(1, 0, bytes(operation_bytes)))
    length = encoded_length(operation)
    builder = DataFrameBuilder(frame_bytes)
    while builder.room >= length:
        builder.add(operation, length)
    return builder.seal() or []


def append_round(directory: str, seconds: float, read_bytes_per_s: int) -> Measured:
    """Appends for some seconds, beside a reader if it has a rate."""

    async def main() -> Measured:
        async with opened(directory) as log:
            reader = asyncio.create_task(_read_again_and_again(log, read_bytes_per_s))
            timeline = TailTimeline(int(seconds * APPENDS_PER_S), APPEND_BYTES)
            data = _payload(2 * APPEND_BYTES, APPEND_BYTES)
            await append_at_rate(lambda: log.append(data), timeline, APPENDS_PER_S)
            reader.cancel()
            (read,) = await asyncio.gather(reader, return_exceptions=True)
            if isinstance(read, Exception):
                raise read
            timeline.read = timeline.acknowledged
            summary = timeline.summary()
            return {
                "append_p50_ms": summary["acknowledged_p50_ms"],
                "append_p99_ms": summary["acknowledged_p99_ms"],
            }

    return asyncio.run(main())


async def _read_again_and_again(log: FileLog, bytes_per_s: int) -> None:
    limiter = RateLimiter(bytes_per_s)
    while bytes_per_s:
        for part in log.sealed_parts():
            handle = PacedReadHandle(await log.open_part(part.number), limiter)
            async for _ in handle.read(0, handle.last_entry):
                pass
            await handle.close()


def replay_round(directory: str) -> Measured:
    """Operations per second of all sealed parts, decoded."""

    async def main() -> Measured:
        operations = 0
        frames, records = PartFrames(0), DataFrameReader()
        async with opened(directory) as log:
            begun = time.perf_counter()
            for part in log.sealed_parts():
                handle = await log.open_part(part.number)
                async for batch in frames.read(handle, part.number):
                    for frame in batch:
                        for record in records.feed(frame):
                            decode_operation(record.data, copy=False)
                            operations += 1
                await handle.close()
            seconds = time.perf_counter() - begun
        return {"value": operations / seconds, "operations": operations}

    return asyncio.run(main())


if __name__ == "__main__":
    from bench.suite import main

    main("log_parts")
