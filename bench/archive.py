"""The archive of the log on S3: writing a ledger, reading it in sequence, reading single entries.

One ledger of frames of ENTRY_BYTES, whose bytes are there at once: what is measured is the archive.
Floors, in the same round, by plain boto3: a multipart upload of the same bytes, as many parts at a
time as the archive holds. And ranged GETs of the same length, as many at a time as a reading has.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

from bench import child, rounds
from bench.child import Measured
from bench.process import resident_bytes, resident_peak_bytes
from bench.report import CaseResult, Row, Samples
from bench.s3_service import (
    MIB,
    distinct,
    raw_client,
    raw_download,
    raw_upload,
    s3_service,
    tier2_url,
)
from bench.workspace import require_free_bytes, subfolder
from segmentstore.contracts.ledgers import LedgerEntry, LedgerMetadata, ReadHandle
from segmentstore.contracts.runtime import Runtime
from tier2.archive.archive_config import BLOCK_BYTES_DEFAULT
from tier2.archive.object_ledger_offloader import READ_BYTES_DEFAULT, ObjectLedgerOffloader
from tier2.archive.range_reads import RANGES_MAX
from tier2.s3.s3_location import parse_s3_url
from tier2.s3.s3_object_storage import S3ObjectStorage
from tier2.s3.stream_upload import HELD_MAX

QUESTION = "archive of the log on S3"
ENTRY_BYTES = MIB - 1024
"""About a full frame."""
BATCH_ENTRIES = 4
PARTS_AT_ONCE = HELD_MAX
RANDOM_READS = 200
LEDGER = 1
UID = bytes(16)
PREFIX = "archive"
SHARE_OF_UPLOAD = 0.8
SHARE_OF_GETS = 0.7
GETS_MAX = 1.2
RESIDENT_MAX_MIB = 160.0


class ComputedLedger(ReadHandle):
    """A ledger of equal entries but for their number, which are not kept."""

    def __init__(self, count: int) -> None:
        self._base = memoryview(random.Random(1).randbytes(ENTRY_BYTES))
        self._metadata = LedgerMetadata(
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            length=count * ENTRY_BYTES,
            last_entry=count - 1,
        )

    @property
    def ledger_id(self) -> int:
        return LEDGER

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        for start in range(first, last + 1, BATCH_ENTRIES):
            yield [
                LedgerEntry(entry, self._base)
                for entry in range(start, min(start + BATCH_ENTRIES, last + 1))
            ]

    async def close(self) -> None:
        return


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 15 s and 256 MiB quick, 60 s and 1 GiB else; needs three times the bytes on disk."""
    total_bytes = (256 if quick else 1024) * MIB
    require_free_bytes(directory, 4 * total_bytes)
    sides: dict[str, list[Measured]] = {}
    with subfolder(directory, "s3") as folder, s3_service(folder) as (endpoint, server):
        arguments = {"endpoint": endpoint, "total_bytes": total_bytes}
        for _ in range(rounds.count_of(quick=quick)):
            for side in ("upload_floor", "upload", "read_floor", "read", "entries"):
                os.sync()
                sides.setdefault(side, []).append(child.call(__name__, f"{side}_round", arguments))
    upload = _row(sides, "upload", f"archive {total_bytes // MIB:,} MiB", SHARE_OF_UPLOAD)
    read = _row(sides, "read", "read them in sequence", SHARE_OF_GETS)
    gets = Samples.of(sides["entries"])
    resident = max(each["resident_mib"] for each in sides["upload"])
    entries = Row(
        name="one entry at random, index cached",
        unit="GETs",
        engine=gets,
        bar=f"≤ {GETS_MAX}",
        met=gets.median <= GETS_MAX,
    )
    memory = Row(
        name="resident for an upload",
        unit="MiB",
        engine=Samples.of([{"value": each["resident_mib"]} for each in sides["upload"]]),
        bar=f"≤ {RESIDENT_MAX_MIB:.0f}",
        met=resident <= RESIDENT_MAX_MIB,
    )
    notes = [f"server: {server}", f"blocks of {BLOCK_BYTES_DEFAULT // MIB} MiB"]
    notes += [
        f"CPU of the {side}: {sides[side][0]['cpu_s']:.2f} s"
        for side in ("upload_floor", "upload", "read_floor", "read")
    ]
    return CaseResult(
        case="archive", question=QUESTION, rows=[upload, memory, read, entries], notes=notes
    )


