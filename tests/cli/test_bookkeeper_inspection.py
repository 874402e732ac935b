"""A stopped store on BookKeeper (in memory) is verified as one in files: what is sound, what is
bad, and what cannot be known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.frame_reports import LedgerStillOpenError
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record
from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.metadata_node import MetadataNodes
from durablelog.bookkeeper.store_node import container_path
from recovery.store_check import check_store
from segmentstore.cli.bookkeeper_store import BookKeeperStore
from segmentstore.cli.exit_codes import ExitCode, exit_code_for
from segmentstore.cli.stopped_store import StoppedStore
from segmentstore.contracts.errors import StoreInUseError
from segmentstore.contracts.findings import Finding, Severity
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.bookkeeper.memory_ledgers import MemoryLedger, MemoryLedgerStore
from tests.store.bookkeeper_world import ROOT, BookKeeperWorld, name_in
from tests.store.harness import UNFLUSHED, run

DATA = b"0123456789" * 9


class World(BookKeeperWorld):
    """With a folder whose store was filled and closed, and checks it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.reader = MemoryProcess()
        """The checker's name."""
        run(self._fill())

    async def _fill(self) -> None:
        """In both containers: flushed bytes, a log that was truncated, several ledgers, bytes not
        flushed.
        """
        names = name_in(0, 2), name_in(1, 2)
        async with await self.open(self.folder, containers=2) as store:
            for name in names:
                await store.create_segment(name)
                await store.append(name, DATA)
            await store.flush()
            await store.checkpoint()
        for _ in range(2):
            async with await self.open(self.folder, **UNFLUSHED) as store:
                for name in names:
                    for _ in range(20):
                        await store.append(name, DATA)

    async def nodes(
        self, location: BookKeeperLocation, _: Mapping[str, str], runtime: Runtime
    ) -> MetadataNodes:
        assert (location.path, runtime.random is not None) == (ROOT, True)
        return MemoryNodes(self.tree)

    async def recording_clients(
        self, location: BookKeeperLocation, _: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        assert (location.path, runtime.random is not None) == (ROOT, True)
        return BookKeeperClients(
            MemoryLedgerStore(self.cluster, self.reader), MemoryNodes(self.tree)
        )

    def stopped(self) -> StoppedStore:
        return StoppedStore(
            str(self.folder),
            bookkeeper=partial(BookKeeperStore, nodes=self.nodes, clients=self.recording_clients),
        )

    def verify(self, *, deep: bool = False) -> list[Finding]:
        """As the command does."""
        with self.stopped() as stopped:
            findings = asyncio.run(
                check_store(
                    stopped.logs.stored_logs(), stopped.tier2_url, stopped.runtime, deep=deep
                )
            )
            stopped.logs.check_undisturbed()
        return findings

    def record(self, container_id: int) -> LogMetadata:
        path = container_path(ROOT, container_id)
        content = self.tree.content(path)
        assert content is not None
        return decode_record(content.data, path)

    def ledger(self, container_id: int, place: int) -> MemoryLedger:
        """One of those that hold the log."""
        return self.cluster.ledgers[self.record(container_id).ledgers[place].ledger_id]

    async def open_and_close(self) -> None:
        await (await self.open(self.folder)).close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def harmful(findings: list[Finding]) -> list[tuple[str, str]]:
    return [
        (finding.kind, finding.place)
        for finding in findings
        if finding.severity is Severity.HARMFUL
    ]


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_store_is_found_sound_and_nothing_is_changed_by_that(
    world: World, *, deep: bool
) -> None:
    assert [len(world.record(container_id).ledgers) > 1 for container_id in (0, 1)] == [True, True]
    before = {container_id: world.record(container_id) for container_id in (0, 1)}
    contents = {
        number: (list(each.entries), each.closed) for number, each in world.cluster.ledgers.items()
    }
    assert harmful(world.verify(deep=deep)) == []
    assert {container_id: world.record(container_id) for container_id in (0, 1)} == before
    assert {
        number: (list(each.entries), each.closed) for number, each in world.cluster.ledgers.items()
    } == contents


def test_a_damaged_frame_is_named_and_the_other_container_is_checked_all_the_same(
    world: World,
) -> None:
    for container_id in (0, 1):
        ledger = world.ledger(container_id, -2)
        entry = bytearray(ledger.entries[1])
        entry[-1] ^= 1
        ledger.entries[1] = bytes(entry)
    found = harmful(world.verify())
    assert [kind for kind, _ in found] == ["log", "log"]
    for container_id in (0, 1):
        place = found[container_id][1]
        assert place.startswith(f"ledger {world.ledger(container_id, -2).ledger_id} entry 1 "), (
            place
        )


def test_a_ledger_that_is_missing_or_too_short_is_corruption(world: World) -> None:
    gone = world.ledger(0, -2)
    world.cluster.drop(gone.ledger_id)
    short = world.ledger(1, -2)
    del short.entries[-1]
    findings = world.verify()
    assert harmful(findings) == [
        ("log", f"ledger {gone.ledger_id} entry 0 frame 0"),
        ("log", f"ledger {short.ledger_id} entry {len(short.entries)} frame 0"),
    ]
    assert "is missing" in findings[0].detail
    assert f"the record knows of entry {len(short.entries)}" in findings[1].detail


def test_a_lost_object_is_found(world: World) -> None:
    for path in (world.folder / "tier2").rglob("*"):
        if path.is_file() and "checkpoints" not in path.parts:
            path.unlink()
    assert harmful(world.verify())


def test_the_ledger_of_a_killed_owner_is_said_to_need_an_opening_after_which_all_is_well(
    world: World,
) -> None:
    world.ledger(1, -1).closed = False
    with pytest.raises(LedgerStillOpenError) as caught:
        world.verify()
    assert f"ledger {world.ledger(1, -1).ledger_id} is open" in str(caught.value)
    assert "open the store once and close it" in str(caught.value)
    assert exit_code_for(caught.value) is ExitCode.UNAVAILABLE
    assert not world.ledger(1, -1).closed
    run(world.open_and_close())
    assert harmful(world.verify()) == []


def test_an_owner_elsewhere_who_came_in_the_middle_is_noticed_and_not_taken_for_corruption(
    world: World,
) -> None:
    with world.stopped() as stopped:
        assert list(stopped.logs.frames(0))
        stopped.logs.check_undisturbed()
        elsewhere = world.folder.with_name("elsewhere")
        run(_open_elsewhere(world, elsewhere))
        with pytest.raises(StoreInUseError) as caught:
            stopped.logs.check_undisturbed()
        assert "container 0" in str(caught.value)
    with world.stopped() as stopped:
        reading = stopped.logs.frames(0)
        assert next(reading).status == "ok"
        run(_open_elsewhere(world, elsewhere))
        for item in world.record(0).ledgers:
            world.cluster.drop(item.ledger_id)
        with pytest.raises(StoreInUseError):
            list(reading)


async def _open_elsewhere(world: World, folder: Path) -> None:
    await (await world.open(folder)).close()


def test_leaving_ends_what_another_thread_still_reads(world: World) -> None:
    world.cluster.read_batch = 1
    begun, ended = Event(), Event()

    def read(stopped: StoppedStore) -> None:
        try:
            for _ in stopped.logs.frames(0):
                world.reader.sleep()
                begun.set()
        finally:
            ended.set()

    with Runtime().executor("reading", 1) as executor:
        with world.stopped() as stopped:
            reading = executor.submit(read, stopped)
            assert begun.wait(60)
        assert ended.wait(60)
        assert reading.exception() is not None or reading.cancelled()
