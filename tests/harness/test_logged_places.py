"""Appends that recovery leaves in the log, on the simulated disk: owners die while these are read,
flushed and truncated behind, and the log rots under their places.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from recovery.harness.simulation.store_world import LOCATION, StoreWorld
from recovery.harness.simulation.world import ProcessDiedError, SimulatedProcess
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    NotPrimaryError,
    TierUnavailableError,
)
from segmentstore.service import SegmentStore
from tests.support.suites import size, sized

WORLDS = size("LOGGED_PLACES_WORLDS", 3, 30)
PROCESS_RUNS = 8
KIB = 1024

SETTINGS = {
    "frame_bytes_max": 24 * KIB,
    "log_file_bytes": 48 * KIB,
    "tail_bytes_max": 32 * KIB,
    "flush_bytes": 1 << 20,
    "object_bytes": 1 << 20,
    "upload_bytes_max": 1 << 20,
    "flush_age_s": 1000.0,
    "unflushed_target_bytes": 1 << 30,
}

UNAVAILABLE = (TierUnavailableError, ContainerStoppedError)
STOPPED = (NotPrimaryError, ContainerStoppedError)


class Truth:
    """What was acknowledged: bytes and start offset of each segment."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.content: dict[str, bytearray] = {}
        self.start: dict[str, int] = {}
        self.made = 0

    async def make(self, store: SegmentStore) -> str:
        self.made += 1
        name = f"s{self.made}"
        await store.create_segment(name)
        self.content[name], self.start[name] = bytearray(), 0
        return name

    async def append_some(self, store: SegmentStore, name: str) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            data = self.rng.randbytes(self.rng.choice((50, 4095, 4096, 6000, 20_000)))
            await store.append(name, data)
            self.content[name] += data

    async def change(self, store: SegmentStore) -> None:
        names = [await self.make(store) for _ in range(max(2, 6 - len(self.content)))]
        names = self.rng.sample(list(self.content), 4)
        await asyncio.gather(*(self.append_some(store, name) for name in names))
        cut, gone, target, source = names
        if self.content[cut]:
            self.start[cut] = self.rng.randint(self.start[cut], len(self.content[cut]))
            await store.truncate(cut, self.start[cut])
        if self.rng.random() < 0.5:
            await store.delete(gone)
            del self.content[gone], self.start[gone]
        if self.rng.random() < 0.5 and not self.start[source]:
            await store.merge(target, source)
            self.content[target] += self.content.pop(source)
            del self.start[source]

    async def check(self, store: SegmentStore, name: str) -> None:
        content, offset = self.content[name], self.start[name]
        while offset < len(content):
            data = await store.read(name, offset, self.rng.choice((1, 5000, 30_000, 1 << 20)))
            assert data
            assert data == content[offset : offset + len(data)], (name, offset)
            offset += max(1, len(data) - self.rng.choice((0, 0, 10)))


def logged_bytes(store: SegmentStore) -> int:
    return store.stats()["containers"][0]["read_index"]["logged_bytes"]


@sized(20)
@pytest.mark.parametrize("faults", ["none", "reads"])
def test_owners_die_while_replayed_appends_are_wanted(faults: str) -> None:
    rates = {"disk.read.eio": 0.02} if faults == "reads" else {}
    met = left = 0
    for number in range(WORLDS):
        rng = random.Random(f"{faults}/{number}")
        world = StoreWorld(f"logged/{faults}/{number}", settings=SETTINGS)
        truth = Truth(rng)

        async def process_run(process: SimulatedProcess, world: StoreWorld, truth: Truth) -> None:
            nonlocal met, left
            world.rates = {}
            store = await world.open_store(process)
            met += logged_bytes(store)
            world.rates = rates
            wanted = [truth.check(store, name) for name in (*truth.content, *truth.content)]
            for outcome in await asyncio.gather(*wanted, return_exceptions=True):
                assert outcome is None or (rates and isinstance(outcome, UNAVAILABLE)), outcome
            world.rates = {}
            if any("stopped" in note for note in store.stats()["health"]):
                # A truncation behind the opening met a fault.
                await store.close()
                return
            replayed = logged_bytes(store)
            await truth.change(store)
            left += logged_bytes(store) > replayed
            process.dies_at = process.effects + truth.rng.randrange(60)
            flushes = [store.flush(name) for name in truth.rng.sample(list(truth.content), 2)]
            await asyncio.gather(*flushes, *(truth.check(store, name) for name in truth.content))
            await store.checkpoint()
            await asyncio.gather(*(truth.check(store, name) for name in truth.content))
            process.dies_at = None
            if truth.rng.random() < 0.5:
                await store.close()

        for _ in range(PROCESS_RUNS):
            process = world.process("owner")
            try:
                world.run_task(process, process_run(process, world, truth))
                world.kill(process)
            except ProcessDiedError:
                pass
            if rng.random() < 0.5:
                world.cut_power()
        assert world.unhandled == []
        world.close()
    # 150,000 on the average, and half of that in three worlds whose owners die early.
    assert met > 50_000 * WORLDS
    # Live appends did as well, in most processes that lived to make some.
    assert left > WORLDS


