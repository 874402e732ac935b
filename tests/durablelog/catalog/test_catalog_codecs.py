"""Keys and records of the metadata catalog: their order, their ranges, and what is refused."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durablelog.catalog.catalog_keys import (
    CatalogAttributeKey,
    CatalogKey,
    ChunkPageKey,
    ChunkPlaceKey,
    DeletionClockKey,
    GarbageKey,
    MetadataFormatError,
    NameKey,
    ObjectKey,
    SegmentIdKey,
    TotalsKey,
    UnflushedKey,
    attribute_range,
    chunk_page_range,
    chunk_place_range,
    decode_key,
    garbage_range,
    name_range,
    object_range,
    segment_range,
    unflushed_range,
)
from durablelog.catalog.catalog_records import (
    CatalogTotals,
    ChunkPlace,
    LiveObjectRecord,
    LongChunks,
    SegmentRecord,
    decode_attribute,
    decode_chunk_page,
    decode_chunk_place,
    decode_deletion_clock,
    decode_garbage,
    decode_object,
    decode_segment,
    decode_segment_id,
    decode_totals,
    encode_attribute,
    encode_chunk_page,
    encode_chunk_place,
    encode_deletion_clock,
    encode_garbage,
    encode_object,
    encode_segment,
    encode_segment_id,
    encode_totals,
)
from durablelog.catalog.key_ranges import StoreKeyRange, prefix_range
from durablelog.catalog.key_store_records import (
    IDENTITY_KEY,
    SEQUENCE_NUMBER_KEY,
    VERSION,
    KeyStoreIdentity,
    decode_identity,
    decode_sequence_number,
    encode_identity,
    encode_sequence_number,
)
from segmentstore.contracts.attributes import ATTRIBUTE_UNSET
from segmentstore.contracts.chunk_list import PAGE_CHUNKS_MAX
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import MergeRecord, SegmentMetadata
from segmentstore.contracts.object_states import DeletionClockReading, GarbageObject, LiveObject
from segmentstore.contracts.segments import NAME_BYTES_MAX
from tests.tier2.archive.sample_parts import archive_of

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
NUMBER_MAX = 2**64 - 1

numbers = st.one_of(st.integers(0, 3), st.integers(0, NUMBER_MAX), st.just(NUMBER_MAX))
letters = st.one_of(
    st.sampled_from("ab\x01\x7f\x80\u07ff\uffff\U0010ffff"),
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
)
names = st.text(letters, min_size=1, max_size=6)
ids = st.one_of(st.sampled_from([bytes(16), b"\xff" * 16]), st.binary(min_size=16, max_size=16))
KINDS: dict[type, st.SearchStrategy[Any]] = {
    SegmentIdKey: st.builds(SegmentIdKey, numbers),
    NameKey: st.builds(NameKey, names),
    ChunkPageKey: st.builds(ChunkPageKey, numbers, numbers),
    CatalogAttributeKey: st.builds(CatalogAttributeKey, numbers, ids),
    ObjectKey: st.builds(ObjectKey, names),
    ChunkPlaceKey: st.builds(ChunkPlaceKey, names, numbers, numbers),
    GarbageKey: st.builds(GarbageKey, numbers, names),
    DeletionClockKey: st.just(DeletionClockKey()),
    UnflushedKey: st.builds(UnflushedKey, numbers),
    TotalsKey: st.just(TotalsKey()),
}
"""In the order of their tables."""
keys = st.one_of(*KINDS.values())


def rank(key: CatalogKey) -> tuple[int, tuple[Any, ...]]:
    return list(KINDS).index(type(key)), tuple(key)


def holds(wanted: StoreKeyRange, key: CatalogKey) -> bool:
    return wanted.start <= key.encode() < wanted.end


@given(keys, keys)
def test_keys_are_ordered_as_their_tuples_are(one: CatalogKey, other: CatalogKey) -> None:
    assert (one.encode() < other.encode()) == (rank(one) < rank(other))
    assert decode_key(one.encode()) == one
    assert type(decode_key(one.encode())) is type(one)
    assert one.encode()[0] > 0


@given(keys, numbers, names, ids)
def test_a_range_has_exactly_its_keys(
    key: CatalogKey, number: int, name: str, attribute_id: bytes
) -> None:
    wanted = {
        segment_range(): isinstance(key, SegmentIdKey),
        name_range(): isinstance(key, NameKey),
        name_range(name): isinstance(key, NameKey) and key.name.startswith(name),
        chunk_page_range(number): isinstance(key, ChunkPageKey) and key.segment_id == number,
        chunk_page_range(1, number): isinstance(key, ChunkPageKey)
        and key.segment_id == 1
        and key.first_offset <= number,
        attribute_range(number): isinstance(key, CatalogAttributeKey) and key.segment_id == number,
        attribute_range(1, attribute_id): isinstance(key, CatalogAttributeKey)
        and key.segment_id == 1
        and key.attribute_id >= attribute_id,
        object_range(): isinstance(key, ObjectKey),
        object_range(name): isinstance(key, ObjectKey) and key.name.startswith(name),
        chunk_place_range(name): isinstance(key, ChunkPlaceKey) and key.object_name == name,
        garbage_range(): isinstance(key, GarbageKey),
        garbage_range(number): isinstance(key, GarbageKey) and key.sequence_number <= number,
        unflushed_range(): isinstance(key, UnflushedKey),
    }
    assert {where: holds(where, key) for where in wanted} == wanted


@given(st.lists(keys, min_size=2, max_size=2))
def test_what_is_behind_a_key_follows_it(pair: list[CatalogKey]) -> None:
    first, second = (key.encode() for key in pair)
    rest = StoreKeyRange(b"\x01", b"\xff").behind(first)
    assert (rest.start <= second) == (first < second)


def test_a_prefix_that_nothing_follows_has_no_range() -> None:
    with pytest.raises(ValueError, match="no key is behind"):
        prefix_range(b"\xff\xff")


def test_names_have_a_length_and_no_zero_byte() -> None:
    longest = "é" * (NAME_BYTES_MAX // 2)
    assert decode_key(NameKey(longest).encode()) == NameKey(longest)
    assert decode_key(ChunkPlaceKey(longest, 0, 0).encode()) == ChunkPlaceKey(longest, 0, 0)
    for name in ("", "a\0b", longest + "a", "\ud800"):
        for key in (NameKey(name), ObjectKey(name), ChunkPlaceKey(name, 1, 2), GarbageKey(1, name)):
            with pytest.raises(MetadataFormatError):
                key.encode()
    with pytest.raises(MetadataFormatError):
        CatalogAttributeKey(1, b"short").encode()


@given(keys, st.binary(max_size=3))
def test_what_is_no_key_is_refused(key: CatalogKey, more: bytes) -> None:
    for data in (key.encode()[:-1], key.encode() + more):
        try:
            found = decode_key(data)
        except MetadataFormatError:
            continue
        assert found.encode() == data


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x00\x01", b"\x0b", b"\xff", b"\x08\x00", b"\x01" + bytes(7), b"\x02", b"\x05"),
        *(b"\x02a\x00", b"\x02" + b"a" * (NAME_BYTES_MAX + 1), b"\x02\xff", b"\x02\xed\xa0\x80"),
        *(b"\x03" + bytes(17), b"\x04" + bytes(23), b"\x06a" + bytes(16), b"\x06" + bytes(17)),
        *(b"\x07" + bytes(8), b"\x07" + bytes(7), b"\x09" + bytes(7), b"\x09" + bytes(9)),
        *(b"\x09", b"\x0a\x00"),
    ],
)
def test_malformed_keys_are_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        decode_key(data)


# --- values ---------------------------------------------------------------------------------------

merges = st.builds(MergeRecord, numbers, numbers, numbers)
fixed = (numbers, names, numbers, numbers, numbers, numbers, numbers, st.booleans())
counts = st.integers(0, 2**32 - 1)
long_chunks = st.one_of(st.none(), st.builds(LongChunks, st.integers(2, 2**64 - 1), numbers))
segments = st.one_of(
    st.builds(
        SegmentRecord,
        *(*fixed, st.one_of(st.none(), numbers), counts),
        st.lists(merges, max_size=3).map(tuple),
        *(long_chunks, st.booleans(), st.just(False)),
    ),
    st.builds(
        SegmentRecord,
        *(*fixed, st.none(), counts, st.just(())),
        *(long_chunks, st.just(True), st.just(True)),
    ),
)
"""Of any kind, and those that are left of deleted ones."""


@st.composite
def pages(draw: st.DrawFn) -> list[ChunkRecord]:
    position, chunks = draw(st.integers(0, 2**62)), []
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, 2**40))
        place = [draw(numbers) for _ in range(3)]
        chunks.append(ChunkRecord(position, length, draw(names), *place))
        position += length
    return chunks


objects = st.builds(ObjectRecord, names, numbers, numbers)
CODECS: dict[str, tuple[Any, Any, st.SearchStrategy[Any]]] = {
    "segment": (encode_segment, lambda value, old: decode_segment(old.segment_id, value), segments),
    "name": (encode_segment_id, lambda value, _: decode_segment_id(value), numbers),
    "page": (encode_chunk_page, lambda value, _: decode_chunk_page(value), pages()),
    "attribute": (
        encode_attribute,
        lambda value, _: decode_attribute(value),
        st.integers(ATTRIBUTE_UNSET + 1, 2**63 - 1),
    ),
    "object": (
        encode_object,
        lambda value, old: decode_object(old.record.name, value),
        st.builds(LiveObjectRecord, objects, numbers, numbers),
    ),
    "place": (
        encode_chunk_place,
        lambda value, _: decode_chunk_place(value),
        st.builds(ChunkPlace, numbers, numbers, numbers, numbers),
    ),
    "garbage": (
        encode_garbage,
        lambda value, old: decode_garbage(GarbageKey(old.sequence_number, old.record.name), value),
        st.builds(
            *(GarbageObject, objects, numbers, numbers),
            st.one_of(st.none(), st.integers(0, NUMBER_MAX - 1)),
        ),
    ),
    "clock": (
        encode_deletion_clock,
        lambda value, _: decode_deletion_clock(value),
        st.builds(DeletionClockReading, numbers, ids, numbers),
    ),
    "totals": (
        encode_totals,
        lambda value, _: decode_totals(value),
        st.builds(CatalogTotals, numbers, st.integers(0, 600).map(archive_of)),
    ),
    "identity": (
        encode_identity,
        lambda value, _: decode_identity(value),
        st.builds(KeyStoreIdentity, names, st.integers(0, 2**32 - 1)),
    ),
    "number": (encode_sequence_number, lambda value, _: decode_sequence_number(value), numbers),
}


@given(st.sampled_from(sorted(CODECS)), st.data())
def test_a_record_comes_back_and_no_part_of_it_does(name: str, data: st.DataObject) -> None:
    encode, decode, records = CODECS[name]
    record = data.draw(records)
    value = encode(record)
    assert decode(value, record) == record
    for wrong in (value[:-1], value[: len(value) // 2], b"", value + b"\0"):
        with pytest.raises(MetadataFormatError):
            decode(wrong, record)


@given(st.sampled_from(sorted(CODECS)), st.binary(max_size=120), st.data())
def test_other_bytes_are_refused_with_our_error(
    name: str, value: bytes, data: st.DataObject
) -> None:
    encode, decode, records = CODECS[name]
    try:
        found = decode(value, data.draw(records))
    except MetadataFormatError:
        return
    assert len(encode(found)) <= len(value)


def test_a_page_is_contiguous_and_bounded() -> None:
    chunks = [ChunkRecord(number, 1, "o", 0, 1, 0) for number in range(PAGE_CHUNKS_MAX + 1)]
    assert decode_chunk_page(encode_chunk_page(chunks[1:])) == chunks[1:]
    for wrong in ([], chunks, [chunks[0], chunks[2]]):
        with pytest.raises(MetadataFormatError):
            encode_chunk_page(wrong)


def test_a_page_has_the_names_of_the_objects_there_are() -> None:
    chunks = [ChunkRecord(number, 1, f"o{number}", 0, 1, 0) for number in range(2)]
    value = encode_chunk_page(chunks)
    live = {
        chunk.object_name: LiveObject(ObjectRecord(chunk.object_name, 1, 1)) for chunk in chunks
    }
    found = decode_chunk_page(value, live)
    assert found == chunks
    assert all(chunk.object_name is live[chunk.object_name].record.name for chunk in found)
    del live["o1"]
    with pytest.raises(MetadataFormatError, match="object o1 is missing"):
        decode_chunk_page(value, live)


def test_no_attribute_is_stored_without_a_value() -> None:
    with pytest.raises(MetadataFormatError):
        encode_attribute(ATTRIBUTE_UNSET)
    with pytest.raises(MetadataFormatError):
        decode_attribute(ATTRIBUTE_UNSET.to_bytes(8, "big", signed=True))


def test_a_catalog_of_another_version_is_refused_and_that_of_an_earlier_one_is_not() -> None:
    identity = KeyStoreIdentity("s", 1)
    value = encode_identity(identity)
    assert value[:2] == VERSION.to_bytes(2, "big")
    assert decode_identity(b"\0\1" + value[2:]) == identity
    for version in (0, VERSION + 1):
        with pytest.raises(MetadataFormatError, match=f"version {version}"):
            decode_identity(version.to_bytes(2, "big") + value[2:])


def test_a_record_has_the_scalar_fields_of_a_segment() -> None:
    fields = set(SegmentRecord._fields) - {"attribute_count", "long_chunks"}
    assert fields <= set(SegmentMetadata.__slots__)


FLAGS = 40
"""Where a segment's record has its flags, in one byte."""


