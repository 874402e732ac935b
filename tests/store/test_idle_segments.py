"""Stores with more segments than may be in memory: idle ones are in the catalog alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import segmentstore.blocking
from segmentstore import (
    AppendOutcomeUnknownError,
    AttributeUpdate,
    BadOffsetError,
    ContainerStoppedError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStore,
    TooManyActiveSegmentsError,
    UpdateType,
    WriterNotOpenError,
)
from segmentstore.container import eviction
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import TINY, UNFLUSHED, WorldDisk, open_lazy, open_tiny, run, until

FEW: dict[str, Any] = {"active_segments_max": 8, "containers": 1}
WRITER, OTHER = UUID(int=7), UUID(int=8)
NAMES = [f"s{number:03}" for number in range(40)]


def active(store: SegmentStore) -> set[str]:
    return {name for container in store._containers for name in container.segment_ids}


async def content(store: SegmentStore, name: str) -> bytes:
    return b"".join([piece async for piece in store.reader(name)])


async def make_idle(store: SegmentStore, *names: str) -> None:
    """Use others until these have left memory."""
    others = [info.name async for info in store.list_segments() if info.name not in names]
    for _ in range(100):
        for name in others:
            await store.get_info(name)
        await store.flush()
        await store.checkpoint()
        if not active(store).intersection(names):
            return
    pytest.fail(f"{names} stay in memory")


async def made(store: SegmentStore, names: list[str] = NAMES) -> None:
    for name in names:
        await store.create_segment(name)


def test_names_of_idle_segments_are_known_and_they_stay_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            ids = {(await store.get_info(name)).segment_id: name for name in NAMES}
            await make_idle(store, "s000", "s001", "s002")
            (container,) = store._containers
            deleted = (await store.get_info("s001")).segment_id
            await store.delete("s001")
            there = active(store)
            del ids[deleted]
            assert await container._active.names_of([*ids, deleted, 1 << 40]) == ids
            assert active(store) == there

    run(main())


def test_many_segments_are_created_written_and_read_with_few_in_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            assert len(active(store)) <= 8
            await asyncio.gather(*(store.append(name, name.encode()) for name in NAMES))
            for name in NAMES:
                assert await store.read(name, 0, 100) == name.encode()
            assert len(active(store)) <= 8
            stats = store.stats()["containers"][0]
            assert stats["segments"] == len(NAMES)
            assert stats["active_segments"]["count"] <= 8
            assert stats["active_segments"]["evictions"] > len(NAMES)
        async with open_tiny(tmp_path / "s", **FEW) as store:
            for name in NAMES:
                assert (await store.get_info(name)).length == 4
                assert await store.append(name, b"more") == 4
            for name in NAMES:
                assert await content(store, name) == name.encode() + b"more"
            # The replay may have left all of them in memory.
            await until(lambda: len(active(store)) <= 8)

    run(main())


def test_a_store_returns_to_the_bound_that_a_replay_exceeds(tmp_path: Path) -> None:
    """Without a call that needs room."""
    disk = WorldDisk()

    async def main() -> None:
        few: dict[str, Any] = {**UNFLUSHED, **FEW, "checkpoint_operations": 1000}
        runtime = Runtime(disk=disk)
        async with segmentstore.open(
            str(tmp_path / "s"), runtime=runtime, **{**few, "active_segments_max": 100}
        ) as store:
            await made(store)
            await asyncio.gather(*(store.append(name, name.encode()) for name in NAMES))
            died = disk.crash_copy(tmp_path / "s", tmp_path / "died")
        async with segmentstore.open(died, **few) as store:
            assert len(active(store)) > 8
            await until(lambda: len(active(store)) <= 8)
            assert store.stats()["containers"][0]["active_segments"]["evictions"] > 0
            for name in NAMES:
                assert await content(store, name) == name.encode()

    run(main())


def test_appends_to_an_idle_segment_keep_their_order_with_those_behind_them(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            for _ in range(5):
                await make_idle(store, "s000")
                start = (await store.get_info("s001")).length
                begin = len(await content(store, "s000"))
                await make_idle(store, "s000")
                futures = []
                for number in range(50):
                    futures.append(store.append("s000", b"%03d." % number))
                    futures.append(store.append("s001", b"%03d." % number))
                    if number % 7 == 3:
                        await asyncio.sleep(0.0005)
                await asyncio.gather(*futures)
                written = b"".join(b"%03d." % number for number in range(50))
                assert (await content(store, "s000"))[begin:] == written
                assert (await content(store, "s001"))[start:] == written

    run(main())


def test_an_append_queued_before_its_segment_left_memory_goes_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", inline_checkpoint_bytes_max=0, **FEW) as store:
            await made(store, NAMES[:5])
            await store.append("s000", b"0")
            await store.flush()
            await store.checkpoint()
            container = store._containers[0]
            segment = container.segments[container.segment_ids["s000"]]
            ahead = store.append("s001", b"on its way to the log")
            first = store.append("s000", b"first.")
            # Nothing of it is pending yet: so it may leave.
            container._updater.evict(segment)
            second = store.append("s000", b"second.")
            event = store.append("s000", b"third.", 14)
            assert (await ahead, await first, await second, await event) == (0, 1, 7, 14)
            assert await content(store, "s000") == b"0first.second.third."

    run(main())


def test_every_call_brings_an_idle_segment_back_as_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            update = AttributeUpdate(OTHER, UpdateType.REPLACE, 5)
            await store.append("s001", b"abcdef", attributes=[update])
            segment_id = (await store.get_info("s001")).segment_id
            await make_idle(store, "s001")
            assert await store.get_attributes("s001") == {OTHER: 5}
            await make_idle(store, "s001")
            assert await store.get_attributes("s001", [OTHER, WRITER]) == {OTHER: 5}
            await make_idle(store, "s001")
            assert [each async for each in store.iterate_attributes("s001")] == [(OTHER, 5)]
            await make_idle(store, "s001")
            more = AttributeUpdate(OTHER, UpdateType.ACCUMULATE, 2)
            await store.update_attributes("s001", [more])
            await make_idle(store, "s001")
            assert await store.append("s001", b"gh", 6, [more]) == 6
            with pytest.raises(BadOffsetError):
                await store.append("s001", b"gh", 6)
            await make_idle(store, "s001")
            await store.truncate("s001", 2)
            await make_idle(store, "s001")
            assert await store.read("s001", 2, 4) == b"cdef"
            await make_idle(store, "s001", "s002")
            with pytest.raises(SegmentExistsError):
                await store.create_segment("s001")
            await store.append("s002", b"source")
            await make_idle(store, "s001", "s002")
            assert await store.merge("s001", "s002") == (8, 14)
            await make_idle(store, "s001")
            assert await store.seal("s001") == 14
            await make_idle(store, "s001")
            with pytest.raises(SegmentSealedError):
                await store.append("s001", b"")
            info = await store.get_info("s001")
            assert (info.segment_id, info.length, info.start_offset) == (segment_id, 14, 2)
            assert await store.get_attributes("s001") == {OTHER: 9}
            await make_idle(store, "s001")
            await store.delete("s001")
            for _ in range(2):
                with pytest.raises(SegmentNotFoundError):
                    await store.append("s001", b"")
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info("s001")
                await store.checkpoint()
            await store.create_segment("s001")
            assert (await store.get_info("s001")).segment_id != segment_id
            await make_idle(store, "s001")
            assert (await store.get_info("s001")).length == 0

    run(main())


def test_a_writer_of_an_idle_segment_is_exactly_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            async with store.writer("s001", WRITER) as writer:
                await writer.append(b"a", 3)
            await make_idle(store, "s001")
            unopened = store.writer("s001", WRITER)
            with pytest.raises(WriterNotOpenError):
                _ = unopened.last_event_number
            with pytest.raises(WriterNotOpenError):
                await unopened.append(b"b")
            async with store.writer("s001", WRITER) as writer:
                assert writer.last_event_number == 3
                await make_idle(store, "s001")
                sent = [writer.append(b"a", 3), writer.append(b"b", 4), writer.append(b"b", 4)]
                assert await asyncio.gather(*sent) == [None, 1, None]
                await store.delete("s001")
                await store.checkpoint()
                with pytest.raises(SegmentNotFoundError):
                    await writer.append(b"c")
            with pytest.raises(SegmentNotFoundError):
                async with store.writer("never", WRITER):
                    pass

    run(main())


def test_a_blocking_writer_of_an_idle_segment_is_open(tmp_path: Path) -> None:
    with segmentstore.blocking.open(tmp_path / "s", **TINY, **FEW) as store:
        for name in NAMES:
            store.create_segment(name)
        with store.writer("s000", WRITER) as writer:
            writer.append(b"a", 5)
        store.flush()
        for name in NAMES[1:]:
            store.get_info(name)
        assert store.writer("s000", WRITER).last_event_number == 5
        assert list(store.iterate_attributes("s000")) == [(WRITER, 5)]


def test_readers_and_followers_of_idle_segments(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            await store.append("s001", b"abc")
            await make_idle(store, "s001")
            reader = store.reader("s001", follow=True)
            assert await anext(reader) == b"abc"
            waiting = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(0)
            await make_used(store)
            await store.append("s001", b"def")
            assert await waiting == b"def"
            await make_idle(store, "s001")
            old = store.reader("s001")
            await store.delete("s001")
            with pytest.raises(SegmentNotFoundError):
                await anext(old)
            with pytest.raises(SegmentNotFoundError):
                store.reader("s001")

    async def make_used(store: SegmentStore) -> None:
        for name in NAMES[2:]:
            await store.get_info(name)

    run(main())


def test_listing_is_of_active_and_idle_segments_and_activates_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **{**FEW, "containers": 3}) as store:
            await made(store)
            await store.delete("s005")
            before = store.stats()["containers"]
            found = [info.name async for info in store.list_segments("s0")]
            assert found == [name for name in NAMES if name != "s005"]
            assert [info.name async for info in store.list_segments("s01")] == NAMES[10:20]
            after = store.stats()["containers"]
            for number in range(3):
                counts = before[number]["active_segments"], after[number]["active_segments"]
                assert counts[0]["activations"] == counts[1]["activations"]

    run(main())


def test_none_can_leave_while_all_have_unflushed_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tier 2 is away: the caller gets an error, nothing is lost, and all goes on later."""

    async def main() -> None:
        location = tmp_path / "s"
        async with open_lazy(location, **FEW) as store:
            await made(store, NAMES[:20])
            writer = await store.writer("s002", WRITER).open()
            await make_idle(store, *NAMES[:3])
            tier2 = location / "tier2"
            await store.flush()
            for name in NAMES[10:18]:
                await store.append(name, b"x")
            tier2.rename(location / "away")
            tier2.write_bytes(b"")
            monkeypatch.setattr(eviction, "ROOM_TIMEOUT_S", 1.0)
            events = [writer.append(b"e") for _ in range(3)]
            events[1].cancel()
            outcome = await asyncio.gather(
                events[0],
                store.append("s001", b"y"),
                store.get_info("s000"),
                store.create_segment("new"),
                return_exceptions=True,
            )
            assert [type(each) for each in outcome] == [TooManyActiveSegmentsError] * 4
            assert isinstance(events[2].exception(), TooManyActiveSegmentsError)
            monkeypatch.setattr(eviction, "ROOM_TIMEOUT_S", 60.0)
            waiting = asyncio.ensure_future(store.get_info("s000"))
            await until(lambda: store.stats()["containers"][0]["active_segments"]["waiting"] == 1)
            await until(lambda: "active_segments_max" in "".join(store.stats()["health"]))
            tier2.unlink()
            (location / "away").rename(tier2)
            assert (await waiting).length == 0
            assert await store.append("s001", b"y") == 0
            await store.create_segment("new")
            with pytest.raises(TooManyActiveSegmentsError):
                # Some of its events failed: others must not go in before them.
                await writer.append(b"f")
            writer = await store.writer("s002", WRITER).open()
            assert writer.last_event_number == -1
            for name in NAMES[10:18]:
                assert await content(store, name) == b"x"

    run(main())


