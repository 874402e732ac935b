"""A processor whose queue waits for metadata: what goes on meanwhile, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from durablelog.checkpoint_source import CheckpointSource
from durablelog.durable_data_log import LogAddress
from durablelog.frame_requests import REQUEST_BYTES, AppendRequest
from durablelog.metadata_lookup import MetadataLookup
from durablelog.metadata_needs import AttributeNeed, ChunkNeed, Need
from durablelog.operations import (
    AnyCheckpoint,
    ChunkReplacement,
    CreateOperation,
    ReplaceChunksOperation,
    SealOperation,
    SnapshotCheckpointOperation,
    StorageUpdateOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from durablelog.pending_segment import EventSession
from durablelog.throttler import Throttle
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.attributes import KeyedUpdate, UpdateType
from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.owned_tasks import owned_tasks
from tests.durablelog.test_operation_processor import NO_THROTTLE, Bench, outcomes

KEYS = [bytes([number]) * 16 for number in range(4)]
LONG_S = 100.0
"""In which all that can happen has happened."""


def updates(*values: tuple[int, int]) -> tuple[KeyedUpdate, ...]:
    return tuple((KEYS[key], UpdateType.REPLACE, value, None) for key, value in values)


class References(CheckpointSource):
    """Checkpoints by reference to snapshots that are never taken."""

    ready = True

    def take(self) -> AnyCheckpoint:
        return SnapshotCheckpointOperation(1, bytes(16))

    def logged(self, operation: SnapshotCheckpointOperation, address: LogAddress) -> None:
        pass


class Catalog:
    """Brings what a bench lacks, once its gate is open."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.gate = asyncio.Event()
        self.asked: list[list[Need]] = []
        self.error: BaseException | None = None
        self.most: int | None = None
        """It brings no more at one time; None: all."""
        self.ended = self.cancelled = 0
        self.on_known: Callable[[], None] = lambda: None
        """Called before its callers go on."""
        self.attributes: dict[int, dict[bytes, int]] = {}
        self.pages: dict[int, list[list[ChunkRecord]]] = {}

    async def learn(self, needs: Sequence[Need]) -> None:
        self.asked.append(list(needs))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        for need in needs[: self.most]:
            segment = self._bench.metadata.segments.get(need.segment_id)
            if segment is None:
                continue
            if isinstance(need, AttributeNeed):
                value = self.attributes[need.segment_id].get(need.key)
                segment.attributes.learn({need.key: value})
            else:
                for page in self.pages[need.segment_id]:
                    segment.chunks.learn(page[0].start_offset, page)
        self.ended += 1
        self.on_known()

    def take(self, segment: SegmentMetadata) -> None:
        """Have all there is of a segment here, and as little as possible in memory."""
        pages = segment.chunks.known_pages()
        known = ((key, value) for key, value in segment.attributes.known() if value is not None)
        self.attributes.setdefault(segment.segment_id, {}).update(known)
        if segment.chunks.whole:
            self.pages[segment.segment_id] = [records[:count] for _, (records, count) in pages]
        if self._bench.updater.may_forget_chunks(segment):
            segment.chunks.forget([key for key, _ in pages])
        view = self._bench.updater.pending.get(segment.segment_id)
        segment.attributes.make_partial(view.attributes if view is not None else ())
        self._bench.metadata.partial.add(segment.segment_id)


async def begun(bench: Bench) -> tuple[Catalog, int]:
    """A segment with two attributes and seven chunks, of which memory knows the last one."""
    catalog = Catalog(bench)
    bench.checkpoints = References()
    bench.learn = catalog.learn
    segment_id = await bench.start()
    await bench.processor.submit(UpdateAttributesOperation(segment_id, updates=updates((0, 7))))
    await bench.processor.append(segment_id, bytes(70))
    found = [(segment_id, chunk(segment_id, start)) for start in range(0, 70, 10)]
    await bench.processor.submit(StorageUpdateOperation([ObjectRecord("o", 1000, 1)], found))
    catalog.take(bench.metadata.segments[segment_id])
    assert not bench.metadata.whole
    bench.committed.clear()
    return catalog, segment_id


def chunk(segment_id: int, start: int, length: int = 10) -> ChunkRecord:
    return ChunkRecord(start, length, "o", start, segment_id, start)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkList, "page_chunks", 3)


