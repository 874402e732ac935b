"""BlockReader: reads stretches of chunks out of Tier 2, and gives out no byte whose checks it has
not made.

A read fetches the extents that cover the range, and checks that the block is the one the chunk
record means (container, segment, place, length). It checks every extent's checksum, and returns
exactly the bytes wanted. Rules:

- a check that fails is answered by fetching everything it rests on again, twice: two transfers in a
  row may go wrong. Then by DataCorruptionError naming object, block and part; a store that does not
  answer is never taken for corruption;
- headers and extent tables are kept in a bounded LRU; many readers of one block share one fetch of
  them;
- where a header ends and how much a payload shrank is not known before it is read: the most is
  fetched at once, within the object;
- an object is "in use" from before its first byte is asked for until the read has ended, however it
  ends: the garbage collector asks `in_use` before it deletes.

All methods are called on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tier2.block_object import (
    CODEC_NONE,
    EXTENT_BYTES_DEFAULT,
    HEADER_BYTES,
    NAMED_HEADER_BYTES_MAX,
    BlockFormatError,
    BlockTooShortError,
    block_prefix_length,
    decode_extents,
    parse_block_header,
    parse_extent_table,
)
from tier2.block_runs import (
    RUN_BYTES_DEFAULT,
    BlockRun,
    CutRun,
    StretchPayload,
    check_block_identity,
    cut_nothing,
    cut_run,
    extents_end,
    plan_runs,
)
from tier2.object_storage import InvalidRangeError, ObjectStorage
from tier2.prefix_cache import Prefix, PrefixCache, PrefixKey

HEADER_CACHE_BLOCKS = 4096
HEADER_CACHE_BYTES = 16 * 1024 * 1024
"""Extent tables take 8 bytes an extent: 8 KiB for 64 MiB of payload at the default extent size."""

FETCHES_MAX = 3
"""Of one stretch, before what comes is called corrupt."""

OVERFETCH_BYTES = 1024 * 1024
"""Bytes before the wanted ones that are fetched with an unknown header to save a second call."""

LOOP_VERIFY_BYTES = 1280 * 1024
"""Up to here the check runs on the loop, which costs it about what handing it to a thread and back
would. Read-ahead units of 1 MiB stay below also where they cut through extents.
"""

LOOP_DECOMPRESS_BYTES = 64 * 1024
"""The same for payload that comes out of a decompressor."""


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


class BlockReaderStatistics(NamedTuple):
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

    `extent_bytes` is the size this container's blocks are expected to have; others are read as
    well, with one call more. The cache is bounded by `header_cache_blocks` and
    `header_cache_bytes`, whichever is less.
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
        object_size: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        """`extent_bytes` is what most blocks have; `object_size` gives an object's size in bytes
        where that is known.

        Both only save fetches.
        """
        self._storage = storage
        self._container_id = container_id
        self._executor = runtime.executor("tier2-verify", 1)
        self._extent_bytes = extent_bytes
        self._object_size = object_size
        self._cache = PrefixCache(header_cache_blocks, header_cache_bytes)
        self._loading: dict[PrefixKey, asyncio.Future[Exception | None]] = {}
        self._in_use: Counter[str] = Counter()
        self._reads = self._bytes_read = self._hits = self._misses = self._again = 0

    async def read(self, chunk: ChunkRecord, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length) of the chunk's segment, `length` >= 1, all inside of
        the chunk.

        Raises ObjectNotFoundError (resolve the offset again: the object may have been replaced),
        StorageUnavailableError (try again later), DataCorruptionError, ValueError. Costs one ranged
        GET of the extents that cover the stretch; two if the header is not known and lies far
        before it.
        """
        if length < 1 or offset < chunk.start_offset or offset + length > chunk.end_offset:
            raise ValueError(f"{length} bytes at {offset} are not inside of {chunk}")
        position = offset - chunk.start_offset
        self._reads += 1
        self._hold(chunk.object_name)
        try:
            data = await self._read_patiently(chunk, position, length)
        except BlockFormatError as error:
            where = f"object {chunk.object_name} block at {chunk.block_offset} {error.place}"
            raise DataCorruptionError(where, error.reason) from error
        finally:
            self._release(chunk.object_name)
        self._bytes_read += length
        return data

    def plan(
        self,
        object_name: str,
        object_size: int,
        chunks: Sequence[ChunkRecord],
        run_bytes: int = RUN_BYTES_DEFAULT,
    ) -> list[BlockRun]:
        """Runs of at most `run_bytes` that cover chunks of one object, sorted by `block_offset`
        (ValueError otherwise).
        """
        return plan_runs(
            object_name, object_size, chunks, extent_bytes=self._extent_bytes, run_bytes=run_bytes
        )

    async def read_run(self, run: BlockRun) -> list[StretchPayload]:
        """The bytes of a run's stretches, in its order; checked, and fetched, as `read` does it.

        One ranged GET; blocks that fail a check in it are read again on their own. Raises what
        `read` raises. What is given out may be views into what was fetched. Holds up to twice the
        run's bytes, with a codec more.
        """
        self._hold(run.object_name)
        try:
            if run.end == run.start:
                return [
                    StretchPayload(chunk, offset, await self.read(chunk, offset, length))
                    for chunk, offset, length in run.stretches
                ]
            payloads, failed, checked_bytes = await self._fetch_run(run)
            self._reads += len(payloads) - len(failed)
            self._bytes_read += checked_bytes
            for number in failed:
                chunk, offset, length = run.stretches[number]
                self._again += 1
                # What it rests on is fetched again too: a block whose header went bad meanwhile
                # is a bad block.
                self._cache.forget((chunk.object_name, chunk.block_offset))
                # The same bytes, the other way.
                data = await self.read(chunk, offset, length)
                payloads[number] = StretchPayload(chunk, offset, data)
            return payloads
        finally:
            self._release(run.object_name)

    async def _fetch_run(self, run: BlockRun) -> CutRun:
        """The payload of each stretch, put together in the thread: they may be very many."""
        try:
            data = await self._storage.get_range(run.object_name, run.start, run.end - run.start)
        except InvalidRangeError:
            return cut_nothing(run)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, cut_run, run, data, self._container_id)

    def _hold(self, object_name: str) -> None:
        self._in_use[object_name] += 1

    def _release(self, object_name: str) -> None:
        self._in_use[object_name] -= 1
        if not self._in_use[object_name]:
            del self._in_use[object_name]

    def in_use(self, object_name: str) -> bool:
        """Whether a read from this object is under way."""
        return object_name in self._in_use

    def statistics(self) -> BlockReaderStatistics:
        """Numbers as of now. O(1)."""
        return BlockReaderStatistics(
            reads=self._reads,
            bytes_read=self._bytes_read,
            header_hits=self._hits,
            header_misses=self._misses,
            fetched_again=self._again,
            headers_cached=len(self._cache),
            header_bytes_cached=self._cache.size,
        )

    async def close(self) -> None:
        """Release the thread.

        The storage belongs to the caller and stays open. Idempotent; no read may be under way.
        """
        self._executor.shutdown()

    async def _read_patiently(self, chunk: ChunkRecord, position: int, length: int) -> bytes:
        """`_read_once`, tried again, FETCHES_MAX times in all; the last failure is raised."""
        for _ in range(FETCHES_MAX - 1):
            try:
                return await self._read_once(chunk, position, length)
            except BlockFormatError:
                self._again += 1
                self._cache.forget((chunk.object_name, chunk.block_offset))
        return await self._read_once(chunk, position, length)

    async def _read_once(self, chunk: ChunkRecord, position: int, length: int) -> bytes:
        """One try; `position` counts from the chunk's first byte.

        Raises BlockFormatError where a check fails.
        """
        prefix, piece = await self._prefix(chunk, position, length)
        header, table = prefix
        check_block_identity(header, self._container_id, chunk)
        # A chunk may be a part of its block's payload: `block_start_offset` says where it begins.
        position += chunk.block_start_offset - header.start_offset
        first, last = position // header.extent_bytes, extents_end(header, position + length)
        start = header.prefix_length + table.stored_place(first)
        end = header.prefix_length + table.stored_place(last)
        stored = piece.cut(start, end) if piece is not None else None
        if stored is None:
            stored = await self._fetch(chunk, start, end - start, f"extent {first}")
        if header.codec == CODEC_NONE:
            inline = len(stored) <= LOOP_VERIFY_BYTES
        else:
            inline = (last - first) * header.extent_bytes <= LOOP_DECOMPRESS_BYTES
        if inline:
            payload = decode_extents(header, table, first, stored)
        else:
            loop = asyncio.get_running_loop()
            payload = await loop.run_in_executor(
                self._executor, decode_extents, header, table, first, stored
            )
        if length == len(payload) and isinstance(payload, bytes):
            return payload
        position -= first * header.extent_bytes
        return bytes(memoryview(payload)[position : position + length])

    async def _prefix(
        self, chunk: ChunkRecord, position: int, length: int
    ) -> tuple[Prefix, _Piece | None]:
        """Header and table of the chunk's block; with what was fetched for them, if something
        was.
        """
        key = (chunk.object_name, chunk.block_offset)
        while True:
            prefix = self._cache.get(key)
            if prefix is not None:
                self._hits += 1
                return prefix, None
            loading = self._loading.get(key)
            if loading is None:
                break
            # Shielded: a reader that is cancelled must not take the others with it. A loader that
            # was cancelled leaves None and an empty cache, and the next one takes its place.
            error = await asyncio.shield(loading)
            if error is not None:
                raise error
        self._misses += 1
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._loading[key] = done
        outcome: Exception | None = None
        try:
            prefix, piece = await self._load(chunk, position, length)
            self._cache.remember(key, prefix)
        except Exception as error:
            outcome = error
            raise
        finally:
            del self._loading[key]
            done.set_result(outcome)
        return prefix, piece

    async def _load(self, chunk: ChunkRecord, position: int, length: int) -> tuple[Prefix, _Piece]:
        """Fetch header and table, and the extents wanted with them if they are near."""
        piece = await self._fetch_guess(chunk, position, length)
        try:
            header = parse_block_header(piece.data)
        except BlockTooShortError as error:
            piece = _Piece(0, await self._fetch(chunk, 0, error.needed, "header"))
            header = parse_block_header(piece.data)
        # Before its table is fetched: only the right block's word is taken for how long that is.
        check_block_identity(header, self._container_id, chunk)
        size = self._object_size(chunk.object_name)
        if size is not None and chunk.block_offset + header.block_length > size:
            raise BlockFormatError(
                f"its {header.block_length} bytes reach beyond the object's {size}"
            )
        if len(piece.data) < header.prefix_length:
            piece = _Piece(0, await self._fetch(chunk, 0, header.prefix_length, "extent table"))
        return Prefix(header, parse_extent_table(piece.data, header)), piece

    async def _fetch_guess(self, chunk: ChunkRecord, position: int, length: int) -> _Piece:
        """The block's beginning, as far as it would be needed if the chunk were the whole block."""
        extent_bytes = self._extent_bytes
        prefix_length = block_prefix_length(chunk.length, extent_bytes)
        start = position // extent_bytes * extent_bytes
        end = min(-(-(position + length) // extent_bytes) * extent_bytes, chunk.length)
        guess = prefix_length + end if prefix_length + start <= OVERFETCH_BYTES else prefix_length
        size = self._object_size(chunk.object_name)
        if size is not None:
            # With room for the longest name. Within the object, of which a compressed block may be
            # the end.
            guess = min(
                guess + NAMED_HEADER_BYTES_MAX - HEADER_BYTES,
                max(size - chunk.block_offset, HEADER_BYTES),
            )
        try:
            return _Piece(
                0, await self._storage.get_range(chunk.object_name, chunk.block_offset, guess)
            )
        except InvalidRangeError:
            # Larger extents than expected make a shorter table: the object may end before the guess
            # does.
            return _Piece(0, await self._fetch(chunk, 0, HEADER_BYTES, "header"))

    async def _fetch(self, chunk: ChunkRecord, position: int, length: int, place: str) -> bytes:
        """Bytes of the block from `position`; an object that ends before them is not what was
        written.
        """
        try:
            return await self._storage.get_range(
                chunk.object_name, chunk.block_offset + position, length
            )
        except InvalidRangeError as error:
            raise BlockFormatError(f"the object is too short: {error}", place) from error
