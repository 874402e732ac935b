"""A store as of a moment in a long history: what it takes of the archive.

One segment is appended to, and truncated so that it keeps at most twice KEPT_BYTES; all of its log
goes to an archive on S3 while it is written. Then the store of two moments is restored: behind a
half and behind three quarters of the history. Each restored segment is checked for its bounds and
for each block's number. No floor of time: the bar is what is asked of the archive. A moment needs
the operations from the checkpoint before it on, and the parts that have the segment's bytes.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import segmentstore
from bench import child
from bench.child import Measured
from bench.report import CaseResult, Row, Samples
from bench.s3_service import MIB, s3_service, tier2_url
from bench.workspace import BenchError, require_free_bytes, subfolder
from recovery.moments import parse_moment
from recovery.restore_past import restore_past
from segmentstore.contracts.runtime import Runtime
from segmentstore.past_store import open_past
from tier2.archive.archive_config import ARCHIVED_FILE_BYTES

QUESTION = "a store as of a moment in a long history: what is asked of its archive"
SEGMENT = "x"
KEPT_BYTES = 64 * MIB
AT_ONCE = 16
PARTS_MAX = 3
"""Two for the segment's bytes, which are less than one has; as much as one for operations."""
MOMENTS = {"half": 0.5, "three quarters": 0.75}
FREE_BYTES = 4 << 30
_MARK_S = 0.02


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 20 s and 1 GiB of history quick, three minutes and 10 GiB else."""
    mib = 1024 if quick else 10 * 1024
    require_free_bytes(directory, mib * MIB + FREE_BYTES)
    with subfolder(directory, "moment") as folder, s3_service(folder) as (endpoint, server):
        place = {"directory": str(folder), "url": tier2_url(endpoint, "archive")}
        history = child.call(__name__, "fill", {**place, "mib": mib})
        rounds = {
            name: child.call(__name__, "restore_round", {**place, **history[name]})
            for name in MOMENTS
        }
    rows = []
    for name, measured in rounds.items():
        bar = PARTS_MAX * ARCHIVED_FILE_BYTES // MIB
        rows += [
            Row(
                name=f"{name}: read of {history['archived_mib']:,.0f} MiB",
                unit="MiB",
                engine=Samples.of([{"value": measured["mib"]}]),
                bar=f"≤ {PARTS_MAX} of {history['parts']} parts",
                met=measured["mib"] <= bar,
            ),
            Row(name=f"{name}: requests", unit="", engine=Samples.of([measured])),
            Row(
                name=f"{name}: restored in",
                unit="s",
                engine=Samples.of([{"value": measured["seconds"]}]),
            ),
        ]
    notes = [
        f"server: {server}",
        f"the segment keeps {KEPT_BYTES // MIB} to {2 * KEPT_BYTES // MIB} MiB",
    ]
    return CaseResult(case="archived_moment", question=QUESTION, rows=rows, notes=notes)


def fill(directory: str, url: str, mib: int) -> Measured:
    """Write `mib` MiB in appends of one each; the two moments, and what the archive has then."""

    async def work() -> Measured:
        found: dict[str, Any] = {}
        base = random.Random(1).randbytes(MIB - 8)
        async with segmentstore.open(
            Path(directory, "store"),
            archive=url,
            containers=1,
            archive_deletion_lag_s=0.0,
            deletion_lag_s=0.0,
            archive_bytes_per_s=0,
        ) as store:
            await store.create_segment(SEGMENT)
            for first in range(0, mib, AT_ONCE):
                numbers = range(first, first + AT_ONCE)
                blocks = [number.to_bytes(8, "big") + base for number in numbers]
                await asyncio.gather(*(store.append(SEGMENT, block) for block in blocks))
                length = (first + AT_ONCE) * MIB
                if first % (4 * AT_ONCE) == 0 and length > KEPT_BYTES:
                    await store.truncate(SEGMENT, length - KEPT_BYTES)
                for name, share in MOMENTS.items():
                    if name not in found and length >= share * mib * MIB:
                        found[name] = await _moment(store)
            await store.flush()
            await store.offload_prefix()
            archive = store.stats()["containers"][0]["archive"]
        return {**found, "parts": archive["parts"], "archived_mib": archive["bytes"] / MIB}

    return asyncio.run(work())


async def _moment(store: segmentstore.SegmentStore) -> dict[str, Any]:
    """A time at which nothing happens, and the segment then."""
    await asyncio.sleep(_MARK_S)
    info = await store.get_info(SEGMENT)
    at = datetime.now(UTC).isoformat()
    await asyncio.sleep(_MARK_S)
    return {"at": at, "start": info.start_offset, "length": info.length}


def restore_round(directory: str, url: str, at: str, start: int, length: int) -> Measured:
    """Restore the store of the moment; requests, bytes and seconds that it took.

    Raises BenchError if the segment is not what it was.
    """

    async def work() -> Measured:
        runtime, target = Runtime(), Path(directory, "restored")
        begun = time.perf_counter()
        settings = {"SEGMENTSTORE_ARCHIVE": url}
        async with await open_past(str(Path(directory, "store")), settings, runtime) as past:
            await restore_past(past.source, parse_moment(at), str(target), runtime)
            seconds = time.perf_counter() - begun
            traffic = past.archive_traffic()
        try:
            await _check(target, start, length)
        finally:
            shutil.rmtree(target)
        mib = traffic.bytes_received / MIB
        return {"value": float(traffic.requests), "mib": mib, "seconds": seconds}

    return asyncio.run(work())


async def _check(target: Path, start: int, length: int) -> None:
    async with segmentstore.open(target) as store:
        info = await store.get_info(SEGMENT)
        wrong = (info.start_offset, info.length) != (start, length)
        for offset in range(start, length, MIB):
            number = await store.read(SEGMENT, offset, 8)
            wrong |= bytes(number) != (offset // MIB).to_bytes(8, "big")
    if wrong:
        raise BenchError(f"the segment restored as of {start:,} to {length:,} is {info}")


if __name__ == "__main__":
    from bench.suite import main

    main("archived_moment")
