"""BlockReader: reads stretches of chunks out of Tier 2, and gives out no byte whose checks it has not made.

A read fetches the extents that cover the stretch, checks that the block is the one the chunk record means
(container, segment, place, length) and every extent's checksum, and returns exactly the bytes wanted. Rules:

- a check that fails is answered by one more fetch of everything it rests on, then by DataCorruptionError
  naming object, block and part; a store that does not answer is never taken for corruption;
- headers and extent tables are kept in a bounded LRU; many readers of one block share one fetch of them;
- an object is "in use" from before its first byte is asked for until the read has ended, however it ends:
  the garbage collector asks `in_use` before it deletes.

All methods are called on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tier2.block_object import (
    EXTENT_BYTES_DEFAULT,
    HEADER_BYTES,
    BlockFormatError,
    BlockHeader,
    BlockTooShortError,
    ExtentTable,
    block_prefix_length,
    parse_block_header,
    parse_extent_table,
    verify_extents,
)
from tier2.object_storage import InvalidRangeError, ObjectStorage

HEADER_CACHE_BLOCKS = 4096
HEADER_CACHE_BYTES = 16 * 1024 * 1024
"""Extent tables take 8 bytes an extent: 8 KiB for 64 MiB of payload at the default extent size."""
HEADER_COST_BYTES = 512
"""What a cached header costs beside its table."""

OVERFETCH_BYTES = 1024 * 1024
"""Bytes before the wanted ones that are fetched with an unknown header to save a second call."""

LOOP_VERIFY_BYTES = 1280 * 1024
"""Up to here the check runs on the loop, which costs it about what handing it to a thread and back would; read-ahead
pieces of 1 MiB stay below also where they cut through extents."""

_Key = tuple[str, int]


class _Prefix(NamedTuple):
    header: BlockHeader
    table: ExtentTable


class _Piece(NamedTuple):
    """Bytes of a block; `position` counts from the block's beginning."""

    position: int
    data: bytes

    def cut(self, start: int, end: int) -> bytes | memoryview | None:
        """The bytes [start, end) of the block, without a copy; None if they are not all here."""
        first, last = start - self.position, end - self.position
        if first < 0 or last > len(self.data):
            return None
        return self.data if last - first == len(self.data) else memoryview(self.data)[first:last]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReaderStatistics:
    """A snapshot of a reader's numbers, since it was made."""

    reads: int
    bytes_read: int
    header_hits: int
    header_misses: int
    fetched_again: int
    """Reads whose first fetch failed a check."""
    headers_cached: int
    header_bytes_cached: int


