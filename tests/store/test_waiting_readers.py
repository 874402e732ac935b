"""Readers that wait at the tails of more segments than may be in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from segmentstore import (
    ContainerStoppedError,
    EndOfSegmentError,
    SegmentNotFoundError,
    SegmentStore,
)
from tests.store.harness import open_tiny, read_all, run, until
from tests.store.test_idle_segments import FEW, active, made, make_idle

NAMES = [f"s{number:03}" for number in range(24)]


def waiting(store: SegmentStore, wait: float = 60.0) -> dict[str, asyncio.Future[bytes]]:
    """One reader at the tail of each segment."""
    return {name: asyncio.ensure_future(store.read(name, 0, 100, wait)) for name in NAMES}


def readers(store: SegmentStore) -> int:
    return sum(
        container._read_index.statistics().readers_waiting for container in store._containers
    )


async def all_wait(store: SegmentStore, reads: dict[str, Any]) -> None:
    await until(lambda: readers(store) == len(reads))
    await make_idle(store, *NAMES[:12])


def test_each_gets_its_bytes_and_others_have_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store, NAMES)
            reads = waiting(store)
            await all_wait(store, reads)
            assert len(active(store)) <= 8
            await store.create_segment("new")
            await store.append("new", b"data")
            assert await read_all(store, "new") == b"data"
            for name in reversed(NAMES):
                await store.append(name, name.encode())
            assert [await reads[name] for name in NAMES] == [name.encode() for name in NAMES]
            assert not readers(store)

    run(main())


def test_each_is_informed_what_became_of_its_segment(tmp_path: Path) -> None:
    async def main() -> None:
        store = await open_tiny(tmp_path / "s", **FEW)
        await made(store, NAMES)
        reads = waiting(store)
        await all_wait(store, reads)
        sealed, deleted, source, target, remade, *others = NAMES
        await store.seal(sealed)
        with pytest.raises(EndOfSegmentError) as end:
            await reads.pop(sealed)
        assert end.value.name == sealed
        await store.delete(deleted)
        await store.merge(target, source)
        # Another segment of its name is not that which it waits for.
        await store.delete(remade)
        await store.create_segment(remade)
        await store.append(remade, b"other")
        for name in (deleted, source, remade):
            with pytest.raises(SegmentNotFoundError) as missing:
                await reads.pop(name)
            assert missing.value.name == name
        assert readers(store) == len(reads) == len(others) + 1
        await store.close()
        for outcome in await asyncio.gather(*reads.values(), return_exceptions=True):
            assert isinstance(outcome, ContainerStoppedError)

    run(main())


def test_time_that_passes_brings_no_segment_back_into_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store, NAMES)
            reads = waiting(store, 3.0)
            await until(lambda: readers(store) == len(reads))
            await store.flush()
            await store.checkpoint()
            loaded = [container._active.statistics().activations for container in store._containers]
            assert set(await asyncio.gather(*reads.values())) == {b""}
            assert loaded == [
                container._active.statistics().activations for container in store._containers
            ]

    run(main())


def test_a_change_that_brings_no_bytes_lets_it_wait_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store, NAMES)
            await store.append("s000", b"front")
            read = asyncio.ensure_future(store.read("s000", 5, 100, 60.0))
            await until(lambda: readers(store) == 1)
            await store.append("s000", b"")
            await store.truncate("s000", 2)
            await make_idle(store, "s000")
            assert not read.done()
            await store.append("s000", b"behind")
            assert await read == b"behind"

    run(main())
