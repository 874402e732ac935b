"""The metadata of a lost container, rebuilt: what is covered, what is passed over, what is
reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from recovery.metadata_rebuild import Rebuilt, join, rebuild
from recovery.restore_report import FoundBlock, Gap
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import ContainerMetadata, MergeRecord, SegmentMetadata
from segmentstore.contracts.object_states import LiveObject
from tests.support.chunk_edits import chunk_at, edited_chunks
from tier2.object_storage import StoredObject

NOW_MS = 77
FIRST_ID = 1000
KNOWN_SEQUENCE = 100


def chunk(start: int, end: int, name: str = "o") -> ChunkRecord:
    return ChunkRecord(start, end - start, name, 0, 1, start)


def block(segment_id: int, start: int, end: int, object_name: str, name: str = "") -> FoundBlock:
    return FoundBlock(object_name, 0, segment_id, start, end - start, name)


class Known:
    """A checkpoint put together by hand; each chunk lies in an object of its own."""

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(3)
        self.metadata.sequence_number = KNOWN_SEQUENCE
        self.there: dict[str, StoredObject] = {}

    def segment(
        self, id_: int, name: str, ends: Sequence[int], length: int, start: int = 0
    ) -> SegmentMetadata:
        segment = SegmentMetadata(id_, name, 5)
        segment.start_offset, segment.length = start, length
        position = start
        for end in ends:
            self._add_chunk(segment, position, end)
            position = end
        segment.storage_length = position
        self.metadata.segments[id_] = segment
        self.metadata.names[name] = id_
        return segment

    def merged(
        self, target: SegmentMetadata, id_: int, name: str, ends: Sequence[int], length: int
    ) -> SegmentMetadata:
        source = self.segment(id_, name, ends, length)
        del self.metadata.names[name]
        source.sealed, source.merged_into = True, target.segment_id
        target.add_merge(MergeRecord(target.length, length, id_))
        target.length += length
        return source

    def _add_chunk(self, segment: SegmentMetadata, start: int, end: int) -> None:
        name = f"known-{segment.segment_id}-{start}"
        self.metadata.objects[name] = LiveObject(ObjectRecord(name, 500, 5))
        self.there[name] = StoredObject(name, 500, 5)
        segment.own_chunks().append(
            ChunkRecord(start, end - start, name, 0, segment.segment_id, start)
        )


def rebuilt(
    known: Known | None, *blocks: FoundBlock, fits: Mapping[str, bool] | None = None
) -> Rebuilt:
    there = dict(known.there) if known is not None else {}
    there |= {each.object_name: StoredObject(each.object_name, 500, 9) for each in blocks}
    return rebuild(
        3,
        known.metadata if known is not None else None,
        blocks,
        there,
        first_id=FIRST_ID,
        now_ms=NOW_MS,
        fits=lambda name: (fits or {}).get(name, True),
    )


def spans(result: Rebuilt) -> dict[str, tuple[int, int]]:
    """Segment by name: start offset and length."""
    segments = result.metadata.segments.values()
    assert all(segment.storage_length == segment.length for segment in segments)
    return {segment.name: (segment.start_offset, segment.length) for segment in segments}


# --- covering -------------------------------------------------------------------------------------


def test_joining_takes_the_fewest_chunks_and_cuts_what_overlaps() -> None:
    runs = join(
        [chunk(0, 10), chunk(10, 15, "orphan"), chunk(10, 20), chunk(18, 30), chunk(40, 50)], 0
    )
    assert [[(each.start_offset, each.end_offset) for each in run] for run in runs] == [
        [(0, 10), (10, 20), (20, 30)],
        [(40, 50)],
    ]
    assert runs[0][2].block_start_offset == 20


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=15), st.integers(0, 30))
def test_joining_covers_exactly_what_is_there(pieces: list[tuple[int, int]], start: int) -> None:
    chunks = [
        chunk(first, first + length, f"o{number}") for number, (first, length) in enumerate(pieces)
    ]
    covered = {
        place
        for each in chunks
        for place in range(each.start_offset, each.end_offset)
        if place >= start
    }
    runs = join(chunks, start)
    found: set[int] = set()
    for run in runs:
        position = run[0].start_offset
        for each in run:
            assert (each.start_offset, each.block_start_offset) == (position, position)
            assert any(
                each.object_name == one.object_name and each.end_offset == one.end_offset
                for one in chunks
            )
            position = each.end_offset
        found |= {place for place in range(run[0].start_offset, position) if place >= start}
    assert found == covered
    assert all(one[-1].end_offset < other[0].start_offset for one, other in pairwise(runs))


# --- with a checkpoint ----------------------------------------------------------------------------


def test_what_was_flushed_behind_the_checkpoint_is_joined() -> None:
    known = Known()
    known.segment(7, "a", [10, 20], 35)
    result = rebuilt(known, block(7, 20, 28, "n1", "a"), block(7, 28, 50, "n2", "a"))
    assert spans(result) == {"a": (0, 50)}
    (report,) = result.segments
    assert (report.restored_to, report.known_length, report.missing_bytes, report.gaps) == (
        50,
        35,
        0,
        [],
    )


def test_what_was_not_flushed_is_missing_and_said_to_be() -> None:
    known = Known()
    segment = known.segment(7, "a", [10, 20], 35)
    segment.sealed = True
    segment.apply_attributes({bytes(16): 4})
    result = rebuilt(known)
    assert spans(result) == {"a": (0, 20)}
    assert result.segments[0].missing_bytes == 15
    made = result.metadata.segments[7]
    assert dict(made.attributes.items()) == {bytes(16): 4}
    assert not made.sealed, "a reader must not take the place where bytes are missing for the end"
    assert "sealed at 35" in result.segments[0].notes[0]


def test_a_sealed_segment_that_is_whole_stays_sealed() -> None:
    known = Known()
    known.segment(7, "a", [10, 20], 20).sealed = True
    assert rebuilt(known).metadata.segments[7].sealed


def test_orphans_and_other_attempts_that_repeat_bytes_are_passed_over() -> None:
    known = Known()
    known.segment(7, "a", [10, 20], 20)
    result = rebuilt(
        known, block(7, 10, 18, "orphan"), block(7, 0, 20, "all"), block(7, 20, 25, "x")
    )
    assert spans(result) == {"a": (0, 25)}
    assert len(result.metadata.objects) < 4


def test_segments_created_later_have_the_names_their_blocks_say() -> None:
    known = Known()
    known.segment(7, "a", [10], 10)
    result = rebuilt(known, block(101, 0, 8, "n", "new"), block(102, 0, 3, "n2"))
    assert spans(result) == {"a": (0, 10), "new": (0, 8), "recovered/00000003/102": (0, 3)}
    assert [report.known_length for report in result.segments] == [10, None, None]


def test_blocks_of_what_was_deleted_or_linked_before_the_checkpoint_are_passed_over() -> None:
    known = Known()
    known.segment(7, "a", [10], 10)
    assert spans(
        rebuilt(known, block(6, 0, 8, "n", "gone"), block(99, 0, 8, "n2", "gone too"))
    ) == {"a": (0, 10)}


def test_a_chunk_whose_object_is_missing_is_found_where_its_block_was_copied_to() -> None:
    known = Known()
    segment = known.segment(7, "a", [10, 20], 20)
    with edited_chunks(segment) as chunks:
        chunks[1] = chunks[1]._replace(block_segment_id=5, block_start_offset=0)
    del known.there["known-7-10"]
    result = rebuilt(known, block(5, 0, 10, "copy", "source"))
    assert spans(result) == {"a": (0, 20)}
    assert chunk_at(result.metadata.segments[7], 1).object_name == "copy"
    assert (chunk_at(result.metadata.segments[7], 1).block_segment_id, result.segments[0].gaps) == (
        5,
        [],
    )


def test_objects_that_are_missing_from_the_head_move_the_start_offset() -> None:
    known = Known()
    known.segment(7, "a", [10, 20, 30], 30)
    del known.there["known-7-0"]
    result = rebuilt(known)
    assert spans(result) == {"a": (10, 30)}
    assert result.segments[0].gaps == [Gap(0, 10)]


def test_a_gap_in_the_middle_leaves_what_is_behind_it_and_keeps_what_is_before_it() -> None:
    known = Known()
    known.segment(7, "a", [10, 20, 30], 30)
    del known.there["known-7-10"]
    result = rebuilt(known)
    assert spans(result) == {"a": (20, 30), "recovered/00000003/7/0": (0, 10)}
    assert result.segments[0].gaps == [Gap(10, 20)]
    assert result.segments[1].segment_id == FIRST_ID == result.metadata.sequence_number


def test_where_nothing_is_left_no_offset_is_given_out_again() -> None:
    known = Known()
    known.segment(7, "a", [10, 20], 30, start=4)
    known.there.clear()
    result = rebuilt(known)
    assert spans(result) == {"a": (20, 20)}
    assert result.segments[0].gaps == [Gap(4, 20)]
    assert (result.segments[0].lost_bytes, result.segments[0].unflushed_bytes) == (16, 10)
    assert [loss[3:6] for loss in result.segments[0].losses] == [
        (4, 10, "known-7-4"),
        (10, 20, "known-7-10"),
    ]


def test_an_object_of_another_size_than_recorded_is_not_the_one() -> None:
    known = Known()
    known.segment(7, "a", [10], 10)
    known.there["known-7-0"] = StoredObject("known-7-0", 499, 5)
    (report,) = rebuilt(known).segments
    assert report.gaps == [Gap(0, 10)]
    assert "499 bytes where 500 are recorded" in report.losses[0].reason


def test_of_an_object_of_another_size_the_whole_blocks_are_used() -> None:
    known = Known()
    segment = known.segment(7, "a", [10, 20], 20)
    with edited_chunks(segment) as chunks:
        chunks[1] = chunks[1]._replace(object_name="known-7-0", block_offset=300)
    del known.metadata.objects["known-7-10"]
    known.there = {"known-7-0": StoredObject("known-7-0", 320, 5)}
    first = FoundBlock("known-7-0", 0, 7, 0, 10, "a")
    result = rebuild(
        3,
        known.metadata,
        [first],
        known.there,
        first_id=FIRST_ID,
        now_ms=NOW_MS,
        fits=lambda _: True,
        cut=[FoundBlock("known-7-0", 300, 7, 10, 10, "a")],
    )
    assert spans(result) == {"a": (0, 10)}
    assert [loss[3:6] for loss in result.segments[0].losses] == [(10, 20, "known-7-0")]
    assert result.metadata.objects["known-7-0"].record == ObjectRecord("known-7-0", 320, 5)
    other = first._replace(segment_id=8)
    assert rebuild(
        3,
        known.metadata,
        [other],
        known.there,
        first_id=FIRST_ID,
        now_ms=NOW_MS,
        fits=lambda _: True,
    ).segments[0].gaps == [Gap(0, 20)]


def test_bytes_before_all_that_was_found_of_an_unknown_segment_are_lost_or_truncated() -> None:
    result = rebuilt(None, block(2, 5, 9, "x", "a"), block(2, 12, 20, "y", "a"))
    report = next(each for each in result.segments if each.name == "a")
    assert (report.unclear_bytes, report.lost_bytes) == (5, 3)


def test_a_truncated_head_stays_truncated() -> None:
    known = Known()
    segment = known.segment(7, "a", [10, 20], 20)
    segment.start_offset = 13
    with edited_chunks(segment) as chunks:
        del chunks[0]
    del known.metadata.objects["known-7-0"]
    assert spans(rebuilt(known, block(7, 0, 10, "old"), block(7, 20, 22, "n"))) == {"a": (13, 22)}


# --- merges ---------------------------------------------------------------------------------------


def test_a_merge_whose_source_is_whole_is_linked() -> None:
    known = Known()
    target = known.segment(7, "t", [10], 10)
    known.merged(target, 8, "s", [4], 6)
    result = rebuilt(known, block(8, 4, 6, "n", "s"), block(7, 16, 19, "n2", "t"))
    assert spans(result) == {"t": (0, 19)}
    chunks = result.metadata.segments[7].chunks
    assert [
        (each.start_offset, each.block_segment_id, each.block_start_offset) for each in chunks
    ] == [
        (0, 7, 0),
        (10, 8, 0),
        (14, 8, 4),
        (16, 7, 16),
    ]


def test_merges_in_merges_are_linked_together() -> None:
    known = Known()
    target = known.segment(7, "t", [10], 10)
    source = known.segment(8, "s", [4], 4)
    inner = known.merged(source, 9, "i", [3], 3)
    del known.metadata.names["s"]
    source.sealed, source.merged_into = True, 7
    target.add_merge(MergeRecord(10, 7, 8))
    target.length = 17
    assert inner.merged_into == 8
    assert spans(rebuilt(known)) == {"t": (0, 17)}


def test_a_merge_whose_source_is_not_whole_leaves_two_segments() -> None:
    known = Known()
    target = known.segment(7, "t", [10], 10)
    known.merged(target, 8, "s", [4], 6)
    result = rebuilt(known)
    assert spans(result) == {"t": (0, 10), "s": (0, 4)}
    by_name = {report.name: report for report in result.segments}
    assert (by_name["t"].missing_bytes, by_name["s"].missing_bytes) == (6, 2)
    assert not result.metadata.segments[8].sealed


def linked_in_part(known: Known, ends: Sequence[int]) -> SegmentMetadata:
    """A target of which [0, 10) and two linked bytes are there, and the source from those on."""
    target = known.segment(7, "t", [10], 10)
    source = known.merged(target, 8, "s", [2, *ends], 6)
    with edited_chunks(source) as chunks:
        head = chunks.pop(0)
    target.own_chunks().append(head._replace(start_offset=10))
    source.start_offset, target.storage_length = 2, 12
    return target


def test_a_merge_that_is_linked_in_part_is_linked_if_the_rest_is_there() -> None:
    known = Known()
    linked_in_part(known, [4, 6])
    result = rebuilt(known, block(7, 16, 19, "n", "t"))
    assert spans(result) == {"t": (0, 19)}
    chunks = [
        (each.start_offset, each.block_start_offset) for each in result.metadata.segments[7].chunks
    ]
    assert chunks == [(0, 0), (10, 0), (12, 2), (14, 4), (16, 16)]


def test_a_merge_that_is_linked_in_part_whose_rest_is_not_whole_leaves_two_segments() -> None:
    known = Known()
    linked_in_part(known, [4])
    assert spans(rebuilt(known)) == {"t": (0, 12), "s": (2, 4)}


def test_what_is_lost_of_the_linked_part_brings_no_source_back() -> None:
    known = Known()
    linked_in_part(known, [6])
    del known.there["known-8-0"]
    result = rebuilt(known)
    assert spans(result) == {"t": (12, 16), "recovered/00000003/7/0": (0, 10)}


def test_a_source_that_comes_back_does_not_take_a_name_that_is_used() -> None:
    known = Known()
    target = known.segment(7, "t", [10], 10)
    known.merged(target, 8, "s", [4], 6)
    result = rebuilt(known, block(150, 0, 2, "n", "s"))
    assert spans(result) == {"t": (0, 10), "s": (0, 2), "recovered/00000003/8": (0, 4)}


def test_a_target_that_was_rewritten_whole_needs_its_source_no_more() -> None:
    known = Known()
    target = known.segment(7, "t", [10], 10)
    known.merged(target, 8, "s", [4], 6)
    assert spans(rebuilt(known, block(7, 0, 16, "consolidated", "t"))) == {"t": (0, 16)}


def test_an_empty_source_of_an_empty_target_does_not_come_back() -> None:
    known = Known()
    target = known.segment(7, "t", [], 0)
    known.merged(target, 8, "s", [], 0)
    assert spans(rebuilt(known)) == {"t": (0, 0)}


def test_a_source_that_its_target_truncated_does_not_come_back() -> None:
    known = Known()
    target = known.segment(7, "t", [], 10, start=10)
    known.merged(target, 8, "s", [4], 6)
    target.start_offset = 16
    assert spans(rebuilt(known)) == {"t": (16, 16)}


# --- without a checkpoint -------------------------------------------------------------------------


def test_without_a_checkpoint_everything_comes_from_the_headers() -> None:
    result = rebuilt(
        None, block(2, 0, 5, "x", "a"), block(2, 5, 9, "y", "a"), block(3, 40, 50, "x", "b")
    )
    assert spans(result) == {"a": (0, 9), "b": (40, 50)}
    assert result.segments[1].gaps == [Gap(0, 40)]


def test_of_two_segments_of_one_name_the_younger_has_it() -> None:
    result = rebuilt(None, block(2, 0, 5, "x", "a"), block(9, 0, 3, "y", "a"))
    assert spans(result) == {"a": (0, 3), "recovered/00000003/2": (0, 5)}


def test_names_that_cannot_be_found_here_are_replaced_by_ones_that_can() -> None:
    fits = {"a": False, "recovered/00000003/2": False, "recovered/00000003/2.1": False}
    result = rebuilt(None, block(2, 0, 5, "x", "a"), fits=fits)
    assert spans(result) == {"recovered/00000003/2.2": (0, 5)}
    assert "'a'" in result.segments[0].notes[0]
