"""Every block of one Tier-2 object: whether it is the one the chunks mean, and every checksum right.

The object is walked from its first byte as the row of blocks it should be, so that bytes no chunk refers to any
more are checked as well. Rules:

- a fault in a block that a chunk lies in is harmful; in any other it is a note, for nobody will ask for its bytes;
- a block that fails a check is read once more from the store before that is believed;
- behind a header that cannot be read the walk goes on at the next place where a chunk says a block begins;
- every byte is fetched once, in large pieces; memory is bounded by two of them, whatever the size of the object.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from recovery.consistency_check import Finding, Severity, harmful
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tier2.block_object import (
    HEADER_BYTES,
    BlockFormatError,
    BlockHeader,
    BlockTooShortError,
    ExtentTable,
    decode_extents,
    parse_block_header,
    parse_extent_table,
)
from tier2.block_runs import check_block_identity
from tier2.object_names import parse_object_name
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError, ObjectStorage

PIECE_BYTES = 4 * 1024 * 1024
INLINE_BYTES = 64 * 1024
"""Stored bytes up to this are checked on the loop."""


class ObjectCheck(NamedTuple):
    """What came of looking at one object."""

    findings: list[Finding]
    blocks: int
    bytes_read: int


async def check_object(
    storage: ObjectStorage,
    container_id: int,
    record: ObjectRecord,
    chunks: Sequence[ChunkRecord],
    *,
    deep: bool = True,
    piece_bytes: int = PIECE_BYTES,
    executor: Executor | None = None,
    pace: Callable[[int], Awaitable[None]] | None = None,
) -> ObjectCheck:
    """Whether an object is there, as large as it should be and, deep, all of its blocks right: see `BlockCheck`.

    One `head`; deep, the reading of the whole object. Raises StorageUnavailableError.
    """
    place = f"object {record.name}"
    missing = ObjectCheck([harmful("object-missing", place, _loss(container_id, chunks))], 0, 0)
    stored = await storage.head(record.name)
    if stored is None:
        return missing
    findings: list[Finding] = []
    if stored.size != record.size:
        detail = f"it has {stored.size} bytes where {record.size} are recorded"
        findings.append(harmful("object-size", place, detail))
    if not deep:
        return ObjectCheck(findings, 0, 0)
    blocks = BlockCheck(storage, container_id, record, chunks, piece_bytes=piece_bytes, executor=executor, pace=pace)
    try:
        findings += await blocks.run()
    except ObjectNotFoundError:
        return missing
    return ObjectCheck(findings, blocks.blocks, blocks.bytes_read)


def _loss(container_id: int, chunks: Sequence[ChunkRecord]) -> str:
    size = sum(chunk.length for chunk in chunks)
    return f"{len(chunks)} chunks of container {container_id} lie in it, {size:,} bytes"


class _Fault(NamedTuple):
    position: int
    """Of the block."""
    error: BlockFormatError


class BlockCheck:
    """The walk through one object. `chunks` are all that lie in it.

    With an `executor` checksums and decompression run there; `pace` is awaited before each fetch, with its bytes.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        container_id: int,
        record: ObjectRecord,
        chunks: Iterable[ChunkRecord],
        *,
        piece_bytes: int = PIECE_BYTES,
        executor: Executor | None = None,
        pace: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._storage = storage
        self._container_id = container_id
        self._record = record
        self._piece_bytes = piece_bytes
        self._executor = executor
        self._pace = pace
        self._chunks: dict[int, list[ChunkRecord]] = defaultdict(list)
        for chunk in chunks:
            self._chunks[chunk.block_offset].append(chunk)
        self._places = sorted(self._chunks)
        self._held = b""
        self._held_at = 0
        self.blocks = 0
        """Blocks found so far."""
        self.bytes_read = 0

    async def run(self) -> list[Finding]:
        """Check everything. Raises ObjectNotFoundError, StorageUnavailableError. Reads the whole object once."""
        findings: list[Finding] = []
        position = 0
        while position < self._record.size:
            blocks = self.blocks
            end, faults = await self._block(position)
            if faults:
                self._held, self.blocks = b"", blocks
                end, faults = await self._block(position)
            findings += map(self._finding, faults)
            if end is None:
                following = bisect_right(self._places, position)
                end = self._places[following] if following < len(self._places) else self._record.size
            position = end
        return findings

    async def _block(self, position: int) -> tuple[int | None, list[_Fault]]:
        """Where the block at `position` ends, None if it does not say; and what is wrong with it."""
        try:
            header, prefix = await self._header(position)
        except BlockFormatError as error:
            return None, [_Fault(position, error)]
        self.blocks += 1
        faults = await self._faults(position, header, prefix)
        end = position + header.block_length
        faults += [
            _Fault(place, BlockFormatError(f"it would begin inside of the block at {position}"))
            for place in self._places[bisect_right(self._places, position) : bisect_left(self._places, end)]
        ]
        return end, faults

    async def _header(self, position: int) -> tuple[BlockHeader, bytes]:
        """The header of the block at `position`, and the bytes it was read from. Raises BlockFormatError."""
        data = await self._read(position, min(HEADER_BYTES, self._record.size - position), "header")
        try:
            header = parse_block_header(data)
        except BlockTooShortError as error:
            data = await self._read(position, error.needed, "header")
            header = parse_block_header(data)
        if position + header.block_length > self._record.size:
            raise BlockFormatError(f"its {header.block_length} bytes reach beyond the object's end", "object")
        return header, data

    async def _faults(self, position: int, header: BlockHeader, prefix: bytes) -> list[_Fault]:
        try:
            self._check_identity(position, header)
            if len(prefix) < header.prefix_length:
                prefix = await self._read(position, header.prefix_length, "extent table")
            table = parse_extent_table(prefix, header)
        except BlockFormatError as error:
            return [_Fault(position, error)]
        bad = await self._bad_extents(position, header, table)
        if not bad:
            return []
        more = f" (and {len(bad) - 1} more extents of it)" if len(bad) > 1 else ""
        return [_Fault(position, BlockFormatError(bad[0].reason + more, bad[0].place))]

    def _check_identity(self, position: int, header: BlockHeader) -> None:
        if header.container_id != self._container_id:
            raise BlockFormatError(f"it is of container {header.container_id}, not {self._container_id}")
        named = parse_object_name(self._record.name)
        # Blocks may be copied on into later objects, never back into earlier ones.
        if named is not None and header.epoch > named.epoch:
            raise BlockFormatError(f"it is of epoch {header.epoch}, and its object of epoch {named.epoch}")
        for chunk in self._chunks.get(position, ()):
            check_block_identity(header, self._container_id, chunk)

    async def _bad_extents(self, position: int, header: BlockHeader, table: ExtentTable) -> list[BlockFormatError]:
        bad: list[BlockFormatError] = []
        payload = position + header.prefix_length
        step = max(1, self._piece_bytes // header.extent_bytes)
        for first in range(0, header.extent_count, step):
            indexes = range(first, min(first + step, header.extent_count))
            start, end = table.stored_place(indexes.start), table.stored_place(indexes.stop)
            try:
                data = await self._read(payload + start, end - start, f"extent {first}")
            except BlockFormatError as error:
                return [*bad, error]
            if self._executor is None or len(data) <= INLINE_BYTES:
                bad += _bad(header, table, indexes, data)
            else:
                loop = asyncio.get_running_loop()
                bad += await loop.run_in_executor(self._executor, _bad, header, table, indexes, data)
        return bad

    async def _read(self, position: int, length: int, place: str) -> bytes:
        """Bytes of the object, out of those held and as many more as a piece has."""
        at = position - self._held_at
        if not 0 <= at <= at + length <= len(self._held):
            known = self._held[at:] if 0 <= at <= len(self._held) else b""
            begin = position + len(known)
            missing = length - len(known)
            try:
                known += await self._fetch(begin, max(missing, min(self._piece_bytes, self._record.size - begin)))
            except InvalidRangeError:
                # The object may be shorter than it should be: what is there is checked all the same.
                try:
                    known += await self._fetch(begin, missing)
                except InvalidRangeError as error:
                    raise BlockFormatError("the object ends inside of it", place) from error
            self._held, self._held_at, at = known, position, 0
        return self._held[at : at + length]

    async def _fetch(self, position: int, length: int) -> bytes:
        if self._pace is not None:
            await self._pace(length)
        data = await self._storage.get_range(self._record.name, position, length)
        self.bytes_read += length
        return data

    def _finding(self, fault: _Fault) -> Finding:
        wanted = fault.position in self._chunks
        severity = Severity.HARMFUL if wanted else Severity.NOTE
        place = f"object {self._record.name} block at {fault.position} {fault.error.place}"
        return Finding(severity, "block" if wanted else "unused-block", place, fault.error.reason)


def _bad(header: BlockHeader, table: ExtentTable, indexes: range, data: bytes) -> list[BlockFormatError]:
    bad: list[BlockFormatError] = []
    view = memoryview(data)
    begin = table.stored_place(indexes.start)
    for index in indexes:
        try:
            extent = view[table.stored_place(index) - begin : table.stored_place(index + 1) - begin]
            decode_extents(header, table, index, extent)
        except BlockFormatError as error:
            bad.append(error)
    return bad
