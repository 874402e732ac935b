"""Appends while Tier 2 is the limit: their rate second by second, and how long callers wait.

128 callers append 8 KiB each, every one as soon as its append before is durable, to 16 segments.
One side has a Tier 2 (a folder) behind a link of 10 MB/s; the other ("skeleton") the same folder
without it. The buffer is small, 256 MiB of un-flushed bytes, so that it is full soon; what happens
until then is not measured. Figures are of the seconds after that. The rate is the link's, so other
load on the machine hardly moves it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench import child
from bench.child import Measured
from bench.loads import percentile
from bench.report import CaseResult, Row, Samples
from bench.slow_link import SlowLink
from bench.workspace import require_free_bytes, subfolder
from segmentstore.contracts.byte_sizes import KIB, MIB

QUESTION = "appends while Tier 2 takes 10 MB/s"
LINK_BYTES_PER_S: Final = 10_000_000
CALLERS: Final = 128
SEGMENTS: Final = 16
APPEND_BYTES: Final = 8 * KIB
OPTIONS: Final = {
    "unflushed_bytes_max": 256 * MIB,
    "flush_bytes": 8 * MIB,
    "object_bytes": 16 * MIB,
    "upload_bytes_max": 64 * MIB,
    "unflushed_target_bytes": 32 * MIB,
    "consolidation": False,
}
FULL_SHARE: Final = 0.7
"""Of the bound: measuring begins some seconds after so much was un-flushed."""
SETTLE_S: Final = 20.0
FILL_S_MAX: Final = 120.0


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 80 s quick, 4 min else; needs 3 GiB on disk without a limit."""
    require_free_bytes(directory, 3 * 1024 * MIB)
    seconds = 20.0 if quick else 60.0
    sides: dict[str, list[Measured]] = {"limited": [], "free": []}
    for index in range(1 if quick else 2):
        for side, rate in (("limited", LINK_BYTES_PER_S), ("free", 0)):
            with subfolder(directory, f"{side}-{index}") as folder:
                arguments = {
                    "directory": str(folder),
                    "seconds": seconds if rate else seconds / 4,
                    "link_bytes_per_s": rate,
                }
                sides[side].append(child.call(__name__, "round_of", arguments))
    return CaseResult(case="slow_tier2", question=QUESTION, rows=_rows(sides))


def _rows(sides: dict[str, list[Measured]]) -> list[Row]:
    limited, free = sides["limited"], sides["free"]
    lowest = min(one["slowest_second"] / one["value"] for one in limited)
    highest = max(one["fastest_second"] / one["value"] for one in limited)
    ratio = median(one["p99_ms"] / one["p50_ms"] for one in limited)
    samples = Samples.of
    return [
        Row(name="rate", unit="MB/s", engine=samples(limited), skeleton=samples(free)),
        Row(
            name="slowest second",
            unit="MB/s",
            engine=samples(limited, "slowest_second"),
            skeleton=samples(free, "slowest_second"),
            ratio=lowest,
            bar="≥ 0.8 x the rate",
            met=lowest >= 0.8,
        ),
        Row(
            name="fastest second",
            unit="MB/s",
            engine=samples(limited, "fastest_second"),
            skeleton=samples(free, "fastest_second"),
            ratio=highest,
            bar="≤ 1.2 x the rate",
            met=highest <= 1.2,
        ),
        Row(
            name="p50",
            unit="ms",
            engine=samples(limited, "p50_ms"),
            skeleton=samples(free, "p50_ms"),
        ),
        Row(
            name="p99",
            unit="ms",
            engine=samples(limited, "p99_ms"),
            skeleton=samples(free, "p99_ms"),
            ratio=ratio,
            bar="≤ 4 x p50",
            met=ratio <= 4,
        ),
        Row(
            name="most un-flushed",
            unit="MiB",
            engine=samples(limited, "unflushed_mib"),
            skeleton=samples(free, "unflushed_mib"),
        ),
    ]


def round_of(directory: str, seconds: float, link_bytes_per_s: int) -> Measured:
    """Megabytes (10^6) per second, of all and of single seconds; milliseconds of a call."""
    return asyncio.run(_measure(Path(directory), seconds, link_bytes_per_s))


