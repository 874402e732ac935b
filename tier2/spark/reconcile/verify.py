"""What the objects themselves say: headers and checksums of every block, compared with the
catalog's word.

Rules of this file:

- the walk is `tier2.block_walk`'s, the same as the scrub's; here its faults become rows of
  findings;
- several objects are checked at once, as a rule each by one request: while one waits for its
  bytes the checksums of another are made. How many is bounded by bytes too, for a task is one of
  many on its machine;
- an object that is not there is no finding here: whether it is missing, a listing and a snapshot
  taken later say;
- a store that does not answer is asked again, more and more slowly. One object that cannot be had
  is `unreadable` and of the severity `unknown`; several in a row are the store's failure, and the
  task's.

Coroutines over ObjectStorage and Runtime: a task of a job and a simulated world run the same ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

import pyarrow as pa

from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from segmentstore.contracts.findings import Severity
from segmentstore.contracts.weighted_gate import WeightedGate
from tier2.block_object import BlockChecksumError, BlockFormatError, BlockIdentityError
from tier2.block_walk import PIECE_SLACK, BlockFault, BlockWalk, ObjectEndError
from tier2.object_names import parse_object_name
from tier2.object_storage import ObjectNotFoundError, ObjectStorage, StorageUnavailableError
from tier2.spark.reconcile.findings import FindingKind, FindingRow

PIECE_BYTES: Final = 64 * 1024 * 1024
"""Of one request for a body, or an eighth more: by default no flush makes larger objects, and whole
ones cost a store least.
"""
OBJECTS_AT_ONCE: Final = 4
ROOM_BYTES: Final = 36 * 1024 * 1024
"""Held for each of the objects at once; a piece of PIECE_BYTES takes the room of two."""
ATTEMPTS: Final = 3
RETRY_S: Final = 0.5
"""Before the second attempt; twice as long before each one after.

The adapters try again by themselves as well.
"""
FAILURES_IN_A_ROW_MAX: Final = 3
ROWS_AT_ONCE: Final = 256

OBJECT_COLUMNS: Final = ("name", "size", "created_ms", "state", "blocks")
"""What is needed of a snapshot's `objects`."""


class Checked(NamedTuple):
    """What came of inspecting one object."""

    findings: tuple[FindingRow, ...] = ()
    blocks: int = 0
    bytes_read: int = 0
    missing: str | None = None
    """Its name, if it is not there."""
    unavailable: bool = False


class ObjectsCheck:
    """What came of inspecting many objects."""

    def __init__(self) -> None:
        self.findings: list[FindingRow] = []
        self.objects = 0
        """Inspected, those that were missing not counted."""
        self.blocks = 0
        self.bytes_read = 0
        self.missing: list[str] = []
        self._failures_in_a_row = 0

    def add(self, checked: Checked) -> None:
        """Count one object.

        Raises StorageUnavailableError if it is one too many that could not be had.
        """
        self._failures_in_a_row = self._failures_in_a_row + 1 if checked.unavailable else 0
        if self._failures_in_a_row > FAILURES_IN_A_ROW_MAX:
            raise StorageUnavailableError(
                checked.findings[0].object or "", checked.findings[0].evidence
            )
        self.findings += checked.findings
        self.blocks += checked.blocks
        self.bytes_read += checked.bytes_read
        if checked.missing is None:
            self.objects += 1
        else:
            self.missing.append(checked.missing)


class OwnedChunk(NamedTuple):
    """A chunk, and the segment it is of now; its record only says whose the block was when it was
    written.
    """

    segment_id: int
    record: ChunkRecord


