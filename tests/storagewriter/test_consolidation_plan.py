"""Which objects become one, how, and which chunks stand for which then: pure, so asked directly."""

from __future__ import annotations

import pytest

from segmentstore.contracts.chunk_list import ChunkList
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.metadata import SegmentMetadata
from segmentstore.contracts.object_states import LiveObject
from storagewriter import consolidation_plan
from storagewriter.consolidation_plan import (
    choose_group,
    dead_bytes,
    is_candidate,
    is_worth_joining,
    next_batch,
    replaced_by_copy,
    replaced_by_rewrite,
    runs_of,
    still_there,
)
from tier2.copy_plan import CopyPlan, PlacedBlock, Run, blocks_to_write, plan_copy
from tier2.object_storage import ObjectRange

FULL = 1000


def live(
    name: str, live_bytes: int, *, size: int | None = None, chunks: int = 1, created_ms: int = 0
) -> LiveObject:
    return LiveObject(
        ObjectRecord(name, live_bytes if size is None else size, created_ms), chunks, live_bytes
    )


def chunk(start: int, length: int, name: str, place: int = 0) -> ChunkRecord:
    return ChunkRecord(start, length, name, place, 5, start)


def segment_of(*chunks: ChunkRecord) -> SegmentMetadata:
    segment = SegmentMetadata(5, "s", 0)
    segment.chunks = ChunkList(chunks)
    segment.start_offset = chunks[0].start_offset
    segment.storage_length = segment.length = chunks[-1].end_offset
    return segment


def names_of(group: tuple[LiveObject, ...]) -> str:
    return "".join(each.record.name for each in group)