async def _measure(folder: Path, seconds: float, link_bytes_per_s: int) -> Measured:
    store: Any = await _opened(folder, link_bytes_per_s)
    load = _Load(store)
    for number in range(SEGMENTS):
        await store.create_segment(f"segment-{number}")
    callers = [asyncio.create_task(load.call(number)) for number in range(CALLERS)]
    if link_bytes_per_s:
        full = FULL_SHARE * OPTIONS["unflushed_bytes_max"]
        give_up = time.perf_counter() + FILL_S_MAX
        while load.unflushed() < full and time.perf_counter() < give_up:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
    load.begin()
    watching = asyncio.create_task(load.watch())
    await asyncio.sleep(seconds)
    load.ended = True
    await asyncio.gather(watching, *callers)
    await store.close()
    return load.measured(int(seconds))


async def _opened(folder: Path, link_bytes_per_s: int) -> object:
    """The store, with a Tier 2 behind the link if there is one.

    The engine is imported here, in the round's own process.
    """
    from collections.abc import Mapping, Sequence  # noqa: PLC0415

    from segmentstore import SegmentStore  # noqa: PLC0415
    from segmentstore.contracts.runtime import Runtime  # noqa: PLC0415
    from segmentstore.open_steps import open_store  # noqa: PLC0415
    from segmentstore.store_adapters import DefaultAdapters  # noqa: PLC0415
    from tier2.file_object_storage import FileObjectStorage  # noqa: PLC0415
    from tier2.object_storage import ObjectStorage  # noqa: PLC0415

    link = SlowLink(link_bytes_per_s)

    class SlowFolder(FileObjectStorage):
        async def put(
            self,
            name: str,
            parts: Sequence[bytes | bytearray | memoryview],
            unique_id: bytes,
            metadata: Mapping[str, str] = {},
        ) -> None:
            await link.carry(sum(map(len, parts)))
            await super().put(name, parts, unique_id, metadata)

    class Adapters(DefaultAdapters):
        def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
            if not link_bytes_per_s:
                return super().storage(url, runtime)
            return SlowFolder(url.removeprefix("file://"), runtime)

    return SegmentStore(await open_store(str(folder / "store"), OPTIONS, {}, Runtime(), Adapters()))


class _Load:
    """Callers, and what they saw since `begin`."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._data = bytes(APPEND_BYTES)
        self._begun = 0.0
        self._bytes: Counter[int] = Counter()
        self._waits: list[float] = []
        self._most = 0
        self.ended = False

    def unflushed(self) -> int:
        """Un-flushed bytes of the store."""
        number: int = self._store.stats()["containers"][0]["storage_writer"]["unflushed_bytes"]
        return number

    def begin(self) -> None:
        """Count from now on."""
        self._begun = time.perf_counter()
        self._bytes.clear()
        self._waits.clear()

    async def call(self, number: int) -> None:
        """One caller, until the load has ended."""
        name, data, append = f"segment-{number % SEGMENTS}", self._data, self._store.append
        while not self.ended:
            called = time.perf_counter()
            await append(name, data)
            now = time.perf_counter()
            self._bytes[int(now - self._begun)] += len(data)
            self._waits.append(now - called)

    async def watch(self) -> None:
        """Note the most un-flushed bytes that there are, until the load has ended."""
        while not self.ended:
            self._most = max(self._most, self.unflushed())
            await asyncio.sleep(0.05)

    def measured(self, seconds: int) -> Measured:
        """Figures of so many whole seconds."""
        rates = [self._bytes[second] / 1e6 for second in range(seconds)]
        waits = sorted(self._waits)
        return {
            "value": sum(rates) / len(rates),
            "slowest_second": min(rates),
            "fastest_second": max(rates),
            "p50_ms": 1e3 * percentile(waits, 0.5),
            "p99_ms": 1e3 * percentile(waits, 0.99),
            "unflushed_mib": self._most / MIB,
            "rates": rates,
        }


if __name__ == "__main__":
    from bench.suite import main

    main("slow_tier2")
