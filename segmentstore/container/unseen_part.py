"""What operations end in a part of the log that this owner has not replayed from its beginning.

Only a log whose disk was full begins inside of a part that is not archived
(`ArchiveHold.truncation_bound`). The next owner replays the rest of it, and archives it whole.
"""

from __future__ import annotations

from contextlib import aclosing

from durablelog.data_frame import ENTRY_FIRST, ENTRY_HEADER, ENTRY_LAST
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogFrame
from durablelog.log_positions import PartOperations
from durablelog.operation_codec import decode_operation
from durablelog.part_frames import PartFrames
from segmentstore.contracts.ledgers import ReadHandle


async def operations_in(
    handle: ReadHandle, number: int, container_id: int, before: tuple[int, int]
) -> PartOperations | None:
    """The operations that end in part `number`; None if none does.

    `before`: sequence number and time of the last operation in front of the part. Reads all of it.
    Raises DataCorruptionError, and what the handle raises.
    """
    reader, found = DataFrameReader(), list[tuple[int, int]]()
    at_head = True
    async with aclosing(PartFrames(container_id).read(handle, number)) as batches:
        async for frames in batches:
            for frame in frames:
                flags = _first_flags(frame)
                at_head = at_head and not flags & ENTRY_FIRST
                if at_head and flags & ENTRY_LAST:
                    # One that began in front of the part: numbers of one owner have no gaps.
                    found.append((before[0] + 1, before[1]))
                    at_head = False
                for record in reader.feed(frame):
                    operation = decode_operation(record.data)
                    found.append((operation.sequence_number, operation.timestamp_ms))
    if not found:
        return None
    operations = PartOperations(*found[0])
    operations.last_sequence = found[-1][0]
    operations.last_ms = max(time_ms for _, time_ms in found)
    return operations


def _first_flags(frame: LogFrame) -> int:
    _, flags = ENTRY_HEADER.unpack_from(frame.payload, 0)
    return int(flags)
