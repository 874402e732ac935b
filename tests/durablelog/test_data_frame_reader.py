"""Records through builder and reader, and the reader's rules one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.data_frame import ENTRY_FIRST, ENTRY_HEADER, ENTRY_LAST, ENTRY_WHOLE
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from segmentstore.contracts.errors import DataCorruptionError

MIDDLE = 0


def frame(sequence: int, *entries: tuple[int, bytes], epoch: int = 1) -> LogFrame:
    payload = b"".join(ENTRY_HEADER.pack(len(data), flags) + data for flags, data in entries)
    return LogFrame(LogAddress(sequence * 1000), sequence, epoch, memoryview(payload))


def records(reader: DataFrameReader, *frames: LogFrame) -> list[bytes]:
    return [bytes(record.data) for one in frames for record in reader.feed(one)]


@given(
    payload_max=st.integers(16, 80),
    script=st.lists(
        st.one_of(st.none(), st.lists(st.binary(min_size=0, max_size=60), min_size=1, max_size=4)),
        max_size=30,
    ),
)
def test_records_come_back_as_they_went_in(
    payload_max: int, script: list[list[bytes] | None]
) -> None:
    builder = DataFrameBuilder(payload_max)
    payloads: list[bytes] = []
    expected: list[bytes] = []
    for parts in script:
        if parts is None:
            sealed = builder.seal()
            payloads += [b"".join(bytes(part) for part in sealed)] if sealed else []
            continue
        data = b"".join(parts)
        if not data:
            continue
        builder.add(parts, len(data))
        expected.append(data)
        payloads += [b"".join(bytes(part) for part in full) for full in builder.take_full()]
        assert 0 <= builder.room <= payload_max - 5
    sealed = builder.seal()
    payloads += [b"".join(bytes(part) for part in sealed)] if sealed else []
    assert all(0 < len(payload) <= payload_max for payload in payloads)
    reader = DataFrameReader()
    frames = [
        LogFrame(LogAddress(number), number, 1, memoryview(payload))
        for number, payload in enumerate(payloads, 1)
    ]
    assert records(reader, *frames) == expected
    reader.finish()
    assert (reader.dropped, reader.skipped, reader.repeated) == (0, 0, 0)


def test_addresses_of_a_record_over_three_frames() -> None:
    reader = DataFrameReader()
    reader.feed(frame(1, (ENTRY_WHOLE, b"a"), (ENTRY_FIRST, b"b")))
    reader.feed(frame(2, (MIDDLE, b"c")))
    (spanning, whole) = reader.feed(frame(3, (ENTRY_LAST, b"d"), (ENTRY_WHOLE, b"e")))
    assert spanning[:3] == (b"bcd", 1000, 3000)
    assert (bytes(whole.data), *whole[1:3]) == (b"e", 3000, 3000)


@given(
    payload_max=st.integers(16, 80),
    contents=st.lists(st.binary(min_size=1, max_size=200), max_size=12),
    skip=st.integers(0, 199),
)
def test_a_record_knows_where_its_bytes_lie(
    payload_max: int, contents: list[bytes], skip: int
) -> None:
    """Whole in a frame, and over several; from its beginning, and from any byte on."""
    builder = DataFrameBuilder(payload_max)
    payloads: list[bytes] = []
    for data in contents:
        builder.add([data], len(data))
        payloads += [b"".join(full) for full in builder.take_full()]
    payloads.append(b"".join(builder.seal() or []))
    log, reader, found = bytearray(), DataFrameReader(), []
    for number, payload in enumerate(filter(None, payloads), 1):
        log += b"header"
        placed = LogFrame(LogAddress(number), number, 1, memoryview(payload), LogAddress(len(log)))
        log += payload
        found += reader.feed(placed)
    assert [record.data for record in found] == contents
    for record, data in zip(found, contents, strict=True):
        for position in {0, min(skip, len(data) - 1)}:
            places = record.places_from(position)
            assert all(length for _, length in places)
            pieces = [log[address : address + length] for address, length in places]
            assert b"".join(pieces) == data[position:]


def test_records_of_a_log_that_is_not_read_by_place_know_no_places() -> None:
    reader = DataFrameReader()
    (whole,) = reader.feed(frame(1, (ENTRY_WHOLE, b"a"), (ENTRY_FIRST, b"b")))
    (spanning,) = reader.feed(frame(2, (ENTRY_LAST, b"c")))
    assert whole.places_from(0) == spanning.places_from(0) == ()


def test_many_small_parts_are_joined_and_large_ones_left_alone() -> None:
    builder = DataFrameBuilder(1 << 20)
    for _ in range(100):
        builder.add([b"x" * 10, b"y"], 11)
    large = bytes(10_000)
    builder.add([large], len(large))
    sealed = builder.seal()
    assert sealed is not None
    assert len(sealed) == 2
    assert sealed[1] is large


def test_a_wrong_length_is_noticed() -> None:
    builder = DataFrameBuilder(64)
    builder.add([b"abc"], 2)
    with pytest.raises(ValueError, match="announced"):
        builder.seal()
    for length in (0, -1, 500):
        with pytest.raises(ValueError, match="announced"):
            DataFrameBuilder(64).add([b"abc"], length)
    with pytest.raises(ValueError, match="payload_bytes_max"):
        DataFrameBuilder(15)


def test_a_repeated_frame_is_dropped_before_reassembly() -> None:
    reader = DataFrameReader()
    first, second = frame(1, (ENTRY_FIRST, b"a")), frame(2, (ENTRY_LAST, b"b"))
    assert records(reader, first, first, second, first, second, frame(3, (ENTRY_WHOLE, b"c"))) == [
        b"ab",
        b"c",
    ]
    assert reader.repeated == 3


@pytest.mark.parametrize(
    "wrong",
    [
        frame(2, (ENTRY_WHOLE, b"other")),
        frame(4, (ENTRY_WHOLE, b"hole")),
        frame(3, (MIDDLE, b"no open record")),
        frame(3, (ENTRY_LAST, b"no open record")),
        frame(3, (7, b"unknown flag")),
        frame(3, (ENTRY_WHOLE, b"")),
        frame(3),
        frame(3, (ENTRY_WHOLE, b"epoch back"), epoch=0),
        LogFrame(LogAddress(3000), 3, 1, memoryview(b"\0\0")),
        LogFrame(LogAddress(3000), 3, 1, memoryview(b"\0\0\0\x09\x03abc")),
    ],
)
def test_what_is_out_of_place_is_corruption_named_by_address_and_frame(wrong: LogFrame) -> None:
    reader = DataFrameReader()
    records(reader, frame(1, (ENTRY_WHOLE, b"a")), frame(2, (ENTRY_WHOLE, b"b")))
    with pytest.raises(DataCorruptionError) as caught:
        reader.feed(wrong)
    assert caught.value.where == f"log address {wrong.address:#x} frame {wrong.sequence}"


def test_pieces_at_the_head_belong_to_what_was_truncated() -> None:
    reader = DataFrameReader()
    found = records(
        reader, frame(7, (MIDDLE, b"x")), frame(8, (ENTRY_LAST, b"y"), (ENTRY_WHOLE, b"z"))
    )
    assert found == [b"z"]
    assert reader.skipped == 2
    with pytest.raises(DataCorruptionError):
        reader.feed(frame(9, (ENTRY_LAST, b"w")))


def test_a_head_piece_behind_a_whole_record_of_the_same_frame_is_corruption() -> None:
    with pytest.raises(DataCorruptionError):
        DataFrameReader().feed(frame(1, (ENTRY_WHOLE, b"a"), (ENTRY_LAST, b"b")))


def test_a_record_cut_by_its_owners_death_is_dropped_when_the_epoch_grew() -> None:
    reader = DataFrameReader()
    cut = frame(1, (ENTRY_WHOLE, b"a"), (ENTRY_FIRST, b"b"))
    assert records(reader, cut, frame(2, (ENTRY_WHOLE, b"c"), epoch=2)) == [b"a", b"c"]
    assert reader.dropped == 1


def test_the_same_within_one_epoch_is_corruption_and_so_is_continuing_in_another() -> None:
    for wrong in (frame(2, (ENTRY_WHOLE, b"c")), frame(2, (ENTRY_LAST, b"c"), epoch=2)):
        reader = DataFrameReader()
        reader.feed(frame(1, (ENTRY_FIRST, b"b")))
        with pytest.raises(DataCorruptionError):
            reader.feed(wrong)


def test_an_open_record_at_the_end_is_dropped() -> None:
    reader = DataFrameReader()
    assert records(reader, frame(1, (ENTRY_WHOLE, b"a"), (ENTRY_FIRST, b"b"))) == [b"a"]
    reader.finish()
    assert reader.dropped == 1