class TestGroup:
    def test_small_objects_are_candidates_and_large_ones_are_not(self) -> None:
        assert is_candidate(live("a", FULL // 2 - 1), FULL)
        assert not is_candidate(live("a", FULL // 2), FULL)

    def test_a_large_object_becomes_one_when_most_of_it_is_dead(self) -> None:
        assert is_candidate(live("a", 60_000, size=130_000), 100_000)
        assert not is_candidate(live("a", 60_000, size=110_000), 100_000)
        assert not is_candidate(live("a", 200_000, size=900_000), 100_000), "more than may be held"

    def test_headers_of_small_blocks_are_not_dead_bytes(self) -> None:
        assert dead_bytes(live("a", 1000, size=1000 + 10 * 200, chunks=10)) == 0

    def test_the_oldest_neighbours_that_fill_an_object(self) -> None:
        candidates = [
            live(name, 400, created_ms=ms) for name, ms in (("c", 3), ("a", 1), ("d", 4), ("b", 2))
        ]
        assert names_of(choose_group(candidates, FULL)) == "abc"
        assert names_of(choose_group(candidates[:2], FULL)) == ""

    def test_of_the_same_time_in_the_order_of_the_log(self) -> None:
        assert names_of(choose_group([live(name, 400) for name in "cab"], FULL)) == "cab"

    def test_bounds_of_a_group(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(consolidation_plan, "CHUNKS_MAX", 10)
        # What the bound cuts off too small to be worth it is passed over, so that the next has its
        # turn.
        candidates = [
            live("a", 100, chunks=6),
            live("b", 100, chunks=6),
            *(live(n, 300, chunks=4) for n in "cdef"),
        ]
        assert names_of(choose_group(candidates, FULL)) == "de"
        monkeypatch.setattr(consolidation_plan, "CHUNKS_MAX", 100)
        monkeypatch.setattr(consolidation_plan, "SOURCES_MAX", 3)
        assert names_of(choose_group([live(n, 200) for n in "abcdef"], FULL)) == "abc"

    def test_mostly_dead_ones_go_when_they_free_enough(self) -> None:
        candidates = [live(n, 1000, size=20_000) for n in "ab"] + [live("c", 1000)]
        assert names_of(choose_group(candidates, 140_000)) == "ab"
        assert names_of(choose_group(candidates, 150_000)) == ""

    @pytest.mark.parametrize(("bound", "chunks"), [("SOURCES_MAX", 1), ("CHUNKS_MAX", 3)])
    def test_however_small_they_are_their_number_is_bounded(
        self, monkeypatch: pytest.MonkeyPatch, bound: str, chunks: int
    ) -> None:
        """What every flush leaves behind comes together, and each byte is written again seldom."""
        monkeypatch.setattr(consolidation_plan, bound, 8 * chunks)
        objects: dict[str, LiveObject] = {}
        rewritten = most = 0
        for number in range(2000):
            objects[f"o{number}"] = live(f"o{number}", 10, chunks=chunks, created_ms=number)
            while group := choose_group(objects.values(), 100_000):
                for each in group:
                    del objects[each.record.name]
                size = sum(each.live_bytes for each in group)
                rewritten += size
                name = f"c{number}-{group[0].record.name}"
                objects[name] = live(name, size, chunks=chunks, created_ms=number)
            most = max(most, len(objects))
        assert most < 50
        assert rewritten <= 4 * 20_000


class TestWorthJoining:
    def test_many_chunks_in_few_objects_unless_they_become_fewer(self) -> None:
        group = [live(str(number), 400_000, chunks=4000) for number in range(16)]
        assert not is_worth_joining(group, 64_000, 1 << 28)
        assert is_worth_joining(group, 49_000, 1 << 28), "a quarter less"

    def test_few_chunks_in_many_objects(self) -> None:
        group = [live(str(number), 4000, chunks=40) for number in range(1600)]
        assert is_worth_joining(group, 64_000, 1 << 28), "many objects less"

    def test_a_group_that_fills_an_object_or_frees_bytes(self) -> None:
        group = [live(str(number), 400_000, chunks=4000) for number in range(16)]
        assert is_worth_joining(group, 64_000, 12_000_000)
        dead = [live(str(number), 400_000, size=80_000_000, chunks=4000) for number in range(16)]
        assert is_worth_joining(dead, 64_000, 1 << 28)


class TestCopy:
    def test_runs_lie_behind_one_another_and_neighbours_are_one_range(self) -> None:
        chunks = (chunk(0, 100, "a"), chunk(100, 100, "a", 250), chunk(200, 100, "b"))
        names = {name: ObjectRecord(name, size, 0) for name, size in (("a", 500), ("b", 250))}
        plan = plan_copy([Run(5, chunks)], names, 50, 16)
        assert plan == CopyPlan(
            (ObjectRange("a", 0, 500), ObjectRange("b", 0, 250)),
            {("a", 0): 0, ("a", 250): 250, ("b", 0): 500},
            750,
        )

    def test_one_range_may_be_short_and_goes_last(self) -> None:
        chunks = (chunk(0, 10, "a"), chunk(10, 100, "b"))
        names = {name: ObjectRecord(name, size, 0) for name, size in (("a", 150), ("b", 250))}
        plan = plan_copy([Run(5, chunks)], names, 200, 16)
        assert plan is not None
        assert [each.name for each in plan.ranges] == ["b", "a"]
        assert plan.places == {("b", 0): 0, ("a", 0): 250}
        assert plan_copy([Run(5, chunks)], names, 300, 16) is None, "two are short"

    def test_what_is_mostly_dead_is_not_copied(self) -> None:
        chunks = (chunk(0, 100, "a"), chunk(100, 100, "a", 2000))
        names = {"a": ObjectRecord("a", 2250, 0)}
        assert plan_copy([Run(5, chunks)], names, 50, 16) is None

    def test_dead_blocks_in_front_are_left_out(self) -> None:
        names = {"a": ObjectRecord("a", 2250, 0)}
        plan = plan_copy([Run(5, (chunk(100, 100, "a", 2000),))], names, 50, 16)
        assert plan is not None
        assert plan.ranges == (ObjectRange("a", 2000, 250),)

    def test_too_many_ranges_are_not_copied(self) -> None:
        # Two segments whose blocks alternate in two objects: four ranges are as many as may be, six
        # too many.
        def runs(segments: int) -> list[Run]:
            return [
                Run(5 + s, (chunk(0, 100, "a", 250 * s), chunk(100, 100, "b", 250 * s)))
                for s in range(segments)
            ]

        assert plan_copy(runs(2), {n: ObjectRecord(n, 500, 0) for n in "ab"}, 50, 16) is not None
        assert plan_copy(runs(3), {n: ObjectRecord(n, 750, 0) for n in "ab"}, 50, 16) is None

    def test_two_chunks_of_one_block_keep_sharing_it(self) -> None:
        first, second = chunk(0, 100, "a"), ChunkRecord(100, 50, "a", 0, 5, 100)
        plan = plan_copy([Run(5, (first, second))], {"a": ObjectRecord("a", 300, 0)}, 50, 16)
        assert plan is not None
        assert plan.ranges == (ObjectRange("a", 0, 300),)
        [replacement] = replaced_by_copy(
            segment_of(first, second), Run(5, (first, second)), plan, "new"
        )
        assert replacement.new == (
            first._replace(object_name="new"),
            second._replace(object_name="new"),
        )


class TestReplacements:
    CHUNKS = tuple(chunk(10 * number, 10, "abab"[number]) for number in range(4))

    def test_runs_are_neighbours(self) -> None:
        assert list(runs_of(5, self.CHUNKS)) == [Run(5, self.CHUNKS)]
        assert list(runs_of(5, [self.CHUNKS[0], *self.CHUNKS[2:]])) == [
            Run(5, self.CHUNKS[:1]),
            Run(5, self.CHUNKS[2:]),
        ]
        assert not list(runs_of(5, []))

    def test_chunks_of_two_moments_are_never_in_one_run(self) -> None:
        """Found while one took the place of the others: what is still there decides."""
        newer = chunk(0, 20, "z")
        assert list(runs_of(5, [self.CHUNKS[0], newer, self.CHUNKS[1]])) == [
            Run(5, self.CHUNKS[:1]),
            Run(5, (newer,)),
            Run(5, self.CHUNKS[1:2]),
        ]

    @pytest.mark.parametrize("chunks_max", range(1, 12))
    def test_batches_hold_about_so_many_chunks(self, chunks_max: int) -> None:
        lengths = (1, 4, 2, 1, 1, 3)
        placed = [
            (Run(number, self.CHUNKS[:length]), number) for number, length in enumerate(lengths)
        ]
        left = iter(placed)
        batches = list(iter(lambda: next_batch(left, chunks_max), []))
        assert [each for batch in batches for each in batch] == placed
        sizes = [[len(run.chunks) for run, _ in batch] for batch in batches]
        assert all(sum(size[:-1]) < chunks_max for size in sizes)
        assert all(sum(size) >= chunks_max for size in sizes[:-1])

    def test_blocks_are_bounded(self) -> None:
        blocks = list(blocks_to_write(Run(5, self.CHUNKS), 25))
        assert blocks == [self.CHUNKS[:2], self.CHUNKS[2:]]
        assert len(list(blocks_to_write(Run(5, self.CHUNKS), 5))) == 4, "a chunk is never cut"

    def test_only_what_is_still_there_is_replaced(self) -> None:
        run = Run(5, self.CHUNKS)
        assert list(still_there(segment_of(*self.CHUNKS), run)) == [self.CHUNKS]
        assert list(still_there(segment_of(*self.CHUNKS[1:]), run)) == [self.CHUNKS[1:]]
        changed = self.CHUNKS[1]._replace(object_name="z")
        segment = segment_of(self.CHUNKS[0], changed, *self.CHUNKS[2:])
        assert list(still_there(segment, run)) == [self.CHUNKS[:1], self.CHUNKS[2:]]
        joined = segment_of(chunk(0, 20, "z"), *self.CHUNKS[2:])
        assert list(still_there(joined, run)) == [self.CHUNKS[2:]]

    def test_a_rewritten_stretch_takes_its_part_of_the_blocks(self) -> None:
        blocks = [PlacedBlock(0, 20, 0), PlacedBlock(20, 20, 300)]
        segment = segment_of(*self.CHUNKS[1:])
        [replacement] = replaced_by_rewrite(segment, Run(5, self.CHUNKS), blocks, "new")
        assert replacement.old == self.CHUNKS[1:]
        assert replacement.new == (
            ChunkRecord(10, 10, "new", 0, 5, 10),
            ChunkRecord(20, 20, "new", 300, 5, 20),
        )