def _row(sides: dict[str, list[Measured]], side: str, name: str, share: float) -> Row:
    floor, engine = Samples.of(sides[f"{side}_floor"]), Samples.of(sides[side])
    ratio = engine.median / max(floor.rounds)
    what = "multipart PUT" if side == "upload" else "ranged GETs"
    bar = f"≥ {share * 100:.0f} % of raw {what}"
    return Row(
        name=name, unit="MB/s", floor=floor, engine=engine, ratio=ratio, bar=bar, met=ratio >= share
    )


def upload_floor_round(endpoint: str, total_bytes: int) -> Measured:
    """Megabytes per second of one multipart upload."""
    client = raw_client(endpoint)
    data = b"".join(
        distinct(bytes(random.Random(1).randbytes(MIB)), each) for each in range(total_bytes // MIB)
    )
    before, begun = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
        raw_upload(client, "raw/object", data, max(1, total_bytes // BLOCK_BYTES_DEFAULT), pool)
    seconds = time.perf_counter() - begun
    return {"value": total_bytes / seconds / 1e6, "cpu_s": time.process_time() - before}


def upload_round(endpoint: str, total_bytes: int) -> Measured:
    """Megabytes per second of archiving a ledger, and what it takes of memory."""

    async def work() -> Measured:
        ledger = ComputedLedger(total_bytes // ENTRY_BYTES)
        offloader = _offloader(endpoint)
        await offloader.delete_offloaded(LEDGER, UID)
        at_rest = resident_bytes()
        before, begun = time.process_time(), time.perf_counter()
        await offloader.offload(ledger, UID)
        seconds = time.perf_counter() - begun
        cpu_s = time.process_time() - before
        await offloader.close()
        return {
            "value": ledger.length / seconds / 1e6,
            "cpu_s": cpu_s,
            "resident_mib": (resident_peak_bytes() - at_rest) / MIB,
        }

    return asyncio.run(work())


def read_floor_round(endpoint: str, total_bytes: int) -> Measured:
    """Megabytes per second of ranged GETs of what `upload_floor_round` left."""
    del total_bytes
    before = time.process_time()
    count, seconds = raw_download(endpoint, "raw/", READ_BYTES_DEFAULT, RANGES_MAX)
    return {"value": count / seconds / 1e6, "cpu_s": time.process_time() - before}


def read_round(endpoint: str, total_bytes: int) -> Measured:
    """Megabytes per second of reading the archived ledger from its beginning to its end."""
    del total_bytes

    async def work() -> Measured:
        offloader = _offloader(endpoint)
        await offloader.storage.head("none")  # The floor's client has been made before, too.
        before, begun = time.process_time(), time.perf_counter()
        handle = await offloader.read_offloaded(LEDGER, UID)
        count = await _count(handle, 0, handle.last_entry)
        seconds = time.perf_counter() - begun
        cpu_s = time.process_time() - before
        await offloader.close()
        assert count == handle.length
        return {"value": count / seconds / 1e6, "cpu_s": cpu_s}

    return asyncio.run(work())


def entries_round(endpoint: str, total_bytes: int) -> Measured:
    """GETs for one entry drawn by chance, the index being in memory."""
    del total_bytes

    async def work() -> Measured:
        offloader = _offloader(endpoint)
        handle = await offloader.read_offloaded(LEDGER, UID)
        source = random.Random(2)
        before = offloader.storage.statistics().requests("get")
        for _ in range(RANDOM_READS):
            entry = source.randint(0, handle.last_entry)
            await _count(handle, entry, entry)
        gets = offloader.storage.statistics().requests("get") - before
        await offloader.close()
        return {"value": gets / RANDOM_READS}

    return asyncio.run(work())


async def _count(handle: ReadHandle, first: int, last: int) -> int:
    found = 0
    async with aclosing(handle.read(first, last)) as batches:
        async for batch in batches:
            found += sum(len(each.data) for each in batch)
    return found


def _offloader(endpoint: str) -> ObjectLedgerOffloader:
    storage = S3ObjectStorage(parse_s3_url(tier2_url(endpoint, PREFIX)), Runtime())
    return ObjectLedgerOffloader(storage)


if __name__ == "__main__":
    from bench.suite import main

    main("archive")
