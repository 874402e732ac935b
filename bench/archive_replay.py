"""Replay of archived operations: printed as lines of JSON, and applied to metadata.

The archive is in a folder: what is measured is the engine's own work. Operations are appends of
100 B, round robin over more segments than a frame has operations of, in frames of about 1 MiB.
Figures are by the wall clock; `cpu` in the extras are operations by CPU time, which other work on
the machine does not change. Floor: reading the entries from the archive, without decoding them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from bench import child, rounds
from bench.child import Measured
from bench.report import CaseResult, Row, Samples, extras_of
from bench.workspace import subfolder
from durablelog.checkpoint_codec import encode_checkpoint
from durablelog.data_frame import seal_header
from durablelog.data_frame_builder import DataFrameBuilder
from durablelog.operation_codec import encode_operation, encoded_length
from durablelog.operations import (
    AppendOperation,
    CheckpointOperation,
    CreateOperation,
    Operation,
)
from recovery.archived_history import ArchivedHistory
from recovery.archived_parts_listing import FoundPart
from recovery.moments import AtSequence
from segmentstore.contracts.archived_parts import ArchivedPart, OffloadState
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.ledgers import LedgerEntry, LedgerMetadata, ReadHandle
from segmentstore.contracts.metadata import ContainerMetadata
from segmentstore.contracts.runtime import Runtime
from segmentstore.operation_lines import json_lines
from tier2.archive.object_ledger_offloader import ObjectLedgerOffloader
from tier2.file_object_storage import FileObjectStorage

QUESTION = "replay of archived appends of 100 B: printed as JSON, and to the state at the last one"
OPERATIONS_PER_S = 150_000
APPEND_BYTES = 100
SEGMENTS = 2048
FRAME_BYTES = 1024 * 1024 - 1024
LEDGER = 1
UID = bytes(16)
_SIDES = ("floor", "lines", "state")


def run(directory: Path, *, quick: bool) -> CaseResult:
    """About 20 s and 300 k operations quick, a minute and a million else."""
    operations = 300_000 if quick else 1_000_000
    measured: dict[str, list[Measured]] = {side: [] for side in _SIDES}
    with subfolder(directory, "archive") as folder:
        arguments = {"directory": str(folder), "operations": operations}
        child.call(__name__, "fill", arguments)
        for _ in range(rounds.count_of(quick=quick)):
            for side in _SIDES:
                measured[side].append(child.call(__name__, f"{side}_round", arguments))
    rows = [
        Row(
            name=name,
            unit="operations/s",
            floor=Samples.of(measured["floor"]),
            engine=Samples.of(measured[side]),
            bar=f"≥ {OPERATIONS_PER_S:,}/s" if side == "lines" else "",
            met=Samples.of(measured[side]).median >= OPERATIONS_PER_S if side == "lines" else None,
            extra=extras_of(measured[side]),
        )
        for side, name in (("lines", "archive replay --json"), ("state", "state at a moment"))
    ]
    return CaseResult(case="archive_replay", question=QUESTION, rows=rows)


class _Ledger(ReadHandle):
    """Entries in memory."""

    def __init__(self, entries: Sequence[bytes]) -> None:
        self._entries = entries

    @property
    def ledger_id(self) -> int:
        return LEDGER

    @property
    def metadata(self) -> LedgerMetadata:
        return LedgerMetadata(
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            length=sum(map(len, self._entries)),
            last_entry=len(self._entries) - 1,
        )

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        for number in range(first, last + 1):
            yield [LedgerEntry(number, memoryview(self._entries[number]))]

    async def close(self) -> None:
        pass


class OnePart:
    """The listing of a single part."""

    kept = range(1)

    def __init__(self, operations: int) -> None:
        last = SEGMENTS + 1 + operations
        self._part = ArchivedPart(
            number=1,
            ledger_id=LEDGER,
            uid=UID,
            state=OffloadState.COMPLETE,
            entries=0,
            length=0,
            first_sequence=1,
            last_sequence=last,
            first_ms=1,
            last_ms=last,
            checkpoint_sequence=1,
        )
        self.last_ms = last

    async def find_sequence(self, sequence_number: int) -> FoundPart | None:
        """It."""
        return (0, self._part) if sequence_number <= self._part.last_sequence else None

    async def find_time(self, time_ms: int) -> FoundPart | None:
        """It."""
        return (0, self._part) if time_ms <= self._part.last_ms else None

    async def at(self, index: int) -> ArchivedPart:
        """It."""
        assert index == 0
        return self._part

    async def first_now(self) -> int:
        """It."""
        return 0


def _offloader(directory: str) -> ObjectLedgerOffloader:
    return ObjectLedgerOffloader(FileObjectStorage(directory, Runtime()))


def fill(directory: str, operations: int) -> Measured:
    """Archive a ledger of so many appends."""

    async def work() -> None:
        offloader = _offloader(directory)
        await offloader.offload(_Ledger(_entries(operations)), UID)
        await offloader.close()

    asyncio.run(work())
    return {}


def _entries(operations: int) -> list[bytes]:
    builder = DataFrameBuilder(FRAME_BYTES)
    entries: list[bytes] = []

    def add(operation: Operation) -> None:
        parts = encode_operation(operation)
        builder.add(parts, encoded_length(parts))
        entries.extend(_framed(len(entries), builder.take_full()))

    add(CheckpointOperation(encode_checkpoint(ContainerMetadata(0)), sequence_number=1))
    for number in range(SEGMENTS):
        add(CreateOperation(f"s{number}", sequence_number=number + 2, timestamp_ms=number))
    data = bytes(APPEND_BYTES)
    for number in range(operations):
        round_, segment = divmod(number, SEGMENTS)
        sequence = SEGMENTS + 2 + number
        add(
            AppendOperation(
                segment + 2,
                round_ * APPEND_BYTES,
                data,
                sequence_number=sequence,
                timestamp_ms=sequence,
            )
        )
    last = builder.seal()
    return entries + _framed(len(entries), [last] if last is not None else [])


def _framed(count: int, payloads: Sequence[Sequence[Buffer]]) -> list[bytes]:
    return [
        b"".join((seal_header(0, 1, count + number, 0, payload), *payload))
        for number, payload in enumerate(payloads, 1)
    ]


def floor_round(directory: str, operations: int) -> Measured:
    """Read the entries."""

    async def work() -> None:
        handle = await _offloader(directory).read_offloaded(LEDGER, UID)
        async with aclosing(handle.read(0, handle.last_entry)) as batches:
            async for _ in batches:
                pass

    return _timed(work, operations)


def lines_round(directory: str, operations: int) -> Measured:
    """Print them, as `archive replay --json` does."""

    async def work() -> None:
        line = json_lines(0)
        with open(os.devnull, "w", encoding="utf-8") as out:  # noqa: ASYNC230 - it never blocks
            async with aclosing(_history(directory, operations).operations(1, 2**64)) as batches:
                async for batch in batches:
                    out.write("\n".join(map(line, batch)) + "\n")

    return _timed(work, operations)


def state_round(directory: str, operations: int) -> Measured:
    """Replay them into metadata."""

    async def work() -> None:
        moment = AtSequence(SEGMENTS + 1 + operations)
        state = await _history(directory, operations).state_at(moment)
        assert state.operations == SEGMENTS + 1 + operations, state.operations

    return _timed(work, operations)


def _history(directory: str, operations: int) -> ArchivedHistory:
    offloader = _offloader(directory)

    async def open_part(part: ArchivedPart) -> ReadHandle:
        return await offloader.read_offloaded(part.ledger_id, part.uid)

    return ArchivedHistory(0, OnePart(operations), open_part)


def _timed(work: object, operations: int) -> Measured:
    assert callable(work)
    begun, used = time.perf_counter(), time.process_time()
    asyncio.run(work())
    return {
        "value": operations / (time.perf_counter() - begun),
        "cpu": operations / (time.process_time() - used),
    }


if __name__ == "__main__":
    from bench.suite import main

    main("archive_replay")
