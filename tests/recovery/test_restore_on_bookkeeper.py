"""A store restored from Tier 2 whose logs are made on BookKeeper (in memory): it goes on there, and
no crash makes half a store.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
from durablelog.bookkeeper.bookkeeper_log_factory import BookKeeperLogFactory
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record
from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.store_node import container_path, decode_identity
from durablelog.durable_data_log_factory import StoreIdentity
from recovery.restore import EPOCH_GAP, restore_store
from recovery.restore_report import RestoreReport
from segmentstore.contracts.errors import ConfigError, NotAStoreError, TierUnavailableError
from segmentstore.contracts.findings import Severity
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_file import parse_store_file
from tests.durablelog.bookkeeper.memory_ledgers import MemoryLedgerStore
from tests.store.bookkeeper_world import ROOT, URL, BookKeeperWorld, name_in
from tests.store.harness import open_lazy, read_all, run
from tests.support.suites import share

CONTAINERS = 2
NAMES = tuple(name_in(number, CONTAINERS) for number in range(CONTAINERS))
FLUSHED = b"0123456789" * 40


async def opened_logs(
    clients: BookKeeperClients, kind: type[BookKeeperLogFactory] = BookKeeperLogFactory
) -> BookKeeperLogFactory:
    async def connect(*_: object) -> BookKeeperClients:
        return clients

    logs = kind(URL, {}, Runtime(), connect=connect)
    await logs.open()
    return logs


class World(BookKeeperWorld):
    """With a bucket whose store is lost: a segment in each container, bytes flushed and bytes
    lost.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.url = (root / "bucket").as_uri()
        self.new = root / "new"
        run(self._fill())
        shutil.rmtree(root / "old")
        shutil.copytree(root / "bucket", root / "as-it-was")

    async def _fill(self) -> None:
        async with open_lazy(
            self.root / "old", tier2=self.url, containers=CONTAINERS, checkpoint_operations=10_000
        ) as store:
            for name in NAMES:
                await store.create_segment(name)
                await store.append(name, FLUSHED)
            await store.flush()
            await store.checkpoint()
            for name in NAMES:
                await store.append(name, b"lost")

    def services(self) -> BookKeeperClients:
        return BookKeeperClients(MemoryLedgerStore(self.cluster), MemoryNodes(self.tree))

    async def restore(
        self, folder: Path | None = None, process: MemoryProcess | None = None, **options: Any
    ) -> RestoreReport:
        ledgers, nodes = MemoryLedgerStore(self.cluster, process), MemoryNodes(self.tree, process)
        logs = await opened_logs(BookKeeperClients(ledgers, nodes))
        report = await restore_store(
            self.url, str(folder or self.new), Runtime(), logs=logs, **options
        )
        assert [
            finding for finding in report.findings if finding.severity is Severity.HARMFUL
        ] == []
        return report

    async def contents(self, folder: Path) -> dict[str, bytes]:
        """What a store opened in this folder has."""
        opening = self.open(folder, tier2=self.url, containers=CONTAINERS)
        async with await opening as store:
            return {name: await read_all(store, name) for name in NAMES}

    def identity(self) -> StoreIdentity:
        content = self.tree.content(ROOT)
        assert content is not None
        return decode_identity(ROOT, content.data)

    def made(self) -> bool:
        """Whether the root node is a store's."""
        content = self.tree.content(ROOT)
        return content is not None and b"store_id" in content.data

    def record(self, container_id: int) -> LogMetadata:
        path = container_path(ROOT, container_id)
        content = self.tree.content(path)
        assert content is not None
        return decode_record(content.data, path)

    def begin_again(self) -> None:
        """With new services, and the bucket as it was."""
        super().__init__()
        shutil.rmtree(self.root / "bucket")
        shutil.copytree(self.root / "as-it-was", self.root / "bucket")

    def bucket(self) -> dict[str, bytes]:
        """What lies in it."""
        return {
            str(path): path.read_bytes()
            for path in (self.root / "bucket").rglob("*")
            if path.is_file()
        }


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


WHOLE = dict.fromkeys(NAMES, FLUSHED)


def test_a_restored_store_goes_on_on_bookkeeper(world: World) -> None:
    async def main() -> None:
        report = await world.restore()
        assert report.missing_bytes == len(NAMES) * len(b"lost")
        assert world.identity() == StoreIdentity(
            report.store_id or "", CONTAINERS, world.url, shared_tier2=True
        )
        file = parse_store_file((world.new / "store.toml").read_text(encoding="utf-8"))
        assert (file.store_id, file.settings["tier1"], file.settings["tier2"]) == (
            report.store_id,
            URL,
            world.url,
        )
        assert not (world.new / "log").exists()
        assert report.epoch > EPOCH_GAP
        assert [world.record(number).epoch for number in range(CONTAINERS)] == [
            report.epoch
        ] * CONTAINERS
        assert await world.contents(world.new) == WHOLE
        async with await world.open(world.new) as store:
            await store.append(NAMES[0], b"more")
            await store.flush()
        async with await world.open(world.root / "joined") as store:
            assert await read_all(store, NAMES[0]) == FLUSHED + b"more"
            assert store.stats()["health"] == []
        assert world.record(0).epoch > report.epoch

    run(main())


def test_a_restored_store_may_be_joined_before_its_own_folder_was_opened(world: World) -> None:
    """It has no marker yet, and the store it comes from has one."""

    async def main() -> None:
        await world.restore()
        assert await world.contents(world.root / "joined") == WHOLE
        assert await world.contents(world.new) == WHOLE
        async with await world.open(world.root / "joined") as store:
            assert store.stats()["health"] == []

    run(main())


