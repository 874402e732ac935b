"""What a task reads of the objects a group lies in: every byte and every header checked, several
requests at a time.

Rules of this file:

- a storage that does not answer is asked again, TRIES times in all; anything else it says is said
  once;
- what lies between two wanted chunks is fetched with them where that costs less than another
  request.

Coroutines over ObjectStorage and Runtime; no pyspark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.runtime import Runtime
from tier2.block_header import BLOCK_BYTES_MIN
from tier2.block_object import (
    HEADER_BYTES,
    NAMED_HEADER_BYTES_MAX,
    BlockFormatError,
    BlockHeader,
    BlockTooShortError,
    block_prefix_length,
    parse_block_header,
    parse_extent_table,
)
from tier2.block_reader import FETCHES_MAX, BlockReader
from tier2.block_runs import (
    GAP_BYTES_MAX,
    BlockRun,
    StretchPayload,
    check_block_identity,
    plan_runs,
)
from tier2.copy_plan import chunks_by_source
from tier2.object_storage import InvalidRangeError, ObjectStorage, StorageUnavailableError
from tier2.spark.compact.group import Group

RUN_BYTES: Final = 16 * 1024 * 1024
"""The most that one request fetches."""
FETCHES_AT_ONCE_MAX: Final = 16
FETCHES_BYTES: Final = 4 * RUN_BYTES
"""Of requests at once, about: many short ones, or few long ones."""
PREFIXES_AT_ONCE: Final = 16
GAP_SHARE: Final = 8
"""A gap this many times smaller than the request that is worth most is fetched rather than left
out.
"""
TRIES: Final = 6
DELAY_MIN_S: Final = 0.25
DELAY_MAX_S: Final = 8.0
"""A storage that does not answer is asked for about 10 s, beyond what the storage itself waits."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
ChunkKey = tuple[str, int, int]
"""Object, place of the block, place in the block's segment: one chunk, whatever segment owns it."""


