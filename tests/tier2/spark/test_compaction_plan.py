"""What is chosen for compaction: from tables alone, and such that what came out of it is not chosen
again.
"""

from __future__ import annotations

import copy

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durablelog.catalog.metadata_changes import MetadataChanges
from durablelog.operations import ChunkReplacement, ReplaceChunksOperation
from durablelog.storage_metadata import apply_replace_chunks
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata
from segmentstore.contracts.metadata_checks import assert_metadata_valid
from segmentstore.contracts.object_states import LiveObject
from tests.support.suites import examples
from tests.tier2.catalog.metadata_maker import STORE_ID
from tier2.block_object import block_prefix_length
from tier2.catalog.catalog_tables import build_tables
from tier2.copy_plan import blocks_to_write
from tier2.spark.compact import plan as compaction_plan
from tier2.spark.compact.group import Group
from tier2.spark.compact.options import CompactionOptions
from tier2.spark.compact.plan import CompactionPlan, _Chunks, pieces_of, plan_groups

NOW_MS = 10_000_000
CONTAINER = 3
EPOCH = 7
EXTENT = 4096


def options(target: int = 1000, **more: object) -> CompactionOptions:
    given: dict[str, object] = {
        "block_bytes": target,
        "older_than_ms": 1000,
        "extent_bytes": EXTENT,
    } | more
    return CompactionOptions(target_file_size_bytes=target, **given)  # type: ignore[arg-type]


class Catalog:
    """Metadata made by hand: `put` makes an object of blocks, each behind what its segment has."""

    def __init__(self) -> None:
        self.metadata = ContainerMetadata(CONTAINER)
        self.metadata.sequence_number = 1000

    def segment(self, segment_id: int, name: str = "", start: int = 0) -> SegmentMetadata:
        known = self.metadata.segments.get(segment_id)
        if known is None:
            known = SegmentMetadata(segment_id, name or f"s/{segment_id}", 0)
            known.start_offset = known.storage_length = known.length = start
            self.metadata.segments[segment_id] = known
            self.metadata.names[known.name] = segment_id
        return known

    def put(self, name: str, *blocks: tuple[int, int], created_ms: int = 0, dead: int = 0) -> None:
        """`blocks` are (segment id, length); `dead` bytes lie behind them."""
        place = 0
        live = LiveObject(ObjectRecord(name, 0, created_ms))
        self.metadata.objects[name] = live
        for segment_id, length in blocks:
            segment = self.segment(segment_id)
            segment.own_chunks().append(
                ChunkRecord(
                    segment.storage_length, length, name, place, segment_id, segment.storage_length
                )
            )
            segment.storage_length += length
            segment.length = segment.storage_length
            place += block_prefix_length(length, EXTENT, segment.name) + length
            live.live_chunks += 1
            live.live_bytes += length
        live.record = ObjectRecord(name, place + dead, created_ms)

    def plan(self, chosen: CompactionOptions, now_ms: int = NOW_MS) -> CompactionPlan:
        tables = build_tables(self.metadata)
        return plan_groups(
            tables.segments,
            tables.chunks,
            chosen,
            container_id=CONTAINER,
            epoch=EPOCH,
            now_ms=now_ms,
            store_id=STORE_ID,
        )

    def commit(self, group: Group, chosen: CompactionOptions) -> None:
        """What a task makes of it and the owner commits, but for the bytes."""
        name = f"new/{group.group_id}"
        replacements = []
        place = 0
        for run in group.runs:
            for old in blocks_to_write(run, chosen.block_bytes):
                start, length = old[0].start_offset, sum(chunk.length for chunk in old)
                new = ChunkRecord(start, length, name, place, run.segment_id, start)
                replacements.append(ChunkReplacement(run.segment_id, old, (new,)))
                place += block_prefix_length(length, EXTENT, group.names[run.segment_id]) + length
        operation = ReplaceChunksOperation(
            (ObjectRecord(name, place, 0),), replacements, timestamp_ms=1
        )
        apply_replace_chunks(self.metadata, MetadataChanges(), operation)
        assert self.metadata.objects[name].live_chunks == len(replacements), "all of it was taken"
        assert_metadata_valid(self.metadata)


