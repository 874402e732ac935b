"""Whole histories pass, calls that were answered wrongly are reported, and what a right store may
do is not.
"""

from __future__ import annotations

import pytest

from recovery.harness.checkers.all_checks import CHECKERS, check_history, evaluate
from recovery.harness.checkers.search import WINDOW_MAX
from recovery.harness.history import Call, CallKind, CallOutcome, History, Observation, Update
from tests.harness.checkers.histories import COUNTER, VALUE, content, good, see, told
from tests.harness.checkers.small_store import SmallStore, event_length


def test_a_right_history_is_no_violation() -> None:
    assert told(good().history) == {}


def test_an_empty_history_is_no_violation() -> None:
    assert check_history(History()) == []


def test_what_the_search_for_an_order_leaves_alone_is_counted() -> None:
    def evaluated(count: int) -> dict[str, int]:
        store = SmallStore()
        store.create("a")
        store.append("a", 10, expected=0)
        calls = [
            store.begin(CallKind.APPEND, "a", f"c{n}", lengths=(10,), expected=7)
            for n in range(count)
        ]
        store.commit(9)
        for call in calls:
            store.finish(call.number)
        store.append("a", 10)
        return dict(evaluate(store.history).windows)

    assert evaluated(3) == {"decided": 3}
    assert evaluated(WINDOW_MAX + 1) == {"decided": 1, "undecided": 2}


def test_every_checker_is_run() -> None:
    assert len(CHECKERS) == len(set(CHECKERS)) == 19


# --- planted in what was asked --------------------------------------------------------------------


def test_an_append_after_a_seal_is_reported() -> None:
    store = good()
    call = store.append("m", 10)
    call.segment = "b"
    assert "began after" in str(told(store.history)["sealed"])


def test_a_seal_after_a_seal_is_reported() -> None:
    store = SmallStore()
    store.create("a")
    first = store.call(CallKind.SEAL, "a")
    second = store.call(CallKind.SEAL, "a")
    second.outcome, second.result, second.error = CallOutcome.OK, first.result, ""
    assert "by each of the calls" in str(told(store.history)["sealed"])


def test_a_read_below_a_truncation_is_reported() -> None:
    store = good()
    seen = store.history.observations[0].segments["b"]
    call = store.call(CallKind.READ, "b", offset=0, max_length=10)
    assert call.error == "SegmentTruncatedError"
    assert told(store.history) == {}
    call.outcome, call.data, call.error = CallOutcome.OK, seen.content[:10], ""
    assert "before it began" in str(told(store.history)["truncated"])


def test_a_refusal_at_the_right_offset_is_reported() -> None:
    store = SmallStore()
    store.create("a")
    store.append("a", 10)
    call = store.append("a", 10, expected=38)
    store.history.observations.clear()
    call.outcome, call.result, call.error = CallOutcome.REFUSED, None, "BadOffsetError"
    after = store.call(CallKind.INFO, "a")
    after.result = 38
    found = told(store.history)
    assert "its length all the time" in str(found["conditional"])
    assert "no order of the calls" in str(found["linearizability"])


def test_a_refusal_that_no_order_explains_is_reported_where_no_witness_is() -> None:
    store = SmallStore()
    store.create("a")
    calls = [
        store.begin(CallKind.APPEND, "a", client, lengths=(10,), expected=0)
        for client in ("x", "y")
    ]
    store.commit(9)
    for call in calls:
        store.finish(call.number)
    assert told(store.history) == {}
    assert [call.outcome for call in calls] == [CallOutcome.OK, CallOutcome.REFUSED]
    calls[0].outcome, calls[0].result, calls[0].error = CallOutcome.REFUSED, None, "BadOffsetError"
    assert list(told(store.history)) == ["linearizability"]


