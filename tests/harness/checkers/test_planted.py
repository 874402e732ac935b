"""What was seen is changed in one place, and the checker that the broken rule belongs to must say
so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from recovery.harness.history import CallKind, CallOutcome
from recovery.harness.records import append_record, event_record
from tests.harness.checkers.histories import (
    COUNTER,
    VALUE,
    calls_of,
    content,
    good,
    see,
    see_from,
    told,
)
from tests.harness.checkers.small_store import SmallStore, event_length


def flipped(store: SmallStore) -> None:
    data = bytearray(content(store, 0, "a"))
    data[5] ^= 1
    see_from(store, 0, "a", content=bytes(data))


def flipped_later(store: SmallStore) -> None:
    data = bytearray(content(store, 2, "a"))
    data[40] ^= 1
    see_from(store, 2, "a", content=bytes(data))


def zeros_at_the_end(store: SmallStore) -> None:
    see(store, 3, "a", content=content(store, 3, "a") + bytes(20))


def short_read(store: SmallStore) -> None:
    see(store, 3, "a", content=content(store, 3, "a")[:-1], length=len(content(store, 3, "a")))


def last_append_missing(store: SmallStore) -> None:
    size = calls_of(store, CallKind.APPEND, "a")[-1].size
    see_from(store, 2, "a", content=content(store, 2, "a")[:-size])


def acknowledged_missing_everywhere(store: SmallStore) -> None:
    see_from(store, 0, "a", content=b"")


def never_submitted(store: SmallStore) -> None:
    see(store, 3, "a", content=content(store, 3, "a") + append_record(9999, 0, 5))


def wrong_length(store: SmallStore) -> None:
    call = calls_of(store, CallKind.APPEND, "a")[-3]
    see(store, 3, "a", content=content(store, 3, "a") + append_record(call.number, 0, 99))


def of_another_segment(store: SmallStore) -> None:
    call = calls_of(store, CallKind.APPEND, "m")[0]
    see(store, 3, "a", content=content(store, 3, "a") + append_record(call.number, 0, 12))


def unknown_event(store: SmallStore) -> None:
    see(store, 3, "e", content=content(store, 3, "e") + event_record(1, 77, 5))


def twice_in_one(store: SmallStore) -> None:
    call = calls_of(store, CallKind.APPEND, "a")[-1]
    see(store, 3, "a", content=content(store, 3, "a") + append_record(call.number, 0, 13))


def event_twice(store: SmallStore) -> None:
    see(store, 3, "e", content=content(store, 3, "e") + event_record(1, 4, event_length(1, 4)))


def source_still_there(store: SmallStore) -> None:
    segments = store.history.observations
    for observation in segments[1:]:
        observation.segments["m#1"] = segments[0].segments["m#1"]


def batch_cut(store: SmallStore) -> None:
    see_from(store, 1, "b", content=content(store, 1, "b")[:-58])


def batch_interleaved(store: SmallStore) -> None:
    call = calls_of(store, CallKind.APPEND, "b")[-1]
    data, size = content(store, 3, "b"), call.size
    see(store, 3, "b", content=data[: 58 - size] + data[-58:] + data[-91:-58])


def batch_without_head(store: SmallStore) -> None:
    call = calls_of(store, CallKind.APPEND, "b")[-1]
    see(store, 3, "a", content=append_record(call.number, 1, 5) + content(store, 3, "a"))


def merged_nowhere(store: SmallStore) -> None:
    target = calls_of(store, CallKind.APPEND, "m")[0]
    see_from(store, 1, "m", content=append_record(target.number, 0, 12))


def merged_by_an_unknown_merge_into_nothing(store: SmallStore) -> None:
    merge = calls_of(store, CallKind.MERGE, "m")[0]
    merge.outcome, merge.result = CallOutcome.UNKNOWN, None
    merged_nowhere(store)


def refused_and_there(store: SmallStore) -> None:
    call = calls_of(store, CallKind.APPEND, "a")[0]
    call.outcome, call.result, call.error = CallOutcome.REFUSED, None, "BadOffsetError"


def refused_event_there(store: SmallStore) -> None:
    call = calls_of(store, CallKind.EVENT, "e")[0]
    call.outcome, call.result, call.error = CallOutcome.REFUSED, None, "TierUnavailableError"


def effective_after_its_process_run(store: SmallStore) -> None:
    lost = next(
        call
        for call in store.history.calls
        if call.outcome is CallOutcome.UNKNOWN and call.lengths == (12,)
    )
    see_from(store, 3, "a", content=content(store, 3, "a") + append_record(lost.number, 0, 12))


def events_in_wrong_order(store: SmallStore) -> None:
    sizes = [28 + event_length(1, number) for number in range(4)]
    data = content(store, 3, "e")
    see(
        store,
        3,
        "e",
        content=data[sizes[0] : sizes[0] + sizes[1]]
        + data[: sizes[0]]
        + data[sizes[0] + sizes[1] :],
    )


def event_number_lost(store: SmallStore) -> None:
    see_from(store, 0, "e", attributes={})


def event_number_ahead(store: SmallStore) -> None:
    see(store, 0, "e", attributes={UUID(int=1): 4})


def event_number_never_sent(store: SmallStore) -> None:
    see(store, 0, "e", attributes={UUID(int=1): 99})


def repeated_event_missing(store: SmallStore) -> None:
    for call in calls_of(store, CallKind.EVENT, "e")[3:4]:
        call.outcome, call.result, call.ended = CallOutcome.UNKNOWN, None, None
    sizes = [28 + event_length(1, number) for number in range(5)]
    data = content(store, 3, "e")
    without = data[: sum(sizes[:3])] + data[sum(sizes[:4]) :]
    see(store, 0, "e", content=data[: sum(sizes[:3])], attributes={UUID(int=1): 2})
    see(store, 1, "e", content=data[: sum(sizes[:3])], attributes={UUID(int=1): 2})
    see_from(store, 2, "e", content=without)


def seal_forgotten(store: SmallStore) -> None:
    see(store, 1, "b", sealed=False)


def unsealed(store: SmallStore) -> None:
    see_from(store, 2, "b", sealed=False)


def sealed_without_a_call(store: SmallStore) -> None:
    see_from(store, 2, "m", sealed=True)


def sealed_at_another_length(store: SmallStore) -> None:
    calls_of(store, CallKind.SEAL, "b")[0].result = 3


def refused_as_sealed(store: SmallStore) -> None:
    call = store.append("m", 10)
    call.outcome, call.result, call.error = CallOutcome.REFUSED, None, "SegmentSealedError"


def start_went_back(store: SmallStore) -> None:
    whole = content(store, 0, "b")
    see_from(store, 2, "b", content=whole, start_offset=0, length=len(whole))


def truncation_forgotten(store: SmallStore) -> None:
    whole = content(store, 0, "b")
    see_from(store, 1, "b", content=whole, start_offset=0, length=len(whole))


def truncated_without_a_call(store: SmallStore) -> None:
    data = content(store, 2, "a")
    see_from(store, 2, "a", content=data[38:], start_offset=38, length=len(data))


def counter_too_high(store: SmallStore) -> None:
    see(store, 1, "a", attributes={COUNTER: 7, VALUE: 7})


def riding_update_lost(store: SmallStore) -> None:
    see(store, 1, "a", attributes={COUNTER: 6})


def attribute_never_set(store: SmallStore) -> None:
    see_from(store, 1, "m", attributes={VALUE: 1})


def removed_without_reason(store: SmallStore) -> None:
    del store.history.observations[2].segments["a"]


def segment_never_created(store: SmallStore) -> None:
    for observation in store.history.observations:
        observation.segments["x"] = replace(
            observation.segments["a"], name="x", segment_id=999, content=b"", length=0
        )


def foreign_id(store: SmallStore) -> None:
    see_from(store, 0, "m", segment_id=700)


def one_id_for_two(store: SmallStore) -> None:
    see_from(store, 0, "m", segment_id=1)


def risen_again(store: SmallStore) -> None:
    old = replace(store.history.observations[0].segments["d"])
    for number in range(1, 4):
        store.history.observations[number].segments["d"] = old


def storage_beyond_length(store: SmallStore) -> None:
    see(store, 3, "a", storage_length=10_000)


def storage_went_back(store: SmallStore) -> None:
    see(store, 1, "a", storage_length=20)


def changed_by_a_recovery(store: SmallStore) -> None:
    see(store, 3, "a", sealed=True)


def removed_by_a_recovery(store: SmallStore) -> None:
    del store.history.observations[3].segments["e"]


def come_by_a_recovery(store: SmallStore) -> None:
    last = store.history.observations[3].segments
    last["x"] = replace(last["m"], name="x", segment_id=999)


def another_id_without_removal(store: SmallStore) -> None:
    see_from(store, 2, "m", segment_id=700)


def in_two_incarnations(store: SmallStore) -> None:
    first, second = calls_of(store, CallKind.APPEND, "d")
    segments = store.history.observations[0].segments
    segments["d"] = replace(segments["d"], content=append_record(second.number, 0, 25), length=53)
    assert first.number < second.number


def finding(store: SmallStore) -> None:
    last = store.history.observations[-1]
    store.history.observations[-1] = replace(last, findings=("an object is missing",))


def read_something_else(store: SmallStore) -> None:
    call = calls_of(store, CallKind.READ, "a")[0]
    call.data = b"?" + call.data[1:]


def read_too_much(store: SmallStore) -> None:
    calls_of(store, CallKind.READ, "a")[0].max_length = 5


def read_what_is_lost(store: SmallStore) -> None:
    call = calls_of(store, CallKind.READ, "a")[0]
    call.offset, call.data, call.max_length = 100, content(store, 1, "a")[100:] + b"dirty", 1000


def read_nothing(store: SmallStore) -> None:
    calls_of(store, CallKind.READ, "a")[0].data = b""


def read_at_an_end_before_the_end(store: SmallStore) -> None:
    call = calls_of(store, CallKind.READ, "a")[0]
    call.outcome, call.data, call.error = CallOutcome.REFUSED, b"", "EndOfSegmentError"


def length_behind(store: SmallStore) -> None:
    calls_of(store, CallKind.INFO, "a")[0].result = 3


def same_offset_twice(store: SmallStore) -> None:
    calls = calls_of(store, CallKind.APPEND, "a")
    calls[1].result = calls[0].result


def unexplained_hole(store: SmallStore) -> None:
    store.history.observations.clear()
    calls_of(store, CallKind.APPEND, "a")[-1].result = 9_000


def committed_before_an_earlier_one(store: SmallStore) -> None:
    calls = calls_of(store, CallKind.APPEND, "a")
    calls[0].result, calls[1].result = calls[1].result, calls[0].result


def conditional_elsewhere(store: SmallStore) -> None:
    next(call for call in store.history.calls if call.expected is not None).expected = 5


def exists_without_creation(store: SmallStore) -> None:
    call = store.create("new")
    call.outcome, call.result, call.error = CallOutcome.REFUSED, None, "SegmentExistsError"


def not_found(store: SmallStore) -> None:
    call = store.append("m", 10)
    call.outcome, call.result, call.error = CallOutcome.REFUSED, None, "SegmentNotFoundError"


def created_twice(store: SmallStore) -> None:
    first = calls_of(store, CallKind.CREATE, "a")[0]
    call = store.create("new")
    call.segment, call.outcome, call.result = "a", CallOutcome.OK, first.result


PLANTED: tuple[tuple[str, Callable[[SmallStore], object], str], ...] = (
    ("content", flipped, "are no record"),
    ("content", flipped_later, "has changed"),
    ("content", zeros_at_the_end, "are no record"),
    ("content", short_read, "bytes were read"),
    ("content", last_append_missing, "acknowledged for offset"),
    ("content", acknowledged_missing_everywhere, "acknowledged for offset"),
    ("content", never_submitted, "never submitted"),
    ("content", wrong_length, "never submitted"),
    ("content", of_another_segment, "never submitted"),
    ("content", unknown_event, "never sent"),
    ("content", twice_in_one, "more than once"),
    ("content", event_twice, "more than once"),
    ("content", source_still_there, "at one time"),
    ("content", batch_cut, "missing at the end"),
    ("content", batch_interleaved, "does not follow"),
    ("content", batch_without_head, "has none before it"),
    ("content", merged_nowhere, "where it was merged"),
    ("content", merged_nowhere, "acknowledged for offset"),
    ("content", merged_by_an_unknown_merge_into_nothing, "in no target"),
    ("unknown", refused_and_there, "was refused"),
    ("unknown", refused_event_there, "was refused"),
    ("unknown", effective_after_its_process_run, "was decided by"),
    ("exactly once", events_in_wrong_order, "lies behind"),
    ("exactly once", event_number_lost, "had been acknowledged"),
    ("exactly once", event_number_lost, "is there"),
    ("exactly once", event_number_ahead, "the last event there is 3"),
    ("exactly once", event_number_never_sent, "never sent"),
    ("exactly once", repeated_event_missing, "acknowledged as there already"),
    ("sealed", seal_forgotten, "is not sealed"),
    ("sealed", unsealed, "it was sealed at"),
    ("sealed", sealed_without_a_call, "no call sealed it"),
    ("sealed", sealed_at_another_length, "was sealed at 3"),
    ("sealed", sealed_at_another_length, "acknowledged up to"),
    ("sealed", refused_as_sealed, "no call had asked for"),
    ("truncated", start_went_back, "after it began at"),
    ("truncated", truncation_forgotten, "begins at 0"),
    ("truncated", truncated_without_a_call, "where no call truncated it"),
    ("attributes", counter_too_high, "by the calls it was 6"),
    ("attributes", riding_update_lost, "by the calls it was 7"),
    ("attributes", attribute_never_set, "no call set it"),
    ("recovery", removed_without_reason, "is not there at"),
    ("recovery", segment_never_created, "no call created it"),
    ("recovery", foreign_id, "it was created with"),
    ("recovery", one_id_for_two, "and was"),
    ("recovery", risen_again, "was deleted and is there"),
    ("recovery", storage_beyond_length, "storage length 10000"),
    ("recovery", storage_went_back, "went back from 20"),
    ("recovery", changed_by_a_recovery, "sealed of 'a' went"),
    ("recovery", removed_by_a_recovery, "is gone"),
    ("recovery", come_by_a_recovery, "has come"),
    ("recovery", another_id_without_removal, "was seen with the ids"),
    ("content", in_two_incarnations, "ids 5 and"),
    ("recovery", finding, "an object is missing"),
    ("recovery", exists_without_creation, "it was never created"),
    ("recovery", not_found, "and it does"),
    ("recovery", created_twice, "nothing removed it"),
    ("reads", read_something_else, "not the bytes observed"),
    ("reads", read_too_much, "5 were asked for"),
    ("reads", read_what_is_lost, "when observed later"),
    ("reads", read_nothing, "found nothing"),
    ("reads", read_at_an_end_before_the_end, "found nothing"),
    ("order", length_behind, "received 3"),
    ("order", same_offset_twice, "both acknowledged"),
    ("order", unexplained_hole, "acknowledged to no client"),
    ("order", committed_before_an_earlier_one, "before it began"),
    ("order", committed_before_an_earlier_one, "before its earlier call"),
    ("conditional", conditional_elsewhere, "only 5 was asked"),
)


@pytest.mark.parametrize(
    ("checker", "plant", "words"),
    PLANTED,
    ids=[f"{entry[1].__name__}-{entry[0]}" for entry in PLANTED],
)
def test_a_planted_violation_is_reported(
    checker: str, plant: Callable[[SmallStore], object], words: str
) -> None:
    store = good()
    plant(store)
    found = told(store.history)
    assert any(words in detail for detail in found.get(checker, ())), found
