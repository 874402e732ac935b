"""The block object format: golden file, every field checked, every flipped byte found."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.checksum import crc32c
from tier2.block_object import (
    HEADER_BYTES,
    HEADER_BYTES_MAX,
    BlockFormatError,
    BlockHeader,
    BlockTooShortError,
    block_prefix_length,
    encode_block,
    parse_block_header,
    parse_extent_table,
    verify_extents,
)

GOLDEN = Path(__file__).parent / "golden" / "block-object-1.bin"
PAGE = Path(__file__).parents[2] / "docs" / "formats" / "block-object.md"


def example() -> bytes:
    """The block of the format page: 10 bytes in extents of 4."""
    return b"".join(
        encode_block(
            container_id=3,
            epoch=5,
            segment_id=0x0102,
            start_offset=0x1000,
            parts=[b"0123456", b"789"],
            extent_bytes=4,
        )
    )


def decode(block: bytes) -> tuple[BlockHeader, bytes]:
    header = parse_block_header(block)
    table = parse_extent_table(block, header)
    payload = block[header.prefix_length : header.block_length]
    if len(payload) < header.payload_length:
        raise BlockFormatError("cut short", "payload")
    verify_extents(header, table, 0, payload)
    return header, payload


def resealed(block: bytes, position: int, field: str, value: int) -> bytes:
    """The block with one header field changed and the header's checksum made right again."""
    changed = bytearray(block)
    struct.pack_into(field, changed, position, value)
    struct.pack_into(">I", changed, HEADER_BYTES - 4, crc32c(changed[: HEADER_BYTES - 4]))
    return bytes(changed)


def test_golden_file() -> None:
    golden = GOLDEN.read_bytes()
    assert example() == golden
    header, payload = decode(golden)
    assert payload == b"0123456789"
    assert header == BlockHeader(
        header_length=128,
        block_length=162,
        version=1,
        container_id=3,
        epoch=5,
        segment_id=0x0102,
        start_offset=0x1000,
        payload_length=10,
        extent_bytes=4,
        extent_count=3,
        codec=0,
        extent_table_crc=crc32c(golden[128:152]),
    )


def test_the_page_shows_the_golden_file() -> None:
    dump = [
        line.split("  ")[1]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line[:4].isdigit() and line[4:6] == "  "
    ]
    assert bytes.fromhex(" ".join(dump)) == GOLDEN.read_bytes()


@given(
    parts=st.lists(st.binary(max_size=20), max_size=8).filter(any),
    extent_bytes=st.integers(1, 24),
    container_id=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2**64 - 1),
    segment_id=st.integers(0, 2**64 - 1),
    start_offset=st.integers(0, 2**63),
)
def test_round_trip(
    parts: list[bytes],
    extent_bytes: int,
    container_id: int,
    epoch: int,
    segment_id: int,
    start_offset: int,
) -> None:
    encoded = encode_block(
        container_id=container_id,
        epoch=epoch,
        segment_id=segment_id,
        start_offset=start_offset,
        parts=parts,
        extent_bytes=extent_bytes,
    )
    assert all(
        given is kept for given, kept in zip(filter(None, parts), encoded[1:], strict=True)
    ), "not copied"
    block = b"".join(encoded)
    header, payload = decode(block + b"the next block")
    assert payload == b"".join(parts)
    assert (header.container_id, header.epoch, header.segment_id) == (
        container_id,
        epoch,
        segment_id,
    )
    assert (header.start_offset, header.end_offset) == (start_offset, start_offset + len(payload))
    assert header.block_length == len(block)
    assert (
        header.prefix_length == len(encoded[0]) == block_prefix_length(len(payload), extent_bytes)
    )
    lengths = [header.extent_length(index) for index in range(header.extent_count)]
    assert sum(lengths) == len(payload)
    table = parse_extent_table(block, header)
    for index, end in enumerate(accumulate(lengths)):
        verify_extents(header, table, index, payload[end - lengths[index] :])


def test_every_flipped_bit_is_found() -> None:
    block = example()
    for bit in range(len(block) * 8):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BlockFormatError):
            decode(bytes(flipped))


def test_every_cut_is_found() -> None:
    block = example()
    for length in range(len(block)):
        with pytest.raises(BlockFormatError):
            decode(block[:length])
    with pytest.raises(BlockTooShortError) as caught:
        parse_block_header(block[:100])
    assert caught.value.needed == HEADER_BYTES


@pytest.mark.parametrize(
    ("position", "field", "value", "reason"),
    [
        (20, ">I", 2, "version 2"),
        (20, ">I", 0, "version 0"),
        (68, ">I", 2, "codec 2"),
        (60, ">I", 0, "extent size 0"),
        (60, ">I", 2**32 - 1, "extent size"),
        (60, ">I", 5, "extents do not hold"),
        (64, ">I", 2, "extents do not hold"),
        (52, ">Q", 0, "payload length 0"),
        (52, ">Q", 11, "block length"),
        (12, ">Q", 163, "block length"),
        (44, ">Q", 2**64 - 5, "payload length"),
        (8, ">I", 127, "header length"),
        (8, ">I", HEADER_BYTES_MAX + 1, "header length"),
        (72, ">I", 0, "extent table: checksum"),
    ],
)
def test_a_header_that_cannot_be_is_refused_though_its_checksum_is_right(
    position: int, field: str, value: int, reason: str
) -> None:
    with pytest.raises(BlockFormatError, match=reason):
        decode(resealed(example(), position, field, value))


def test_a_longer_header_is_read_and_what_is_new_in_it_skipped() -> None:
    decoded, payload = decode(longer_header(example(), 40))
    assert (decoded.header_length, payload) == (168, b"0123456789")
    with pytest.raises(BlockTooShortError) as caught:
        parse_block_header(longer_header(example(), 40)[:150])
    assert caught.value.needed == 168


def longer_header(block: bytes, more: int) -> bytes:
    """The block as a later program may write it: with fields behind those we know."""
    header = bytearray(block[: HEADER_BYTES - 4] + b"\xaa" * more)
    struct.pack_into(">IQ", header, 8, HEADER_BYTES + more, len(block) + more)
    return bytes(header) + crc32c(header).to_bytes(4, "big") + block[HEADER_BYTES:]


def test_what_cannot_be_a_block_is_not_written() -> None:
    def encode(  # the fields of a right block, one of which each line below spoils
        container_id: int = 0,
        epoch: int = 0,
        segment_id: int = 0,
        start_offset: int = 0,
        parts: tuple[bytes, ...] = (b"x",),
        extent_bytes: int = 4,
    ) -> None:
        encode_block(
            container_id=container_id,
            epoch=epoch,
            segment_id=segment_id,
            start_offset=start_offset,
            parts=parts,
            extent_bytes=extent_bytes,
        )

    encode()
    spoils: list[Callable[[], None]] = [
        lambda: encode(container_id=2**32),
        lambda: encode(epoch=-1),
        lambda: encode(segment_id=2**64),
        lambda: encode(start_offset=2**64 - 1),
        lambda: encode(parts=()),
        lambda: encode(parts=(b"",)),
        lambda: encode(extent_bytes=0),
        lambda: encode(extent_bytes=2**24 + 1),
    ]
    for spoil in spoils:
        with pytest.raises(ValueError):
            spoil()