def test_a_dry_run_makes_nothing_there(world: World) -> None:
    run(world.restore(dry_run=True))
    assert world.tree.names_under("/") == []
    assert world.cluster.ledgers == {}
    assert not world.new.exists()


def test_a_path_that_is_taken_is_refused_and_left_alone(world: World) -> None:
    async def main() -> None:
        await world.restore()
        before = world.tree.content(ROOT), [world.record(number) for number in range(CONTAINERS)]
        for dry_run in (False, True):
            with pytest.raises(ConfigError) as caught:
                await world.restore(world.root / "other", dry_run=dry_run)
            assert f"holds store {world.identity().store_id}" in str(caught.value)
        assert (
            world.tree.content(ROOT),
            [world.record(number) for number in range(CONTAINERS)],
        ) == before
        assert not (world.root / "other").exists()

    run(main())


def test_an_empty_root_node_is_taken(world: World) -> None:
    world.tree.put(ROOT, b"")
    run(world.restore())
    assert run(world.contents(world.new)) == WHOLE


def test_logs_without_a_store_are_left_alone(world: World) -> None:
    world.tree.put(container_path(ROOT, 0), b"a log of another store")
    with pytest.raises(ConfigError, match="has logs below it"):
        run(world.restore())
    assert world.tree.names_under(f"{ROOT}/containers") == ["0"]
    assert not world.new.exists()


def test_a_root_node_that_a_tool_changed_meanwhile_is_left_alone(world: World) -> None:
    class Changed(BookKeeperLogFactory):
        async def publish_store(self, identity: StoreIdentity) -> None:
            world.tree.put(ROOT, b"mine")
            await super().publish_store(identity)

    async def main() -> None:
        logs = await opened_logs(world.services(), Changed)
        await restore_store(world.url, str(world.new), Runtime(), logs=logs)

    with pytest.raises(NotAStoreError, match="was changed"):
        run(main())
    assert not (world.new / "store.toml").exists()


def test_of_two_restores_at_once_one_makes_the_store(world: World) -> None:
    async def main() -> None:
        folders = [world.root / "one", world.root / "two"]
        outcomes = await asyncio.gather(*map(world.restore, folders), return_exceptions=True)
        (refused,) = (each for each in outcomes if isinstance(each, BaseException))
        assert isinstance(refused, NotAStoreError | ConfigError)
        made = folders[[isinstance(each, RestoreReport) for each in outcomes].index(True)]
        assert await world.contents(made) == WHOLE

    run(main())


def test_services_that_do_not_answer_are_said_to_be_so(world: World) -> None:
    world.tree.outage = True
    with pytest.raises(TierUnavailableError) as caught:
        run(world.restore())
    assert caught.value.tier == "tier1"
    world.tree.outage = False
    world.tree.refuse("read")
    with pytest.raises(ConfigError):
        run(world.restore())
    assert not world.new.exists()


@pytest.mark.parametrize("happens", [False, True])
def test_a_lost_reply_to_the_making_of_the_store_makes_it_once(
    world: World, *, happens: bool
) -> None:
    class Lost(BookKeeperLogFactory):
        async def reserve_store(self, store_id: str) -> None:
            world.tree.fail("create", happens=happens)
            await super().reserve_store(store_id)

        async def publish_store(self, identity: StoreIdentity) -> None:
            world.tree.fail("write", happens=happens)
            await super().publish_store(identity)

    async def main() -> RestoreReport:
        logs = await opened_logs(world.services(), Lost)
        return await restore_store(world.url, str(world.new), Runtime(), logs=logs)

    report = run(main())
    assert world.identity().store_id == report.store_id
    assert run(world.contents(world.new)) == WHOLE


@pytest.mark.parametrize("happens", share([True, False], 2, 2))
def test_a_restore_that_dies_in_any_call_leaves_a_whole_store_or_none(
    world: World, *, happens: bool
) -> None:
    counted = MemoryProcess()
    run(world.restore(process=counted))
    outcomes = []
    for call in range(len(counted.calls)):
        world.begin_again()
        process = MemoryProcess()
        process.die_in(call, happens=happens)
        folder = world.root / f"new-{call}"
        run(_until_it_dies(world, folder, process))
        outcomes.append(run(_whole_or_none(world, folder, world.root / f"other-{call}")))
    assert set(outcomes) == {"nothing", "refused", "whole"}
    assert outcomes == sorted(outcomes, key=["nothing", "refused", "whole"].index)


async def _until_it_dies(world: World, folder: Path, process: MemoryProcess) -> None:
    restoring = asyncio.ensure_future(world.restore(folder, process))
    while not process.dead and not restoring.done():  # noqa: ASYNC110
        # What is waited for has no event.
        await asyncio.sleep(0)
    while not restoring.done():
        restoring.cancel()
        await asyncio.sleep(0)


async def _whole_or_none(world: World, folder: Path, other: Path) -> str:
    if not world.tree.names_under("/"):
        assert world.cluster.ledgers == {}
        await world.restore(other)
        return "nothing"
    with pytest.raises((NotAStoreError, ConfigError)):
        await world.restore(other)
    if world.made():
        # An opening there has all of it: the folder that was cut off, too.
        assert await world.contents(folder) == WHOLE
        assert await world.contents(other) == WHOLE
        return "whole"
    assert not (folder / "store.toml").exists()
    before = world.bucket()
    for each in (folder, other):
        with pytest.raises(NotAStoreError):
            await world.contents(each)
    assert world.bucket() == before
    return "refused"