def test_the_queue_waits_behind_the_request_and_what_is_before_it_does_not() -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, one = await begun(bench)
        two = int(str(await bench.processor.submit(CreateOperation("two"))))
        before = [bench.processor.append(segment_id, b"before") for segment_id in (one, two)]
        stalled = bench.processor.append(one, b"stalled", event=(KEYS[0], 8, EventSession()))
        behind = [bench.processor.append(segment_id, b"behind") for segment_id in (one, two)]
        sealed = bench.processor.submit(SealOperation(two))
        own = bench.processor.submit(StorageUpdateOperation([]), own=True)
        await asyncio.sleep(LONG_S)
        assert [each.result() for each in before] == [70, 0]
        waiting: list[asyncio.Future[Any]] = [stalled, *behind, sealed]
        assert not any(each.done() for each in waiting)
        assert catalog.asked == [[AttributeNeed(one, KEYS[0])]]
        late = bench.processor.append(two, b"late")
        statistics = bench.processor.statistics()
        assert statistics.queue_requests == 5 + (not own.done())
        assert statistics.queue_bytes == 5 * REQUEST_BYTES + len(b"stalledbehindbehindlate")
        catalog.gate.set()
        assert await outcomes([stalled, *behind]) == [76, 83, 6]
        assert await sealed == 12
        await own
        (refused,) = await outcomes([late])
        assert isinstance(refused, Exception)
        assert (catalog.ended, len(catalog.asked)) == (1, 1)
        assert bench.processor.statistics().queue_bytes == 0
        assert not bench.failures
        numbers = [operation.sequence_number for operation in bench.committed]
        assert numbers == sorted(set(numbers))
        assert bench.metadata.segments[one].attributes.get(KEYS[0]) == 8

    run_virtual(scenario())


def test_the_queue_goes_on_in_the_turn_in_which_all_is_known() -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        segment = bench.metadata.segments[segment_id]
        loop = asyncio.get_running_loop()

        # In the next turn it has left memory again, but for what is on its way.
        def leave_soon() -> None:
            loop.call_soon(catalog.take, segment)

        catalog.on_known = leave_soon
        catalog.gate.set()
        first = bench.processor.append(segment_id, b"x")
        futures = [
            bench.processor.append(
                segment_id, b"x", event=(KEYS[number % 2], number, EventSession())
            )
            for number in (8, 9, 10, 11)
        ]
        assert await outcomes([first, *futures]) == [70, 71, 72, 73, 74]
        assert len(catalog.asked) == 1
        await bench.processor.submit(TruncateOperation(segment_id, 35))
        assert len(catalog.asked) == 2
        assert segment.chunks.start_offset == 30

    run_virtual(scenario())


def test_what_waiting_requests_need_is_brought_at_one_time() -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        first = bench.processor.append(segment_id, b"x")
        futures = [
            bench.processor.append(
                segment_id, b"x", event=(KEYS[number % 4], number, EventSession())
            )
            for number in range(8, 28)
        ]
        truncated = bench.processor.submit(TruncateOperation(segment_id, 35))
        catalog.gate.set()
        assert await outcomes([first, *futures]) == list(range(70, 91))
        await truncated
        needs: list[Need] = [AttributeNeed(segment_id, key) for key in KEYS]
        assert catalog.asked == [[*needs, ChunkNeed(segment_id, 0, 35)]]

    run_virtual(scenario())


def test_a_queue_that_was_brought_too_little_asks_again() -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        catalog.most = 1
        catalog.gate.set()
        operation = UpdateAttributesOperation(segment_id, updates=updates((0, 1), (1, 2), (2, 3)))
        await bench.processor.submit(operation)
        needs: list[Need] = [AttributeNeed(segment_id, key) for key in KEYS[:3]]
        assert catalog.asked == [needs, needs[1:], needs[2:]]
        assert len(bench.metadata.segments[segment_id].attributes) == 3

    run_virtual(scenario())


def test_a_bounded_queue_refuses_what_comes_while_it_waits() -> None:
    async def scenario() -> None:
        bench = Bench(queue_bytes_max=600)
        catalog, segment_id = await begun(bench)
        futures = [
            bench.processor.append(segment_id, b"x", event=(KEYS[0], number, EventSession()))
            for number in (8, 9, 10, 11)
        ]
        assert isinstance(futures[3].exception(), TierUnavailableError)
        await asyncio.sleep(LONG_S)
        catalog.gate.set()
        assert await outcomes(futures[:3]) == [70, 71, 72]
        assert (
            await bench.processor.append(segment_id, b"x", event=(KEYS[0], 12, EventSession()))
            == 73
        )

    run_virtual(scenario())


def test_an_operation_of_the_engine_waits_as_well_and_keeps_its_place() -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        old = (chunk(segment_id, 20), chunk(segment_id, 30))
        new = (chunk(segment_id, 20, 20)._replace(object_name="n"),)
        replacement = ReplaceChunksOperation(
            [ObjectRecord("n", 1, 1)], [ChunkReplacement(segment_id, old, new)]
        )
        replaced = bench.processor.submit(replacement, own=True)
        await asyncio.sleep(LONG_S)
        behind = bench.processor.append(segment_id, b"behind")
        await asyncio.sleep(LONG_S)
        assert (replaced.done(), behind.done()) == (False, False)
        assert catalog.asked == [[ChunkNeed(segment_id, 20, 40)]]
        catalog.gate.set()
        await replaced
        assert await behind == 70
        assert [type(each).__name__ for each in bench.committed] == [
            "ReplaceChunksOperation",
            "AppendOperation",
        ]
        chunks = bench.metadata.segments[segment_id].chunks
        assert (len(chunks), chunks.find(25)) == (6, new[0])

    run_virtual(scenario())