def starts(plan: CompactionPlan) -> list[list[tuple[int, int]]]:
    """Segment and offset of every chunk, by group."""
    groups = [plan.group(planned) for planned in plan.groups]
    return [
        [(run.segment_id, chunk.start_offset) for run in group.runs for chunk in run.chunks]
        for group in groups
    ]


class TestStretches:
    def test_enough_small_neighbours_become_one(self) -> None:
        c = Catalog()
        for number in range(5):
            c.put(f"o{number}", (1, 10))
        assert starts(c.plan(options())) == [[(1, 0), (1, 10), (1, 20), (1, 30), (1, 40)]]

    def test_too_few_are_left_alone(self) -> None:
        c = Catalog()
        for number in range(4):
            c.put(f"o{number}", (1, 10))
        assert starts(c.plan(options())) == []
        assert len(c.plan(options(min_input_files=4)).groups) == 1

    def test_a_large_one_between_them_parts_them(self) -> None:
        c = Catalog()
        for number, length in enumerate([10, 10, 10, 750, 10, 10]):
            c.put(f"o{number}", (1, length))
        assert starts(c.plan(options())) == []

    def test_what_lies_together_in_one_object_counts_once(self) -> None:
        c = Catalog()
        c.put("together", *[(1, 100)] * 4)
        for number in range(4):
            c.put(f"o{number}", (1, 100))
        assert len(c.plan(options(block_bytes=100)).groups) == 1, "5 pieces"
        assert starts(c.plan(options(block_bytes=100, min_input_files=6))) == []

    def test_small_blocks_that_had_better_be_one_count_each(self) -> None:
        c = Catalog()
        c.put("together", *[(1, 10)] * 5)
        assert len(c.plan(options()).groups) == 1

    def test_only_what_is_old_enough_is_touched(self) -> None:
        c = Catalog()
        for number in range(6):
            c.put(f"o{number}", (1, 10), created_ms=NOW_MS - 1000 + (number == 5))
        assert starts(c.plan(options())) == [[(1, 10 * number) for number in range(5)]]
        assert starts(c.plan(options(), now_ms=NOW_MS - 1)) == []

    def test_a_growing_segment_is_not_written_again_for_its_end(self) -> None:
        c = Catalog()
        c.put("head", (1, 500))
        for number in range(5):
            c.put(f"o{number}", (1, 10))
        assert starts(c.plan(options())) == [[(1, 500 + 10 * number) for number in range(5)]]

    def test_cells_are_not_joined(self) -> None:
        c = Catalog()
        for number in range(10):
            c.put(f"o{number}", (1, 200))
        assert starts(c.plan(options())) == [
            [(1, 200 * number) for number in range(5)],
            [(1, 1000 + 200 * number) for number in range(5)],
        ]

    def test_segments_that_do_not_match_are_left_alone(self) -> None:
        c = Catalog()
        c.segment(1, "logs/a"), c.segment(2, "logs/b"), c.segment(3, "other")
        for number in range(5):
            c.put(f"o{number}", (1, 10), (2, 10), (3, 10))
        plan = c.plan(options(where_segment="logs/*"))
        assert {segment for group in starts(plan) for segment, _ in group} == {1, 2}
        assert starts(c.plan(options(where_container=frozenset({CONTAINER + 1})))) == []

    def test_merged_segments_are_left_alone(self) -> None:
        c = Catalog()
        for number in range(5):
            c.put(f"o{number}", (1, 10), (2, 10))
        merged = c.segment(2)
        merged.merged_into = 1
        merged.sealed = True
        assert {segment for group in starts(c.plan(options())) for segment, _ in group} == {1}

    def test_no_chunks_no_plan(self) -> None:
        assert Catalog().plan(options()).groups == []


