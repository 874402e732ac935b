"""Verdicts over segments: every divergence planted, nothing else reported; the same as a
byte-by-byte reference says.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tier2.catalog.catalog_schema import OBJECTS
from tier2.spark.reconcile.coverage import check_range, check_sharing
from tier2.spark.reconcile.findings import FINDINGS


class Segment(NamedTuple):
    """What coverage needs of one."""

    segment_id: int
    start_offset: int
    storage_length: int


class Chunk(NamedTuple):
    """What coverage needs of one."""

    segment_id: int
    start_offset: int
    length: int
    object_name: str = "x"


def table(rows: Sequence[Any], kind: type[Segment | Chunk]) -> pa.Table:
    columns = {
        name: pa.array(
            [getattr(row, name) for row in rows],
            pa.string() if name == "object_name" else pa.int64(),
        )
        for name in kind._fields
    }
    return pa.table(columns)


def checked(segments: Sequence[Segment], chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
    found, borders = check_range(
        table(segments, Segment),
        table(chunks, Chunk),
        container_id=6,
        part=0,
        continues=False,
        goes_on=False,
        run_id="run",
    )
    assert not borders
    assert found.schema.equals(FINDINGS)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def short(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int, int, int]]:
    return [(row["kind"], row["segment_id"], row["start_offset"], row["length"]) for row in rows]


def test_chunks_that_follow_one_another_are_no_finding() -> None:
    segments = [
        Segment(1, 0, 30),
        Segment(2, 15, 30),
        Segment(3, 0, 0),
        Segment(4, 50, 50),
        Segment(5, 70, 50),
    ]
    chunks = [
        Chunk(1, 0, 10),
        Chunk(1, 10, 20),
        Chunk(2, 10, 10),
        Chunk(2, 20, 10),
        Chunk(5, 40, 10),
    ]
    assert checked(segments, chunks) == []
    assert checked(segments[::-1], chunks[::-1]) == []
    assert checked([], []) == []


def test_chunks_below_the_start_offset_lack_nothing() -> None:
    assert checked([Segment(1, 25, 40)], [Chunk(1, 0, 10), Chunk(1, 20, 20)]) == []
    assert checked([Segment(1, 40, 40)], [Chunk(1, 0, 10)]) == []


def test_a_gap_is_named_with_the_object_behind_it() -> None:
    (row,) = checked([Segment(1, 0, 30)], [Chunk(1, 0, 10, "a"), Chunk(1, 15, 15, "b")])
    assert short([row]) == [("gap", 1, 10, 5)]
    assert (row["container_id"], row["object"], row["severity"], row["run_id"]) == (
        6,
        "b",
        "harmful",
        "run",
    )


def test_what_lacks_at_the_ends_is_a_gap() -> None:
    segments = [Segment(1, 5, 30), Segment(2, 0, 30), Segment(3, 10, 30), Segment(4, 10, 30)]
    chunks = [Chunk(1, 8, 22), Chunk(2, 0, 20), Chunk(4, 40, 10)]
    assert short(checked(segments, chunks)) == [
        ("gap", 1, 5, 3),
        ("gap", 2, 20, 10),
        ("gap", 3, 10, 20),
        ("gap", 4, 10, 20),
        ("overlap", 4, 40, 10),
    ]


def test_a_long_chunk_hides_no_later_overlap() -> None:
    chunks = [
        Chunk(1, 0, 100),
        Chunk(1, 10, 10),
        Chunk(1, 50, 10),
        Chunk(1, 100, 20),
        Chunk(1, 119, 11),
    ]
    assert short(checked([Segment(1, 0, 130)], chunks)) == [
        ("overlap", 1, 10, 10),
        ("overlap", 1, 50, 10),
        ("overlap", 1, 119, 1),
    ]


def test_chunks_behind_the_storage_length_overlap_what_is_not_stored_yet() -> None:
    (row,) = checked([Segment(1, 0, 30)], [Chunk(1, 0, 10, "a"), Chunk(1, 10, 30, "b")])
    assert short([row]) == [("overlap", 1, 30, 10)]
    assert row["object"] == "b"


def test_a_chunk_of_no_bytes_and_one_of_no_segment_are_reported() -> None:
    rows = checked(
        [Segment(1, 0, 30)],
        [Chunk(1, 0, 30), Chunk(1, 30, 0), Chunk(9, 5, 10, "q"), Chunk(9, 15, 10)],
    )
    assert short(rows) == [("wrong_identity", 9, 5, 10), ("wrong_size", 1, 30, 0)]
    assert rows[0]["object"] == "q"


def test_offsets_beyond_32_bits_and_ids_without_order_are_taken() -> None:
    far = 2**62
    segments = [Segment(7, far, far + 30), Segment(3, 0, 20)]
    chunks = [Chunk(7, far + 10, 20), Chunk(3, 0, 20), Chunk(7, far, 8)]
    assert short(checked(segments, chunks)) == [("gap", 7, far + 8, 2)]


def test_planted_divergences_are_found_one_by_one() -> None:
    rng = random.Random(3)
    segments, chunks, planted = [], [], []
    for segment_id in range(1, 301):
        offset = rng.randrange(1000)
        start = offset + rng.randrange(5)
        for number in range(20):
            length = rng.randrange(10, 100)
            if segment_id <= 100 and number == 10:
                planted.append(("gap", segment_id, offset, 5))
                chunks.append(Chunk(segment_id, offset + 5, length - 5))
            elif segment_id <= 200 and segment_id > 100 and number == 10:
                planted.append(("overlap", segment_id, offset - 5, 5))
                chunks.append(Chunk(segment_id, offset - 5, length + 5))
            else:
                chunks.append(Chunk(segment_id, offset, length))
            offset += length
        segments.append(Segment(segment_id, start, offset))
    assert short(checked(segments, chunks)) == planted
    rng.shuffle(chunks)
    assert short(checked(segments, chunks)) == planted


def reference(segment: Segment, chunks: Sequence[Chunk]) -> set[tuple[str, int]]:
    """Every byte that lacks or is there twice."""
    held = [0] * 80
    for chunk in chunks:
        for byte in range(chunk.start_offset, chunk.start_offset + chunk.length):
            held[byte] += 1
    result = set()
    for byte, count in enumerate(held):
        if segment.start_offset <= byte < segment.storage_length and not count:
            result.add(("gap", byte))
        # Behind the storage length it is one stretch, from the first byte held to the last.
        beyond = range(segment.storage_length, len(held))
        if count > 1 or (byte in beyond and any(held[beyond[0] : byte + 1]) and any(held[byte:])):
            result.add(("overlap", byte))
    return result


small = st.integers(0, 30)


@given(
    st.dictionaries(st.integers(1, 4), st.tuples(small, small), max_size=4),
    st.lists(st.tuples(st.integers(1, 4), small, st.integers(1, 20)), max_size=12),
    st.booleans(),
)
def test_bytes_that_lack_or_are_there_twice_are_those_of_the_obvious_reference(
    segments: dict[int, tuple[int, int]], chunks: list[tuple[int, int, int]], repair: bool
) -> None:
    known = [Segment(segment_id, *rest) for segment_id, rest in segments.items()]
    rows = [Chunk(*chunk) for chunk in chunks]
    if repair:  # Chunks one behind another: healthy segments.
        reached = dict.fromkeys(range(1, 5), 0)
        for at, row in enumerate(rows):
            length = min(row.length, 5)
            rows[at] = row._replace(start_offset=reached[row.segment_id], length=length)
            reached[row.segment_id] += length
        known = [Segment(each.segment_id, 0, reached[each.segment_id]) for each in known]
    found = checked(known, rows)
    assert {row["segment_id"] for row in found if row["kind"] == "wrong_identity"} == {
        row.segment_id for row in rows
    } - segments.keys()
    for segment in known:
        own = [row for row in rows if row.segment_id == segment.segment_id]
        said = {
            (row["kind"], byte)
            for row in found
            if row["segment_id"] == segment.segment_id
            for byte in range(row["start_offset"], row["start_offset"] + row["length"])
        }
        assert said == reference(segment, own)


def test_bytes_of_a_block_that_two_chunks_hold_are_an_overlap() -> None:
    fields = (
        "block_offset",
        "length",
        "block_segment_id",
        "block_start_offset",
        "segment_id",
        "start_offset",
    )
    blocks = [
        [(0, 10, 1, 0, 1, 0), (0, 10, 1, 10, 1, 10), (64, 5, 1, 20, 1, 20)],
        [(0, 10, 1, 0, 1, 0), (0, 10, 1, 8, 2, 500)],
        [],
    ]
    rows = [
        {
            **dict.fromkeys(OBJECTS.names, 0),
            "shard": "ab",
            "name": f"ab/{number}",
            "state": "live",
            "blocks": [dict(zip(fields, block, strict=True)) for block in each],
        }
        for number, each in enumerate(blocks)
    ]
    found = check_sharing(pa.Table.from_pylist(rows, schema=OBJECTS), container_id=6)
    (row,) = found.to_pylist()
    assert (row["kind"], row["object"], row["segment_id"], row["start_offset"], row["length"]) == (
        "overlap",
        "ab/1",
        2,
        500,
        2,
    )
    assert check_sharing(pa.Table.from_pylist([], schema=OBJECTS), container_id=6).num_rows == 0
