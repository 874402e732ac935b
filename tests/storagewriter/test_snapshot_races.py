"""Metadata snapshots under crashes, take-overs and stale owners: the newest is always whole, and
nothing stays for ever.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from storagewriter.snapshot_uploader import KEPT
from tests.harness.fake_process import FakeProcess
from tests.storagewriter.snapshot_world import LAG_S, DiedError, SnapshotWorld, snapshot_world

SEEDS: Final = 25
STEPS: Final = 25


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_owners_do_the_newest_is_whole_and_unreferenced_objects_go(seed: int) -> None:
    with snapshot_world(seed) as world:
        rng = world.fakes.rng
        world.fakes.fault_rate = rng.choice((0.0, 0.02, 0.15))
        for _ in range(STEPS):
            if world.epoch == 0 or rng.random() < 0.3:
                for process in world.fakes.processes:
                    fate = rng.random()
                    if fate < 0.3:
                        process.die()
                    elif not process.dead:
                        # A stale owner that goes on, or stands still for a while.
                        process.paused = fate < 0.6
                owner = world.open()
                owner.begin(owner.live())
            world.run_for(rng.choice((0.005, 0.05, 1, 15, 2 * LAG_S)))
        for process in world.fakes.processes:
            process.paused = False
        world.run_for(LAG_S)
        assert len(world.bucket.seen) >= KEPT
        world.quiet()


class _Dying(FakeProcess):
    """Dies before the effect of this number."""

    def __init__(self, world: SnapshotWorld, dies_at: int) -> None:
        super().__init__(world.fakes, "dying")
        world.fakes.processes.append(self)
        self.left = dies_at

    def effect(self, kind: str, place: str, detail: str = "") -> None:
        if not self.left:
            self.die()
        self.left -= 1
        super().effect(kind, place, detail)


def _run_until_it_dies(world: SnapshotWorld, dies_at: int) -> bool:
    owner = world.open(_Dying(world, dies_at))

    async def work() -> None:
        await owner.take_over()
        owner.begin(owner.collect())
        for _ in range(4):
            await owner.snapshot()
            world.publish(owner)
            await owner.truncate(owner.truncation_points[-1])
            await asyncio.sleep(LAG_S)

    try:
        owner.process.run(work())
    except DiedError:
        return True
    return False


def test_an_owner_may_die_before_each_put_and_each_deletion() -> None:
    points = 0
    while True:
        with snapshot_world(points) as world:
            first = world.open()
            first.process.run(first.snapshot())
            world.publish(first)
            died = _run_until_it_dies(world, points)
            world.quiet()
        if not died:
            break
        points += 1
    assert points > 15
