"""Reading stretches of blocks: checks, second fetches, the cache of headers, objects in use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tests.tier2.test_block_object import longer_header
from tier2.block_header import BlockHeader, encode_header
from tier2.block_object import HEADER_BYTES, encode_block
from tier2.block_reader import FETCHES_MAX, OVERFETCH_BYTES, BlockReader
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_storage import ObjectNotFoundError, StorageUnavailableError

CONTAINER = 3
NAME = "an/object"
PAYLOADS = [(11, 100, bytes(range(50))), (12, 0, b"x"), (13, 7, bytes(range(100, 139)))]

Case = Callable[[MemoryObjectStorage, BlockReader, list[ChunkRecord]], Awaitable[None]]


def replace_object(storage: MemoryObjectStorage, data: bytes) -> None:
    storage.bucket.objects[NAME] = MemoryObject(data, bytes(16), 0)


def flip(storage: MemoryObjectStorage, position: int, bits: int = 1) -> None:
    data = bytearray(storage.bucket.objects[NAME].data)
    data[position] ^= bits
    replace_object(storage, bytes(data))


def run(
    case: Case, *, extent_bytes: int = 8, expected_extent_bytes: int = 8, cache_blocks: int = 4
) -> None:
    async def body() -> None:
        storage = MemoryObjectStorage(Runtime())
        builder = ObjectBuilder(CONTAINER, 5, extent_bytes)
        for segment_id, start_offset, payload in PAYLOADS:
            builder.add(segment_id, start_offset, [payload])
        await storage.put(NAME, builder.parts, bytes(16))
        _, chunks = builder.finish(NAME, 0)
        reader = BlockReader(
            storage,
            CONTAINER,
            Runtime(),
            header_cache_blocks=cache_blocks,
            extent_bytes=expected_extent_bytes,
        )
        await case(storage, reader, [chunk for _, chunk in chunks])
        assert not reader.in_use(NAME)
        await reader.close()

    asyncio.run(body())


@pytest.mark.parametrize("cache_blocks", [0, 1, 4])
@pytest.mark.parametrize("expected_extent_bytes", [1, 8, 64])
def test_every_stretch_of_every_chunk(cache_blocks: int, expected_extent_bytes: int) -> None:
    async def case(
        _storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        for chunk, (_, start_offset, payload) in zip(chunks, PAYLOADS, strict=True):
            for start in range(len(payload)):
                for end in range(start + 1, len(payload) + 1):
                    got = await reader.read(chunk, start_offset + start, end - start)
                    assert type(got) is bytes
                    assert got == payload[start:end]
        assert reader.statistics().headers_cached == min(cache_blocks, len(PAYLOADS))
        assert reader.statistics().fetched_again == 0

    run(case, cache_blocks=cache_blocks, expected_extent_bytes=expected_extent_bytes)


def test_the_calls_a_read_costs() -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        await reader.read(chunks[0], 110, 20)
        assert storage.statistics().requests("get") == 1
        await reader.read(chunks[0], 102, 48)
        assert storage.statistics().requests("get") == 2
        assert (reader.statistics().header_misses, reader.statistics().header_hits) == (1, 1)

        large = bytes(OVERFETCH_BYTES + 100_000)
        builder = ObjectBuilder(CONTAINER, 5, 64)
        builder.add(1, 0, [large])
        await storage.put("large", builder.parts, bytes(16))
        _, ((_, chunk),) = builder.finish("large", 0)
        before = storage.statistics()
        assert await reader.read(chunk, len(large) - 10, 10) == bytes(10)
        after = storage.statistics()
        assert (
            after.requests("get") - before.requests("get"),
            after.bytes_received - before.bytes_received < 300_000,
        ) == (2, True)
        assert await reader.read(chunk, 0, len(large)) == large

    run(case, extent_bytes=64, expected_extent_bytes=64)


def test_a_piece_of_whole_extents_is_given_out_without_a_copy() -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        given_out: list[bytes] = []
        get_range = storage.get_range

        async def noting(name: str, offset: int, length: int) -> bytes:
            given_out.append(await get_range(name, offset, length))
            return given_out[-1]

        await reader.read(chunks[0], 100, 1)
        storage.get_range = noting  # type: ignore[method-assign]
        assert await reader.read(chunks[0], 108, 16) is given_out[0]

    run(case)


def test_a_merged_chunk_and_a_part_of_a_block() -> None:
    async def case(
        _storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        merged = chunks[0]._replace(start_offset=5000)
        assert await reader.read(merged, 5003, 4) == bytes([3, 4, 5, 6])
        part = chunks[0]._replace(start_offset=9000, length=20, block_start_offset=110)
        assert await reader.read(part, 9000, 20) == bytes(range(10, 30))
        assert await reader.read(part, 9019, 1) == bytes([29])

    run(case)


def test_stretches_outside_of_the_chunk_are_refused() -> None:
    async def case(
        _storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        for offset, length in ((99, 1), (150, 1), (100, 51), (100, 0)):
            with pytest.raises(ValueError):
                await reader.read(chunks[0], offset, length)

    run(case)


@pytest.mark.parametrize("cached", [False, True])
def test_every_flipped_bit_is_found_and_named(cached: bool) -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        chunk = chunks[2]
        whole = storage.bucket.objects[NAME].data
        prefix = len(whole) - chunk.block_offset - chunk.length
        for position in range(chunk.block_offset + (prefix if cached else 0), len(whole)):
            for bit in range(8):
                replace_object(storage, whole)
                if cached:
                    await reader.read(chunk, 7, chunk.length)
                flip(storage, position, 1 << bit)
                with pytest.raises(DataCorruptionError) as caught:
                    await reader.read(chunk, 7, chunk.length)
                in_block = position - chunk.block_offset
                place = (
                    "header"
                    if in_block < 128
                    else "extent table"
                    if in_block < prefix
                    else f"extent {(in_block - prefix) // 8}"
                )
                assert caught.value.where == f"object {NAME} block at {chunk.block_offset} {place}"

    run(case)


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_two_bad_fetches_are_repaired_by_the_third(bad: int) -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        get_range = storage.get_range
        fetched = 0

        async def spoiling(name: str, offset: int, length: int) -> bytes:
            nonlocal fetched
            fetched += 1
            data = await get_range(name, offset, length)
            return data[:-1] + bytes([data[-1] ^ 1]) if fetched <= bad else data

        storage.get_range = spoiling  # type: ignore[method-assign]
        if bad == FETCHES_MAX:
            with pytest.raises(DataCorruptionError):
                await reader.read(chunks[0], 100, 50)
        assert await reader.read(chunks[0], 100, 50) == PAYLOADS[0][2]
        # The fourth fetch is the second read's.
        assert (fetched, reader.statistics().fetched_again) == (bad + 1, min(bad, FETCHES_MAX - 1))

    run(case)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_segment_id": 12},
        {"block_start_offset": 101},
        {"block_start_offset": 99},
        {"length": 51},
        {"block_offset": 1},
        {"block_offset": 10_000},
    ],
)
def test_a_block_that_is_not_the_records_is_refused(wrong: dict[str, Any]) -> None:
    async def case(
        _storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        for _ in range(2):
            with pytest.raises(DataCorruptionError):
                await reader.read(chunks[0]._replace(**wrong), 100, 50)
            await reader.read(chunks[0], 100, 50)

    run(case)


def test_a_block_of_another_container_is_refused() -> None:
    async def case(
        storage: MemoryObjectStorage, _reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        other = BlockReader(storage, CONTAINER + 1, Runtime())
        with pytest.raises(DataCorruptionError, match="container 3, not 4"):
            await other.read(chunks[0], 100, 50)
        await other.close()

    run(case)


def test_every_cut_of_the_object_is_found() -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        whole = storage.bucket.objects[NAME].data
        for length in range(chunks[2].block_offset, len(whole)):
            replace_object(storage, whole[:length])
            with pytest.raises(DataCorruptionError):
                await reader.read(chunks[2], 7, 39)

    run(case)


def test_a_header_that_promises_more_than_the_object_has_asks_for_nothing_more() -> None:
    async def case(storage: MemoryObjectStorage, _: BlockReader, chunks: list[ChunkRecord]) -> None:
        length = 2**31
        lying = BlockHeader(
            header_length=HEADER_BYTES,
            block_length=HEADER_BYTES + 9 * length,
            version=1,
            container_id=CONTAINER,
            epoch=5,
            segment_id=11,
            start_offset=100,
            payload_length=length,
            extent_bytes=1,
            extent_count=length,
            codec=0,
            extent_table_crc=0,
        )
        whole = storage.bucket.objects[NAME].data
        replace_object(storage, encode_header(lying) + whole[HEADER_BYTES:])
        asked: list[int] = []
        get_range = storage.get_range

        async def noting(name: str, offset: int, length: int) -> bytes:
            asked.append(length)
            return await get_range(name, offset, length)

        storage.get_range = noting  # type: ignore[method-assign]
        reader = BlockReader(
            storage, CONTAINER, Runtime(), extent_bytes=8, object_size=lambda _: len(whole)
        )
        with pytest.raises(DataCorruptionError, match="reach beyond the object's"):
            await reader.read(chunks[0], 100, 10)
        assert max(asked) <= len(whole)
        await reader.close()

    run(case)


def test_a_later_programs_longer_header_is_read() -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        block = encode_block(
            container_id=CONTAINER,
            epoch=9,
            segment_id=11,
            start_offset=100,
            parts=[PAYLOADS[0][2]],
            extent_bytes=8,
        )
        replace_object(storage, longer_header(b"".join(block), 100))
        for start in (0, 40):
            assert (
                await reader.read(chunks[0], 100 + start, 10) == PAYLOADS[0][2][start : start + 10]
            )

    run(case, cache_blocks=0)


def test_errors_of_the_store_pass_through_and_are_not_corruption() -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        storage.fail("get_range")
        with pytest.raises(StorageUnavailableError):
            await reader.read(chunks[0], 100, 50)
        await reader.read(chunks[0], 100, 50)
        await storage.delete(NAME)
        with pytest.raises(ObjectNotFoundError):
            await reader.read(chunks[0], 100, 50)

    run(case)


def test_readers_of_one_block_share_its_header_and_hold_its_object() -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        reads = [asyncio.create_task(reader.read(chunks[0], 100 + n, 2)) for n in range(10)]
        await asyncio.sleep(0)
        assert reader.in_use(NAME)
        assert not reader.in_use("another")
        assert await asyncio.gather(*reads) == [bytes([n, n + 1]) for n in range(10)]
        assert not reader.in_use(NAME)
        assert reader.statistics().header_misses == 1
        assert storage.statistics().requests("get") == 10

    run(case)


def test_a_cancelled_reader_does_not_take_the_others_with_it() -> None:
    async def case(
        _storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        reads = [asyncio.create_task(reader.read(chunks[0], 100, 50)) for _ in range(5)]
        await asyncio.sleep(0)
        reads[0].cancel()
        reads[3].cancel()
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        assert [outcome == PAYLOADS[0][2] for outcome in outcomes] == [
            False,
            True,
            True,
            False,
            True,
        ]

    run(case)


def test_readers_who_wait_for_a_header_share_its_failure() -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        storage.fail("get_range")
        reads = (reader.read(chunks[0], 100, 50) for _ in range(5))
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(outcome, StorageUnavailableError) for outcome in outcomes)
        assert storage.statistics().requests("get") == 1

    run(case)


def test_the_cache_is_bounded_in_bytes_too() -> None:
    async def case(
        storage: MemoryObjectStorage, _reader: BlockReader, chunks: list[ChunkRecord]
    ) -> None:
        reader = BlockReader(storage, CONTAINER, Runtime(), header_cache_bytes=1100)
        for _ in range(3):
            for chunk in chunks:
                await reader.read(chunk, chunk.start_offset, 1)
                assert reader.statistics().header_bytes_cached <= 1100
        assert reader.statistics().headers_cached == 2
        await reader.close()

    run(case)


def test_large_pieces_are_checked_in_the_thread() -> None:
    payload = bytes(range(256)) * 12_000

    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, _chunks: list[ChunkRecord]
    ) -> None:
        builder = ObjectBuilder(CONTAINER, 5)
        builder.add(1, 0, [payload])
        await storage.put("large", builder.parts, bytes(16))
        _, ((_, chunk),) = builder.finish("large", 0)
        assert await reader.read(chunk, 0, len(payload)) == payload
        data = bytearray(storage.bucket.objects["large"].data)
        data[-1] ^= 1
        storage.bucket.objects["large"] = MemoryObject(bytes(data), bytes(16), 0)
        with pytest.raises(DataCorruptionError, match="extent 46"):
            await reader.read(chunk, 0, len(payload))

    run(case, expected_extent_bytes=64 * 1024)


@given(
    payload=st.binary(min_size=1, max_size=120),
    extent_bytes=st.integers(1, 40),
    expected=st.integers(1, 40),
    stretches=st.lists(st.tuples(st.integers(0, 119), st.integers(1, 120)), max_size=5),
)
def test_any_extent_size_against_any_expected(
    payload: bytes, extent_bytes: int, expected: int, stretches: list[tuple[int, int]]
) -> None:
    async def case(
        storage: MemoryObjectStorage, reader: BlockReader, _chunks: list[ChunkRecord]
    ) -> None:
        builder = ObjectBuilder(CONTAINER, 5, extent_bytes)
        builder.add(1, 50, [payload])
        await storage.put("other", builder.parts, bytes(16))
        _, ((_, chunk),) = builder.finish("other", 0)
        for start, length in stretches:
            end = min(start + length, len(payload))
            if start < end:
                assert await reader.read(chunk, 50 + start, end - start) == payload[start:end]

    run(case, expected_extent_bytes=expected)
