"""Compressed blocks: what is stored how, any stretch of them, and nothing believed that does not
fit.
"""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tier2.block_object import (
    CODEC_NONE,
    CODEC_ZSTD,
    BlockFormatError,
    BlockHeader,
    decode_extents,
    encode_block,
    parse_block_header,
    parse_extent_table,
    verify_extents,
)
from tier2.block_reader import BlockReader
from tier2.extent_codec import cut_extents
from tier2.memory_object_storage import MemoryObject, MemoryObjectStorage
from tier2.object_builder import ObjectBuilder

GOLDEN = Path(__file__).parent / "golden" / "block-object-4.bin"
NOISE = random.Random(1).randbytes(64)
MIXED = b"a" * 64 + NOISE + b"abcd" * 16 + NOISE[:26]
"""In extents of 64 bytes: one that shrinks, one that does not, one that does, one too short to."""


def encode(payload: bytes, extent_bytes: int = 64) -> bytes:
    parts = [payload[:5], payload[5:90], payload[90:]]
    return b"".join(
        encode_block(
            container_id=3,
            epoch=5,
            segment_id=0x0102,
            start_offset=0x1000,
            parts=parts,
            extent_bytes=extent_bytes,
            codec=CODEC_ZSTD,
        )
    )


def decode(block: bytes) -> tuple[BlockHeader, bytes]:
    header = parse_block_header(block)
    table = parse_extent_table(block, header)
    stored = block[header.prefix_length : header.block_length]
    if len(stored) < header.stored_length:
        raise BlockFormatError("cut short", "payload")
    return header, bytes(decode_extents(header, table, 0, stored))


def rebuilt(extents: list[tuple[int, bytes]], payload_length: int, extent_bytes: int = 64) -> bytes:
    """A block of these (stored length, bytes) whose every checksum is right."""
    table = b"".join(struct.pack(">II", length, crc32c(stored)) for length, stored in extents)
    payload = b"".join(stored for _, stored in extents)
    header = bytearray(encode(bytes(payload_length), extent_bytes)[:128])
    struct.pack_into(">Q", header, 12, 128 + len(table) + len(payload))
    struct.pack_into(">II", header, 68, CODEC_ZSTD, crc32c(table))
    struct.pack_into(">I", header, 124, crc32c(header[:124]))
    return bytes(header) + table + payload


def test_extents_are_stored_smaller_or_as_they_are() -> None:
    block = encode(MIXED)
    header, payload = decode(block)
    assert (payload, header.codec, header.version) == (MIXED, CODEC_ZSTD, 1)
    assert len(block) == header.block_length < header.prefix_length + len(MIXED)
    table = parse_extent_table(block, header)
    assert [table.entry(index)[0] == header.extent_length(index) for index in range(4)] == [
        False,
        True,
        False,
        True,
    ]
    start = header.prefix_length + table.stored_place(1)
    assert block[start : start + 64] == NOISE
    verify_extents(header, table, 0, block[header.prefix_length :])


def test_golden_file_of_another_compressor_is_read() -> None:
    header, payload = decode(GOLDEN.read_bytes())
    assert (payload, header.codec, header.extent_count) == (MIXED, CODEC_ZSTD, 4)


def test_what_does_not_shrink_is_no_compressed_block() -> None:
    block = encode(NOISE)
    header, payload = decode(block)
    assert (payload, header.codec) == (NOISE, CODEC_NONE)


@given(
    parts=st.lists(st.binary(max_size=30), max_size=6),
    extent_bytes=st.integers(1, 40),
)
def test_extents_are_cut_at_their_places(parts: list[bytes], extent_bytes: int) -> None:
    whole = b"".join(parts)
    cut = [bytes(extent) for extent in cut_extents(parts, extent_bytes)]
    assert cut == [
        whole[place : place + extent_bytes] for place in range(0, len(whole), extent_bytes)
    ]


@given(
    payload=st.lists(
        st.sampled_from([b"aaaaaaaaaaaaaaaa", b"0123456789", NOISE[:20]]), min_size=1, max_size=30
    ),
    extent_bytes=st.integers(1, 200),
)
def test_any_payload_comes_back(payload: list[bytes], extent_bytes: int) -> None:
    whole = b"".join(payload)
    assert decode(encode(whole, extent_bytes))[1] == whole


def test_every_flipped_bit_is_found() -> None:
    block = encode(MIXED)
    for bit in range(len(block) * 8):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BlockFormatError):
            decode(bytes(flipped))


