"""LogPositions: what is known of the parts of a log."""

from durablelog.durable_data_log import LogAddress
from durablelog.log_positions import LogPositions


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
