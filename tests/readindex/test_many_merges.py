"""A target of many unlinked sources: what a merge, a read, a link and a truncation visit does not
grow with their number.
"""

from __future__ import annotations

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.metadata import MergeRecord, SegmentMetadata
from tests.readindex.world import World
from tests.support.counting import CountingDict, CountingList

SOURCES = 64
STEPS_MAX = 40
"""A bisection of 64 takes 7 steps; a read bisects a few times."""


async def merged_world(
    metadata_segments: CountingDict[int, SegmentMetadata],
) -> tuple[World, int, int]:
    world = await World().open()
    world.metadata.segments = metadata_segments
    target = world.create()
    merges = world.segment(target).merges = CountingList[MergeRecord]()
    most = 0
    for _ in range(SOURCES):
        source = world.create()
        world.append(source, b"0123456789")
        before = merges.touched + metadata_segments.touched
        world.merge(target, source)
        most = max(most, merges.touched + metadata_segments.touched - before)
    return world, target, most


def test_a_merge_and_a_read_check_few_sources() -> None:
    async def main() -> None:
        segments = CountingDict[int, SegmentMetadata]()
        world, target, most = await merged_world(segments)
        assert most <= STEPS_MAX
        merges = world.segment(target).merges
        assert isinstance(merges, CountingList)
        offset = 0
        while offset < world.segment(target).length:
            before = merges.touched
            data = await world.index.read(target, offset, 100)
            assert data == world.truth[target][offset : offset + len(data)]
            assert merges.touched - before <= STEPS_MAX
            offset += len(data)
        await world.index.close()

    run_virtual(main())


@pytest.mark.parametrize("kind", ["link", "truncate"])
def test_sources_leave_from_the_front_one_by_one(kind: str) -> None:
    async def main() -> None:
        segments = CountingDict[int, SegmentMetadata]()
        world, target, _ = await merged_world(segments)
        for number, merge in enumerate(list(world.segment(target).merges)):
            if kind == "link":
                world.flush(merge.source_id)
            before = segments.touched
            if kind == "link":
                world.link(target)
            else:
                world.truncate(target, 10 * number + 10)
            assert segments.touched - before <= STEPS_MAX
        assert list(segments) == [target]
        world.index.check()
        await world.index.close()

    run_virtual(main())


def test_what_is_held_of_sources_that_are_linked_at_once_moves_over() -> None:
    async def main() -> None:
        world = await World().open()
        target = world.create()
        for text in (b"first-source", b"second-source", b"third-source"):
            source = world.create()
            world.append(source, text)
            world.merge(target, source)
            world.flush(source)
        held = world.index.statistics().tail_bytes
        assert held == world.segment(target).length
        world.link(target)
        assert not world.segment(target).merges
        world.index.check()
        assert world.index.statistics().tail_bytes == held
        assert await world.index.read(target, 0, 100) == world.truth[target]
        assert not world.source.reads
        await world.index.close()

    run_virtual(main())


def test_bytes_lost_between_two_merges_are_asked_for_up_to_the_next_one() -> None:
    async def main() -> None:
        world, target, _ = await merged_world(CountingDict())
        world.append(target, b"own " * 40)
        source = world.create()
        world.append(source, b"behind")
        world.merge(target, source)
        own = 10 * SOURCES
        data = bytearray()
        while (
            len(data) < 166
        ):  # the tail holds 64 bytes and the cache 100: some of it has to come from the log
            data += await world.index.read(target, own + len(data), 1000)
        assert bytes(data) == b"own " * 40 + b"behind"
        await world.index.close()

    run_virtual(main())