def test_a_close_answers_all_who_wait_for_idle_segments(tmp_path: Path) -> None:
    async def main() -> None:
        for _ in range(5):
            async with open_tiny(tmp_path / "s", **FEW) as store:
                for name in NAMES:
                    try:
                        await store.create_segment(name)
                    except SegmentExistsError:
                        break
                before = {name: len(await content(store, name)) for name in NAMES}
                futures = {name: store.append(name, b"z") for name in NAMES for _ in range(2)}
                reads = [asyncio.ensure_future(store.get_info(name)) for name in NAMES]
                await asyncio.sleep(0)
                await store.close()
                await asyncio.gather(*futures.values(), *reads, return_exceptions=True)
            async with open_tiny(tmp_path / "s", **FEW) as store:
                for name, future in futures.items():
                    grown = len(await content(store, name)) - before[name]
                    error = future.exception()
                    assert error is None or isinstance(error, ContainerStoppedError), error
                    assert not isinstance(error, AppendOutcomeUnknownError)
                    assert grown == 2 if error is None else grown <= 1

    run(main())


def test_a_cancelled_wait_leaves_no_pin(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            evicting = store._containers[0]._eviction
            for number in range(40):
                calls: list[asyncio.Future[Any]] = [
                    asyncio.ensure_future(store.get_info(name)) for name in NAMES[:12]
                ]
                calls += [
                    asyncio.ensure_future(store.merge("s001", "s002")),
                    asyncio.ensure_future(store.create_segment("s003")),
                    asyncio.ensure_future(store.create_segment(f"new{number}")),
                ]
                for _ in range(number % 9):
                    await asyncio.sleep(0.0003 * (number % 4))
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
                await store.flush()
            for name in NAMES[3:]:
                await store.get_info(name)
            # A call that was in the log when its caller was cancelled gives them back behind that.
            await until(
                lambda: not evicting.pins and not evicting.creating and evicting._reserved == 0
            )
            assert len(active(store)) <= 9

    run(main())


def test_a_log_in_memory_has_no_bound(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", tier1="memory", **FEW) as store:
            await made(store)
            assert active(store) == set(NAMES)

    run(main())


def test_a_store_is_opened_with_another_bound(tmp_path: Path) -> None:
    """From no bound that matters to few, and back."""

    async def main() -> None:
        for most in (1000, 8, 1000, 4):
            options = {**FEW, "active_segments_max": most}
            async with open_tiny(tmp_path / "s", runtime=Runtime(), **options) as store:
                for name in NAMES:
                    try:
                        await store.create_segment(name)
                    except SegmentExistsError:
                        await store.append(name, b"+")
                lengths = {info.length async for info in store.list_segments()}
                assert len(lengths) == 1
                if most < 1000:
                    assert len(active(store)) <= most

    run(main())
