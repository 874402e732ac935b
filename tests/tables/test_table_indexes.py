"""What every TableIndex promises, on each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyPortion, KeyStore
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from durablelog.catalog.threaded_key_store import ThreadedKeyStore
from segmentstore.contracts.runtime import Runtime
from segmentstore.tables.index_store import IndexStore, TableId, decode_state, state_key
from segmentstore.tables.stored_index import StoredIndex
from segmentstore.tables.table_batch import TableBatch
from segmentstore.tables.table_index import MemoryIndex, TableIndex, order_key
from segmentstore.tables.table_records import KeyLocation
from tests.store.harness import run
from tests.support.suites import examples, sized
from tests.tables.harness import IDENTITY, tiny_writes

TABLE = TableId(1, 7)
ALL = pytest.mark.parametrize("kind", ["memory", "files", "rocksdb"])
LONG = b"k" * 1024
KEYS = [*(b"%d" % number for number in range(8)), LONG, LONG + b"a", LONG + b"b", b"l", b"\xff" * 3]
keys = st.sampled_from(KEYS)
batches = st.lists(st.tuples(keys, st.booleans(), st.booleans()), min_size=1, max_size=5)
steps = st.lists(batches | st.sampled_from(["yield", "settle", "reopen"]), max_size=15)
places = st.sampled_from([b"", b"3", b"5\0", LONG, LONG + b"\0", b"l", b"z"])


class Opener:
    """Opens an index: each time what is there, behind the one before."""

    async def open(self) -> TableIndex:
        raise NotImplementedError


class MemoryOpener(Opener):
    def __init__(self) -> None:
        self._index = MemoryIndex()

    async def open(self) -> TableIndex:
        return self._index


class StoredOpener(Opener):
    def __init__(self, indexes: IndexStore) -> None:
        self._indexes = indexes

    async def open(self) -> TableIndex:
        await self._indexes.written(TABLE)
        store = await self._indexes.open()
        (value,) = await store.get([state_key(TABLE)])
        state = None if value is None else decode_state(value)
        return StoredIndex(self._indexes, store, TABLE, state or MemoryIndex())


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Opener]:
    """Opens an index: a new one, then again what is there."""
    if kind == "memory":
        yield MemoryOpener()
        return

    def make() -> KeyStore:
        make_store = MemoryKeyStore if kind == "files" else RocksDbKeyStore
        return make_store(str(folder), IDENTITY, Runtime())

    def failed() -> None:
        raise AssertionError

    indexes = IndexStore(make, failed)
    try:
        yield StoredOpener(indexes)
    finally:
        await indexes.close()


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_writes(monkeypatch)


@ALL
@sized(10)
@given(data=st.data(), taken=steps)
@settings(max_examples=examples(60))
def test_it_has_what_was_applied(
    kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, taken: list[object]
) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path_factory.mktemp("index")) as opener:
            index = await opener.open()
            model: dict[bytes, KeyLocation] = {}
            position = 0
            for step in taken:
                if step == "yield":
                    await asyncio.sleep(0)
                elif step == "settle":
                    await index.settle()
                elif step == "reopen":
                    await index.settle()
                    index.drop()
                    index = await opener.open()
                else:
                    assert isinstance(step, list)
                    position = apply(index, model, step, position)
                start = data.draw(places)
                end = data.draw(st.none() | places)
                limit = data.draw(st.integers(1, 6))
                await check(index, model, start, end, limit)
            await check(index, model, b"", None, 100)

    run(main())


@ALL
def test_reads_beside_writes_have_all_that_was_applied(kind: str, tmp_path: Path) -> None:
    """Whatever moment of a write they meet."""

    async def main() -> None:
        async with opened(kind, tmp_path) as opener:
            index = await opener.open()
            model: dict[bytes, KeyLocation] = {}
            position = 0
            ended = False

            async def reader() -> None:
                while not ended:
                    await asyncio.sleep(0)
                    before = dict(model)
                    found = await index.locate(KEYS)
                    # The same turn.
                    assert found == model, before
                    assert dict(await index.scan(b"", None, 100)) == model

            readers = [asyncio.ensure_future(reader()) for _ in range(2)]
            for number in range(60):
                key, other = KEYS[number % len(KEYS)], KEYS[number * 5 % len(KEYS)]
                batch = [(key, False, False), (other, number % 3 == 0, False)]
                position = apply(index, model, batch, position)
                for _ in range(number % 4):
                    await asyncio.sleep(0)
            ended = True
            await asyncio.gather(*readers)

    run(main())


def apply(
    index: TableIndex,
    model: dict[bytes, KeyLocation],
    changes: list[tuple[bytes, bool, bool]],
    position: int,
) -> int:
    """Apply a batch to both; where the next one begins."""
    batch = TableBatch(position)
    for key, removed, copied in changes:
        there = batch.changes[key] if key in batch.changes else model.get(key)
        offset = position + batch.length
        location = None if removed else KeyLocation(offset, 20, 3 if copied and offset else offset)
        batch.set(key, location, there)
        batch.length += 20
    batch.tail = b"t" * 20
    for each, location in batch.changes.items():
        if location is None:
            model.pop(each, None)
        else:
            model[each] = location
    index.apply(batch)
    return batch.end


async def check(
    index: TableIndex, model: dict[bytes, KeyLocation], start: bytes, end: bytes | None, limit: int
) -> None:
    """Compare all that can be asked."""
    assert await index.locate(KEYS) == model
    assert await index.locate([KEYS[0], KEYS[0]]) == {
        key: location for key, location in model.items() if key == KEYS[0]
    }
    assert index.entry_count == len(model)
    assert index.live_bytes == sum(location.length for location in model.values())
    expected = [
        (key, model[key])
        for key in sorted(model, key=order_key)
        if order_key(key) >= start and (end is None or order_key(key) < end)
    ]
    assert await index.scan(start, end, limit) == expected[:limit]


@pytest.mark.parametrize("kind", ["files", "rocksdb"])
def test_a_read_that_is_overtaken_by_a_write_is_repeated(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the write took from memory may not be in what was read."""
    scan, get = ThreadedKeyStore.scan, ThreadedKeyStore.get

    async def main() -> None:
        async with opened(kind, tmp_path) as opener:
            index = await opener.open()
            assert isinstance(index, StoredIndex)
            model: dict[bytes, KeyLocation] = {}
            position = apply(index, model, [(key, False, False) for key in KEYS], 0)
            await index.settle()

            async def late_scan(
                self: ThreadedKeyStore, keys: StoreKeyRange, limit: int
            ) -> KeyPortion:
                found = await scan(self, keys, limit)
                await index.settle()
                return found

            async def late_get(self: ThreadedKeyStore, keys: Sequence[bytes]) -> list[bytes | None]:
                found = await get(self, keys)
                await index.settle()
                return found

            monkeypatch.setattr(ThreadedKeyStore, "scan", late_scan)
            monkeypatch.setattr(ThreadedKeyStore, "get", late_get)
            removed = [(key, True, False) for key in KEYS[:2]]
            for changes in ([(KEYS[3], False, False)], removed, [(KEYS[0], False, False)]):
                reading = asyncio.ensure_future(index.scan(b"", None, 100))
                finding = asyncio.ensure_future(index.locate(KEYS))
                await asyncio.sleep(0)
                position = apply(index, model, changes, position)
                assert dict(await reading) == model
                assert await finding == model

    run(main())
