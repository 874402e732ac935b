"""Waiting for room in the queue of a container: first come, first served, and never refused.

Also what waits for nothing but what was accepted (`OperationProcessor.settled`).
"""

from __future__ import annotations

import asyncio

import pytest

from durablelog.operations import AppendOperation
from durablelog.queue_room import QueueRoom
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    TierUnavailableError,
)
from tests.durablelog.test_operation_processor import FULL, NO_THROTTLE, Bench, outcomes


class Queue:
    """A bounded queue of nothing but a count."""

    def __init__(self, bytes_max: int) -> None:
        self.room = QueueRoom(bytes_max)
        self.turns: list[str] = []
        self.free_in_turn: list[int] = []

    @property
    def free(self) -> int:
        """The largest append that is taken now, if no append waits."""
        return self.room._free()

    def ask(self, name: str, size: int) -> None:
        """Ask for room there is none of, and note the turn."""
        future = self.room.request(size)
        assert future is not None
        future.add_done_callback(lambda _: self._turn(name))

    def _turn(self, name: str) -> None:
        self.turns.append(name)
        self.free_in_turn.append(self.free)

    async def leaves(self, count: int) -> None:
        self.room.note_left(self.room.left + count)
        self.room.grant()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


def test_room_that_is_there_is_not_waited_for() -> None:
    async def scenario() -> None:
        queue = Queue(1000)
        assert queue.room.request(1000) is None
        assert queue.room.request(0) is None
        assert queue.room.request(1001) is not None

    run_virtual(scenario())


def test_a_small_one_does_not_overtake_a_large_one() -> None:
    async def scenario() -> None:
        queue = Queue(0)
        queue.ask("large", 900)
        queue.ask("small", 1)
        await queue.leaves(500)
        assert queue.turns == []
        # There is room for it, but it comes later.
        assert queue.room.request(1) is not None
        await queue.leaves(400)
        assert queue.turns == ["large"]
        await queue.leaves(1)
        assert queue.turns == ["large", "small"]

    run_virtual(scenario())


def test_room_is_reserved_from_the_grant_to_the_turn() -> None:
    async def scenario() -> None:
        queue = Queue(0)
        queue.ask("one", 100)
        queue.room.note_left(100)
        queue.room.grant()
        # Nothing is free for others, until it is the turn of the one that waited.
        assert queue.free < 0
        assert queue.room.request(0) is not None
        await asyncio.sleep(0)
        assert queue.free_in_turn == [100]

    run_virtual(scenario())


def test_a_grant_that_is_not_used_passes_to_the_next() -> None:
    async def scenario() -> None:
        queue = Queue(0)
        for name in "abc":
            queue.ask(name, 100)
        # None of them puts anything into the queue.
        await queue.leaves(100)
        for _ in range(9):
            await asyncio.sleep(0)
        assert queue.turns == ["a", "b", "c"]
        assert queue.free == 100

    run_virtual(scenario())


@pytest.mark.parametrize("granted", [False, True])
def test_one_that_gives_up_lets_the_others_go_on(granted: bool) -> None:
    async def scenario() -> None:
        queue = Queue(0)
        first, second = asyncio.Event(), asyncio.Event()

        async def wait(size: int, event: asyncio.Event) -> None:
            future = queue.room.request(size)
            assert future is not None
            await future
            event.set()

        task = asyncio.ensure_future(wait(900, first))
        other = asyncio.ensure_future(wait(100, second))
        await asyncio.sleep(0)
        queue.room.note_left(900 if granted else 100)
        if granted:
            queue.room.grant()
        task.cancel()
        await other
        assert (first.is_set(), second.is_set()) == (False, True)
        await asyncio.sleep(0)
        assert queue.free == (900 if granted else 100)

    run_virtual(scenario())


def test_appends_that_wait_for_room_are_never_refused_and_keep_their_order() -> None:
    async def scenario() -> None:
        bench = Bench(queue_bytes_max=600)
        segment_id = await bench.start()
        turns: list[int] = []

        async def write(number: int) -> int | None:
            room = bench.processor.room.request(100)
            if room is not None:
                await room
            future = bench.processor.append(segment_id, bytes([number]) * 100)
            turns.append(number)
            return await future

        offsets = await asyncio.gather(*(write(number) for number in range(120)))
        assert offsets == [100 * number for number in range(120)]
        assert turns == list(range(120))
        assert bench.processor.statistics().queue_bytes == 0
        assert bench.processor.room.request(600) is None

    run_virtual(scenario())


