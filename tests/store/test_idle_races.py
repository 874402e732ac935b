"""Races of segments that leave memory, or come back, with what else goes on in a store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from durablelog.catalog.key_store import KeyStore
from durablelog.catalog.segment_loading import find_ids, load_segments
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import ChunkReplacement, ReplaceChunksOperation
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore import (
    InvalidNameError,
    SegmentNotFoundError,
    TooManyActiveSegmentsError,
)
from segmentstore.container import eviction, segment_loader
from segmentstore.container.eviction import Eviction
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.object_states import LiveObject
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import WorldDisk, open_lazy, open_tiny, run, until
from tests.store.test_idle_segments import FEW, NAMES, content, made, make_idle

WAIT_S = 60


class BlockedDisk(WorldDisk):
    """The log's syncs wait for `release` once `slow` is set."""

    def __init__(self, slow: threading.Event, release: threading.Event) -> None:
        super().__init__()
        self._slow = slow
        self._release = release

    def reach(self, call: str, path: str) -> None:
        if self._slow.is_set() and call == "sync" and "/log/" in path:
            assert self._release.wait(WAIT_S)
        super().reach(call, path)


def test_an_invalid_name_is_refused_while_segments_are_idle(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            for name in ("", "a\nb", "\0", "y" * 3000, "\ud800"):
                for call in (store.create_segment, store.get_info, store.delete):
                    # Two times: what is invalid is not remembered.
                    for _ in range(2):
                        with pytest.raises((InvalidNameError, SegmentNotFoundError)):
                            await call(name)
                with pytest.raises(InvalidNameError):
                    await store.create_segment(name)
                with pytest.raises((InvalidNameError, SegmentNotFoundError)):
                    await store.append(name, b"x")

    run(main())


def test_an_append_by_name_stays_behind_one_that_waits_while_it_is_created(tmp_path: Path) -> None:
    release, slow = threading.Event(), threading.Event()

    async def main() -> None:
        disk = BlockedDisk(slow, release)
        options = {**FEW, "active_segments_max": 4}
        async with open_tiny(tmp_path / "s", runtime=Runtime(disk=disk), **options) as store:
            await made(store, NAMES[:12])
            await store.flush()
            await store.checkpoint()
            container = store._containers[0]
            # What is in use stays in memory: there is room for the new one alone.
            used = AsyncExitStack()
            for name in NAMES[:3]:
                await used.enter_async_context(container.segment(name))
            slow.set()
            creating = asyncio.ensure_future(store.create_segment("new"))
            await until(lambda: "new" in container._updater._pending_names)
            first = store.append("new", b"first;")
            release.set()
            await creating
            assert not first.done()
            second = store.append("new", b"second;")
            await used.aclose()
            assert await first == 0
            assert await second == 6
            assert await content(store, "new") == b"first;second;"

    run(main())


@pytest.mark.parametrize("touched", [False, True])
def test_a_reading_is_repeated_only_if_its_segment_was_in_memory_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, touched: bool
) -> None:
    """Checkpoints one after another would keep a large segment from ever being loaded."""
    readings: list[Sequence[int]] = []

    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            await store.append("s001", b"abc")
            await make_idle(store, "s001")
            container = store._containers[0]
            segment_id = (await container._active._loader.load(["s001"]))[0]
            assert isinstance(segment_id, SegmentMetadata)
            await make_idle(store, "s001")

            async def slow(
                keys: KeyStore, ids: Sequence[int], objects: Mapping[str, LiveObject]
            ) -> list[SegmentMetadata | None]:
                found = await load_segments(keys, ids, objects)
                if segment_id.segment_id in ids:
                    readings.append(ids)
                    if len(readings) == 1:
                        for name in ("s002", "s003"):
                            await store.append(name, b"x")
                            await store.checkpoint()
                        if touched:
                            await store.append("s001", b"def")
                            await make_idle(store, "s001")
                return found

            monkeypatch.setattr(segment_loader, "load_segments", slow)
            async with container.held([segment_id.segment_id]):
                length = container.segments[segment_id.segment_id].length
            assert length == (6 if touched else 3)
            assert len(readings) == (1 if not touched else 3)

    run(main())


