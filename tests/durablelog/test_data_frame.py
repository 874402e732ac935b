"""The frame format, byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from durablelog.data_frame import (
    FRAME_HEADER_LENGTH,
    FrameFormatError,
    FrameVersionError,
    header_length_at,
    pack_header,
    parse_header,
    payload_fault,
    seal_header,
)
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.durable_data_log import LogAddress
from durablelog.file.log_layout import (
    FILE_HEADER_LENGTH,
    FileHeader,
    LogState,
    file_name,
    file_number,
    make_address,
    pack_file_header,
    pack_state,
    parse_file_header,
    parse_state,
    split_address,
)
from segmentstore.contracts.checksum import Buffer, crc32c

GOLDEN = Path(__file__).parent / "golden"


def with_version(header: bytes, version: int) -> bytes:
    fields = header[:4] + struct.pack(">H", version) + header[6:-4]
    return fields + struct.pack(">I", crc32c(fields))


def golden_frame() -> bytes:
    builder = DataFrameBuilder(64)
    builder.add([b"hello, ", b"log"], 10)
    builder.add([b"!"], 1)
    payload = b"".join(bytes(part) for part in builder.seal() or [])
    return seal_header(7, 3, 42, 41, [payload]) + payload


def golden_file_header() -> bytes:
    return pack_file_header(FileHeader(7, 5, 3, 42, 41))


def golden_state() -> bytes:
    return pack_state(LogState(7, 3, make_address(5, 4096), 42))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("frame.bin", golden_frame()),
        ("file-header.bin", golden_file_header()),
        ("state.bin", golden_state()),
    ],
)
def test_what_is_written_is_the_golden_file(name: str, content: bytes) -> None:
    assert (GOLDEN / name).read_bytes() == content


def test_the_golden_files_are_read() -> None:
    data = memoryview((GOLDEN / "frame.bin").read_bytes())
    header = parse_header(data, 0)
    assert header is not None
    assert header[:6] == (FRAME_HEADER_LENGTH, 7, 3, 42, 41, 21)
    assert payload_fault(header, data[FRAME_HEADER_LENGTH:]) is None
    assert parse_file_header((GOLDEN / "file-header.bin").read_bytes()) == FileHeader(
        7, 5, 3, 42, 41
    )
    assert parse_state((GOLDEN / "state.bin").read_bytes()) == LogState(
        7, 3, LogAddress((5 << 32) + 4096), 42
    )


def test_every_flipped_bit_of_a_frame_is_noticed() -> None:
    whole = golden_frame()
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        try:
            header = parse_header(memoryview(data), 0)
        except FrameFormatError:
            continue
        assert header is not None
        assert payload_fault(header, memoryview(data)[header.header_length :]) is not None


def test_nothing_is_zeros_or_the_end_and_a_piece_of_a_header_is_not_nothing() -> None:
    assert parse_header(memoryview(bytes(100)), 0) is None
    assert parse_header(memoryview(bytes(10)), 0) is None
    assert parse_header(memoryview(b""), 0) is None
    for length in range(1, FRAME_HEADER_LENGTH):
        with pytest.raises(FrameFormatError):
            parse_header(memoryview(golden_frame()[:length]), 0)


def test_unknown_fields_are_skipped_and_newer_versions_refused() -> None:
    whole = golden_frame()
    fields = (
        whole[:6]
        + struct.pack(">H", FRAME_HEADER_LENGTH + 8)
        + whole[8 : FRAME_HEADER_LENGTH - 4]
        + b"newfield"
    )
    longer = fields + struct.pack(">I", crc32c(fields)) + whole[FRAME_HEADER_LENGTH:]
    header = parse_header(memoryview(longer), 0)
    assert header is not None
    assert (
        header.header_length == header_length_at(memoryview(longer), 0) == FRAME_HEADER_LENGTH + 8
    )
    assert header.frame_length == len(longer)
    assert payload_fault(header, memoryview(longer)[header.header_length :]) is None
    newer = with_version(whole[:FRAME_HEADER_LENGTH], 2)
    with pytest.raises(FrameVersionError) as caught:
        parse_header(memoryview(newer), 0)
    assert caught.value.version == 2


def test_a_payload_of_parts_is_sealed_as_their_concatenation() -> None:
    parts: list[Buffer] = [b"a", bytearray(b"bc"), memoryview(b"def")]
    sealed = seal_header(1, 2, 3, 0, parts)
    assert sealed == seal_header(1, 2, 3, 0, [b"abcdef"])
    assert sealed == pack_header(1, 2, 3, 0, 6, crc32c(b"abcdef"))


@pytest.mark.parametrize("parse", [parse_file_header, parse_state])
def test_every_damaged_bit_of_the_other_records_is_noticed(parse: object) -> None:
    whole = golden_file_header()[:48] if parse is parse_file_header else golden_state()
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameFormatError):
            parse(bytes(data))  # type: ignore[operator]


def test_names_and_addresses() -> None:
    assert file_number(file_name(26)) == 26
    assert file_name(26) == "000000000000001a.log"
    for name in (
        "LOCK",
        "state-0000000000000001",
        "next-1-0.tmp",
        "1.log",
        "000000000000001A.log",
        "000000000000001a.log.tmp",
    ):
        assert file_number(name) is None
    assert split_address(make_address(26, 4096)) == (26, 4096)
    assert make_address(1, 2**32 - 1) < make_address(2, 0)
    assert len(golden_file_header()) == FILE_HEADER_LENGTH
