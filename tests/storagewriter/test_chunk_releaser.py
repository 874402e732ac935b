"""The release of chunks in slices: bounded, in order, resumed by the next owner."""

from __future__ import annotations

import asyncio

import pytest

from durablelog.chunk_slices import Slices
from durablelog.operations import ReleaseChunksOperation
from segmentstore.contracts.errors import TierUnavailableError
from tests.storagewriter.fake_container import FakeContainer, make_config, run

CHUNKS_MAX = 3
SOON_S = 1.0


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slices, "chunks_max", CHUNKS_MAX)


async def long_segment(c: FakeContainer, name: str, chunks: int) -> int:
    segment_id = c.create(name)
    for _ in range(chunks):
        c.append(segment_id, 10)
        await c.writer.flush(segment_id)
    return segment_id


def slices(c: FakeContainer) -> list[list[tuple[int, int]]]:
    return [list(each.releases) for each in c.log if isinstance(each, ReleaseChunksOperation)]


@pytest.mark.usefixtures("active_or_idle")
def test_a_deletion_is_released_from_the_head_on_some_chunks_at_a_time() -> None:
    async def body(c: FakeContainer) -> None:
        segment_id = await long_segment(c, "s", 8)
        c.delete(segment_id, in_slices=True)
        assert len(c.metadata.objects) == 8
        assert segment_id not in c.segments
        await asyncio.sleep(SOON_S)
        assert slices(c) == [[(segment_id, 30)], [(segment_id, 60)], [(segment_id, 80)]]
        assert not c.metadata.releasing
        assert not c.metadata.objects
        assert len(c.metadata.garbage) == 8

    run(body, deletion_lag_s=1000.0)


@pytest.mark.usefixtures("active_or_idle")
@pytest.mark.parametrize(
    ("offset", "expected"), [(69, [30, 60, 69]), (70, [30, 60, 70]), (60, [30, 60]), (5, [5])]
)
def test_a_truncation_is_released_up_to_the_start(offset: int, expected: list[int]) -> None:
    async def body(c: FakeContainer) -> None:
        segment_id = await long_segment(c, "s", 8)
        c.truncate(segment_id, offset, in_slices=True)
        await asyncio.sleep(SOON_S)
        assert slices(c) == [[(segment_id, end)] for end in expected]
        assert not c.metadata.releasing
        assert c.segment(segment_id).chunks.start_offset == offset // 10 * 10
        assert len(c.metadata.garbage) == offset // 10

    run(body)


def test_small_ones_share_an_operation() -> None:
    async def body(c: FakeContainer) -> None:
        target = await long_segment(c, "target", 2)
        counts = {"one": 1, "two": 2, "three": 1}
        sources = [await long_segment(c, name, count) for name, count in counts.items()]
        ids = [target, *sources]
        for segment_id in ids:
            c.delete(segment_id, in_slices=True)
        await asyncio.sleep(SOON_S)
        ends = {segment_id: 10 * count for segment_id, count in zip(ids, (2, 1, 2, 1), strict=True)}
        assert [dict(each) for each in slices(c)] == [
            {segment_id: ends[segment_id] for segment_id in some} for some in (ids[:2], ids[2:])
        ]

    run(body)


@pytest.mark.usefixtures("active_or_idle")
@pytest.mark.parametrize("before", [0, 1, 2])
def test_the_next_owner_goes_on_where_it_was(before: int) -> None:
    async def body(c: FakeContainer) -> None:
        deleted = await long_segment(c, "deleted", 7)
        truncated = await long_segment(c, "truncated", 7)
        so_many, release_some = asyncio.Event(), c.writer.chunk_releaser.release_some

        async def release_no_more() -> None:
            if len(slices(c)) == before:
                so_many.set()
                await asyncio.Event().wait()
            await release_some()

        c.writer.chunk_releaser.release_some = release_no_more  # type: ignore[method-assign]
        c.truncate(truncated, 65, in_slices=True)
        c.delete(deleted, in_slices=True)
        await so_many.wait()
        await c.writer.stop()
        assert len(slices(c)) == before
        after = c.restart(make_config())
        after.writer.start()
        await asyncio.sleep(SOON_S)
        assert len(slices(after)) == 5
        assert not after.metadata.releasing
        assert len(after.metadata.objects) == 1
        after.check_stored()
        await after.writer.stop()

    run(body)


@pytest.mark.usefixtures("active_or_idle")
def test_a_flush_behind_a_truncation_waits_for_the_release_and_then_goes() -> None:
    async def body(c: FakeContainer) -> None:
        segment_id = await long_segment(c, "s", 8)
        source = await long_segment(c, "source", 2)
        c.append(segment_id, 50)
        c.merge(segment_id, source)
        c.append(segment_id, 7)
        c.truncate(segment_id, 100, in_slices=True)
        assert c.segment(segment_id).detached
        await c.writer.flush(segment_id)
        assert not c.metadata.releasing
        segment = c.segment(segment_id)
        assert (segment.storage_length, segment.length) == (157, 157)
        assert not segment.merges

    run(body)


def test_old_bytes_behind_a_truncation_go_though_they_were_passed_over() -> None:
    """What is due by its age is put aside while chunks are released, and is due again then."""

    async def body(c: FakeContainer) -> None:
        segment_id = await long_segment(c, "s", 8)
        c.append(segment_id, 50)
        await asyncio.sleep(9.9)
        release = c.writer.chunk_releaser.release_some

        async def late() -> None:
            await asyncio.sleep(SOON_S)
            await release()

        c.writer.chunk_releaser.release_some = late  # type: ignore[method-assign]
        c.truncate(segment_id, 100, in_slices=True)
        await asyncio.sleep(2 * SOON_S)
        assert c.segment(segment_id).storage_length == 100
        await asyncio.sleep(2 * SOON_S)
        assert c.segment(segment_id).storage_length == 130

    run(body)


def test_what_cannot_be_read_is_tried_again_and_shows_in_health() -> None:
    async def body(c: FakeContainer) -> None:
        segment_id = await long_segment(c, "s", 8)
        c.delete(segment_id, in_slices=True)
        assert not c.metadata.releasing[segment_id].whole
        c.catalog.error = TierUnavailableError("tier1", "the catalog's disk fails")
        await asyncio.sleep(SOON_S)
        assert "release of chunks failing" in str(c.writer.health())
        assert not slices(c)
        c.catalog.error = None
        await asyncio.sleep(60.0)
        assert c.writer.health() is None
        assert not c.metadata.releasing

    run(body, evicting=True)


def test_a_segment_that_is_truncated_again_or_deleted_meanwhile_is_released_all_the_same() -> None:
    async def body(c: FakeContainer) -> None:
        again, deleted = [await long_segment(c, name, 9) for name in ("again", "deleted")]
        c.truncate(again, 45, in_slices=True)
        c.truncate(deleted, 85, in_slices=True)
        await asyncio.sleep(0)
        c.truncate(again, 75, in_slices=True)
        c.delete(deleted)
        await asyncio.sleep(SOON_S)
        assert not c.metadata.releasing
        assert [chunk.start_offset for chunk in c.segment(again).chunks] == [70, 80]
        assert len(c.metadata.objects) == 2

    run(body)
