"""Long segments: memory knows some of their chunks and attributes, the catalog has all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from recovery.harness.simulation.tiny_pages import PAGE_ENTRIES, pages_of
from segmentstore import (
    ATTRIBUTE_UNSET,
    AttributeUpdate,
    BadAttributeUpdateError,
    SegmentNotFoundError,
    SegmentStore,
    UpdateType,
    WriterNotOpenError,
)
from segmentstore.container import metadata_checkpoints
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import WorldDisk, open_tiny, run, until
from tests.store.long_segments import NAME, SMALL, WRITERS

CHUNKS = 60


@pytest.fixture(autouse=True)
def _tiny_pages() -> Iterator[None]:
    with pages_of(SMALL):
        yield


def part(number: int) -> bytes:
    return b"%05d." % number * 20


CONTENT = b"".join(map(part, range(CHUNKS)))


async def content(store: SegmentStore, name: str = NAME) -> bytes:
    return b"".join([piece async for piece in store.reader(name)])


def in_memory(store: SegmentStore, name: str = NAME) -> SegmentMetadata:
    (container,) = store._containers
    return container.segments[container.segment_ids[name]]


def numbers(store: SegmentStore) -> dict[str, int]:
    stats = store.stats()["containers"][0]["active_segments"]
    return {"pages": stats["pages_read"], "attributes": stats["attributes_read"]}


async def filled(store: SegmentStore, name: str = NAME) -> None:
    """A segment of many chunks, and of many writers."""
    await store.create_segment(name)
    for number in range(CHUNKS):
        await store.append(name, part(number))
        await store.flush(name)
    updates = [AttributeUpdate(writer, UpdateType.REPLACE, 5) for writer in WRITERS]
    await store.update_attributes(name, updates)


async def forgotten(store: SegmentStore, name: str = NAME) -> SegmentMetadata:
    """Take checkpoints until memory knows little of the segment; `run` has a bound."""
    while True:
        await store.update_attributes(name, [AttributeUpdate(OTHER, UpdateType.ACCUMULATE, 1)])
        await store.checkpoint()
        await asyncio.sleep(0.01)
        # It may have left memory as a whole, too.
        await store.get_info(name)
        segment = in_memory(store, name)
        if segment.chunks.known_count <= 2 * PAGE_ENTRIES and segment.attributes.known_count < 9:
            return segment


OTHER = UUID(int=3)


def test_a_read_of_a_long_segment_loads_the_pages_it_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
        async with open_tiny(tmp_path / "s", **SMALL, read_ahead_bytes_max=0) as store:
            assert (await store.get_info(NAME)).length == len(CONTENT)
            segment = in_memory(store)
            assert not segment.chunks.whole
            assert segment.chunks.known_count <= PAGE_ENTRIES
            at = len(CONTENT) // 2
            assert await store.read(NAME, at, 30) == CONTENT[at : at + 30]
            assert 0 < numbers(store)["pages"] <= 2
            assert numbers(store)["attributes"] == 0
            assert await content(store) == CONTENT
            # What was read is bounded as well.
            assert segment.chunks.known_count <= 5 * PAGE_ENTRIES

    run(main())


def test_a_returning_writer_loads_its_own_attribute(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            async with store.writer(NAME, WRITERS[11]) as writer:
                assert writer.last_event_number == 5
                assert numbers(store) == {"pages": 0, "attributes": 1}
                assert await writer.append(b"again", 5) is None
                assert await writer.append(b"new.") == len(CONTENT)
            # Memory has the segment now, and knows nothing of this one.
            unopened = store.writer(NAME, WRITERS[12])
            with pytest.raises(WriterNotOpenError):
                _ = unopened.last_event_number
            assert (await unopened.open()).last_event_number == 5
            new = UUID(int=1 << 100)
            async with store.writer(NAME, new) as writer:
                assert writer.last_event_number == -1
                await writer.append(b"first")
            assert await store.get_attributes(NAME, [new, WRITERS[11], UUID(int=2)]) == {
                new: 0,
                WRITERS[11]: 6,
            }
            assert await content(store) == CONTENT + b"new.first"

    run(main())


def test_appends_with_attributes_that_memory_lacks_keep_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
            await store.create_segment("other")
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await store.get_info(NAME)
            await store.get_info("other")
            futures = []
            for number, writer in enumerate(WRITERS):
                update = AttributeUpdate(writer, UpdateType.REPLACE_IF_EQUALS, number, expected=5)
                futures.append(store.append(NAME, b"%03d." % (2 * number), attributes=[update]))
                futures.append(store.append(NAME, b"%03d." % (2 * number + 1)))
                futures.append(store.append("other", b"%03d." % number))
            again = AttributeUpdate(WRITERS[3], UpdateType.REPLACE_IF_EQUALS, 9, expected=5)
            refused = store.append(NAME, b"refused", attributes=[again])
            with pytest.raises(BadAttributeUpdateError):
                await refused
            await asyncio.gather(*futures)
            assert numbers(store)["attributes"] >= len(WRITERS)
            written = b"".join(b"%03d." % number for number in range(2 * len(WRITERS)))
            assert await content(store) == CONTENT + written
            found = await store.get_attributes(NAME)
            assert found == {writer: number for number, writer in enumerate(WRITERS)}

    run(main())


def test_a_seal_that_comes_behind_an_append_which_waits_for_its_attribute(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await store.get_info(NAME)
            update = AttributeUpdate(WRITERS[5], UpdateType.ACCUMULATE, 1)
            appended = store.append(NAME, b"last", attributes=[update])
            assert await store.seal(NAME) == len(CONTENT) + 4
            assert await appended == len(CONTENT)

    run(main())


def test_attributes_are_iterated_as_catalog_and_memory_have_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
            expected = dict.fromkeys(WRITERS, 5)
            segment = await forgotten(store)
            assert not segment.attributes.whole
            expected[OTHER] = (await store.get_attributes(NAME, [OTHER]))[OTHER]
            new, last = UUID(int=WRITERS[9].int + 1), UUID(int=(1 << 128) - 1)
            changes = {WRITERS[0]: ATTRIBUTE_UNSET, WRITERS[20]: 7, new: 8, last: 9}
            await store.update_attributes(
                NAME,
                [AttributeUpdate(key, UpdateType.REPLACE, each) for key, each in changes.items()],
            )
            expected.update(changes)
            del expected[WRITERS[0]]
            by_id = sorted(expected.items())
            assert list((await store.get_attributes(NAME)).items()) == by_id
            assert [each async for each in store.iterate_attributes(NAME)] == by_id
            some = store.iterate_attributes(NAME, WRITERS[5], WRITERS[25])
            assert [each async for each in some] == [
                each for each in by_id if WRITERS[5] <= each[0] <= WRITERS[25]
            ]
            await store.update_attributes(
                NAME,
                [AttributeUpdate(key, UpdateType.REPLACE, ATTRIBUTE_UNSET) for key in expected],
            )
            assert [each async for each in store.iterate_attributes(NAME)] == []
            assert await store.get_attributes(NAME) == {}

    run(main())


def test_tasks_that_share_an_iterator_get_each_attribute_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
            assert not (await forgotten(store)).attributes.whole
            iterator = store.iterate_attributes(NAME)
            given: list[UUID] = []

            async def take() -> None:
                async for key, _ in iterator:
                    given.append(key)

            await asyncio.gather(*(take() for _ in range(3)))
            assert sorted(given) == sorted([*WRITERS, OTHER])

    run(main())


def test_what_changes_a_long_segment_finds_what_has_left_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
            await store.create_segment("target")
            await store.append("target", b"<")
            await forgotten(store)
            await store.truncate(NAME, 0)
            assert await content(store) == CONTENT
            await forgotten(store)
            assert await store.merge("target", NAME) == (1, 1 + len(CONTENT))
            await store.append("target", b">")
            await store.flush()
            assert await content(store, "target") == b"<" + CONTENT + b">"
            await forgotten(store, "target")
            at = len(CONTENT) // 3
            await store.truncate("target", at)
            rest = (b"<" + CONTENT + b">")[at:]
            found = b"".join([piece async for piece in store.reader("target", at)])
            assert found == rest
            await forgotten(store, "target")
            await store.delete("target")
            with pytest.raises(SegmentNotFoundError):
                await store.read("target", at, 1)
            await until(lambda: store._containers[0].metadata.partial == set())

    run(main())


@pytest.mark.parametrize("change", ["truncate", "delete", "merge", "attributes", "writer"])
def test_after_a_crash_replay_finds_what_its_operations_need(tmp_path: Path, change: str) -> None:
    """The log begins with a checkpoint; behind it are operations on what the catalog alone has."""

    async def main() -> None:
        disk = WorldDisk()
        options = SMALL | {"checkpoint_operations": 10_000, "checkpoint_bytes": 1 << 20}
        async with open_tiny(tmp_path / "s", runtime=Runtime(disk=disk), **options) as store:
            await filled(store)
            await store.create_segment("target")
            await store.flush()
            await store.checkpoint()
            await store.checkpoint()
            await until(lambda: not store.stats()["containers"][0]["snapshots"]["in_progress"])
            if change == "truncate":
                await store.truncate(NAME, len(CONTENT) // 2)
            elif change == "delete":
                await store.delete(NAME)
            elif change == "merge":
                await store.merge("target", NAME)
                await store.append("target", b"more")
                await store.flush()
            elif change == "attributes":
                update = AttributeUpdate(WRITERS[9], UpdateType.ACCUMULATE, 1)
                await store.update_attributes(NAME, [update])
            else:
                async with store.writer(NAME, WRITERS[9]) as writer:
                    await writer.append(b"more")
            disk.crash_copy(tmp_path / "s", tmp_path / "copy")
        async with open_tiny(tmp_path / "copy", **SMALL) as store:
            if change == "truncate":
                at = len(CONTENT) // 2
                assert b"".join([each async for each in store.reader(NAME, at)]) == CONTENT[at:]
            elif change == "delete":
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info(NAME)
            elif change == "merge":
                assert await content(store, "target") == CONTENT + b"more"
            else:
                assert await store.get_attributes(NAME) == dict.fromkeys(WRITERS, 5) | {
                    WRITERS[9]: 6
                }
                more = b"more" if change == "writer" else b""
                assert await content(store) == CONTENT + more

    run(main())


def test_consolidation_replaces_chunks_that_have_left_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
            await forgotten(store)
            before = len(in_memory(store).chunks)
        options = SMALL | {"consolidation": True, "consolidation_bytes": 600}
        async with open_tiny(tmp_path / "s", **options) as store:
            await store.get_info(NAME)
            assert not in_memory(store).chunks.whole
            await until(lambda: len(in_memory(store).chunks) < before * 3 // 4)
            assert numbers(store)["pages"] > 0
            assert await content(store) == CONTENT

    run(main())


def test_an_opening_does_not_read_all_attributes_of_many_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read all that its memory had room for: six seconds for a million."""

    async def main() -> None:
        roomy = SMALL | {"active_metadata_bytes_max": 1 << 20}
        async with open_tiny(tmp_path / "s", **roomy) as store:
            await filled(store)
            await store.checkpoint()
        for bytes_max, whole in ((1 << 20, True), (5000, False)):
            monkeypatch.setattr(metadata_checkpoints, "WHOLE_BYTES_MAX", bytes_max)
            async with open_tiny(tmp_path / "s", **roomy) as store:
                (container,) = store._containers
                assert (NAME in container.segment_ids) == whole
                async with store.writer(NAME, WRITERS[11]) as writer:
                    assert writer.last_event_number == 5
                assert numbers(store)["attributes"] == (0 if whole else 1)
                assert await content(store) == CONTENT

    run(main())


def test_segments_leave_memory_when_their_metadata_take_too_much(tmp_path: Path) -> None:
    async def main() -> None:
        names = [f"s{number:02}" for number in range(30)]
        options = SMALL | {"active_metadata_bytes_max": 12_000}
        async with open_tiny(tmp_path / "s", **options) as store:
            for name in names:
                await store.create_segment(name)
                await store.append(name, name.encode())
            await store.flush()
            (container,) = store._containers
            for _ in range(20):
                await store.checkpoint()
                await store.append(names[0], b".")
                await store.flush()
                if len(container.segments) <= 15:
                    break
            assert len(container.segments) <= 15
            for name in names[1:]:
                assert await content(store, name) == name.encode()

    run(main())
