"""Links of long sources in slices: bounded, in order, resumed by the next owner."""

from __future__ import annotations

import asyncio

import pytest

from durablelog.chunk_slices import Slices
from durablelog.operations import LinkChunksOperation, OwnersOperation, StorageUpdateOperation
from segmentstore.contracts.errors import TierUnavailableError
from tests.storagewriter.fake_container import FakeContainer, make_config, run

CHUNKS_MAX = 3
SOON_S = 1.0

pytestmark = pytest.mark.usefixtures("active_or_idle")


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slices, "linked_max", CHUNKS_MAX)


async def long_segment(c: FakeContainer, name: str, chunks: int) -> int:
    segment_id = c.create(name)
    for _ in range(chunks):
        c.append(segment_id, 10)
        await c.writer.flush(segment_id)
    return segment_id


def slices(c: FakeContainer) -> list[int]:
    return [each.end_offset for each in c.log if isinstance(each, LinkChunksOperation)]


def links(c: FakeContainer) -> list[list[tuple[int, int]]]:
    updates = [each for each in c.log if isinstance(each, StorageUpdateOperation)]
    return [list(each.links) for each in updates if each.links]


def starts(c: FakeContainer, segment_id: int) -> list[int]:
    return [chunk.start_offset for chunk in c.segment(segment_id).chunks]


@pytest.mark.parametrize(
    ("chunks", "expected"), [(3, []), (4, [30]), (6, [30]), (7, [30, 60]), (8, [30, 60])]
)
def test_a_long_source_is_linked_from_its_head_on(chunks: int, expected: list[int]) -> None:
    async def body(c: FakeContainer) -> None:
        target, source = await long_segment(c, "t", 1), await long_segment(c, "s", chunks)
        c.append(target, 5)
        c.merge(target, source)
        c.append(target, 7)
        await c.writer.flush(target)
        assert slices(c) == expected
        assert links(c) == [[(target, source)]]
        assert c.writer.statistics().links == 1
        linked = [15 + 10 * number for number in range(chunks)]
        assert starts(c, target) == [0, 10, *linked, 15 + 10 * chunks]
        assert source not in c.segments

    run(body)


def test_sources_share_an_operation_as_far_as_their_chunks_are_few() -> None:
    async def body(c: FakeContainer) -> None:
        target = c.create("t")
        counts = enumerate((1, 2, 1, 4, 3))
        ids = [await long_segment(c, f"s{number}", count) for number, count in counts]
        for source in ids:
            c.merge(target, source)
        await c.writer.flush(target)
        names = {each: number for number, each in enumerate(ids)}
        assert [[names[source] for _, source in some] for some in links(c)] == [
            [0, 1],
            [2],
            [3],
            [4],
        ]
        assert slices(c) == [30]
        assert starts(c, target) == list(range(0, 110, 10))

    run(body)


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_the_next_owner_goes_on_where_it_was(before: int) -> None:
    async def body(c: FakeContainer) -> None:
        target, source = await long_segment(c, "t", 1), await long_segment(c, "s", 10)
        so_many, commit = asyncio.Event(), c.commit

        async def commit_no_more(operation: OwnersOperation) -> None:
            if len(slices(c)) == before:
                so_many.set()
                await asyncio.Event().wait()
            await commit(operation)

        c.commit = commit_no_more  # type: ignore[method-assign]
        c.merge(target, source)
        await so_many.wait()
        await c.writer.stop()
        assert len(c.segment(source).chunks) == 10 - before * CHUNKS_MAX
        after = c.restart(make_config())
        after.writer.start()
        after.append(target, 5)
        await after.writer.flush()
        assert len(slices(after)) == 3
        assert starts(after, target) == list(range(0, 120, 10))
        after.check_stored()
        await after.writer.stop()

    run(body)


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("change", ["delete", "truncate", "truncate into it", "truncate past it"])
@pytest.mark.parametrize("in_slices", [False, True])
def test_the_target_changes_between_two_slices(before: int, change: str, in_slices: bool) -> None:
    async def body(c: FakeContainer) -> None:
        target, source = await long_segment(c, "t", 1), await long_segment(c, "s", 10)
        so_many, go_on, commit = asyncio.Event(), asyncio.Event(), c.commit

        async def commit_later(operation: OwnersOperation) -> None:
            if isinstance(operation, LinkChunksOperation) and len(slices(c)) == before:
                so_many.set()
                await go_on.wait()
            await commit(operation)

        c.commit = commit_later  # type: ignore[method-assign]
        c.merge(target, source)
        c.append(target, 5)
        await so_many.wait()
        if change == "delete":
            c.delete(target, in_slices=in_slices)
        else:
            offset = {"truncate": 25, "truncate into it": 95, "truncate past it": 112}[change]
            c.truncate(target, offset, in_slices=in_slices)
        go_on.set()
        if change == "delete":
            await asyncio.sleep(SOON_S)
            assert not c.segments
        else:
            await c.writer.flush()
            await asyncio.sleep(SOON_S)
            assert list(c.segments) == [target]
            assert not c.segment(target).merges
            assert c.segment(target).storage_length == 115
            c.check_stored()
        assert not c.metadata.releasing
        kept = {chunk.object_name for each in c.segments.values() for chunk in each.chunks}
        assert set(c.metadata.objects) == kept

    run(body)


def test_one_commit_moves_no_more_than_a_slice() -> None:
    moved: list[int] = []

    async def body(c: FakeContainer) -> None:
        target = c.create("t")
        sources = [await long_segment(c, f"s{number}", number) for number in range(1, 8)]
        commit = c.commit

        async def counted(operation: OwnersOperation) -> None:
            before = len(c.segment(target).chunks)
            await commit(operation)
            moved.append(len(c.segment(target).chunks) - before)

        c.commit = counted  # type: ignore[method-assign]
        for source in sources:
            c.merge(target, source)
        await c.writer.flush(target)

    run(body)
    assert sum(moved) == sum(range(1, 8))
    assert max(moved) == CHUNKS_MAX


def test_what_cannot_be_read_is_tried_again_and_shows_in_health() -> None:
    async def body(c: FakeContainer) -> None:
        target, source = await long_segment(c, "t", 1), await long_segment(c, "s", 10)
        c.merge(target, source)
        assert not c.metadata.segments[source].whole
        c.catalog.error = TierUnavailableError("tier1", "the catalog's disk fails")
        await asyncio.sleep(SOON_S)
        assert "links of merges failing" in str(c.writer.health())
        assert not slices(c)
        c.catalog.error = None
        await c.writer.flush(target)
        assert c.writer.health() is None
        assert slices(c) == [30, 60, 90]
        c.check_stored()

    run(body, evicting=True)
