"""Speed of reading lines of 100 bytes by Spark's data source: identity and checksums checked, cut
into rows, as Arrow batches.

One store on a folder is filled, flushed and exported once. Floor: a bare Arrow data source that
reads the same number of bytes from plain files in units of 1 MiB and gives the same columns. It is
cut where it knows that lines end: nothing is searched, nothing checked. Both in one session, in
turns, into a sink that throws rows away.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench import child, rounds
from bench.child import Measured
from bench.engine import open_store
from bench.report import CaseResult, Row, Samples, extras_of
from bench.spark_session import drain, session
from bench.workspace import BenchError, require_free_bytes, subfolder

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

QUESTION = "batch read of lines by Spark"
MIB = 1 << 20
LINE_BYTES = 100
SEGMENTS = 8
SHARE_OF_FLOOR = 0.7
_TYPES = {
    "container": pa.int64(),
    "segment": pa.string(),
    "offset": pa.int64(),
    "length": pa.int32(),
    "payload": pa.binary(),
}
_SCHEMA = pa.schema([pa.field(name, kind) for name, kind in _TYPES.items()])


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 60 s and 64 MiB quick, 3 min and 1 GiB else; needs four times the bytes on disk."""
    lines = (64 if quick else 1024) * MIB // LINE_BYTES // SEGMENTS * SEGMENTS
    require_free_bytes(directory, 4 * lines * LINE_BYTES)
    with subfolder(directory, "spark-read") as folder:
        child.call(__name__, "fill", {"directory": str(folder), "lines": lines})
        measured = child.call(
            __name__,
            "measure",
            {"directory": str(folder), "lines": lines, "count": rounds.count_of(quick=quick)},
        )
    floor, engine = ([{"value": value} for value in measured[side]] for side in ("floor", "engine"))
    ratio = Samples.of(engine).median / max(Samples.of(floor).rounds)
    row = Row(
        name=f"{lines * LINE_BYTES / MIB:,.0f} MiB of {LINE_BYTES} B lines",
        unit="MB/s",
        floor=Samples.of(floor),
        engine=Samples.of(engine),
        ratio=ratio,
        bar="≥ 70 % of a bare Arrow data source",
        met=ratio >= SHARE_OF_FLOOR,
        extra=extras_of(engine),
    )
    return CaseResult(case="spark_read", question=QUESTION, rows=[row], notes=[])


def fill(directory: str, lines: int) -> Measured:
    """A closed store of SEGMENTS segments of lines, exported; and as many plain files of the same
    bytes.
    """
    each = lines // SEGMENTS
    for number in range(SEGMENTS):
        with Path(directory, f"plain-{number}").open("wb") as plain:
            plain.writelines(_pieces(number, each))

    async def work() -> None:
        async with open_store(Path(directory) / "store") as store:
            for number in range(SEGMENTS):
                name = f"bench/lines-{number}"
                await store.create_segment(name)
                waiting: deque[Awaitable[int]] = deque()
                for data in _pieces(number, each):
                    waiting.append(store.append(name, data))
                    if len(waiting) >= 8:
                        await waiting.popleft()
                for rest in waiting:
                    await rest
            await store.flush()
            # Of the engine, not of what all benches use.
            await store.export_catalog()  # type: ignore[attr-defined]

    asyncio.run(work())
    os.sync()
    return {}


def _pieces(segment: int, lines: int) -> Iterator[bytes]:
    """So many lines of a segment, in appends of 1 MB."""
    for first in range(0, lines, 10_000):
        yield _lines(segment, first, min(10_000, lines - first))


def _lines(segment: int, first: int, count: int) -> bytes:
    """Lines of LINE_BYTES, newline included, no two alike."""
    body = np.full((count, LINE_BYTES), ord("x"), np.uint8)
    for index, line in enumerate(range(first, first + count)):
        body[index, :24] = np.frombuffer(f"{segment:04d} {line:018d} ".encode(), np.uint8)
    body[:, -1] = ord("\n")
    return body.tobytes()


def measure(directory: str, lines: int, count: int) -> Measured:
    """Megabytes per second of both sides, round by round, each warm."""
    folder = Path(directory)
    with session(folder) as spark:
        from tier2.spark.data_source import register  # noqa: PLC0415 - loaded with the session

        register(spark)
        spark.dataSource.register(PlainSource)
        url = (folder / "store" / "tier2").absolute().as_uri()
        engine = (
            spark.read.format("segmentstore")
            .option("prefix", "bench/")
            .option("format", "lines")
            .load(url)
        )
        floor = spark.read.format("bench-plain").load(str(folder))
        for frame in (floor, engine):
            found = frame.count()
            if found != lines:
                message = f"{found:,} rows where {lines:,} are"
                raise BenchError(message)
        sides: dict[str, list[float]] = {"floor": [], "engine": []}
        for _ in range(count):
            for side, frame in (("floor", floor), ("engine", engine)):
                sides[side].append(lines * LINE_BYTES / drain(frame) / 1e6)
    return {"value": 0.0, **sides}


class PlainPartition(InputPartition):
    """One file."""


class PlainReader(DataSourceReader):
    """Reads files of lines of LINE_BYTES."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        """A file each."""
        return [PlainPartition(str(path)) for path in sorted(Path(self._folder).glob("plain-*"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A batch for every MiB."""
        name = Path(partition.value).name
        offset = 0
        piece = MIB // LINE_BYTES * LINE_BYTES
        with Path(partition.value).open("rb", buffering=0) as file:
            while data := file.read(piece):
                rows = len(data) // LINE_BYTES
                place = np.arange(rows + 1, dtype=np.int32) * LINE_BYTES
                # Without its newline, as the engine gives a line: the offsets cannot leave bytes
                # out, so the last one stays.
                payload = pa.BinaryArray.from_buffers(
                    pa.binary(), rows, [None, pa.py_buffer(place.data), pa.py_buffer(data)]
                )
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(np.zeros(rows, np.int64)),
                        pa.repeat(name, rows),
                        pa.array(offset + place[:-1].astype(np.int64)),
                        pa.array(np.full(rows, LINE_BYTES, np.int32)),
                        payload,
                    ],
                    schema=_SCHEMA,
                )
                offset += len(data)


class PlainSource(DataSource):
    """The floor: Arrow from files, and nothing else."""

    @classmethod
    def name(cls) -> str:
        """What it is registered as."""
        return "bench-plain"

    def schema(self) -> str:
        """The columns of the engine's."""
        return "container long, segment string, offset long, length int, payload binary"

    def reader(self, schema: StructType) -> PlainReader:
        """The one there is."""
        del schema
        return PlainReader(self.options["path"])


if __name__ == "__main__":
    from bench.suite import main

    main("spark_read")
