"""What each decision must hold, of hosts, the map before and the map after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from segmentstore.cluster.assignment import MOVES_AT_ONCE
from segmentstore.cluster.assignment_map import AssignmentMap
from segmentstore.cluster.host_record import HostRecord, ReportedState


def open_to(number: int, records: Mapping[str, HostRecord], current: AssignmentMap) -> set[str]:
    """Hosts that may have a container, by what persons and the hosts themselves said."""
    return {
        host_id
        for host_id, record in records.items()
        if not record.draining
        and host_id not in current.draining
        and (number, host_id) not in current.forbidden
    }


def spread(current: AssignmentMap, records: Mapping[str, HostRecord]) -> Fraction:
    """The measure of balance: less is more even."""
    counts = Counter(current.owners.values())
    return sum(
        (Fraction(count**2, records[host_id].capacity) for host_id, count in counts.items()),
        Fraction(0),
    )


def check_decision(
    containers: int, records: Mapping[str, HostRecord], before: AssignmentMap, after: AssignmentMap
) -> None:
    """Assert that it is total, legal and bounded."""
    for number in range(containers):
        owner, may = after.owners.get(number), open_to(number, records, before)
        assert owner is None or owner in records
        assert owner is not None or not may
        if owner != before.owners.get(number):
            assert owner is None or owner in may
    assert set(after.owners) <= set(range(containers))
    assert (after.pins, after.draining, after.forbidden) == (
        before.pins,
        before.draining,
        before.forbidden,
    )
    # What its owner has in hand goes to another host by plan alone.
    interrupted = {
        number
        for number, owner in after.owners.items()
        if (source := before.owners.get(number, "")) in records
        and owner != source
        and (report := records[source].containers.get(number)) is not None
        and report.state is not ReportedState.FAILED
    }
    assert interrupted <= set(after.moves)
    assert len(after.moves) <= MOVES_AT_ONCE
    assert all(after.owners[number] != move.source for number, move in after.moves.items())
    assert after is before or after.epoch == before.epoch + 1
