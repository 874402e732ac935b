"""Races of callers that need chunks and attributes which the catalog alone has.

They race with one another, with changes, and with writes of the catalog. They are cancelled, and
the catalog fails.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

from durablelog.catalog.catalog_keys import ChunkPageKey
from durablelog.catalog.catalog_records import CatalogTotals
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import KeyBatch, KeyPair, KeyPortion, KeyStoreCorruptError
from durablelog.catalog.memory_key_store import MemoryKeyStore
from durablelog.catalog.metadata_catalog import MetadataCatalog
from durablelog.catalog.segment_loading import load_segments
from durablelog.metadata_needs import ALL_CHUNKS, AttributeNeed, ChunkNeed, Need, is_known, needs_of
from durablelog.operations import (
    ChunkReplacement,
    DeleteOperation,
    Operation,
    ReplaceChunksOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore.container import partial_segments
from segmentstore.container.partial_segments import PartialSegments
from segmentstore.contracts.attribute_table import AttributeTable
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import (
    DataCorruptionError,
    SegmentNotFoundError,
    SegmentStoreError,
    StoreClosedError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.runtime import Runtime
from tests.contracts.key_store_contract import IDENTITY
from tests.durablelog.catalog.catalog_samples import changed, written
from tests.durablelog.catalog.operations_machine import key_of, updates_of
from tests.durablelog.catalog.test_partial_loading import Filling

T = TypeVar("T")
Work: TypeAlias = Callable[[PartialSegments, Sequence[Need]], Coroutine[Any, Any, None]]

PAGE_CHUNKS = 3
ATTRIBUTES_MAX = 4
CHUNKS = 15
"""Of ten bytes, in five pages: the last one is known."""
ATTRIBUTES = 8
LARGE = 1 << 30
"""So that nothing leaves memory by itself."""


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", PAGE_CHUNKS)
    monkeypatch.setattr(AttributeTable, "PAGE_MAX", ATTRIBUTES_MAX)
    monkeypatch.setattr(partial_segments, "READ_ATTRIBUTES_MIN", ATTRIBUTES_MAX)


class Reads(MemoryKeyStore):
    """Holds back what its reads have found, or fails them, as a test says."""

    gate: asyncio.Event | None = None
    reached: asyncio.Event | None = None
    """Set when a read waits at the gate."""
    failing: tuple[str, Exception] | None = None
    """A call, and what it fails with on its thread."""

    def close_gate(self) -> None:
        self.gate, self.reached = asyncio.Event(), asyncio.Event()

    def open_gate(self) -> asyncio.Event:
        """For reads from now on; those before wait for the event."""
        assert self.gate is not None
        gate, self.gate = self.gate, None
        return gate

    async def _pass(self, found: T) -> T:
        if self.gate is not None:
            assert self.reached is not None
            self.reached.set()
            await self.gate.wait()
        await asyncio.sleep(0)
        return found

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._pass(await super().get(keys))

    async def scan_each(self, ranges: Sequence[StoreKeyRange], limit: int) -> list[KeyPortion]:
        return await self._pass(await super().scan_each(ranges, limit))

    def _fail(self, call: str) -> None:
        if self.failing is not None and self.failing[0] == call:
            raise self.failing[1]

    def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._fail("get")
        return super()._get(keys)

    def _find_last(self, ranges: Sequence[StoreKeyRange]) -> list[KeyPair | None]:
        self._fail("find_last")
        return super()._find_last(ranges)

    def _scan_each(self, ranges: Sequence[StoreKeyRange], limit: int) -> list[KeyPortion]:
        self._fail("scan_each")
        return super()._scan_each(ranges, limit)


class World(Filling):
    """Segments in memory and in a catalog, of which memory then knows the last pages alone."""

    store: Reads
    partial: PartialSegments
    catalog: MetadataCatalog

    async def open(self, folder: Path, bytes_max: int) -> None:
        runtime = Runtime(executor=inline_executor)
        self.catalog = MetadataCatalog(str(folder / "catalog"), IDENTITY, runtime, Reads)
        await self.catalog.begin_empty()
        store = self.catalog.store
        assert isinstance(store, Reads)
        self.store = store
        self.failures = list[BaseException]()
        self.partial = PartialSegments(
            self.updater, self.catalog, bytes_max, lambda _count: 0, self.failures.append
        )
        await written(store, self.metadata, self.updater)
        for segment in self.metadata.segments.values():
            self.forget(segment)

    def forget(self, segment: SegmentMetadata) -> None:
        self.updater.forget_pages(segment, [key for key, _ in segment.chunks.known_pages()])
        self.updater.forget_attributes(segment)

    def one(self, segment_id: int) -> SegmentMetadata:
        return self.metadata.segments[segment_id]

    def replace(self, segment_id: int, start: int, old: str, new: str) -> ReplaceChunksOperation:
        """Of one chunk: its object."""
        before = ChunkRecord(start, 10, old, start, segment_id, start)
        after = before._replace(object_name=new)
        replacement = ChunkReplacement(segment_id, (before,), (after,))
        return ReplaceChunksOperation([ObjectRecord(new, 1000, 1)], [replacement])

    async def change(self, operation: Operation) -> None:
        """Have in memory what it needs, and commit it."""
        await self.partial.learn(needs_of(operation))
        self.put(operation)

    async def write_catalog(self) -> None:
        """All that changed."""
        frozen = self.updater.changes.freeze(CatalogTotals(self.metadata.segment_count))
        while (batch := frozen.encode_some(50)) is not None:
            await self.store.apply(batch, self.store.sequence_number)
        await self.store.apply(KeyBatch(), self.metadata.sequence_number)
        self.updater.changes.written()

    async def return_from_catalog(self, segment_id: int) -> None:
        """Have a segment leave memory, and come back as the catalog has it."""
        self.updater.evict(self.one(segment_id))
        (segment,) = await load_segments(self.store, [segment_id], self.metadata.objects)
        assert segment is not None
        self.updater.activate(segment)

    def knows(self, needs: Sequence[Need]) -> list[bool]:
        return [is_known(self.metadata, need) for need in needs]

    def check_end(self) -> None:
        """No caller keeps anything."""
        assert not self.partial._kept
        assert not self.failures
        assert_metadata_valid(self.metadata)


@asynccontextmanager
async def opened(world: World, folder: Path, bytes_max: int = LARGE) -> AsyncIterator[None]:
    await world.open(folder, bytes_max)
    yield
    world.check_end()
    await world.partial.stop(StoreClosedError)
    await world.catalog.close()


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def held_back(world: World, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Work whose next read has found what it wanted, and waits."""
    world.store.close_gate()
    task = asyncio.create_task(work)
    assert world.store.reached is not None
    await world.store.reached.wait()
    return task


