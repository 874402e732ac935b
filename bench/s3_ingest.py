"""How much of the ingest rate is left when everything ingested also goes to S3, on the same cores
as its server.

One producer appends events of 1 KiB to a store that never flushes, and to one with default settings
on S3. The rate counts from the first append to the last acknowledgement; what is not yet flushed
then must be within the bound that holds the log.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from bench import child, rounds
from bench.child import Measured
from bench.engine import SEGMENT, open_store, sum_of
from bench.loads import pipelined
from bench.report import CaseResult, Row, Samples, extras_of
from bench.s3_service import MIB, s3_service, tier2_url
from bench.workspace import require_free_bytes, subfolder

QUESTION = "ingest of 1 KiB events with flush to S3 on the same cores"
EVENT_BYTES = 1024
WINDOW = 4096
SHARE = 0.6
LOG_BYTES_MAX = 1024 * MIB
"""The log, when the last event is acknowledged: several checkpoints' worth, and independent of how
much was ingested.
"""
_NEVER: dict[str, Any] = {
    "flush_bytes": 1 << 32,
    "object_bytes": 1 << 32,
    "upload_bytes_max": 1 << 33,
    "unflushed_target_bytes": 1 << 40,
    "unflushed_bytes_max": 1 << 40,
    "flush_age_s": 1e6,
    "tail_bytes_max": 1 << 34,
}


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 20 s and 512 MiB quick, 90 s and 2 GiB else."""
    total_bytes = (512 if quick else 2048) * MIB
    require_free_bytes(directory, 6 * total_bytes)
    without: list[Measured] = []
    with_s3: list[Measured] = []
    with subfolder(directory, "s3") as folder, s3_service(folder) as (endpoint, server):
        for index in range(rounds.count_of(quick=quick)):
            for measured, url in ((without, ""), (with_s3, tier2_url(endpoint, f"ingest-{index}"))):
                with subfolder(folder, f"store-{index}-{len(measured)}") as place:
                    os.sync()
                    arguments = {"directory": str(place), "url": url, "total_bytes": total_bytes}
                    measured.append(child.call(__name__, "engine_round", arguments))
    engine = Samples.of(with_s3)
    ratio = engine.median / Samples.of(without).median
    bounded = max(float(one["log_bytes"]) for one in with_s3) <= LOG_BYTES_MAX
    row = Row(
        name=f"{total_bytes // MIB:,} MiB",
        unit="events/s",
        skeleton=Samples.of(without),
        engine=engine,
        ratio=ratio,
        bar="≥ 60 % of the rate without Tier 2, log bounded",
        met=ratio >= SHARE and bounded,
        extra=extras_of(with_s3),
    )
    notes = [f"server: {server}", "skeleton: the same store without Tier 2 (nothing is flushed)"]
    return CaseResult(case="s3_ingest", question=QUESTION, rows=[row], notes=notes)


def engine_round(directory: str, url: str, total_bytes: int) -> Measured:
    """Events per second, and what the log and Tier 2 have at the end."""

    async def work() -> Measured:
        options: dict[str, Any] = {"tier2": url} if url else _NEVER
        async with open_store(Path(directory) / "store", **options) as store:
            await store.create_segment(SEGMENT)
            data = os.urandom(EVENT_BYTES)
            result = await pipelined(
                lambda _: store.append(SEGMENT, data), total_bytes // EVENT_BYTES, WINDOW
            )
            stats = store.stats()
            return {
                "value": result.rate,
                "log_bytes": sum_of(stats, "log", "log_bytes"),
                "unflushed_bytes": sum_of(stats, "storage_writer", "unflushed_bytes"),
            }

    return asyncio.run(work())


if __name__ == "__main__":
    from bench.suite import main

    main("s3_ingest")