class GroupSources:
    """The objects of one group, for one attempt at it."""

    def __init__(
        self, storage: ObjectStorage, runtime: Runtime, group: Group, extent_bytes: int
    ) -> None:
        self._storage = storage
        self._runtime = runtime
        self._group = group
        self._extent_bytes = extent_bytes
        self._sources = chunks_by_source(group.runs)
        self._reader = BlockReader(
            storage,
            group.container_id,
            runtime,
            header_cache_blocks=64,
            extent_bytes=extent_bytes,
            object_size=lambda name: group.objects[name].size,
        )

    async def close(self) -> None:
        """Release the thread."""
        await self._reader.close()

    def check_places(self) -> None:
        """Raise DataCorruptionError if the catalog has a block where its object has ended."""
        for name, chunks in self._sources.items():
            size, last = self._group.objects[name].size, chunks[-1].block_offset
            if last + BLOCK_BYTES_MIN > size:
                raise DataCorruptionError(
                    f"object {name}", f"the catalog has a block at {last}, and {size} bytes in all"
                )

    def hold_compressed(self) -> bool:
        """Whether one of them holds more bytes of segments than it has: the others say nothing."""
        return any(
            sum(chunk.length for chunk in chunks) > self._group.objects[name].size
            for name, chunks in self._sources.items()
        )

    async def block_ends(self) -> dict[tuple[str, int], int]:
        """Where each block ends, by its own header; header and extent table of all of them
        checked.
        """
        blocks: dict[tuple[str, int], list[ChunkRecord]] = {}
        for name, chunks in self._sources.items():
            for chunk in chunks:
                blocks.setdefault((name, chunk.block_offset), []).append(chunk)
        ends: dict[tuple[str, int], int] = {}

        async def find_end(place: tuple[str, int]) -> None:
            ends[place] = await with_retries(
                self._runtime, lambda: self._block_end(place, blocks[place])
            )

        await several(find_end, list(blocks), PREFIXES_AT_ONCE)
        return ends

    async def _block_end(self, place: tuple[str, int], chunks: Sequence[ChunkRecord]) -> int:
        name, offset = place
        try:
            header = await self._insisted_header(name, offset, chunks)
        except BlockFormatError as error:
            raise DataCorruptionError(
                f"object {name} block at {offset} {error.place}", error.reason
            ) from error
        return offset + header.block_length

    async def _insisted_header(
        self, name: str, offset: int, chunks: Sequence[ChunkRecord]
    ) -> BlockHeader:
        for _ in range(FETCHES_MAX - 1):
            try:
                return await self._checked_header(name, offset, chunks)
            except BlockFormatError:
                continue  # the transfer may be wrong
        return await self._checked_header(name, offset, chunks)

    async def _checked_header(
        self, name: str, offset: int, chunks: Sequence[ChunkRecord]
    ) -> BlockHeader:
        """The header of a block, checked: that it is the one the chunks mean, its table, that it
        ends within its object.
        """
        longest = max(chunk.length for chunk in chunks)
        guess = (
            block_prefix_length(longest, self._extent_bytes) + NAMED_HEADER_BYTES_MAX - HEADER_BYTES
        )
        data = await self._beginning(name, offset, guess)
        try:
            header = parse_block_header(data)
        except BlockTooShortError as error:
            data = await self._beginning(name, offset, error.needed)
            header = parse_block_header(data)
        for chunk in chunks:
            check_block_identity(header, self._group.container_id, chunk)
        size = self._group.objects[name].size
        if offset + header.block_length > size:
            raise BlockFormatError(
                f"its {header.block_length} bytes reach beyond the object's {size}"
            )
        if len(data) < header.prefix_length:
            data = await self._beginning(name, offset, header.prefix_length)
        parse_extent_table(data, header)
        return header

    async def _beginning(self, name: str, offset: int, length: int) -> bytes:
        try:
            return await self._storage.get_range(
                name, offset, min(length, self._group.objects[name].size - offset)
            )
        except InvalidRangeError as error:
            raise BlockFormatError(f"the object is too short: {error}") from error

    async def download(self) -> dict[ChunkKey, list[tuple[int, Buffer]]]:
        """The bytes of every chunk, in pieces by offset.

        Raises what BlockReader does; so do the other two.
        """
        payloads: dict[ChunkKey, list[tuple[int, Buffer]]] = {}

        async def fetch(run: BlockRun) -> None:
            found = await self._read(run)
            # Views hold all that was fetched: worth it only where that is mostly wanted.
            sparse = 2 * sum(len(payload.data) for payload in found) < run.end - run.start
            for chunk, offset, data in found:
                payloads.setdefault(chunk_key(chunk), []).append(
                    (offset, bytes(data) if sparse else data)
                )

        await self._for_each_run(fetch)
        return payloads

    async def _for_each_run(self, work: Callable[[BlockRun], Awaitable[None]]) -> None:
        gap_bytes = min(GAP_BYTES_MAX, self._storage.get_bytes_best // GAP_SHARE)
        runs = [
            run
            for name, chunks in self._sources.items()
            for run in plan_runs(
                name,
                self._group.objects[name].size,
                chunks,
                extent_bytes=self._extent_bytes,
                run_bytes=RUN_BYTES,
                gap_bytes=gap_bytes,
            )
        ]
        # Stretches of large chunks have no place, and are as long as a request may be.
        size = sum(run.end - run.start or RUN_BYTES for run in runs)
        at_once = min(FETCHES_AT_ONCE_MAX, max(1, FETCHES_BYTES * len(runs) // size))
        await several(work, runs, at_once)

    async def check(self) -> None:
        """Download all there is, check it, keep nothing."""

        async def fetch(run: BlockRun) -> None:
            await self._read(run)

        await self._for_each_run(fetch)

    async def _read(self, run: BlockRun) -> list[StretchPayload]:
        return await with_retries(self._runtime, lambda: self._reader.read_run(run))


async def with_retries(runtime: Runtime, call: Callable[[], Awaitable[_Result]]) -> _Result:
    """What `call` gives, tried again while the storage does not answer: TRIES times in all."""
    backoff = Backoff(runtime.random, min_s=DELAY_MIN_S, max_s=DELAY_MAX_S)
    for _ in range(TRIES - 1):
        try:
            return await call()
        except StorageUnavailableError:
            await asyncio.sleep(backoff.next_s())
    return await call()


async def several(
    work: Callable[[_Item], Awaitable[None]], items: Sequence[_Item], at_once: int
) -> None:
    """Do `work` on each item, so many at once, in order; raises the first error once what had begun
    has ended.
    """
    left = iter(items)
    errors: list[BaseException] = []

    async def worker() -> None:
        for item in left:
            if errors:
                return
            try:
                await work(item)
            except Exception as error:  # noqa: BLE001 - raised below, when no reader is left
                errors.append(error)

    await asyncio.gather(*(worker() for _ in range(min(at_once, len(items)))))
    if errors:
        raise errors[0]


def chunk_key(chunk: ChunkRecord) -> ChunkKey:
    """What a chunk's bytes are kept under."""
    return chunk.object_name, chunk.block_offset, chunk.block_start_offset