@pytest.mark.parametrize("idle_again", [False, True])
def test_a_name_is_not_free_that_was_taken_while_the_catalog_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, idle_again: bool
) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW) as store:
            await made(store)
            await make_idle(store, "s001")
            container = store._containers[0]

            async def slow(keys: KeyStore, names: Sequence[str]) -> list[int | None]:
                found = await find_ids(keys, names)
                monkeypatch.undo()
                await store.create_segment("taken")
                if idle_again:
                    await make_idle(store, "taken")
                return found

            monkeypatch.setattr(segment_loader, "find_ids", slow)
            free = await container._active._loader.free_names(["taken", "s001", 5, "free"])
            assert free == ["free"]

    run(main())


def test_all_who_wait_for_room_are_refused_at_the_same_time() -> None:
    async def main() -> None:
        updater = MetadataUpdater(ContainerMetadata(0))
        for number in (1, 2):
            segment = SegmentMetadata(number, f"s{number}", 0)
            segment.length = 5
            updater.metadata.segments[number] = segment
        asked: list[tuple[bool, bool]] = []
        room = Eviction(updater, 2, lambda *keeps: asked.append(keeps), lambda _: None)
        loop = asyncio.get_running_loop()
        begun, refused = loop.time(), list[float]()

        async def wait() -> None:
            with pytest.raises(TooManyActiveSegmentsError):
                await room.make_room(1)
            refused.append(loop.time() - begun)

        await asyncio.gather(*(wait() for _ in range(5)))
        assert refused == [pytest.approx(eviction.ROOM_TIMEOUT_S)] * 5
        assert asked
        assert set(asked) == {(True, False)}

    run_virtual(main())


@pytest.mark.parametrize("kept_by", ["bytes", "changes"])
def test_a_caller_waits_longer_while_a_flush_or_a_checkpoint_advances(kept_by: str) -> None:
    """As long as no segment leaves, it is refused in the end."""

    async def main() -> None:
        updater = MetadataUpdater(ContainerMetadata(0))
        segment = SegmentMetadata(1, "s1", 0)
        segment.length = 5 if kept_by == "bytes" else 0
        updater.metadata.segments[1] = segment
        room = Eviction(updater, 1, lambda *_: None, lambda _: None)
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def advance(until_s: float) -> None:
            while loop.time() < begun + until_s:
                await asyncio.sleep(eviction.ROOM_TIMEOUT_S / 2)
                if kept_by == "bytes":
                    room.storage_advanced(0)
                else:
                    room.written()

        timeout_s, timeout_max_s = eviction.ROOM_TIMEOUT_S, eviction.ROOM_TIMEOUT_MAX_S
        for until_s, refused_at in (
            (2 * timeout_s, 3 * timeout_s),
            (2 * timeout_max_s, timeout_max_s),
        ):
            begun = loop.time()
            advancing = asyncio.ensure_future(advance(until_s))
            with pytest.raises(TooManyActiveSegmentsError):
                await room.make_room(1)
            assert loop.time() - begun == pytest.approx(refused_at)
            advancing.cancel()
            await asyncio.wait((advancing,))

    run_virtual(main())


def full_of(flushed: int, unflushed: int) -> tuple[Eviction, list[tuple[bool, bool]]]:
    """Eviction where so many segments take all the room, none of them written; what it requests."""
    updater = MetadataUpdater(ContainerMetadata(0))
    for number in range(1, flushed + unflushed + 1):
        segment = SegmentMetadata(number, f"s{number}", 0)
        segment.length = 5 if number > flushed else 0
        updater.metadata.segments[number] = segment
    asked: list[tuple[bool, bool]] = []
    room = Eviction(
        updater, flushed + unflushed, lambda *keeps: asked.append(keeps), lambda _: None
    )
    return room, asked