@pytest.mark.parametrize(
    ("updates", "checkers"),
    [
        ((Update(VALUE, "REPLACE_IF_EQUALS", 5, 3),), []),
        (
            (
                Update(COUNTER, "ACCUMULATE", 1),
                Update(VALUE, "REPLACE", 2),
                Update(VALUE, "REPLACE_IF_GREATER", 3),
            ),
            [],
        ),
        (
            (Update(COUNTER, "ACCUMULATE", 1), Update(VALUE, "REPLACE_IF_EQUALS", 5, 4)),
            ["linearizability"],
        ),
        (
            (Update(VALUE, "REPLACE", 9), Update(VALUE, "NONE", 8)),
            ["conditional", "linearizability"],
        ),
    ],
)
def test_a_refusal_of_the_offset_where_an_attribute_came_first_is_reported(
    updates: tuple[Update, ...], checkers: list[str]
) -> None:
    store = SmallStore()
    store.create("a", Update(VALUE, "REPLACE", 3))
    call = store.append("a", 10, expected=7, updates=updates)
    assert call.error == ("BadAttributeUpdateError" if checkers else "BadOffsetError")
    assert told(store.history) == {}
    call.error = "BadOffsetError"
    assert list(told(store.history)) == checkers


def test_a_seal_that_no_order_explains_is_reported() -> None:
    store = SmallStore()
    store.create("a")
    first = store.begin(CallKind.SEAL, "a")
    second = store.begin(CallKind.APPEND, "a", lengths=(10,), expected=0)
    store.commit(9)
    store.finish(first.number)
    store.finish(second.number)
    assert told(store.history) == {}
    first.outcome, first.result, first.error = CallOutcome.UNKNOWN, None, ""
    assert told(store.history) == {}
    first.outcome, first.error = CallOutcome.REFUSED, "SegmentSealedError"
    assert "linearizability" in told(store.history)


def test_an_attribute_refusal_without_reason_is_reported() -> None:
    store = SmallStore()
    store.create("a", Update(VALUE, "REPLACE", 3))
    call = store.call(CallKind.UPDATE, "a", updates=(Update(VALUE, "REPLACE_IF_GREATER", 3),))
    assert call.outcome is CallOutcome.REFUSED
    assert told(store.history) == {}
    call.updates = (Update(VALUE, "REPLACE_IF_GREATER", 4),)
    assert "linearizability" in told(store.history)


def test_a_refused_update_that_took_effect_is_reported() -> None:
    store = SmallStore()
    store.create("a")
    store.call(CallKind.UPDATE, "a", updates=(Update(VALUE, "REPLACE", 3),))
    call = store.call(CallKind.UPDATE, "a", updates=(Update(VALUE, "REPLACE", 4),))
    store.observe()
    call.outcome, call.error = CallOutcome.REFUSED, "SegmentSealedError"
    assert "it is 4" in str(told(store.history)["attributes"])


def test_two_compare_and_sets_from_one_value_are_reported() -> None:
    store = SmallStore()
    store.create("a")
    update = Update(VALUE, "REPLACE_IF_EQUALS", 1)
    calls = [store.begin(CallKind.UPDATE, "a", client, updates=(update,)) for client in ("x", "y")]
    store.commit(9)
    for call in calls:
        store.finish(call.number)
    assert told(store.history) == {}
    calls[1].outcome, calls[1].error = CallOutcome.OK, ""
    assert "no order of the calls" in str(told(store.history)["attributes"])


def test_a_sum_beyond_the_unknown_ones_is_reported() -> None:
    for value, right in ((30, True), (33, True), (34, False), (29, False)):
        store = SmallStore()
        store.create("a")
        calls = [
            store.begin(
                CallKind.UPDATE,
                "a",
                f"client-{number % 3}",
                updates=(Update(COUNTER, "ACCUMULATE", 1),),
            )
            for number in range(30)
        ]
        store.commit(99)
        for call in calls:
            store.finish(call.number)
        for number in range(3):
            store.begin(
                CallKind.UPDATE,
                "a",
                f"client-{number}",
                updates=(Update(COUNTER, "ACCUMULATE", 1),),
            )
        store.reopen(3)
        store.observe()
        see(store, 0, "a", attributes={COUNTER: value})
        assert (told(store.history) == {}) is right, value


def test_an_update_that_came_without_its_append_is_reported() -> None:
    store = SmallStore()
    store.create("a")
    store.append("a", 10, updates=(Update(VALUE, "REPLACE", 1),))
    store.lost("a", 10, updates=(Update(VALUE, "REPLACE", 2),))
    store.reopen()
    store.observe()
    assert told(store.history) == {}
    see(store, 0, "a", attributes={VALUE: 2})
    assert "by the calls it was 1" in str(told(store.history)["attributes"])


