"""Calls on long segments while others delete them, forget them, or read very much of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from durablelog.catalog.key_store import KeyStoreError
from recovery.harness.simulation.tiny_pages import pages_of
from segmentstore import (
    AttributeUpdate,
    ContainerStoppedError,
    SegmentNotFoundError,
    SegmentStore,
    UpdateType,
    WriterNotOpenError,
)
from segmentstore import service as store_service
from segmentstore.container import SegmentContainer, segment_loader
from tests.store.harness import open_tiny, run, until
from tests.store.long_segments import NAME, SMALL, WRITERS


@pytest.fixture(autouse=True)
def _tiny_pages() -> Iterator[None]:
    with pages_of(SMALL):
        yield


def container_of(store: SegmentStore) -> SegmentContainer:
    (container,) = store._containers
    return container


async def with_writers(location: Path) -> None:
    async with open_tiny(location, **SMALL) as store:
        await store.create_segment(NAME)
        updates = [AttributeUpdate(writer, UpdateType.REPLACE, 5) for writer in WRITERS]
        await store.update_attributes(NAME, updates)
        await written(store)


async def written(store: SegmentStore) -> None:
    """The log begins with a checkpoint by reference."""
    await store.checkpoint()
    await until(lambda: snapshots(store) > 0)


def snapshots(store: SegmentStore) -> int:
    return store.stats()["containers"][0]["snapshots"]["completed"]


class SlowCatalog:
    """Look-ups of single keys that wait for a gate, or fail."""

    def __init__(self, store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
        catalog = container_of(store)._catalog.store
        self._get = catalog.get
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.error: KeyStoreError | None = None
        monkeypatch.setattr(catalog, "get", self.get)

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = await self._get(keys)
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return found


def test_a_session_that_is_not_open_takes_no_event(tmp_path: Path) -> None:
    async def main() -> None:
        await with_writers(tmp_path / "s")
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            # Idle at first, and then known in part.
            for _ in range(2):
                with pytest.raises(WriterNotOpenError):
                    await store.writer(NAME, WRITERS[3]).append(b"event", 6)
                assert (await store.get_info(NAME)).length == 0
            writer = await store.writer(NAME, WRITERS[3]).open()
            assert await writer.append(b"event", 6) == 0

    run(main())


@pytest.mark.parametrize("call", ["get_attributes", "open"])
def test_a_segment_that_is_deleted_while_its_attribute_is_read_does_not_exist(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        await with_writers(tmp_path / "s")
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await store.get_info(NAME)
            slow = SlowCatalog(store, monkeypatch)
            if call == "open":
                reading: asyncio.Task[object] = asyncio.create_task(
                    store.writer(NAME, WRITERS[3]).open()
                )
            else:
                reading = asyncio.create_task(store.get_attributes(NAME, [WRITERS[3]]))
            await slow.asked.wait()
            await store.delete(NAME)
            slow.gate.set()
            with pytest.raises(SegmentNotFoundError):
                await reading

    run(main())


def test_no_part_of_the_attributes_of_a_deleted_segment_is_taken_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_service, "_ATTRIBUTES_AT_ONCE", 10)

    async def main() -> None:
        await with_writers(tmp_path / "s")
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await store.create_segment("other")
            container = container_of(store)
            attributes_from, calls = container.attributes_from, 0

            async def deleted_in_between(*arguments: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == 3:
                    await store.delete(NAME)
                    await written(store)
                return await attributes_from(*arguments)

            monkeypatch.setattr(container, "attributes_from", deleted_in_between)
            with pytest.raises(SegmentNotFoundError):
                await store.get_attributes(NAME)

    run(main())


def test_others_run_while_segments_without_chunks_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_loader, "CHUNKS_OF_A_TURN", 10)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            for number in range(100):
                await store.create_segment(f"{number}")
            container = container_of(store)
            there = len(container.metadata.segments)
            task = asyncio.create_task(others())
            await asyncio.sleep(0)
            before = turns
            assert await container.chunks_in({"some object"}) == {}
            assert turns - before >= there // 10 > 1
            task.cancel()

    run(main())


def test_chunks_that_leave_memory_while_they_are_gathered_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_loader, "CHUNKS_OF_A_TURN", 10)
    options = SMALL | {"active_metadata_bytes_max": 1 << 30, "checkpoint_operations": 10_000}

    async def main() -> None:
        async with open_tiny(tmp_path / "s", **options) as store:
            for name in ("a", "b"):
                await store.create_segment(name)
                for number in range(30):
                    await store.append(name, b"%06d" % number * 20)
                    await store.flush(name)
            container = container_of(store)
            for _ in range(2):
                await store.append("a", b"x")
                await store.flush("a")
                await store.checkpoint()
                await until(lambda: container._updater.changes.all_written)
            assert container.metadata.whole
            names = set(container.metadata.objects)
            before = await container.chunks_in(names)
            container._partial._bytes_max = 2_000
            container._partial.written()
            assert await container.chunks_in(names) == before
            assert not container.metadata.whole

    run(main())


def test_what_reads_bring_of_attributes_is_bounded_without_checkpoints(tmp_path: Path) -> None:
    async def main() -> None:
        await with_writers(tmp_path / "s")
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            for number in range(20):
                first = 1_000 * (number + 1)
                absent = [UUID(int=first + each) for each in range(100)]
                assert await store.get_attributes(NAME, [*absent, WRITERS[2]]) == {WRITERS[2]: 5}
            container = container_of(store)
            segment = container.segments[container.segment_ids[NAME]]
            assert segment.attributes.known_count <= 101
            assert container._partial.attributes_read > 2_000

    run(main())


def test_what_many_readers_at_once_bring_of_one_segment_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await store.create_segment(NAME)
            for number in range(90):
                await store.append(NAME, b"%06d" % number * 20)
                await store.flush(NAME)
            await written(store)
        async with open_tiny(tmp_path / "s", **SMALL) as store:

            async def read(reader: int) -> None:
                for number in range(90):
                    at = (number * 37 + reader * 11) % 90
                    found = await store.read(NAME, at * 120, 120)
                    assert found
                    assert (b"%06d" % at * 20).startswith(found)

            await asyncio.gather(*map(read, range(16)))
            container = container_of(store)
            chunks = container.segments[container.segment_ids[NAME]].chunks
            assert len(chunks) == 90
            # Each reader may have brought one more than there is room for.
            assert chunks.known_count <= 3 * (2 + 16 + 1)

    run(main())


def test_a_lookup_that_fails_stops_the_container_since_events_wait_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused alone, an event would leave a gap before those of its session that follow it."""

    async def main() -> None:
        await with_writers(tmp_path / "s")
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await store.get_info(NAME)
            slow = SlowCatalog(store, monkeypatch)
            update = AttributeUpdate(WRITERS[3], UpdateType.ACCUMULATE, 1)
            first = store.append(NAME, b"first", attributes=[update])
            second = store.append(NAME, b"second")
            await slow.asked.wait()
            slow.error = KeyStoreError("catalog", "broken")
            slow.gate.set()
            for refused in (first, second):
                with pytest.raises(ContainerStoppedError):
                    await refused
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            assert (await store.get_info(NAME)).length == 0

    run(main())
