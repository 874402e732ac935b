"""The checkers of clusters, each on a record that breaks its rule and on one that does not."""

from __future__ import annotations

import pytest

from recovery.harness.checkers.cluster import check
from recovery.harness.cluster_record import (
    Acknowledgement,
    ClusterRecord,
    Disorder,
    MapWrite,
    SeenBytes,
)
from recovery.harness.history import Observation, SeenSegment
from segmentstore.cluster.assignment import MOVES_AT_ONCE
from segmentstore.cluster.assignment_map import AssignmentMap, PlannedMove


def found(record: ClusterRecord, *, orderly: bool = False) -> list[str]:
    segment = SeenSegment("s", 1, 0, 2, 6, 0, False, {}, b"cdef")
    observation = Observation(100, 101, 1, {"s": segment})
    return [each.checker for each in check(record, observation, orderly=orderly)]


@pytest.mark.parametrize(
    ("late", "checkers"),
    [
        # It was given before the later owner had acknowledged: it may have reached the log.
        (Acknowledgement(3, 1, "a.1", 5, 30), []),
        (Acknowledgement(3, 1, "a.1", 25, 30), ["owners"]),
        (Acknowledgement(3, 2, "a.1", 25, 30), ["owners"]),
        (Acknowledgement(4, 1, "a.1", 25, 30), []),
    ],
)
def test_an_owner_that_was_overtaken_acknowledges_nothing_new(
    late: Acknowledgement, checkers: list[str]
) -> None:
    record = ClusterRecord()
    record.acknowledgements += [
        Acknowledgement(3, 1, "a.1", 1, 2),
        Acknowledgement(3, 2, "b.2", 10, 20),
        late,
    ]
    assert found(record) == checkers


@pytest.mark.parametrize(
    ("epochs", "checkers"), [((1, 2), []), ((1, 1), ["map"]), ((1, 3), ["map"])]
)
def test_each_map_follows_from_the_one_before_it(
    epochs: tuple[int, int], checkers: list[str]
) -> None:
    record = ClusterRecord()
    for version, epoch in enumerate(epochs):
        record.maps.append(MapWrite(version, AssignmentMap(epoch=epoch), b"", 0))
    assert found(record) == checkers


def test_few_moves_are_under_way() -> None:
    record = ClusterRecord()
    for epoch in (1, 2):
        moves = dict.fromkeys(range(MOVES_AT_ONCE + epoch - 1), PlannedMove("a", 0))
        record.maps.append(MapWrite(epoch, AssignmentMap(epoch=epoch, moves=moves), b"", 0))
    assert found(record) == ["map"]


def test_what_was_read_is_what_is_there() -> None:
    record = ClusterRecord()
    record.reads += [SeenBytes("s", 0, b"abcd", "a.1"), SeenBytes("s", 4, b"ef", "a.1")]
    assert found(record) == []
    record.reads.append(SeenBytes("s", 4, b"eg", "a.1"))
    assert found(record) == ["reads"]


def test_an_orderly_run_has_neither_take_overs_nor_doubts() -> None:
    record = ClusterRecord()
    record.counts.update({"moves": 3, "take-overs": 1, "unknown outcomes": 2})
    assert found(record) == []
    assert found(record, orderly=True) == ["handover", "handover"]
    record.disorders.append(Disorder("reports", "a host reports what is not true"))
    assert found(record) == ["reports"]