async def verify_objects(
    storage: ObjectStorage,
    objects: Iterable[pa.Table],
    *,
    bodies: bool = True,
    at_once: int = OBJECTS_AT_ONCE,
    piece_bytes: int = PIECE_BYTES,
    executor: Executor | None = None,
) -> ObjectsCheck:
    """Inspect every live object of these rows (`OBJECT_COLUMNS`), up to `at_once` of them at a
    time.

    Raises StorageUnavailableError after several objects in a row that could not be had. Memory is
    bounded by `at_once` times ROOM_BYTES, or by a piece if that is more, and by what is found.
    """
    waiting = live_objects(objects)
    room = WeightedGate(at_once * ROOM_BYTES)
    result = ObjectsCheck()
    failed: list[Exception] = []

    async def work() -> None:
        for record, chunks in waiting:
            held = min(record.size, piece_bytes + piece_bytes // PIECE_SLACK) if bodies else 0
            await room.enter(held)
            try:
                result.add(
                    await verify_object(
                        storage,
                        record,
                        chunks,
                        bodies=bodies,
                        piece_bytes=piece_bytes,
                        executor=executor,
                    )
                )
            except Exception as error:  # noqa: BLE001
                # Raised when the others have come to their next object.
                failed.append(error)
            finally:
                room.leave(held)
            if failed:
                return

    await asyncio.gather(*(work() for _ in range(at_once)))
    if failed:
        raise failed[0]
    return result


def live_objects(objects: Iterable[pa.Table]) -> Iterator[tuple[ObjectRecord, list[OwnedChunk]]]:
    """The live objects among rows of a snapshot's `objects`, with the chunks that lie in each."""
    for table in objects:
        for batch in table.select(list(OBJECT_COLUMNS)).to_batches(max_chunksize=ROWS_AT_ONCE):
            for row in batch.to_pylist():
                if row["state"] == "live":
                    yield _record(row)


def _record(row: dict[str, Any]) -> tuple[ObjectRecord, list[OwnedChunk]]:
    name: str = row["name"]
    chunks = [
        OwnedChunk(
            block["segment_id"],
            ChunkRecord(
                block["start_offset"],
                block["length"],
                name,
                block["block_offset"],
                block["block_segment_id"],
                block["block_start_offset"],
            ),
        )
        for block in row["blocks"] or ()
    ]
    return ObjectRecord(name, row["size"], row["created_ms"]), chunks


async def verify_object(
    storage: ObjectStorage,
    record: ObjectRecord,
    chunks: Sequence[OwnedChunk],
    *,
    bodies: bool = True,
    piece_bytes: int = PIECE_BYTES,
    executor: Executor | None = None,
) -> Checked:
    """Whether the blocks of one object are those the catalog means and, with `bodies`, every
    checksum in it right.

    Reads the object once; of headers alone, one small request for a large block. Never raises for
    the object's sake.
    """
    named = parse_object_name(record.name)
    container_id = named.container_id if named is not None else -1
    delay = RETRY_S
    for attempt in range(1, ATTEMPTS + 1):
        walk = BlockWalk(
            storage,
            container_id,
            record,
            [chunk.record for chunk in chunks],
            bodies=bodies,
            piece_bytes=piece_bytes,
            executor=executor,
        )
        try:
            faults = await walk.run()
            size = await _size(storage, record, faults)
        except ObjectNotFoundError:
            return Checked(missing=record.name)
        except StorageUnavailableError as error:
            if attempt == ATTEMPTS:
                evidence = f"after {ATTEMPTS} attempts: {error}"
                finding = _finding(FindingKind.UNREADABLE, record, container_id, chunks, evidence)
                return Checked((finding._replace(severity=Severity.UNKNOWN),), unavailable=True)
            await asyncio.sleep(delay)
            delay *= 2
        else:
            return Checked(
                tuple(_findings(record, container_id, chunks, faults, size)),
                walk.blocks,
                walk.bytes_read,
            )
    raise AssertionError("the last attempt returns")


async def _size(storage: ObjectStorage, record: ObjectRecord, faults: Sequence[BlockFault]) -> int:
    """The size the object has; asked for only where a fault may come from it."""
    if not any(isinstance(fault.error, ObjectEndError) for fault in faults):
        return record.size
    stored = await storage.head(record.name)
    if stored is None:
        raise ObjectNotFoundError(record.name, "deleted while it was read")
    return stored.size


def _findings(
    record: ObjectRecord,
    container_id: int,
    chunks: Sequence[OwnedChunk],
    faults: Sequence[BlockFault],
    size: int,
) -> Iterator[FindingRow]:
    owners = {chunk.record: chunk for chunk in chunks}
    cut = (
        [fault for fault in faults if isinstance(fault.error, ObjectEndError)]
        if size != record.size
        else []
    )
    if cut:
        # One cause, one finding: which blocks are cut is evidence of it.
        lost = [owners[chunk] for fault in cut for chunk in fault.chunks]
        places = ", ".join(str(fault.position) for fault in cut[:3])
        evidence = f"its end is within the block at {places}" + (
            f" and {len(cut) - 3} more" if len(cut) > 3 else ""
        )
        finding = _finding(FindingKind.WRONG_SIZE, record, container_id, lost, evidence)
        yield finding._replace(expected=f"{record.size} bytes", actual=f"{size} bytes")
    for fault in faults:
        if fault in cut:
            continue
        held = [owners[chunk] for chunk in fault.chunks]
        evidence = f"block at {fault.position}, {fault.error.place}: {fault.error.reason}"
        finding = _finding(_kind(fault.error), record, container_id, held, evidence)
        yield finding._replace(actual=fault.error.reason, severity=None if held else Severity.NOTE)


def _kind(error: BlockFormatError) -> FindingKind:
    if isinstance(error, BlockIdentityError):
        return FindingKind.WRONG_IDENTITY
    return (
        FindingKind.BAD_CHECKSUM
        if isinstance(error, BlockChecksumError)
        else FindingKind.UNREADABLE
    )


def _finding(
    kind: FindingKind,
    record: ObjectRecord,
    container_id: int,
    chunks: Sequence[OwnedChunk],
    evidence: str,
) -> FindingRow:
    """With the place of the first chunk that is concerned."""
    finding = FindingRow(kind, evidence, container_id if container_id >= 0 else None, record.name)
    if not chunks:
        return finding._replace(evidence=f"{evidence}; no chunk lies in it")
    segment_id, first = chunks[0]
    more = f"; {len(chunks) - 1} more chunks lie in it" if len(chunks) > 1 else ""
    end = first.block_start_offset + first.length
    return finding._replace(
        evidence=evidence + more,
        expected=f"bytes {first.block_start_offset} to {end} of segment {first.block_segment_id}",
        segment_id=segment_id,
        start_offset=first.start_offset,
        length=first.length,
    )
