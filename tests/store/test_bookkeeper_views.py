"""Stores on BookKeeper (in memory) that are checked while they are owned: what is shown, and that
no owner is disturbed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from durablelog.bookkeeper.log_metadata import decode_record
from durablelog.bookkeeper.store_node import container_path
from segmentstore import (
    ConfigError,
    ContainerStoppedError,
    DataCorruptionError,
    NotAStoreError,
    ReadOnlyViewError,
    SegmentStore,
    TierUnavailableError,
)
from segmentstore.contracts.runtime import Runtime
from segmentstore.read_only_view import open_view
from tests.store.bookkeeper_world import ROOT, URL, BookKeeperWorld, name_in
from tests.store.harness import UNFLUSHED, read_all, run

ENVIRONMENT = {"SEGMENTSTORE_TIER1": URL}


class World(BookKeeperWorld):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.names = name_in(0, 2), name_in(1, 2)

    async def owner(self) -> SegmentStore:
        return await self.open(self.folder / "owner", **{**UNFLUSHED, "containers": 2})

    async def view(
        self, folder: str = "elsewhere", environment: Mapping[str, str] = ENVIRONMENT
    ) -> SegmentStore:
        return await open_view(
            str(self.folder / folder), environment, Runtime(), clients=self.bookkeeper
        )

    def outside(self) -> object:
        """What a check could change: whose the logs are, whether what is written can be written,
        folders.
        """
        seen = []
        for container_id in (0, 1):
            content = self.tree.content(container_path(ROOT, container_id))
            assert content is not None
            record = decode_record(content.data, ROOT)
            seen.append((record.epoch, self.cluster.ledgers[record.ledgers[-1].ledger_id].closed))
        return seen, (self.folder / "elsewhere").exists()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_view_of_a_cluster_shows_all_containers(world: World) -> None:
    async def main() -> None:
        async with await world.owner() as owner:
            for name in world.names:
                await owner.create_segment(name)
                await owner.append(name, b"x")
            host = {"SEGMENTSTORE_SERVE": "cluster", "SEGMENTSTORE_WIRE_PORT": "1"}
            async with await world.view(environment={**ENVIRONMENT, **host}) as view:
                assert view.served == [0, 1]
                assert [await read_all(view, name) for name in world.names] == [b"x", b"x"]

    run(main())


def test_a_view_shows_what_is_acknowledged_and_takes_nothing_from_the_owner(world: World) -> None:
    async def main() -> None:
        async with await world.owner() as owner:
            for turn in range(3):
                for name in world.names:
                    if not turn:
                        await owner.create_segment(name)
                    for _ in range(30):  # a roll of ledgers now and then
                        await owner.append(name, b"%d " % turn * 50)
                if turn == 1:
                    await owner.flush()
                    await owner.checkpoint()
                before = world.outside()
                for folder, environment in (
                    ("elsewhere", ENVIRONMENT),
                    ("owner", {"SEGMENTSTORE_SERVE": "1"}),
                ):
                    async with await world.view(folder, environment) as view:
                        for name in world.names:
                            assert await read_all(view, name) == await read_all(owner, name)
                        assert [info.name async for info in view.list_segments()] == sorted(
                            world.names
                        )
                assert world.outside() == before
            await owner.append(world.names[0], b"it is the owner still")
        assert world.all_closed()

    run(main())


def test_what_would_change_something_is_refused_by_a_view(world: World) -> None:
    async def main() -> None:
        async with await world.owner() as owner:
            await owner.create_segment(world.names[0])
            async with await world.view() as view:
                for call in (
                    view.append(world.names[0], b"x"),
                    view.create_segment("b"),
                    view.delete(world.names[0]),
                ):
                    with pytest.raises(ContainerStoppedError) as caught:
                        await call
                    assert isinstance(caught.value.cause, ReadOnlyViewError)

    run(main())


def test_a_killed_owner_is_seen_up_to_what_was_acknowledged_and_its_ledger_stays_open(
    world: World,
) -> None:
    async def main() -> None:
        owner = await world.owner()
        await owner.create_segment(world.names[0])
        await owner.append(world.names[0], b"acknowledged")
        (ledger,) = [
            each for each in world.cluster.ledgers.values() if each.custom["container"] == b"0"
        ]
        ledger.entries.append(b"sent, and never acknowledged")
        async with await world.view() as view:
            assert await read_all(view, world.names[0]) == b"acknowledged"
        assert not ledger.closed
        ledger.entries.pop()
        await owner.close()

    run(main())


def test_a_log_that_its_owner_truncates_under_a_view_is_no_corruption(world: World) -> None:
    async def main() -> None:
        async with await world.owner() as owner:
            await owner.create_segment(world.names[0])
            for _ in range(60):
                await owner.append(world.names[0], b"x" * 150)
            before = world.tree.content(container_path(ROOT, 0))
            assert before is not None
            await owner.flush()
            await owner.checkpoint()
            while len(world.cluster.ledgers) > 3:
                await owner.append(world.names[0], b"y")  # gives the remover its turns

            # The record as it was read just before the truncation, then as it is.
            now = world.tree.content(container_path(ROOT, 0))
            assert now is not None
            reads = 0
            real = world.tree.content

            def content(path: str) -> object:
                nonlocal reads
                if path != container_path(ROOT, 0):
                    return real(path)
                reads += 1
                return before if reads == 1 else now

            world.tree.content = content  # type: ignore[method-assign,assignment]
            try:
                with pytest.raises(
                    TierUnavailableError, match="opened or truncated while it was read"
                ):
                    await world.view()
            finally:
                world.tree.content = real  # type: ignore[method-assign]
            async with await world.view() as view:
                assert (await view.get_info(world.names[0])).length >= 60 * 150

    run(main())


def test_a_ledger_that_is_missing_under_the_same_record_is_corruption(world: World) -> None:
    async def main() -> None:
        async with await world.owner() as owner:
            await owner.create_segment(world.names[0])
        async with await world.owner():
            pass
        number = next(
            number
            for number, each in world.cluster.ledgers.items()
            if each.custom["container"] == b"0"
        )
        world.cluster.ledgers.pop(number)
        with pytest.raises(DataCorruptionError, match=f"ledger {number}"):
            await world.view()
        assert world.all_closed()

    run(main())


def test_a_place_without_a_store_is_no_store_and_stays_empty(world: World) -> None:
    async def main() -> None:
        with pytest.raises(NotAStoreError, match=ROOT):
            await world.view()
        assert world.tree.content(ROOT) is None
        assert not (world.folder / "elsewhere").exists()
        with pytest.raises(NotAStoreError):
            await world.view(environment={})
        with pytest.raises(ConfigError):
            await world.view(environment={"SEGMENTSTORE_TIER1": "bookkeeper://nothing"})
        assert world.all_closed()

    run(main())