@given(segments, numbers, numbers)
def test_the_chunks_of_several_pages_are_a_tail_of_a_record_and_a_flag(
    segment: SegmentRecord, count: int, start: int
) -> None:
    # What is linked in part has a flag of its own.
    segment = segment._replace(start_offset=0)
    short = encode_segment(segment._replace(long_chunks=None))
    long = encode_segment(segment._replace(long_chunks=LongChunks(count, start)))
    assert not short[FLAGS] & 4
    assert long[FLAGS] == short[FLAGS] | 4
    assert long[:FLAGS] + long[FLAGS + 1 : -16] == short[:FLAGS] + short[FLAGS + 1 :]
    assert long[-16:] == count.to_bytes(8, "big") + start.to_bytes(8, "big")
    for flags, rest in ((short[FLAGS] | 4, short), (short[FLAGS], long), (long[FLAGS] | 32, long)):
        wrong = rest[:FLAGS] + bytes([flags]) + rest[FLAGS + 1 :]
        with pytest.raises(MetadataFormatError):
            decode_segment(segment.segment_id, wrong)


def test_a_merged_segment_that_begins_later_is_linked_in_part_and_no_other_is() -> None:
    merged = SegmentRecord(9, "txn", 1, 1, 12, 30, 30, True, 5, 0, ())
    value = encode_segment(merged)
    assert value[FLAGS] == 1 | 2 | 32, "an older program refuses it"
    assert decode_segment(9, value) == merged
    truncated = encode_segment(merged._replace(merged_into=None))
    whole = encode_segment(merged._replace(start_offset=0))
    for record in (value, truncated, whole):
        wrong = record[:FLAGS] + bytes([record[FLAGS] ^ 32]) + record[FLAGS + 1 :]
        with pytest.raises(MetadataFormatError, match="it begins at"):
            decode_segment(9, wrong)


