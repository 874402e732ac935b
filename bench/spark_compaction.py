"""Compaction of many small chunks by Spark, beside the owner that commits it, on a folder.

The store has segments whose chunks of 64 KiB lie by turns in a thousand shared objects. Floor: two
processes that copy those objects one by one: read, write under a name of its own, fdatasync. The
job's clock runs from its start, the owner's export included, to the last answer. All bytes are read
back through the store's own readers afterwards, from a cold start, and must have the checksums they
were written with.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import child
from bench.child import Measured
from bench.engine import open_store, read_through
from bench.report import CaseResult, Row, Samples
from bench.spark_session import session
from bench.workspace import BenchError, require_free_bytes, subfolder
from segmentstore.contracts.checksum import crc32c

QUESTION = "compaction of small chunks by Spark, committed by a live owner"
KIB = 1 << 10
MIB = 1 << 20
CHUNK_BYTES = 64 * KIB
PROCESSES = 2
SHARE_OF_FLOOR = 0.5
_TIMEOUT_S = 60.0
_POLL_S = 0.05


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 40 s, 2 k chunks of 10 segments quick; 4 min, 100 k chunks of 100 segments and 25 GiB
    on disk else.
    """
    segments, chunks = (10, 200) if quick else (100, 1000)
    total_bytes = segments * chunks * CHUNK_BYTES
    require_free_bytes(directory, 4 * total_bytes)
    with subfolder(directory, "spark-compaction") as folder:
        where = {"directory": str(folder)}
        filled = child.call(__name__, "fill", {**where, "segments": segments, "chunks": chunks})
        floor = [child.call(__name__, "floor_round", where)]
        with ThreadPoolExecutor(1) as pool:
            owner = pool.submit(child.call, __name__, "own", where)
            try:
                job = child.call(__name__, "measure", where)
            finally:
                (folder / "stop").touch()
            owner.result()
        floor.append(child.call(__name__, "floor_round", where))
        child.call(
            __name__,
            "read_back",
            {**where, "checksums": filled["checksums"], "length": chunks * CHUNK_BYTES},
        )
    return CaseResult(
        case="spark_compaction",
        question=QUESTION,
        rows=[row_of(segments * chunks, total_bytes, floor, job)],
        notes=["all bytes were read back through the store and are equal"],
    )


def row_of(chunks: int, total_bytes: int, floor: list[Measured], job: Measured) -> Row:
    """The rate, and what was asked of the folder for it."""
    rate = total_bytes / job["seconds"] / 1e6
    ratio = rate / max(Samples.of(floor).rounds)
    counts = (
        "requests",
        "chunks_after",
        "objects_before",
        "objects_after",
        "bytes_received",
        "bytes_sent",
    )
    return Row(
        name=f"{chunks:,} chunks of {CHUNK_BYTES // KIB} KiB",
        unit="MB/s",
        floor=Samples.of(floor),
        engine=Samples((rate,)),
        ratio=ratio,
        bar="≥ 50 % of copying the objects",
        met=ratio >= SHARE_OF_FLOOR,
        extra={"seconds": job["seconds"], **{name: job[name] for name in counts}},
    )


def fill(directory: str, segments: int, chunks: int) -> Measured:
    """A closed store in which every flush made an object with a chunk of each segment; checksums of
    the segments.
    """

    async def work() -> Measured:
        base = os.urandom(CHUNK_BYTES - 8)
        checksums = [0] * segments
        names = [_segment(number) for number in range(segments)]
        async with open_store(Path(directory) / "store", consolidation=False) as store:
            for name in names:
                await store.create_segment(name)
            for turn in range(chunks):
                waiting = []
                for number, name in enumerate(names):
                    data = (turn * segments + number).to_bytes(8, "big") + base
                    checksums[number] = crc32c(data, checksums[number])
                    waiting.append(store.append(name, data))
                await asyncio.gather(*waiting)
                await store.flush()
            await store.checkpoint()
        return {"checksums": checksums}

    measured = asyncio.run(work())
    os.sync()
    return measured


def _segment(number: int) -> str:
    return f"bench/segment-{number:03d}"


def _objects(directory: str) -> list[str]:
    """Paths of the objects with bytes of segments."""
    root = Path(directory, "store", "tier2")
    return sorted(str(path) for path in root.glob("[0-9a-f][0-9a-f]/*/*/*"))


def floor_round(directory: str) -> Measured:
    """Megabytes per second of copying objects in two processes."""
    paths = _objects(directory)
    target = Path(directory, "copies")
    target.mkdir()
    os.sync()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        pool.starmap(_copy_all, [([], str(target)) for _ in range(PROCESSES)], chunksize=1)
        work = [(paths[number::PROCESSES], str(target)) for number in range(PROCESSES)]
        begun = time.perf_counter()
        total = sum(pool.starmap(_copy_all, work, chunksize=1))
        seconds = time.perf_counter() - begun
    shutil.rmtree(target)
    return {"value": total / seconds / 1e6}


def _copy_all(paths: list[str], target: str) -> int:
    total = 0
    for path in paths:
        data = Path(path).read_bytes()
        with Path(target, Path(path).name).open("wb", buffering=0) as file:
            file.write(data)
            os.fdatasync(file.fileno())
        total += len(data)
    return total


def own(directory: str) -> Measured:
    """Have the store open, as a service has, until the file `stop` is there."""
    folder = Path(directory)

    async def work() -> None:
        async with open_store(folder / "store", consolidation=False, mailbox_poll_interval_s=0.2):
            (folder / "open").touch()
            while not (folder / "stop").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(_POLL_S)

    asyncio.run(work())
    return {}


def measure(directory: str) -> Measured:
    """Seconds of the job, and its own numbers."""
    folder = Path(directory)
    with session(folder) as spark:
        from tier2.spark.compact.job import compact  # noqa: PLC0415 - loaded with the session

        spark.range(1000).mapInArrow(lambda batches: batches, "id bigint").toArrow()
        begun = time.perf_counter()
        while not (folder / "open").exists():
            if time.perf_counter() - begun > _TIMEOUT_S:
                message = f"the owner did not open the store within {_TIMEOUT_S:.0f} s"
                raise BenchError(message)
            time.sleep(_POLL_S)
        objects_before = len(_objects(directory))
        os.sync()
        begun = time.perf_counter()
        result = compact(spark, (folder / "store" / "tier2").absolute().as_uri(), older_than_ms=0)
        seconds = time.perf_counter() - begun
    summary = result.summary
    if set(summary.groups) != {"committed"}:
        message = f"not everything was committed: {summary.groups}, {summary.unresponsive}"
        raise BenchError(message)
    return {
        "value": summary.rewritten_bytes_count / seconds / 1e6,
        "seconds": seconds,
        "requests": summary.requests,
        "chunks_after": summary.chunks_after,
        "objects_before": objects_before,
        "objects_after": objects_before
        - summary.removed_data_files_count
        + summary.added_data_files_count,
        "bytes_received": summary.bytes_received,
        "bytes_sent": summary.bytes_sent,
        "rewritten": summary.rewritten_bytes_count,
    }


def read_back(directory: str, checksums: list[int], length: int) -> Measured:
    """Read every segment; BenchError if one has other bytes than were appended."""
    folder = Path(directory)
    shutil.rmtree(folder / "store" / "cache", ignore_errors=True)

    async def work() -> None:
        async with open_store(folder / "store", consolidation=False) as store:
            for number, expected in enumerate(checksums):
                await read_through(store, _segment(number), length, expected)

    asyncio.run(work())
    return {}


if __name__ == "__main__":
    from bench.suite import main

    main("spark_compaction")
