"""A process that works until it is killed: python -m tests.store.kill_child STORE CYCLE SEED.

Each change is announced on stdout before it is tried (`T kind values`) and after it was acknowledged
(`A kind values`), by plain writes to the pipe: what was written stays readable after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import deque

import segmentstore
from segmentstore import AttributeUpdate, SegmentExistsError, SegmentStore, UpdateType
from tests.store.kill_load import (
    BATCH_SEGMENT,
    COUNTED_SEGMENT,
    COUNTER,
    EVENT_SEGMENTS,
    HIGHEST,
    MERGE_TARGET,
    SETTINGS,
    batch,
    event,
    record,
    sealed_bytes,
    sealed_name,
    source_bytes,
    source_name,
    writer_id,
)

PIPELINED = 20


def tell(mark: str, kind: str, *values: object) -> None:
    os.write(1, (" ".join((mark, kind, *map(str, values))) + "\n").encode())


async def write_events(store: SegmentStore, segment: str, chance: random.Random) -> None:
    """An exactly-once writer that goes on where it was, after resending what may be there already."""
    waiting: deque[tuple[int, asyncio.Future[int | None]]] = deque()
    async with store.writer(segment, writer_id(segment)) as writer:
        number = max(0, writer.last_event_number + 1 - chance.randrange(8))
        while True:
            tell("T", "event", segment, number)
            waiting.append((number, writer.append(event(segment, number), number)))
            number += 1
            while len(waiting) >= PIPELINED or (waiting and waiting[0][1].done()):
                sent, future = waiting.popleft()
                await future
                tell("A", "event", segment, sent)
            if chance.random() < 0.2:
                await asyncio.sleep(0)


async def write_batches(store: SegmentStore, cycle: int) -> None:
    waiting: deque[tuple[int, asyncio.Future[int]]] = deque()
    number = 0
    while True:
        tell("T", "batch", number)
        waiting.append((number, store.append_batch(BATCH_SEGMENT, batch(cycle, number))))
        number += 1
        while len(waiting) >= PIPELINED or (waiting and waiting[0][1].done()):
            sent, future = waiting.popleft()
            await future
            tell("A", "batch", sent)
        await asyncio.sleep(0)


async def merge_sources(store: SegmentStore, cycle: int, chance: random.Random) -> None:
    number = 0
    while True:
        name = source_name(cycle, number)
        await store.create_segment(name)
        data = source_bytes(cycle, number)
        if data:
            middle = chance.randrange(len(data))
            await asyncio.gather(store.append(name, data[:middle]), store.append(name, data[middle:]))
        tell("A", "source", number)
        if chance.random() < 0.3:
            await store.seal(name)
        if chance.random() < 0.3:
            await store.flush(name)
        tell("T", "merge", number)
        tell("A", "merge", number, await store.merge(MERGE_TARGET, name))
        number += 1


async def seal_segments(store: SegmentStore, cycle: int) -> None:
    """Make, seal, and after a while delete."""
    number = 0
    while True:
        name = sealed_name(cycle, number)
        await store.create_segment(name)
        await store.append(name, sealed_bytes(cycle, number))
        tell("A", "seal", number, await store.seal(name))
        if number >= 5:
            tell("T", "delete", number - 5)
            await store.delete(sealed_name(cycle, number - 5))
            tell("A", "delete", number - 5)
        number += 1


async def count(store: SegmentStore, cycle: int) -> None:
    """A counter that only grows, and an append that carries an attribute."""
    number = 0
    while True:
        tell("T", "count", number)
        await store.update_attributes(COUNTED_SEGMENT, [AttributeUpdate(COUNTER, UpdateType.ACCUMULATE, 1)])
        tell("A", "count", number)
        carried = AttributeUpdate(HIGHEST, UpdateType.REPLACE, cycle * 1_000_000 + number)
        tell("T", "carried", number)
        await store.append(COUNTED_SEGMENT, record(COUNTED_SEGMENT, cycle, number), attributes=[carried])
        tell("A", "carried", number)
        number += 1


async def cut_heads(store: SegmentStore, chance: random.Random) -> None:
    while True:
        segment = chance.choice(EVENT_SEGMENTS)
        info = await store.get_info(segment)
        if info.length - info.start_offset > 20_000:
            offset = chance.randrange(info.start_offset, info.length + 1)
            tell("T", "truncate", segment, offset)
            await store.truncate(segment, offset)
            tell("A", "truncate", segment, offset)
        await asyncio.sleep(0.002)


async def keep_house(store: SegmentStore, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.0, 0.02))
        await (store.checkpoint() if chance.random() < 0.5 else store.flush())


async def main(location: str, cycle: int, seed: str) -> None:
    chance = random.Random(seed)
    tell("T", "open")
    async with segmentstore.open(location, **SETTINGS) as store:
        for name in (*EVENT_SEGMENTS, BATCH_SEGMENT, MERGE_TARGET, COUNTED_SEGMENT):
            try:
                await store.create_segment(name)
            except SegmentExistsError:
                pass  # an earlier cycle made it
        tell("A", "open")
        async with asyncio.TaskGroup() as group:
            for segment in EVENT_SEGMENTS:
                group.create_task(write_events(store, segment, chance))
            group.create_task(write_batches(store, cycle))
            group.create_task(merge_sources(store, cycle, chance))
            group.create_task(seal_segments(store, cycle))
            group.create_task(count(store, cycle))
            group.create_task(cut_heads(store, chance))
            group.create_task(keep_house(store, chance))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
