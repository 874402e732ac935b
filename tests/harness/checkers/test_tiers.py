"""What lies in the tiers is changed in one place, and the checker that the broken rule belongs to
must say so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recovery.harness.checkers.log import without
from recovery.harness.checkers.tier2 import orphans
from recovery.harness.history import History, ProcessRun
from recovery.harness.seen_tiers import LoggedSegment, SeenChunk, SeenLog, SeenTiers
from tests.harness.checkers.histories import good, told
from tier2.object_names import ObjectKind, object_name

FLUSHED = object_name(0, 3, "flush", bytes(16))
COPIED = object_name(0, 3, "consolidation", bytes([1] * 16))
GARBAGE = object_name(0, 2, "flush", bytes([2] * 16))
TIER2_HAS = 30


def named(epoch: int, kind: ObjectKind = "flush", container_id: int = 0) -> str:
    job = {"job_id": "0" * 16} if kind == "compaction" else {}
    return object_name(container_id, epoch, kind, bytes([9] * 16), **job)


def history() -> History:
    """A history with two checks of its tiers in the end, the last one deep; nothing of it is a
    violation.
    """
    made = good().history
    shown = made.observations[-1].segments["a"]
    data = shown.content
    segment = LoggedSegment(
        shown.segment_id,
        "a",
        0,
        len(data),
        TIER2_HAS,
        chunks=[
            SeenChunk(0, 20, FLUSHED, data[:20]),
            SeenChunk(20, TIER2_HAS, COPIED, data[20:TIER2_HAS]),
        ],
    )
    log = SeenLog(
        container_id=shown.container_id,
        epoch=3,
        first=100,
        begins_with="CheckpointOperation",
        segments={shown.segment_id: segment},
        held={shown.segment_id: [(25, 60), (60, len(data))]},
        objects={FLUSHED: 200, COPIED: 300},
        garbage={GARBAGE: 50},
    )
    for _ in range(2):
        made.process_runs.append(
            ProcessRun(len(made.process_runs), "owner", made.next_stamp(), opened=made.next_stamp())
        )
        made.process_runs[-1].ended, made.process_runs[-1].ending = made.next_stamp(), "closed"
        made.tiers.append(
            SeenTiers(
                made.next_stamp(), {0: log}, {FLUSHED: 200, COPIED: 300, GARBAGE: 50}, settled=True
            )
        )
    return made


def change(made: History, number: int = -1, **changes: Any) -> None:
    made.tiers[number] = replace(made.tiers[number], **changes)


def change_log(made: History, number: int = -1, **changes: Any) -> None:
    change(made, number, logs={0: replace(made.tiers[number].logs[0], **changes)})


def change_segment(made: History, **changes: Any) -> None:
    ((key, segment),) = made.tiers[-1].logs[0].segments.items()
    change_log(made, segments={key: replace(segment, **changes)})


def hold(made: History, *spans: tuple[int, int]) -> None:
    change_log(made, held=dict.fromkeys(made.tiers[-1].logs[0].held, spans))


def end(made: History) -> int:
    (segment,) = made.tiers[-1].logs[0].segments.values()
    return segment.length


def list_also(made: History, name: str, number: int = -1) -> None:
    change(made, number, listed={**made.tiers[number].listed, name: 10})


def test_right_tiers_are_no_violation() -> None:
    assert told(history()) == {}


# --- the log --------------------------------------------------------------------------------------


def test_a_log_that_begins_with_another_operation_is_reported() -> None:
    made = history()
    change_log(made, begins_with="AppendOperation")
    assert "begins with AppendOperation 100" in str(told(made)["log"])


def test_a_log_whose_beginning_goes_back_is_reported() -> None:
    made = history()
    change_log(made, first=99)
    assert "began with 100 before" in str(told(made)["log"])
    made.process_runs[-1].opened = None  # that it began there was never durable
    assert told(made) == {}


@pytest.mark.parametrize("missing", ["beginning", "middle", "end", "all"])
def test_bytes_that_are_neither_in_tier_2_nor_in_the_log_are_reported(missing: str) -> None:
    made = history()
    last = end(made)
    spans = {
        "beginning": [(TIER2_HAS + 1, last)],
        "middle": [(20, 50), (51, last)],
        "end": [(20, last - 1)],
        "all": [],
    }[missing]
    hold(made, *spans)
    gaps = {
        "beginning": (TIER2_HAS, TIER2_HAS + 1),
        "middle": (50, 51),
        "end": (last - 1, last),
        "all": (TIER2_HAS, last),
    }
    assert f"from {gaps[missing][0]} to {gaps[missing][1]}" in str(told(made)["log"])


def test_what_is_truncated_or_in_a_merged_source_need_not_be_held() -> None:
    made = history()
    last = end(made)
    hold(made, (50, 60), (70, last))
    change_segment(made, start_offset=50, merges=[(60, 70)], chunks=[], storage_length=0)
    assert told(made) == {}


# --- Tier 2 ---------------------------------------------------------------------------------------


def test_a_referenced_object_that_is_not_there_is_reported() -> None:
    made = history()
    change(made, listed={COPIED: 300})
    assert f"{FLUSHED} is referenced, and is not there" in str(told(made)["tier2"])


def test_a_referenced_object_of_another_size_is_reported() -> None:
    made = history()
    change(made, listed={FLUSHED: 199, COPIED: 300})
    assert f"{FLUSHED} has 199 bytes, and was made with 200" in str(told(made)["tier2"])


def test_a_referenced_object_that_waits_for_its_deletion_is_reported() -> None:
    made = history()
    change_log(made, garbage={FLUSHED: 200, GARBAGE: 50})
    assert "is referenced, and waits for its deletion" in str(told(made)["tier2"])


def test_an_object_that_is_deleted_and_not_confirmed_yet_is_right() -> None:
    made = history()
    change(made, listed={FLUSHED: 200, COPIED: 300})
    assert told(made) == {}


@pytest.mark.parametrize(("kept", "gap"), [(slice(1, 2), (0, 20)), (slice(0, 1), (20, TIER2_HAS))])
def test_a_stretch_without_a_chunk_is_reported(kept: slice, gap: tuple[int, int]) -> None:
    made = history()
    (segment,) = made.tiers[-1].logs[0].segments.values()
    change_segment(made, chunks=segment.chunks[kept])
    assert f"from {gap[0]} to {gap[1]}" in str(told(made)["tier2"])


@pytest.mark.parametrize("place", [0, 19])
def test_other_bytes_than_readers_see_are_reported(place: int) -> None:
    made = history()
    (segment,) = made.tiers[-1].logs[0].segments.values()
    first, second = segment.chunks
    data = bytearray(first.content or b"")
    data[place] ^= 1
    change_segment(made, chunks=[replace(first, content=bytes(data)), second])
    assert "other bytes for 'a' from 0 to 20" in str(told(made)["tier2"])


def test_bytes_that_were_not_read_are_not_checked() -> None:
    made = history()
    (segment,) = made.tiers[-1].logs[0].segments.values()
    change_segment(made, chunks=[replace(chunk, content=None) for chunk in segment.chunks])
    assert told(made) == {}


@pytest.mark.parametrize("name", [FLUSHED, GARBAGE])
def test_an_object_that_the_log_forgets_before_it_is_missing_is_reported(name: str) -> None:
    made = history()
    change_segment(made, storage_length=0, chunks=[], length=0)
    change_log(
        made, objects={}, garbage={GARBAGE: 50} if name == FLUSHED else {FLUSHED: 200, COPIED: 300}
    )
    found = told(made)["tier2"]
    assert any(
        f"{name} is there, and the log, which named it at {made.tiers[0].stamp}" in each
        for each in found
    )


def test_an_object_that_was_not_synced_or_that_comes_back_late_is_not_forgotten() -> None:
    made = history()
    change_segment(made, storage_length=0, chunks=[], length=0)
    change_log(made, objects={})
    change(made, settled=False)
    assert set(told(made)) == {"tier2"}
    change(made, late_puts=True)
    assert told(made) == {}
    change(made, late_puts=False)
    made.process_runs[-1].opened = None
    assert told(made) == {}


def test_names_in_doubt_bind_no_later_check_but_where_a_log_began_does() -> None:
    made = history()
    change_segment(made, storage_length=0, chunks=[], length=0)
    change_log(made, objects={})
    change(made, settled=False)
    assert set(told(made)) == {"tier2"}
    change(made, 0, in_doubt=True)
    assert told(made) == {}
    change_log(made, 0, first=101)
    assert set(told(made)) == {"log"}


def test_an_object_of_an_epoch_without_an_owner_is_reported() -> None:
    made = history()
    list_also(made, named(4))
    assert "its newest is 3" in str(told(made)["tier2"])


def test_an_uncommitted_flush_is_reported_an_owner_without_trouble_alone() -> None:
    made = history()
    list_also(made, named(3))
    assert "an orphan of an owner that had no trouble" in str(told(made)["tier2"])
    change(made, settled=False)
    assert told(made) == {}


@pytest.mark.parametrize(
    "name", [named(2), named(3, "consolidation"), named(3, "compaction"), named(9, container_id=7)]
)
def test_orphans_of_dead_owners_of_consolidations_and_of_jobs_are_counted_and_right(
    name: str,
) -> None:
    made = history()
    list_also(made, name)
    assert told(made) == {}
    assert orphans(made.tiers[-1]) == ([] if "00000007" in name else [name])


# --- spans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "others", "left"),
    [
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 10)], [(3, 5)], [(0, 3), (5, 10)]),
        ([(0, 10), (20, 30)], [(5, 25)], [(0, 5), (25, 30)]),
        ([(0, 10)], [(2, 4), (3, 8), (12, 20)], [(0, 2), (8, 10)]),
        ([(5, 5)], [], []),
    ],
)
def test_spans_without_others(
    spans: list[tuple[int, int]], others: list[tuple[int, int]], left: list[tuple[int, int]]
) -> None:
    assert without(spans, others) == left
