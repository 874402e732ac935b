"""The archive of ledgers in a simulated bucket: its contract, and attempts that meet faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from recovery.harness.simulation.object_storage import SimulatedBucket, SimulatedObjectStorage
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.ledgers import LedgerNotFoundError
from tests.contracts.ledger_offloader_contract import LedgerOffloaderContract, entries_of
from tests.harness.fake_process import DiedError, FakeWorld, fake_world
from tests.support.fake_ledger import FakeLedger, pulsar_payload
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.object_storage import ObjectStorage

LEDGER = 3
FAULTS = (
    "object.put.failed",
    "object.put.lost-reply",
    "object.put.twice",
    "object.get.failed",
    "object.get.truncated",
    "object.get.wrong-range",
    "object.head.failed",
    "object.delete.failed",
    "object.delete.lost-reply",
    "object.list.failed",
    "object.slow",
    "object.burst",
)


class TestInASimulatedBucket(LedgerOffloaderContract):
    @pytest.fixture(autouse=True)
    def _in(self) -> None:
        self.world = FakeWorld()

    def make_storage(self, folder: Path) -> ObjectStorage:
        return SimulatedObjectStorage(SimulatedBucket(), self.process)

    def run(self, folder: Path, case: Callable[[ObjectLedgerOffloader], Awaitable[None]]) -> None:
        self.process = self.world.process()

        async def body() -> None:
            offloader = self.make(folder)
            await case(offloader)
            await offloader.close()

        self.process.run(body())
        self.world.close()


def a_ledger(source: random.Random) -> FakeLedger:
    sizes = [source.randint(0, 300) for _ in range(source.randint(1, 20))]
    return FakeLedger([pulsar_payload(each, size) for each, size in enumerate(sizes)], LEDGER)


async def until_done(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await call()
        except TierUnavailableError:
            await asyncio.sleep(60)
        else:
            return


@pytest.mark.parametrize("seed", range(40))
def test_a_ledger_is_archived_whole_or_not_at_all_whatever_happens(seed: int) -> None:
    """As an owner does it: a new uid each time, and the objects of the last one deleted before."""
    with fake_world(seed) as world:
        source = random.Random(seed)
        bucket, ledger = SimulatedBucket(), a_ledger(source)
        process = world.process()
        storage = SimulatedObjectStorage(bucket, process)
        offloader = ObjectLedgerOffloader(
            storage, block_bytes=700, mapping_bytes=200, read_bytes=150
        )

        async def body() -> None:
            uids: list[bytes] = []
            while True:
                for fault in FAULTS:
                    if source.random() < 0.5:
                        world.plan(fault, source.randint(1, 3), after=source.randint(0, 8))
                if uids:
                    await until_done(lambda: offloader.delete_offloaded(LEDGER, uids[-1]))
                uids.append(source.randbytes(16))
                try:
                    await offloader.offload(ledger, uids[-1])
                except TierUnavailableError:
                    continue
                break
            world.heal()
            bucket.heal()
            for uid in uids[:-1]:
                with pytest.raises(LedgerNotFoundError):
                    await offloader.read_offloaded(LEDGER, uid)
            found: list[list[bytes]] = []

            async def read() -> None:
                handle = await offloader.read_offloaded(LEDGER, uids[-1])
                assert handle.metadata == ledger.metadata
                found.append(await entries_of(handle, 0, ledger.last_entry))

            await until_done(read)
            assert found[-1] == ledger.entries
            assert len(bucket.objects) == 2
            await until_done(lambda: offloader.delete_offloaded(LEDGER, uids[-1]))
            assert not bucket.objects
            assert not bucket.unfinished

        process.run(body())


@pytest.mark.parametrize("when", ["put of the data", "put of the index"])
def test_what_a_process_leaves_that_dies_is_deleted_by_its_uid(when: str) -> None:
    with fake_world() as world:
        bucket = SimulatedBucket()
        process = world.process()
        storage = SimulatedObjectStorage(bucket, process)
        offloader = ObjectLedgerOffloader(storage, block_bytes=700)
        ledger = FakeLedger([bytes(400)] * 4, LEDGER)

        async def first() -> None:
            if when == "put of the data":
                process.dies_before = "object.put"
            else:
                # The next put is that of the data.
                world_put = storage.put

                async def put(*arguments: object, **more: object) -> None:
                    process.dies_before = "object.put"
                    await world_put(*arguments, **more)  # type: ignore[arg-type]

                storage.put = put  # type: ignore[method-assign]
            await offloader.offload(ledger, bytes(16))

        with pytest.raises(DiedError):
            process.run(first())
        bucket.settle_all()
        assert len(bucket.objects) == (when == "put of the index")
        assert len(bucket.unfinished) == (when == "put of the data")
        other = world.process()
        successor = ObjectLedgerOffloader(SimulatedObjectStorage(bucket, other), block_bytes=700)

        async def then() -> None:
            with pytest.raises(LedgerNotFoundError):
                await successor.read_offloaded(LEDGER, bytes(16))
            await successor.delete_offloaded(LEDGER, bytes(16))

        other.run(then())
        assert not bucket.objects
        assert not bucket.unfinished
