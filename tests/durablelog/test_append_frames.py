"""Frames of appends are decoded as the reader and the codec do it, and all others left to them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.append_frames import plain_entry, whole_appends
from durablelog.data_frame import ENTRY_FIRST, ENTRY_HEADER, ENTRY_LAST, ENTRY_WHOLE
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.operation_codec import (
    APPEND_HEAD_LENGTH,
    OperationFormatError,
    decode_operation,
    encode_operation,
)
from durablelog.operations import AppendOperation, Operation, SealOperation, TruncateOperation
from segmentstore.contracts.errors import DataCorruptionError

NUMBERS = st.integers(0, 2**64 - 1)
PLAIN = st.builds(
    AppendOperation,
    NUMBERS,
    NUMBERS,
    st.binary(max_size=40),
    sequence_number=NUMBERS,
    timestamp_ms=NUMBERS,
)
KEYS = st.binary(min_size=16, max_size=16)
APPENDS = st.builds(
    AppendOperation,
    NUMBERS,
    NUMBERS,
    st.binary(max_size=40),
    st.one_of(
        st.none(), st.dictionaries(KEYS, st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3)
    ),
    sequence_number=NUMBERS,
    timestamp_ms=NUMBERS,
)
OTHERS = st.one_of(
    st.builds(SealOperation, NUMBERS, NUMBERS),
    st.builds(TruncateOperation, NUMBERS, NUMBERS, st.booleans()),
)
ADDRESS = LogAddress(1 << 40)
PLACED = 20


def payload_of(operations: list[Operation]) -> bytes:
    entries = [b"".join(encode_operation(each)) for each in operations]
    return b"".join(ENTRY_HEADER.pack(len(each), ENTRY_WHOLE) + each for each in entries)


def read(payload: bytes) -> list[AppendOperation] | None:
    """The way of all other frames; None if that refuses it, or finds something else."""
    frame = LogFrame(LogAddress(1), 1, 1, memoryview(payload), ADDRESS)
    reader, found = DataFrameReader(), list[AppendOperation]()
    try:
        for record in reader.feed(frame):
            operation = decode_operation(record.data)
            if not isinstance(operation, AppendOperation):
                return None
            if len(operation.data) >= PLACED:
                operation.places = record.places_from(len(record.data) - len(operation.data))
            found.append(operation)
    except (DataCorruptionError, OperationFormatError):
        return None
    return found if reader.between_records else None


def whole(payload: bytes) -> list[AppendOperation] | None:
    return whole_appends(memoryview(payload), ADDRESS, PLACED)


@given(st.lists(APPENDS, min_size=1, max_size=8))
def test_whole_appends_come_back_with_their_places(appends: list[AppendOperation]) -> None:
    payload = payload_of(list(appends))
    found = whole(payload)
    assert found == read(payload)
    assert found is not None
    for append, expected in zip(found, appends, strict=True):
        assert isinstance(append.data, memoryview)
        places, append.places = append.places, ()
        assert append == expected
        assert b"".join(
            payload[address - ADDRESS :][:length] for address, length in places
        ) == bytes(append.data if len(append.data) >= PLACED else b"")


@given(st.lists(PLAIN, min_size=1, max_size=8))
def test_entries_are_those_of_codec_and_builder(appends: list[AppendOperation]) -> None:
    builders = DataFrameBuilder(1000), DataFrameBuilder(1000)
    for append in appends:
        parts = encode_operation(append)
        builders[0].add(parts, sum(map(len, parts)))
        builders[1].add_entry(plain_entry(append), append.data)
        assert builders[0].used == builders[1].used
    payloads = [b"".join(builder.seal() or ()) for builder in builders]
    assert payloads == [payload_of(list(appends))] * 2


def test_an_entry_that_does_not_fit_the_frame_is_refused_and_changes_nothing() -> None:
    builder = DataFrameBuilder(100)
    append = AppendOperation(1, 2, bytes(10))
    entry = plain_entry(append)
    builder.add_entry(entry, append.data)
    builder.add_entry(entry, bytes(100 - 2 * len(entry) - 10))
    with pytest.raises(ValueError, match="no room for an entry of 46 bytes"):
        builder.add_entry(entry, b"1")
    assert sum(map(len, builder.seal() or ())) == 100


def test_without_an_address_there_are_no_places() -> None:
    payload = payload_of([AppendOperation(1, 2, bytes(PLACED))])
    found = whole_appends(memoryview(payload), None, 0)
    assert found == [AppendOperation(1, 2, bytes(PLACED))]


@given(st.lists(APPENDS, max_size=4), OTHERS, st.lists(APPENDS, max_size=4))
def test_a_frame_with_anything_else_is_left(
    before: list[AppendOperation], other: Operation, behind: list[AppendOperation]
) -> None:
    assert whole(payload_of([*before, other, *behind])) is None


@given(st.lists(APPENDS, min_size=1, max_size=4), st.data())
def test_a_damaged_frame_is_left_or_read_as_the_others_read_it(
    appends: list[AppendOperation], data: st.DataObject
) -> None:
    payload = bytearray(payload_of(list(appends)))
    # Heads are met more often than bytes.
    first = st.integers(0, ENTRY_HEADER.size + APPEND_HEAD_LENGTH - 1)
    place = data.draw(st.one_of(first, st.integers(0, len(payload) - 1)))
    payload[place] ^= 1 << data.draw(st.integers(0, 7))
    del payload[data.draw(st.one_of(st.just(len(payload)), st.integers(0, len(payload)))) :]
    found = whole(bytes(payload))
    # A revision that is not known is skipped by them, and a head that is cut off refused.
    assert found is None or found == read(bytes(payload))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param(3, 45 + 1, id="an entry of one byte more"),
        pytest.param(3, 45 - 1, id="an entry of one byte less"),
        pytest.param(3, 5, id="an entry that is no head"),
        pytest.param(4, ENTRY_FIRST, id="a record that goes on"),
        pytest.param(4, ENTRY_LAST, id="a record that began before"),
        pytest.param(5, SealOperation.type_id, id="another operation"),
        pytest.param(6, 2, id="a newer version"),
        pytest.param(26, 18 + 4, id="another revision"),
        pytest.param(26, 18 + 6, id="a length beyond the record"),
        pytest.param(44, 1, id="an attribute beyond the entry"),
    ],
)
def test_each_field_of_a_head_counts(place: int, value: int) -> None:
    payload = bytearray(payload_of([AppendOperation(1, 2, b"bytes")]))
    assert whole(bytes(payload)) is not None
    assert payload[place] != value
    payload[place] = value
    assert whole(bytes(payload)) is None


def test_a_head_ends_in_its_entry() -> None:
    """The fields behind it would be those of the next entry."""
    cut = struct.pack(">BBQQI", AppendOperation.type_id, 1, 5, 6, 3) + b"abc"
    # The low bytes of this number are where attributes are counted.
    behind = payload_of([AppendOperation(1, 2, b"bytes", sequence_number=1 << 16)])
    assert whole(ENTRY_HEADER.pack(len(cut), ENTRY_WHOLE) + cut + behind) is None


def test_attributes_end_in_the_frame() -> None:
    """Though the entry says that it goes on."""
    payload = payload_of([AppendOperation(1, 2, b"", {bytes(16): 1})])
    assert whole(payload) is not None
    assert whole(payload[:-1]) is None


def test_an_empty_frame_is_left() -> None:
    assert whole(b"") is None
