"""A client of a cluster while hosts are killed, connections cut and containers moved at random, in
virtual time.

Every event of a writer is there once and in order. Every acknowledged append is there once, and one
whose outcome is unknown once at most.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from uuid import UUID

import pytest

from segmentstore import AppendOutcomeUnknownError, ClusterStore
from tests.client.cluster_world import ClusterWorld, run_cluster
from tests.store.bookkeeper_world import name_in
from tests.store.harness import read_all
from tests.support.suites import share

NAMES = ("one", "two", "three")
ROUNDS = 8


class Traffic:
    """What one client does to one segment, until it is over."""

    def __init__(self, store: ClusterStore, name: str, number: int, rng: random.Random) -> None:
        self.name = name
        self._store = store
        self._number = number
        self._rng = rng
        self.is_over = False
        self.events: list[bytes] = []
        self.appended: dict[bytes, int | None] = {}
        """Offsets; None of unknown outcome."""

    async def write(self) -> None:
        """Send events without waiting for each."""
        writer = await self._store.writer(self.name, UUID(int=self._number + 1)).open()
        waiting: list[asyncio.Future[int | None]] = []
        while not self.is_over:
            for _ in range(self._rng.randrange(4)):
                event = b"<w%d>" % len(self.events)
                self.events.append(event)
                waiting.append(writer.append(event))
            await asyncio.sleep(self._rng.uniform(0.0, 0.05))
        await asyncio.gather(*waiting)

    async def append(self) -> None:
        """Append one after another."""
        count = 0
        while not self.is_over:
            data = b"<p%d>" % count
            count += 1
            try:
                self.appended[data] = await self._store.append(self.name, data)
            except AppendOutcomeUnknownError:
                self.appended[data] = None
            await asyncio.sleep(self._rng.uniform(0.0, 0.05))

    async def follow(self) -> bytes:
        """Read until the segment is sealed."""
        return b"".join([chunk async for chunk in self._store.reader(self.name, follow=True)])

    def check(self, data: bytes) -> None:
        """What the segment has in the end."""
        found = [part + b">" for part in data.split(b">")[:-1]]
        assert [each for each in found if each.startswith(b"<w")] == self.events
        plain = [each for each in found if each.startswith(b"<p")]
        assert len(plain) == len(set(plain))
        for each, offset in self.appended.items():
            if offset is not None:
                assert data[offset : offset + len(each)] == each
        assert set(plain) <= self.appended.keys()
        assert {each for each, offset in self.appended.items() if offset is not None} <= set(plain)


async def disturb(world: ClusterWorld, rng: random.Random) -> None:
    """Faults, one after another."""
    for _ in range(ROUNDS):
        await asyncio.sleep(rng.uniform(0.1, 2.0))
        name = rng.choice(sorted(world.hosts))
        kind = rng.choice(("kill", "cut", "move", "restart"))
        if kind == "cut":
            world.hosts[name].cut()
        elif kind == "move":
            await world.move(rng.randrange(world.containers), name)
        else:
            if kind == "kill":
                world.kill(name)
                await asyncio.sleep(rng.uniform(0.0, 20.0))
            else:
                await world.stop(name)
            await world.start(name)
        await world.until_served()


@pytest.mark.parametrize("seed", share(range(24), 24, 4.0))
def test_nothing_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    async def body(world: ClusterWorld) -> None:
        rng = random.Random(seed)
        async with world.client() as store:
            traffic = [
                Traffic(store, name_in(number, world.containers), number, rng)
                for number in range(world.containers)
            ]
            for each in traffic:
                await store.create_segment(each.name)
            works = [
                asyncio.ensure_future(work)
                for each in traffic
                for work in (each.write(), each.append())
            ]
            followers = [asyncio.ensure_future(each.follow()) for each in traffic]
            await disturb(world, rng)
            for each in traffic:
                each.is_over = True
            await asyncio.gather(*works)
            for each, follower in zip(traffic, followers, strict=True):
                await store.seal(each.name)
                data = await read_all(store, each.name)
                assert await follower == data
                each.check(data)

    run_cluster(tmp_path, body, *NAMES)
