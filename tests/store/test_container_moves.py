"""Containers that are stopped and started with real files, on BookKeeper between two processes, and
below tables and connections.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import segmentstore
from segmentstore import ContainerNotServedError, ContainerOwnedError
from segmentstore.tables.table_service import TableService
from segmentstore.tables.table_types import NO_VERSION, TableEntry
from tests.store.bookkeeper_world import BookKeeperWorld, name_in
from tests.store.harness import open_tiny, read_all, run, until

ROUNDS = 8


def test_one_of_two_in_files_stops_and_starts_while_both_are_written_to(tmp_path: Path) -> None:
    names = [name_in(number, 2) for number in range(2)]
    acknowledged: list[list[bytes]] = [[], []]

    async def main() -> None:
        async with open_tiny(tmp_path / "s", containers=2) as store:
            for name in names:
                await store.create_segment(name)
            over = asyncio.Event()

            async def write(number: int) -> int:
                refused = 0
                while not over.is_set():
                    data = b"<%d>" % len(acknowledged[number])
                    try:
                        await store.append(names[number], data)
                    except ContainerNotServedError:
                        refused += 1
                        await asyncio.sleep(0)
                    else:
                        acknowledged[number].append(data)
                return refused

            writers = [asyncio.ensure_future(write(number)) for number in range(2)]
            for _ in range(ROUNDS):
                count = len(acknowledged[1])
                await until(lambda: len(acknowledged[1]) >= count + 5)  # noqa: B023
                await store.stop_container(1)
                before = len(acknowledged[0])
                await until(lambda: len(acknowledged[0]) >= before + 5)  # noqa: B023
                await store.start_container(1)
            over.set()
            refused = await asyncio.gather(*writers)
            assert refused[0] == 0, "a neighbour is not disturbed"
            assert refused[1] > 0
            epochs = [each["log"]["epoch"] for each in store.stats()["containers"].values()]
            assert epochs == [1, 1 + ROUNDS]
            for number in range(2):
                assert await read_all(store, names[number]) == b"".join(acknowledged[number])
        async with open_tiny(tmp_path / "s") as store:
            for number in range(2):
                assert await read_all(store, names[number]) == b"".join(acknowledged[number])

    run(main())


def test_a_container_moves_between_two_processes_on_bookkeeper_and_back(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        tier2 = (tmp_path / "t2").as_uri()
        names = [name_in(number, 2) for number in range(2)]
        async with (
            await world.open(tmp_path / "one", containers=2, tier2=tier2) as one,
            await world.open(tmp_path / "two", tier2=tier2, serve="1", take_over=True) as two,
        ):
            # It was taken from the first, which says so and does not take it back.
            assert two.served == [1]
            await two.create_segment(names[1])
            await one.create_segment(names[0])
            owners = [two, one]
            content = b""
            for turn in range(4):
                owner, other = owners
                for _ in range(3):
                    data = b"<%d>" % turn
                    assert await owner.append(names[1], data) == len(content)
                    content += data
                await owner.stop_container(1)
                await other.stop_container(1)  # Fenced, or stopped before.
                with pytest.raises(ContainerNotServedError):
                    await owner.append(names[1], b"x")
                await other.start_container(1)
                assert await read_all(other, names[1]) == content
                await one.append(names[0], b"+")
                owners.reverse()
        assert world.all_closed()

    run(main())


def test_a_start_leaves_a_container_to_its_owner_if_that_is_alive(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        tier2 = (tmp_path / "t2").as_uri()
        options: dict[str, Any] = {"tier2": tier2, "take_over": False}
        async with (
            await world.open(tmp_path / "one", containers=2, serve="1", **options) as one,
            await world.open(tmp_path / "two", serve="0", **options) as two,
        ):
            name = name_in(1, 2)
            await one.create_segment(name)
            with pytest.raises(ContainerOwnedError):
                await two.start_container(1)
            with pytest.raises(ContainerNotServedError, match="its start failed"):
                await two.get_info(name)
            assert await one.append(name, b"x") == 0, "nothing was fenced"
            await one.stop_container(1)
            await two.start_container(1)
            assert await two.append(name, b"y") == 1

    run(main())


def test_a_table_that_another_owner_has_changed_is_read_again(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        tier2 = (tmp_path / "t2").as_uri()
        name = name_in(1, 2)
        async with (
            await world.open(tmp_path / "one", containers=2, tier2=tier2) as one,
            await world.open(tmp_path / "two", tier2=tier2, serve="0") as two,
        ):
            tables = [TableService(one), TableService(two)]
            await tables[0].create(name)
            await tables[0].update(name, [TableEntry(b"key", NO_VERSION, b"one")])
            for turn in range(4):
                owner, other = (one, two) if turn % 2 == 0 else (two, one)
                await owner.stop_container(1)
                await other.start_container(1)
                here = tables[1 - turn % 2]
                (found,) = await here.get(name, [b"key"])
                assert found is not None
                assert found.value == (b"one" if not turn else b"%d" % turn)
                await here.update(name, [TableEntry(b"key", NO_VERSION, b"%d" % (turn + 1))])
            for each in tables:
                await each.close()

    run(main())


def test_a_connected_program_gets_the_same_errors_and_states(tmp_path: Path) -> None:
    async def main() -> None:
        folder, name = tmp_path / "s", name_in(1, 2)
        async with open_tiny(folder, containers=2) as store:
            await store.create_segment(name)
            async with segmentstore.connect(folder) as client:
                await client.append(name, b"one")
                tail = asyncio.ensure_future(client.read(name, 3, 10, 3600))
                index = store._containers[1]._read_index
                await until(lambda: index.statistics().readers_waiting == 1)
                await store.stop_container(1)
                with pytest.raises(ContainerNotServedError):
                    await tail
                with pytest.raises(ContainerNotServedError, match="stopped on request"):
                    await client.append(name, b"two")
                assert (await client.fetch_stats())["container_states"][1]["state"] == "stopped"
                assert await client.fetch_metrics_text()
                await store.start_container(1)
                assert await client.append(name, b"two") == 3
                async with segmentstore.connect(folder) as later:
                    assert later.not_served == []

    run(main())