def test_a_checkpoint_does_not_wait_for_a_queue_that_does() -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        stalled = bench.processor.append(segment_id, b"x", event=(KEYS[0], 8, EventSession()))
        await asyncio.sleep(LONG_S)
        await bench.processor.checkpoint()
        assert not stalled.done()
        catalog.gate.set()
        assert await stalled == 70

    run_virtual(scenario())


@pytest.mark.parametrize("full", [False, True])
def test_a_throttle_and_a_lookup_together_hold_nothing_for_ever(*, full: bool) -> None:
    async def scenario() -> None:
        present = NO_THROTTLE
        bench = Bench(throttle=lambda _on_its_way: present)
        catalog, segment_id = await begun(bench)
        catalog.gate.set()
        present = Throttle(delay_s=0.5, source="cache", full=full)
        futures = [
            bench.processor.append(
                segment_id, b"x", event=(KEYS[number % 2], number, EventSession())
            )
            for number in (8, 9, 10)
        ]
        await asyncio.sleep(LONG_S)
        assert [each.done() for each in futures] == [not full] * 3
        present = NO_THROTTLE
        bench.processor.throttle_changed()
        assert await outcomes(futures) == [70, 71, 72]

    run_virtual(scenario())


def test_an_append_whose_segment_left_memory_meanwhile_is_deferred_with_those_behind_it() -> None:
    async def scenario() -> None:
        bench = Bench()
        deferred: list[AppendRequest] = []
        left: set[int] = set()

        def defer(request: AppendRequest) -> bool:
            if request[0] in left:
                deferred.append(request)
            return request[0] in left

        bench.defer = defer
        catalog, segment_id = await begun(bench)
        segment = bench.metadata.segments[segment_id]
        futures = [
            bench.processor.append(segment_id, b"x", event=(KEYS[0], 8, EventSession())),
            bench.processor.append(segment_id, b"y"),
        ]
        await asyncio.sleep(LONG_S)
        del bench.metadata.segments[segment_id]
        bench.updater.pending.pop(segment_id)
        left.add(segment_id)
        catalog.gate.set()
        await asyncio.sleep(LONG_S)
        assert [each[1] for each in deferred] == [b"x", b"y"]
        assert not any(each.done() for each in futures)
        left.clear()
        bench.metadata.segments[segment_id] = segment
        bench.processor.put_back(deferred, 0)
        assert await outcomes(futures) == [70, 71]
        assert len(catalog.asked) == 2

    run_virtual(scenario())


# --- ends -----------------------------------------------------------------------------------------


