"""ArchivedHistory: a container's log from its archived parts to the tail of the log behind them,
read as one.

Rules of this file:

- what replay begins with is a checkpoint at or before the moment. The newest is taken that can be
  had: in the log if that begins early enough, else in the archive; one by reference only if its
  snapshot can be loaded;
- of a time it is one with no later operation before it. A clock that was set back makes no
  operation earlier than those before it, wherever they are by now;
- parts are opened one after another, from the one that is begun with to the one that has the
  moment: no other is read;
- frames that are both archived and still in the log are taken once;
- frames must follow each other without a hole, over parts and into the log (DataFrameReader);
- nothing is written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.log_positions import LogPositions
from durablelog.metadata_updater import MetadataUpdater
from durablelog.operations import (
    CheckpointOperation,
    Operation,
    SnapshotCheckpointOperation,
)
from durablelog.part_frames import PartFrames
from recovery.archived_parts_listing import PartListing, backward
from recovery.moments import (
    AtCheckpoint,
    AtTime,
    Moment,
    MomentNotKeptError,
    is_behind,
    shown_time,
)
from recovery.recovery_processor import SnapshotLoad
from recovery.replay import Replay
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.ledgers import LedgerNotFoundError, ReadHandle
from segmentstore.contracts.metadata import ContainerMetadata

OpenPart: TypeAlias = Callable[[ArchivedPart], Awaitable[ReadHandle]]
"""A handle on a part in the archive; the caller closes it."""

_CHECKPOINTS: Final = (CheckpointOperation, SnapshotCheckpointOperation)
_LAST_ENTRIES: Final = 4
"""Of a part, read for an operation that ends in the next one. Most begin in the last entry."""
_MORE: Final = 8
"""Times as many, if it begins before them."""


class ReadableLog(Protocol):
    """What is read of a log."""

    def read(self) -> AsyncGenerator[Sequence[LogFrame], None]:
        """As `DurableDataLog.read`, from the truncation point on."""


class PastOperation(NamedTuple):
    """An operation of the history."""

    operation: Operation
    """The bytes of an append are a view into its frame."""
    size: int
    """Encoded, in bytes."""
    address: LogAddress
    """Of the frame that it begins in: part number and entry id, or an address of the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastState:
    """A container as it was."""

    metadata: ContainerMetadata
    """As of `sequence_number`."""
    sequence_number: int
    """Of the last operation in it."""
    timestamp_ms: int
    """Of that operation."""
    begun_with: int
    """Sequence number of the checkpoint that replay began with."""
    operations: int
    """Replayed, the checkpoint included."""


class Start(NamedTuple):
    """Where to begin reading."""

    place: int | None
    """Index of the part; None: the log's beginning."""
    entry: int = 0
    checkpoint: int = 0
    """The entry begins with this checkpoint; 0: the first that comes, and can be had, is taken."""


class _UnusableStartError(Exception):
    """Replay cannot begin there; another start may do."""


