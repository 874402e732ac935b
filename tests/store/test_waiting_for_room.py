"""`SegmentStore.room`: a caller that waits for it is not refused, whatever waits already."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from durablelog.frame_requests import REQUEST_BYTES
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    InvalidArgumentError,
    InvalidNameError,
    SegmentNotFoundError,
    SegmentStore,
    TierUnavailableError,
)
from segmentstore.container.segment_waiters import WaitingAppend
from segmentstore.contracts.runtime import Runtime
from tests.durablelog.test_operation_processor import Bench
from tests.store.harness import WorldDisk, attribute, open_tiny, read_all, run
from tests.store.test_idle_segments import FEW, made, make_idle

FULL: dict[str, Any] = {"queue_bytes_max": 5000}


async def append_with_room(store: SegmentStore, name: str, data: bytes, turns: list[int]) -> int:
    room = store.room(name, len(data))
    if room is not None:
        await room
    turns.append(len(turns))
    return await store.append(name, data)


def test_none_is_refused_and_the_first_go_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FULL) as store:
            await store.create_segment("x")
            pieces = [b"%03d" % number * 33 for number in range(100)]
            refused = await asyncio.gather(
                *(store.append("x", piece) for piece in pieces), return_exceptions=True
            )
            assert any(isinstance(outcome, TierUnavailableError) for outcome in refused)
            begin = (await store.get_info("x")).length
            turns: list[int] = []
            offsets = await asyncio.gather(
                *(append_with_room(store, "x", piece, turns) for piece in pieces)
            )
            assert offsets == [begin + 99 * number for number in range(100)]
            assert (await read_all(store, "x"))[begin:] == b"".join(pieces)

    run(main())


def test_an_append_in_a_callback_finds_the_room_it_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FULL) as store:
            await store.create_segment("x")
            writer = store.block_writer("x", attribute(1), attribute(2))
            sent = [writer.append(bytes(90), n + 1, n or -(2**63), 1) for n in range(16)]
            number = 17

            def resume(_room: object) -> None:
                nonlocal number
                sent.append(writer.append(bytes(90), number, number - 1, 1))
                number += 1

            for _ in range(40):
                room = writer.room(90)
                assert room is not None
                room.add_done_callback(resume)
            while number < 57:  # noqa: ASYNC110 - callbacks have no event
                await asyncio.sleep(0)
            assert await asyncio.gather(*sent) == [90 * n for n in range(56)]

    run(main())


def test_appends_to_idle_segments_wait_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FEW, **FULL) as store:
            await made(store)
            await make_idle(store, "s001", "s002")
            turns: list[int] = []
            names = ["s001", "s002"] * 30
            outcomes = await asyncio.gather(
                *(append_with_room(store, name, b"%03d" % 7 * 33, turns) for name in names)
            )
            assert sorted(outcomes) == sorted(99 * number for number in range(30) for _ in "ab")
            assert turns == list(range(60))

    run(main())


def test_appends_that_find_no_segment_give_their_room_back() -> None:
    async def scenario() -> None:
        bench = Bench(queue_bytes_max=600)
        segment_id = await bench.start()
        queue = bench.processor
        future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def ended(_size: int) -> None:
            queue.room.held_elsewhere = 0

        request = (-1, bytes(500), future, None, None, None)
        waiting = WaitingAppend(queue, "idle?", request, ended, deferred=False)
        queue.room.held_elsewhere = 500 + REQUEST_BYTES
        room = queue.room.request(10)
        assert room is not None
        # There is none of its name: nothing comes into the queue that would wake others.
        waiting.resolve(None, [])
        await room
        assert await queue.append(segment_id, b"there") == 0
        with pytest.raises(SegmentNotFoundError):
            await future

    run_virtual(scenario())


def test_one_that_waits_for_no_room_does_not_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_tiny(tmp_path / "s", **FULL) as store:
            await store.create_segment("x")
            held = [store.append("x", bytes(90)) for _ in range(16)]
            # These are refused, and not for want of room.
            assert store.room("x", store.config.append_bytes_max + 1) is None
            for length in (-1, 1.5):
                with pytest.raises(InvalidArgumentError):
                    store.room("x", length)  # type: ignore[arg-type]
            with pytest.raises(InvalidNameError):
                store.room("", 1)
            await asyncio.gather(*held, return_exceptions=True)
            assert store.room("x", 4096) is None

    run(main())


@pytest.mark.parametrize("failing", [False, True])
def test_the_end_of_the_container_wakes_all_who_wait(tmp_path: Path, failing: bool) -> None:
    async def main() -> None:
        disk = WorldDisk()
        sizes = {**FULL, "unflushed_bytes_max": 1000, "containers": 1}
        store = await open_tiny(tmp_path / "s", runtime=Runtime(disk=disk), **sizes)
        await store.create_segment("x")
        disk.tier2_away()
        await store.append("x", bytes(900))
        # Held back by what Tier 2 does not take.
        held = [store.append("x", bytes(90)) for _ in range(16)]
        waiting = [store.room("x", 90) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert not any(room is None or room.done() for room in waiting)
        if failing:
            disk.log_sync_fails()
            with pytest.raises(AppendOutcomeUnknownError):
                await store.checkpoint()
        else:
            await store.close()
        for room in waiting:
            assert room is not None
            with pytest.raises(ContainerStoppedError):
                await room
        assert store.room("x", 90) is None
        with pytest.raises(ContainerStoppedError):
            await store.append("x", bytes(90))
        await asyncio.gather(*held, return_exceptions=True)
        disk.heal()
        await store.close()

    run(main())