def test_a_lookup_that_fails_stops_the_container() -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        before = bench.processor.append(segment_id, b"before")
        futures = [
            bench.processor.append(segment_id, b"x", event=(KEYS[0], 8, EventSession())),
            bench.processor.append(segment_id, b"y"),
        ]
        await asyncio.sleep(LONG_S)
        catalog.error = TierUnavailableError("tier1", "the catalog is away")
        catalog.gate.set()
        results = await outcomes(futures)
        assert [type(each) for each in results] == [ContainerStoppedError] * 2
        assert before.result() == 70
        assert bench.failures == [catalog.error]
        assert bench.metadata.segments[segment_id].length == 76
        assert not bench.updater.pending
        with pytest.raises(ContainerStoppedError):
            await bench.processor.append(segment_id, b"late")

    run_virtual(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_a_close_waits_for_a_lookup_and_for_what_waits_behind_it(*, fails: bool) -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        futures = [
            bench.processor.append(segment_id, b"x", event=(KEYS[0], 8, EventSession())),
            bench.processor.append(segment_id, b"y", event=(KEYS[1], 8, EventSession())),
        ]
        closing = asyncio.ensure_future(bench.processor.close())
        await asyncio.sleep(LONG_S)
        assert not closing.done()
        (late,) = await outcomes([bench.processor.append(segment_id, b"late")])
        assert isinstance(late, ContainerStoppedError)
        if fails:
            catalog.error = TierUnavailableError("tier1", "the catalog is away")
        catalog.gate.set()
        await closing
        if fails:
            assert all(isinstance(each.exception(), ContainerStoppedError) for each in futures)
        else:
            assert [each.result() for each in futures] == [70, 71]
        assert bench.failures == ([catalog.error] if fails else [])
        await asyncio.sleep(LONG_S)
        assert not owned_tasks()

    run_virtual(scenario())


@pytest.mark.parametrize("opens", [False, True])
def test_a_failure_cancels_a_lookup_and_nothing_goes_on(*, opens: bool) -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        futures = [
            bench.processor.append(segment_id, b"x", event=(KEYS[0], 8, EventSession())),
            bench.processor.append(segment_id, b"y"),
        ]
        await asyncio.sleep(LONG_S)
        if opens:
            # It would have ended in the same turn.
            catalog.gate.set()
        error = RuntimeError("of something else")
        bench.processor.fail(error)
        results = await outcomes(futures)
        assert [type(each) for each in results] == [ContainerStoppedError] * 2
        await asyncio.sleep(LONG_S)
        assert (catalog.ended, catalog.cancelled) == (0, 1)
        assert bench.failures == [error]
        assert bench.committed == []
        assert not owned_tasks()

    run_virtual(scenario())


def test_a_log_that_fails_meanwhile_ends_a_lookup_too() -> None:
    async def scenario() -> None:
        bench = Bench()
        catalog, segment_id = await begun(bench)
        bench.store.fail_append_after(0, keep=False)
        before = bench.processor.append(segment_id, b"before")
        stalled = bench.processor.append(segment_id, b"x", event=(KEYS[0], 8, EventSession()))
        results = await outcomes([before, stalled])
        assert isinstance(results[0], AppendOutcomeUnknownError)
        assert isinstance(results[1], ContainerStoppedError)
        await asyncio.sleep(LONG_S)
        assert len(bench.failures) == 1
        assert catalog.ended == 0
        assert not owned_tasks()

    run_virtual(scenario())


def test_a_processor_without_a_metadata_source_stops_when_they_are_missing() -> None:
    async def scenario() -> None:
        bench = Bench()
        _, segment_id = await begun(bench)
        bench.processor._lookup._learn = None
        stalled = bench.processor.append(segment_id, b"x", event=(KEYS[0], 8, EventSession()))
        (result,) = await outcomes([stalled])
        assert isinstance(result, ContainerStoppedError)
        assert [type(each) for each in bench.failures] == [AssertionError]

    run_virtual(scenario())


# --- the lookup alone -----------------------------------------------------------------------------


def test_a_lookup_is_one_at_a_time_and_begins_for_something() -> None:
    async def scenario() -> None:
        calls: list[object] = []
        gate = asyncio.Event()

        async def learn(needs: Sequence[Need]) -> None:
            calls.append(list(needs))
            await gate.wait()

        lookup = MetadataLookup(learn, lambda: calls.append("known"), calls.append)
        need = AttributeNeed(1, KEYS[0])
        with pytest.raises(AssertionError):
            lookup.begin([])
        with pytest.raises(AssertionError):
            MetadataLookup(None, lambda: None, calls.append).begin([need])
        seen = [lookup.in_progress]
        for number in (1, 2):
            lookup.begin([need])
            seen.append(lookup.in_progress)
            with pytest.raises(AssertionError):
                lookup.begin([need])
            await asyncio.sleep(1)
            seen.append(lookup.in_progress)
            gate.set()
            await asyncio.sleep(1)
            gate.clear()
            seen.append(lookup.in_progress)
            assert lookup.lookups == number
        assert seen == [False, *[True, True, False] * 2]
        assert calls == [[need], "known"] * 2

    run_virtual(scenario())


@pytest.mark.parametrize("begun_before", [False, True])
def test_a_stopped_lookup_reports_nothing(*, begun_before: bool) -> None:
    async def scenario() -> None:
        calls: list[object] = []

        async def learn(_needs: Sequence[Need]) -> None:
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError as error:
                calls.append("end")
                # What a read may make of it.
                raise TierUnavailableError("tier1", "closed") from error

        lookup = MetadataLookup(learn, lambda: calls.append("known"), calls.append)
        lookup.begin([AttributeNeed(1, KEYS[0])])
        if begun_before:
            await asyncio.sleep(1)
        lookup.stop()
        lookup.stop()
        await asyncio.sleep(2 * LONG_S)
        assert calls == ["end"] * begun_before
        assert not owned_tasks()

    run_virtual(scenario())


def test_a_lookup_cancelled_from_outside_is_a_failure() -> None:
    async def scenario() -> None:
        failures: list[BaseException] = []

        async def learn(_needs: Sequence[Need]) -> None:
            await asyncio.sleep(LONG_S)

        lookup = MetadataLookup(learn, lambda: None, failures.append)
        lookup.begin([AttributeNeed(1, KEYS[0])])
        await asyncio.sleep(1)
        for task in owned_tasks():
            task.cancel()
        await asyncio.sleep(1)
        assert [type(each) for each in failures] == [asyncio.CancelledError]

    run_virtual(scenario())