class TestDead:
    def test_a_mostly_dead_object_is_emptied(self) -> None:
        c = Catalog()
        c.put("dead", (1, 10_000), (2, 10_000), dead=20_000)
        c.put("alive", (1, 10_000), (2, 10_000), dead=3_000)
        assert starts(c.plan(options(100_000))) == [[(1, 0), (2, 0)]]
        assert starts(c.plan(options(100_000, delete_ratio_threshold=0.6))) == []

    def test_so_is_one_that_the_plan_itself_leaves_mostly_dead(self) -> None:
        c = Catalog()
        for number in range(5):
            c.put(f"o{number}", (1, 10_000), *[(10 + number, 10_000)] * (number == 0))
        assert starts(c.plan(options(100_000))) == [
            [*[(1, 10_000 * number) for number in range(5)], (10, 0)]
        ]

    def test_not_one_in_which_a_segment_has_chunks_that_may_not_be_touched(self) -> None:
        c = Catalog()
        c.segment(1, "a"), c.segment(2, "b")
        c.put("dead", (1, 10_000), (2, 10_000), dead=50_000)
        assert starts(c.plan(options(100_000, where_segment="a"))) == []

    def test_headers_are_not_dead(self) -> None:
        c = Catalog()
        c.put("small", *[(segment, 10) for segment in range(1, 20)])
        assert starts(c.plan(options())) == []


class TestGroups:
    def test_segments_share_an_object_up_to_the_target(self) -> None:
        c = Catalog()
        for number in range(5):
            c.put(f"o{number}", *[(segment, 80) for segment in range(1, 7)])
        assert [planned.bytes for planned in c.plan(options()).groups] == [800, 800, 800]

    def test_a_group_goes_beyond_the_target_rather_than_stay_small(self) -> None:
        c = Catalog()
        for number in range(5):
            c.put(f"o{number}", (1, 140), (2, 140))
        assert [planned.bytes for planned in c.plan(options()).groups] == [1400]
        assert [planned.bytes for planned in c.plan(options(max_file_size_bytes=1000)).groups] == [
            700,
            700,
        ]

    def test_chunks_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compaction_plan, "GROUP_CHUNKS_MAX", 5)
        c = Catalog()
        for number in range(7):
            c.put(f"o{number}", (1, 10))
        assert [planned.chunks for planned in c.plan(options()).groups] == [5, 2]

    def test_order_is_as_asked(self) -> None:
        c = Catalog()
        for number in range(6):
            c.put(f"o{number}", (1, 140), *[(2, 160)] * (number > 0))

        def bytes_of(order: str) -> list[int]:
            chosen = options(max_file_size_bytes=1000, rewrite_job_order=order)
            return [planned.bytes for planned in c.plan(chosen).groups]

        assert bytes_of("none") == bytes_of("files-desc") == bytes_of("bytes-desc") == [840, 800]
        assert bytes_of("bytes-asc") == bytes_of("files-asc") == [800, 840]

    def test_freed_objects_are_those_of_which_nothing_is_left(self) -> None:
        c = Catalog()
        for number in range(5):
            c.put(f"o{number}", (1, 10), *[(2, 10)] * (number < 2))
        plan = c.plan(options(100))
        ids = [planned.group_id for planned in plan.groups]
        outline = plan.outline()
        assert (outline.source_objects(ids), outline.freed_objects(ids)) == (5, 3)
        assert (outline.source_objects([]), outline.freed_objects([])) == (0, 0)

    def test_a_group_travels_as_bytes(self) -> None:
        c = Catalog()
        for number in range(5):
            c.put(f"o{number}", (1, 10), (2, 20))
        plan = c.plan(options())
        [group] = [plan.group(planned) for planned in plan.groups]
        assert Group.decode(group.encode()) == group
        assert (group.payload_bytes, group.chunk_count) == (150, 10)
        assert plan.groups[0].bytes == 150

    def test_rows_may_come_in_any_order(self) -> None:
        c = Catalog()
        for number in range(5):
            c.put(f"o{number}", (1, 10), (2, 20))
        tables = build_tables(c.metadata)
        shuffled = tables.chunks.take(pa.array([7, 1, 9, 0, 5, 3, 2, 8, 4, 6]))
        plan = plan_groups(
            tables.segments,
            shuffled,
            options(),
            container_id=CONTAINER,
            epoch=EPOCH,
            now_ms=NOW_MS,
            store_id=STORE_ID,
        )
        assert [planned.group_id for planned in plan.groups] == [
            each.group_id for each in c.plan(options()).groups
        ]


