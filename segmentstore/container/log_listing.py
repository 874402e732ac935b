"""LogListing: the frames of a container's log, and the operations in them, while it is written to.

The log is read in portions. Between two of them nothing of it is held: the caller may take any
time, and files are deleted meanwhile as ever. What was truncated between two portions is left out.
It ends with what was acknowledged at its beginning.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import DurableDataLog, LogAddress, LogFrame
from durablelog.operation_codec import OperationFormatError, decode_operation
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.reports import FrameEntry, OperationEntry
from segmentstore.listed_entries import operation_entry

FRAMES_OF_A_PORTION: Final = 1024
PORTION_BYTES: Final = 1 << 20
"""A portion ends with the frame that reaches this."""


class LogListing:
    """Of one container. `last_sequence()` is of the last operation that was committed."""

    def __init__(
        self,
        container_id: int,
        log: DurableDataLog,
        last_sequence: Callable[[], int],
        check_running: Callable[[], None],
    ) -> None:
        self._container_id = container_id
        self._log = log
        self._last_sequence = last_sequence
        self._check_running = check_running

    async def frames(self) -> AsyncGenerator[FrameEntry, None]:
        """The frames in their order. Raises as `DurableDataLog.read`."""
        async with aclosing(self._portions()) as portions:
            async for portion in portions:
                entries = [
                    FrameEntry(
                        self._container_id,
                        frame.address,
                        frame.sequence,
                        frame.epoch,
                        len(frame.payload),
                        self._log.place_of(frame.address),
                    )
                    for frame in portion
                ]
                del portion
                for entry in entries:
                    yield entry

    async def operations(self) -> AsyncGenerator[OperationEntry, None]:
        """The operations that end in the frames, in their order. Raises as `DurableDataLog.read`,
        and DataCorruptionError for an operation that is none.
        """
        last = self._last_sequence()
        reader, read_to = DataFrameReader(), -1
        async with aclosing(self._portions()) as portions:
            async for portion in portions:
                if portion and portion[0].sequence > read_to + 1:
                    # What was between was truncated, and with it the head of a record.
                    reader = DataFrameReader()
                for frame in portion:
                    read_to = frame.sequence
                    for record in reader.feed(frame):
                        try:
                            operation = decode_operation(record.data, copy=False)
                        except OperationFormatError as error:
                            place = f"log address {record.first_frame_address:#x}"
                            raise DataCorruptionError(place, str(error)) from error
                        if operation.sequence_number > last:
                            return
                        yield operation_entry(
                            self._container_id,
                            record.first_frame_address,
                            len(record.data),
                            operation,
                        )

    async def _portions(self) -> AsyncGenerator[list[LogFrame], None]:
        last = self._log.last_address()
        next_address: LogAddress | None = None
        while True:
            self._check_running()
            portion, next_address = await self._portion(next_address, last)
            yield portion
            if next_address is None:
                return

    async def _portion(
        self, start: LogAddress | None, last: LogAddress | None
    ) -> tuple[list[LogFrame], LogAddress | None]:
        """Frames from `start` on, and where the next one is; None: there is none up to `last`."""
        portion: list[LogFrame] = []
        size = 0
        async with aclosing(self._log.read(start)) as batches:
            async for batch in batches:
                for frame in batch:
                    if last is not None and frame.address > last:
                        return portion, None
                    if len(portion) >= FRAMES_OF_A_PORTION or size >= PORTION_BYTES:
                        return portion, frame.address
                    portion.append(frame)
                    size += len(frame.payload)
        return portion, None
