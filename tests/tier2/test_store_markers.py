"""Markers of stores: each knows its own from another's, whatever else lies in the place."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_names import marker_name, parse_marker_name
from tier2.object_storage import StorageUnavailableError, StoredObject
from tier2.store_markers import PlaceTakenError, StoreMarkers

ONE, TWO, THREE = (str(uuid.UUID(int=number)) for number in (1, 2, 3))


def with_storage(body: Callable[[MemoryObjectStorage], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await body(
            MemoryObjectStorage(
                Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
            )
        )

    run_virtual(main())


class SlowAnswers(MemoryObjectStorage):
    """The first listing takes a second to answer with what was there at its beginning."""

    async def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Sequence[StoredObject]]:
        pages = [page async for page in super().list(prefix, start_after)]
        if self.slow:
            self.slow = False
            await asyncio.sleep(1)
        for page in pages:
            yield page

    slow = True


def test_a_store_alone_shares_with_no_other() -> None:
    async def body(storage: MemoryObjectStorage) -> None:
        markers = StoreMarkers(storage, ONE)
        await markers.put()
        await markers.put()
        assert await markers.others() == []
        assert await markers.shared_with() is None
        assert list(storage.bucket.objects) == [marker_name(ONE)]

    with_storage(body)


def test_others_are_named_until_they_are_forgotten() -> None:
    async def body(storage: MemoryObjectStorage) -> None:
        for store_id in (THREE, ONE, TWO):
            await StoreMarkers(storage, store_id).put()
        await storage.put("stores/notes", [b"of a person"], bytes(16))
        markers = StoreMarkers(storage, ONE)
        assert await markers.others() == [TWO, THREE]
        assert f"store {TWO} and 1 more" in (await markers.shared_with() or "")
        assert await markers.forget(TWO)
        assert not await markers.forget(TWO)
        assert await markers.others() == [THREE]
        with pytest.raises(ValueError, match="badly formed"):
            await markers.forget("two")

    with_storage(body)


def test_a_second_store_is_refused_unless_it_is_meant() -> None:
    async def body(storage: MemoryObjectStorage) -> None:
        await StoreMarkers(storage, ONE).ensure()
        for call in (StoreMarkers.is_known, StoreMarkers.ensure, StoreMarkers.make):
            second = StoreMarkers(storage, TWO)
            with pytest.raises(
                PlaceTakenError, match=f"store {ONE} has its marker there, and no .*shared_tier2"
            ):
                await call(second)
            await second.withdraw()
            assert list(storage.bucket.objects) == [marker_name(ONE)]
        await storage.put("probe/" + "0" * 32, [b"x"], bytes(16))
        await storage.put("00/00000000/0000000000000001/flush-0", [b"x"], bytes(16))
        with pytest.raises(PlaceTakenError, match=f"store {ONE} keeps its objects there"):
            await StoreMarkers(storage, TWO).is_known()
        storage.fail("list", 1)
        with pytest.raises(StorageUnavailableError):
            await StoreMarkers(storage, TWO).is_known()
        meant = StoreMarkers(storage, TWO, is_meant=True)
        await meant.make()
        assert meant.health() == []
        # A store that is known there goes on, whichever came later; health says it.
        first = StoreMarkers(storage, ONE)
        assert await first.is_known()
        await first.shared_with()
        assert TWO in first.health()[0]

    with_storage(body)


def test_of_two_stores_that_are_created_at_once_both_are_refused() -> None:
    async def body(storage: MemoryObjectStorage) -> None:
        both = [StoreMarkers(storage, store_id) for store_id in (ONE, TWO)]
        for markers in both:
            assert not await markers.is_known()
        for markers in both:
            await markers.put()
        for markers in both:
            with pytest.raises(PlaceTakenError):
                await markers.make()
        # Cut off before it sees the other one, a making is refused when it goes on.
        for store_id in (ONE, TWO):
            assert await StoreMarkers(storage, store_id).is_known()
            with pytest.raises(PlaceTakenError):
                await StoreMarkers(storage, store_id).is_known(begun=False)
        for markers in both:
            await markers.withdraw()
        assert list(storage.bucket.objects) == []

    with_storage(body)


def test_a_marker_that_is_missing_is_put_back_and_reported() -> None:
    async def body(storage: MemoryObjectStorage) -> None:
        markers = StoreMarkers(storage, ONE)
        await markers.ensure()
        assert await markers.shared_with() is None
        storage.bucket.objects.clear()
        assert await markers.shared_with() is None
        assert list(storage.bucket.objects) == [marker_name(ONE)]
        assert "was put back" in markers.health()[0]

    with_storage(body)


def test_a_marker_that_is_put_beside_a_listing_is_not_missing() -> None:
    """The listing began before the marker was there, and ends behind it."""

    async def main() -> None:
        runtime = Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        markers = StoreMarkers(SlowAnswers(runtime), ONE)
        checking = asyncio.ensure_future(markers.shared_with())
        await asyncio.sleep(0.5)
        await markers.put()
        await markers.ensure()
        assert await checking is None
        assert markers.health() == []

    run_virtual(main())


def test_a_marker_whose_id_a_copy_lost_is_there_all_the_same() -> None:
    async def body(storage: MemoryObjectStorage) -> None:
        await storage.put(marker_name(ONE), [b"copied"], bytes(16))
        await StoreMarkers(storage, ONE).put()
        assert await StoreMarkers(storage, TWO).others() == [ONE]

    with_storage(body)


def test_what_is_a_marker() -> None:
    assert parse_marker_name(marker_name(ONE))
    for name in (
        "stores/",
        "stores/" + "g" * 32,
        "stores/" + "0" * 31,
        "store/" + "0" * 32,
        marker_name(ONE).upper(),
    ):
        assert not parse_marker_name(name)