def test_bit_rot_under_a_place_is_reported_and_goes_nowhere() -> None:
    """Readers and uploads of what rotted are reported; others get theirs; once it is undone nothing
    has been harmed.
    """
    world = StoreWorld("logged/rot", settings=SETTINGS)
    sound, rotten = b"sound..." * 800, b"rotten.." * 800

    async def leave(process: SimulatedProcess) -> None:
        store = await world.open_store(process)
        await store.create_segment("sound")
        await store.create_segment("rotten")
        await store.append("sound", sound)
        await store.append("rotten", rotten)
        await store.close()

    flips: list[tuple[str, int]] = []

    def flip() -> None:
        for path, at in flips:
            world.image.flip_bit(path, at, 3)

    async def meet(process: SimulatedProcess) -> None:
        store = await world.open_store(process)
        assert logged_bytes(store) == len(sound) + len(rotten)
        flips.extend(
            (path, world.image.read(path).index(b"rotten..") + 100)
            for path in world.image.files()
            if path.startswith(f"{LOCATION}/log/") and b"rotten.." in world.image.read(path)
        )
        flip()
        with pytest.raises(DataCorruptionError, match=LOCATION):
            await store.read("rotten", 0, 10)
        assert await store.read("sound", 0, 1 << 20) == sound
        await store.flush("sound")
        with pytest.raises(ContainerStoppedError, match=LOCATION):
            await store.flush("rotten")
        assert any(LOCATION in note for note in store.stats()["health"])
        payloads = [each.data for each in world.bucket.objects.values()]
        assert sum(b"sound..." in each for each in payloads) == 1
        assert not any(b"rotten.." in each for each in payloads)
        await store.close()
        flip()

    async def mend(process: SimulatedProcess) -> None:
        store = await world.open_store(process)
        assert await store.read("sound", 0, 1 << 20) == sound
        assert await store.read("rotten", 0, 1 << 20) == rotten
        await store.flush()
        assert logged_bytes(store) == 0
        assert await store.read("rotten", 0, 1 << 20) == rotten
        await store.close()

    for process_run in (leave, meet, mend):
        process = world.process("owner")
        world.run_task(process, process_run(process))
        world.kill(process)
    world.close()


def test_an_owner_that_was_fenced_never_gives_other_bytes() -> None:
    """Its places are in files that its successor deletes."""
    world = StoreWorld("logged/takeover", settings=SETTINGS)
    content = random.Random(5).randbytes(6000 * 30)

    async def leave(process: SimulatedProcess) -> None:
        store = await world.open_store(process)
        await store.create_segment("x")
        for offset in range(0, len(content), 6000):
            await store.append("x", content[offset : offset + 6000])
        await store.close()

    async def follow(process: SimulatedProcess) -> None:
        store = await world.open_store(process)
        assert logged_bytes(store) > len(content) // 2
        await store.flush()
        await store.checkpoint()
        await store.create_segment("y")
        for _ in range(30):
            # Files that the truncations free are written over by these.
            await store.append("y", bytes(6000))
            await store.flush()
            await store.checkpoint()
        await store.close()

    async def opened(process: SimulatedProcess) -> SegmentStore:
        store = await world.open_store(process)
        assert logged_bytes(store) > len(content) // 2
        return store

    async def read(store: SegmentStore) -> list[object]:
        reads = (store.read("x", offset, 6000) for offset in range(0, len(content), 6000))
        return list(await asyncio.gather(*reads, return_exceptions=True))

    world.run_task(leaver := world.process("first"), leave(leaver))
    old = world.process("old")
    store = world.run_task(old, opened(old))
    world.image.release_locks(old.name)
    world.run_task(new := world.process("new"), follow(new))
    for place, found in enumerate(world.run_task(old, read(store))):
        assert found == content[place * 6000 :][:6000] or isinstance(found, STOPPED), found
    assert all(isinstance(found, STOPPED) for found in world.run_task(old, read(store)))
    world.run_task(old, store.close())
    assert world.unhandled == []
    world.close()