def test_every_cut_is_found() -> None:
    block = encode(MIXED)
    for length in range(len(block)):
        with pytest.raises(BlockFormatError):
            decode(block[:length])


A = b"a" * 64
SMALL = zstandard.ZstdCompressor().compress(A)


@pytest.mark.parametrize(
    ("extents", "place", "reason"),
    [
        ([(20, b"\x00" * 20)], "extent 0", "cannot be decompressed"),
        ([(len(SMALL) - 1, SMALL[:-1])], "extent 0", "cannot be decompressed|come out"),
        ([(len(SMALL) + 3, SMALL + b"xyz")], "extent 0", "cannot be decompressed"),
        ([(0, b"")], "header", "block length"),
        ([(65, A + b"a")], "extent table|header", "stored length 65|block length"),
        ([(len(SMALL) - 2, SMALL)], "extent table", "its extents take"),
    ],
)
def test_what_does_not_fit_is_refused_though_all_checksums_are_right(
    extents: list[tuple[int, bytes]], place: str, reason: str
) -> None:
    assert decode(rebuilt([(len(SMALL), SMALL)], 64))[1] == A
    with pytest.raises(BlockFormatError, match=f"({place}): .*({reason})"):
        decode(rebuilt(extents, 64))


@pytest.mark.parametrize("length", [63, 65, 1 << 40])
def test_a_frame_that_promises_another_length_is_refused_before_it_takes_memory(
    length: int,
) -> None:
    if length < 1000:
        frame = zstandard.ZstdCompressor().compress(b"a" * length)
    else:
        frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", length) + b"\x01\x00\x00"
    with pytest.raises(BlockFormatError, match=f"extent 0: a frame of {length} bytes where 64"):
        decode(rebuilt([(len(frame), frame)], 64))


def stored(
    payload: bytes, extent_bytes: int
) -> tuple[MemoryObjectStorage, BlockReader, ChunkRecord, int]:
    storage = MemoryObjectStorage(Runtime())
    builder = ObjectBuilder(3, 5, extent_bytes, codec=CODEC_ZSTD)
    builder.add(9, 0, [b"before" * 20])
    builder.add(11, 100, [payload], segment_name="a segment")
    record, chunks = builder.finish("o", 0)
    storage.bucket.objects["o"] = MemoryObject(b"".join(builder.parts), bytes(16), 0)
    assert len(storage.bucket.objects["o"].data) == record.size
    reader = BlockReader(
        storage, 3, Runtime(), extent_bytes=extent_bytes, object_size=lambda _: record.size
    )
    assert chunks[1][1].length == len(payload)
    return storage, reader, chunks[1][1], record.size


def test_any_stretch_is_read_with_one_fetch() -> None:
    async def body() -> None:
        storage, reader, chunk, _ = stored(MIXED, 64)
        for start in range(len(MIXED)):
            for end in range(start + 1, len(MIXED) + 1):
                assert await reader.read(chunk, 100 + start, end - start) == MIXED[start:end]
        reads = reader.statistics().reads
        assert storage.statistics().requests("get") == reads
        assert reader.statistics().fetched_again == 0
        await reader.close()

    asyncio.run(body())


def test_only_the_extents_wanted_are_fetched() -> None:
    async def body() -> None:
        payload = bytes(1000) + random.Random(2).randbytes(3000) + b"x" * 4000
        storage, reader, chunk, _ = stored(payload, 1000)
        await reader.read(chunk, 100, 1)
        before = storage.statistics().bytes_received
        assert await reader.read(chunk, 100 + 4500, 100) == b"x" * 100
        assert storage.statistics().bytes_received - before < 50
        await reader.close()

    asyncio.run(body())


def test_large_pieces_are_decompressed_in_the_thread_and_a_bad_one_is_named() -> None:
    async def body() -> None:
        payload = b"".join(b"%08d" % number for number in range(50_000))
        storage, reader, chunk, _ = stored(payload, 64 * 1024)
        assert await reader.read(chunk, 100, len(payload)) == payload
        data = bytearray(storage.bucket.objects["o"].data)
        data[-1] ^= 1
        storage.bucket.objects["o"] = MemoryObject(bytes(data), bytes(16), 0)
        with pytest.raises(DataCorruptionError) as caught:
            await reader.read(chunk, 100, len(payload))
        assert caught.value.where == f"object o block at {chunk.block_offset} extent 6"
        assert reader.statistics().fetched_again == 2
        await reader.close()

    asyncio.run(body())
