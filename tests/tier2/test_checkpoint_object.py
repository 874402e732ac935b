"""The object that keeps a container's metadata in Tier 2: its name, its bytes, and what is
refused.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier2.checkpoint_object import (
    HEADER_BYTES,
    CheckpointFormatError,
    encode_checkpoint_object,
    parse_checkpoint_header,
    parse_checkpoint_object,
)
from tier2.object_names import (
    CheckpointName,
    check_object_name,
    checkpoint_name,
    checkpoint_prefix,
    parse_checkpoint_name,
    parse_object_name,
)
from tier2.unique_ids import new_copy_id

GOLDEN = Path(__file__).parent / "golden" / "metadata-checkpoint-1.bin"
STORE = uuid.UUID("0b4f6c1e-6f0a-4c8e-9d7b-2f5f4f9f6d10")
EXAMPLE = "checkpoints/00000003/0000000000000005-0000000000000102-000102030405060708090a0b0c0d0e0f"


def encoded(blob: bytes = b"0123456789") -> bytes:
    return b"".join(
        encode_checkpoint_object(
            store_id=STORE,
            containers=4,
            container_id=3,
            epoch=5,
            sequence_number=0x102,
            time_ms=1_700_000_000_000,
            blob=blob,
        )
    )


def test_the_bytes_of_the_format_page() -> None:
    assert encoded() == GOLDEN.read_bytes()
    header, blob = parse_checkpoint_object(GOLDEN.read_bytes(), EXAMPLE)
    assert (header.store_id, header.containers, header.container_id) == (STORE, 4, 3)
    assert (header.epoch, header.sequence_number, header.time_ms) == (5, 0x102, 1_700_000_000_000)
    assert bytes(blob) == b"0123456789"


def test_the_name_of_the_format_page() -> None:
    assert checkpoint_name(3, 5, 0x102, bytes(range(16))) == EXAMPLE


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=16, max_size=16),
)
def test_names_round_trip_and_are_no_names_of_blocks(
    container_id: int, epoch: int, sequence_number: int, unique_id: bytes
) -> None:
    name = checkpoint_name(container_id, epoch, sequence_number, unique_id)
    assert parse_checkpoint_name(check_object_name(name)) == CheckpointName(
        container_id, epoch, sequence_number, unique_id
    )
    assert name.startswith(checkpoint_prefix(container_id))
    assert parse_object_name(name) is None


def test_names_sort_as_they_were_written() -> None:
    places = [(1, 9), (1, 10), (2, 3), (16, 1)]
    names = [checkpoint_name(0, epoch, number, bytes(16)) for epoch, number in places]
    assert sorted(names) == names


def test_foreign_names_are_not_parsed() -> None:
    for name in (
        EXAMPLE.upper(),
        EXAMPLE[1:],
        EXAMPLE + "0",
        EXAMPLE.replace("-", "/"),
        EXAMPLE + "\n",
        "",
    ):
        assert parse_checkpoint_name(name) is None


def test_names_out_of_range_are_refused() -> None:
    for container_id, epoch, number, unique_id in (
        (-1, 0, 0, bytes(16)),
        (2**32, 0, 0, bytes(16)),
        (0, 2**64, 0, bytes(16)),
        (0, 0, -1, bytes(16)),
        (0, 0, 0, b""),
    ):
        with pytest.raises(ValueError):
            checkpoint_name(container_id, epoch, number, unique_id)


def test_an_id_shows_whose_the_checkpoint_is() -> None:
    source = random.Random(1)
    other = uuid.UUID(int=1)
    ids = [new_copy_id(STORE, source) for _ in range(10)]
    assert len(set(ids)) == 10
    names = [CheckpointName(0, 0, 0, each) for each in ids]
    assert all(name.is_of(STORE) and not name.is_of(other) for name in names)


def test_no_byte_can_change_unnoticed() -> None:
    whole = encoded()
    for place in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[place] ^= 0x40
        with pytest.raises(CheckpointFormatError):
            parse_checkpoint_object(bytes(spoiled), EXAMPLE)


def test_what_is_cut_or_has_another_name_is_refused() -> None:
    whole = encoded()
    for length in range(len(whole)):
        with pytest.raises(CheckpointFormatError):
            parse_checkpoint_object(whole[:length], EXAMPLE)
    with pytest.raises(CheckpointFormatError):
        parse_checkpoint_object(whole + b"x", EXAMPLE)
    with pytest.raises(CheckpointFormatError):
        parse_checkpoint_object(whole, checkpoint_name(3, 6, 0x102, bytes(16)))


def test_a_blob_may_be_empty_and_the_header_stands_alone() -> None:
    assert parse_checkpoint_header(encoded(b"")).blob_length == 0
    assert len(encoded(b"")) == HEADER_BYTES
