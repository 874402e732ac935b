"""What a task reads back of its object: every beginning of a block, few bodies, few requests."""

from __future__ import annotations

import asyncio
import random

import pytest

from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tests.tier2.flipping_storage import FlippingStorage
from tier2.block_object import parse_block_header
from tier2.block_reader import FETCHES_MAX
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError
from tier2.spark.compact.readback import GAP_BYTES, WINDOW_BYTES, check_written

NAME = "be/00000003/0000000000000005/compaction-00000000feedbeef-000102030405060708090a0b0c0d0e0f"
UNIQUE_ID = bytes(range(16))


def built(*lengths: int, extent_bytes: int = 4096) -> ObjectBuilder:
    builder = ObjectBuilder(3, 5, extent_bytes)
    for number, length in enumerate(lengths):
        builder.add(number, 0, [bytes([number % 256]) * length], segment_name=f"s/{number}")
    return builder


async def check(
    builder: ObjectBuilder, flipped: int | None = None, cut: int = 0
) -> MemoryObjectStorage:
    """Store it, with one bit turned over or cut off at its end, and check it."""
    storage = MemoryObjectStorage(Runtime())
    await storage.put(NAME, builder.parts, UNIQUE_ID)
    stored = storage.bucket.objects[NAME]
    data = bytearray(stored.data)
    if flipped is not None:
        data[flipped] ^= 1
    storage.bucket.objects[NAME] = MemoryObject(
        bytes(data[: len(data) - cut]), UNIQUE_ID, stored.modified_ms
    )
    await check_written(storage, Runtime(), NAME, builder.beginnings)
    return storage


def test_every_byte_of_headers_and_extent_tables_is_compared() -> None:
    builder = built(10_000, 1, 5000)
    for place, data in builder.beginnings:
        for offset in range(len(data)):
            with pytest.raises(DataCorruptionError, match=f"{NAME} block at {place}:"):
                asyncio.run(check(builder, place + offset))


def test_bodies_are_left_to_the_next_read_which_has_the_checksums() -> None:
    builder = built(10_000)
    asyncio.run(check(builder, builder.size - 1))
    header = parse_block_header(builder.beginnings[0].data)
    assert len(builder.beginnings[0].data) == header.prefix_length


def test_large_blocks_cost_a_request_each_and_not_their_bodies() -> None:
    builder = built(*[2 * GAP_BYTES] * 5)
    statistics = asyncio.run(check(builder)).statistics()
    assert statistics.requests("get") == 5
    assert statistics.bytes_received == sum(len(each.data) for each in builder.beginnings)


def test_small_blocks_share_requests_of_bounded_size() -> None:
    builder = built(*[500] * 5000)
    statistics = asyncio.run(check(builder)).statistics()
    assert builder.size > 2 * WINDOW_BYTES
    assert statistics.requests("get") == -(-builder.size // WINDOW_BYTES)


def test_an_object_that_is_shorter_or_missing_is_no_object_of_ours() -> None:
    builder = built(10_000, 1)
    with pytest.raises(InvalidRangeError):
        asyncio.run(check(builder, cut=20))

    async def gone() -> None:
        await check_written(MemoryObjectStorage(Runtime()), Runtime(), NAME, builder.beginnings)

    with pytest.raises(ObjectNotFoundError):
        asyncio.run(gone())


def test_a_wrong_bit_in_an_answer_is_no_wrong_object() -> None:
    async def main() -> None:
        builder = built(10_000, 1)
        storage = FlippingStorage(Runtime())
        await storage.put(NAME, builder.parts, UNIQUE_ID)
        for seed in range(50):
            storage.give_wrong(FETCHES_MAX - 1, random.Random(seed))
            await check_written(storage, Runtime(), NAME, builder.beginnings)

    asyncio.run(main())
