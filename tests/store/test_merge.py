"""Merging: readable at once, before Tier 2 has either; refused whole or done whole; across
restarts.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from segmentstore import (
    AttributeUpdate,
    BadAttributeUpdateError,
    InvalidArgumentError,
    Merged,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
    SegmentTruncatedError,
    UpdateType,
)
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import UNFLUSHED, WorldDisk, attribute, open_lazy, open_tiny, read_all, run

A = attribute(1)


async def fill(store: SegmentStore, **contents: bytes) -> None:
    for name, data in contents.items():
        await store.create_segment(name)
        await store.append(name, data)


@pytest.mark.parametrize("sealed_before", [False, True])
def test_readable_through_the_target_before_tier2_has_either(
    tmp_path: Path, sealed_before: bool
) -> None:
    async def main() -> None:
        disk = WorldDisk()
        disk.tier2_away()
        async with open_lazy(
            tmp_path / "s", runtime=Runtime(disk=disk), tail_bytes_max=100
        ) as store:
            await fill(store, t=b"target " * 20, s=b"source " * 30)
            if sealed_before:
                await store.seal("s")
            assert await store.merge("t", "s") == Merged(offset=140, length=350)
            expected = b"target " * 20 + b"source " * 30
            assert await read_all(store, "t") == expected
            assert await store.append("t", b"after") == 350
            assert await store.read("t", 139, 300) in {
                expected[139:end] + b"after"[: end - 350] for end in range(140, 356)
            } | {(expected + b"after")[139:end] for end in range(140, 356)}
            assert await read_all(store, "t") == expected + b"after"
            with pytest.raises(SegmentNotFoundError):
                await store.get_info("s")
            assert (await store.get_info("t")).storage_length == 0
        async with open_lazy(tmp_path / "s", runtime=Runtime(disk=disk)) as store:
            assert await read_all(store, "t") == expected + b"after"
            disk.heal()
            await store.flush()
            await store.checkpoint()
            info = await store.get_info("t")
            assert info.storage_length == info.length == 355
            assert await read_all(store, "t") == expected + b"after"
        async with open_lazy(tmp_path / "s") as store:
            assert await read_all(store, "t") == expected + b"after"

    run(main())


@pytest.mark.parametrize("flush_target", [False, True])
@pytest.mark.parametrize("flush_source", [False, True])
@pytest.mark.parametrize("source", [b"", b"s", b"source" * 60])
@pytest.mark.parametrize("target", [b"", b"target" * 20])
def test_every_mixture_of_flushed_and_not(
    tmp_path: Path, target: bytes, source: bytes, flush_source: bool, flush_target: bool
) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s") as store:
            await fill(store, t=target, s=source)
            if flush_target:
                await store.flush("t")
            if flush_source:
                await store.flush("s")
            assert await store.merge("t", "s") == (len(target), len(target + source))
            assert await read_all(store, "t") == target + source
            await store.append("t", b"!")
            await store.flush()
            assert await read_all(store, "t") == target + source + b"!"
        async with open_lazy(tmp_path / "s") as store:
            assert await read_all(store, "t") == target + source + b"!"
            assert_metadata_valid(store._containers[0].metadata)

    run(main())


def test_a_refused_merge_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, t=b"target", s=b"source", cut=b"truncated", sealed=b"sealed")
            await store.truncate("cut", 1)
            await store.seal("sealed")
            bad = [
                AttributeUpdate(A, UpdateType.REPLACE, 1),
                AttributeUpdate(A, UpdateType.NONE, 2),
            ]
            before = [info async for info in store.list_segments()]
            with pytest.raises(BadAttributeUpdateError):
                await store.merge("t", "s", bad)
            with pytest.raises(SegmentTruncatedError) as cut:
                await store.merge("t", "cut")
            assert (cut.value.name, cut.value.start_offset) == ("cut", 1)
            with pytest.raises(SegmentSealedError) as sealed:
                await store.merge("sealed", "s")
            assert sealed.value.name == "sealed"
            with pytest.raises(InvalidArgumentError):
                await store.merge("t", "t")
            for target, source in (("t", "no"), ("no", "s")):
                with pytest.raises(SegmentNotFoundError):
                    await store.merge(target, source)
            after = [info async for info in store.list_segments()]
            for old, new in zip(before, after, strict=True):
                # Only the background may have moved on.
                assert (old.name, old.length, old.start_offset, old.sealed) == (
                    new.name,
                    new.length,
                    new.start_offset,
                    new.sealed,
                )
            assert await store.get_attributes("t") == {}
            assert await store.append("s", b"!") == 6
            assert await store.merge("t", "s", bad[:1]) == (6, 13)
            assert await store.get_attributes("t") == {A: 1}
            assert await read_all(store, "t") == b"targetsource!"

    run(main())


def test_merges_into_merges(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s") as store:
            await fill(store, a=b"a" * 90, b=b"b" * 90, c=b"c" * 90, d=b"d" * 90)
            await store.merge("c", "d")
            await store.append("c", b"C")
            await store.merge("b", "c")
            assert await store.merge("a", "b") == (90, 361)
            expected = b"a" * 90 + b"b" * 90 + b"c" * 90 + b"d" * 90 + b"C"
            assert await read_all(store, "a") == expected
        async with open_lazy(tmp_path / "s") as store:
            assert await read_all(store, "a") == expected
            await store.flush("a")
            assert (await store.get_info("a")).storage_length == len(expected)
            await store.checkpoint()
            await store.truncate("a", 200)
            assert await read_all(store, "a", 200) == expected[200:]
        async with open_lazy(tmp_path / "s") as store:
            assert await read_all(store, "a", 200) == expected[200:]
            assert [info.name async for info in store.list_segments()] == ["a"]

    run(main())


def test_the_sources_name_is_free_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await store.create_segment("t")
            for number in range(20):
                await fill(store, s=b"<%d>" % number)
                await store.merge("t", "s")
            assert await read_all(store, "t") == b"".join(b"<%d>" % number for number in range(20))

    run(main())


def test_appends_of_others_go_before_or_after_never_between(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s") as store:
            await fill(store, t=b"", s=b"(" + b"." * 500 + b")")
            futures: list[asyncio.Future[int]] = [store.append("t", b"x") for _ in range(50)]
            merge = asyncio.ensure_future(store.merge("t", "s"))
            await asyncio.sleep(0)
            futures += [store.append("t", b"y") for _ in range(50)]
            offset, length = await merge
            assert length == offset + 502
            await asyncio.gather(*futures)
            data = await read_all(store, "t")
            assert data[offset : offset + 502] == b"(" + b"." * 500 + b")"
            assert data.count(b"x") == data.count(b"y") == 50
            assert len(data) == 602

    run(main())


def test_deleting_or_truncating_the_target_frees_what_was_merged(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_lazy(tmp_path / "s") as store:
            await fill(store, t=b"t" * 100, s=b"s" * 100)
            await store.merge("t", "s")
            await store.truncate("t", 150)
            assert await read_all(store, "t", 150) == b"s" * 50
            await store.flush()
            assert await read_all(store, "t", 150) == b"s" * 50
            await store.delete("t")
            await fill(store, t=b"t", s=b"s" * 100)
            await store.merge("t", "s")
            await store.delete("t")
            await store.flush()
            metadata = store._containers[0].metadata
            assert not metadata.segments
            assert not metadata.objects

    run(main())


def test_merges_of_merges_go_however_deep_they_are(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(1100)]

    async def main() -> None:
        disk = WorldDisk()
        options = {
            **UNFLUSHED,
            "frame_bytes_max": 4000,
            "log_file_bytes": 100_000,
            "tail_bytes_max": 1 << 20,
        }
        async with open_tiny(tmp_path / "s", runtime=Runtime(disk=disk), **options) as store:
            disk.tier2_away()
            await asyncio.gather(*(store.create_segment(name) for name in names))
            await asyncio.gather(*(store.append(name, b"x") for name in names))
            await asyncio.gather(
                *(store.merge(target, source) for source, target in pairwise(names))
            )
            assert await store.read(names[-1], 0, 1) == b"x"
            await store.delete(names[-1])
            assert not store._containers[0].metadata.segments
            assert not store._containers[0]._writer.unflushed_bytes
            disk.heal()
        async with open_tiny(tmp_path / "s", **options) as store:
            assert not store._containers[0].metadata.segments

    run(main())
