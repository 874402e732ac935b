"""The walk through one object: every block of it, whether it is the one the chunks mean, and every
checksum right.

The object is walked from its first byte as the row of blocks it should be, so that bytes no chunk
refers to any more are checked as well. Rules of this file:

- a fault says whether a chunk lies in its block: no reader asks for the bytes of any other;
- a block that fails a check is read twice more from the store before that is believed: two
  transfers may go wrong;
- behind a header that cannot be read the walk goes on at the next place where a chunk says a block
  begins;
- of bodies every byte is fetched once, in large ranges that end where an extent ends. The one
  before is released first, so that memory is bounded by one, whatever the size of the object;
- nothing is copied but the extent that lies across two pieces, or all of a piece that begins within
  a header.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord, ObjectRecord
from tier2.block_object import (
    CODEC_NONE,
    HEADER_BYTES,
    NAMED_HEADER_BYTES_MAX,
    BlockFormatError,
    BlockHeader,
    BlockIdentityError,
    BlockTooShortError,
    ExtentTable,
    decode_extents,
    parse_block_header,
    parse_extent_table,
    verify_extent,
)
from tier2.block_reader import FETCHES_MAX
from tier2.block_runs import check_block_identity
from tier2.object_names import parse_object_name
from tier2.object_storage import InvalidRangeError, ObjectStorage

PIECE_BYTES = 4 * 1024 * 1024
PIECE_SLACK = 8
"""A piece may be longer by this part of it."""
INLINE_BYTES = 64 * 1024
"""Stored bytes up to this are checked on the loop."""
NEAR_BYTES = 128 * 1024
"""Of headers alone: blocks shorter than this on the average are fetched with what lies between
their headers.
"""
HEADERS_PIECE_BYTES = 1024 * 1024


class ObjectEndError(BlockFormatError):
    """The object is over before the block is."""


class BlockFault(NamedTuple):
    """One block that is not what it should be."""

    position: int
    """Of the block in its object."""
    chunks: tuple[ChunkRecord, ...]
    """Those that lie in it by their own word; empty: no reader asks for its bytes."""
    error: BlockFormatError
    """BlockIdentityError: it is another's block.

    BlockChecksumError: its bytes are not those that were written.
    """


class BlockWalk:
    """The walk through one object. `chunks` are all that lie in it.

    `bodies=False` checks the headers alone. With an `executor` checksums and decompression run
    there; `pace` is awaited before each fetch, with its bytes. `piece_bytes` may be exceeded by an
    eighth and an extent.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        container_id: int,
        record: ObjectRecord,
        chunks: Iterable[ChunkRecord],
        *,
        bodies: bool = True,
        piece_bytes: int = PIECE_BYTES,
        executor: Executor | None = None,
        pace: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._storage = storage
        self._container_id = container_id
        self._record = record
        self._bodies = bodies
        self._piece_bytes = piece_bytes
        self._executor = executor
        self._pace = pace
        self._chunks: dict[int, list[ChunkRecord]] = defaultdict(list)
        for chunk in chunks:
            self._chunks[chunk.block_offset].append(chunk)
        self._places = sorted(self._chunks)
        if bodies:
            # Pieces of one length, a little longer, rather than a request for the little that is
            # left at the end.
            most = piece_bytes + piece_bytes // PIECE_SLACK
            self._piece_bytes = -(-record.size // max(1, -(-record.size // most)))
        else:
            near = record.size <= NEAR_BYTES * len(self._places)
            self._piece_bytes = min(
                piece_bytes, HEADERS_PIECE_BYTES if near else NAMED_HEADER_BYTES_MAX
            )
        self._held = b""
        self._held_at = 0
        self.blocks = 0
        """Blocks found so far."""
        self.bytes_read = 0

    async def run(self) -> list[BlockFault]:
        """Check everything. Raises ObjectNotFoundError, StorageUnavailableError.

        Reads the whole object once; of headers alone, one small piece for each block or large ones
        over many.
        """
        faults: list[BlockFault] = []
        position = 0
        while position < self._record.size:
            blocks = self.blocks
            end, found = await self._block(position)
            for _ in range(FETCHES_MAX - 1):
                if not found:
                    break
                self._held, self._held_at, self.blocks = b"", 0, blocks
                end, found = await self._block(position)
            faults += found
            if end is None:
                following = bisect_right(self._places, position)
                end = (
                    self._places[following] if following < len(self._places) else self._record.size
                )
            position = end
        return faults

    def _fault(self, position: int, error: BlockFormatError) -> BlockFault:
        return BlockFault(position, tuple(self._chunks.get(position, ())), _alone(error))

    async def _block(self, position: int) -> tuple[int | None, list[BlockFault]]:
        """Where the block at `position` ends, None if it does not say; and what is wrong with
        it.
        """
        try:
            header = await self._header(position)
        except BlockFormatError as error:
            return None, [self._fault(position, error)]
        self.blocks += 1
        end = position + header.block_length
        try:
            faults = await self._body(position, header)
        except BlockFormatError as error:
            faults = [self._fault(position, error)]
        faults += [
            self._fault(
                place, BlockIdentityError(f"it would begin inside of the block at {position}")
            )
            for place in self._places[
                bisect_right(self._places, position) : bisect_left(self._places, end)
            ]
        ]
        return end, faults

    async def _header(self, position: int) -> BlockHeader:
        """The header of the block at `position`. Raises BlockFormatError."""
        data = await self._read(position, min(HEADER_BYTES, self._record.size - position), "header")
        try:
            header = parse_block_header(data)
        except BlockTooShortError as error:
            data = await self._read(position, error.needed, "header")
            header = parse_block_header(data)
        if position + header.block_length > self._record.size:
            raise BlockFormatError(
                f"its {header.block_length} bytes reach beyond the object's end", "object"
            )
        return header

    async def _body(self, position: int, header: BlockHeader) -> list[BlockFault]:
        """What is wrong behind a header that can be read.

        Raises BlockFormatError if that ends the matter.
        """
        self._check_identity(position, header)
        if not self._bodies:
            return []
        table = parse_extent_table(
            await self._read(position, header.prefix_length, "extent table"), header
        )
        bad = await self._bad_extents(position, header, table)
        if not bad:
            return []
        more = f" (and {len(bad) - 1} more extents of it)" if len(bad) > 1 else ""
        return [self._fault(position, type(bad[0])(bad[0].reason + more, bad[0].place))]

    def _check_identity(self, position: int, header: BlockHeader) -> None:
        if header.container_id != self._container_id:
            raise BlockIdentityError(
                f"it is of container {header.container_id}, not {self._container_id}"
            )
        named = parse_object_name(self._record.name)
        # Blocks may be copied on into later objects, never back into earlier ones.
        if named is not None and header.epoch > named.epoch:
            raise BlockIdentityError(
                f"it is of epoch {header.epoch}, and its object of epoch {named.epoch}"
            )
        for chunk in self._chunks.get(position, ()):
            check_block_identity(header, self._container_id, chunk)

    async def _bad_extents(
        self, position: int, header: BlockHeader, table: ExtentTable
    ) -> list[BlockFormatError]:
        bad: list[BlockFormatError] = []
        payload = position + header.prefix_length
        step = -(-self._piece_bytes // header.extent_bytes)
        first = 0
        while first < header.extent_count:
            last = self._last_held(payload, header, table, first)
            reach = None
            if last <= first:
                until = min(first + step, header.extent_count)
                # Behind the block's last extent the next block is fetched as well.
                reach = payload + table.stored_place(until) if until < header.extent_count else None
                last = first + 1 if payload + table.stored_place(first) < self._held_end else until
            start, end = table.stored_place(first), table.stored_place(last)
            try:
                data = await self._read(
                    payload + start, end - start, f"extent {first}", reach=reach, again=False
                )
            except BlockFormatError as error:
                return [*bad, error]
            if self._executor is None or len(data) <= INLINE_BYTES:
                bad += _bad(header, table, range(first, last), data)
            else:
                loop = asyncio.get_running_loop()
                bad += await loop.run_in_executor(
                    self._executor, _bad, header, table, range(first, last), data
                )
            del data  # It would keep the piece while the next one is fetched.
            first = last
        return bad

    @property
    def _held_end(self) -> int:
        return self._held_at + len(self._held)

    def _last_held(self, payload: int, header: BlockHeader, table: ExtentTable, first: int) -> int:
        """The extent behind the last one, from `first` on, all of whose bytes are held."""
        held = self._held_end - payload
        return (
            first
            - 1
            + bisect_right(range(first, header.extent_count + 1), held, key=table.stored_place)
        )

    async def _read(
        self,
        position: int,
        length: int,
        place: str,
        *,
        reach: int | None = None,
        again: bool = True,
    ) -> memoryview:
        """Bytes of the object, out of those held and as many more as it takes to `reach`; None: as
        a piece has.

        Unless they may be asked for `again`, what was held of them is released.
        """
        at = position - self._held_at
        if 0 <= at <= at + length <= len(self._held):
            return memoryview(self._held)[at : at + length]
        known = self._held[at:] if 0 <= at <= len(self._held) else b""
        self._held, self._held_at = known, position
        begin = position + len(known)
        missing = length - len(known)
        most = max(
            missing,
            min(self._piece_bytes, self._record.size - begin) if reach is None else reach - begin,
        )
        try:
            data = await self._fetch(begin, most)
        except InvalidRangeError:
            # The object may be shorter than it should be: what is there is checked all the same.
            try:
                data = await self._fetch(begin, missing)
            except InvalidRangeError as error:
                raise ObjectEndError("the object ends inside of it", place) from error
        if known and not again:
            self._held, self._held_at = data, begin
            return memoryview(b"".join((known, memoryview(data)[:missing])))
        self._held = known + data if known else data
        return memoryview(self._held)[:length]

    async def _fetch(self, position: int, length: int) -> bytes:
        if self._pace is not None:
            await self._pace(length)
        data = await self._storage.get_range(self._record.name, position, length)
        self.bytes_read += length
        return data


def _bad(
    header: BlockHeader, table: ExtentTable, indexes: range, data: Buffer
) -> list[BlockFormatError]:
    bad: list[BlockFormatError] = []
    view = memoryview(data)
    begin = start = table.stored_place(indexes.start)
    check: Callable[[BlockHeader, ExtentTable, int, Buffer], object] = (
        verify_extent if header.codec == CODEC_NONE else decode_extents
    )
    for index in indexes:
        end = table.stored_place(index + 1)
        try:
            check(header, table, index, view[start - begin : end - begin])
        except BlockFormatError as error:
            bad.append(_alone(error))
        start = end
    return bad


def _alone(error: BlockFormatError) -> BlockFormatError:
    """Without the places it came through, which hold the bytes."""
    return error.with_traceback(None)
