"""Groups by time, in virtual time.

On a log that makes one sync after another, as a file log. And on one that has many frames on their
way, as BookKeeper's pipeline.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from durablelog.durable_data_log import LogAddress
from durablelog.group_holds import GroupHolds
from durablelog.group_pace import (
    GROUP_S,
    HOLD_MAX_S,
    LATE_S,
    PROBE_MAX,
    PROBE_MIN,
    STEADY,
    SYNCS_MAX,
    GroupPace,
)
from durablelog.log_positions import LogPositions
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_processor import OperationProcessor
from durablelog.operations import CreateOperation
from durablelog.processor_config import ProcessorConfig
from durablelog.throttler import Throttle
from recovery.harness.simulation.virtual_loop import VirtualLoop, run_virtual
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.event_loops import new_uvloop
from segmentstore.contracts.metadata import ContainerMetadata
from tests.support.loop_clock import LoopClock

MS = 0.001
FILE_S = 0.0004
"""A sync of a local disk."""
FAST_S = 0.0002
"""A sync of a fast one, which is less than a group's share of a core."""
PIPELINE_S = 0.003
"""The way to three bookies and back."""
NO_THROTTLE = Throttle(delay_s=0.0, source="", full=False)


class TimedLog(MemoryDataLog):
    """Frames take `sync_s`: one group after another, or `parallel`, each frame by itself."""

    def __init__(self, sync_s: float, *, parallel: bool) -> None:
        super().__init__(MemoryLogStore(), 0)
        self._sync_s = sync_s
        self._parallel = parallel
        self._queued: deque[tuple[asyncio.Future[LogAddress], asyncio.Future[LogAddress]]] = deque()
        self._busy = False
        self.settle: Callable[[], None] = lambda: None
        self.groups = 0
        """Syncs, or entries."""

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[LogAddress]:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[LogAddress] = loop.create_future()
        frame = (super().append(payload), waiting)
        if self._parallel:
            self.groups += 1
            loop.call_later(self._sync_s, self._synced, [frame])
        else:
            self._queued.append(frame)
            if not self._busy:
                self._begin()
        return waiting

    def _begin(self) -> None:
        self._busy = True
        self.groups += 1
        group, self._queued = list(self._queued), deque()
        asyncio.get_running_loop().call_later(self._sync_s, self._synced, group)

    def _synced(
        self, group: list[tuple[asyncio.Future[LogAddress], asyncio.Future[LogAddress]]]
    ) -> None:
        for inner, waiting in group:
            waiting.set_result(inner.result())
        self._busy = False
        if self._queued:
            self._begin()
        self.settle()


class Store(NamedTuple):
    processor: OperationProcessor
    log: TimedLog
    segment_id: int
    packings: list[int]
    """One for each time that the processor began to pack: it asks for the throttle then."""

    async def timed_append(self) -> float:
        """Seconds that an append takes."""
        begun = asyncio.get_running_loop().time()
        await self.processor.append(self.segment_id, bytes(100))
        return asyncio.get_running_loop().time() - begun


async def opened(sync_s: float, *, parallel: bool = False) -> Store:
    log = TimedLog(sync_s, parallel=parallel)
    await log.open()
    packings: list[int] = []

    def throttle(on_its_way: int) -> Throttle:
        packings.append(on_its_way)
        return NO_THROTTLE

    processor = OperationProcessor(
        log=log,
        updater=MetadataUpdater(ContainerMetadata(0)),
        positions=LogPositions(),
        config=ProcessorConfig(
            queue_bytes_max=1 << 24,
            in_flight_bytes_max=1 << 24,
            checkpoint_operations=1 << 30,
            checkpoint_bytes=1 << 40,
        ),
        clock=LoopClock(),
        on_commit=lambda _operations: None,
        on_failure=lambda _error: None,
        throttle=throttle,
    )
    log.settle, log.on_settled = log.on_settled, lambda: None
    await processor.checkpoint()
    segment_id = int(str(await processor.submit(CreateOperation("one"))))
    return Store(processor, log, segment_id, packings)


class Came(NamedTuple):
    groups_per_s: float
    p50_s: float
    longest_s: float