def test_a_checkpoint_is_requested_once_behind_the_flush_that_callers_wait_for() -> None:
    """Before it, that would write segments which the flush changes again."""

    async def main() -> None:
        room, asked = full_of(0, 32)
        waiting = asyncio.ensure_future(room.make_room(1))
        await asyncio.sleep(0.1)
        room.storage_advanced(31)
        room.storage_advanced(5)
        assert asked == [(True, False)]
        room.storage_advanced(4)
        room.storage_advanced(0)
        assert asked == [(True, False), (False, True)]
        waiting.cancel()
        await asyncio.wait((waiting,))

    run_virtual(main())


@pytest.mark.parametrize("flushed", [1, 15, 17])
def test_what_is_flushed_leaves_before_a_flush_that_takes_long(flushed: int) -> None:
    async def main() -> None:
        room, asked = full_of(flushed, 32 - flushed)
        waiting = asyncio.ensure_future(room.make_room(1))
        await asyncio.sleep(0.1)
        assert asked == [(True, flushed > 16)]
        await asyncio.sleep(eviction.FLUSH_WAIT_S)
        assert (False, True) in asked
        waiting.cancel()
        await asyncio.wait((waiting,))

    run_virtual(main())


def test_who_waits_for_much_room_does_not_stand_before_who_holds_the_rest() -> None:
    """The engine waited for room for two, a merge behind it for its last source: 30 s."""

    async def main() -> None:
        room, _ = full_of(2, 0)
        room.active_max = 3
        loop = asyncio.get_running_loop()
        begun = loop.time()
        much = asyncio.ensure_future(room.make_room(2, whole=True))
        await asyncio.sleep(2)
        # Alone it waits for all.
        assert not much.done()
        assert await room.make_room(1) == 1
        assert await much == 1
        assert loop.time() == begun + 2
        # A call takes what there is.
        assert await room.make_room(2) == 1
        assert loop.time() == begun + 2

    run_virtual(main())


def test_calls_on_idle_segments_share_the_room_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wanted room for four at once, where there was some for three, and were refused."""

    async def main() -> None:
        few = {**FEW, "active_segments_max": 32}
        async with open_tiny(tmp_path / "s", **few) as store:
            await made(store)
            idle = NAMES[:8]
            await make_idle(store, *idle)
            (container,) = store._containers
            async with AsyncExitStack() as held:
                for name in NAMES[8:37]:
                    await held.enter_async_context(container.segment(name))
                monkeypatch.setattr(eviction, "ROOM_TIMEOUT_S", 1.0)
                found = await asyncio.gather(*map(store.get_info, idle))
                assert [info.name for info in found] == idle

    run(main())


def test_segments_of_a_commit_stay_in_memory_though_its_caller_is_cancelled(tmp_path: Path) -> None:
    """Live the operation would be passed over, and not in replay."""
    release, slow = threading.Event(), threading.Event()

    async def main() -> None:
        disk = BlockedDisk(slow, release)
        options = {**FEW, "inline_checkpoint_bytes_max": 0, "consolidation": False}
        async with open_lazy(tmp_path / "s", runtime=Runtime(disk=disk), **options) as store:
            await made(store, NAMES[:5])
            for piece in (b"one", b"two"):
                await store.append("s000", piece)
                await store.flush("s000")
            await store.checkpoint()
            container = store._containers[0]
            segment = container.segments[container.segment_ids["s000"]]
            chunks = tuple(segment.chunks)
            replacement = ChunkReplacement(segment.segment_id, chunks, chunks)
            slow.set()
            source = container._writer._source
            commit = asyncio.ensure_future(
                source.commit(ReplaceChunksOperation((), (replacement,)))
            )
            await until(lambda: bool(container._eviction.pins))
            commit.cancel()
            await asyncio.wait([commit])
            assert commit.cancelled()
            assert container._eviction.pins == {segment.segment_id: 1}
            release.set()
            await until(lambda: not container._eviction.pins)
            assert container.metadata.sequence_number > 0

    run(main())
