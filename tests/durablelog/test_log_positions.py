"""LogPositions: what is known of the parts of a log."""

from durablelog.durable_data_log import LogAddress
from durablelog.log_positions import LogPositions, ReplayedPlaces


def test_a_checkpoint_may_be_all_that_a_part_has() -> None:
    """It begins there and ends later, as one that is larger than a log file."""
    positions = LogPositions(lambda address: address >> 8)
    positions.add_operations(LogAddress(0x101), (1, 10), (4, 12))
    positions.note_checkpoint(5, LogAddress(0x200))
    positions.add_checkpoint(5, LogAddress(0x200))
    positions.add_operations(LogAddress(0x401), (5, 13), (5, 13))
    assert positions.operations_of(2) is None
    assert [positions.checkpoint_in(part) for part in range(1, 5)] == [0, 5, 0, 0]
    positions.note_checkpoint(9, LogAddress(0x300))
    positions.add_checkpoint(9, LogAddress(0x300))
    positions.truncated(9)
    assert [positions.checkpoint_in(part) for part in range(1, 5)] == [0, 0, 9, 0]
    assert positions.operations_of(1) is None


def test_replayed_operations_are_noted_once_a_frame() -> None:
    positions = LogPositions(lambda address: address >> 8)
    places = ReplayedPlaces(positions)
    half = 1 << 19
    places.add(1, 50, LogAddress(0x101), half)
    places.add(2, 70, LogAddress(0x101), half)
    places.add(3, 60, LogAddress(0x101), half)
    assert positions.operations_of(1) is None
    places.add(4, 60, LogAddress(0x1F0), half)
    places.add(5, 65, LogAddress(0x201), half)
    part = positions.operations_of(1)
    assert part is not None
    assert (part.first_sequence, part.first_ms, part.last_sequence, part.last_ms) == (1, 50, 4, 70)
    assert positions.operations_of(2) is None
    places.end_frame()
    last = positions.operations_of(2)
    assert last is not None
    assert (last.first_sequence, last.first_ms, last.last_sequence, last.last_ms) == (5, 65, 5, 65)
    # Markers of the first frame, and of the one with which another MiB is full.
    assert positions.scan_start(4) is None
    assert positions.scan_start(5) == LogAddress(0x101)
