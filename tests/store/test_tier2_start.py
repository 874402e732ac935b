"""What a store does about its Tier 2 when it opens: the check, the marker, and ending both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.tier2_start import LATER_S, TIMEOUT_S, Tier2Start
from tests.support.loop_clock import LoopClock
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_names import marker_name
from tier2.object_storage import ObjectNotFoundError, StorageRefusedError
from tier2.store_markers import StoreMarkers

STORE = "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10"


class Storage(MemoryObjectStorage):
    """Its check is what the test says."""

    on_check: Callable[[], Awaitable[None]]

    async def check(self) -> None:
        await self.on_check()


def run(case: Callable[[Storage, Tier2Start], Awaitable[None]]) -> None:
    async def whole() -> None:
        storage = Storage(
            Runtime(clock=LoopClock(), random=random.Random(1), executor=inline_executor)
        )
        await case(storage, Tier2Start(storage, StoreMarkers(storage, STORE)))

    run_virtual(whole())


async def refuse() -> None:
    raise StorageRefusedError("probe", "no permission to list uploads")


async def lose() -> None:
    raise ObjectNotFoundError("probe", "no such object")


def test_a_store_that_was_there_is_known_whatever_its_check_says() -> None:
    """It takes objects all the same: others must see that they are not alone."""

    async def case(storage: Storage, start: Tier2Start) -> None:
        storage.on_check = refuse
        start.begin()
        await asyncio.sleep(LATER_S + 1)
        assert list(storage.bucket.objects) == [marker_name(STORE)]
        assert "no permission" in start.health()[0]
        await start.stop()

    run(case)


def test_a_store_is_not_registered_before_its_check_has_passed() -> None:
    async def case(storage: Storage, start: Tier2Start) -> None:
        for storage.on_check in (refuse, lose):
            with pytest.raises(ConfigError, match="probe"):
                await start.require_answer()
            assert not storage.bucket.objects

    run(case)


def test_a_probe_that_is_missing_at_once_is_said_in_health() -> None:
    async def case(storage: Storage, start: Tier2Start) -> None:
        storage.on_check = lose
        start.begin()
        await asyncio.sleep(LATER_S + 1)
        assert "no such object" in start.health()[0]
        await start.stop()

    run(case)


def test_ending_a_check_does_not_wait_for_a_tier_2_that_hangs() -> None:
    async def case(storage: Storage, start: Tier2Start) -> None:
        async def hang() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(60)

        storage.on_check = hang
        start.begin()
        await asyncio.sleep(LATER_S + 1)
        begun = asyncio.get_running_loop().time()
        await start.stop()
        assert asyncio.get_running_loop().time() - begun <= 3 * TIMEOUT_S

    run(case)
