"""A store whose long segments are deleted and truncated in slices: what callers see at once, and
what happens to the chunks afterwards, over restarts too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durablelog.chunk_slices import Slices
from recovery.harness.simulation.tiny_pages import pages_of
from recovery.restore import restore_store
from segmentstore import SegmentNotFoundError, SegmentStore, SegmentTruncatedError
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from storagewriter.chunk_releaser import ChunkReleaser
from tests.store.harness import open_tiny, read_all, run, until
from tests.store.long_segments import NAME, SMALL

CHUNKS = 30
KEEP: dict[str, Any] = {**SMALL, "deletion_lag_s": 1000.0}


@pytest.fixture(autouse=True)
def _tiny_pages() -> Iterator[None]:
    with pages_of(SMALL):
        yield


@pytest.fixture
def nothing_is_released(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    async def waits(_: ChunkReleaser) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ChunkReleaser, "run", waits)
    return monkeypatch


def part(number: int) -> bytes:
    return b"%05d." % number * 20


CONTENT = b"".join(map(part, range(CHUNKS)))


def metadata_of(store: SegmentStore) -> ContainerMetadata:
    return store._containers[0].metadata


async def filled(store: SegmentStore, name: str = NAME) -> None:
    await store.create_segment(name)
    for number in range(CHUNKS):
        await store.append(name, part(number))
        await store.flush(name)


async def released(store: SegmentStore) -> None:
    await until(lambda: not metadata_of(store).releasing)


async def names(store: SegmentStore) -> list[str]:
    return [each.name async for each in store.list_segments()]


@pytest.mark.usefixtures("nothing_is_released")
def test_a_deleted_segment_is_none_for_callers_though_its_chunks_are_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await filled(store)
            await store.create_segment("other")
        for _ in range(2):
            async with open_tiny(tmp_path / "s", **KEEP) as store:
                if NAME in await names(store):
                    await store.delete(NAME)
                    (left,) = metadata_of(store).releasing.values()
                    assert not left.whole, "nothing of it was read"
                assert await names(store) == ["other"]
                for call in (
                    store.get_info(NAME),
                    store.read(NAME, 0, 10),
                    store.append(NAME, b"x"),
                    store.truncate(NAME, 5),
                    store.delete(NAME),
                ):
                    with pytest.raises(SegmentNotFoundError):
                        await call
                assert len(metadata_of(store).objects) == CHUNKS
                assert not metadata_of(store).garbage
                await store.checkpoint()
                await store.append("other", b".")
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await store.create_segment(NAME)
            await store.append(NAME, b"new")
            await store.flush()
            await store.checkpoint()
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            assert await read_all(store, NAME) == b"new"
            assert len(metadata_of(store).releasing) == 1

    run(main())


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_all_chunks_are_released_whoever_goes_on(
    tmp_path: Path, restarts: int, nothing_is_released: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            for name in ("deleted", "truncated"):
                await filled(store, name)
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await store.delete("deleted")
            await store.truncate("truncated", len(CONTENT) - 150)
            assert len(metadata_of(store).releasing) == 2
            await store.checkpoint()
        for _ in range(restarts):
            async with open_tiny(tmp_path / "s", **KEEP) as store:
                for _ in range(2):
                    await store._containers[0]._writer.chunk_releaser.release_some()
                assert metadata_of(store).releasing
                await store.checkpoint()
        nothing_is_released.undo()
        with pages_of(SMALL):
            async with open_tiny(tmp_path / "s", **KEEP) as store:
                await released(store)
                assert await read_all(store, "truncated", len(CONTENT) - 150) == CONTENT[-150:]
                with pytest.raises(SegmentTruncatedError):
                    await store.read("truncated", 0, 5)
                assert len(metadata_of(store).objects) <= 3
                await store.append("truncated", b"more")
                await store.flush()
            async with open_tiny(tmp_path / "s", **SMALL) as store:
                await until(lambda: not metadata_of(store).garbage)
                assert await read_all(store, "truncated", len(CONTENT)) == b"more"

    run(main())


def test_slices_are_small_and_a_checkpoint_fits_between_any_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    release_some = ChunkReleaser.release_some

    async def counted(releaser: ChunkReleaser) -> None:
        before = chunks_left()
        await release_some(releaser)
        sizes.append(before - chunks_left())
        await opened[0].checkpoint()

    def chunks_left() -> int:
        return sum(len(each.chunks) for each in metadata_of(opened[0]).all_records())

    monkeypatch.setattr(ChunkReleaser, "release_some", counted)
    opened: list[SegmentStore] = []

    async def main() -> None:
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            opened[:] = [store]
            await filled(store)
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            opened[:] = [store]
            await store.delete(NAME)
            await released(store)
            await store.checkpoint()
            assert sum(sizes) == CHUNKS
            assert max(sizes) <= Slices.chunks_max

    run(main())


@pytest.mark.usefixtures("nothing_is_released")
def test_an_export_has_nothing_of_what_is_to_be_released(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            await filled(store)
            await filled(store, "truncated")
            await store.delete(NAME)
            await store.truncate("truncated", len(CONTENT) - 150)
            await store.export_catalog()
            await store.checkpoint()
        async with open_tiny(tmp_path / "s", **KEEP) as store:
            assert not metadata_of(store).whole
            await store.export_catalog()

    run(main())


@pytest.mark.usefixtures("nothing_is_released")
@pytest.mark.parametrize("settings", [KEEP, {**KEEP, "inline_checkpoint_bytes_max": 1 << 20}])
def test_a_restore_brings_no_deleted_segment_back(tmp_path: Path, settings: dict[str, Any]) -> None:
    kept = tmp_path / "bucket"
    bucket = kept.as_uri()

    async def main() -> None:
        async with open_tiny(tmp_path / "s", tier2=bucket, **settings) as store:
            await filled(store)
            await filled(store, "truncated")
            await store.delete(NAME)
            await store.truncate("truncated", len(CONTENT) - 150)
            await store.checkpoint()
            await until(lambda: any(map(kept.glob, ("checkpoints/*/*", "metadata/*/*"))))
        await restore_store(bucket, str(tmp_path / "new"), Runtime())
        async with open_tiny(tmp_path / "new", **settings) as store:
            assert await names(store) == ["truncated"]
            assert await read_all(store, "truncated", len(CONTENT) - 150) == CONTENT[-150:]

    run(main())
