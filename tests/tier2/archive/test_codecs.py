"""The archive's bytes: what Pulsar writes, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.ledgers import DigestType, Ensemble, LedgerMetadata
from segmentstore.contracts.runtime import Runtime
from tests.support.fake_ledger import (
    FakeLedger,
    pulsar_ledger,
    pulsar_metadata,
    pulsar_payload,
)
from tier2.archive.archive_format_error import ArchiveFormatError
from tier2.archive.archive_names import (
    ArchivedObjectName,
    archived_data_name,
    archived_index_name,
    parse_archived_name,
)
from tier2.archive.data_block import check_block_header
from tier2.archive.entry_offsets import EntryOffsets
from tier2.archive.index_block import EntryMapping, IndexBlock, encode_index, parse_index
from tier2.archive.ledger_blocks import LedgerBlocks
from tier2.archive.ledger_metadata_codec import encode_ledger_metadata, parse_ledger_metadata
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.memory_object_storage import MemoryObjectStorage

GOLDEN = Path(__file__).with_name("golden")
UID = bytes(16)


def ledger_of(sizes: Sequence[int]) -> FakeLedger:
    return FakeLedger([pulsar_payload(entry, size) for entry, size in enumerate(sizes)])


def archived(
    ledger: FakeLedger, block_bytes: int, mapping_bytes: int | None
) -> tuple[bytes, bytes]:
    """Its two objects."""

    async def body() -> tuple[bytes, bytes]:
        work = LedgerBlocks(ledger, block_bytes, mapping_bytes)
        data = b"".join([bytes(block) async for block in work.blocks()])
        return data, encode_index(work.index())

    return asyncio.run(body())


def test_the_smallest_ledger_is_byte_for_byte_what_pulsar_writes() -> None:
    data, index = archived(pulsar_ledger("small3"), 5_242_880, None)
    assert data == bytes.fromhex((GOLDEN / "small3.data.hex").read_text())
    assert index == bytes.fromhex((GOLDEN / "small3.index.hex").read_text())
    # A ledger this small has no mapping inside its block either.
    assert archived(pulsar_ledger("small3"), 5_242_880, 4096) == (data, index)


@pytest.mark.parametrize(
    ("block_bytes", "lengths", "data_sum", "index_sum"),
    [
        (5_242_880, (19_559_429, 180), "ce970cb0947fd6b7", "c4240a0b656a6945"),
        (131_072, (20_156_556, 3180), "6e6e8aedc5267942", "6e54b84beb7dcdb4"),
        # The largest entry fills its block exactly.
        (102_540, (20_508_000, 4100), "920b5d7f6e54ebe6", "08f2c641bfdf02c6"),
    ],
)
def test_ten_thousand_entries_in_blocks_are_what_pulsar_writes(
    block_bytes: int, lengths: tuple[int, int], data_sum: str, index_sum: str
) -> None:
    data, index = archived(pulsar_ledger("mix"), block_bytes, None)
    assert (len(data), len(index)) == lengths
    assert hashlib.sha256(data).hexdigest().startswith(data_sum)
    assert hashlib.sha256(index).hexdigest().startswith(index_sum)
    parsed = parse_index(index)
    if block_bytes == 5_242_880:
        assert [parsed.mapping(each) for each in range(len(parsed))] == [
            (0, 1, 0),
            (2716, 2, 5_242_880),
            (5382, 3, 10_485_760),
            (8045, 4, 15_728_640),
        ]


@pytest.mark.parametrize("name", ["dummy", "ensembles"])
def test_metadata_are_what_bookkeeper_writes(name: str) -> None:
    ensembles = [
        Ensemble(first, tuple(f"b{first // 300 + each}:1" for each in range(3)))
        for first in (0, 300, 600)
    ]
    keys = ("pulsar/managed-ledger", "component", "application")
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        length=123_456,
        last_entry=999,
        digest_type=DigestType.DUMMY if name == "dummy" else DigestType.CRC32C,
        created_ms=-1 if name == "dummy" else 1_700_000_000_000,
        ensembles=tuple(ensembles[:1] if name == "dummy" else ensembles),
        custom=() if name == "dummy" else tuple((key, key.encode()) for key in keys),
    )
    golden = bytes.fromhex((GOLDEN / f"metadata-{name}.hex").read_text())
    assert encode_ledger_metadata(metadata) == golden
    assert parse_ledger_metadata(golden) == metadata


metadata_of_any_ledger = st.builds(
    LedgerMetadata,
    ensemble_size=st.integers(0, 2**31 - 1),
    write_quorum=st.integers(0, 2**31 - 1),
    ack_quorum=st.integers(0, 2**31 - 1),
    length=st.integers(0, 2**63 - 1),
    last_entry=st.integers(-1, 2**63 - 1),
    closed=st.booleans(),
    digest_type=st.one_of(st.none(), st.sampled_from(DigestType)),
    created_ms=st.integers(-1, 2**62),
    ensembles=st.lists(
        st.builds(Ensemble, st.integers(0, 2**62), st.lists(st.text(max_size=9)).map(tuple)),
        max_size=3,
    ).map(tuple),
    custom=st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=200)), max_size=3).map(tuple),
)


@given(metadata_of_any_ledger)
def test_any_metadata_come_back(metadata: LedgerMetadata) -> None:
    assert parse_ledger_metadata(encode_ledger_metadata(metadata)) == metadata


@given(st.binary(max_size=60))
def test_bytes_that_are_no_metadata_are_refused_or_parsed(data: bytes) -> None:
    try:
        parse_ledger_metadata(data)
    except ArchiveFormatError:
        pass


@given(metadata_of_any_ledger, st.data())
def test_metadata_that_are_cut_are_refused_or_lack_something(
    metadata: LedgerMetadata, data: st.DataObject
) -> None:
    whole = encode_ledger_metadata(metadata)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        assert parse_ledger_metadata(cut) != metadata or not cut
    except ArchiveFormatError:
        pass


def test_fields_that_later_versions_add_are_skipped_and_lacking_ones_refused() -> None:
    metadata = pulsar_metadata(3, 21)
    whole = encode_ledger_metadata(metadata)
    # Field 8, a password, as an old ledger has it; field 99 of each kind of protobuf.
    more = "420178 9806 01 9a06 0178 9d06 01020304 9906 0102030405060708"
    assert parse_ledger_metadata(whole + bytes.fromhex(more)) == metadata
    for bad in ("00", "0b", "0a", "ff" * 11, "3809", "08"):
        with pytest.raises(ArchiveFormatError):
            parse_ledger_metadata(whole + bytes.fromhex(bad))
    for field in ("0801", "1001", "1815", "2002", "2803"):
        with pytest.raises(ArchiveFormatError, match="lack"):
            parse_ledger_metadata(bytes.fromhex(whole.hex().replace(field, "", 1)))


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=30),
    st.integers(200, 400),
    st.one_of(st.none(), st.integers(1, 300)),
    st.integers(1, 100),
    st.data(),
)
def test_ledgers_of_any_entries_in_tiny_blocks_come_back(
    sizes: list[int],
    block_bytes: int,
    mapping_bytes: int | None,
    read_bytes: int,
    data: st.DataObject,
) -> None:
    ledger = ledger_of(sizes)
    first = data.draw(st.integers(0, len(sizes) - 1))
    last = data.draw(st.integers(first, len(sizes) - 1))

    async def body() -> None:
        storage = MemoryObjectStorage(Runtime())
        offloader = ObjectLedgerOffloader(
            storage, block_bytes=block_bytes, mapping_bytes=mapping_bytes, read_bytes=read_bytes
        )
        await offloader.offload(ledger, UID)
        handle = await offloader.read_offloaded(ledger.ledger_id, UID)
        assert handle.metadata == ledger.metadata
        for start, end in ((first, last), (0, len(sizes) - 1)):
            found = [bytes(e.data) async for batch in handle.read(start, end) for e in batch]
            assert found == ledger.entries[start : end + 1]
        index = parse_index((await storage.get_whole(archived_index_name(7, UID), 10**6)).data)
        ends = [index.block(part) for part in range(1, index.blocks + 1)]
        lengths = [end - mapping.offset for mapping, end in ends]
        assert set(lengths[:-1]) <= {block_bytes}
        assert lengths[-1] <= block_bytes
        if mapping_bytes is None:
            assert len(index) == index.blocks

    asyncio.run(body())


def test_blocks_that_entries_fill_exactly_have_no_padding() -> None:
    entry = 100 - 12
    data, index = archived(FakeLedger([bytes([65]) * entry] * 6), 128 + 300, None)
    assert len(data) == 2 * (128 + 300)
    parsed = parse_index(index)
    assert [parsed.mapping(each) for each in range(len(parsed))] == [(0, 1, 0), (3, 2, 428)]
    assert b"\xfe\xdc\xde\xad" not in data
    check_block_header(data[428:], 428, 3)


def an_index() -> IndexBlock:
    mappings = [EntryMapping(0, 1, 0), EntryMapping(4, 1, 300), EntryMapping(9, 2, 1000)]
    return IndexBlock(pulsar_metadata(12, 900), 1400, mappings)


def test_an_index_comes_back() -> None:
    index = parse_index(encode_index(an_index()))
    assert index.metadata == an_index().metadata
    assert index.data_length == 1400
    assert [index.mapping(each).entry for each in range(3)] == [0, 4, 9]
    assert [index.floor(entry) for entry in (0, 3, 4, 8, 9, 11)] == [0, 0, 1, 1, 2, 2]
    assert [index.block(part) for part in (1, 2)] == [((0, 1, 0), 1000), ((9, 2, 1000), 1400)]


@pytest.mark.parametrize("at", range(len(encode_index(an_index()))))
def test_an_index_with_one_wrong_byte_is_refused_or_says_something_that_can_be(at: int) -> None:
    data = bytearray(encode_index(an_index()))
    data[at] ^= 0x80
    try:
        index = parse_index(bytes(data))
    except ArchiveFormatError:
        return
    assert encode_index(index) != encode_index(an_index())


def test_what_is_no_index_is_refused_with_a_reason() -> None:
    good = encode_index(an_index())
    mappings = [an_index().mapping(each) for each in range(3)]

    def other(*changed: EntryMapping, **fields: int | bool) -> bytes:
        metadata = an_index().metadata._replace(**fields)  # type: ignore[arg-type]
        return encode_index(IndexBlock(metadata, 1400, changed or mappings))

    for data, reason in (
        (b"", "0 bytes"),
        (good[:-1], "by itself"),
        (good + b"\0", "by itself"),
        (b"\0" + good[1:], "begins with"),
        (bytes.fromhex("3d1fb0bc") + good[4:], "several ledgers"),
        (good[:23] + b"\x40" + good[24:], "header of 64"),
        (other(closed=False), "open"),
        (other(last_entry=-1), "empty"),
        (other(last_entry=8), "is the last"),
        (other(length=9000), "do not hold"),
        (other(EntryMapping(1, 1, 0)), "first mapping"),
        (other(EntryMapping(0, 1, 0), EntryMapping(0, 2, 300)), "behind"),
        (other(EntryMapping(0, 1, 0), EntryMapping(1, 3, 300)), "behind"),
        (other(EntryMapping(0, 1, 0), EntryMapping(1, 2, 0)), "behind"),
        (other(EntryMapping(0, 1, 0), EntryMapping(1, 1, 1399)), "of 1400"),
    ):
        with pytest.raises(ArchiveFormatError, match=reason):
            parse_index(data)


def test_names() -> None:
    uid = bytes(range(16))
    data = "00010203-0405-0607-0809-0a0b0c0d0e0f-ledger-12"
    assert archived_data_name(12, uid) == data
    assert archived_index_name(12, uid) == f"{data}-index"
    assert parse_archived_name(data) == ArchivedObjectName(uid, 12, is_index=False)
    assert parse_archived_name(f"{data}-index") == ArchivedObjectName(uid, 12, is_index=True)
    for name in (data.upper(), f"{data}x", data.replace("12", "012"), data[1:], f"x/{data}"):
        assert parse_archived_name(name) is None


def test_known_offsets_have_one_bound_for_all_ledgers() -> None:
    offsets = EntryOffsets(4)
    for ledger in ("a", "b"):
        offsets.add(ledger, 10, 1000)
        offsets.add(ledger, 20, 2000)
    assert [offsets.floor("a", entry) for entry in (9, 10, 19, 25)] == [
        None,
        (10, 1000),
        (10, 1000),
        (20, 2000),
    ]
    offsets.add("c", 1, 1)
    assert offsets.floor("b", 30) is None
    assert offsets.floor("a", 30) == (20, 2000)
    assert len(offsets) == 3
    offsets.forget("a")
    offsets.forget("a")
    assert len(offsets) == 1
