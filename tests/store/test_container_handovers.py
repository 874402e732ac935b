"""A container that another owner waits for: little is left to replay."""

from __future__ import annotations

from pathlib import Path

from segmentstore import SegmentStore
from segmentstore.container import ContainerRegistry
from tests.store.bookkeeper_world import BookKeeperWorld, name_in
from tests.store.harness import read_all, run


def registry_of(store: SegmentStore) -> ContainerRegistry:
    return store._parts.registry


def test_a_container_that_is_handed_over_leaves_little_to_replay(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        tier2 = (tmp_path / "t2").as_uri()
        name = name_in(1, 2)
        async with (
            await world.open(tmp_path / "one", containers=2, tier2=tier2) as one,
            await world.open(tmp_path / "two", tier2=tier2, serve="0", take_over=True) as two,
        ):
            await one.create_segment(name)
            for _ in range(50):
                await one.append(name, b"x" * 100)
            await registry_of(one).hand_over(1, lambda: False)
            assert one.served == [0, 1], "it is not wanted any more"
            assert await one.append(name, b"y") == 5000
            asked: list[list[int]] = []

            def is_wanted() -> bool:
                asked.append(one.served)
                return True

            await registry_of(one).hand_over(1, is_wanted)
            assert asked == [[0, 1]], "it serves until then"
            assert one.served == [0]
            await two.start_container(1)
            stats = two.stats()["containers"][1]
            assert stats["recovery"]["operations"] < 10
            assert await read_all(two, name) == b"x" * 5000 + b"y"

    run(main())
