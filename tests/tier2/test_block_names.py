"""Blocks that say what their segment is called: golden files, old blocks and later fields, one
fetch whatever the name.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.segments import NAME_BYTES_MAX, may_name_a_segment
from tests.tier2.test_block_object import decode, longer_header
from tier2.block_header import CODEC_NONE
from tier2.block_object import (
    HEADER_BYTES,
    NAMED_HEADER_BYTES_MAX,
    BlockFormatError,
    block_prefix_length,
    encode_block,
    parse_block_header,
)
from tier2.block_reader import BlockReader
from tier2.memory_object_storage import MemoryObjectStorage
from tier2.object_builder import ObjectBuilder

GOLDEN = Path(__file__).parent / "golden"
SHORT = "scope/stream/0"
LONG = "a-scope-of-some-length/a-stream-of-some-length/7.#epoch.12 über alles"


def named(name: str) -> bytes:
    """The block of the format page, with a name."""
    return b"".join(
        encode_block(
            container_id=3,
            epoch=5,
            segment_id=0x0102,
            start_offset=0x1000,
            parts=[b"0123456789"],
            extent_bytes=4,
            segment_name=name,
        )
    )


@pytest.mark.parametrize(
    ("file", "name", "header_length"),
    [("block-object-2.bin", SHORT, 128), ("block-object-3.bin", LONG, 160)],
)
def test_golden_files(file: str, name: str, header_length: int) -> None:
    golden = (GOLDEN / file).read_bytes()
    assert named(name) == golden
    header, payload = decode(golden)
    assert (header.segment_name, header.header_length, payload) == (
        name,
        header_length,
        b"0123456789",
    )
    assert header.version == 1


def test_a_block_without_a_name_is_what_it_always_was() -> None:
    golden = (GOLDEN / "block-object-1.bin").read_bytes()
    assert named("") == golden
    assert parse_block_header(golden).segment_name == ""


@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    payload=st.binary(min_size=1, max_size=20),
)
def test_any_name_comes_back(name: str, payload: bytes) -> None:
    parts = encode_block(
        container_id=0,
        epoch=0,
        segment_id=0,
        start_offset=0,
        parts=[payload],
        extent_bytes=3,
        segment_name=name,
    )
    header, back = decode(b"".join(parts))
    assert (header.segment_name, back) == (name, payload)
    assert len(parts[0]) == header.prefix_length == block_prefix_length(len(payload), 3, name)
    assert header.header_length % 8 == 0


def test_the_longest_name_fits_and_a_longer_one_is_refused() -> None:
    header, _ = decode(named("n" * NAME_BYTES_MAX))
    assert (header.header_length, len(header.segment_name)) == (
        NAMED_HEADER_BYTES_MAX,
        NAME_BYTES_MAX,
    )
    with pytest.raises(ValueError, match="1025 bytes"):
        named("n" * (NAME_BYTES_MAX + 1))


@pytest.mark.parametrize("name", [SHORT, LONG])
def test_every_flipped_bit_of_the_header_is_found(name: str) -> None:
    block = named(name)
    for bit in range(parse_block_header(block).header_length * 8):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BlockFormatError):
            decode(bytes(flipped))


def with_extension(fields: bytes, header_length: int = 160) -> bytes:
    """The block of the format page with these bytes for extension fields."""
    block = named("")
    header = bytearray(block[:76] + fields.ljust(header_length - 80, b"\0"))
    struct.pack_into(">IQ", header, 8, header_length, len(block) + header_length - HEADER_BYTES)
    return bytes(header) + crc32c(header).to_bytes(4, "big") + block[HEADER_BYTES:]


def test_fields_of_a_later_program_are_passed_over() -> None:
    fields = struct.pack(">HH5s", 77, 5, b"later") + struct.pack(">HH4s", 1, 4, b"name")
    header, payload = decode(with_extension(fields))
    assert (header.segment_name, payload) == ("name", b"0123456789")
    assert decode(longer_header(named(SHORT), 40))[0].segment_name == SHORT


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (struct.pack(">HH", 1, 100), "field 1 of 100 bytes reaches beyond the header"),
        (struct.pack(">HH", 9, 0xFFFF), "field 9 of 65535 bytes"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields: bytes, reason: str) -> None:
    with pytest.raises(BlockFormatError, match=reason):
        decode(with_extension(fields))


def test_a_block_is_whole_whatever_bytes_its_name_has() -> None:
    header, payload = decode(with_extension(struct.pack(">HH3s", 1, 3, b"a\xff\xfe")))
    assert (header.segment_name, payload) == ("a\udcff\udcfe", b"0123456789")
    assert not may_name_a_segment(header.segment_name)


@pytest.mark.parametrize("name", ["", SHORT, LONG, "n" * NAME_BYTES_MAX])
@pytest.mark.parametrize("size_known", [False, True])
def test_one_fetch_whatever_the_name_if_the_objects_size_is_known(
    name: str, size_known: bool
) -> None:
    async def body() -> None:
        storage = MemoryObjectStorage(Runtime())
        builder = ObjectBuilder(3, 5, 16, codec=CODEC_NONE)
        builder.add(1, 0, [bytes(range(100))], segment_name=name)
        builder.add(2, 0, [bytes(range(100, 200))], segment_name=name)
        await storage.put("o", builder.parts, bytes(16))
        record, chunks = builder.finish("o", 0)
        assert record.size == storage.bucket.objects["o"].data.__len__()
        for start, length in ((0, 100), (90, 10), (50, 1)):
            for index, (_, chunk) in enumerate(chunks):
                reader = BlockReader(
                    storage,
                    3,
                    Runtime(),
                    extent_bytes=16,
                    object_size=lambda _: record.size if size_known else None,
                )
                before = storage.statistics().requests("get")
                assert await reader.read(chunk, start, length) == bytes(range(100))[
                    start : start + length
                ].translate(bytes((value + 100 * index) % 256 for value in range(256)))
                requests = storage.statistics().requests("get") - before
                assert requests == 1 if size_known or len(name) < 40 else requests <= 4
                await reader.close()

    asyncio.run(body())
