"""Where Tier 2 is the limit, callers go on at its rate: a whole store in virtual time."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.slow_link import SlowLink
from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.simulation.virtual_loop import inline_executor, run_virtual
from segmentstore import SegmentStore
from segmentstore.contracts.runtime import Runtime
from segmentstore.open_steps import open_store
from tests.support.slow_storage import LinkedTier2

KIB = 1024
BOUND = 2048 * KIB
RATE = 100_000
OPTIONS: dict[str, Any] = {
    "tier1": "memory",
    "frame_bytes_max": 16 * KIB,
    "in_flight_bytes_max": 32 * KIB,
    "unflushed_bytes_max": BOUND,
    "flush_bytes": 128 * KIB,
    "object_bytes": 128 * KIB,
    "upload_bytes_max": 512 * KIB,
    "uploads_max": 4,
    "unflushed_target_bytes": 256 * KIB,
    "consolidation": False,
    "mailbox_poll_interval_s": 0.0,
}


class Load:
    """Callers that append to segments in turn, each as soon as its append before is durable."""

    def __init__(self, store: SegmentStore, segments: int, append_bytes: int) -> None:
        self._store = store
        self._segments = segments
        self._data = bytes(append_bytes)
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self.bytes_in: Counter[int] = Counter()
        """By second."""
        self.waits: dict[float, float] = {}
        """Of each append, by when it was called, about."""
        self.most = 0
        """Un-flushed bytes of a container."""

    async def run(self, callers: int, seconds: float) -> None:
        for number in range(self._segments):
            await self._store.create_segment(f"s{number}")
        await asyncio.gather(*(self._call(number, seconds) for number in range(callers)))

    async def _call(self, number: int, seconds: float) -> None:
        writers = [each._writer for each in self._store._parts.containers]
        while (called := self._loop.time()) - self._begun < seconds:
            await self._store.append(f"s{number % self._segments}", self._data)
            now = self._loop.time()
            self.bytes_in[int(now - self._begun)] += len(self._data)
            self.waits[called - self._begun + 1e-6 * len(self.waits)] = now - called
            self.most = max(self.most, *(writer.unflushed_bytes for writer in writers))

    def rates(self, first: int, last: int) -> list[float]:
        """Bytes of each of these seconds."""
        return [float(self.bytes_in[second]) for second in range(first, last)]

    def waits_of(self, first: float, last: float) -> list[float]:
        """Of the appends called meanwhile, sorted."""
        return sorted(wait for called, wait in self.waits.items() if first <= called < last)


async def opened(folder: Path, link: SlowLink, **options: Any) -> SegmentStore:
    runtime = Runtime(executor=inline_executor)
    every = {**OPTIONS, **options}
    return SegmentStore(await open_store(str(folder / "s"), every, {}, runtime, LinkedTier2(link)))


def assert_level(rates: Sequence[float], rate: float, share: float = 0.2) -> None:
    assert sum(rates) / len(rates) == pytest.approx(rate, rel=0.05)
    assert rate * (1 - share) <= min(rates), rates
    assert max(rates) <= rate * (1 + share), rates


@pytest.mark.parametrize(
    ("segments", "callers", "append_bytes"),
    [(1, 1, 1000), (1, 20, 1000), (40, 120, 1000)],
    ids=["one caller", "one segment", "many segments"],
)
def test_the_rate_is_level_and_no_caller_waits_much_longer_than_others(
    tmp_path: Path, segments: int, callers: int, append_bytes: int
) -> None:
    """2 k/s, then 45 k/s after each object: callers were held until one was through."""

    async def main() -> None:
        store = await opened(tmp_path, SlowLink(RATE))
        load = Load(store, segments, append_bytes)
        await load.run(callers, 50)
        assert_level(load.rates(15, 50), RATE)
        waits = load.waits_of(15, 49)
        assert waits[int(0.99 * len(waits))] <= 4 * waits[len(waits) // 2]
        assert load.most <= BOUND
        await store.close()

    run_virtual(main())


def test_appends_go_at_once_while_the_buffer_has_room(tmp_path: Path) -> None:
    async def main() -> None:
        link = SlowLink(RATE)
        store = await opened(tmp_path, link)
        link.bytes_per_s = 0
        load = Load(store, 1, 1000)
        await load.run(1, 0.5)
        waits = load.waits_of(0, 1)
        free = int(0.7 * BOUND / 1000)
        assert len(waits) > free
        assert waits[free] < 0.001
        link.bytes_per_s = RATE
        await store.close()

    run_virtual(main())


def test_a_tier2_that_slows_down_stops_and_resumes_sets_the_pace_each_time(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        link = SlowLink(RATE)
        store = await opened(tmp_path, link)
        load = Load(store, 4, 1000)
        running = asyncio.ensure_future(load.run(40, 370))
        await asyncio.sleep(40)
        # Four objects of 128 KiB each are on their way together.
        link.bytes_per_s = RATE / 4
        await asyncio.sleep(160)
        assert_level(load.rates(120, 200), RATE / 4, 0.3)
        link.bytes_per_s = 0
        await asyncio.sleep(60)
        assert sum(load.rates(230, 260)) < 30 * RATE / 40, "what is left of the room"
        link.bytes_per_s = RATE
        await asyncio.sleep(60)
        assert_level(load.rates(290, 320), RATE)
        link.bytes_per_s = 4 * RATE
        await running
        assert_level(load.rates(345, 370), 4 * RATE)
        assert load.most <= BOUND
        await store.close()

    run_virtual(main())


def test_containers_that_share_tier2_each_measure_their_part_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        store = await opened(tmp_path, SlowLink(RATE), containers=3, uploads_max=1)
        load = Load(store, 12, 500)
        await load.run(120, 60)
        assert_level(load.rates(25, 60), RATE)
        assert load.most <= BOUND
        await store.close()

    run_virtual(main())


def test_a_first_object_that_never_ends_leaves_the_rest_of_the_room_to_callers(
    tmp_path: Path,
) -> None:
    """No drain was measured yet: less and less is admitted, and never nothing."""

    async def main() -> None:
        link = SlowLink(RATE)
        store = await opened(tmp_path, link)
        link.bytes_per_s = 0
        load = Load(store, 1, 100)
        running = asyncio.ensure_future(load.run(4, 300))
        await asyncio.sleep(299)
        seconds = load.rates(10, 299)
        assert all(sum(seconds[first : first + 30]) for first in range(0, 120, 30))
        assert load.most <= 0.876 * BOUND
        link.bytes_per_s = RATE
        await running
        await store.flush()
        await store.close()

    run_virtual(main())


def test_where_the_archive_is_the_limit_callers_go_on_at_its_rate(tmp_path: Path) -> None:
    async def main() -> None:
        store = await opened(
            tmp_path,
            SlowLink(100 * RATE),
            tier1="file",
            log_file_bytes=128 * KIB,
            archive=tmp_path / "archive",
            archive_bytes_per_s=RATE,
            archive_deletion_lag_s=0.0,
            offload_above_bytes=BOUND // 4,
        )
        load = Load(store, 4, 2000)
        await load.run(40, 45)
        rates = load.rates(20, 45)
        mean = sum(rates) / len(rates)
        # Parts have the headers of operations and frames, too.
        assert 0.75 * RATE < mean <= RATE
        assert_level(rates, mean)
        waits = load.waits_of(20, 44)
        assert waits[int(0.99 * len(waits))] <= 4 * waits[len(waits) // 2]
        archive = store.stats()["containers"][0]["archive"]
        assert BOUND / 4 < archive["unarchived_bytes"] <= BOUND
        await store.close()

    run_virtual(main())


def test_callers_that_are_cancelled_leave_their_place_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        store = await opened(tmp_path, SlowLink(RATE))
        load = Load(store, 1, 1000)
        running = asyncio.ensure_future(load.run(20, 40))
        await asyncio.sleep(20)
        loop = asyncio.get_running_loop()
        length = (await store.get_info("s0")).length
        left = [store.append("s0", os.urandom(1000)) for _ in range(1000)]
        await asyncio.sleep(0.01)
        for future in left:
            future.cancel()
        begun = loop.time()
        await store.append("s0", b"mine")
        assert loop.time() - begun < 1, "ten seconds of others were before it"
        grown = (await store.get_info("s0")).length - length
        assert grown < 2 * RATE
        await running
        assert_level(load.rates(25, 40), RATE)
        await store.close()

    run_virtual(main())


async def _press(folder: Path) -> None:
    """What every mutant of the rule must fail: in one run, of all the promises."""
    link = SlowLink(RATE)
    store = await opened(folder, link)
    load = Load(store, 4, 1000)
    running = asyncio.ensure_future(load.run(40, 75))
    await asyncio.sleep(35)
    link.bytes_per_s = 0
    await asyncio.sleep(20)
    link.bytes_per_s = RATE
    await running
    await store.close()
    assert_level(load.rates(15, 35), RATE)
    assert load.most <= BOUND
    assert_level(load.rates(67, 75), RATE, 0.3)


_PACE = "durablelog.drain_pace"
MUTANTS = {
    "no pace before it is held": Edit(f"{_PACE}:pace", "if room > zone:", "if room > 0:"),
    "a zone whatever the steps": Edit(
        f"{_PACE}:pace", "2 * drain.bytes_per_s * drain.gap_s", "bound / 1024"
    ),
    "faster in a full buffer": Edit(f"{_PACE}:pace", "0.8 + 0.4 * share", "2.0 - share"),
    "rates of time without steps": Edit(
        f"{_PACE}:DrainMeter.drain", "max(last, now - self._gap_s) - self._began", "STEP_S"
    ),
    "a budget that is never used up": Edit(
        f"{_PACE}:PaceBudget.take", "self._bytes -= length", "pass"
    ),
}


@pytest.mark.parametrize("edit", MUTANTS.values(), ids=MUTANTS)
def test_each_part_of_the_rule_is_needed(tmp_path: Path, edit: Edit) -> None:
    mutant = Mutant("pace", "4.5 Throttling", "the pace", (edit,), Hunt())
    with mutant.apply(), pytest.raises(AssertionError):
        run_virtual(_press(tmp_path))


def test_the_rule_as_it_is_keeps_what_they_break(tmp_path: Path) -> None:
    run_virtual(_press(tmp_path))