def test_a_deleted_segment_has_something_to_release_and_no_merges() -> None:
    deleted = SegmentRecord(7, "s", 1, 1, 0, 9, 9, True, None, 0, (), None, True, True)
    value = encode_segment(deleted)
    assert value[FLAGS] == 1 | 8 | 16
    assert not deleted.flushed
    assert not deleted.has_name
    for wrong in (
        deleted._replace(releasing=False),
        deleted._replace(merged_into=5),
        deleted._replace(merges=(MergeRecord(0, 9, 5),)),
    ):
        with pytest.raises(MetadataFormatError, match="deleted"):
            decode_segment(7, encode_segment(wrong))


def golden_samples() -> list[tuple[bytes, bytes]]:
    segment = SegmentRecord(
        *(5, "logs/wéb", 1000, 2000, 10, 100, 60, False, None, 1),
        (MergeRecord(70, 30, 9),),
    )
    long = SegmentRecord(
        *(7, "logs/long", 1000, 3000, 10, 5000, 5000, False, None, 0, ()),
        LongChunks(200, 8),
    )
    merged = SegmentRecord(9, "txn", 2000, 2000, 0, 30, 0, True, 5, 0, ())
    chunks = [
        ChunkRecord(0, 40, "00/3/1/flush-x", 0, 5, 0),
        ChunkRecord(40, 20, "00/3/1/flush-y", 512, 5, 40),
    ]
    live = LiveObjectRecord(ObjectRecord("00/3/1/flush-x", 300, 11), 1, 40)
    garbage = GarbageObject(ObjectRecord("00/3/1/flush-z", 5, 6), 7, 98, None)
    samples = [
        (IDENTITY_KEY, encode_identity(KeyStoreIdentity("000102030405060708090a0b0c0d0e0f", 3))),
        (SEQUENCE_NUMBER_KEY, encode_sequence_number(99)),
        (SegmentIdKey(5).encode(), encode_segment(segment)),
        (SegmentIdKey(7).encode(), encode_segment(long)),
        (SegmentIdKey(9).encode(), encode_segment(merged)),
        (NameKey("logs/long").encode(), encode_segment_id(7)),
        (NameKey("logs/wéb").encode(), encode_segment_id(5)),
        (ChunkPageKey(5, 0).encode(), encode_chunk_page(chunks)),
        (CatalogAttributeKey(5, b"a" * 16).encode(), encode_attribute(-5)),
        (ObjectKey("00/3/1/flush-x").encode(), encode_object(live)),
        (
            ChunkPlaceKey("00/3/1/flush-x", 5, 0).encode(),
            encode_chunk_place(ChunkPlace(40, 0, 5, 0)),
        ),
        (GarbageKey(98, "00/3/1/flush-z").encode(), encode_garbage(garbage)),
        (
            DeletionClockKey().encode(),
            encode_deletion_clock(DeletionClockReading(1, bytes(range(16)), 2)),
        ),
        (UnflushedKey(5).encode(), b""),
        (UnflushedKey(9).encode(), b""),
        (TotalsKey().encode(), encode_totals(CatalogTotals(2))),
    ]
    assert samples == sorted(samples)
    assert long.flushed
    assert not segment.flushed
    assert not merged.flushed
    return samples


def golden(name: str) -> list[tuple[bytes, bytes]]:
    """What a file holds: one record a line."""
    lines = (line.split(" ") for line in (GOLDEN / name).read_text().splitlines())
    return [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in lines]


def test_golden_keys_and_records() -> None:
    """The format of docs/formats/metadata-catalog.md: it changes with the version alone."""
    assert golden("metadata-catalog-2.hex") == golden_samples()


def test_a_catalog_of_version_1_has_the_same_records_but_those_of_two_tables_and_a_tail() -> None:
    old, new = golden("metadata-catalog.hex"), golden_samples()
    later = {SegmentIdKey(7).encode(), NameKey("logs/long").encode()}
    assert [each for each in new[1:] if each[0] not in later][: len(old) - 1] == old[1:]
    assert {key[0] for key, _ in new[len(old) + len(later) :]} == {0x09, 0x0A}
    assert decode_identity(old[0][1]) == decode_identity(new[0][1])
    assert (old[0][1][:2], new[0][1][:2]) == (b"\0\1", b"\0\2")
    flags = {
        name: [value[FLAGS] for key, value in records if key[0] == 0x01]
        for name, records in (("old", old), ("new", new))
    }
    assert flags == {"old": [0, 3], "new": [0, 4, 3]}
