"""Many chunks of one object in few fetches: what is planned, and that only checked bytes come
out.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tier2.block_object import CODEC_NONE, CODEC_ZSTD
from tier2.block_reader import BlockReader
from tier2.block_runs import GAP_BYTES_MAX, plan_runs
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_builder import ObjectBuilder
from tier2.object_storage import ObjectNotFoundError

EXTENT = 16


def payload_of(number: int, length: int) -> bytes:
    return random.Random(number).randbytes(1) * length


class Stored:
    """An object of many blocks, each with its own bytes."""

    def __init__(self, lengths: list[int], *, codec: int = CODEC_NONE, name: str = "") -> None:
        self.storage = MemoryObjectStorage(Runtime())
        builder = ObjectBuilder(3, 5, EXTENT, codec=codec)
        self.payloads = [payload_of(number, length) for number, length in enumerate(lengths)]
        for number, payload in enumerate(self.payloads):
            builder.add(number, 1000 * number, [payload], segment_name=name)
        record, chunks = builder.finish("o", 0)
        self.size = record.size
        self.chunks = [chunk for _, chunk in chunks]
        self.storage.bucket.objects["o"] = MemoryObject(b"".join(builder.parts), bytes(16), 0)
        self.reader = BlockReader(self.storage, 3, Runtime(), extent_bytes=EXTENT)

    async def read(self, chunks: list[ChunkRecord], run_bytes: int = 1 << 20) -> list[bytes]:
        """The bytes of each chunk, put together from its stretches."""
        found: dict[ChunkRecord, bytes] = {}
        for run in self.reader.plan("o", self.size, chunks, run_bytes):
            for chunk, offset, data in await self.reader.read_run(run):
                assert offset == chunk.start_offset + len(found.get(chunk, b""))
                found[chunk] = found.get(chunk, b"") + bytes(data)
        assert not self.reader.in_use("o")
        assert list(found) == chunks
        return list(found.values())

    @property
    def requests(self) -> int:
        return self.storage.statistics().requests("get")


def flip(storage: MemoryObjectStorage, position: int) -> None:
    data = bytearray(storage.bucket.objects["o"].data)
    data[position] ^= 1
    storage.bucket.objects["o"] = MemoryObject(bytes(data), bytes(16), 0)


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])
@pytest.mark.parametrize("name", ["", "a name", "a longer name " * 20])
def test_all_blocks_of_an_object_come_in_one_fetch(codec: int, name: str) -> None:
    async def body() -> None:
        stored = Stored([1, 50, 300, 16, 17, 5000], codec=codec, name=name)
        assert await stored.read(stored.chunks) == stored.payloads
        assert stored.requests == 1
        assert stored.reader.statistics().bytes_read == sum(map(len, stored.payloads))
        await stored.reader.close()

    asyncio.run(body())


@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    wanted=st.lists(st.booleans(), min_size=12, max_size=12),
    run_bytes=st.integers(1, 6000),
    codec=st.sampled_from([CODEC_NONE, CODEC_ZSTD]),
    name=st.sampled_from(["", "n" * 300]),
)
def test_any_choice_of_chunks_in_runs_of_any_size(
    lengths: list[int], wanted: list[bool], run_bytes: int, codec: int, name: str
) -> None:
    async def body() -> None:
        stored = Stored(lengths, codec=codec, name=name)
        chosen = [number for number in range(len(lengths)) if wanted[number]]
        chunks = [stored.chunks[number] for number in chosen]
        for run in stored.reader.plan("o", stored.size, chunks, run_bytes):
            assert run.end - run.start <= max(run_bytes, 0)
            assert run.end <= stored.size
        assert await stored.read(chunks, run_bytes) == [
            stored.payloads[number] for number in chosen
        ]
        await stored.reader.close()

    asyncio.run(body())


def test_a_chunk_too_large_for_a_run_comes_in_stretches() -> None:
    async def body() -> None:
        stored = Stored([5, 1000, 5])
        runs = stored.reader.plan("o", stored.size, stored.chunks, 160)
        assert [len(run.stretches) for run in runs] == [1] * len(runs)
        assert max(stretch.length for run in runs for stretch in run.stretches) <= 160
        assert await stored.read(stored.chunks, 160) == stored.payloads
        await stored.reader.close()

    asyncio.run(body())


def test_chunks_that_are_parts_of_one_block() -> None:
    async def body() -> None:
        stored = Stored([40, 200, 40])
        whole = stored.chunks[1]
        parts = [
            whole._replace(
                start_offset=0, length=30, block_start_offset=whole.block_start_offset + 5
            ),
            whole._replace(
                start_offset=30, length=100, block_start_offset=whole.block_start_offset + 100
            ),
        ]
        found = await stored.read([stored.chunks[0], *parts, stored.chunks[2]])
        payload = stored.payloads[1]
        assert found == [stored.payloads[0], payload[5:35], payload[100:200], stored.payloads[2]]
        await stored.reader.close()

    asyncio.run(body())


def test_far_chunks_are_not_fetched_with_what_lies_between() -> None:
    chunks = [
        ChunkRecord(0, 100, "o", place, 1, 0)
        for place in (0, 10_000, 10_000 + GAP_BYTES_MAX + 5000)
    ]
    runs = plan_runs("o", 1 << 30, chunks)
    assert [len(run.stretches) for run in runs] == [2, 1]
    assert runs[0].end < 20_000


@pytest.mark.parametrize("wrong", ["order", "object"])
def test_chunks_out_of_order_or_of_another_object_are_refused(wrong: str) -> None:
    chunks = [ChunkRecord(0, 1, "o", 500, 1, 0), ChunkRecord(0, 1, "o", 200, 1, 0)]
    if wrong == "object":
        chunks = [chunks[1], chunks[0]._replace(object_name="another")]
    with pytest.raises(ValueError, match="is not in o"):
        plan_runs("o", 1000, chunks)


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])
def test_a_bad_block_is_fetched_again_and_then_named(codec: int) -> None:
    async def body() -> None:
        stored = Stored([100, 100, 100], codec=codec)
        position = stored.chunks[1].block_offset + 50
        get_range = stored.storage.get_range
        spoiled = 0

        async def spoiling(name: str, offset: int, length: int) -> bytes:
            nonlocal spoiled
            spoiled += 1
            data = bytearray(await get_range(name, offset, length))
            if spoiled == 1:
                data[position - offset] ^= 1
            return bytes(data)

        stored.storage.get_range = spoiling  # type: ignore[method-assign]
        assert await stored.read(stored.chunks) == stored.payloads
        assert spoiled == 2
        flip(stored.storage, position)
        with pytest.raises(DataCorruptionError) as caught:
            await stored.read(stored.chunks)
        assert caught.value.where == f"object o block at {stored.chunks[1].block_offset} header"
        assert not stored.reader.in_use("o")
        await stored.reader.close()

    asyncio.run(body())


def test_an_object_that_is_shorter_or_missing() -> None:
    async def body() -> None:
        stored = Stored([100, 100])
        data = stored.storage.bucket.objects["o"].data
        stored.storage.bucket.objects["o"] = MemoryObject(data[:-1], bytes(16), 0)
        with pytest.raises(DataCorruptionError, match="too short"):
            await stored.read(stored.chunks)
        await stored.storage.delete("o")
        with pytest.raises(ObjectNotFoundError):
            await stored.read(stored.chunks)
        await stored.reader.close()

    asyncio.run(body())
