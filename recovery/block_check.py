"""Every block of one Tier-2 object: whether it is the one the chunks mean, and every checksum right.

The object is walked from its first byte as the row of blocks it should be, so that bytes no chunk refers to any
more are checked as well. Rules:

- a fault in a block that a chunk lies in is harmful; in any other it is a note, for nobody will ask for its bytes;
- behind a header that cannot be read the walk goes on at the next place where a chunk says a block begins;
- memory is bounded by one piece of whole extents, whatever the size of the object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator

from recovery.consistency_check import Finding, Severity
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tier2.block_object import (
    HEADER_BYTES,
    BlockFormatError,
    BlockHeader,
    BlockTooShortError,
    ExtentTable,
    parse_block_header,
    parse_extent_table,
    verify_extent,
)
from tier2.block_reader import check_block_identity
from tier2.object_names import parse_object_name
from tier2.object_storage import InvalidRangeError, ObjectStorage

PIECE_BYTES = 1024 * 1024


class BlockCheck:
    """The walk through one object. `chunks` are all that lie in it."""

    def __init__(
        self, storage: ObjectStorage, container_id: int, record: ObjectRecord, chunks: Iterable[ChunkRecord]
    ) -> None:
        self._storage = storage
        self._container_id = container_id
        self._record = record
        self._chunks: dict[int, list[ChunkRecord]] = defaultdict(list)
        for chunk in chunks:
            self._chunks[chunk.block_offset].append(chunk)
        self._findings: list[Finding] = []

    async def run(self) -> list[Finding]:
        """Check everything. Raises ObjectNotFoundError, StorageUnavailableError. Reads the whole object once."""
        position = 0
        while position < self._record.size:
            try:
                header, prefix = await self._header(position)
            except BlockFormatError as error:
                self._found(position, error)
                following = [place for place in self._chunks if place > position]
                if not following:
                    break
                position = min(following)
                continue
            await self._check_block(position, header, prefix)
            end = position + header.block_length
            for place in sorted(place for place in self._chunks if position < place < end):
                self._found(place, BlockFormatError(f"it would begin inside of the block at {position}"))
            position = end
        return self._findings

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

    async def _check_block(self, position: int, header: BlockHeader, prefix: bytes) -> None:
        try:
            self._check_identity(position, header)
            if len(prefix) < header.prefix_length:
                prefix = await self._read(position, header.prefix_length, "extent table")
            table = parse_extent_table(prefix, header)
        except BlockFormatError as error:
            self._found(position, error)
            return
        bad: BlockFormatError | None = None
        count = 0
        async for found in self._bad_extents(position, header, table):
            bad = bad or found
            count += 1
        if bad is not None:
            more = f" (and {count - 1} more extents of it)" if count > 1 else ""
            self._found(position, BlockFormatError(bad.reason + more, bad.place))

    def _check_identity(self, position: int, header: BlockHeader) -> None:
        if header.container_id != self._container_id:
            raise BlockFormatError(f"it is of container {header.container_id}, not {self._container_id}")
        named = parse_object_name(self._record.name)
        # Blocks may be copied on into later objects, never back into earlier ones.
        if named is not None and header.epoch > named.epoch:
            raise BlockFormatError(f"it is of epoch {header.epoch}, and its object of epoch {named.epoch}")
        for chunk in self._chunks.get(position, ()):
            check_block_identity(header, self._container_id, chunk)

    async def _bad_extents(
        self, position: int, header: BlockHeader, table: ExtentTable
    ) -> AsyncIterator[BlockFormatError]:
        step = max(1, PIECE_BYTES // header.extent_bytes)
        place = position + header.prefix_length
        for first in range(0, header.extent_count, step):
            indexes = range(first, min(first + step, header.extent_count))
            length = sum(map(header.extent_length, indexes))
            try:
                data = memoryview(await self._read(place, length, f"extent {first}"))
            except BlockFormatError as error:
                yield error
                return
            place += length
            for bad in _verify(header, table, indexes, data):
                yield bad

    async def _read(self, position: int, length: int, place: str) -> bytes:
        try:
            return await self._storage.get_range(self._record.name, position, length)
        except InvalidRangeError as error:
            raise BlockFormatError("the object ends inside of it", place) from error

    def _found(self, position: int, error: BlockFormatError) -> None:
        wanted = position in self._chunks
        severity = Severity.HARMFUL if wanted else Severity.NOTE
        place = f"object {self._record.name} block at {position} {error.place}"
        self._findings.append(Finding(severity, "block" if wanted else "unused-block", place, error.reason))


def _verify(header: BlockHeader, table: ExtentTable, indexes: range, data: memoryview) -> Iterator[BlockFormatError]:
    position = 0
    for index in indexes:
        end = position + header.extent_length(index)
        try:
            verify_extent(header, table, index, data[position:end])
        except BlockFormatError as error:
            yield error
        position = end
