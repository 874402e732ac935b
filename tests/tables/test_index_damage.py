"""An index on disk that is lost, damaged, old, or of something else is built again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyBatch, KeyStore, KeyStoreFullError
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from recovery.harness.simulation.disk_nodes import Inode
from recovery.harness.simulation.store_world import LOCATION
from segmentstore import TierUnavailableError
from segmentstore.service import SegmentStore
from segmentstore.tables.index_files import index_directory
from segmentstore.tables.open_tables import TableLimits
from segmentstore.tables.stored_index import StoredIndex
from segmentstore.tables.table_index import MemoryIndex
from segmentstore.tables.table_service import TableService
from segmentstore.tables.table_types import NO_VERSION, TableEntry
from tests.tables.harness import IDENTITY, ON_DISK, TableWorld, tiny_writes

KEYS = [b"%02d" % number for number in range(20)]
NEVER_COMPACTED = TableLimits(memory_index_bytes_max=1000, dead_bytes_min=1 << 30)
Files = dict[str, bytes]
EVERYTHING = StoreKeyRange(b"\x01", b"\xff")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_writes(monkeypatch)


async def fill(world: TableWorld, value: bytes, rounds: int = 1) -> dict[bytes, TableEntry]:
    """Set all keys but every fifth, which is removed; what the table has then."""
    tables = world.tables
    entries = {}
    for _ in range(rounds):
        for number, key in enumerate(KEYS):
            (version,) = await tables.update("t", [(key, NO_VERSION, value)])
            entries[key] = TableEntry(key, version, value)
            if number % 5 == 4:
                await tables.remove("t", [(key, version)])
                del entries[key]
    return entries


def filled(world: TableWorld, value: bytes, rounds: int = 1) -> dict[bytes, TableEntry]:
    """The same in a new table, whose index is then whole on disk."""
    world.run(world.tables.create("t"))
    entries = world.run(fill(world, value, rounds))
    table = world.tables._tables._tables["t"]
    assert isinstance(table.index, StoredIndex)
    world.run(table.index.settle())
    return entries


def check(world: TableWorld, entries: dict[bytes, TableEntry]) -> None:
    found = world.run(world.tables.get("t", KEYS))
    assert {entry.key: entry for entry in found if entry is not None} == entries
    page = world.run(world.tables.keys("t", 99))
    assert [key for key, _ in page.keys] == sorted(entries)
    assert world.run(world.tables.info("t")).entry_count == len(entries)


def index_files(world: TableWorld) -> Files:
    image = world.world.image
    directory = index_directory(LOCATION)
    return {path: image.read(path) for path in image.files() if path.startswith(directory)}


def replace_index(world: TableWorld, change: Callable[[Files], Files]) -> None:
    """Close the store, have other files there, and open it again."""
    world.run(world._stop())
    world.world.kill(world.process)
    image = world.world.image
    before = index_files(world)
    for path, content in change(before).items():
        node = image.create(path) if path not in before else image.get(path)
        assert isinstance(node, Inode)
        node.settle(content)
    for path in before.keys() - change(before).keys():
        image.unlink(path)
    world._begin_process()


def begun(world: TableWorld) -> MemoryIndex | StoredIndex:
    """The index as it is found when the table is opened."""

    async def main() -> MemoryIndex | StoredIndex:
        found = await world.tables._indexes._begin(await world.store.get_info("t"))
        assert isinstance(found, MemoryIndex | StoredIndex)
        return found

    return world.run(main())


def test_an_index_that_is_whole_goes_on_where_it_ends() -> None:
    with TableWorld(limits=NEVER_COMPACTED) as world:
        entries = filled(world, b"one")
        world.reopen()
        index = begun(world)
        assert isinstance(index, StoredIndex)
        length = world.run(world.store.get_info("t")).length
        assert index.end == length
        check(world, entries)
        # What comes behind it is read from the segment.
        for key in KEYS[:2]:
            (version,) = world.run(world.tables.update("t", [(key, NO_VERSION, b"two")]))
            entries[key] = TableEntry(key, version, b"two")
        world.crash()
        index = begun(world)
        assert isinstance(index, StoredIndex)
        assert 0 < index.end <= length
        check(world, entries)
        world.run(world._stop())


@pytest.mark.parametrize("how", ["all", "list", "flip", "cut", "empty"])
def test_a_damaged_index_is_built_again(how: str) -> None:
    def damaged(files: Files) -> Files:
        if how == "all":
            return {}
        if how == "list":
            return {path: content for path, content in files.items() if "CURRENT" not in path}
        change: dict[str, Callable[[bytes], bytes]] = {
            "flip": lambda content: content[:-9] + bytes((content[-9] ^ 1,)) + content[-8:],
            "cut": lambda content: content[: len(content) // 2],
            "empty": lambda content: b"",
        }
        return {
            path: change[how](content) if path.endswith(".run") else content
            for path, content in files.items()
        }

    with TableWorld(limits=ON_DISK) as world:
        entries = filled(world, b"one", 3)
        assert any(path.endswith(".run") for path in index_files(world))
        replace_index(world, damaged)
        assert isinstance(begun(world), MemoryIndex)
        check(world, entries)
        entries = world.run(fill(world, b"two"))
        world.reopen()
        check(world, entries)
        world.run(world._stop())


@pytest.mark.parametrize("limits", [ON_DISK, NEVER_COMPACTED], ids=["compacted", "whole"])
def test_an_old_copy_of_the_index_catches_up_or_is_built_again(limits: TableLimits) -> None:
    with TableWorld(limits=limits) as world:
        filled(world, b"one")
        world.reopen()
        end = begun(world).end
        old = index_files(world)
        entries = world.run(fill(world, b"two", 4))
        world.run(asyncio.sleep(1))
        replace_index(world, lambda _: old)
        start_offset = world.run(world.store.get_info("t")).start_offset
        found = begun(world)
        assert isinstance(found, MemoryIndex if limits is ON_DISK else StoredIndex)
        assert found.end == (start_offset if limits is ON_DISK else end)
        assert (start_offset > end) == (limits is ON_DISK)
        check(world, entries)
        world.run(world._stop())


def test_an_index_of_other_bytes_or_of_more_is_not_used() -> None:
    """As if the log had been set back to an older copy, and had grown otherwise since."""
    for rounds in (1, 3):
        with TableWorld("other", NEVER_COMPACTED) as other:
            filled(other, b"abc", rounds)
            other.reopen()
            theirs = index_files(other)
            other.run(other._stop())
        with TableWorld("ours", NEVER_COMPACTED) as world:
            entries = filled(world, b"xyz", 2)
            replace_index(world, lambda _, theirs=theirs: theirs)  # type: ignore[misc]
            assert isinstance(begun(world), MemoryIndex)
            check(world, entries)
            world.run(world._stop())


def test_an_index_of_another_store_is_not_used() -> None:
    class OtherWorld(TableWorld):
        identity = IDENTITY

        def make_keys(self) -> KeyStore:
            runtime = self.process.runtime
            return MemoryKeyStore(index_directory(LOCATION), self.identity, runtime)

    with OtherWorld(limits=NEVER_COMPACTED) as world:
        entries = filled(world, b"one")
        world.identity = KeyStoreIdentity("5f6a2c9e-0000-4000-8000-000000000002", 0)
        world.reopen()
        assert isinstance(begun(world), MemoryIndex)
        check(world, entries)
        world.run(world._stop())


class BrittleKeyStore(MemoryKeyStore):
    """Its disk may be full, for writes or for good."""

    full = False

    def _write(self, batch: KeyBatch, own: dict[bytes, bytes]) -> None:
        if BrittleKeyStore.full:
            raise KeyStoreFullError(self._directory, "no room")
        super()._write(batch, own)


class BrittleWorld(TableWorld):
    def make_keys(self) -> KeyStore:
        return BrittleKeyStore(index_directory(LOCATION), IDENTITY, self.process.runtime)


def test_an_index_that_fails_meanwhile_costs_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    with BrittleWorld(limits=NEVER_COMPACTED) as world:
        entries = filled(world, b"one")

        async def work(tables: TableService) -> None:
            table = tables._tables._tables["t"]
            monkeypatch.setattr(BrittleKeyStore, "full", True)
            outcomes = await asyncio.gather(
                *(tables.update("t", [(key, NO_VERSION, b"two")]) for key in KEYS[:9]),
                return_exceptions=True,
            )
            for key, outcome in zip(KEYS, outcomes, strict=False):
                if isinstance(outcome, list):
                    entries[key] = TableEntry(key, outcome[0], b"two")
                else:
                    assert isinstance(outcome, TierUnavailableError)
            await asyncio.sleep(1)
            assert table.pipeline.dropped
            with pytest.raises(TierUnavailableError):
                await tables.get("t", KEYS)
            monkeypatch.setattr(BrittleKeyStore, "full", False)

        world.run(work(world.tables))
        check(world, entries)
        table = world.tables._tables._tables["t"]
        assert isinstance(table.index, StoredIndex)
        world.reopen()
        check(world, entries)
        world.run(world._stop())


def test_a_deleted_table_leaves_nothing_in_the_index() -> None:
    with TableWorld(limits=NEVER_COMPACTED) as world:
        filled(world, b"one")

        async def work(tables: TableService, _: SegmentStore) -> None:
            assert tables._on_disk is not None
            keys = await tables._on_disk.open()
            assert len((await keys.scan(EVERYTHING, 100)).pairs) == 17
            await tables.delete("t")
            assert (await keys.scan(EVERYTHING, 100)).pairs == []
            await tables.create("t")
            assert await tables.get("t", KEYS[:1]) == [None]

        world.run(work(world.tables, world.store))
        world.run(world._stop())
