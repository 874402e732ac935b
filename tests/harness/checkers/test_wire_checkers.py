"""What a wire server must not answer is reported: numbers of set-ups, and tables."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any
from uuid import UUID

import pytest

from recovery.harness.checkers.all_checks import check_history
from recovery.harness.history import (
    Call,
    CallKind,
    CallOutcome,
    History,
    Observation,
    ProcessRun,
    SeenEntry,
    SeenSegment,
)
from recovery.harness.records import HEADER_BYTES, append_record
from recovery.harness.workloads.wire_tables import DECIDED
from segmentstore.tables.table_types import NO_VERSION, NOT_EXISTS
from tests.harness.checkers.small_store import SmallStore

OK, REFUSED, UNKNOWN = CallOutcome.OK, CallOutcome.REFUSED, CallOutcome.UNKNOWN
HEAD = struct.Struct(">BHI")
RECORD_BYTES = HEAD.size + 1 + HEADER_BYTES + 2
"""Of a put of these tests."""


def reported(history: History, checker: str) -> list[str]:
    """What one checker says; the others say nothing."""
    violations = check_history(history)
    assert {violation.checker for violation in violations} <= {checker}
    return [violation.detail for violation in violations]


# --- set-ups --------------------------------------------------------------------------------------


def written(*numbers: int | None, lost: bool = False) -> History:
    """Events 1 and 2 are stored, then there are set-ups with these answers, and event 3 is."""
    store = SmallStore()
    store.create("e")
    for event in (1, 2):
        store.event("e", 1, event)
    for number in numbers:
        call = Call(len(store.history.calls), 0, "one", CallKind.SET_UP, "e", 0, writer=1)
        store.history.calls.append(call)
        call.begun, call.result = store.history.next_stamp(), number
        call.ended, call.outcome = store.history.next_stamp(), OK
    if not lost:
        store.event("e", 1, 3)
    store.reopen()
    store.observe()
    return store.history


def test_a_set_up_gives_the_last_number() -> None:
    assert reported(written(2, 2), "set-ups") == []


@pytest.mark.parametrize("number", [None, 1])
def test_a_set_up_forgets_no_acknowledged_event(number: int | None) -> None:
    assert "had been acknowledged" in str(reported(written(number), "set-ups"))


def test_a_set_up_names_no_event_that_is_not_there() -> None:
    assert "event 3 is not there" in str(reported(written(3, lost=True), "set-ups"))


def test_what_a_set_up_did_not_cover_is_stored_only_if_it_is_sent_again() -> None:
    history = written(2)
    set_up = next(call for call in history.calls if call.kind is CallKind.SET_UP)
    event = history.calls[-1]
    # It was on its way when the set-up was answered.
    set_up.begun, set_up.ended = event.begun + 1, event.begun + 2
    event.ended = None
    event.outcome, event.result = UNKNOWN, None
    assert "was not sent again" in str(reported(history, "set-ups"))


# --- tables ---------------------------------------------------------------------------------------


class TableHistory:
    """A history of one table, as its client and an observer know it."""

    def __init__(self) -> None:
        self.history = History()
        self.history.process_runs.append(ProcessRun(0, "p", self.history.next_stamp()))
        self.history.process_runs[0].opened = self.history.next_stamp()
        create = self.call(CallKind.CREATE)
        create.result = 1

    def call(self, kind: CallKind, outcome: CallOutcome = OK, **fields: Any) -> Call:
        call = Call(len(self.history.calls), 0, "c", kind, "t", self.history.next_stamp())
        for name, value in fields.items():
            setattr(call, name, value)
        call.lengths = (2,) * len(call.keys) if kind is CallKind.TABLE_UPDATE else ()
        call.outcome, call.ended = outcome, self.history.next_stamp()
        self.history.calls.append(call)
        return call

    def update(self, *keys: tuple[bytes, int], versions: tuple[int, ...] = ()) -> Call:
        """One that was done if it has versions; else it is not known."""
        outcome = OK if versions else UNKNOWN
        error = "" if versions else DECIDED
        return self.call(CallKind.TABLE_UPDATE, outcome, keys=keys, versions=versions, error=error)

    def read(self, key: bytes, *found: SeenEntry) -> Call:
        return self.call(CallKind.TABLE_READ, keys=((key, NO_VERSION),), found=found)

    def observed(self, *entries: SeenEntry, content: bytes = b"", start: int = 0) -> None:
        """After a crash."""
        history = self.history
        run = history.process_runs[-1]
        run.ended = history.next_stamp()
        begun = history.next_stamp()
        history.process_runs.append(ProcessRun(run.number + 1, "p", begun, history.next_stamp()))
        end = start + len(content)
        seen = SeenSegment("t", 1, 0, start, end, 0, False, {}, content, entries)
        history.observations.append(
            Observation(history.next_stamp(), history.next_stamp(), run.number + 1, {"t": seen})
        )


def entry(call: Call, item: int, version: int) -> SeenEntry:
    return SeenEntry(call.keys[item][0], version, append_record(call.number, item, 2))


def put(record: SeenEntry) -> bytes:
    return HEAD.pack(1, len(record.key), len(record.value)) + record.key + record.value


def test_a_table_that_is_right() -> None:
    table = TableHistory()
    first = table.update((b"a", NOT_EXISTS), (b"b", NO_VERSION), versions=(0, RECORD_BYTES))
    table.read(b"a", entry(first, 0, 0))
    table.call(
        CallKind.TABLE_UPDATE, REFUSED, keys=((b"a", NOT_EXISTS),), error="BadKeyVersionError"
    )
    table.call(CallKind.TABLE_UPDATE, REFUSED, keys=((b"x", 5),), error="KeyNotFoundError")
    table.update((b"a", 0))
    records = put(entry(first, 0, 0)) + put(entry(first, 1, RECORD_BYTES))
    table.observed(entry(first, 0, 0), entry(first, 1, RECORD_BYTES), content=records)
    assert reported(table.history, "tables") == []


def test_an_acknowledged_update_that_a_crash_lost() -> None:
    table = TableHistory()
    table.update((b"a", NOT_EXISTS), versions=(0,))
    table.observed()
    assert "no order of the calls" in str(reported(table.history, "tables"))


def test_what_a_read_had_shown_is_there_after_a_crash() -> None:
    table = TableHistory()
    update = table.update((b"a", NOT_EXISTS))
    table.read(b"a", entry(update, 0, 0))
    table.observed()
    assert "no order of the calls" in str(reported(table.history, "tables"))


def test_an_update_without_an_answer_is_there_whole_or_not() -> None:
    table = TableHistory()
    update = table.update((b"a", NOT_EXISTS), (b"b", NOT_EXISTS))
    table.observed(entry(update, 0, 0), content=put(entry(update, 0, 0)))
    assert "no order of the calls" in str(reported(table.history, "tables"))


@pytest.mark.parametrize("version", [36, 72])
def test_a_version_never_comes_back(version: int) -> None:
    table = TableHistory()
    table.update((b"a", NOT_EXISTS), versions=(72,))
    table.call(CallKind.TABLE_REMOVE, keys=((b"a", 72),))
    table.update((b"a", NOT_EXISTS), versions=(version,))
    assert "no order of the calls" in str(reported(table.history, "tables"))


def test_a_refusal_without_a_reason() -> None:
    table = TableHistory()
    table.update((b"a", NOT_EXISTS), versions=(0,))
    table.call(CallKind.TABLE_UPDATE, REFUSED, keys=((b"a", 0),), error="BadKeyVersionError")
    assert "no order of the calls" in str(reported(table.history, "tables"))


def test_a_value_that_was_never_sent() -> None:
    table = TableHistory()
    table.update((b"a", NOT_EXISTS), versions=(0,))
    table.read(b"a", SeenEntry(b"a", 0, b"other"))
    assert "never sent" in str(reported(table.history, "tables"))


def test_entries_that_are_not_those_of_the_records() -> None:
    table = TableHistory()
    update = table.update((b"a", NOT_EXISTS), versions=(0,))
    removed = put(entry(update, 0, 0)) + HEAD.pack(2, 1, 0) + b"a"
    table.observed(entry(update, 0, 0), content=removed)
    assert "by its records None" in str(reported(table.history, "tables"))


def test_a_copy_has_the_version_that_it_had() -> None:
    table = TableHistory()
    update = table.update((b"a", NOT_EXISTS), versions=(0,))
    value = append_record(update.number, 0, 2)
    copied = HEAD.pack(3, 1, len(value)) + struct.pack(">q", 0) + b"a" + value
    table.observed(entry(update, 0, 0), content=copied, start=50)
    assert reported(table.history, "tables") == []
    table.observed(entry(update, 0, 50), content=copied, start=50)
    assert reported(table.history, "tables") != []


# --- merges that are events -----------------------------------------------------------------------


def merged(*merges: tuple[int, int], attribute: int) -> History:
    """Sources are staged and merged, each as an event, by the attribute that is seen at the end."""
    store = SmallStore()
    store.create("t")
    for event, length in merges:
        source = f"t#{event}"
        store.create(source)
        store.append(source, length)
        store.call(CallKind.MERGE, "t", source=source, writer=7, event=event)
    store.reopen()
    observation = store.observe()
    seen = observation.segments["t"]
    attributes = {UUID(int=7): attribute}
    observation.segments["t"] = dataclasses.replace(seen, attributes=attributes)
    return store.history


def merged_once(history: History) -> list[str]:
    return [str(each) for each in check_history(history) if each.checker == "merged once"]


def test_merges_that_are_events_are_there_up_to_the_attribute() -> None:
    assert merged_once(merged((1, 5), (2, 6), attribute=2)) == []


@pytest.mark.parametrize(
    ("merges", "attribute", "report"),
    [
        (((1, 5), (2, 6), (2, 7)), 2, "was merged before"),
        (((2, 5), (1, 6)), 2, "lies behind event 2"),
        (((1, 5), (2, 6)), 1, "the attribute of writer 7 is 1"),
        (((2, 6),), 2, "has [2]"),
        (((1, 5),), 0, "has [1]"),
    ],
)
def test_a_merge_that_is_repeated_lost_or_out_of_order_is_reported(
    merges: tuple[tuple[int, int], ...], attribute: int, report: str
) -> None:
    assert report in str(merged_once(merged(*merges, attribute=attribute)))


# --- merges of one call ---------------------------------------------------------------------------


@pytest.mark.parametrize(("done", "report"), [("ab", ""), ("a", ""), ("", ""), ("b", "behind 'a'")])
def test_a_merge_behind_one_that_was_not_done_is_reported(done: str, report: str) -> None:
    store = SmallStore()
    store.create("t")
    for source in "ab":
        store.create(source)
        store.append(source, 5)
    front: Call | None = None
    for source in "ab":
        if source in done:
            merge = store.call(CallKind.MERGE, "t", source=source)
        else:
            merge = store.begin(CallKind.MERGE, "t", source=source)
            store.owner.queue.clear()
            store.owner.taken = store.owner.durable
        merge.behind = front.number if front is not None else None
        front = merge
    store.reopen()
    store.observe()
    found = reported(store.history, "merged in turn")
    assert report in str(found) if report else found == []
