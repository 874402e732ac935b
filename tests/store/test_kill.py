"""A child process under load is killed at random instants, again and again, on one store: nothing acknowledged is lost.

More cycles: STORE_KILL_CYCLES. The seed of a run is in its output: STORE_KILL_SEED repeats its choices.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import segmentstore
from recovery.store_check import check_store
from segmentstore import SegmentNotFoundError, SegmentSealedError, SegmentStore, SegmentTruncatedError
from segmentstore.contracts.runtime import Runtime
from tests.store.harness import read_all
from tests.store.kill_load import (
    BATCH_SEGMENT,
    COUNTED_SEGMENT,
    COUNTER,
    EVENT_SEGMENTS,
    HIGHEST,
    MERGE_TARGET,
    SETTINGS,
    Journal,
    batch,
    event,
    record,
    sealed_bytes,
    sealed_name,
    source_bytes,
    source_name,
    writer_id,
)

ROOT = Path(__file__).resolve().parent.parent.parent
CYCLES = int(os.environ.get("STORE_KILL_CYCLES", "26"))


def run_until_killed(location: Path, cycle: int, chance: random.Random) -> Journal:
    """Start a child, let it get so many lines and a moment further, kill it, read what it said."""
    lines = chance.choice([0, 1, 2, 10, chance.randrange(1500), chance.randrange(1500), chance.randrange(5000)])
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.store.kill_child", str(location), str(cycle), str(chance.getrandbits(32))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    said = bytearray()
    deadline = None
    seen = 0
    while True:
        if deadline is None and seen >= lines:
            deadline = time.monotonic() + chance.choice([0.0, chance.uniform(0.0, 0.02)])
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            break
        ready, _, _ = select.select([child.stdout], [], [], left)
        if ready:
            piece = child.stdout.read(65536)
            if not piece:
                break
            said += piece
            seen += piece.count(b"\n")
    alive = child.poll() is None
    child.kill()
    rest, errors = child.communicate()
    said += rest
    assert alive, f"the child ended by itself: {errors.decode()}"
    return Journal(said.decode().splitlines() if said.endswith(b"\n") or not said else said.decode().split("\n")[:-1])


class Expected:
    """What the store must hold, cycle after cycle."""

    def __init__(self) -> None:
        self.events: dict[str, bytearray] = {segment: bytearray() for segment in EVENT_SEGMENTS}
        self.event_counts = dict.fromkeys(EVENT_SEGMENTS, 0)
        self.starts = dict.fromkeys(EVENT_SEGMENTS, 0)
        self.batches = bytearray()
        self.merged = bytearray()
        self.counted = bytearray()
        self.counter = 0
        self.highest: int | None = None
        self.sealed: set[tuple[int, int]] = set()

    async def check(self, store: SegmentStore, cycle: int, journal: Journal) -> None:
        for segment in EVENT_SEGMENTS:
            await self.check_events(store, segment, journal)
        await self.check_batches(store, cycle, journal)
        await self.check_merges(store, cycle, journal)
        await self.check_sealed(store, cycle, journal)
        await self.check_counted(store, cycle, journal)
        for container in store._containers:
            container.metadata.check()

    async def check_events(self, store: SegmentStore, segment: str, journal: Journal) -> None:
        """Every event up to some number at or above the last acknowledged one: none twice, none missing."""
        info = await store.get_info(segment)
        tried = max((int(number) for name, number in journal.tried("event") if name == segment), default=-1)
        acknowledged = max(
            (int(number) for name, number in journal.acknowledged("event") if name == segment), default=-1
        )
        data, numbers = self.events[segment], self.event_counts[segment]
        while len(data) < info.length:
            data += event(segment, numbers)
            numbers += 1
        assert len(data) == info.length, f"{segment} does not end at the end of an event"
        assert numbers > acknowledged, f"{segment}: acknowledged event {acknowledged} is lost"
        assert numbers <= max(self.event_counts[segment], tried + 1), f"{segment}: an event nobody sent"
        self.event_counts[segment] = numbers
        last = (await store.get_attributes(segment)).get(writer_id(segment), -1)
        assert last == numbers - 1
        cuts = [int(offset) for name, offset in journal.tried("truncate") if name == segment]
        done = [int(offset) for name, offset in journal.acknowledged("truncate") if name == segment]
        floor = max([self.starts[segment], *done])
        assert info.start_offset >= floor, f"{segment}: a truncation is undone"
        assert info.start_offset in {self.starts[segment], *cuts}
        self.starts[segment] = info.start_offset
        assert await read_all(store, segment, info.start_offset) == data[info.start_offset :]
        if info.start_offset:
            with pytest.raises(SegmentTruncatedError):
                await store.read(segment, info.start_offset - 1, 1)

    async def check_batches(self, store: SegmentStore, cycle: int, journal: Journal) -> None:
        got = await read_all(store, BATCH_SEGMENT)
        acknowledged = len(journal.acknowledged("batch"))
        for number in range(len(journal.tried("batch"))):
            if len(self.batches) == len(got):
                assert number >= acknowledged, f"acknowledged batch {number} is lost"
                break
            self.batches += b"".join(batch(cycle, number))
        assert got == self.batches

    async def check_merges(self, store: SegmentStore, cycle: int, journal: Journal) -> None:
        got = await read_all(store, MERGE_TARGET)
        offsets = {int(number): int(offset) for number, offset in journal.acknowledged("merge")}
        for (text,) in journal.acknowledged("source"):
            number = int(text)
            name = source_name(cycle, number)
            there = name in {info.name async for info in store.list_segments(name)}
            if there:
                assert number not in offsets, f"acknowledged merge {number} is undone"
                assert await read_all(store, name) == source_bytes(cycle, number)
                continue
            assert (text,) in journal.tried("merge")
            assert offsets.get(number, len(self.merged)) == len(self.merged)
            self.merged += source_bytes(cycle, number)
        assert got == self.merged

    async def check_sealed(self, store: SegmentStore, cycle: int, journal: Journal) -> None:
        self.sealed |= {(cycle, int(number)) for number, _ in journal.acknowledged("seal")}
        deleted = {(cycle, int(number)) for (number,) in journal.acknowledged("delete")}
        unknown = {(cycle, int(number)) for (number,) in journal.tried("delete")} - deleted
        names = {info.name async for info in store.list_segments("sealed-")}
        for key in sorted(self.sealed):
            name = sealed_name(*key)
            if key in deleted or (key in unknown and name not in names):
                with pytest.raises(SegmentNotFoundError):
                    await store.get_info(name)
                self.sealed.discard(key)
                continue
            info = await store.get_info(name)
            assert info.sealed
            assert await read_all(store, name) == sealed_bytes(*key)
            with pytest.raises(SegmentSealedError):
                await store.append(name, b"more")

    async def check_counted(self, store: SegmentStore, cycle: int, journal: Journal) -> None:
        values = await store.get_attributes(COUNTED_SEGMENT)
        counter = values.get(COUNTER, 0)
        least = self.counter + len(journal.acknowledged("count"))
        assert least <= counter <= self.counter + len(journal.tried("count"))
        self.counter = counter
        got = await read_all(store, COUNTED_SEGMENT)
        number = 0
        while len(self.counted) < len(got):
            self.counted += record(COUNTED_SEGMENT, cycle, number)
            self.highest = cycle * 1_000_000 + number
            number += 1
        assert got == self.counted
        assert len(journal.acknowledged("carried")) <= number <= len(journal.tried("carried"))
        assert values.get(HIGHEST) == self.highest


async def check_as_it_lies(location: Path, *, deep: bool) -> None:
    """What the kill left has nothing harmful in it, before anybody has recovered it."""
    if (location / "store.toml").exists():
        url = (location / "tier2").as_uri()
        findings = await check_store({0: str(location / "log" / "0")}, url, Runtime(), deep=deep)
        assert not [finding for finding in findings if finding.severity.value == "harmful"], findings


async def check_reopened(location: Path, expected: Expected, cycle: int, journal: Journal, *, thorough: bool) -> int:
    """Check as it lies, open, compare; thoroughly: flush and compare again with nothing in memory.

    Returns operations replayed.
    """
    await check_as_it_lies(location, deep=thorough)
    async with segmentstore.open(location, **SETTINGS) as store:
        for name in (*EVENT_SEGMENTS, BATCH_SEGMENT, MERGE_TARGET, COUNTED_SEGMENT):
            if name not in {info.name async for info in store.list_segments()}:
                assert not journal.acknowledged("open")
                await store.create_segment(name)
        await expected.check(store, cycle, journal)
        recovery = store._containers[0].recovery
        replayed = recovery.operations if recovery is not None else 0
        if thorough:
            await store.flush()
            await store.checkpoint()
    if thorough:
        shutil.rmtree(location / "cache")
        async with segmentstore.open(location, **SETTINGS) as store:
            await expected.check(store, cycle, Journal(()))
    return replayed


@pytest.mark.timeout(60 + 6 * CYCLES)
@pytest.mark.parametrize("part", range(4))
def test_nothing_acknowledged_is_lost_by_kills(part: int, tmp_path: Path) -> None:
    seed = os.environ.get("STORE_KILL_SEED", str(random.SystemRandom().getrandbits(32)))
    print(f"STORE_KILL_SEED={seed}")
    chance = random.Random(f"{seed}/{part}")
    expected = Expected()
    location = tmp_path / "store"
    replayed = 0
    for cycle in range(CYCLES):
        journal = run_until_killed(location, cycle, chance)
        replayed += asyncio.run(
            check_reopened(location, expected, cycle, journal, thorough=cycle % 8 == 7 or cycle == CYCLES - 1)
        )
    print(f"{CYCLES} kills, {replayed} operations replayed, {expected.event_counts} events")
    assert replayed, "no kill left anything to recover"