def overtaken(*, commits: bool) -> tuple[SmallStore, Call]:
    """An owner is paused with an append on its way, another opens, the first goes on."""
    store = SmallStore()
    store.create("a")
    store.append("a", 10)
    old = store.owner
    call = store.begin(CallKind.APPEND, "a", lengths=(20,))
    store.open(1 if commits else 0)
    store.observe()
    if commits:
        store.finish(call.number, old)
    else:
        call.outcome, call.result, call.ended = CallOutcome.OK, 38, store.history.next_stamp()
    return store, call


def test_a_late_answer_of_an_old_owner_is_no_violation_if_it_is_there() -> None:
    assert told(overtaken(commits=True)[0].history) == {}


def test_an_acknowledgement_after_a_takeover_that_is_not_there_is_reported() -> None:
    assert "does not have it" in str(told(overtaken(commits=False)[0].history)["owners"])


def test_an_acknowledgement_of_a_call_sent_after_a_takeover_is_reported() -> None:
    store, call = overtaken(commits=True)
    call.begun = call.ended or 0
    call.ended = store.history.next_stamp()
    assert "began after life 1 had opened" in str(told(store.history)["owners"])


@pytest.mark.parametrize("kind", [CallKind.CREATE, CallKind.SEAL, CallKind.TRUNCATE])
def test_other_acknowledgements_after_a_takeover_that_are_not_there_are_reported(
    kind: CallKind,
) -> None:
    store = SmallStore()
    store.create("a")
    store.append("a", 10)
    call = store.begin(kind, "new" if kind is CallKind.CREATE else "a", offset=38)
    store.open()
    store.observe()
    call.outcome, call.ended = CallOutcome.OK, store.history.next_stamp()
    call.result = {CallKind.CREATE: 99, CallKind.SEAL: 38, CallKind.TRUNCATE: None}[kind]
    assert "does not have it" in str(told(store.history)["owners"])


def test_a_stale_owners_reader_proves_nothing() -> None:
    store = SmallStore()
    store.create("a")
    store.append("a", 10)
    old = store.owner
    store.open()
    store.append("a", 10)
    call = store.begin(CallKind.READ, "a", owner=old, offset=38, max_length=10)
    store.finish(call.number, old)
    assert call.data == b""
    assert told(store.history) == {}


# --- room that a history leaves -------------------------------------------------------------------


def test_a_truncation_inside_a_record_leaves_its_tail() -> None:
    store = SmallStore()
    store.create("a")
    store.append("a", 100)
    store.append("a", 10)
    store.call(CallKind.TRUNCATE, "a", offset=70)
    store.observe()
    assert told(store.history) == {}
    data = content(store, 0, "a")
    see(store, 0, "a", content=bytes(len(data) - 38) + data[-38:])
    assert "are no record" in str(told(store.history)["content"])


def test_what_was_truncated_before_it_was_seen_is_explained() -> None:
    store = SmallStore()
    store.create("a")
    store.observe()
    store.append("a", 10, 10, 10)
    store.event("a", 5, 0)
    store.append("a", 10)
    store.call(CallKind.TRUNCATE, "a", offset=40)
    store.observe()
    assert told(store.history) == {}


def test_a_resent_event_after_a_loss_is_no_violation() -> None:
    store = SmallStore()
    store.create("e")
    store.event("e", 1, 0)
    for number in (1, 2, 3):
        store.begin(CallKind.EVENT, "e", writer=1, event=number, lengths=(event_length(1, number),))
    store.reopen(2)
    for number in range(5):
        store.event("e", 1, number)
    store.observe()
    assert told(store.history) == {}


def test_an_unknown_merge_may_have_happened_or_not() -> None:
    for keep in (0, 1):
        store = SmallStore()
        for name in ("m", "m#1"):
            store.create(name)
            store.append(name, 10)
        store.observe()
        store.begin(CallKind.MERGE, "m", source="m#1")
        store.reopen(keep)
        seen: Observation = store.observe()
        assert ("m#1" in seen.segments) is (keep == 0)
        assert told(store.history) == {}