# --- changes --------------------------------------------------------------------------------------


def test_a_page_that_changes_while_it_is_read_does_not_seem_damaged(tmp_path: Path) -> None:
    """Its old object is garbage when what was read is decoded."""

    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        world.put(world.replace(x, 0, "one", "old"))
        async with opened(world, tmp_path):
            reading = await held_back(world, world.partial.learn([ChunkNeed(x, 20, 40)]))
            gate = world.store.open_gate()
            await world.change(world.replace(x, 0, "old", "new"))
            assert "old" in world.metadata.garbage
            gate.set()
            await reading
            found = [world.one(x).find_chunk(offset) for offset in (0, 20)]
            assert [chunk.object_name for chunk in found if chunk] == ["new", "one"]

    run_virtual(main())


@pytest.mark.parametrize("kind", ["chunks", "attributes"])
def test_what_was_read_before_a_write_of_the_catalog_is_read_again(
    tmp_path: Path, kind: str
) -> None:
    """Its segment came back meanwhile: memory knows no more that it changed."""

    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        need: Need = ChunkNeed(x, 0, 40) if kind == "chunks" else AttributeNeed(x, key_of(2))
        async with opened(world, tmp_path):
            reading = await held_back(world, world.partial.learn([need]))
            gate = world.store.open_gate()
            await world.change(world.replace(x, 0, "one", "new"))
            await world.change(UpdateAttributesOperation(x, updates=updates_of({2: 77})))
            await world.write_catalog()
            await world.return_from_catalog(x)
            assert world.knows([need]) == [False]
            gate.set()
            await reading
            if kind == "chunks":
                chunk = world.one(x).find_chunk(0)
                assert chunk is not None
                assert chunk.object_name == "new"
            else:
                assert world.one(x).attributes.get(key_of(2)) == 77

    run_virtual(main())


