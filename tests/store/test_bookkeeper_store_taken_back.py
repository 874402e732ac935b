"""A store on BookKeeper that its maker takes back, for its Tier 2 cannot be one, while others join
it; and a root that lost its store.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from durablelog.bookkeeper.memory_nodes import MemoryNodes
from durablelog.bookkeeper.store_node import (
    decode_identity,
    encode_identity,
    found_or_join,
    pin,
    unmake,
)
from durablelog.durable_data_log_factory import StoreIdentity
from segmentstore.contracts.errors import ConfigError, DataCorruptionError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from tests.store.bookkeeper_world import ROOT, BookKeeperWorld
from tests.store.harness import run
from tier2.object_storage import ObjectStorage


def identity_of(world: BookKeeperWorld) -> StoreIdentity:
    content = world.tree.content(ROOT)
    assert content is not None
    return decode_identity(ROOT, content.data)


class TakingBackWorld(BookKeeperWorld):
    """The creator of a store undoes the creation after the next opening has joined it."""

    again: bytes | None = None
    """What another process creates in its place at once."""
    armed = True

    def storage(self, url: str, runtime: Runtime) -> ObjectStorage:
        if self.armed:
            self.armed = False
            self.tree.remove(ROOT, 0)
            if self.again is not None:
                self.tree.make(ROOT, self.again)
        return super().storage(url, runtime)


@pytest.mark.parametrize("again", [False, True])
def test_who_joined_a_store_that_is_taken_back_begins_no_log_in_it(
    tmp_path: Path, again: bool
) -> None:
    async def main() -> None:
        world = TakingBackWorld()
        maker, other = (
            StoreIdentity(str(uuid.UUID(int=number)), 1, (tmp_path / "t").as_uri())
            for number in (1, 2)
        )
        world.again = encode_identity(other) if again else None
        await found_or_join(MemoryNodes(world.tree), ROOT, maker)
        with pytest.raises(TierUnavailableError) as caught:
            await world.open(tmp_path / "joined")
        assert "withdrew it" in str(caught.value)
        assert not world.tree.names_under(f"{ROOT}/containers")
        assert not (tmp_path / "joined" / "store.toml").exists()
        assert world.all_closed()
        assert (world.tree.content(ROOT) is not None) == again
        for _ in range(2):
            store = await world.open(tmp_path / "joined")
            assert identity_of(world).store_id == store.stats()["store_id"]
            assert (store.stats()["store_id"] == other.store_id) == again
            await store.close()

    run(main())


def test_a_store_that_another_folder_joined_is_not_taken_back(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        nodes = MemoryNodes(world.tree)
        maker = StoreIdentity(str(uuid.UUID(int=1)), 1, (tmp_path / "t").as_uri())
        await found_or_join(nodes, ROOT, maker)
        assert await pin(nodes, ROOT, maker)
        await unmake(nodes, ROOT, maker)
        assert identity_of(world) == maker
        await (await world.open(tmp_path / "s")).close()

    run(main())


def test_who_joined_a_store_with_a_tier2_that_cannot_be_one_may_try_again(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        (tmp_path / "file").write_text("no folder", encoding="utf-8")
        bad = (tmp_path / "file" / "tier2").as_uri()
        nodes = MemoryNodes(world.tree)
        maker = StoreIdentity(str(uuid.UUID(int=1)), 1, bad)
        await found_or_join(nodes, ROOT, maker)
        with pytest.raises((ConfigError, TierUnavailableError)):
            await world.open(tmp_path / "joined")
        await unmake(nodes, ROOT, maker)
        await (await world.open(tmp_path / "joined")).close()
        assert identity_of(world).tier2 == (tmp_path / "joined" / "tier2").as_uri()

    run(main())


def test_an_empty_root_with_containers_below_it_does_not_become_a_store(tmp_path: Path) -> None:
    async def main() -> None:
        world = BookKeeperWorld()
        world.tree.make(f"{ROOT}/containers/0", b"")
        for _ in range(2):
            with pytest.raises(DataCorruptionError) as caught:
                await world.open(tmp_path / "s")
            assert "has containers below it" in caught.value.detail
        content = world.tree.content(ROOT)
        assert content is not None
        assert content.data == b""
        assert not (tmp_path / "s" / "store.toml").exists()

    run(main())


@pytest.mark.parametrize("own", [True, False])
def test_who_joins_and_cannot_say_so_may_open_again(tmp_path: Path, own: bool) -> None:
    """A folder that joins the store it made itself stays the store's: its objects, in it, would
    belong to no store otherwise.
    """

    async def main() -> None:
        world = BookKeeperWorld()
        tier2 = (tmp_path / ("joined" if own else "elsewhere") / "tier2").as_uri()
        maker = StoreIdentity(str(uuid.UUID(int=1)), 1, tier2)
        await found_or_join(MemoryNodes(world.tree), ROOT, maker)
        world.tree.fail("create")
        with pytest.raises(TierUnavailableError):
            await world.open(tmp_path / "joined")
        assert (tmp_path / "joined" / "store.toml").exists() == own
        assert world.all_closed()
        for _ in range(2):
            store = await world.open(tmp_path / "joined")
            assert store.stats()["store_id"] == maker.store_id
            await store.close()

    run(main())
