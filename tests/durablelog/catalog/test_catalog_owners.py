"""MetadataCatalog with two owners at once, and calls that overlap."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from durablelog.catalog.checkpoint_files import LOCK_NAME
from durablelog.catalog.key_store import KeyStoreClosedError, KeyStoreError, KeyStoreInUseError
from tests.contracts.key_store_contract import batch, numbered
from tests.durablelog.catalog.test_metadata_catalog import (
    Kind,
    both,
    built,
    catalog,
    changes,
    content,
    names,
    run,
    write,
)


@both
def test_one_whose_lock_was_given_up_changes_nothing_of_the_next_one(
    kind: Kind, tmp_path: Path
) -> None:
    """Both write at once. Had they one directory, RocksDB would write over files of the other."""

    async def main() -> None:
        folder = tmp_path / "c"
        await built(folder, kind, (5, 7))
        first, second = catalog(folder, kind), catalog(folder, kind)
        await first.open_at(7)
        for lock in folder.rglob(LOCK_NAME):
            lock.unlink()
        await second.open_at(7)
        states = {}
        for number in range(1000, 1020):
            stale = asyncio.ensure_future(first.write(changes(number + 500), number - 900))
            states[number] = await write(second, number)
            await asyncio.wait([stale])
            if stale.exception() is not None:
                with contextlib.suppress(KeyStoreError):
                    await first.open_at(7)
        await first.close()
        await second.close()
        made = catalog(folder, kind)
        for number, state in states.items():
            assert await made.has_checkpoint(number)
            assert await content(made, number) == state
        await made.close()

    run(main())


@both
def test_the_lock_is_given_up_when_nothing_is_open_any_more(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        await built(tmp_path / "c", kind, (5, 7))
        for _ in range(5):
            first, second = catalog(tmp_path / "c", kind), catalog(tmp_path / "c", kind)
            await first.open_at(7)
            await first.store.apply(batch(numbered(range(3000), b"more")), 9)
            closing = asyncio.ensure_future(first.close())
            while True:
                try:
                    await second.open_at(7)
                    break
                except KeyStoreInUseError:
                    await asyncio.sleep(0)
            # What the first one flushed at its end is no part of what the second one removes.
            await closing
            assert len(names(tmp_path / "c")) == 6
            await second.close()

    run(main())


@both
def test_a_close_during_an_opening_leaves_nothing_open(kind: Kind, tmp_path: Path) -> None:
    async def main() -> None:
        for turns in range(30):
            made = catalog(tmp_path / "c", kind)
            opening = asyncio.ensure_future(made.begin_empty())
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            await made.close()
            await asyncio.wait([opening])
            with pytest.raises(KeyStoreClosedError):
                await made.store.flush()
            if (error := opening.exception()) is not None:
                assert isinstance(error, KeyStoreClosedError)

    run(main())
