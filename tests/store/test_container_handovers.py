"""A container that another owner waits for: little is left to replay, and one that was fenced
meanwhile gives no old bytes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from segmentstore import ContainerNotServedError, NotPrimaryError, SegmentStore
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


def test_reads_wait_until_it_is_known_that_no_other_owner_has_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        tier2 = (tmp_path / "t2").as_uri()
        name = name_in(1, 2)
        async with (
            await world.open(tmp_path / "one", containers=2, tier2=tier2) as one,
            await world.open(tmp_path / "two", tier2=tier2, serve="0", take_over=True) as two,
        ):
            await one.create_segment(name)
            await one.append(name, b"before")
            registry_of(one).confirm(1)
            assert await one.read(name, 0, 100) == b"before", "it is the owner"
            await two.start_container(1)
            await two.append(name, b" after")
            # It was fenced, and nothing has shown it that yet.
            assert await one.read(name, 0, 100) == b"before"
            registry_of(one).confirm(1)
            registry_of(one).confirm(1)
            for read in (one.read(name, 0, 100), one.get_info(name)):
                with pytest.raises(NotPrimaryError):
                    await read
            assert await read_all(two, name) == b"before after"

    run(main())


def test_a_confirmation_without_an_answer_ends_with_the_container(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        name = name_in(1, 2)
        tier2 = (tmp_path / "t2").as_uri()
        async with await world.open(tmp_path / "one", containers=2, tier2=tier2) as one:
            await one.create_segment(name)
            registry_of(one).confirm(1)
            read = asyncio.ensure_future(one.read(name, 0, 100))
            await one.stop_container(1)
            with pytest.raises(ContainerNotServedError):
                await read
        assert world.all_closed()

    run(main())
