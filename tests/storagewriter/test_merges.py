"""Merges: both sides flushed, then linked through the log.

Checklist of the reference, section 3.6: 95, 97, 98, 105.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from itertools import pairwise

import pytest

from durablelog.operations import StorageUpdateOperation
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.metadata import SegmentMetadata
from storagewriter import link_plan
from storagewriter.link_plan import LinkPlan, plan_links
from storagewriter.pending_segments import PendingSegments
from tests.storagewriter.fake_container import FakeContainer, make_config, run
from tests.support.counting import CountingDict

pytestmark = pytest.mark.usefixtures("active_or_idle")

EPSILON_S = 0.1


def test_both_sides_go_at_once_and_are_linked() -> None:
    """95."""

    async def body(c: FakeContainer) -> None:
        target, source = c.create("target"), c.create("source")
        c.append(target, 20)
        c.append(source, 30)
        c.merge(target, source)
        await asyncio.sleep(EPSILON_S)
        assert source not in c.segments
        assert c.segment(target).storage_length == 50
        assert c.object_count == 1
        assert c.writer.statistics().links == 1

    run(body)


def test_bytes_behind_a_merge_follow_it_in_their_own_block() -> None:
    """95: never across the border."""

    async def body(c: FakeContainer) -> None:
        target, source = c.create("target"), c.create("source")
        c.append(target, 20)
        c.append(source, 30)
        c.merge(target, source)
        c.append(target, 40)
        await c.writer.flush(target)
        assert [chunk.length for chunk in c.segment(target).chunks] == [20, 30, 40]

    run(body)


def test_bytes_behind_a_merge_still_obey_age() -> None:
    """They were due while the merge blocked them; the link sets them free."""

    async def body(c: FakeContainer) -> None:
        target, source = c.create("target"), c.create("source")
        c.append(source, 30)
        c.storage.fail("put", 8)
        c.merge(target, source)
        c.append(target, 40)
        await asyncio.sleep(10 + EPSILON_S)
        assert c.segment(target).storage_length == 0
        await asyncio.sleep(40)
        assert c.segment(target).storage_length == 70

    run(body)


def test_many_sources() -> None:
    """95."""

    async def body(c: FakeContainer) -> None:
        target = c.create("target")
        for number in range(30):
            source = c.create(f"source{number}")
            c.append(source, 1 + number * 5)
            c.merge(target, source)
            if number % 3 == 0:
                c.append(target, 7)
            if number % 5 == 0:
                await asyncio.sleep(0.01)
        await c.writer.flush()
        assert list(c.segments) == [target]
        assert not c.segment(target).merges

    run(body)


def test_the_books_on_many_sources_cost_what_changes() -> None:
    """Four times the sources cost about four times the checks, from merge to link; not sixteen
    times.
    """

    def looks(sources: int) -> int:
        counted = CountingDict[int, SegmentMetadata]()

        async def body(c: FakeContainer) -> None:
            c.metadata.segments = counted
            c.check_each = False
            c.storage.fail("put", 8)
            target = c.create("target")
            c.append(target, 7)
            for number in range(sources):
                source = c.create(f"source{number}")
                c.append(source, 5)
                c.merge(target, source)
            await c.writer.flush()
            assert list(counted) == [target]

        run(body, evicting=False)
        return counted.touched

    assert looks(160) < 6 * looks(40)


def test_links_of_one_target_go_by_the_bound_of_an_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_plan, "LINKS_MAX", 4)

    async def body(c: FakeContainer) -> None:
        target = c.create("target")
        for number in range(10):
            source = c.create(f"source{number}")
            c.append(source, 5)
            c.merge(target, source)
        await c.writer.flush()
        await asyncio.sleep(EPSILON_S)
        assert list(c.segments) == [target]
        links = [len(each.links) for each in c.log if isinstance(each, StorageUpdateOperation)]
        assert sum(links) == 10
        assert max(links) <= 4

    run(body)


def test_nested() -> None:
    """95: a source with sources of its own."""

    async def body(c: FakeContainer) -> None:
        a, b, d, e = (c.create(name) for name in "abde")
        for segment_id, length in ((a, 5), (b, 6), (d, 7), (e, 8)):
            c.append(segment_id, length)
        c.merge(d, e)
        c.append(d, 3)
        c.merge(b, d)
        c.append(b, 4)
        c.merge(a, b)
        flush = asyncio.ensure_future(c.writer.flush(a))
        await flush
        assert list(c.segments) == [a]
        assert c.segment(a).storage_length == 33

    run(body)


def test_an_empty_source_is_missing_at_once() -> None:
    """98."""

    async def body(c: FakeContainer) -> None:
        target, source = c.create("target"), c.create("source")
        c.append(target, 5)
        c.merge(target, source)
        assert c.writer.unflushed_bytes == 5
        await c.writer.flush()
        assert c.writer.statistics().links == 0

    run(body)


def test_an_empty_target() -> None:
    """98."""

    async def body(c: FakeContainer) -> None:
        target, source = c.create("target"), c.create("source")
        c.append(source, 5)
        c.merge(target, source)
        await c.writer.flush(target)
        assert c.segment(target).storage_length == 5

    run(body)


@pytest.mark.parametrize("offset", [10, 20, 35, 50, 55, 60])
@pytest.mark.parametrize("when", ["before", "during"])
def test_target_truncated(offset: int, when: str) -> None:
    """95, 96: below, at, inside, at the end of and behind the merged bytes, which lie at [20,
    50).
    """

    async def body(c: FakeContainer) -> None:
        target, source = c.create("target"), c.create("source")
        c.append(target, 20)
        c.append(source, 30)
        c.merge(target, source)
        c.append(target, 10)
        if when == "during":
            c.storage.fail("put", 3)
            await asyncio.sleep(EPSILON_S)
        c.truncate(target, offset)
        c.check_covered()
        await c.writer.flush()
        assert c.segment(target).storage_length == 60
        assert source not in c.segments
        assert c.stored(target) == bytes(c.bytes[target][offset:])

    run(body)


@pytest.mark.parametrize("when", ["before", "during"])
def test_target_deleted_with_what_was_merged_into_it(when: str) -> None:
    """97."""

    async def body(c: FakeContainer) -> None:
        a, b, d = (c.create(name) for name in "abd")
        for segment_id in (a, b, d):
            c.append(segment_id, 10)
        c.merge(b, d)
        c.merge(a, b)
        if when == "during":
            c.storage.fail("put", 3)
            await asyncio.sleep(EPSILON_S)
        c.delete(a)
        assert c.writer.unflushed_bytes == 0
        assert c.writer.first_unflushed_sequence() is None
        await c.writer.flush()
        await asyncio.sleep(5)
        assert not c.segments
        assert not c.metadata.objects

    run(body)


def test_a_merge_from_before_the_log_begins_is_still_linked() -> None:
    """105: flushed whole, not yet linked, the log cut behind it; only the metadata know of the
    merge.
    """

    async def main() -> None:
        c = FakeContainer(make_config())
        target, source = c.create("target"), c.create("source")
        c.append(source, 30)
        c.writer.start()
        await c.writer.flush()
        await c.writer.stop()
        c.merge(target, source)
        after = FakeContainer(make_config(), c)
        after.metadata = c.metadata
        after.bytes = c.bytes
        after._updater = c._updater
        after.writer.start()
        await after.writer.flush(target)
        assert after.segment(target).storage_length == 30
        assert source not in after.segments
        await after.writer.stop()

    run_virtual(main())


def test_nothing_is_linked_while_an_upload_has_either_side() -> None:
    async def main() -> None:
        c = FakeContainer(make_config())
        target, source = c.create("target"), c.create("source")
        c.append(source, 30)
        c.writer.start()
        await c.writer.flush()
        c.merge(target, source)
        for busy in ([target], [source], []):
            pending = PendingSegments(c, make_config())
            pending.start()
            pending.take(busy)
            expected = None if busy else LinkPlan([(target, source)])
            assert plan_links(pending, c.metadata) == expected
        await c.writer.stop()

    run_virtual(main())


def test_merges_of_merges_are_settled_however_deep_they_are() -> None:
    deep = 400
    before = sys.getrecursionlimit()

    async def body(c: FakeContainer) -> None:
        c.read_gate = asyncio.Event()
        ids = [c.create(f"s{number}") for number in range(deep)]
        for each in ids:
            c.append(each, 1)
        for source, target in pairwise(ids):
            c.merge(target, source)
        flush = asyncio.create_task(c.writer.flush(ids[-1]))
        await asyncio.sleep(0.1)
        c.delete(ids[-1])
        await flush
        assert not c.segments
        assert not c.writer.unflushed_bytes
        c.read_gate.set()
        await asyncio.sleep(1)

    # So that what calls itself for each merge is found with fewer of them.
    sys.setrecursionlimit(len(inspect.stack(0)) + deep)
    try:
        run(body)
    finally:
        sys.setrecursionlimit(before)