class TestOptions:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"target": 0},
            {"min_input_files": 1},
            {"min_file_size_bytes": 1001},
            {"max_file_size_bytes": 999},
            {"delete_ratio_threshold": 0.0},
            {"delete_ratio_threshold": 1.5},
            {"rewrite_job_order": "size"},
            {"compression": "lzma"},
            {"older_than_ms": -1},
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match=r"-(bytes|files|threshold|order|than)|compression"):
            options(**wrong)  # type: ignore[arg-type] # by name

    def test_the_defaults_are_those_of_the_procedure(self) -> None:
        chosen = CompactionOptions()
        assert (chosen.small_bytes, chosen.whole_bytes_max) == (192 * 2**20, 256 * 2**20 * 9 // 5)


layouts = st.lists(
    # Objects: blocks of (segment, length in tens, times), and what is dead in them.
    st.tuples(
        st.lists(
            st.tuples(st.integers(1, 4), st.integers(1, 60), st.integers(1, 4)),
            min_size=1,
            max_size=5,
        ),
        st.sampled_from([0, 0, 0, 3000, 20_000]),
    ),
    min_size=1,
    max_size=25,
)


class TestProperties:
    @given(
        layouts,
        st.sampled_from([100, 400, 1000, 3000]),
        st.integers(2, 6),
        st.sampled_from([50, 400, 100_000]),
    )
    @settings(max_examples=examples(300), deadline=None)
    def test_groups_are_disjoint_true_and_not_planned_again(
        self,
        layout: list[tuple[list[tuple[int, int, int]], int]],
        target: int,
        min_input_files: int,
        block_bytes: int,
    ) -> None:
        c = Catalog()
        for number, (blocks, dead) in enumerate(layout):
            c.put(
                f"o{number}",
                *[(segment, 10 * tens) for segment, tens, times in blocks for _ in range(times)],
                dead=dead,
            )
        assert_metadata_valid(c.metadata)
        chosen = options(target, min_input_files=min_input_files, block_bytes=block_bytes)
        plan = c.plan(chosen)
        groups = [plan.group(planned) for planned in plan.groups]
        assert [planned.group_id for planned in c.plan(chosen).groups] == [
            group.group_id for group in groups
        ]
        known = {
            (each.segment_id, chunk)
            for each in c.metadata.segments.values()
            for chunk in each.chunks
        }
        seen: set[tuple[int, ChunkRecord]] = set()
        for planned, group in zip(plan.groups, groups, strict=True):
            chunks = [(run.segment_id, chunk) for run in group.runs for chunk in run.chunks]
            assert set(chunks) <= known
            assert not seen & set(chunks)
            assert len(set(chunks)) == len(chunks) == planned.chunks
            seen |= set(chunks)
            assert planned.bytes == group.payload_bytes
            last = group.runs[-1].chunks[-1]
            assert planned.bytes - last.length < chosen.group_bytes_max
            assert set(group.objects) == {chunk.object_name for _, chunk in chunks}
            assert all(
                record == c.metadata.objects[name].record for name, record in group.objects.items()
            )
        before = copy.copy(c.metadata.objects)
        freed = plan.outline().freed_objects([group.group_id for group in groups])
        for group in groups:
            c.commit(group, chosen)
        assert len(before.keys() - c.metadata.objects.keys()) == freed
        assert starts(c.plan(chosen, now_ms=2 * NOW_MS)) == []

    @given(
        st.lists(
            st.tuples(st.integers(1, 100), st.booleans(), st.integers(0, 3)),
            min_size=1,
            max_size=12,
        )
    )
    def test_pieces_are_counted_as_the_plan_counts_them(
        self, blocks: list[tuple[int, bool, int]]
    ) -> None:
        c = Catalog()
        place, number = 0, 0
        segment = c.segment(1)
        for length, moves, gap in blocks:
            number += moves
            place += 5000 * gap
            segment.own_chunks().append(
                ChunkRecord(segment.length, length, f"o{number}", place, 1, segment.length)
            )
            place += 200 + length
            segment.length += length
        segment.storage_length = segment.length
        for chunk in segment.chunks:
            live = c.metadata.objects.setdefault(
                chunk.object_name, LiveObject(ObjectRecord(chunk.object_name, 10**6, 0))
            )
            live.live_chunks += 1
        behind = _Chunks(build_tables(c.metadata).chunks).lies_behind(60)
        assert pieces_of(list(segment.chunks), 60) == len(behind) - sum(behind.tolist())
