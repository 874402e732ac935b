"""Random runs of a file log on a disk that fills up and is freed: every append is answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from durablelog.durable_data_log import LogAddress, LogFullError
from durablelog.file.file_log import FileLog
from recovery.harness.simulation.world import SimulatedProcess, World
from tests.support.suites import size, sized

PAYLOAD_BYTES = 32 * 1024
BLOCK_BYTES = 4096
STUCK_S = 100.0
"""Many times the longest interval between two tries to find room."""
SEEDS = size("FULL_DISK_SEEDS", 8, 100)


class Life:
    """One opening of a log, with tasks that append to it and free room in it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(f"full-disk/{seed}")
        self.process = self.world.process("owner")
        # The smallest files hold no more than three frames.
        self.file_bytes = int(PAYLOAD_BYTES * self.random.choice((3.3, 4, 6, 12, 24)))
        self.window = self.random.choice((1, 2, 4, 16, 64))
        self.appended: list[bytes] = []
        self.acknowledged: list[LogAddress] = []
        self.in_flight = 0
        self.stopping = False
        self.last_s = 0.0
        """When a frame was last acknowledged."""

    def make_log(self, process: SimulatedProcess) -> FileLog:
        return FileLog(
            "/log",
            0,
            process.runtime,
            file_bytes=self.file_bytes,
            payload_bytes_max=PAYLOAD_BYTES,
        )

    async def open(self, create_faults: float = 0.0) -> None:
        """`create_faults`: how often no file can be made or named, whatever room there is."""
        self.log = self.make_log(self.process)
        await self.log.open()
        self.world.rates["disk.create.enospc"] = create_faults
        self.room = asyncio.Event()
        self.log.on_room = self.room.set

    def append(self, length: int) -> asyncio.Future[LogAddress]:
        payload = len(self.appended).to_bytes(8, "big") + bytes(length)
        self.appended.append(payload[:length])
        self.in_flight += 1
        future = self.log.append([self.appended[-1]])
        future.add_done_callback(self._settled)
        return future

    def _settled(self, future: asyncio.Future[LogAddress]) -> None:
        self.in_flight -= 1
        self.acknowledged.append(future.result())
        self.last_s = asyncio.get_running_loop().time()

    async def write(self, *, heeds_full: bool = True) -> None:
        """Append as callers do: the throttle holds them while the log is full."""
        while not self.stopping:
            if self.in_flight >= self.window or (heeds_full and self.log.full):
                await asyncio.sleep(0.02)
                continue
            rng = self.random
            _ = self.append(
                rng.choice(
                    (
                        1,
                        100,
                        PAYLOAD_BYTES // 2,
                        PAYLOAD_BYTES,
                        PAYLOAD_BYTES,
                        rng.randint(1, PAYLOAD_BYTES),
                    )
                )
            )
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.02)

    async def make_room(self) -> None:
        """Append and truncate as the engine does: a storage update, a checkpoint, a truncation at
        it.
        """
        rng = self.random
        while not self.stopping:
            await asyncio.sleep(rng.random() * 0.05)
            await self.append(rng.choice((300, 2000)))
            checkpoint = [self.append(PAYLOAD_BYTES) for _ in range(rng.choice((0, 0, 1)))]
            checkpoint.append(self.append(rng.choice((500, PAYLOAD_BYTES // 2))))
            first, *_ = [await frame for frame in checkpoint]
            while not await self._truncated(first):
                self.room.clear()
                await asyncio.wait((asyncio.ensure_future(self.room.wait()),), timeout=10)

    async def _truncated(self, address: LogAddress) -> bool:
        try:
            await self.log.truncate(address)
        except LogFullError:
            return False
        return True

    async def watch(
        self, seconds: float, frames: int = 40, *, tasks: list[asyncio.Task[None]]
    ) -> None:
        """Let time pass until so many frames more were acknowledged; some writer must get on."""
        loop = asyncio.get_running_loop()
        end_s, goal = loop.time() + seconds, len(self.acknowledged) + frames
        while loop.time() < end_s and len(self.acknowledged) < goal:
            await asyncio.sleep(0.05)
            for task in tasks:
                if task.done():
                    task.result()
            assert loop.time() - self.last_s < STUCK_S, "nothing is acknowledged any more"

    async def settle(self) -> None:
        """What waits is written, now that there is room."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + STUCK_S
        while self.in_flight:
            assert loop.time() < end_s, f"{self.in_flight} frames wait for ever"
            await asyncio.sleep(0.1)

    def fill(self) -> None:
        """No room at all, or a little."""
        self.world.image.fill()
        if self.random.random() < 0.5:
            self.free(self.random.randint(0, 40) * BLOCK_BYTES)

    def free(self, count: int | None = None) -> None:
        """So much, or all there could be."""
        image = self.world.image
        image.capacity = None if count is None else image.used() + count

    async def check(self) -> None:
        """Everything is at rest: what the log knows of its room is so, and its frames are there."""
        assert self.acknowledged == sorted(self.acknowledged)
        assert len(self.acknowledged) == len(self.appended)
        await asyncio.sleep(30)
        preparer = self.log._preparer
        assert preparer.ready_bytes == (preparer.prepared.room if preparer.prepared else 0)
        assert self.log._room == self.log._folder.writer.room
        assert not self.log.short
        await self.log.close()
        again = self.make_log(self.process)
        await again.open()
        found = [
            (each.address, bytes(each.payload)) async for batch in again.read() for each in batch
        ]
        written = list(zip(self.acknowledged, self.appended, strict=True))
        assert 0 < len(found) <= len(written)
        assert [payload for _, payload in found] == [
            payload for _, payload in written[-len(found) :]
        ]
        await again.close()


def with_truncations(life: Life) -> None:
    """Shortages that pass, and in the end one that does not."""
    rng = life.random

    async def main() -> None:
        await life.open()
        life.last_s = asyncio.get_running_loop().time()
        tasks = [asyncio.ensure_future(life.write()), asyncio.ensure_future(life.make_room())]

        async def get_sound() -> None:
            life.free()
            while life.log.short or not life.log._folder.reserve.whole:
                await life.watch(1, 5, tasks=tasks)

        await life.watch(rng.random() * 0.3, tasks=tasks)
        for _ in range(rng.randint(0, 3)):
            await get_sound()
            life.fill()
            await life.watch(rng.choice((0.01, 0.1, 1, 20)), tasks=tasks)
            if rng.random() < 0.7:
                life.free()
                await life.watch(rng.choice((0.01, 0.1, 1)), tasks=tasks)
        await get_sound()
        await life.watch(rng.random() * 0.5, rng.randint(0, 60), tasks=tasks)
        life.world.image.fill()
        await life.watch(1e6, 120, tasks=tasks)
        life.stopping = True
        life.free()
        await asyncio.gather(*tasks)
        await life.settle()
        await life.check()

    life.world.run_task(life.process, main())


def without_truncations(life: Life, *, heeds_full: bool, create_faults: float = 0.0) -> None:
    """Only the disk makes room."""
    rng = life.random

    async def main() -> None:
        await life.open(create_faults)
        writing = asyncio.ensure_future(life.write(heeds_full=heeds_full))
        for _ in range(rng.randint(1, 4)):
            await asyncio.sleep(rng.choice((0.0, 0.05, 0.3)))
            life.fill()
            await asyncio.sleep(rng.choice((0.01, 0.1, 1, 20)))
            if rng.random() < 0.3:
                life.free(rng.randint(0, 100) * BLOCK_BYTES)
                await asyncio.sleep(rng.choice((0.1, 6)))
            life.free()
            life.last_s = asyncio.get_running_loop().time()
            await life.watch(1e6, 5, tasks=[writing])
        life.stopping = True
        await writing
        await life.settle()
        life.world.rates.clear()
        await life.check()

    life.world.run_task(life.process, main())


def live_each(live: Callable[[Life], None], seeds: int) -> None:
    for seed in range(seeds):
        life = Life(seed)
        try:
            live(life)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            life.world.close()


@sized(15)
def test_a_log_that_is_truncated_gets_on_on_a_disk_that_stays_full() -> None:
    live_each(with_truncations, SEEDS)


@sized(15)
@pytest.mark.parametrize("create_faults", [0.0, 0.2])
@pytest.mark.parametrize("heeds_full", [True, False])
def test_every_frame_is_acknowledged_once_the_disk_has_room(
    heeds_full: bool, create_faults: float
) -> None:
    live_each(
        lambda life: without_truncations(life, heeds_full=heeds_full, create_faults=create_faults),
        SEEDS,
    )
