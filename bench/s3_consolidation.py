"""Consolidation of small objects on S3, 50 ms behind: copied by the server, and downloaded and
uploaded again.

Each round makes a store of objects of 8 MiB with consolidation off, then opens it with
consolidation on and waits until it is done. The other side has the same store on the same server
through a client that offers no copying.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any, ClassVar

from bench import child
from bench.child import Measured
from bench.engine import SEGMENT, open_store, sum_of
from bench.report import CaseResult, Row, Samples, extras_of
from bench.s3_service import MIB, distinct, s3_service, tier2_url
from bench.workspace import BenchError, require_free_bytes, subfolder
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store as open_with_adapters
from segmentstore.service import SegmentStore
from segmentstore.store_adapters import DefaultAdapters
from tier2.object_storage import ObjectStorage
from tier2.s3.s3_location import parse_s3_url
from tier2.s3.s3_object_storage import S3ObjectStorage

QUESTION = "consolidation on S3: copied by the server or through the client"
LATENCY_S = 0.05
OBJECT_BYTES = 8 * MIB
TIMES_FASTER = 5.0
_TIMEOUT_S = 300.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 20 s and 128 MiB quick, 60 s and 512 MiB else; needs four times the bytes on disk."""
    total_bytes = (128 if quick else 512) * MIB
    require_free_bytes(directory, 5 * total_bytes)
    measured: dict[bool, list[Measured]] = {False: [], True: []}
    with (
        subfolder(directory, "s3") as folder,
        s3_service(folder, latency_s=LATENCY_S) as (endpoint, server),
    ):
        for copies in (False, True):
            arguments = {
                "directory": str(folder / f"store-{copies}"),
                "url": tier2_url(endpoint, f"consolidation-{copies}"),
                "total_bytes": total_bytes,
                "copies": copies,
            }
            measured[copies].append(child.call(__name__, "engine_round", arguments))
    engine, other = Samples.of(measured[True]), Samples.of(measured[False])
    ratio = engine.median / other.median
    row = Row(
        name=f"{total_bytes // MIB} MiB in objects of 8 MiB",
        unit="MB/s",
        skeleton=other,
        engine=engine,
        ratio=ratio,
        bar="≥ 5 x download and upload (here as skeleton)",
        met=ratio >= TIMES_FASTER,
        extra=extras_of(measured[True]),
    )
    return CaseResult(
        case="s3_consolidation", question=QUESTION, rows=[row], notes=[f"server: {server}"]
    )


class _NoCopies(S3ObjectStorage):
    compose_bytes_min: ClassVar[int | None] = None


class _Adapters(DefaultAdapters):
    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        return _NoCopies(parse_s3_url(url), runtime)


def engine_round(directory: str, url: str, total_bytes: int, copies: bool) -> Measured:
    """Megabytes per second of a consolidation of everything."""

    async def work() -> Measured:
        folder = Path(directory)
        small: dict[str, Any] = {
            "flush_bytes": OBJECT_BYTES,
            "object_bytes": OBJECT_BYTES,
            "consolidation": False,
        }
        base = os.urandom(OBJECT_BYTES)
        async with open_store(folder, tier2=url, **small) as store:
            await store.create_segment(SEGMENT)
            for number in range(total_bytes // OBJECT_BYTES):
                await store.append(SEGMENT, distinct(base, number))
                await store.flush()
            await store.checkpoint()
        adapters = None if copies else _Adapters()
        parts = await open_with_adapters(
            str(folder), {"consolidation_bytes": total_bytes}, {}, Runtime(), adapters
        )
        store_again = SegmentStore(parts)
        try:
            begun = time.perf_counter()
            while not sum_of(store_again.stats(), "storage_writer", "consolidations"):
                if time.perf_counter() - begun > _TIMEOUT_S:
                    message = (
                        f"nothing was consolidated in {_TIMEOUT_S:.0f} s: "
                        f"{store_again.stats()['health']}"
                    )
                    raise BenchError(message)
                await asyncio.sleep(0.002)
            seconds = time.perf_counter() - begun
            copied = sum_of(store_again.stats(), "storage_writer", "bytes_copied")
            if bool(copied) is not copies:
                message = f"{copied} bytes were copied by the server"
                raise BenchError(message)
        finally:
            await store_again.close()
        return {"value": total_bytes / seconds / 1e6, "seconds": seconds}

    return asyncio.run(work())


if __name__ == "__main__":
    from bench.suite import main

    main("s3_consolidation")
