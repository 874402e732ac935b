"""Tier 2 away for long: writers go on to the bound, are held there without an error, and go on when
it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from segmentstore import SegmentStore, blocking
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import TINY, WorldDisk, open_tiny, read_all, run, until
from tests.support.folders import files_below

BOUND = 4000
IN_FLIGHT = 400
ROOMY: Mapping[str, Any] = {
    "cache_bytes_max": 1 << 20,
    "object_bytes": 100_000,
    "upload_bytes_max": 200_000,
}
"""Room for an outage in the cache, and few objects afterwards, so that a checkpoint is short."""
PIECE = 100


def unflushed(store: SegmentStore) -> int:
    return store._containers[0]._writer.unflushed_bytes


def health(store: SegmentStore) -> str:
    findings = store.stats()["health"]
    assert isinstance(findings, list)
    return "\n".join(findings)


def log_bytes(store: SegmentStore) -> int:
    return store._containers[0]._log.statistics().log_bytes


def piece(number: int) -> bytes:
    return b"%05d" % number * (PIECE // 5)


def test_writers_are_held_at_the_bound_and_go_on_when_tier2_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        disk = WorldDisk()
        async with open_tiny(
            tmp_path / "s",
            runtime=Runtime(disk=disk),
            unflushed_bytes_max=BOUND,
            in_flight_bytes_max=IN_FLIGHT,
            **ROOMY,
        ) as store:
            await store.create_segment("x")
            assert health(store) == ""
            disk.tier2_away()
            futures = [store.append("x", piece(number)) for number in range(100)]
            await until(lambda: unflushed(store) >= BOUND // 2)
            await until(lambda: "held back by unflushed" in health(store))
            await until(lambda: "tier2" in health(store))
            await asyncio.sleep(0.2)
            done = [future for future in futures if future.done()]
            assert len(done) < 100
            assert all(future.exception() is None for future in done), "delayed, never refused"
            # What was on its way to the log when the bound was reached comes on top.
            assert unflushed(store) <= BOUND + 2 * IN_FLIGHT
            everything = b"".join(piece(number) for number in range(100))
            readable = await read_all(store, "x")
            assert len(readable) >= PIECE * len(done)
            assert everything.startswith(readable)
            # Everything but new bytes is served: reads, information, checkpoints.
            await store.checkpoint()
            assert (await store.get_info("x")).storage_length == 0
            disk.heal()
            assert await asyncio.gather(*futures) == [number * PIECE for number in range(100)]
            await store.flush()
            assert unflushed(store) == 0
            await until(lambda: health(store) == "")
            await store.checkpoint()
            assert log_bytes(store) < 5000
            assert await read_all(store, "x") == b"".join(piece(number) for number in range(100))

    run(main())


def test_close_under_full_throttle_makes_durable_what_was_taken(tmp_path: Path) -> None:
    async def main() -> None:
        disk = WorldDisk()
        store = await open_tiny(
            tmp_path / "s",
            runtime=Runtime(disk=disk),
            unflushed_bytes_max=BOUND,
            cache_bytes_max=1 << 20,
        )
        await store.create_segment("x")
        disk.tier2_away()
        futures = [store.append("x", piece(number)) for number in range(100)]
        await until(lambda: "held back" in health(store))
        async with asyncio.timeout(60):
            await store.close()
        assert await asyncio.gather(*futures) == [number * PIECE for number in range(100)]
        # Recovered with more than the bound un-flushed, Tier 2 still away: it serves, and holds new
        # writers.
        async with open_tiny(
            tmp_path / "s",
            runtime=Runtime(disk=disk),
            unflushed_bytes_max=BOUND,
            cache_bytes_max=1 << 20,
        ) as again:
            assert await read_all(again, "x") == b"".join(piece(number) for number in range(100))
            append = again.append("x", b"later")
            await until(lambda: "held back" in health(again))
            assert not append.done()
            disk.heal()
            assert await append == 100 * PIECE
            await again.flush()

    run(main())


@pytest.mark.parametrize("rounds", [3])
def test_an_outage_again_and_again_loses_and_doubles_nothing(tmp_path: Path, rounds: int) -> None:
    async def main() -> None:
        disk = WorldDisk()
        expected = b""
        for round_number in range(rounds):
            async with open_tiny(tmp_path / "s", runtime=Runtime(disk=disk)) as store:
                if not round_number:
                    await store.create_segment("x")
                disk.tier2_away()
                for number in range(20):
                    await store.append("x", piece(number))
                    expected += piece(number)
                begin = round_number * 20 * PIECE
                assert await read_all(store, "x", begin) == expected[begin:]
                disk.heal()
                await store.flush()
                assert await read_all(store, "x") == expected
                objects = store._containers[0].metadata.objects
                there = [
                    path for path in files_below(tmp_path / "s" / "tier2") if path.match("flush-*")
                ]
                assert len(there) == len(objects)

    run(main())


def test_the_memory_of_an_outage_is_bounded_by_the_log_too(tmp_path: Path) -> None:
    """The log is not truncated during an outage, and is right after it, without a restart."""

    async def main() -> None:
        disk = WorldDisk()
        async with open_tiny(tmp_path / "s", runtime=Runtime(disk=disk), **ROOMY) as store:
            await store.create_segment("x")
            disk.tier2_away()
            for number in range(200):
                await store.append("x", piece(number))
            files = store._containers[0]._log.statistics().files
            assert files > 2
            assert log_bytes(store) >= 200 * PIECE
            disk.heal()
            await store.flush()
            await store.checkpoint()
            assert store._containers[0]._log.statistics().files < files
            assert log_bytes(store) < 5000

    run(main())


def test_blocking_callers_wait_too(tmp_path: Path) -> None:
    disk = WorldDisk()
    options = {**TINY, "unflushed_bytes_max": BOUND, "cache_bytes_max": 1 << 20}
    with blocking.open(tmp_path / "s", runtime=Runtime(disk=disk), **options) as store:
        store.create_segment("x")
        disk.tier2_away()
        futures = [store.append_nowait("x", piece(number)) for number in range(80)]
        futures[20].result(60)
        disk.heal()
        assert [future.result(60) for future in futures] == [number * PIECE for number in range(80)]
