"""Whether the archived parts of a container are what the metadata say, and one history.

Each part is read whole: its index, blocks, entries, the checksums of its frames, the operations in
them. Frames and operations must follow each other over all parts. Damage in one part hides none in
another. A tier that does not answer is never taken for damage, nor is what the archive's owner has
removed meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from durablelog.data_frame import FrameFormatError, FrameHeader
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame
from durablelog.frame_order import FrameOrder, open_frame
from durablelog.operations import CheckpointOperation, Operation, SnapshotCheckpointOperation
from recovery.archived_history import OpenPart
from recovery.archived_parts_listing import PartListing, PartRemovedError
from recovery.replay import Replay
from segmentstore.contracts.archived_parts import ArchivedPart
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.findings import Finding, harmful
from segmentstore.contracts.ledgers import LedgerEntry, LedgerNotFoundError, ReadHandle


@dataclass(slots=True)
class PartCheck:
    """What came of checking one part."""

    container_id: int
    part: ArchivedPart
    entries: int = 0
    bytes: int = 0
    operations: int = 0
    findings: list[Finding] = field(default_factory=list)
    is_missing: bool = False

    @property
    def place(self) -> str:
        """The part, for people."""
        return f"container {self.container_id}, archived part {self.part.number}"

    def damaged(self, detail: str) -> None:
        """Add a finding of damage."""
        self.findings.append(harmful("archived-part", self.place, detail))

    def missing(self, detail: str) -> None:
        """Add the finding that there is no such part."""
        self.is_missing = True
        self.findings.append(harmful("archived-part-missing", self.place, detail))

    def behind_a_hole(self, detail: str) -> None:
        """Add the finding that something before it is missing."""
        self.findings.append(harmful("archive-hole", self.place, detail))


class HistoryCheck:
    """Of one container's parts, used once."""

    def __init__(self, container_id: int, parts: PartListing, open_part: OpenPart) -> None:
        self._container_id = container_id
        self._parts = parts
        self._open_part = open_part
        self.removed = 0
        """Parts that the archive's owner has removed meanwhile."""
        self._begin()

    def _begin(self) -> None:
        """What follows cannot be compared with what was before."""
        self._order, self._reader = FrameOrder(), DataFrameReader()
        self._frame = self._sequence = 0
        """The last ones; 0: not known."""

    async def run(self) -> AsyncGenerator[PartCheck, None]:
        """Each part in order, but for those that are removed meanwhile.

        From the first missing one on they are given at the end: then the archive's record is read
        once more. Raises TierUnavailableError, and DataCorruptionError for a list of parts.
        """
        held: list[tuple[int, PartCheck]] = []
        for index in self._parts.kept:
            try:
                check = await self._check(await self._parts.at(index))
            except PartRemovedError:
                self.removed += 1
                self._begin()
                continue
            if held or check.is_missing:
                held.append((index, check))
            else:
                yield check
        first = await self._parts.first_now() if held else 0
        for index, check in held:
            if check.is_missing and index < first:
                self.removed += 1
            else:
                yield check

    async def _check(self, part: ArchivedPart) -> PartCheck:
        check = PartCheck(self._container_id, part)
        try:
            handle = await self._open_part(part)
        except LedgerNotFoundError as error:
            check.missing(str(error))
        except DataCorruptionError as error:
            check.damaged(str(error))
        else:
            try:
                _check_metadata(check, handle)
                await self._read(check, handle)
                return check
            except LedgerNotFoundError as error:
                check.missing(str(error))
            except DataCorruptionError as error:
                check.damaged(str(error))
            finally:
                await handle.close()
        self._begin()
        return check

    async def _read(self, check: PartCheck, handle: ReadHandle) -> None:
        part = check.part
        first = last = last_ms = 0
        async with aclosing(handle.read(0, handle.last_entry)) as batches:
            async for entries in batches:
                for entry in entries:
                    check.entries += 1
                    check.bytes += len(entry.data)
                    for operation, begins_in in self._operations(check, entry):
                        self._follow(check, operation)
                        _check_checkpoint(check, operation, begins_in)
                        first = first or operation.sequence_number
                        last = operation.sequence_number
                        last_ms = max(last_ms, operation.timestamp_ms)
        # Of one that begins in a part that is missing nothing is known.
        if check.operations and first > part.first_sequence and not self._reader.skipped:
            check.damaged(f"it begins with {first}, and {part.first_sequence} is recorded")
        if check.operations and last != part.last_sequence:
            check.damaged(f"it ends with {last}, and {part.last_sequence} is recorded")
        if last_ms > part.last_ms:
            check.damaged(f"an operation of {last_ms} ms, and {part.last_ms} is recorded")

    def _operations(
        self, check: PartCheck, entry: LedgerEntry
    ) -> Iterator[tuple[Operation, LogAddress]]:
        """Those that end in an entry, and the entries that they begin in, as addresses."""
        place = f"archived part {check.part.number} entry {entry.entry_id}"
        try:
            header, payload = open_frame(self._container_id, entry.data)
            if self._is_behind_a_hole(check, header):
                self._begin()
            if not self._order.accept(header):
                return
        except FrameFormatError as error:
            raise DataCorruptionError(place, error.reason) from error
        self._frame = header.sequence
        address = _address_of(check.part, entry.entry_id)
        checksum = header.payload_checksum
        frame = LogFrame(address, header.sequence, header.epoch, payload, None, checksum)
        for record in self._reader.feed(frame):
            check.operations += 1
            begins_in = record.first_frame_address
            yield Replay.decode(record.data, begins_in, copy=False), begins_in

    def _is_behind_a_hole(self, check: PartCheck, header: FrameHeader) -> bool:
        expected = self._frame + 1
        if not self._frame or header.sequence <= expected:
            return False
        check.behind_a_hole(f"frame {header.sequence} follows, and frame {expected} is due")
        return True

    def _follow(self, check: PartCheck, operation: Operation) -> None:
        number = operation.sequence_number
        if number <= self._sequence:
            check.damaged(f"operation {number} follows operation {self._sequence}")
        self._sequence = number


def _check_metadata(check: PartCheck, handle: ReadHandle) -> None:
    part = check.part
    there = (handle.ledger_id, handle.last_entry + 1, handle.length)
    recorded = (part.ledger_id, part.entries, part.length)
    names = ("ledger", "entries", "bytes")
    for name, found, known in zip(names, there, recorded, strict=True):
        if found != known:
            check.damaged(f"{name}: {found}, and {known} is recorded")


def _address_of(part: ArchivedPart, entry: int) -> LogAddress:
    return LogAddress(part.number << 32 | entry)


def _check_checkpoint(check: PartCheck, operation: Operation, address: LogAddress) -> None:
    part = check.part
    if operation.sequence_number != part.checkpoint_sequence:
        return
    is_one = isinstance(operation, CheckpointOperation | SnapshotCheckpointOperation)
    if not is_one or address != _address_of(part, part.checkpoint_entry):
        check.damaged(
            f"checkpoint {part.checkpoint_sequence} does not begin in entry "
            f"{part.checkpoint_entry}, where it is recorded",
        )
