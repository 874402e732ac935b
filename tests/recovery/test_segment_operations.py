"""The operations on the segments of one name: all of them, or it is known which may be missing."""

from __future__ import annotations

import pytest

from durablelog.operations import SnapshotCheckpointOperation
from recovery.restore_past import PastContainer
from segmentstore.segment_operations import SegmentFilter, filter_of
from tests.recovery.archived_logs import ArchivedLog, on_a_loop


def kept(log: ArchivedLog, first: int) -> PastContainer:
    """The container with the archived parts from this index on."""
    return PastContainer(log.history(first=first), log.model)


async def wanted(
    container: PastContainer, begin: int, begin_ms: int = 0
) -> tuple[list[int], SegmentFilter]:
    """The numbers of the operations on "orders"."""
    chosen = await filter_of(container, "orders", begin, begin_ms)
    found = [
        past.operation.sequence_number
        async for batch in container.history.operations(begin, 1 << 40)
        for past in chosen.wanted(batch)
    ]
    return found, chosen


@pytest.mark.parametrize("end", ["deleted", "merged", "created anew"])
@on_a_loop
async def test_a_segment_older_than_the_history_is_found_by_its_former_name(end: str) -> None:
    log = ArchivedLog()
    orders, other = log.create("orders"), log.create("other")
    log.end_part()
    log.checkpoint()
    begin = log.append(other, b"1")
    numbers = [log.append(orders, b"2")]
    log.append(other, b"3")
    numbers.append(log.merge(other, orders) if end == "merged" else log.delete(orders))
    if end == "created anew":
        numbers.append(log.create("orders"))
        numbers.append(log.append(numbers[-1], b"4"))
    log.append(other, b"5")
    log.end_part()
    for first in (0, 1):
        created = [orders] if first == 0 else []
        found, chosen = await wanted(kept(log, first), 1)
        assert (found, chosen.nameless.count) == (created + numbers, 0)
        for number in (begin, *numbers):
            found, chosen = await wanted(kept(log, first), number)
            assert found == [each for each in numbers if each >= number]
            assert not chosen.nameless.count


@on_a_loop
async def test_what_may_be_missing_before_the_first_state_is_counted() -> None:
    log = ArchivedLog()
    orders, other = log.create("orders"), log.create("other")
    log.end_part()
    first = log.append(orders, b"1")
    log.append(other, b"2")
    last = log.delete(orders)
    anew = log.create("orders")
    log.end_part()
    log.checkpoint()
    numbers = [anew, log.append(anew, b"3")]
    log.delete(anew)
    numbers.append(log.sequence)
    log.end_part()
    assert (await wanted(kept(log, 0), 1))[0] == [orders, first, last, *numbers]
    found, chosen = await wanted(kept(log, 1), 1)
    assert found == numbers
    assert str(chosen.nameless) == (
        f"2 operations, {first} to {last}, are on segments whose names are not kept: {orders}"
    )
    found, chosen = await wanted(kept(log, 1), 1, log.times[last])
    assert str(chosen.nameless).startswith(f"1 operations, {last} to {last}, ")
    found, chosen = await wanted(kept(log, 1), anew)
    assert (found, chosen.nameless.count) == (numbers, 0)


@on_a_loop
async def test_behind_a_hole_the_first_state_counts() -> None:
    log = ArchivedLog()
    orders = log.create("orders")
    log.end_part()
    log.create("other")
    log.end_part()
    begin = log.checkpoint()
    number = log.append(orders, b"1")
    deleted = log.delete(orders)
    log.end_part()
    log.checkpoint()
    log.end_part()
    del log.listed[1]
    found, chosen = await wanted(kept(log, 0), begin)
    assert (found, chosen.nameless.count) == ([number, deleted], 0)


@on_a_loop
async def test_without_any_state_the_names_of_today_and_of_creations_count() -> None:
    log = ArchivedLog()
    orders, gone = log.create("orders"), log.create("gone")
    log.end_part()
    log.other(SnapshotCheckpointOperation(1, bytes(16)))
    numbers = [log.append(orders, b"1")]
    log.append(gone, b"2")
    log.delete(gone)
    created = log.create("new")
    log.append(created, b"3")
    log.end_part()
    found, chosen = await wanted(kept(log, 1), 1)
    assert (found, chosen.nameless.count) == (numbers, 2)