class BlockReader:
    """Reads blocks of one container. See the module's head for its rules.

    `extent_bytes` is the size this container's blocks are expected to have; others are read as well, with
    one call more. The cache is bounded by `header_cache_blocks` and `header_cache_bytes`, whichever is less.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        container_id: int,
        runtime: Runtime,
        *,
        header_cache_blocks: int = HEADER_CACHE_BLOCKS,
        header_cache_bytes: int = HEADER_CACHE_BYTES,
        extent_bytes: int = EXTENT_BYTES_DEFAULT,
    ) -> None:
        self._storage = storage
        self._container_id = container_id
        self._executor = runtime.executor("tier2-verify", 1)
        self._cache_blocks = header_cache_blocks
        self._cache_bytes = header_cache_bytes
        self._extent_bytes = extent_bytes
        self._cached: OrderedDict[_Key, _Prefix] = OrderedDict()
        self._cached_bytes = 0
        self._loading: dict[_Key, asyncio.Future[Exception | None]] = {}
        self._in_use: Counter[str] = Counter()
        self._reads = self._bytes_read = self._hits = self._misses = self._again = 0

    async def read(self, chunk: ChunkRecord, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length) of the chunk's segment, `length` >= 1, all inside of the chunk.

        Raises ObjectNotFoundError (resolve the offset again: the object may have been replaced),
        StorageUnavailableError (try again later), DataCorruptionError, ValueError. Costs one ranged GET of the
        extents that cover the stretch; two if the header is not known and lies far before it.
        """
        if length < 1 or offset < chunk.start_offset or offset + length > chunk.end_offset:
            raise ValueError(f"{length} bytes at {offset} are not inside of {chunk}")
        position = offset - chunk.start_offset
        self._reads += 1
        self._in_use[chunk.object_name] += 1
        try:
            try:
                data = await self._read_once(chunk, position, length)
            except BlockFormatError:
                self._again += 1
                self._forget((chunk.object_name, chunk.block_offset))
                data = await self._read_once(chunk, position, length)
        except BlockFormatError as error:
            where = f"object {chunk.object_name} block at {chunk.block_offset} {error.place}"
            raise DataCorruptionError(where, error.reason) from error
        finally:
            self._in_use[chunk.object_name] -= 1
            if not self._in_use[chunk.object_name]:
                del self._in_use[chunk.object_name]
        self._bytes_read += length
        return data

    def in_use(self, object_name: str) -> bool:
        """Whether a read from this object is under way."""
        return object_name in self._in_use

    def objects_in_use(self) -> Counter[str]:
        """Names of the objects being read, with the number of reads. A copy."""
        return self._in_use.copy()

    def statistics(self) -> BlockReaderStatistics:
        """Numbers as of now. O(1)."""
        return BlockReaderStatistics(
            reads=self._reads,
            bytes_read=self._bytes_read,
            header_hits=self._hits,
            header_misses=self._misses,
            fetched_again=self._again,
            headers_cached=len(self._cached),
            header_bytes_cached=self._cached_bytes,
        )

    async def close(self) -> None:
        """Release the thread. The storage belongs to the caller and stays open. Idempotent; no read may be under way."""
        self._executor.shutdown()

    async def _read_once(self, chunk: ChunkRecord, position: int, length: int) -> bytes:
        """One try; `position` counts from the chunk's first byte. Raises BlockFormatError where a check fails."""
        prefix, piece = await self._prefix(chunk, position, length)
        header, table = prefix
        check_block_identity(header, self._container_id, chunk)
        # A chunk may be a part of its block's payload: `block_start_offset` says where it begins.
        position += chunk.block_start_offset - header.start_offset
        first = position // header.extent_bytes
        start = first * header.extent_bytes
        end = min(-(-(position + length) // header.extent_bytes) * header.extent_bytes, header.payload_length)
        stored = None
        if piece is not None:
            stored = piece.cut(header.prefix_length + start, header.prefix_length + end)
        if stored is None:
            stored = await self._fetch(chunk, header.prefix_length + start, end - start, f"extent {first}")
        if len(stored) <= LOOP_VERIFY_BYTES:
            verify_extents(header, table, first, stored)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, verify_extents, header, table, first, stored)
        if length == len(stored) and isinstance(stored, bytes):
            return stored
        return bytes(memoryview(stored)[position - start : position - start + length])

    async def _prefix(self, chunk: ChunkRecord, position: int, length: int) -> tuple[_Prefix, _Piece | None]:
        """Header and table of the chunk's block; with what was fetched for them, if something was."""
        key = (chunk.object_name, chunk.block_offset)
        while True:
            prefix = self._cached.get(key)
            if prefix is not None:
                self._cached.move_to_end(key)
                self._hits += 1
                return prefix, None
            loading = self._loading.get(key)
            if loading is None:
                break
            # Shielded: a reader that is cancelled must not take the others with it. A loader that was
            # cancelled leaves None and an empty cache, and the next one takes its place.
            error = await asyncio.shield(loading)
            if error is not None:
                raise error
        self._misses += 1
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._loading[key] = done
        outcome: Exception | None = None
        try:
            prefix, piece = await self._load(chunk, position, length)
            self._remember(key, prefix)
        except Exception as error:
            outcome = error
            raise
        finally:
            del self._loading[key]
            done.set_result(outcome)
        return prefix, piece

    async def _load(self, chunk: ChunkRecord, position: int, length: int) -> tuple[_Prefix, _Piece]:
        """Fetch header and table, and the extents wanted with them if they are near."""
        piece = await self._fetch_guess(chunk, position, length)
        try:
            header = parse_block_header(piece.data)
        except BlockTooShortError as error:
            piece = _Piece(0, await self._fetch(chunk, 0, error.needed, "header"))
            header = parse_block_header(piece.data)
        # Before its table is fetched: only the right block's word is taken for how long that is.
        check_block_identity(header, self._container_id, chunk)
        if len(piece.data) < header.prefix_length:
            piece = _Piece(0, await self._fetch(chunk, 0, header.prefix_length, "extent table"))
        return _Prefix(header, parse_extent_table(piece.data, header)), piece

    async def _fetch_guess(self, chunk: ChunkRecord, position: int, length: int) -> _Piece:
        """The block's beginning, as far as it would be needed if the chunk were the whole block."""
        extent_bytes = self._extent_bytes
        prefix_length = block_prefix_length(chunk.length, extent_bytes)
        start = position // extent_bytes * extent_bytes
        end = min(-(-(position + length) // extent_bytes) * extent_bytes, chunk.length)
        guess = prefix_length + end if prefix_length + start <= OVERFETCH_BYTES else prefix_length
        try:
            return _Piece(0, await self._storage.get_range(chunk.object_name, chunk.block_offset, guess))
        except InvalidRangeError:
            # Larger extents than expected make a shorter table: the object may end before the guess does.
            return _Piece(0, await self._fetch(chunk, 0, HEADER_BYTES, "header"))

    async def _fetch(self, chunk: ChunkRecord, position: int, length: int, place: str) -> bytes:
        """Bytes of the block from `position`; an object that ends before them is not what was written."""
        try:
            return await self._storage.get_range(chunk.object_name, chunk.block_offset + position, length)
        except InvalidRangeError as error:
            raise BlockFormatError(f"the object is too short: {error}", place) from error

    def _remember(self, key: _Key, prefix: _Prefix) -> None:
        self._cached[key] = prefix
        self._cached_bytes += prefix.table.size + HEADER_COST_BYTES
        while self._cached and (len(self._cached) > self._cache_blocks or self._cached_bytes > self._cache_bytes):
            self._forget(next(iter(self._cached)))

    def _forget(self, key: _Key) -> None:
        prefix = self._cached.pop(key, None)
        if prefix is not None:
            self._cached_bytes -= prefix.table.size + HEADER_COST_BYTES


def check_block_identity(header: BlockHeader, container_id: int, chunk: ChunkRecord) -> None:
    """Raise BlockFormatError unless the block is the one the chunk record means, and holds all of the chunk."""
    if header.container_id != container_id:
        raise BlockFormatError(f"it is of container {header.container_id}, not {container_id}")
    if header.segment_id != chunk.block_segment_id:
        raise BlockFormatError(f"it is of segment {header.segment_id}, not {chunk.block_segment_id}")
    end_offset = chunk.block_start_offset + chunk.length
    if not header.start_offset <= chunk.block_start_offset < end_offset <= header.end_offset:
        raise BlockFormatError(
            f"it holds bytes {header.start_offset} to {header.end_offset} of its segment,"
            f" not {chunk.block_start_offset} to {end_offset}"
        )
