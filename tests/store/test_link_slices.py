"""A store in which a long segment is merged: its chunks are linked in slices, and each byte is read
before, between and behind them, over restarts and restores too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from durablelog.catalog import metadata_changes
from durablelog.chunk_slices import Slices
from recovery.harness.simulation.tiny_pages import SLICE_LINKED, pages_of
from recovery.restore import restore_store
from segmentstore import SegmentStore
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from storagewriter import chunk_linker
from storagewriter.chunk_reach import reach_of
from storagewriter.flush_loop import FlushLoop
from storagewriter.link_plan import LinkPlan
from tests.store.harness import open_tiny, read_all, run, until
from tests.store.long_segments import SMALL

CHUNKS = 20
SLICES = (CHUNKS - 1) // SLICE_LINKED
KEEP: dict[str, Any] = {**SMALL, "deletion_lag_s": 1000.0}
INLINE: dict[str, Any] = {**KEEP, "inline_checkpoint_bytes_max": 1 << 20}


@pytest.fixture(autouse=True)
def _tiny_pages() -> Iterator[None]:
    with pages_of(SMALL):
        assert 3 * Slices.linked_max < CHUNKS
        yield


class Links:
    """How many operations that link may be committed; None: all."""

    def __init__(self) -> None:
        self.allowed: int | None = None
        self.committed: list[LinkPlan] = []

    @property
    def at_rest(self) -> bool:
        return self.allowed is not None and len(self.committed) >= self.allowed


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Links:
    counted = Links()
    link = FlushLoop._link

    async def bounded(loop: FlushLoop, plan: LinkPlan, segment_ids: Sequence[int]) -> None:
        await until(lambda: not counted.at_rest)
        await link(loop, plan, segment_ids)
        counted.committed.append(plan)

    monkeypatch.setattr(FlushLoop, "_link", bounded)
    return counted


def part(number: int) -> bytes:
    return b"%05d." % number * 10


HEAD, TAIL = b"the target's own. " * 3, b" behind"
CONTENT = HEAD + b"".join(map(part, range(CHUNKS))) + TAIL


def metadata_of(store: SegmentStore) -> ContainerMetadata:
    metadata = store._containers[0].metadata
    assert_metadata_valid(metadata)
    return metadata


def source_of(store: SegmentStore) -> SegmentMetadata | None:
    merged = [each for each in metadata_of(store).segments.values() if each.merged_into is not None]
    return merged[0] if merged else None


def target_of(store: SegmentStore) -> SegmentMetadata:
    metadata = metadata_of(store)
    return metadata.segments[metadata.names["target"]]


async def filled(store: SegmentStore) -> None:
    for name in ("target", "source"):
        await store.create_segment(name)
    await store.append("target", HEAD)
    for number in range(CHUNKS):
        await store.append("source", part(number))
        await store.flush("source")


async def merged(store: SegmentStore) -> None:
    await filled(store)
    await store.merge("target", "source")
    await store.append("target", TAIL)


@pytest.mark.parametrize("settings", [KEEP, INLINE], ids=["snapshots", "inline"])
def test_each_byte_is_read_behind_each_slice_and_by_the_next_owner(
    tmp_path: Path, links: Links, settings: dict[str, Any]
) -> None:
    async def main() -> None:
        links.allowed = 0
        async with open_tiny(tmp_path / "s", **settings) as store:
            await merged(store)
            assert await read_all(store, "target") == CONTENT
        for number in range(1, SLICES + 1):
            links.allowed = number
            async with open_tiny(tmp_path / "s", **settings) as store:
                store_flush = asyncio.ensure_future(store.flush("target"))
                await until(lambda: links.at_rest)
                assert await read_all(store, "target") == CONTENT
                source = source_of(store)
                assert source is not None
                assert len(source.chunks) == CHUNKS - number * Slices.linked_max
                if number % 2:
                    await store.checkpoint()
                store_flush.cancel()
            async with open_tiny(tmp_path / "s", **settings) as store:
                assert await read_all(store, "target") == CONTENT
        links.allowed = None
        async with open_tiny(tmp_path / "s", **settings) as store:
            await store.flush("target")
            assert source_of(store) is None
            assert await read_all(store, "target") == CONTENT
        assert [plan.in_slices for plan in links.committed] == [True] * SLICES + [False]

    run(main())


def test_a_reader_that_goes_on_meanwhile_misses_nothing(tmp_path: Path, links: Links) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await filled(store)
        links.allowed = 0
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await store.merge("target", "source")
            await store.append("target", TAIL)
            stored = asyncio.ensure_future(store.flush("target"))
            read = bytearray()
            for number in range(SLICES + 1):
                for _ in range(5):
                    read += await store.read("target", len(read), 40)
                links.allowed = number + 1
                await until(lambda: links.at_rest)
            links.allowed = None
            while len(read) < len(CONTENT):
                read += await store.read("target", len(read), 40)
            assert bytes(read) == CONTENT
            await stored

    run(main())


@pytest.mark.parametrize("settings", [KEEP, INLINE], ids=["snapshots", "inline"])
@pytest.mark.parametrize("slices", [0, 1, SLICES])
def test_a_restore_of_a_merge_that_is_linked_in_part(
    tmp_path: Path, links: Links, settings: dict[str, Any], slices: int
) -> None:
    kept = tmp_path / "bucket"
    bucket = kept.as_uri()

    async def main() -> None:
        async with open_tiny(tmp_path / "s", tier2=bucket, **settings) as store:
            await filled(store)
            await store.flush()
            links.allowed = slices
            await store.merge("target", "source")
            await until(lambda: links.at_rest)
            await store.checkpoint()
            await until(lambda: any(map(kept.glob, ("checkpoints/*/*", "metadata/*/*"))))
        links.allowed = None
        await restore_store(bucket, str(tmp_path / "new"), Runtime())
        async with open_tiny(tmp_path / "new", **settings) as store:
            assert [each.name async for each in store.list_segments()] == ["target"]
            assert await read_all(store, "target") == CONTENT[: -len(TAIL)]
            await store.flush()
            assert source_of(store) is None

    run(main())


@pytest.mark.parametrize("behind", [0, 3])
def test_a_truncation_behind_the_source_while_a_slice_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """The slice comes behind it in the log, and has no effect there, live and in replay."""
    start = len(CONTENT) - len(TAIL) + behind

    async def main() -> None:
        async def truncated(*arguments: Any) -> tuple[int, int]:
            found = await reach_of(*arguments)
            await store.truncate("target", start)
            return found

        monkeypatch.setattr(chunk_linker, "reach_of", truncated)
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await merged(store)
            await store.flush("target")
            assert source_of(store) is None
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            assert await read_all(store, "target", start) == CONTENT[start:]

    run(main())


def test_an_export_between_two_slices_has_each_chunk_once(tmp_path: Path, links: Links) -> None:
    async def main() -> None:
        links.allowed = 2
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await merged(store)
            await until(lambda: links.at_rest)
            await store.export_catalog()
            await store.checkpoint()
        links.allowed = 2
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await store.export_catalog()
            source = source_of(store)
            assert source is not None
            assert source.start_offset == 2 * Slices.linked_max * len(part(0))

    run(main())


def test_much_that_changed_is_written_without_waiting_for_a_checkpoint_by_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**KEEP, "checkpoint_operations": 100_000, "checkpoint_bytes": 1 << 30}
    monkeypatch.setattr(metadata_changes, "PLACES_MAX", 2 * Slices.linked_max)

    async def main() -> None:
        async with open_tiny(tmp_path / "s", **settings) as store:
            await filled(store)
            await store.checkpoint()
        async with open_tiny(tmp_path / "s", **settings) as store:
            container = store._containers[0]
            begun = container._checkpoints.snapshots
            await store.merge("target", "source")
            await store.flush("target")
            await until(lambda: container._checkpoints.snapshots > begun + 1)
            await until(lambda: "target" in metadata_of(store).names and not target_of(store).whole)
            assert await read_all(store, "target") == CONTENT[: -len(TAIL)]

    run(main())
