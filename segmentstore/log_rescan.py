"""LogRescan: one pass over the un-flushed log brings back what memory and cache have lost (loop).

A pass costs as much as reading the whole un-flushed log, whatever it searches for. So it serves all
waiting reads, and keeps bytes on its way that will be wanted next. These are segments in the order
in which they go to Tier 2, each wholly or not at all. An upload that lacks one byte needs a pass of
its own. For the same reason it frees room by evicting bytes of those that lack bytes and go last,
and of those that an upload has in hand already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import DurableDataLog
from durablelog.log_positions import LogPositions
from durablelog.operation_codec import decode_operation, segment_of_append
from durablelog.operations import AppendOperation
from readindex.read_index import ReadIndex
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.metadata import ContainerMetadata
from storagewriter.storage_writer import StorageWriter

_SEGMENTS_PER_TURN = 256
"""Segments checked before the event loop gets a turn."""


class LogRescan:
    """Of one container. `check_primary` raises when another owner has opened the log."""

    def __init__(
        self,
        log: DurableDataLog,
        metadata: ContainerMetadata,
        positions: LogPositions,
        read_index: ReadIndex,
        writer: StorageWriter,
        check_primary: Callable[[], Awaitable[None]],
    ) -> None:
        self._log = log
        self._metadata = metadata
        self._positions = positions
        self._index = read_index
        self._writer = writer
        self._check_primary = check_primary

    async def run(self, wanted: Mapping[int, int]) -> None:
        """Search for the missing bytes of `wanted` (see `ReadIndex`).

        The caller sees to it that one runs at a time.
        """
        beside = await self._worth_keeping(wanted)
        sought = wanted.keys() | beside
        first_needed = self._writer.first_unflushed_sequence()
        start = self._positions.scan_start(first_needed) if first_needed is not None else None
        reader = DataFrameReader()
        async with aclosing(self._log.read(start)) as frames:
            async for batch in frames:
                for frame in batch:
                    for record, *_ in reader.feed(frame):
                        self._offer(record, sought)
                    # One step, however crowded: writers fill the tail too, and reads that wait for
                    # this pass must advance.
                    if not (self._index.crowded and await self._index.wait_spilled()):
                        await asyncio.sleep(0)
                if not beside and self._index.refill_answered:
                    return
        if self._index.refill_in_vain:
            # A new owner flushes and truncates: what is not in its log any more is not lost, but
            # not ours to serve.
            await self._check_primary()

    async def _worth_keeping(self, wanted: Mapping[int, int]) -> set[int]:
        """Segments of which this pass should keep what is missing, and room made for them.

        O(segments with un-flushed bytes), in many turns.
        """
        index = self._index
        order = list(dict.fromkeys((*wanted, *self._writer.flush_order())))
        # Uploads have what they took in hand; of the others those that go last are read back last.
        victims = iter((*self._writer.busy_segments(), *reversed(order)))
        keep: set[int] = set()
        promised = 0
        for number, segment_id in enumerate(order, start=1):
            if number % _SEGMENTS_PER_TURN == 0:
                await asyncio.sleep(0)
            missing = self._missing(segment_id) - wanted.get(segment_id, 0)
            if missing <= 0:
                continue
            while missing > index.refill_room_bytes - promised:
                victim = next(victims, segment_id)
                if victim == segment_id:
                    # What goes before it stays: room for a part of it helps readers alone.
                    return keep | (wanted.keys() & {segment_id})
                if victim not in wanted and victim not in keep:
                    await self._give_up(victim)
            promised += missing
            keep.add(segment_id)
        return keep

    def _missing(self, segment_id: int) -> int:
        return sum(end - start for start, end in self._index.missing_ranges(segment_id))

    async def _give_up(self, segment_id: int) -> None:
        """Release what is held of a segment, if it lacks bytes besides: it costs a pass in any
        case, or is on its way.
        """
        if self._missing(segment_id) or segment_id in self._writer.busy_segments():
            self._index.give_up_unflushed(segment_id)
        await asyncio.sleep(0)

    def _offer(self, record: Buffer, sought: set[int]) -> None:
        if segment_of_append(record) not in sought:
            return
        operation = decode_operation(record)
        if isinstance(operation, AppendOperation):
            segment = self._metadata.segments.get(operation.segment_id)
            if (
                segment is not None
                and segment.storage_length
                < operation.offset + len(operation.data)
                <= segment.length
            ):
                data = bytes(operation.data)
                self._index.insert_refilled(operation.segment_id, operation.offset, data)