def test_writers_that_wait_take_turns_whatever_they_send() -> None:
    async def scenario() -> None:
        bench = Bench(queue_bytes_max=1500, frame=1000)
        segment_id = await bench.start()
        turns = ""
        sent: list[asyncio.Future[int | None]] = []

        async def write(name: str, size: int) -> None:
            nonlocal turns
            for _ in range(20):
                room = bench.processor.room.request(size)
                if room is not None:
                    await room
                    turns += name
                # As a server: it does not wait for the outcome.
                sent.append(bench.processor.append(segment_id, bytes(size)))

        await asyncio.gather(write("M", 900), write("l", 1))
        assert turns.count("M") > 5
        assert "ll" not in turns[: turns.rindex("M")]
        assert all(isinstance(outcome, int) for outcome in await outcomes(sent))

    run_virtual(scenario())


def test_a_caller_that_does_not_wait_takes_no_room_of_one_that_does() -> None:
    async def scenario() -> None:
        bench = Bench(queue_bytes_max=600)
        segment_id = await bench.start()
        full = [bench.processor.append(segment_id, bytes(190)) for _ in range(2)]
        room = bench.processor.room.request(190)
        assert room is not None
        direct: list[asyncio.Future[int | None]] = []

        def press(_ended: object) -> None:
            """Whenever something has left the queue."""
            direct.extend(bench.processor.append(segment_id, bytes(190)) for _ in range(3))

        for future in full:
            future.add_done_callback(press)
        await room
        assert isinstance(await bench.processor.append(segment_id, bytes(190)), int)
        assert await outcomes(full) == [0, 190]
        refused = [isinstance(each, TierUnavailableError) for each in await outcomes(direct)]
        assert any(refused)

    run_virtual(scenario())


def test_a_throttle_that_eases_gives_room() -> None:
    async def scenario() -> None:
        now = [NO_THROTTLE]
        bench = Bench(throttle=lambda _on_its_way: now[0], queue_bytes_max=900)
        segment_id = await bench.start()
        now[0] = FULL
        held = [bench.processor.append(segment_id, bytes(190)) for _ in range(2)]
        room = bench.processor.room.request(190)
        assert room is not None
        await asyncio.sleep(10)
        assert not room.done()
        now[0] = NO_THROTTLE
        await room
        assert await bench.processor.append(segment_id, bytes(190)) == 380
        assert await outcomes(held) == [0, 190]

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (None, ContainerStoppedError),
        (OSError("broken"), ContainerStoppedError),
        (NotPrimaryError(0, "fenced"), NotPrimaryError),
    ],
)
def test_all_who_wait_get_why_the_container_stops(
    failure: Exception | None, expected: type[Exception]
) -> None:
    async def scenario() -> None:
        bench = Bench(queue_bytes_max=600)
        segment_id = await bench.start()
        futures = [bench.processor.append(segment_id, bytes(190)) for _ in range(2)]
        waiting = [bench.processor.room.request(190) for _ in range(3)]
        if failure is None:
            await bench.processor.close()
        else:
            bench.processor.fail(failure)
        for room in waiting:
            assert room is not None
            with pytest.raises(expected):
                await room
        # What comes now need not wait to be refused.
        assert bench.processor.room.request(10_000) is None
        with pytest.raises(expected):
            await bench.processor.append(segment_id, b"")
        await outcomes(futures)

    run_virtual(scenario())


# --- what was accepted ----------------------------------------------------------------------------


def test_settled_waits_for_what_was_accepted_and_logs_nothing() -> None:
    async def scenario() -> None:
        bench = Bench()
        segment_id = await bench.start()
        order: list[str] = []
        append = bench.processor.append(segment_id, b"in flight")
        append.add_done_callback(lambda _: order.append("append"))
        settled = bench.processor.settled()
        settled.add_done_callback(lambda _: order.append("settled"))
        await settled
        assert order == ["append", "settled"]
        await bench.processor.settled()
        kinds = [type(operation) for operation in bench.committed]
        assert kinds.count(AppendOperation) == 1
        assert bench.logged() == bench.committed

    run_virtual(scenario())


def test_what_was_accepted_and_failed_is_not_settled() -> None:
    async def scenario() -> None:
        bench = Bench()
        segment_id = await bench.start()
        bench.store.fail_append_after(0, keep=True)
        append = bench.processor.append(segment_id, b"in flight")
        settled = bench.processor.settled()
        with pytest.raises(AppendOutcomeUnknownError):
            await append
        for future in (settled, bench.processor.settled()):
            with pytest.raises(ContainerStoppedError):
                await future

    run_virtual(scenario())