async def open_loop(store: Store, burst: int, interval_s: float, seconds: float = 0.5) -> Came:
    """What comes of `burst` appends each `interval_s`, in the second half of the time."""
    loop = asyncio.get_running_loop()
    appends: list[asyncio.Task[float]] = []
    warm = groups = 0
    count = round(seconds / interval_s)
    begun = loop.time()
    for number in range(count):
        if number == count // 2:
            warm, groups = len(appends), store.log.groups
        appends += [asyncio.ensure_future(store.timed_append()) for _ in range(burst)]
        await asyncio.sleep(begun + (number + 1) * interval_s - loop.time())
    groups = store.log.groups - groups
    taken = sorted((await asyncio.gather(*appends))[warm:])
    return Came(groups / (seconds / 2), taken[len(taken) // 2], taken[-1])


async def closed_loop(store: Store, callers: int, appends_each: int) -> float:
    """Seconds that the appends of callers take that wait for each."""

    async def call() -> None:
        for _ in range(appends_each):
            await store.timed_append()

    begun = asyncio.get_running_loop().time()
    await asyncio.gather(*(call() for _ in range(callers)))
    return asyncio.get_running_loop().time() - begun


@pytest.mark.parametrize(
    ("burst", "interval_s", "groups_max"),
    [(1, 0.1 * MS, 1 / (SYNCS_MAX * FILE_S)), (10, MS, 1000), (100, 10 * MS, 100)],
)
def test_on_a_file_log_ten_thousand_a_second_are_few_groups(
    burst: int, interval_s: float, groups_max: float
) -> None:
    async def scenario() -> None:
        came = await open_loop(await opened(FILE_S), burst, interval_s)
        # Without holds there are 2,496, 2,000 and 200 of them, and p50 is 1.0, 0.8 and 0.8 ms.
        assert came.groups_per_s <= 1.02 * groups_max
        assert came.p50_s <= 3 * FILE_S + 0.000_01
        assert came.longest_s <= HOLD_MAX_S + 2 * FILE_S

    run_virtual(scenario())


@pytest.mark.parametrize("sync_s", [FAST_S, 0.15 * MS, 0.1 * MS])
def test_on_a_fast_log_a_group_counts_with_what_it_costs_beside_its_sync(sync_s: float) -> None:
    """Though each append comes right behind an acknowledgement, as a reply to it would."""

    async def scenario() -> None:
        came = await open_loop(await opened(sync_s), 1, 0.1 * MS)
        # It would be 4,500 to 10,000 if its sync alone counted.
        assert came.groups_per_s <= 1.1 / (3 * GROUP_S)
        assert came.p50_s <= 2 * GROUP_S + sync_s
        assert came.longest_s <= HOLD_MAX_S

    run_virtual(scenario())


@pytest.mark.parametrize(("burst", "interval_s"), [(2, MS), (10, MS), (30, 3 * MS), (100, 10 * MS)])
def test_bursts_that_find_an_idle_log_wait_for_no_others(burst: int, interval_s: float) -> None:
    async def scenario() -> None:
        came = await open_loop(await opened(FILE_S), burst, interval_s)
        assert came.groups_per_s <= 1.02 / interval_s
        assert came.longest_s <= FILE_S + 0.000_01

    run_virtual(scenario())


@pytest.mark.parametrize(("burst", "interval_s"), [(1, 0.1 * MS), (10, MS), (100, 10 * MS)])
def test_on_a_pipeline_ten_thousand_a_second_are_few_groups(burst: int, interval_s: float) -> None:
    async def scenario() -> None:
        came = await open_loop(await opened(PIPELINE_S, parallel=True), burst, interval_s)
        assert came.groups_per_s <= 1.02 * 2 / PIPELINE_S
        assert came.p50_s <= 1.5 * PIPELINE_S
        assert came.longest_s <= HOLD_MAX_S + 2 * PIPELINE_S

    run_virtual(scenario())


@pytest.mark.parametrize("callers", [1, 2, 3, 16, 40, 1000])
@pytest.mark.parametrize("parallel", [False, True])
def test_callers_that_wait_for_their_appends_wait_for_syncs_alone(
    callers: int, parallel: bool
) -> None:
    async def scenario() -> None:
        store = await opened(FILE_S, parallel=parallel)
        # The first is shipped at once, the others gather behind it.
        ways = 1 if callers == 1 else 2
        each = 100 if callers < 100 else 10
        assert await closed_loop(store, callers, each) <= (each * ways + 1) * FILE_S + 0.001

    run_virtual(scenario())


def test_callers_after_a_load_of_others_wait_for_syncs_alone_soon() -> None:
    async def scenario() -> None:
        store = await opened(FILE_S)
        await open_loop(store, 1, 0.1 * MS)
        before = await closed_loop(store, 1, 4)
        assert await closed_loop(store, 1, 200) <= 200 * FILE_S + 0.000_1
        assert before <= 4 * (FILE_S + HOLD_MAX_S)

    run_virtual(scenario())


def test_a_burst_is_one_group_though_its_calls_take_time() -> None:
    async def scenario() -> None:
        store, loop = await opened(FILE_S), asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        groups: list[int] = []
        for _ in range(20):
            before, appends = store.log.groups, list[asyncio.Future[int | None]]()
            for _ in range(30):
                appends.append(store.processor.append(store.segment_id, bytes(100)))
                loop.virtual_time.now_us += 20
            await asyncio.gather(*appends)
            groups.append(store.log.groups - before)
            await asyncio.sleep(10 * MS)
        assert groups == [2] + [1] * 19, "the first one goes alone, for nothing is known by then"

    run_virtual(scenario())


def test_few_appends_behind_two_frames_are_packed_when_one_is_durable() -> None:
    async def scenario() -> None:
        store = await opened(FILE_S)
        appends = []
        for _ in range(22):
            appends.append(store.processor.append(store.segment_id, bytes(100)))
            await asyncio.sleep(0)
        before = len(store.packings)
        await asyncio.gather(*appends)
        assert before == 2 + 1, "the segment's creation, and a frame each"
        assert len(store.packings) == before + 1

    run_virtual(scenario())


def test_many_appends_behind_two_frames_are_packed_meanwhile() -> None:
    async def scenario() -> None:
        store = await opened(FILE_S)
        appends = []
        for _ in range(22):
            appends += [store.processor.append(store.segment_id, bytes(100)) for _ in range(50)]
            await asyncio.sleep(0)
        assert len(store.packings) >= 22, "they are packed while a sync takes its time"
        await asyncio.gather(*appends)

    run_virtual(scenario())


class Frames:
    """Frames of three appends each 0.1 ms, on a log that has them in 0.05 ms."""

    def __init__(self) -> None:
        self.pace = GroupPace()
        self.now = 1.0

    def until_a_hold(self) -> int:
        """How many go, each with an arrival that may be a reply, until the next one waits."""
        for count in itertools.count(1):
            self.now += 0.1 * MS
            self.pace.acknowledged(self.now, self.now - 0.05 * MS, 3)
            self.pace.arrived(self.now)
            if self.pace.shipped(self.now, 3):
                return count
        raise AssertionError

    def hold(self, late_s: float) -> float:
        """An append comes in a hold of its own accord, which ends so late; the next hold."""
        self.now += MS + late_s
        self.pace.arrived(self.now)
        self.pace.held(late_s)
        return self.pace.shipped(self.now, 10)


def test_a_frame_waits_to_see_whether_replies_come_to_an_end_less_and_less_often() -> None:
    frames = Frames()
    waited = [frames.until_a_hold() for _ in range(12)]
    assert waited == [min(PROBE_MIN << number, PROBE_MAX) for number in range(12)]


def test_a_hold_that_ends_late_is_the_last() -> None:
    frames = Frames()
    assert frames.until_a_hold() == PROBE_MIN
    assert frames.hold(0.0) > 0
    assert frames.hold(LATE_S) > 0
    assert frames.hold(2 * LATE_S) == 0
    assert frames.until_a_hold() == 2 * PROBE_MIN - 3, "three have arrived in the holds"


def test_behind_a_steady_load_a_frame_soon_waits_again() -> None:
    frames = Frames()
    for number in range(3):
        assert frames.until_a_hold() == PROBE_MIN << number
    for _ in range(STEADY):
        assert frames.hold(0.0) > 0
    assert frames.hold(2 * LATE_S) == 0
    assert frames.until_a_hold() == PROBE_MIN - STEADY - 1


def test_a_lull_behind_a_steady_load_makes_the_next_frame_wait_no_later() -> None:
    frames = Frames()
    for _ in range(5):
        frames.until_a_hold()
        for _ in range(STEADY):
            assert frames.hold(0.0) > 0
        frames.pace.held(0.0)
        frames.now += MS
        assert frames.pace.shipped(frames.now, 10) == 0, "nothing has come in this hold"
    assert frames.until_a_hold() == PROBE_MIN - STEADY


@pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, new_uvloop])
@pytest.mark.parametrize("hold_s", [0.000_1, 0.000_45, 0.000_9, HOLD_MAX_S])
def test_holds_of_all_lengths_pass_on_all_loops(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    hold_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On uvloop an acknowledgement within a short one stopped the container: it has no timers below
    half a millisecond.
    """
    monkeypatch.setattr(GroupPace, "shipped", lambda *_: hold_s)

    async def scenario() -> None:
        over = asyncio.Event()

        def pass_over() -> None:
            holds.end()
            over.set()

        holds = GroupHolds(pass_over, lambda: 0)
        holds.shipped(1, may_hold=True)
        assert holds.in_progress
        holds.acknowledged(asyncio.get_running_loop().time(), 1)
        await over.wait()
        assert not holds.in_progress

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
