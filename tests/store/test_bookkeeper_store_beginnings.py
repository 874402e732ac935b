"""Making a store on BookKeeper, cut off: by a caller who gives up, or by the death of the process
in any of its calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from durablelog.bookkeeper.bookkeeper_clients import BookKeeperClients
from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation
from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.bookkeeper.memory_process import MemoryProcess
from durablelog.bookkeeper.store_node import decode_identity
from segmentstore import SegmentStore
from segmentstore.contracts.errors import StoreInUseError
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from tests.durablelog.bookkeeper.memory_ledgers import MemoryLedgerStore
from tests.store.bookkeeper_world import ROOT, URL, BookKeeperWorld
from tests.store.harness import LAZY, bury, read_all, run
from tests.support.suites import share


class MortalWorld(BookKeeperWorld):
    """Its next store belongs to a process that may die."""

    def __init__(self) -> None:
        super().__init__()
        self.process = MemoryProcess()

    async def bookkeeper(
        self, location: BookKeeperLocation, environment: Mapping[str, str], runtime: Runtime
    ) -> BookKeeperClients:
        return BookKeeperClients(
            MemoryLedgerStore(self.cluster, self.process), MemoryNodes(self.tree, self.process)
        )


async def open_patiently(world: BookKeeperWorld, folder: Path) -> SegmentStore:
    """A lock that is being released is waited for."""
    while True:
        with suppress(StoreInUseError):
            return await world.open(folder)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 12, 17, 23, 30, 40, 55, 75, 100])
def test_an_opening_that_is_given_up_leaves_nothing_open(tmp_path: Path, turns: int) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        opening = asyncio.ensure_future(world.open(tmp_path / "s"))
        for _ in range(turns):
            await asyncio.sleep(0.0002)
        opening.cancel()
        outcome = (await asyncio.gather(opening, return_exceptions=True))[0]
        if isinstance(outcome, SegmentStore):
            await outcome.close()
        store = await open_patiently(world, tmp_path / "s")
        await store.create_segment("a")
        await store.append("a", b"x")
        assert await read_all(store, "a") == b"x"
        await store.close()
        assert world.all_closed()

    run(main())


async def make_and_die(world: MortalWorld, folder: Path) -> None:
    """A life that is cut off: the task never comes to its end."""
    parts = await open_store(str(folder), {**LAZY, "tier1": URL}, {}, Runtime(), world)
    store = SegmentStore(parts)
    await store.create_segment("a")
    await store.append("a", b"first")


@pytest.mark.parametrize(("call", "happens"), share(product(range(12), [True, False]), 5, 6))
def test_whatever_call_the_maker_dies_in_the_next_process_has_one_whole_store(
    tmp_path: Path, call: int, happens: bool
) -> None:
    async def main() -> None:
        mortal = MortalWorld()
        mortal.process.die_in(call, happens=happens)
        life = asyncio.ensure_future(make_and_die(mortal, tmp_path / "dead"))
        while not mortal.process.dead and not life.done():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)
        world = BookKeeperWorld()
        world.cluster, world.tree = mortal.cluster, mortal.tree
        for _ in range(2):
            store = await world.open(tmp_path / "next")
            content = world.tree.content(ROOT)
            assert content is not None
            assert store.stats()["store_id"] == decode_identity(ROOT, content.data).store_id
            names = [info.name async for info in store.list_segments()]
            if "a" not in names:
                await store.create_segment("a")
            await store.append("a", b".")
            assert (await read_all(store, "a")).strip(b".") in (b"", b"first")
            await store.close()
        life.cancel()
        await bury()

    run(main())
