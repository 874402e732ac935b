"""How long after an append is acknowledged a reader who follows the tail has its bytes.

1,000 appends a second, open loop. An append is due by the clock, whether or not those before it are
done, so a stall is charged to all that were due in it. (So is the loop's timer, which rounds up to
the next millisecond: the acknowledged and end-to-end figures carry about 0.5 ms of it, the delay
does not.) Delay = reader has the bytes - writer has the acknowledgement; it is negative where the
reader came first.

Floor: waking a task that waits for a future on an otherwise idle loop. Skeleton: a task woken on
each durable batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench import rounds
from bench.child import Measured
from bench.engine import SEGMENT, Store, open_store
from bench.loads import percentile
from bench.report import CaseResult, Row, Samples, extras_of
from bench.skeleton import Skeleton

QUESTION = "tail reader at 1,000 appends/s, 100 B: delay behind the acknowledgement"
APPENDS_PER_S = 1000
APPEND_BYTES = 100
DELAY_MS = 0.2


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 10 s quick, 35 s else."""
    measured = rounds.interleaved(
        __name__, rounds.count_of(quick=quick), directory, appends=1500 if quick else 5000
    )
    engine = Samples.of(measured["engine"])
    row = Row(
        name="p50 of delay",
        unit="ms",
        floor=Samples.of(measured["floor"]),
        skeleton=Samples.of(measured["skeleton"]),
        engine=engine,
        bar=f"≤ {DELAY_MS} ms",
        met=engine.median <= DELAY_MS,
        extra=extras_of(measured["engine"]),
    )
    return CaseResult(case="tail_reader", question=QUESTION, rows=[row])


class TailTimeline:
    """When each append of a fixed size was called, acknowledged, and read."""

    def __init__(self, appends: int, append_bytes: int) -> None:
        self._append_bytes = append_bytes
        self.due = [0.0] * appends
        self.acknowledged = [0.0] * appends
        self.read: list[float] = []

    def read_up_to(self, end_offset: int) -> None:
        """The reader has all bytes below `end_offset` now."""
        now = time.perf_counter()
        self.read += [now] * (end_offset // self._append_bytes - len(self.read))

    def summary(self) -> Measured:
        """p50 of the delay as `value`, and what lies around it; milliseconds."""
        delay = sorted(read - done for read, done in zip(self.read, self.acknowledged, strict=True))
        wait = sorted(done - due for done, due in zip(self.acknowledged, self.due, strict=True))
        whole = sorted(read - due for read, due in zip(self.read, self.due, strict=True))
        return {
            "value": percentile(delay, 0.5) * 1e3,
            "delay_p99_ms": percentile(delay, 0.99) * 1e3,
            "acknowledged_p50_ms": percentile(wait, 0.5) * 1e3,
            "acknowledged_p99_ms": percentile(wait, 0.99) * 1e3,
            "end_to_end_p50_ms": percentile(whole, 0.5) * 1e3,
            "end_to_end_p99_ms": percentile(whole, 0.99) * 1e3,
        }


async def append_at_rate(
    append: Callable[[], Awaitable[object]], timeline: TailTimeline, per_second: float
) -> None:
    """Append as often as `timeline` has places, `per_second` by the clock; all acknowledged when it
    returns.
    """

    async def acknowledge(index: int, appended: Awaitable[object]) -> None:
        await appended
        timeline.acknowledged[index] = time.perf_counter()

    async with asyncio.TaskGroup() as waiting:
        begun = time.perf_counter()
        for index in range(len(timeline.due)):
            due = begun + index / per_second
            # Returns at once when late: the appends that are overdue go out together, each with its
            # own due time.
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            timeline.due[index] = due
            waiting.create_task(acknowledge(index, append()))


async def follow_at_rate(store: Store, name: str, appends: int, per_second: float) -> Measured:
    """Append to an empty segment `per_second` times by the clock, beside a follower of it."""
    timeline = TailTimeline(appends, APPEND_BYTES)
    data = bytes(APPEND_BYTES)

    async def follow() -> None:
        offset = 0
        async for chunk in store.reader(name, offset=0, follow=True):
            offset += len(chunk)
            timeline.read_up_to(offset)
            if offset >= appends * APPEND_BYTES:
                return

    follower = asyncio.create_task(follow())
    await append_at_rate(lambda: store.append(name, data), timeline, per_second)
    await follower
    return timeline.summary()


def floor_round(directory: str, appends: int) -> Measured:
    """Milliseconds from resolving a future to the task that awaits it."""
    del directory

    async def measure() -> Measured:
        loop = asyncio.get_running_loop()
        delays = []
        for _ in range(appends):
            future: asyncio.Future[float] = loop.create_future()
            loop.call_soon(lambda waiting: waiting.set_result(time.perf_counter()), future)
            resolved = await future
            delays.append(time.perf_counter() - resolved)
        return {"value": percentile(sorted(delays), 0.5) * 1e3}

    return asyncio.run(measure())


def skeleton_round(directory: str, appends: int) -> Measured:
    """Delay behind the acknowledgement of a task that each durable batch wakes."""

    async def measure() -> Measured:
        timeline = TailTimeline(appends, APPEND_BYTES)
        committed: asyncio.Queue[Sequence[bytes]] = asyncio.Queue()
        skeleton = Skeleton(Path(directory) / "skeleton", on_commit=committed.put_nowait)
        data = bytes(APPEND_BYTES)

        async def follow() -> None:
            offset = 0
            while offset < appends * APPEND_BYTES:
                offset += sum(map(len, await committed.get()))
                timeline.read_up_to(offset)

        follower = asyncio.create_task(follow())
        await append_at_rate(lambda: skeleton.append(data), timeline, APPENDS_PER_S)
        await follower
        await skeleton.close()
        return timeline.summary()

    return asyncio.run(measure())


def engine_round(directory: str, appends: int) -> Measured:
    """Delay behind the acknowledgement of `store.reader(follow=True)`."""

    async def measure() -> Measured:
        async with open_store(Path(directory) / "store") as store:
            await store.create_segment(SEGMENT)
            return await follow_at_rate(store, SEGMENT, appends, APPENDS_PER_S)

    return asyncio.run(measure())


if __name__ == "__main__":
    from bench.suite import main

    main("tail_reader")
