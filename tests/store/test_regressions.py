"""Faults that were found by trying to break the store, each kept from coming back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import segmentstore
import segmentstore.blocking
from durablelog.durable_data_log_factory import DurableDataLogFactory
from durablelog.memory_data_log import MemoryLogStore
from durablelog.memory_log_factory import MemoryLogFactory
from segmentstore import (
    ContainerStoppedError,
    InvalidArgumentError,
    NotPrimaryError,
    StoreClosedError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.service import SegmentStore
from segmentstore.store_adapters import DefaultAdapters
from storagewriter import flush_loop
from tests.store.harness import attribute, open_lazy, open_tiny, read_all, run

WRITER = attribute(77)


def test_an_event_refused_for_a_full_queue_ends_the_session_before_a_later_one_hides_the_hole(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with segmentstore.open(
            tmp_path / "s", append_bytes_max=1000, queue_bytes_max=1000
        ) as store:
            await store.create_segment("x")
            events = [b"<0>", b"<1>" + b"." * 400, b"<2>" + b"." * 500, b"<3>"]
            writer = store.writer("x", WRITER)
            futures = [writer.append(event) for event in events]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [
                int,
                int,
                TierUnavailableError,
                TierUnavailableError,
            ]
            again = store.writer("x", WRITER)
            assert again.last_event_number == 1
            for number, event in enumerate(events):
                await again.append(event, number)
            assert await read_all(store, "x") == b"".join(events)

    run(main())


def test_cancelling_an_event_gives_up_waiting_for_it_and_not_the_event(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            writer = store.writer("x", WRITER)
            futures = [writer.append(b"<%d>" % number) for number in range(3)]
            futures[1].cancel()
            await asyncio.gather(*futures, return_exceptions=True)
            assert await read_all(store, "x") == b"<0><1><2>"

    run(main())


def test_a_malformed_event_number_is_the_callers_fault_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("x")
            writer = store.writer("x", WRITER)
            for number in (1.0, "5", True):
                with pytest.raises(InvalidArgumentError):
                    await writer.append(b"event", number)  # type: ignore[arg-type]
            assert await store.append("x", b"fine") == 0

    run(main())


def test_deleting_what_is_on_its_way_to_tier_2_stops_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s") as store:
            for turn in range(20):
                for name in ("x", "y"):
                    await store.create_segment(name)
                appended = asyncio.gather(store.append("x", bytes(300)), store.append("y", b"yy"))
                flushed = asyncio.create_task(store.flush())
                for _ in range(turn):
                    await asyncio.sleep(0)
                await appended
                await asyncio.gather(
                    store.truncate("x", 10), store.merge("x", "y"), store.delete("x")
                )
                await flushed
            assert store.stats()["health"] == []
        async with open_lazy(tmp_path / "s") as store:
            assert [info.name async for info in store.list_segments()] == []

    run(main())


def test_giving_up_on_opening_leaves_no_lock_behind(tmp_path: Path) -> None:
    async def main() -> None:
        for turns in range(12):
            opening = asyncio.ensure_future(_opened(tmp_path / "s"))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            opening.cancel()
            outcome = (await asyncio.gather(opening, return_exceptions=True))[0]
            if isinstance(outcome, segmentstore.SegmentStore):
                await outcome.close()
            async with asyncio.timeout(60):
                await _free(tmp_path / "s")

    run(main())


async def _opened(location: Path) -> segmentstore.SegmentStore:
    return await open_tiny(location)


async def _free(location: Path) -> None:
    """Return once the store can be opened: the thread that took the lock for a cancelled opening
    releases it soon.
    """
    while True:
        try:
            async with open_tiny(location):
                return
        except segmentstore.StoreInUseError:
            await asyncio.sleep(0.002)


def test_whoever_stops_waiting_for_a_close_does_not_stop_the_close(tmp_path: Path) -> None:
    async def main() -> None:
        store = await open_tiny(tmp_path / "s")
        await store.create_segment("x")
        futures = [store.append("x", bytes(100)) for _ in range(200)]
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, store.close(), return_exceptions=True)
        assert all(future.done() for future in futures)
        with pytest.raises(ContainerStoppedError):
            await store.append("x", b"late")
        async with open_tiny(tmp_path / "s") as again:
            assert (await again.get_info("x")).length == 100 * sum(
                future.exception() is None for future in futures
            )

    run(main())


class _WrongClock:
    def __init__(self) -> None:
        self.wrong_ms = 0

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.wrong_ms


def test_a_clock_that_was_slow_for_a_moment_does_not_void_the_deletion_lag(tmp_path: Path) -> None:
    async def main() -> None:
        clock = _WrongClock()
        runtime = Runtime(clock=clock)
        async with open_lazy(tmp_path / "s", runtime=runtime, deletion_lag_s=3600.0) as store:
            await store.create_segment("x")
            await store.append("x", bytes(300))
            await store.flush()
            clock.wrong_ms = -2 * 3600 * 1000
            await store.delete("x")
            clock.wrong_ms = 0
        async with open_lazy(tmp_path / "s", runtime=runtime, deletion_lag_s=3600.0) as store:
            writer = store._containers[0]._writer
            assert await writer.garbage_collector.collect_now() == 0
            assert writer.statistics().garbage_waiting == 1

    run(main())


def test_writers_held_back_by_a_broken_cache_set_the_flush_going(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {
            "tail_bytes_max": 2000,
            "cache_bytes_max": 1 << 30,
            "flush_age_s": 1e6,
            "flush_bytes": 1 << 20,
        }
        settings |= {
            "object_bytes": 1 << 20,
            "upload_bytes_max": 1 << 20,
            "in_flight_bytes_max": 1000,
        }
        async with segmentstore.open(tmp_path / "s", **settings) as store:  # type: ignore[arg-type]
            await store.create_segment("x")
            cache = store._parts.cache
            await cache.close()
            for _ in range(20):
                await store.append("x", bytes(500))
            assert (await store.get_info("x")).storage_length > 0

    run(main())


def test_closing_lets_an_upload_on_its_way_end_instead_of_leaving_an_orphan(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s") as store:
            for number in range(5):
                name = f"x{number}"
                await store.create_segment(name)
                await store.append(name, bytes(100))
                await store.seal(name)
                await asyncio.sleep(0)
        stored = {path.name for path in (tmp_path / "s" / "tier2").rglob("flush-*")}
        async with open_lazy(tmp_path / "s") as store:
            known = {name.rsplit("/", 1)[1] for name in store._containers[0].metadata.objects}
            assert stored <= known

    run(main())


def test_merges_restored_from_a_checkpoint_are_known_to_the_read_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Links are held back, so that the merge is still open when its checkpoint has become the log's
    # first.
    monkeypatch.setattr(flush_loop, "plan_links", lambda _pending, _metadata: None)

    async def main() -> None:
        async with open_lazy(tmp_path / "s") as store:
            for name, data in (("target", b"T" * 100), ("source", b"U" * 300)):
                await store.create_segment(name)
                await store.append(name, data)
            await store.flush()
            await store.merge("target", "source")
            await store.checkpoint()
        async with open_lazy(tmp_path / "s") as store:
            container = store._containers[0]
            assert container.segments[container.segment_ids["target"]].merges
            assert await store.read("target", 150, 10) == b"U" * 10
            await store.truncate("target", 400)
            assert_metadata_valid(container.metadata)
            container._read_index.check()

    run(main())


def test_closing_the_blocking_store_from_several_threads_closes_it_once(tmp_path: Path) -> None:
    store = segmentstore.blocking.open(str(tmp_path / "s"))
    store.create_segment("x")
    waiting = [store.append_nowait("x", bytes(100)) for _ in range(100)]
    with ThreadPoolExecutor(4) as threads:
        for closed in [threads.submit(store.close) for _ in range(4)]:
            assert closed.result() is None
    assert all(future.done() for future in waiting)
    with pytest.raises(StoreClosedError):
        store.append("x", b"late")


class OneMemoryLog(DefaultAdapters):
    """A log in memory that outlasts its owner."""

    def __init__(self) -> None:
        self._memory = MemoryLogStore()

    def logs(
        self, tier1: str, location: str, environment: Mapping[str, str], runtime: Runtime
    ) -> DurableDataLogFactory:
        return MemoryLogFactory(self._memory)


def test_a_fenced_owner_does_not_take_what_its_successor_truncated_for_lost(tmp_path: Path) -> None:
    async def main() -> None:
        adapters = OneMemoryLog()
        options = {"tier1": "memory", "tier2": "memory://fenced-owner", "shared_tier2": True}
        old = SegmentStore(
            await open_store(str(tmp_path / "old"), options, {}, Runtime(), adapters)
        )
        await old.create_segment("x")
        await old.append("x", b"not in Tier 2 when the old owner was fenced")
        new = SegmentStore(
            await open_store(str(tmp_path / "new"), options, {}, Runtime(), adapters)
        )
        await new.flush()
        await new.checkpoint()
        # As if the cache had lost it: only the log is left to ask, and the new owner has cut that
        # off.
        cache_manager = old._containers[0]._read_index._cache_manager
        for segment_id in list(cache_manager._indexes):
            cache_manager.drop_segment(segment_id)
        with pytest.raises(NotPrimaryError):
            await old.read("x", 0, 100)
        assert await new.read("x", 0, 7) == b"not in "
        await old.close()
        await new.close()

    run(main())
