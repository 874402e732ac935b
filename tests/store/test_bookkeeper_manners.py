"""Several openings of one store on BookKeeper (in memory): a living owner is not fenced, one that
has ended is followed.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record
from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.bookkeeper.store_node import container_path, owners_path
from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerOwnedError,
    NotPrimaryError,
    SegmentStore,
    StoreInUseError,
)
from segmentstore.contracts.disk import OsDisk, OsFile
from segmentstore.contracts.processes import ProcessIdentity, SystemProcesses
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from segmentstore.open_stores import register
from tests.store.bookkeeper_world import ROOT, URL, BookKeeperWorld, name_in
from tests.store.harness import LAZY, read_all, run


class Elsewhere:
    """A process of another machine."""

    def me(self) -> ProcessIdentity:
        return ProcessIdentity("other.example", 17, "another machine", "long ago")

    def is_alive(self, identity: ProcessIdentity) -> bool | None:
        return True if identity == self.me() else None


class LockedFiles(OsDisk):
    """Keeps what was locked."""

    def __init__(self) -> None:
        self.locks: list[OsFile] = []

    def lock(self, path: str) -> OsFile:
        self.locks.append(super().lock(path))
        return self.locks[-1]


class World(BookKeeperWorld):
    async def ask(
        self, folder: Path, *, runtime: Runtime | None = None, **options: Any
    ) -> SegmentStore:
        """As a user opens it."""
        chosen = {
            **LAZY,
            "tier1": URL,
            "tier2": "memory://manners",
            "shared_tier2": True,
            **options,
        }
        return SegmentStore(await open_store(str(folder), chosen, {}, runtime or Runtime(), self))

    def record(self, container_id: int) -> LogMetadata:
        path = container_path(ROOT, container_id)
        content = self.tree.content(path)
        assert content is not None
        return decode_record(content.data, path)


@pytest.fixture
def world() -> World:
    return World()


def test_an_owner_that_is_alive_is_left_alone_and_goes_on(world: World, tmp_path: Path) -> None:
    async def main() -> None:
        name = name_in(1, 2)
        async with await world.ask(tmp_path / "one", containers=2) as one:
            await one.create_segment(name)
            epochs = [world.record(number).epoch for number in (0, 1)]
            with pytest.raises(ContainerOwnedError) as caught:
                await world.ask(tmp_path / "two")
            me = SystemProcesses().me()
            error = caught.value
            assert (error.container_id, error.host, error.pid) == (0, me.host, me.pid)
            owner = world.record(0).owner
            assert owner is not None
            assert (owner.host, owner.pid, owner.address, owner.since) == (
                me.host,
                me.pid,
                "memory",
                error.since,
            )
            assert isinstance(error, StoreInUseError)
            assert [world.record(number).epoch for number in (0, 1)] == epochs
            await one.append(name, b"it is the owner still")
            # With leave it is taken, and an ordinary end of the first one takes nothing back.
            async with await world.ask(tmp_path / "two", take_over=True) as two:
                with pytest.raises((NotPrimaryError, AppendOutcomeUnknownError)):
                    await one.append(name, b"?")
                await one.close()
                assert await read_all(two, name) == b"it is the owner still"
                with pytest.raises(ContainerOwnedError):
                    await world.ask(tmp_path / "one")
        # Both are missing, in order: no owner has to be asked.
        assert world.tree.names_under(owners_path(ROOT)) == []
        async with await world.ask(tmp_path / "three") as three:
            assert await read_all(three, name) == b"it is the owner still"
        assert world.all_closed()

    run(main())


def test_of_several_containers_none_is_taken_if_one_has_an_owner(
    world: World, tmp_path: Path
) -> None:
    async def main() -> None:
        async with await world.ask(tmp_path / "one", containers=3, serve="0,1") as one:
            await one.create_segment(name_in(0, 3))
            await one.close()
        async with await world.ask(tmp_path / "two", serve="1"):
            before = [world.record(number).epoch for number in (0, 1)]
            with pytest.raises(ContainerOwnedError) as caught:
                await world.ask(tmp_path / "one")
            assert caught.value.container_id == 1
            assert [world.record(number).epoch for number in (0, 1)] == before
            assert world.tree.content(container_path(ROOT, 2)) is None
            # A container without an owner is open to a caller that asks for that alone.
            await (await world.ask(tmp_path / "one", serve="0,2")).close()

    run(main())


def test_an_owner_whose_process_is_missing_from_this_machine_is_followed_at_once(
    world: World, tmp_path: Path
) -> None:
    class Before(SystemProcesses):
        """A process that has had our number."""

        def me(self) -> ProcessIdentity:
            return super().me()._replace(started="before")

    async def main() -> None:
        one = await world.ask(tmp_path / "one", runtime=Runtime(processes=Before()))
        await one.create_segment("a")
        assert len(world.tree.names_under(owners_path(ROOT))) == 1
        async with await world.ask(tmp_path / "two") as two:
            await two.get_info("a")
        await one.close()

    run(main())


def test_the_same_folder_is_opened_again_though_its_last_owner_never_said_good_bye(
    world: World, tmp_path: Path
) -> None:
    async def main() -> None:
        disk = LockedFiles()
        one = await world.ask(tmp_path / "one", runtime=Runtime(disk=disk))
        await one.create_segment("a")
        (lock,) = disk.locks
        lock.close()  # what is left of a store whose event loop was closed
        async with await world.ask(tmp_path / "one") as again:
            await again.get_info("a")
        await one.close()

    run(main())


def test_another_folder_of_the_same_path_is_not_the_one_before(
    world: World, tmp_path: Path
) -> None:
    async def main() -> None:
        folder, elsewhere = tmp_path / "one", tmp_path / "elsewhere"
        async with await world.ask(folder) as one:
            await one.create_segment("a")
            # What a container sees of its own at this path.
            folder.rename(elsewhere)
            with pytest.raises(ContainerOwnedError):
                await world.ask(folder)
            await one.append("a", b"it is the owner still")
            # As it should be for an ordinary end.
            shutil.rmtree(folder)
            elsewhere.rename(folder)

    run(main())


def test_a_store_that_can_no_longer_be_closed_keeps_no_owner_out(
    world: World, tmp_path: Path
) -> None:
    async def main() -> None:
        one = await world.ask(tmp_path / "one")
        await one.create_segment("a")
        register(one._parts).release_locks()  # as where its event loop is closed
        looking = MemoryNodes(world.tree)
        while await looking.children(owners_path(ROOT)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # a thread says good-bye
        async with await world.ask(tmp_path / "two") as two:
            await two.get_info("a")
        await one.close()

    run(main())


def test_an_owner_on_another_machine_is_not_known_to_be_dead(world: World, tmp_path: Path) -> None:
    async def main() -> None:
        query = "&session_timeout_s=1"
        async with await world.ask(
            tmp_path / "one", runtime=Runtime(processes=Elsewhere()), tier1=URL + query
        ) as one:
            await one.create_segment("a")
            with pytest.raises(ContainerOwnedError) as caught:
                await world.ask(
                    tmp_path / "two", runtime=Runtime(processes=Elsewhere()), tier1=URL + query
                )
            assert (caught.value.host, caught.value.pid) == ("other.example", 17)

    run(main())