def test_attributes_that_were_scanned_before_writes_of_the_catalog_are_scanned_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        async with opened(world, tmp_path):
            segment = world.one(x)
            scan = world.partial.attributes_from(segment, bytes(16), ATTRIBUTES + 1)
            scanning = await held_back(world, scan)
            gate = world.store.open_gate()
            await world.change(UpdateAttributesOperation(x, updates=updates_of({2: 77})))
            # What changed before the freeze before the last may leave memory.
            for _ in range(2):
                await world.write_catalog()
            world.updater.forget_attributes(segment)
            assert not segment.attributes.knows(key_of(2))
            gate.set()
            expected = {number: number for number in range(ATTRIBUTES)} | {2: 77}
            found = [(key_of(number), value) for number, value in expected.items()]
            assert await scanning == (found, None)

    run_virtual(main())


@pytest.mark.parametrize("kind", ["chunks", "attributes"])
def test_what_is_read_of_a_segment_that_is_deleted_meanwhile_is_dropped(
    tmp_path: Path, kind: str
) -> None:
    async def main() -> None:
        world = World()
        x, y = world.segment("x", CHUNKS, ATTRIBUTES), world.segment("y", CHUNKS, ATTRIBUTES)
        for start in range(0, CHUNKS * 10, 10):
            world.put(world.replace(x, start, "one", "of x"))
        needs: list[Need] = [
            ChunkNeed(each, 0, 40) if kind == "chunks" else AttributeNeed(each, key_of(2))
            for each in (x, y)
        ]
        async with opened(world, tmp_path):
            reading = await held_back(world, world.partial.learn(needs))
            gate = world.store.open_gate()
            await world.change(DeleteOperation(x))
            assert "of x" in world.metadata.garbage
            gate.set()
            await reading
            assert x not in world.metadata.segments
            assert world.knows(needs) == [True, True]

    run_virtual(main())


def test_a_scan_of_a_segment_that_is_deleted_meanwhile_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        async with opened(world, tmp_path):
            scan = world.partial.attributes_from(world.one(x), bytes(16), 3)
            scanning = await held_back(world, scan)
            gate = world.store.open_gate()
            await world.change(DeleteOperation(x))
            gate.set()
            with pytest.raises(SegmentNotFoundError):
                await scanning

    run_virtual(main())


def test_pages_that_were_known_and_left_with_their_segment_meanwhile_are_read_too(
    tmp_path: Path,
) -> None:
    """They are missing in memory though all that was to be read was read: that is no damage."""

    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        needs: list[Need] = [ChunkNeed(x, 0, 100), AttributeNeed(x, key_of(1))]
        async with opened(world, tmp_path):
            await world.partial.learn([ChunkNeed(x, 0, 10)])
            reading = await held_back(world, world.partial.learn(needs))
            gate = world.store.open_gate()
            await world.return_from_catalog(x)
            gate.set()
            await reading
            assert all(world.knows(needs))

    run_virtual(main())


# --- what is there when `learn` returns -----------------------------------------------------------


