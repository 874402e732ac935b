"""A store on BookKeeper (in memory) as its callers meet it: without await, while too few bookies
are up, and when it stops.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from durablelog.bookkeeper import ownership_lease
from durablelog.frame_requests import REQUEST_BYTES
from segmentstore import (
    AttributeUpdate,
    ContainerStoppedError,
    TierUnavailableError,
    UpdateType,
    blocking,
)
from segmentstore.open_stores import register
from segmentstore.service import SegmentStore
from segmentstore.store_thread import StoreThread
from tests.store.bookkeeper_world import BookKeeperWorld
from tests.store.harness import attribute, read_all, run, until

WAIT_S = 60
QUEUE_BYTES = 20_000
IN_FLIGHT_BYTES = 2_000
FRAME_BYTES = 200


def open_blocking(world: BookKeeperWorld, folder: Path, **options: Any) -> blocking.SegmentStore:
    """As `blocking.open` does, on this world's services."""

    async def opened() -> SegmentStore:
        store = await world.open(folder, **options)
        register(store._parts).watch(store)
        return store

    thread = StoreThread(opened)
    return blocking.SegmentStore(thread, thread.open())


def test_the_blocking_api_serves_many_threads(tmp_path: Path) -> None:
    def work(number: int) -> bytes:
        name = f"s/{number}"
        store.create_segment(name, [AttributeUpdate(attribute(1), UpdateType.REPLACE, number)])
        with store.writer(name, UUID(int=number + 100)) as writer:
            for event in range(10):
                writer.append(b"<%d>" % event * (number + 1))
            assert writer.append(b"again", 3) is None
        futures = [store.append_nowait(name, b"%d." % each) for each in range(10)]
        offsets = [future.result(WAIT_S) for future in futures]
        assert offsets == sorted(set(offsets))
        store.flush(name)
        store.create_segment(name + "/source")
        store.append_batch(name + "/source", [b"a", b"b"])
        store.merge(name, name + "/source")
        store.update_attributes(name, [AttributeUpdate(attribute(1), UpdateType.ACCUMULATE, 1)])
        store.truncate(name, 1)
        store.seal(name)
        return b"".join(store.reader(name, 1))

    world = BookKeeperWorld()
    with open_blocking(world, tmp_path / "one") as store, ThreadPoolExecutor(8) as threads:
        contents = list(threads.map(work, range(8)))
        store.checkpoint()
    dots = b"".join(b"%d." % each for each in range(10))
    for number, content in enumerate(contents):
        assert (
            content
            == (b"".join(b"<%d>" % event * (number + 1) for event in range(10)) + dots + b"ab")[1:]
        )
    with open_blocking(world, tmp_path / "two") as store:
        assert [info.name for info in store.list_segments()] == [
            f"s/{number}" for number in range(8)
        ]
        for number, content in enumerate(contents):
            assert b"".join(store.reader(f"s/{number}", 1)) == content
            assert store.get_attributes(f"s/{number}", [attribute(1)]) == {attribute(1): number + 1}
        assert store.stats()["health"] == []
    assert world.all_closed()


def numbers_of(store: Any, part: str) -> Any:
    return store.stats()["containers"][0][part]


def test_with_too_few_bookies_memory_is_bounded_and_all_is_acknowledged_later(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        store = await world.open(
            tmp_path / "s",
            queue_bytes_max=QUEUE_BYTES,
            in_flight_bytes_max=IN_FLIGHT_BYTES,
            frame_bytes_max=FRAME_BYTES,
        )
        await store.create_segment("a")
        assert await store.append("a", b"first ") == 0
        world.cluster.bookies_up = 1
        sent: list[tuple[bytes, asyncio.Future[int]]] = []
        for number in range(2000):
            data = b"%d " % number
            sent.append((data, store.append("a", data)))
            if number % 20 == 0:
                await asyncio.sleep(0)
            processor, log = numbers_of(store, "processor"), numbers_of(store, "log")
            assert processor["queue_bytes"] <= QUEUE_BYTES + REQUEST_BYTES
            # The last frame goes when there is any room.
            assert processor["bytes_in_flight"] < IN_FLIGHT_BYTES + FRAME_BYTES
            assert log["bytes_in_flight"] < IN_FLIGHT_BYTES + 2 * FRAME_BYTES
        await until(lambda: any("bookies" in finding for finding in store.stats()["health"]))
        refused = [future for _, future in sent if future.done()]
        assert refused
        for future in refused:
            error = future.exception()
            assert isinstance(error, TierUnavailableError)
            assert error.tier == "tier1"
        taken = [(data, future) for data, future in sent if not future.done()]
        assert sum(len(data) + REQUEST_BYTES for data, _ in taken) > QUEUE_BYTES
        world.cluster.bookies_up = 3
        expected = b"first "
        for data, future in taken:
            assert await future == len(expected)
            expected += data
        assert await read_all(store, "a") == expected
        assert await store.append("a", b"last") == len(expected)
        assert store.stats()["health"] == []
        await store.close()

    run(main())


def test_an_unexpected_code_of_bytes_read_back_stops_the_container_and_costs_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        store = await world.open(tmp_path / "s")
        await store.create_segment("a")
        await store.append("a", b"not in Tier 2 yet")
        # As if the cache had lost it: only the ledgers are left to ask.
        cache_manager = store._containers[0]._read_index._cache_manager
        for segment_id in list(cache_manager._indexes):
            cache_manager.drop_segment(segment_id)
        world.cluster.fail("read", -999)
        with pytest.raises(TierUnavailableError, match="-999 UnexpectedCondition"):
            await store.read("a", 0, 100)
        ledgers = {number: list(ledger.entries) for number, ledger in world.cluster.ledgers.items()}
        with pytest.raises(ContainerStoppedError):
            await store.append("a", b"more")
        await until(lambda: bool(numbers_of(store, "state") == "stopped"))
        assert any("-999 UnexpectedCondition" in finding for finding in store.stats()["health"])
        assert {
            number: ledger.entries for number, ledger in world.cluster.ledgers.items()
        } == ledgers
        await store.close()
        async with await world.open(tmp_path / "s") as again:
            assert await read_all(again, "a") == b"not in Tier 2 yet"

    run(main())


def test_an_idle_store_that_was_overtaken_stops_and_says_so_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership_lease, "_CHECK_AFTER_S", 0.01)

    async def main() -> None:
        world = BookKeeperWorld()
        first = await world.open(tmp_path / "one", containers=1)
        second = await world.open(tmp_path / "two")
        await until(lambda: bool(numbers_of(first, "state") == "stopped"))
        (finding,) = first.stats()["health"]
        assert finding.startswith("container 0 is stopped")
        assert "its record is of epoch 2, we are 1" in finding
        assert second.stats()["health"] == []
        await first.close()
        await second.create_segment("a")
        await second.close()

    run(main())
