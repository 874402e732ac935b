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
    reader, found, epoch = DataFrameReader(), None, 0
    at_head, cut_off = True, 0
    async with aclosing(PartFrames(container_id).read(handle, number)) as batches:
        async for frames in batches:
            for frame in frames:
                flags = _first_flags(frame)
                at_head = at_head and not flags & ENTRY_FIRST
                if at_head and flags & ENTRY_LAST:
                    at_head, cut_off = False, frame.epoch
                for record in reader.feed(frame):
                    operation = decode_operation(record.data)
                    sequence, time_ms = operation.sequence_number, operation.timestamp_ms
                    if found is None:
                        found, epoch = PartOperations(sequence, time_ms), frame.epoch
                    found.last_sequence = sequence
                    found.last_ms = max(found.last_ms, time_ms)
    if not cut_off:
        return found
    # Of one that began in front of the part the number is not here. Those of an owner have no gaps.
    if found is None:
        return PartOperations(before[0] + 1, before[1])
    found.first_sequence = found.first_sequence - 1 if epoch == cut_off else before[0] + 1
    return found


def _first_flags(frame: LogFrame) -> int:
    _, flags = ENTRY_HEADER.unpack_from(frame.payload, 0)
    return int(flags)
