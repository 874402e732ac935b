"""Several processes and one store on BookKeeper: which process serves what, which takes over from
which, what a dead one left.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from durablelog.bookkeeper.ledger_calls import custom_metadata
from durablelog.bookkeeper.ledger_store import Replication
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record
from segmentstore import SegmentStore
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ConfigError,
    ContainerNotServedError,
    DataCorruptionError,
    NotPrimaryError,
    TierUnavailableError,
)
from tests.store.bookkeeper_world import ROOT, BookKeeperWorld, name_in
from tests.store.harness import open_tiny, read_all, run, until

CHECKOUT = Path(__file__).resolve().parents[2]


def record_of(world: BookKeeperWorld, container_id: int) -> LogMetadata:
    path = f"{ROOT}/containers/{container_id}"
    content = world.tree.content(path)
    assert content is not None
    return decode_record(content.data, path)


async def names(store: SegmentStore) -> list[str]:
    return [info.name async for info in store.list_segments()]


class TestServe:
    @pytest.mark.parametrize(
        ("text", "served"),
        [
            ("all", [0, 1, 2, 3, 4]),
            ("0", [0]),
            ("4,0", [0, 4]),
            ("1-3", [1, 2, 3]),
            (" 0 , 2 - 3 ", [0, 2, 3]),
        ],
    )
    def test_all_or_numbers_and_ranges(self, text: str, served: list[int]) -> None:
        config = StoreConfig(containers=5, serve=text)
        assert config.served == served
        assert config.served_count == len(served)

    @pytest.mark.parametrize(
        "text", ["", "5", "0,5", "3-1", "0,0", "0-2,1", "a", "-1", "1-", "0,,1", "٣", "1_0"]
    )
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            StoreConfig(containers=5, serve=text)
        assert caught.value.setting == "serve"

    def test_a_store_in_a_folder_may_serve_a_part_too(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with open_tiny(tmp_path / "s", containers=2) as store:
                for container_id in range(2):
                    await store.create_segment(name_in(container_id, 2))
            async with open_tiny(tmp_path / "s", serve="1") as store:
                assert await names(store) == [name_in(1, 2)]
                with pytest.raises(ContainerNotServedError):
                    await store.get_info(name_in(0, 2))

        run(main())


def test_a_segment_of_a_container_that_is_not_served_here_is_refused_by_every_call(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        async with await world.open(tmp_path / "s", containers=2, serve="0") as store:
            here, there = name_in(0, 2), name_in(1, 2)
            await store.create_segment(here)
            calls: list[Any] = [
                store.append(there, b"x"),
                store.append_batch(there, [b"x"]),
                store.create_segment(there),
                store.get_info(there),
                store.read(there, 0, 1),
                store.seal(there),
                store.truncate(there, 0),
                store.delete(there),
                store.merge(here, there),
                store.merge(there, here),
                store.flush(there),
                store.get_attributes(there),
                store.update_attributes(there, []),
            ]
            for call in calls:
                with pytest.raises(ContainerNotServedError) as caught:
                    await call
                assert caught.value.container_id == 1
                assert "ask the process that serves it" in str(caught.value)
                assert isinstance(caught.value, NotPrimaryError)
        assert not world.tree.names_under(f"{ROOT}/containers/1")
        assert world.tree.content(f"{ROOT}/containers/1") is None
        assert "ContainerNotServedError" in segmentstore.__all__

    run(main())


def test_two_processes_serve_different_containers_of_one_store(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        one = await world.open(tmp_path / "one", containers=3, serve="0,2")
        two = await world.open(tmp_path / "two", serve="1")
        placed = {0: one, 1: two, 2: one}
        for container_id, store in placed.items():
            name = name_in(container_id, 3)
            await store.create_segment(name)
            await asyncio.gather(*[store.append(name, b"%d " % number) for number in range(50)])
        for store in (one, two):
            await store.flush()
            await store.checkpoint()
            report = await store.collect_garbage()
            assert report.problems == ()
            assert not report.count("orphan", "deleted ledger", "orphan ledger")
            containers = store.stats()["containers"]
            assert isinstance(containers, dict)
            assert sorted(containers) == [
                number for number, other in placed.items() if other is store
            ]
            assert store.stats()["health"] == []
        assert await names(one) == sorted([name_in(0, 3), name_in(2, 3)])
        assert await names(two) == [name_in(1, 3)]
        await one.close()
        await two.close()
        async with await world.open(tmp_path / "three") as store:
            for container_id in placed:
                expected = b"".join(b"%d " % number for number in range(50))
                assert await read_all(store, name_in(container_id, 3)) == expected

    run(main())


def test_who_opens_a_container_takes_it_and_its_siblings_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        old = await world.open(tmp_path / "old", containers=2)
        lost, kept = name_in(0, 2), name_in(1, 2)
        for name in (lost, kept):
            await old.create_segment(name)
            await old.append(name, b"before ")
        new = await world.open(tmp_path / "new", serve="0")
        assert await read_all(new, lost) == b"before "
        outcomes = await asyncio.gather(
            *[old.append(lost, b"stale") for _ in range(5)], return_exceptions=True
        )
        assert {type(each) for each in outcomes} <= {NotPrimaryError, AppendOutcomeUnknownError}
        await until(lambda: any("stopped" in finding for finding in old.stats()["health"]))
        with pytest.raises(NotPrimaryError) as caught:
            await old.append(lost, b"stale")
        assert caught.value.container_id == 0
        await old.append(kept, b"after")
        for call in (old.flush, old.checkpoint):
            with pytest.raises(NotPrimaryError):
                await call()
        info = await old.get_info(kept)
        assert info.storage_length == info.length == len(b"before after")
        assert await read_all(old, kept) == b"before after"
        await new.append(lost, b"new")
        assert await read_all(new, lost) == b"before new"
        await old.close()
        await new.close()
        async with await world.open(tmp_path / "old") as store:
            assert await read_all(store, lost) == b"before new"
            assert await read_all(store, kept) == b"before after"

    run(main())


def test_of_two_that_open_one_container_at_once_exactly_one_serves_in_the_end(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        async with await world.open(tmp_path / "0", tier2="memory://one-of-two") as store:
            await store.create_segment("a")
        for attempt in range(5):
            results = await asyncio.gather(
                *[world.open(tmp_path / f"{attempt}.{number}") for number in range(2)],
                return_exceptions=True,
            )
            opened = [each for each in results if isinstance(each, SegmentStore)]
            refused = [each for each in results if isinstance(each, BaseException)]
            assert opened
            assert all(isinstance(each, NotPrimaryError) for each in refused), refused
            outcomes = await asyncio.gather(
                *[each.append("a", b"x") for each in opened], return_exceptions=True
            )
            acknowledged = [each for each in outcomes if isinstance(each, int)]
            assert len(acknowledged) == 1
            assert acknowledged == [attempt]
            for each in opened:
                await each.close()

    run(main())


async def plant(
    world: BookKeeperWorld,
    store_id: str,
    container_id: int,
    epoch: int,
    *,
    closed: bool = False,
    entries: int = 0,
) -> int:
    """A ledger as a crash between creating and listing leaves it, if it has no entries."""
    ledger = world.cluster.make(Replication(), custom_metadata(store_id, container_id, epoch))
    ledger.entries += [b"x" * 10] * entries
    ledger.closed = closed
    return ledger.ledger_id


def test_orphan_ledgers_are_fenced_and_deleted_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        store = await world.open(tmp_path / "s", containers=2, serve="0")
        store_id = str(store.stats()["store_id"])
        epoch = record_of(world, 0).epoch
        await store.close()
        store = await world.open(tmp_path / "s", serve="0")
        orphans = [
            await plant(world, store_id, 0, epoch),
            await plant(world, store_id, 0, epoch, closed=True),
        ]
        current = await plant(world, store_id, 0, epoch + 1)
        left = [
            current,
            await plant(world, "0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10", 0, epoch),
            await plant(world, store_id, 1, epoch),
            world.cluster.make(Replication(), {"application": b"other"}).ledger_id,
            world.cluster.make(Replication(), {}).ledger_id,
        ]
        newer = await plant(world, store_id, 0, epoch + 7)
        report = await store.collect_garbage()
        assert sorted(
            item.name.split()[1] for item in report.items if item.state == "deleted ledger"
        ) == sorted(map(str, orphans))
        assert [problem for problem in report.problems if str(newer) in problem]
        there = set(await world.clients[-1].ledgers.list_ids())
        assert there >= {*left, newer}
        assert not there & set(orphans)
        listed = {item.ledger_id for item in record_of(world, 0).ledgers}
        assert listed <= there
        await store.close()
        # What was of the running epoch is of a past one by now.
        store = await world.open(tmp_path / "s", serve="0")
        assert [
            item.name
            for item in (await store.collect_garbage()).items
            if item.state == "deleted ledger"
        ] == [f"ledger {current} of epoch {epoch + 1}"]
        await store.close()

    run(main())


def test_an_orphan_ledger_that_cannot_be_deleted_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        await (await world.open(tmp_path / "s")).close()
        store = await world.open(tmp_path / "s")
        orphan = await plant(world, str(store.stats()["store_id"]), 0, 1)
        world.cluster.fail("recover", -10)
        report = await store.collect_garbage()
        assert report.count("orphan ledger") == 1
        assert any(str(orphan) in problem for problem in report.problems)
        assert (await store.collect_garbage()).count("deleted ledger") == 1
        await store.close()

    run(main())


@pytest.mark.parametrize("closed", [False, True])
def test_a_ledger_that_holds_entries_is_reported_and_never_deleted(
    tmp_path: Path, closed: bool
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        await (await world.open(tmp_path / "s")).close()
        store = await world.open(tmp_path / "s")
        kept = await plant(world, str(store.stats()["store_id"]), 0, 1, closed=closed, entries=3)
        for _ in range(2):
            report = await store.collect_garbage()
            assert not report.count("deleted ledger", "orphan ledger")
            (problem,) = report.problems
            assert f"ledger {kept} of epoch 1 holds entries, and no log lists it" in problem
            named = re.search(r"see '(.+)' in (docs/.+\.md)", problem)
            assert named is not None
            assert f"**{named[1]}.**" in (CHECKOUT / named[2]).read_text(encoding="utf-8")
            assert len(world.cluster.ledgers[kept].entries) == 3
        await store.close()

    run(main())


def test_ledgers_of_a_record_that_a_tool_removed_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        store = await world.open(tmp_path / "s")
        await store.create_segment("a")
        await store.append("a", b"acknowledged")
        await store.close()
        written = {item.ledger_id for item in record_of(world, 0).ledgers}
        path = f"{ROOT}/containers/0"
        content = world.tree.content(path)
        assert content is not None
        world.tree.remove(path, content.version)
        # Every refused opening raises the epoch; without the copy nothing is refused any more.
        with pytest.raises(DataCorruptionError):
            await world.open(tmp_path / "s")
        shutil.rmtree(tmp_path / "s" / "tier2" / "checkpoints")
        store = await world.open(tmp_path / "s")
        report = await store.collect_garbage()
        assert any("holds entries" in problem for problem in report.problems)
        assert any(
            b"acknowledged" in entry
            for each in written
            for entry in world.cluster.ledgers[each].entries
        )
        await store.close()

    run(main())


@pytest.mark.parametrize("code", [-999, -107, -102])
def test_a_ledger_that_cannot_be_checked_is_reported_and_does_not_end_the_search(
    tmp_path: Path, code: int
) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        await (await world.open(tmp_path / "s")).close()
        store = await world.open(tmp_path / "s")
        orphan = await plant(world, str(store.stats()["store_id"]), 0, 1)
        first = min(world.cluster.ledgers)
        world.cluster.fail("describe", code)
        report = await store.collect_garbage()
        assert [item.name for item in report.items if item.state == "deleted ledger"] == [
            f"ledger {orphan} of epoch 1"
        ]
        (problem,) = report.problems
        assert problem.startswith(f"ledger {first} cannot be inspected ({code} ")
        assert first in world.cluster.ledgers
        world.cluster.fail("describe", -9)
        with pytest.raises(TierUnavailableError):
            await store.collect_garbage()
        await store.close()

    run(main())