def test_all_that_replay_asked_for_is_in_memory_however_little_it_may_take(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        x, y = world.segment("x", CHUNKS, ATTRIBUTES), world.segment("y", CHUNKS, ATTRIBUTES)
        async with opened(world, tmp_path, bytes_max=1):
            # The oldest of the pages that were read is needed again.
            await world.partial.learn([ChunkNeed(x, 0, 10)])
            replaced, truncated = world.replace(x, 0, "one", "new"), TruncateOperation(y, 100)
            operations: list[Operation] = [replaced, truncated]
            needs = [need for each in operations for need in needs_of(each)]
            await world.partial.learn(needs)
            assert world.knows(needs) == [True, True]
            for operation in operations:
                operation.sequence_number = world.metadata.sequence_number + 1
                world.updater.replay(operation)
            assert world.one(y).chunks.start_offset == 100

    run_virtual(main())


def test_each_of_many_callers_goes_on_with_all_that_it_needs(tmp_path: Path) -> None:
    """All of them together need more pages than may be in memory."""

    async def main() -> None:
        world = World()
        ids = [world.segment(f"s{number}", CHUNKS, ATTRIBUTES) for number in range(4)]
        lacking = 0

        async def caller(number: int) -> None:
            nonlocal lacking
            needs: list[Need] = []
            for each in (number, number + 1):
                segment_id, start = ids[each % len(ids)], each * 30 % 120
                needs += [ChunkNeed(segment_id, start, start + 40)]
                needs += [AttributeNeed(segment_id, key_of(each % ATTRIBUTES))]
            await turns(number)
            lacking += not all(world.knows(needs))
            await world.partial.learn(needs)
            assert all(world.knows(needs)), needs

        async with opened(world, tmp_path, bytes_max=1):
            await asyncio.gather(*map(caller, range(40)))
            known = sum(world.one(each).chunks.known_count for each in ids)
            assert known < len(ids) * CHUNKS
            assert lacking > 10

    run_virtual(main())


# --- cancellation ---------------------------------------------------------------------------------


async def _learn(partial: PartialSegments, needs: Sequence[Need]) -> None:
    await partial.learn(needs)


async def _know(partial: PartialSegments, needs: Sequence[Need]) -> None:
    async with partial.known(needs):
        await turns(3)


@pytest.mark.parametrize("work", [_learn, _know])
def test_a_caller_that_is_cancelled_at_any_await_keeps_nothing(tmp_path: Path, work: Work) -> None:
    async def main() -> None:
        world = World()
        x, y = world.segment("x", CHUNKS, ATTRIBUTES), world.segment("y", CHUNKS, ATTRIBUTES)
        needs: list[Need] = [ChunkNeed(x, 0, 100), ChunkNeed(y, 35, 36)]
        needs += [AttributeNeed(each, key_of(number)) for each in (x, y) for number in range(6)]
        async with opened(world, tmp_path, bytes_max=1):
            for number in count():
                task = asyncio.create_task(work(world.partial, needs))
                await turns(number)
                if task.done():
                    await task
                    assert number > 10
                    return
                task.cancel()
                await asyncio.wait((task,))
                assert task.cancelled()
                world.check_end()
                # What it had learnt may leave memory.
                world.partial.written()
                await turns(20)
                assert world.one(x).chunks.known_count == PAGE_CHUNKS
                assert world.one(x).attributes.known_count <= ATTRIBUTES_MAX

    run_virtual(main())


def test_what_one_caller_keeps_stays_whatever_others_do(tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        async with opened(world, tmp_path, bytes_max=1):
            entered, leave = asyncio.Event(), asyncio.Event()
            kept: list[Need] = [ChunkNeed(x, 0, 50)]
            kept += [AttributeNeed(x, key_of(number)) for number in range(ATTRIBUTES)]

            async def keep() -> None:
                async with world.partial.known(kept):
                    entered.set()
                    await leave.wait()
                    assert all(world.knows(kept))

            keeping = asyncio.create_task(keep())
            await entered.wait()
            other = await held_back(world, world.partial.learn([ChunkNeed(x, 65, 105)]))
            other.cancel()
            await asyncio.wait((other,))
            world.store.open_gate()
            # What others read takes the place of what is not kept, as does a write of the catalog.
            await world.partial.learn([AttributeNeed(x, key_of(ATTRIBUTES))])
            world.partial.written()
            await turns(20)
            leave.set()
            await keeping
            world.partial.written()
            await turns(20)
            chunks, *attributes = world.knows(kept)
            assert not chunks
            assert sum(attributes) <= ATTRIBUTES_MAX

    run_virtual(main())


# --- a catalog that fails -------------------------------------------------------------------------

FAILURES: dict[str, tuple[Exception, type[SegmentStoreError]]] = {
    "the disk": (OSError(errno.EIO, "it does not answer"), TierUnavailableError),
    "damage": (KeyStoreCorruptError("folder", "a file is damaged"), DataCorruptionError),
}


@pytest.mark.parametrize("call", ["find_last", "scan_each", "get"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("work", [_learn, _know])
def test_a_catalog_that_fails_is_a_typed_error_that_leaves_nothing_behind(
    tmp_path: Path, call: str, failure: str, work: Work
) -> None:
    error, expected = FAILURES[failure]

    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        one = AttributeNeed(x, key_of(1)) if call == "get" else ChunkNeed(x, 0, 40)
        needs: list[Need] = [one]
        async with opened(world, tmp_path):
            world.store.failing = call, error
            with pytest.raises(expected, match=f"container {IDENTITY.container_id}, catalog"):
                await work(world.partial, needs)
            world.check_end()
            assert world.knows(needs) == [False]
            assert world.partial.pages_read == world.partial.attributes_read == 0
            world.store.failing = None
            await work(world.partial, needs)
            assert world.knows(needs) == [True]

    run_virtual(main())


@pytest.mark.parametrize("failure", FAILURES)
def test_attributes_are_not_given_from_memory_alone_if_the_catalog_fails(
    tmp_path: Path, failure: str
) -> None:
    error, expected = FAILURES[failure]

    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        async with opened(world, tmp_path):
            await world.partial.learn([AttributeNeed(x, key_of(0))])
            world.store.failing = "scan_each", error
            with pytest.raises(expected, match=f"container {IDENTITY.container_id}, catalog"):
                await world.partial.attributes_from(world.one(x), bytes(16), 1)

    run_virtual(main())


@pytest.mark.parametrize("work", [_learn, _know])
def test_what_cannot_be_read_when_the_container_has_stopped_says_why_it_has(
    tmp_path: Path, work: Work
) -> None:
    async def main() -> None:
        world = World()
        x = world.segment("x", CHUNKS, ATTRIBUTES)
        async with opened(world, tmp_path):
            await world.partial.stop(StoreClosedError)
            await world.catalog.close()
            for need in (ChunkNeed(x, 0, 10), AttributeNeed(x, key_of(1))):
                with pytest.raises(StoreClosedError):
                    await work(world.partial, [need])
            with pytest.raises(StoreClosedError):
                await world.partial.attributes_from(world.one(x), bytes(16), 1)
            world.check_end()

    run_virtual(main())


@pytest.mark.parametrize("end", [40, ALL_CHUNKS])
@pytest.mark.parametrize("page", [0, 30])
def test_a_page_that_the_catalog_lacks_is_damage_that_names_it(
    tmp_path: Path, page: int, end: int
) -> None:
    async def main() -> None:
        world = World()
        x, y = world.segment("x", CHUNKS, ATTRIBUTES), world.segment("y", CHUNKS, ATTRIBUTES)
        async with opened(world, tmp_path):
            await changed(world.store, {ChunkPageKey(x, page).encode(): None})
            # The page before it is found in its place, and has none of these bytes.
            need = ChunkNeed(x, page + 5, page + end)
            where = "bytes 35 to 60" if page else "offset 5"
            missing = f"segment {x}: no page has its {where}"
            for _ in range(2):
                with pytest.raises(DataCorruptionError, match=re.escape(missing)):
                    await world.partial.learn([ChunkNeed(y, 0, 10), need])
            assert not world.one(x).chunks.knows(page, page + 30)
            # The rest is read as ever.
            await world.partial.learn([ChunkNeed(x, 60, 120), ChunkNeed(y, 0, ALL_CHUNKS)])
            assert world.one(y).chunks.whole

    run_virtual(main())
