"""Stores of keys that are open for reading alone: what is there is not changed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from durablelog.catalog.key_store import (
    ForeignKeyStoreError,
    KeyStore,
    KeyStoreCorruptError,
    KeyStoreError,
)
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.rocksdb_key_store import RocksDbKeyStore
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import EVERYTHING, IDENTITY, all_of, batch, numbered

Kind = type[MemoryKeyStore] | type[RocksDbKeyStore]
both = pytest.mark.parametrize("kind", [MemoryKeyStore, RocksDbKeyStore])


def made(kind: Kind, folder: Path, identity: KeyStoreIdentity = IDENTITY) -> KeyStore:
    return kind(str(folder), identity, Runtime())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def checkpoint(kind: Kind, folder: Path, target: Path) -> list[tuple[bytes, bytes]]:
    """What a checkpoint in `target` has: three batches, in three files."""
    store = made(kind, folder)
    await store.open()
    for number in range(1, 4):
        await store.apply(batch(numbered(range(number * 10), b"%d" % number)), number)
        await store.checkpoint(str(target))
    whole = await all_of(store)
    await store.close()
    return whole


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@both
def test_a_checkpoint_is_read_and_not_changed(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        whole = await checkpoint(kind, tmp_path / "s", tmp_path / "c")
        before = content(tmp_path / "c")
        reading, beside = made(kind, tmp_path / "c"), made(kind, tmp_path / "c")
        await reading.open_read_only()
        await beside.open_read_only()
        assert (reading.sequence_number, await all_of(reading)) == (3, whole)
        assert await all_of(await beside.snapshot()) == whole
        assert await reading.get([whole[4][0], b"none"]) == [whole[4][1], None]
        assert await reading.find_last([EVERYTHING]) == [whole[-1]]
        await beside.close()
        assert await all_of(reading) == whole
        await reading.close()
        assert content(tmp_path / "c") == before

    run(main())


@both
def test_what_would_change_it_is_refused(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        await checkpoint(kind, tmp_path / "s", tmp_path / "c")
        before = content(tmp_path / "c")
        reading = made(kind, tmp_path / "c")
        await reading.open_read_only()
        for change in (
            reading.apply(batch(numbered([1])), 9),
            reading.flush(),
            reading.checkpoint(str(tmp_path / "other")),
            reading.destroy(),
        ):
            with pytest.raises(KeyStoreError, match="reading only"):
                await change
        await reading.close()
        assert content(tmp_path / "c") == before

    run(main())


@both
def test_what_is_no_checkpoint_of_its_own_is_refused(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        await checkpoint(kind, tmp_path / "s", tmp_path / "c")
        (tmp_path / "empty").mkdir()
        for name in ("empty", "absent"):
            reading = made(kind, tmp_path / name)
            with pytest.raises(KeyStoreCorruptError):
                await reading.open_read_only()
            await reading.close()
        assert not (tmp_path / "absent").exists()
        reading = made(kind, tmp_path / "c", IDENTITY._replace(container_id=4))
        with pytest.raises(ForeignKeyStoreError):
            await reading.open_read_only()
        await reading.close()

    run(main())
