"""Bytes of records, and of the index on disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.tables.index_store import (
    IndexState,
    TableId,
    decode_place,
    decode_state,
    encode_place,
    encode_state,
    entries_prefix,
    state_key,
)
from segmentstore.tables.key_filter import KeyFilter
from segmentstore.tables.segment_records import runs_of
from segmentstore.tables.table_index import order_key
from segmentstore.tables.table_records import (
    COPY,
    PUT,
    REMOVAL,
    KeyLocation,
    MalformedRecordError,
    TableRecord,
    copy_length,
    copy_parts,
    decode_records,
    put_length,
    put_parts,
    removal_length,
    removal_parts,
    value_of,
)

keys = st.binary(min_size=1, max_size=40)
values = st.binary(max_size=80)
Item = tuple[int, bytes, bytes]
items = st.lists(st.tuples(st.sampled_from([PUT, REMOVAL, COPY]), keys, values), max_size=12)
START = 1000


def encoded(records: list[Item]) -> bytes:
    parts: list[bytes] = []
    for kind, key, value in records:
        if kind == PUT:
            parts += put_parts(key, value)
        elif kind == REMOVAL:
            parts += removal_parts(key)
        else:
            parts += copy_parts(key, value, 17)
    return b"".join(parts)


def test_the_bytes_of_each_kind() -> None:
    assert b"".join(put_parts(b"key", b"value")).hex() == ("010003000000056b657976616c7565")
    assert b"".join(removal_parts(b"key")).hex() == "020003000000006b6579"
    assert b"".join(copy_parts(b"key", b"value", 258)).hex() == (
        "0300030000000500000000000001026b657976616c7565"
    )


def test_the_keys_and_values_of_the_index_on_disk() -> None:
    table = TableId(3, 258)
    assert state_key(table).hex() == "01000000030000000000000102"
    assert entries_prefix(table).hex() == "02000000030000000000000102"
    state = IndexState(end=258, entry_count=2, live_bytes=77, tail_length=64, tail_crc32c=9)
    assert encode_state(state).hex() == (
        "0100000000000001020000000000000002000000000000004d4000000009"
    )
    assert decode_state(encode_state(state)) == state
    assert decode_state(b"\x02" + encode_state(state)[1:]) is None
    assert encode_place(KeyLocation(258, 12, 258)).hex() == "00000000000001020000000c"
    assert encode_place(KeyLocation(258, 12, 5)).hex() == (
        "00000000000001020000000c0000000000000005"
    )


@given(keys | st.integers(1000, 8192).map(lambda n: b"k" * n), st.booleans())
def test_a_place_comes_back_with_its_whole_key(key: bytes, copied: bool) -> None:
    location = KeyLocation(5000, 40, 7 if copied else 5000)
    place = order_key(key)
    value = encode_place(location) if place is key else encode_place(location, key)
    assert decode_place(place, value) == (key, location)
    assert (place is key) == (len(key) <= 1024)


@given(st.lists(st.lists(keys, max_size=8), max_size=8))
def test_a_filter_knows_all_that_was_added(batches: list[list[bytes]]) -> None:
    key_filter = KeyFilter()
    seen: set[bytes] = set()
    for batch in batches:
        repeated = [key for place, key in enumerate(batch) if key in seen or key in batch[:place]]
        assert set(repeated) <= set(key_filter.add(batch))
        seen.update(batch)
    assert len(KeyFilter().add([b"%d" % number for number in range(2000)])) < 20


@given(items, st.data())
def test_records_come_back_however_they_are_cut(records: list[Item], data: st.DataObject) -> None:
    whole = encoded(records)
    cut = data.draw(st.integers(0, len(whole)))
    first, used = decode_records(whole[:cut], START)
    rest, used_then = decode_records(whole[used:], START + used)
    assert used + used_then == len(whole)
    found = [_item(record, whole) for record in first]
    found += [_item(record, whole[used:]) for record in rest]
    assert found == [(kind, key, b"" if kind == REMOVAL else value) for kind, key, value in records]
    position = START
    for record, (kind, key, value) in zip([*first, *rest], records, strict=True):
        offset, length, version = record.location
        assert offset == position
        assert version == (17 if kind == COPY else offset)
        assert (
            length
            == {
                PUT: put_length(key, value),
                REMOVAL: removal_length(key),
                COPY: copy_length(key, len(value)),
            }[kind]
        )
        position += length


def _item(record: TableRecord, data: bytes) -> Item:
    return record.kind, record.key, data[record.value_start : record.value_end]


@given(st.binary(max_size=200))
def test_other_bytes_are_one_error(data: bytes) -> None:
    try:
        records, used = decode_records(data, START)
    except MalformedRecordError as raised:
        offset = raised.offset
    else:
        offset = START
        assert sum(record.location.length for record in records) == used <= len(data)
    assert START <= offset <= START + len(data)


@pytest.mark.parametrize(
    "head",
    [
        "00000100000000",  # no kind
        "04000100000000",
        "01000000000000",  # no key
        "01200100000000",  # a key of 8,193 bytes
        "01000100100000",  # key and value have 1 MiB and a byte
        "02000100000001",  # a removal with a value
        "0300010000000000000000000003e861",  # a copy that is as old as itself
        "03000100000000ffffffffffffffff61",
    ],
)
def test_a_head_out_of_bounds_is_refused_before_its_body_is_there(head: str) -> None:
    with pytest.raises(MalformedRecordError) as caught:
        decode_records(bytes.fromhex(head), START)
    assert caught.value.offset == START


@given(keys, values, st.data())
def test_a_value_is_given_only_of_the_record_that_is_meant(
    key: bytes, value: bytes, data: st.DataObject
) -> None:
    record = b"".join(put_parts(key, value))
    location = KeyLocation(START, len(record), START)
    assert value_of(record, key, location) == value
    assert value_of(record, key + b"x", location) is None
    assert value_of(record[:-1], key, location) is None
    assert value_of(record + b"x", key, location) is None
    assert value_of(record, key, location._replace(version=5)) is None
    removal = b"".join(removal_parts(key))
    assert value_of(removal, key, KeyLocation(START, len(removal), START)) is None


places = st.lists(
    st.builds(
        lambda offset, length: KeyLocation(offset, length, offset),
        st.integers(0, 2_000_000),
        st.integers(8, 300_000),
    ),
    max_size=12,
)


@given(places)
def test_runs_have_each_record_once_and_are_bounded(locations: list[KeyLocation]) -> None:
    runs = runs_of(locations)
    assert [each for run in runs for each in run] == sorted(set(locations))
    for run in runs:
        ends = [each.offset + each.length for each in run]
        assert len(run) == 1 or ends[-1] - run[0].offset <= 256 * 1024
        assert all(after.offset - end <= 4096 for end, after in zip(ends, run[1:], strict=False))
