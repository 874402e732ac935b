"""What is in Tier 2, listed: also of segments, and chunks, that memory does not have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.segment_loading import load_pages
from recovery.harness.simulation.tiny_pages import pages_of
from segmentstore import DataCorruptionError, SegmentStore
from segmentstore.container import block_listing
from segmentstore.contracts.reports import BlockEntry
from tests.store.harness import open_lazy, open_tiny, run
from tests.store.long_segments import NAME, SMALL
from tests.store.test_idle_segments import FEW, NAMES, active, make_idle
from tests.store.test_partial_segments import CHUNKS, CONTENT, filled, in_memory


@pytest.fixture
def _tiny_pages() -> Iterator[None]:
    with pages_of(SMALL):
        yield


async def blocks_of(store: SegmentStore, name: str | None = None) -> list[BlockEntry]:
    return [block async for block in store.list_blocks(name)]


async def few_in_memory(store: SegmentStore) -> None:
    for name in NAMES:
        await store.create_segment(name)
        await store.append(name, name.encode() * 10)
    await make_idle(store, *NAMES[:10])


def test_idle_segments_are_listed_and_stay_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s", **FEW) as store:
            await few_in_memory(store)
            before = active(store)
            blocks = await blocks_of(store)
            lengths = {block.segment: block.length for block in blocks}
            assert {name: lengths[name] for name in NAMES} == dict.fromkeys(NAMES, 40)
            for name in NAMES[:3]:
                assert await blocks_of(store, name) == [
                    block for block in blocks if block.segment == name
                ]
            assert active(store) == before
            assert before.isdisjoint(NAMES[:10])

    run(main())


def test_an_idle_segment_that_is_deleted_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s", **FEW) as store:
            await few_in_memory(store)

            async def late(*arguments: object) -> object:
                await store.delete(NAMES[0])
                await store.checkpoint()
                async for pages in load_pages(*arguments):  # type: ignore[arg-type]
                    yield pages

            monkeypatch.setattr(block_listing, "load_pages", late)
            assert await blocks_of(store, NAMES[0]) == []

    run(main())


def test_damage_of_the_catalog_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(*_: object) -> object:
        yield []
        raise MetadataFormatError("page 0 of segment 3: it is short")

    async def main() -> None:
        async with open_lazy(tmp_path / "s", **FEW) as store:
            await few_in_memory(store)
            monkeypatch.setattr(block_listing, "load_pages", damaged)
            with pytest.raises(DataCorruptionError, match="it is short"):
                await blocks_of(store, NAMES[0])

    run(main())


@pytest.mark.usefixtures("_tiny_pages")
def test_pages_of_chunks_that_are_not_in_memory_are_listed(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await filled(store)
        async with open_tiny(tmp_path / "s", **SMALL) as store:
            await store.get_info(NAME)
            known = in_memory(store).chunks.known_count
            assert known < CHUNKS
            blocks = await blocks_of(store, NAME)
            assert in_memory(store).chunks.known_count == known
            places = sorted((block.start_offset or 0, block.length or 0) for block in blocks)
            assert len(places) >= CHUNKS
            end = 0
            for start, length in places:
                assert start == end
                end += length
            assert end == len(CONTENT)

    run(main())
