"""The operation processor on the in-memory log: order, failures, checkpoints, throttling, ends.

Scenarios of the reference catalogue covered here: 19, 20, 22, 23, 25 (as unknown, not
half-committed), 39, 43. Also 26 and 28 (the engine's own operations pass a full throttle, and
closing works under it). Not here: 21 (operations cannot fail to serialize), 37 (no transient
segments), 41 (one queue, no priorities beside the engine's own).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from durablelog.checkpoint_source import CheckpointSource
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogFrame
from durablelog.frame_requests import AppendRequest
from durablelog.log_positions import LogPositions
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from durablelog.metadata_lookup import Learn
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import decode_operation
from durablelog.operation_processor import OperationProcessor
from durablelog.operations import (
    CheckpointOperation,
    CreateOperation,
    ObjectsDeletedOperation,
    Operation,
    SealOperation,
)
from durablelog.processor_config import ProcessorConfig
from durablelog.throttler import Load, Throttle, throttle
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentNotFoundError,
    SegmentSealedError,
    TierUnavailableError,
)
from segmentstore.contracts.metadata import ContainerMetadata
from tests.durablelog.test_append_runs import Meanwhile
from tests.support.loop_clock import LoopClock

NO_THROTTLE = Throttle(delay_s=0.0, source="", full=False)
FULL = Throttle(delay_s=1.0, source="unflushed", full=True)


class Bench:
    """A processor over a fresh in-memory log."""

    def __init__(
        self,
        *,
        throttle: Callable[[int], Throttle] = lambda _on_its_way: NO_THROTTLE,
        frame: int = 200,
        **config: int,
    ) -> None:
        self.store = MemoryLogStore()
        self.log = MemoryDataLog(self.store, 0, payload_bytes_max=frame)
        self.metadata = ContainerMetadata(0)
        self.positions = LogPositions()
        self.committed: list[Operation] = []
        self.failures: list[BaseException] = []
        self.checkpoints: CheckpointSource | None = None
        """To be set before `start`; without, each has all metadata in itself."""
        self.learn: Learn | None = None
        """Too; without, all metadata are in memory."""
        self.defer: Callable[[AppendRequest], bool] | None = None
        self._throttle = throttle
        self._config = {
            "queue_bytes_max": 1_000_000,
            "in_flight_bytes_max": 1_000,
            "checkpoint_operations": 10_000,
            "checkpoint_bytes": 1_000_000,
        } | config

    async def start(self) -> int:
        """Open, write the first checkpoint, make a segment; gives its id."""
        await self.log.open()
        self.updater = MetadataUpdater(self.metadata)
        self.processor = OperationProcessor(
            log=self.log,
            updater=self.updater,
            positions=self.positions,
            config=ProcessorConfig(**self._config),
            clock=LoopClock(),
            on_commit=self._on_commit,
            on_failure=self.failures.append,
            throttle=self._throttle,
            checkpoints=self.checkpoints,
            defer=self.defer,
            learn=self.learn,
        )
        await self.processor.checkpoint()
        return int(str(await self.processor.submit(CreateOperation("one"))))

    def _on_commit(self, operations: Sequence[Operation]) -> None:
        self.committed += operations

    def logged(self) -> list[Operation]:
        """The operations in the log, as a reader finds them."""
        reader = DataFrameReader()
        frames: list[LogFrame] = self.store.frames(0)
        return [decode_operation(record) for frame in frames for record, *_ in reader.feed(frame)]


async def outcomes(futures: Sequence[asyncio.Future[int | None]]) -> list[object]:
    return await asyncio.gather(*futures, return_exceptions=True)


def test_appends_are_committed_in_the_order_of_the_calls_and_the_log_says_the_same() -> None:
    async def scenario() -> None:
        bench = Bench()
        segment_id = await bench.start()
        data = [bytes([number % 250]) * (number % 60) for number in range(300)]
        futures = [bench.processor.append(segment_id, item) for item in data]
        offsets = await outcomes(futures)
        assert offsets == [sum(map(len, data[:number])) for number in range(300)]
        assert b"".join(
            getattr(operation, "data", b"") for operation in bench.committed
        ) == b"".join(data)
        assert bench.logged() == bench.committed
        numbers = [operation.sequence_number for operation in bench.committed]
        assert numbers == sorted(set(numbers))

    run_virtual(scenario())


@pytest.mark.parametrize("measures", [1, 2])
def test_a_signal_handler_may_append_in_the_midst_of_an_append_and_of_a_pump(
    measures: int,
) -> None:
    async def scenario() -> None:
        bench = Bench()
        segment_id = await bench.start()
        futures: list[asyncio.Future[int | None]] = []
        data = Meanwhile(b"interrupted")
        data.work = [lambda: None] * (measures - 1)
        data.work.insert(0, lambda: futures.append(bench.processor.append(segment_id, b"other")))
        futures.append(bench.processor.append(segment_id, data))
        assert not data.work
        assert sorted(map(str, await outcomes(futures))) in (["0", "11"], ["0", "5"])
        assert bench.processor.statistics().queue_bytes == 0
        assert not bench.failures

    run_virtual(scenario())


def test_refused_operations_fail_alone() -> None:
    async def scenario() -> None:
        bench = Bench()
        segment_id = await bench.start()
        good = bench.processor.append(segment_id, b"a")
        bad = bench.processor.append(77, b"b")
        seal = bench.processor.submit(SealOperation(segment_id))
        late = bench.processor.append(segment_id, b"c")
        assert await good == 0
        assert await seal == 1
        with pytest.raises(SegmentNotFoundError):
            await bad
        with pytest.raises(SegmentSealedError):
            await late
        assert not bench.failures

    run_virtual(scenario())


@pytest.mark.parametrize("keep", [False, True])
def test_a_failed_frame_fails_all_behind_it_once_and_for_all(*, keep: bool) -> None:
    async def scenario() -> None:
        bench = Bench(frame=100)
        segment_id = await bench.start()
        before = bench.metadata.segments[segment_id].length
        bench.store.fail_append_after(2, keep=keep)
        futures = [bench.processor.append(segment_id, bytes(30)) for _ in range(20)]
        results = await outcomes(futures)
        good = [result for result in results if isinstance(result, int)]
        assert len(good) == 2
        assert results[:2] == good
        assert any(isinstance(result, AppendOutcomeUnknownError) for result in results)
        assert all(
            isinstance(result, AppendOutcomeUnknownError | ContainerStoppedError)
            for result in results[2:]
        )
        kinds = [type(result) for result in results[2:]]
        assert kinds == sorted(kinds, key=lambda kind: kind is ContainerStoppedError)
        assert bench.metadata.segments[segment_id].length == before + 60
        assert [type(failure) for failure in bench.failures] == [TierUnavailableError]
        with pytest.raises(ContainerStoppedError):
            await bench.processor.append(segment_id, b"late")
        with pytest.raises(ContainerStoppedError):
            await bench.processor.checkpoint()

    run_virtual(scenario())


def test_a_fenced_owner_acknowledges_nothing_and_says_so() -> None:
    async def scenario() -> None:
        bench = Bench()
        segment_id = await bench.start()
        usurper = MemoryDataLog(bench.store, 0, payload_bytes_max=200)
        await usurper.open()
        with pytest.raises(AppendOutcomeUnknownError):
            await bench.processor.append(segment_id, b"a")
        with pytest.raises(NotPrimaryError):
            await bench.processor.append(segment_id, b"b")
        assert isinstance(bench.failures[0], NotPrimaryError)
        assert bench.metadata.segments[segment_id].length == 0

    run_virtual(scenario())


def test_an_error_while_committing_stops_everything_behind_it() -> None:
    async def scenario() -> None:
        bench = Bench(frame=64)
        segment_id = await bench.start()
        error = RuntimeError("index is broken")

        def broken(_operations: Sequence[Operation]) -> None:
            raise error

        bench.processor._commits._on_commit = broken
        results = await outcomes([bench.processor.append(segment_id, bytes(40)) for _ in range(5)])
        assert not any(isinstance(result, int) for result in results)
        assert bench.failures == [error]

    run_virtual(scenario())


def test_checkpoints_come_by_count_and_by_bytes_and_are_truncation_points() -> None:
    async def scenario(config: dict[str, int]) -> None:
        bench = Bench(**config)  # type: ignore[arg-type] # the settings are numbers, all of them
        segment_id = await bench.start()
        for _ in range(100):
            await bench.processor.append(segment_id, bytes(90))
        await bench.processor.checkpoint()
        checkpoints = [
            operation for operation in bench.logged() if isinstance(operation, CheckpointOperation)
        ]
        assert len(checkpoints) > 3
        point = bench.positions.truncation_point(None)
        assert point is not None
        assert point[0] == checkpoints[-1].sequence_number
        assert bench.positions.truncation_point(checkpoints[1].sequence_number + 1) is not None
        assert bench.positions.truncation_point(checkpoints[0].sequence_number + 1) is None
        await bench.log.truncate(point[1])
        assert isinstance(bench.logged()[0], CheckpointOperation)

    run_virtual(scenario({"checkpoint_operations": 20}))
    run_virtual(scenario({"checkpoint_bytes": 2_000}))


def test_throttling_delays_callers_but_not_the_engine_and_closing_works_under_it() -> None:
    async def scenario() -> None:
        present = NO_THROTTLE
        bench = Bench(throttle=lambda _on_its_way: present)
        segment_id = await bench.start()
        present = FULL
        held = bench.processor.append(segment_id, b"held")
        await bench.processor.submit(ObjectsDeletedOperation(["x"]), own=True)
        await asyncio.sleep(100.05)  # between two checks of the throttle
        assert not held.done()
        assert bench.processor.statistics().throttled_by == "unflushed"
        present = NO_THROTTLE
        bench.processor.throttle_changed()
        assert await held == 0
        present = FULL
        held = bench.processor.append(segment_id, b"held")
        await asyncio.sleep(1)
        assert not held.done()
        await bench.processor.close()
        assert held.result() == 4
        with pytest.raises(ContainerStoppedError):
            await bench.processor.append(segment_id, b"late")

    run_virtual(scenario())


class FullLog(MemoryDataLog):
    """A log on a full disk, once `full_now` says so: it takes what it is given all the same."""

    full_now = False

    @property
    def short(self) -> bool:
        return self.full_now

    @property
    def full(self) -> bool:
        return self.full_now


@pytest.mark.parametrize("room_comes", [False, True])
def test_a_close_takes_no_room_for_callers_on_a_full_disk(*, room_comes: bool) -> None:
    async def scenario() -> None:
        present = NO_THROTTLE
        bench = Bench(throttle=lambda _on_its_way: present)
        bench.log = log = FullLog(bench.store, 0, payload_bytes_max=200)
        segment_id = await bench.start()
        log.full_now, present = True, Throttle(delay_s=1.0, source="log", full=True, relief_bytes=0)
        held = bench.processor.append(segment_id, b"held")
        closing = asyncio.ensure_future(bench.processor.close())
        await asyncio.sleep(3)
        assert bench.metadata.segments[segment_id].length == 0
        if room_comes:
            log.full_now = False
            bench.processor.throttle_changed()
        await closing
        if room_comes:
            assert await held == 0
            return
        with pytest.raises(ContainerStoppedError):
            await held

    run_virtual(scenario())


def test_a_partial_throttle_lets_work_through_slowly() -> None:
    async def scenario() -> None:
        half = throttle(Load(cache=0.8125))
        assert (half.delay_s, half.source, half.full) == (0.5, "cache", False)
        bench = Bench(throttle=lambda _on_its_way: half)
        segment_id = await bench.start()
        started = asyncio.get_running_loop().time()
        for _ in range(10):
            await bench.processor.append(segment_id, b"x")
        assert 4 <= asyncio.get_running_loop().time() - started <= 6

    run_virtual(scenario())


def paced(bytes_per_s: float) -> Throttle:
    return Throttle(delay_s=0.0, source="unflushed", full=False, bytes_per_s=bytes_per_s)


@pytest.mark.parametrize("ends", ["cancelled", "pace"])
def test_a_pace_admits_its_bytes_and_those_whose_callers_have_left_take_none(*, ends: str) -> None:
    async def scenario() -> None:
        present = paced(1000.0)
        bench = Bench(throttle=lambda _on_its_way: present)
        segment_id = await bench.start()
        loop = asyncio.get_running_loop()
        begun, times = loop.time(), []
        first = bench.processor.append(segment_id, bytes(50))
        await first
        assert loop.time() - begun < 0.01, "a caller alone does not wait"
        futures = [bench.processor.append(segment_id, bytes(50)) for _ in range(100)]
        for future in futures:
            future.add_done_callback(lambda _: times.append(loop.time() - begun))
        await asyncio.sleep(1.005)  # between two rounds
        assert bench.processor.statistics().throttled_by == "unflushed"
        assert 20 <= sum(future.done() for future in futures) <= 23
        if ends == "pace":
            present = NO_THROTTLE
            bench.processor.throttle_changed()
            await futures[-1]
            assert loop.time() - begun < 1.01
            return
        for future in futures[25:95]:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        assert loop.time() - begun < 2, "they would have taken 3.5 s"
        assert times == sorted(times)
        assert bench.metadata.segments[segment_id].length == 31 * 50

    run_virtual(scenario())


def test_an_append_of_more_than_a_round_goes_whole_and_the_next_one_waits_for_it() -> None:
    async def scenario() -> None:
        bench = Bench(throttle=lambda _on_its_way: paced(100.0))
        segment_id = await bench.start()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        futures = [bench.processor.append(segment_id, bytes(500)) for _ in range(3)]
        assert await futures[0] == 0
        assert loop.time() - begun < 0.1
        await futures[1]
        assert 4.8 < loop.time() - begun < 5.1
        await bench.processor.close()
        assert await futures[2] == 1000
        assert loop.time() - begun < 5.2, "a close waits for no pace"

    run_virtual(scenario())


def test_the_queue_is_bounded_in_bytes_and_says_what_holds_it() -> None:
    async def scenario() -> None:
        bench = Bench(queue_bytes_max=600)
        segment_id = await bench.start()
        # The first is on its way at once; two more wait.
        futures = [bench.processor.append(segment_id, bytes(40)) for _ in range(3)]
        with pytest.raises(TierUnavailableError, match="600 bytes"):
            await bench.processor.append(segment_id, bytes(40))
        assert await outcomes(futures) == [0, 40, 80]
        assert await bench.processor.append(segment_id, bytes(40)) == 120

    run_virtual(scenario())


def test_a_cancelled_append_that_was_not_taken_is_not_added() -> None:
    async def scenario() -> None:
        bench = Bench()
        segment_id = await bench.start()
        one, two, three = (bench.processor.append(segment_id, item) for item in (b"1", b"2", b"3"))
        two.cancel()
        assert await one == 0
        assert await three == 1

    run_virtual(scenario())
