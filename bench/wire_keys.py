"""A million keys in one table: memory of the server, look-ups, and opening it without its index.

Over the wire, on the file log. Keys are of 21 bytes, values of 40. The floor of a look-up is a
KeepAlive on the same connection: a round trip for which the server does nothing. The floor of an
opening is a read of the log's files.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from bench import child
from bench.child import Measured
from bench.floor import MIB, files_under, read_rate
from bench.loads import percentile
from bench.report import CaseResult, Row, Samples
from bench.wire_codec_client import CodecClient, connected
from bench.wire_servers import MeasuredServer, OurServer, running
from bench.workspace import BenchError, subfolder
from segmentstore.wire.commands import (
    CreateTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    SegmentCreated,
    TableEntriesUpdated,
    TableRead,
    TableSegmentInfo,
    UpdateTableEntries,
)
from segmentstore.wire.table_commands import NO_VERSION, TableKey

QUESTION: Final = "many keys in one table, over the wire"
MEMORY_MIB: Final = 100
LOOKUP_P99_MS: Final = 2.0
REOPENED_S: Final = 10.0
LOOKUPS: Final = 3_000
TABLE: Final = "bench/_tables/large"
_SMALL: Final = "bench/_tables/small"
_BATCH: Final = 250
_BATCHES_AT_ONCE: Final = 8
_VALUE: Final = bytes(40)
_STRIDE: Final = 7_919
"""A prime: keys go in in an order that is not theirs."""
_QUIET_S: Final = 2.0
"""Before memory is read: what an update leaves behind is flushed and released meanwhile."""


def run(directory: Path, *, quick: bool) -> CaseResult:
    """100 k keys and half a minute quick; a million and three minutes else."""
    keys = 100_000 if quick else 1_000_000
    with subfolder(directory, "wire") as folder:
        measured = many_keys(OurServer(folder / "ours", "file"), keys)
    return CaseResult(case="wire_keys", question=QUESTION, rows=rows_of(measured, keys))


def rows_of(measured: Measured, keys: int) -> list[Row]:
    """A row for each bar."""

    def row(name: str, unit: str, key: str, limit: float, floor: str = "") -> Row:
        return Row(
            name=name,
            unit=unit,
            floor=Samples.of([measured], floor) if floor else None,
            engine=Samples.of([measured], key),
            bar=f"≤ {limit:g} {unit}",
            met=measured[key] <= limit,
            extra={
                other: measured[other]
                for other in measured
                if other.startswith(f"{key.partition('_')[0]}_") and other not in (key, floor)
            },
        )

    return [
        row(f"{keys:,} keys, resident more", "MiB", "memory_more", MEMORY_MIB),
        row("look-up, warm, p99", "ms", "lookup_p99_ms", LOOKUP_P99_MS, "floor_lookup_p99_ms"),
        row("reopened without its index", "s", "reopened_s", REOPENED_S, "floor_reopened_s"),
    ]


def many_keys(server: OurServer, keys: int) -> Measured:
    """Fill, find, open again with and without the index."""
    with running(server):
        _call(server, "make_small")
        time.sleep(_QUIET_S)
        before, used = server.resident_bytes(), server.cpu_seconds()
        filled = _call(server, "fill", keys=keys)
        filled_used = server.cpu_seconds() - used
        time.sleep(_QUIET_S)
        after = server.resident_bytes()
        used = server.cpu_seconds()
        found = _call(server, "probe_keys", keys=keys)
        # Those that warm it up among them, and a KeepAlive with each.
        found["lookup_us"] = (server.cpu_seconds() - used) * 1e6 / (2 * LOOKUPS)
        server.restart()
        with_index = _call(server, "open_again", keys=keys)
        server.stop()
        shutil.rmtree(server.store / "tables")
        files = [path for path in files_under(server.store) if "log" in str(path)]
        _, floor_s = read_rate(files, MIB)
        server.start()
        bare, used = server.resident_bytes(), server.cpu_seconds()
        without = _call(server, "open_again", keys=keys)
        return {
            "memory_more": (after - before) / MIB,
            "memory_before": before / MIB,
            "memory_fill_s": filled["value"],
            "memory_fill_us": filled_used * 1e6 / keys,
            **found,
            "reopened_s": without["value"],
            "reopened_with_index_s": with_index["value"],
            "reopened_cpu_s": server.cpu_seconds() - used,
            "reopened_more": (server.resident_bytes() - bare) / MIB,
            "floor_reopened_s": floor_s,
        }


def make_small(port: int) -> Measured:
    """A first table: what all tables need is there then."""

    async def work(client: CodecClient) -> Measured:
        await _create(client, _SMALL)
        await _update(client, _SMALL, range(1), 1)
        return {}

    return _with_client(port, work)


def fill(port: int, keys: int) -> Measured:
    """All keys, some batches at a time; `value` is seconds."""

    async def work(client: CodecClient) -> Measured:
        await _create(client, TABLE)
        begun = time.perf_counter()

        async def filler(first: int) -> None:
            for start in range(first, keys, _BATCHES_AT_ONCE * _BATCH):
                await _update(client, TABLE, range(start, min(keys, start + _BATCH)), keys)

        await asyncio.gather(*(filler(each * _BATCH) for each in range(_BATCHES_AT_ONCE)))
        return {"value": time.perf_counter() - begun}

    return _with_client(port, work)


def probe_keys(port: int, keys: int) -> Measured:
    """Random keys, one at a time, behind as many that warm it up; KeepAlives in turns with them."""

    async def work(client: CodecClient) -> Measured:
        taken, floor = list[float](), list[float]()
        for number in range(2 * LOOKUPS):
            begun = time.perf_counter()
            await _find(client, number * 104_729 % keys)
            found = time.perf_counter()
            await client.keep_alive()
            if number >= LOOKUPS:
                taken.append(found - begun)
                floor.append(time.perf_counter() - found)
        taken.sort()
        floor.sort()
        return {
            "lookup_p50_ms": percentile(taken, 0.5) * 1e3,
            "lookup_p99_ms": percentile(taken, 0.99) * 1e3,
            "floor_lookup_p99_ms": percentile(floor, 0.99) * 1e3,
        }

    return _with_client(port, work)


def open_again(port: int, keys: int) -> Measured:
    """Seconds of the first look-up, which opens the table; all keys are there."""

    async def work(client: CodecClient) -> Measured:
        begun = time.perf_counter()
        await _find(client, keys // 2)
        seconds = time.perf_counter() - begun
        request = client.next_id()
        info = await client.ask(request, GetTableSegmentInfo(request, TABLE, ""), TableSegmentInfo)
        if info.entry_count != keys:
            raise BenchError(f"{info.entry_count} keys, not {keys}")
        return {"value": seconds}

    return _with_client(port, work)


def _call(server: MeasuredServer, function: str, **given: object) -> Measured:
    return child.call(__name__, function, {"port": server.wire_port, **given})


def _with_client(port: int, work: Callable[[CodecClient], Awaitable[Measured]]) -> Measured:
    async def main() -> Measured:
        async with connected(port) as client:
            return await work(client)

    return asyncio.run(main())


async def _create(client: CodecClient, table: str) -> None:
    request = client.next_id()
    await client.ask(request, CreateTableSegment(request, table, ""), SegmentCreated)


async def _update(client: CodecClient, table: str, numbers: range, keys: int) -> None:
    entries = tuple((_key(number * _STRIDE % keys), _VALUE) for number in numbers)
    request = client.next_id()
    update = UpdateTableEntries(request, table, "", entries)
    await client.ask(request, update, TableEntriesUpdated)


async def _find(client: CodecClient, number: int) -> None:
    request = client.next_id()
    read = await client.ask(request, ReadTable(request, TABLE, "", (_key(number),)), TableRead)
    if read.entries[0][1] != _VALUE:
        raise BenchError(f"key {number} is not there")


def _key(number: int) -> TableKey:
    return TableKey(b"user/%016d" % number, NO_VERSION)


if __name__ == "__main__":
    from bench.suite import main

    main("wire_keys")
