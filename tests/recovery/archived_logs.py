"""A log that is made operation by operation, cut into archived parts, with the model's state at
each of them.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, ParamSpec

from durablelog.checkpoint_codec import decode_checkpoint, encode_checkpoint
from durablelog.data_frame import seal_header
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.frame_order import open_frame
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operation_codec import encode_operation, encoded_length
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from recovery.archived_history import ArchivedHistory
from recovery.archived_parts_listing import FoundPart, PartRemovedError
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.ledgers import (
    EntryRangeError,
    LedgerEntry,
    LedgerMetadata,
    LedgerNotFoundError,
    ReadHandle,
)
from segmentstore.contracts.metadata import ContainerMetadata, SegmentMetadata

_P = ParamSpec("_P")

STEP_MS = 10
"""From one operation's time stamp to the next."""


def on_a_loop(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """A test that is a coroutine, run on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: _P.args, **options: _P.kwargs) -> None:
        asyncio.run(test(*arguments, **options))

    return run


class MemoryPart(ReadHandle):
    """A closed ledger in memory."""

    def __init__(self, ledger_id: int, entries: Sequence[bytes]) -> None:
        self._ledger_id = ledger_id
        self.entries = list(entries)
        self.closed = False
        self.given = 0
        """Entries."""

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return LedgerMetadata(
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            length=sum(map(len, self.entries)),
            last_entry=len(self.entries) - 1,
        )

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        if not 0 <= first <= last <= self.last_entry:
            raise EntryRangeError("entries", (first, last), f"it has 0 to {self.last_entry}")
        for begin in range(first, last + 1, 3):
            end = min(begin + 3, last + 1)
            self.given += end - begin
            yield [LedgerEntry(n, memoryview(self.entries[n])) for n in range(begin, end)]

    async def close(self) -> None:
        self.closed = True


class ListedParts:
    """Parts in memory; those of a lower state than complete count for nothing."""

    def __init__(
        self, parts: Sequence[ArchivedPart], first: int = 0, removed: int = 0, listed: int = 0
    ) -> None:
        """Those before the index `first` are removed. Those before `removed` are by now, and those
        before `listed` are in no list any more.
        """
        self._parts = [part for part in parts if part.state >= OffloadState.COMPLETE]
        self._first = first
        self._removed = max(first, removed)
        self._listed = listed
        self.asked = 0
        """Times that the record was read again."""

    @property
    def kept(self) -> range:
        return range(self._first, len(self._parts))

    @property
    def last_ms(self) -> int:
        return max((part.last_ms for part in self._parts), default=0)

    async def find_sequence(self, sequence_number: int) -> FoundPart | None:
        return self._oldest(lambda part: part.last_sequence >= sequence_number)

    async def find_time(self, time_ms: int) -> FoundPart | None:
        return self._oldest(lambda part: part.last_ms >= time_ms)

    async def at(self, index: int) -> ArchivedPart:
        if index not in self.kept:
            raise IndexError(index)
        if index < self._listed:
            raise PartRemovedError(0, f"{self._removed - self._first} parts")
        return self._parts[index]

    async def first_now(self) -> int:
        self.asked += 1
        return self._removed

    def _oldest(self, fits: Callable[[ArchivedPart], bool]) -> FoundPart | None:
        return next(
            ((index, self._parts[index]) for index in self.kept if fits(self._parts[index])), None
        )


class MemoryTail:
    """The log from a checkpoint on, as it stands."""

    def __init__(self, container_id: int, first: int, entries: Sequence[bytes]) -> None:
        """`first` is the number of the first frame."""
        self._container_id = container_id
        self._first = first
        self._entries = list(entries)

    async def read(self) -> AsyncGenerator[Sequence[LogFrame], None]:
        for number, entry in enumerate(self._entries, self._first):
            header, payload = open_frame(self._container_id, memoryview(entry))
            assert header.sequence == number
            yield [LogFrame(LogAddress(number), number, header.epoch, payload)]


class ArchivedLog:
    """One container's log. `records` are what the archive has, `states` what the model says."""

    def __init__(
        self,
        container_id: int = 0,
        *,
        operations_in_frame: int = 2,
        frame_bytes: int = 1 << 20,
    ) -> None:
        self.container_id = container_id
        self.model = ContainerMetadata(container_id)
        self.states: dict[int, bytes] = {}
        """The checkpoint of the metadata as of each operation."""
        self.contents: dict[int, dict[int, bytes]] = {}
        """Bytes of each segment as of each operation, from offset 0, also below the start."""
        self.times: dict[int, int] = {}
        self.parts: dict[int, MemoryPart] = {}
        self.listed: list[ArchivedPart] = []
        self.opened: list[int] = []
        self.handles: list[MemoryPart] = []
        self._updater = MetadataUpdater(self.model)
        self._bytes: dict[int, bytes] = {}
        self._in_frame = operations_in_frame
        self._frame_bytes = frame_bytes
        self._entries: list[bytes] = []
        self._logged: list[bytes] = []
        self.checkpoints: dict[int, int] = {}
        """The number of the frame that each begins."""
        self._frame: list[Operation] = []
        self._frames = 0
        self._sequence = self._now_ms = 0
        self._ended: list[tuple[int, int, int]] = []
        """Of each operation number, time stamp, and the entry that it ends in."""
        self._checkpoint = (0, 0)
        self.checkpoint()

    # --- operations -------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """Of the last operation."""
        return self._sequence

    def checkpoint(self) -> int:
        """Begins a frame, as live."""
        self._seal_frame()
        operation = CheckpointOperation(encode_checkpoint(self.model))
        entry, frame = len(self._entries), self._frames + 1
        self._add(operation)
        self._checkpoint = (operation.sequence_number, entry)
        self.checkpoints[operation.sequence_number] = frame
        return operation.sequence_number

    def create(self, name: str) -> int:
        return self._add(CreateOperation(name))

    def append(self, segment_id: int, data: bytes) -> int:
        offset = self.model.segments[segment_id].length
        return self._add(AppendOperation(segment_id, offset, data))

    def seal(self, segment_id: int) -> int:
        return self._add(SealOperation(segment_id, self.model.segments[segment_id].length))

    def truncate(self, segment_id: int, offset: int) -> int:
        return self._add(TruncateOperation(segment_id, offset))

    def delete(self, segment_id: int) -> int:
        return self._add(DeleteOperation(segment_id))

    def set_attribute(self, segment_id: int, key: bytes, value: int) -> int:
        return self._add(UpdateAttributesOperation(segment_id, {key: value}))

    def merge(self, target_id: int, source_id: int) -> int:
        segments = self.model.segments
        offset, length = segments[target_id].length, segments[source_id].length
        return self._add(MergeOperation(target_id, source_id, offset, length))

    def other(self, operation: Operation) -> int:
        """E.g. a storage update."""
        return self._add(operation)

    def shift_clock(self, milliseconds: int) -> None:
        """Set it forward, or back."""
        self._now_ms += milliseconds

    def _add(self, operation: Operation) -> int:
        self._sequence += 1
        self._now_ms += STEP_MS
        operation.sequence_number, operation.timestamp_ms = self._sequence, self._now_ms
        if self._sequence == 1:
            assert isinstance(operation, CheckpointOperation)
            self._updater.restore(operation)
        else:
            self._updater.replay(operation)
        if isinstance(operation, CreateOperation):
            self._bytes[self._sequence] = b""
        if isinstance(operation, AppendOperation):
            self._bytes[operation.segment_id] += bytes(operation.data)
        if isinstance(operation, MergeOperation):
            self._bytes[operation.target_id] += self._bytes[operation.source_id]
        self.states[self._sequence] = encode_checkpoint(self.model)
        self.contents[self._sequence] = dict(self._bytes)
        self.times[self._sequence] = self._now_ms
        self._frame.append(operation)
        if len(self._frame) == self._in_frame:
            self._seal_frame()
        return self._sequence

    # --- frames and parts -------------------------------------------------------------------------

    def _seal_frame(self) -> None:
        if not self._frame:
            return
        builder = DataFrameBuilder(self._frame_bytes)
        for operation in self._frame:
            parts = encode_operation(operation)
            builder.add(parts, encoded_length(parts))
            for payload in builder.take_full():
                self._add_entry(payload)
            # Unless what is added next fills the frame, it is the one that is open.
            ended = (operation.sequence_number, operation.timestamp_ms, len(self._entries))
            self._ended.append(ended)
        last = builder.seal()
        if last is not None:
            self._add_entry(last)
        self._frame = []

    def _add_entry(self, payload: Sequence[Buffer]) -> None:
        self._frames += 1
        header = seal_header(self.container_id, 1, self._frames, 0, payload)
        self._entries.append(b"".join((header, *payload)))
        self._logged.append(self._entries[-1])

    def end_part(self, *, leave: int = 0) -> ArchivedPart:
        """What was logged since the last part is one of the archive, but for the last entries."""
        self._seal_frame()
        count = len(self._entries) - leave
        number = 2 * len(self.listed) + 3
        handle = self.parts[number] = MemoryPart(number, self._entries[:count])
        ended = [each for each in self._ended if each[2] < count]
        sequence, entry = self._checkpoint
        part = ArchivedPart(
            number=number,
            ledger_id=number,
            uid=bytes(16),
            state=OffloadState.COMPLETE,
            entries=count,
            length=handle.length,
            first_sequence=ended[0][0] if ended else 0,
            last_sequence=ended[-1][0] if ended else 0,
            first_ms=ended[0][1] if ended else 0,
            last_ms=max(
                [each[1] for each in ended] + [each.last_ms for each in self.listed[-1:]],
                default=0,
            ),
            checkpoint_sequence=sequence,
            checkpoint_entry=entry,
        )
        self.listed.append(part)
        self._entries = self._entries[count:]
        self._ended = [(*each[:2], each[2] - count) for each in self._ended if each[2] >= count]
        self._checkpoint = (0, 0)
        return part

    def history(
        self, log: MemoryTail | None = None, first: int = 0, parts: ListedParts | None = None
    ) -> ArchivedHistory:
        """Of what is archived, from the part of this index on or by the `parts`, and of the log."""
        parts = ListedParts(self.listed, first) if parts is None else parts
        return ArchivedHistory(self.container_id, parts, self.open_part, log)

    def tail(self, checkpoint: int) -> MemoryTail:
        """The log as if it was truncated at a checkpoint."""
        self._seal_frame()
        first = self.checkpoints[checkpoint]
        return MemoryTail(self.container_id, first, self._logged[first - 1 :])

    async def open_part(self, part: ArchivedPart) -> ReadHandle:
        """A handle of its own for each caller."""
        if part.number not in self.parts:
            raise LedgerNotFoundError(part.ledger_id, "the archive of a test")
        self.opened.append(part.number)
        handle = MemoryPart(part.ledger_id, self.parts[part.number].entries)
        self.handles.append(handle)
        return handle

    # --- the model --------------------------------------------------------------------------------

    def state(self, sequence_number: int) -> ContainerMetadata:
        """What the model says."""
        return decode_checkpoint(self.states[sequence_number])

    def content(self, sequence_number: int, segment: SegmentMetadata) -> bytes:
        """From its start offset on."""
        return self.contents[sequence_number][segment.segment_id][segment.start_offset :]

    def forget_part(self, number: int) -> None:
        """Delete a part that the list still names."""
        del self.parts[number]

    def damage(self, number: int, entry: int) -> None:
        """Turn over a bit of an entry's last byte."""
        data = bytearray(self.parts[number].entries[entry])
        data[-1] ^= 1
        self.parts[number].entries[entry] = bytes(data)

    def leave_incomplete(self, number: int) -> None:
        """An attempt that counts for nothing."""
        self.listed = [
            replace(part, state=OffloadState.ATTEMPT) if part.number == number else part
            for part in self.listed
        ]