class ArchivedHistory:
    """Of one container. Several readings at once do not disturb each other."""

    def __init__(
        self,
        container_id: int,
        parts: PartListing,
        open_part: OpenPart,
        log: ReadableLog | None = None,
        load: SnapshotLoad | None = None,
    ) -> None:
        """`log` has what is not archived, and most often is only viewed; None: it is lost.

        `load` gives the metadata that a checkpoint by reference names; without it none is begun
        with.
        """
        self.container_id: Final = container_id
        self._parts = parts
        self._open_part: Final = open_part
        self._log = log
        self._load: Final = load
        self._first: Operation | None = None
        self.parts_opened = 0
        """Since this was made."""

    # --- the state at a moment --------------------------------------------------------------------

    async def state_at(self, moment: Moment) -> PastState:
        """The container as it was at the moment.

        Raises MomentNotKeptError, DataCorruptionError, TierUnavailableError. Costs the reading of
        what lies between the checkpoint that is begun with and the moment.
        """
        reasons: list[str] = []
        try:
            async with aclosing(self._starts(moment, reasons)) as starts:
                async for start in starts:
                    try:
                        return await self._replay(start, moment)
                    except _UnusableStartError as error:
                        reasons.append(str(error))
        except LedgerNotFoundError as error:
            # An earlier start would come to it as well.
            detail = f"on the way to {moment}: {error}"
            raise MomentNotKeptError(self.container_id, detail) from error
        why = "; ".join(reasons[-3:]) or "there is no archived part and no log"
        if self._log is None:
            why += "; a restore without a moment takes what tier2 has"
        raise MomentNotKeptError(self.container_id, f"nothing to begin with at {moment}: {why}")

    async def _starts(self, moment: Moment, reasons: list[str]) -> AsyncGenerator[Start, None]:
        """Those that may do, the best first; `reasons` gets why another does not."""
        first = await self._first_of_log()
        if first is not None and not is_behind(moment, first.sequence_number, first.timestamp_ms):
            if await self._is_set_back(moment, first.sequence_number):
                reasons.append(_later_before(first.sequence_number))
            else:
                yield Start(None)
        elif first is not None:
            time = shown_time(first.timestamp_ms)
            reasons.append(f"the log begins with operation {first.sequence_number} of {time}")
        if isinstance(moment, AtTime):
            found = await self._parts.find_time(moment.time_ms + 1)
        else:
            found = await self._parts.find_sequence(moment.sequence_number)
        async with aclosing(backward(self._parts, found[0] if found else None)) as parts:
            async for index, part in parts:
                number = part.checkpoint_sequence
                # When it was taken is not known, but for the bound of all in the part.
                if number and not is_behind(moment, number, part.last_ms):
                    yield Start(index, part.checkpoint_entry, number)
        if kept := self._parts.kept:
            number = (await self._parts.at(kept.start)).first_sequence
            if await self._is_set_back(moment, number):
                reasons.append(_later_before(number))
            else:
                yield Start(kept.start)

    async def _is_set_back(self, moment: Moment, sequence_number: int) -> bool:
        """Whether an operation before this one is behind the moment: then it is, too, whatever its
        own time stamp says.

        Reads at most one part, and none unless the moment lies in it or the clock was set back.
        """
        if not isinstance(moment, AtTime) or self._parts.last_ms <= moment.time_ms:
            return False
        found = await self._parts.find_sequence(sequence_number)
        if found is None:
            return True  # All of the archive is before it.
        index, part = found
        if part.last_ms <= moment.time_ms:
            return False
        if index > self._parts.kept.start:
            before = await self._parts.at(index - 1)
            return before.last_ms > moment.time_ms or (
                part.first_sequence < sequence_number
                and await self._highest_ms(index, part, sequence_number) > moment.time_ms
            )
        if await self._highest_ms(index, part, sequence_number) > moment.time_ms:
            return True
        # Of parts that are deleted only the highest time is known, and only if it is none of ours.
        return index > 0 and await self._highest_ms(index, part) < part.last_ms

    async def time_of(self, sequence_number: int) -> int:
        """The time of an operation by the rule: the highest time stamp of all up to it.

        Reads what the log has before it, or the part that it ends in. Raises as `operations`.
        """
        # First: it may view the log again, and bring other parts.
        first = await self._first_of_log()
        found = await self._parts.find_sequence(sequence_number)
        if found is None:
            highest = self._parts.last_ms
            begin = sequence_number if first is None else first.sequence_number
            async with aclosing(self.operations(begin, sequence_number)) as batches:
                async for operations in batches:
                    highest = max(highest, *(past.operation.timestamp_ms for past in operations))
            return highest
        index, part = found
        highest = await self._highest_ms(index, part, sequence_number + 1)
        if index > self._parts.kept.start:
            return max(highest, (await self._parts.at(index - 1)).last_ms)
        if index > 0 and await self._highest_ms(index, part) < part.last_ms:
            return part.last_ms  # Of a part that is deleted.
        return highest

    async def _highest_ms(self, index: int, part: ArchivedPart, end: int | None = None) -> int:
        """The highest time stamp of the part's operations, of those before `end` if it is given."""
        highest = 0
        end = part.last_sequence + 1 if end is None else end
        if not 0 < part.first_sequence < end:
            return highest  # No operation ends in it, or none of these.
        async with aclosing(self._read(Start(index))) as batches:
            async for operations in batches:
                for past in operations:
                    if past.operation.sequence_number >= end:
                        return highest
                    highest = max(highest, past.operation.timestamp_ms)
                # What follows is another part's.
                if operations[-1].operation.sequence_number >= part.last_sequence:
                    break
        return highest

    def _go_on_with(self, parts: PartListing, log: ReadableLog) -> None:
        """Another view of the log, and the parts that the archive has by then."""
        self._parts, self._log, self._first = parts, log, None

    async def _first_of_log(self) -> Operation | None:
        """The operation that the log begins with, as of the first time that this was asked of it:
        an owner elsewhere may truncate it.
        """
        if self._first is None and self._log is not None:
            async with aclosing(self._read(Start(None))) as batches:
                async for operations in batches:
                    self._first = operations[0].operation
                    break
        return self._first

    async def _replay(self, start: Start, moment: Moment) -> PastState:
        metadata = ContainerMetadata(self.container_id)
        replay = Replay(MetadataUpdater(metadata), LogPositions())
        # No later part is opened for an operation that is the last one of its part.
        wanted = None if isinstance(moment, AtTime) else moment.sequence_number
        begun_with = 0
        last: Operation | None = None
        async with aclosing(self._read(start)) as batches:
            async for operations in batches:
                for past in operations:
                    operation = past.operation
                    if is_behind(moment, operation.sequence_number, operation.timestamp_ms):
                        return self._state(metadata, replay, moment, begun_with, last, operation)
                    if last is not None:
                        replay.apply_operation(operation, past.size, past.address, past.address)
                    elif await self._begin(replay, past, start):
                        begun_with = operation.sequence_number
                    else:
                        continue
                    last = operation
                    if operation.sequence_number == wanted:
                        return self._state(metadata, replay, moment, begun_with, last, None)
        return self._state(metadata, replay, moment, begun_with, last, None)

    async def first_state(self, sequence_number: int) -> PastState | None:
        """The container before this operation, or else as of the first checkpoint from there on
        that can be had; None if none can.

        Raises DataCorruptionError, LedgerNotFoundError, TierUnavailableError.
        """
        start = await self._start_of(sequence_number)
        if start is None:
            return None
        metadata = ContainerMetadata(self.container_id)
        replay = Replay(MetadataUpdater(metadata), LogPositions())
        begun_with = 0
        last: Operation | None = None
        async with aclosing(self._read(start)) as batches:
            async for operations in batches:
                for past in operations:
                    operation = past.operation
                    if last is not None:
                        replay.apply_operation(operation, past.size, past.address, past.address)
                    elif isinstance(operation, _CHECKPOINTS) and await self._can_begin(
                        replay, past, start
                    ):
                        begun_with = operation.sequence_number
                    else:
                        continue
                    last = operation
                    if last.sequence_number >= sequence_number - 1:
                        return _past_state(metadata, replay, begun_with, last)
        return None if last is None else _past_state(metadata, replay, begun_with, last)

    async def _can_begin(self, replay: Replay, past: PastOperation, start: Start) -> bool:
        """Whether replay has begun with this checkpoint, and not with the next one."""
        try:
            return await self._begin(replay, past, start)
        except _UnusableStartError:
            return False

    async def _begin(self, replay: Replay, past: PastOperation, start: Start) -> bool:
        """Whether replay has begun with this operation."""
        operation, size, address = past
        if start.checkpoint and operation.sequence_number != start.checkpoint:
            raise DataCorruptionError(
                f"container {self.container_id}, address {address:#x}",
                f"checkpoint {start.checkpoint} is not there, but {operation.sequence_number}",
            )
        if not isinstance(operation, _CHECKPOINTS):
            if start.checkpoint or start.place is None:
                raise DataCorruptionError(
                    f"container {self.container_id}, operation {operation.sequence_number}",
                    f"it is a {type(operation).__name__}, and no checkpoint",
                )
            return False
        if not isinstance(operation, SnapshotCheckpointOperation):
            replay.apply_operation(operation, size, address, address)
            return True
        try:
            if self._load is None:
                raise DataCorruptionError("snapshots", "nothing loads them here")
            loaded = await self._load(operation)
        except DataCorruptionError as error:
            if start.place is not None and not start.checkpoint:
                return False
            raise _UnusableStartError(str(error)) from error
        replay.begin_from(operation, loaded, size, address, address)
        return True

    def _state(
        self,
        metadata: ContainerMetadata,
        replay: Replay,
        moment: Moment,
        begun_with: int,
        last: Operation | None,
        behind: Operation | None,
    ) -> PastState:
        """What replay has come to; `behind` is the first operation that is not in it."""
        if last is None:
            raise _UnusableStartError(
                "there is no checkpoint that can be had before it"
                if behind is None
                else f"operation {behind.sequence_number} is the first that is kept"
            )
        if isinstance(moment, AtCheckpoint):
            is_it = last.sequence_number == moment.sequence_number
            if not is_it or not isinstance(last, _CHECKPOINTS):
                raise MomentNotKeptError(self.container_id, f"there is no {moment}")
        elif (
            behind is None
            and not isinstance(moment, AtTime)
            and last.sequence_number < moment.sequence_number
        ):
            raise MomentNotKeptError(
                self.container_id,
                f"operation {last.sequence_number} is the last one, {moment} is not there",
            )
        return _past_state(metadata, replay, begun_with, last)

    # --- operations -------------------------------------------------------------------------------

    async def operations(
        self, first: int, last: int
    ) -> AsyncGenerator[Sequence[PastOperation], None]:
        """The operations numbered `first` to `last`, as far as they are kept, in batches.

        Raises LedgerNotFoundError, PartRemovedError, DataCorruptionError, TierUnavailableError.
        """
        start = await self._start_of(first)
        while start is not None:
            reader = DataFrameReader()
            begun = False
            async with aclosing(self._read(start, reader)) as batches:
                async for operations in batches:
                    numbers = [past.operation.sequence_number for past in operations]
                    is_cut = not begun and reader.skipped and numbers[0] > first
                    if is_cut and await self._earlier(start) is not None:
                        break
                    begun = True
                    if numbers[0] >= first and numbers[-1] <= last:
                        yield operations
                    elif wanted := [
                        each
                        for each in operations
                        if first <= each.operation.sequence_number <= last
                    ]:
                        yield wanted
                    if numbers[-1] >= last:
                        return
            if begun or not reader.skipped:
                return
            # The first operation that ends there begins before it.
            start = await self._earlier(start)

    async def _start_of(self, sequence_number: int) -> Start | None:
        """Where to begin reading so as to meet the end of the operation; None: nowhere."""
        first = await self._first_of_log()
        if first is not None and first.sequence_number <= sequence_number:
            return Start(None)
        found = await self._parts.find_sequence(sequence_number)
        if found is None:
            return Start(None) if first is not None else None
        index, part = found
        if 0 < part.checkpoint_sequence <= sequence_number:
            return Start(index, part.checkpoint_entry)
        return Start(index)

    async def _earlier(self, start: Start) -> Start | None:
        """More of the part's entries, or the last ones of the part before; None if that is not
        kept.
        """
        if start.place is None:
            return None
        if start.entry:
            part = await self._parts.at(start.place)
            entries = _MORE * (part.entries - start.entry)
            return Start(start.place, max(0, part.entries - entries))
        if start.place <= self._parts.kept.start:
            return None
        part = await self._parts.at(start.place - 1)
        return Start(start.place - 1, max(0, part.entries - _LAST_ENTRIES))

    async def first_at(self, time_ms: int) -> int:
        """A number at or before that of the first operation of this time or a later one.

        No part is read for that.
        """
        # First: it may view the log again, and bring other parts.
        first = await self._first_of_log()
        found = await self._parts.find_time(time_ms)
        if found is not None:
            return found[1].first_sequence
        return first.sequence_number if first is not None else 1

    async def windows_before(self, last: int, first: int) -> AsyncGenerator[tuple[int, int], None]:
        """Ranges of operations that cover `first` to `last`, from the newest one backward: the
        log's, then each part's. No part is read for that.
        """
        begin = await self._first_of_log()
        end = last
        if begin is not None and begin.sequence_number <= end:
            yield max(first, begin.sequence_number), end
            end = begin.sequence_number - 1
        if end < first:
            return
        found = await self._parts.find_sequence(end)
        async with aclosing(backward(self._parts, found[0] if found else None)) as parts:
            async for _, each in parts:
                if not 0 < each.first_sequence <= end:
                    continue  # No operation ends in it.
                yield max(first, each.first_sequence), end
                end = each.first_sequence - 1
                if end < first:
                    return
        yield first, end

    # --- frames -----------------------------------------------------------------------------------

    async def _read(
        self, start: Start, reader: DataFrameReader | None = None
    ) -> AsyncGenerator[Sequence[PastOperation], None]:
        """All operations that end from there on; no batch is empty."""
        reader = DataFrameReader() if reader is None else reader
        decode = Replay.decode
        async with aclosing(self._frames(start)) as batches:
            async for frames in batches:
                operations = [
                    PastOperation(
                        decode(record.data, record.first_frame_address, copy=False),
                        len(record.data),
                        record.first_frame_address,
                    )
                    for frame in frames
                    for record in reader.feed(frame)
                ]
                if operations:
                    yield operations

    async def _frames(self, start: Start) -> AsyncGenerator[Sequence[LogFrame], None]:
        # Those of one view, whatever other readings do.
        parts, log = self._parts, self._log
        reading = PartFrames(self.container_id)
        archived = 0
        if start.place is not None:
            entry = start.entry
            for index in range(start.place, parts.kept.stop):
                part = await parts.at(index)
                async with aclosing(self._frames_of(reading, part, entry)) as batches:
                    async for frames in batches:
                        archived = frames[-1].sequence
                        yield frames
                entry = 0
        if log is not None:
            async with aclosing(log.read()) as batches:
                async for frames in batches:
                    # What is archived may be in the log for hours more.
                    if new := _behind(frames, archived):
                        yield new

    async def _frames_of(
        self, reading: PartFrames, part: ArchivedPart, entry: int
    ) -> AsyncGenerator[Sequence[LogFrame], None]:
        handle = await self._open_part(part)
        self.parts_opened += 1
        try:
            async with aclosing(reading.read(handle, part.number, entry)) as batches:
                async for frames in batches:
                    yield frames
        finally:
            await handle.close()


def _past_state(
    metadata: ContainerMetadata, replay: Replay, begun_with: int, last: Operation
) -> PastState:
    return PastState(
        metadata=metadata,
        sequence_number=last.sequence_number,
        timestamp_ms=last.timestamp_ms,
        begun_with=begun_with,
        operations=replay.operations,
    )


def _later_before(sequence_number: int) -> str:
    return f"an operation before operation {sequence_number} is later: the clock was set back"


def _behind(frames: Sequence[LogFrame], archived: int) -> Sequence[LogFrame]:
    """Those that are not archived, too: the log gives frames in the order of their numbers."""
    if frames[0].sequence > archived:
        return frames
    return [frame for frame in frames if frame.sequence > archived]
