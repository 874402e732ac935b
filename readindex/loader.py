"""Loader: bytes that are not in memory, from the cache, Tier 2 or Tier 1 (loop).

It gives bytes, or None where the place must be looked up again: what was there when it was asked
for may be gone by the time it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from readindex.cache_manager import CacheManager
from readindex.cache_storage import CacheStorage
from readindex.extent import Extent, Home
from readindex.fetched_extents import FetchedExtents
from readindex.log_rescanner import LogRescanner
from readindex.logged_bytes import LogRange, ranges_of
from readindex.places import Place
from readindex.prefetcher import Prefetcher
from readindex.segment_read_index import SegmentReadIndex
from readindex.spiller import Spiller
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import SegmentMetadata
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError

ReadLog = Callable[[Sequence[LogRange]], Awaitable[Sequence[bytes | None]]]
"""Gives the bytes at places in the log, None for each that is not there whole."""

_CACHED_BLOCKS_PER_READ = 16
CACHED_BLOCKS_PER_UPLOAD = 128
"""The same for who wants very many: each asking of the cache is a way to another thread and
back.
"""


async def read_nothing(ranges: Sequence[LogRange]) -> Sequence[bytes | None]:
    """Of a log that cannot be read by place."""
    return [None] * len(ranges)


class Attempt:
    """What one read has tried in vain, so that it does not try it twice."""

    __slots__ = ("lost_chunk", "refilled")

    def __init__(self) -> None:
        self.lost_chunk: ChunkRecord | None = None
        self.refilled: tuple[int, int] | None = None


class Loader:
    """Of one container. `refill_bytes_max` bounds what one read asks of a rescan of the log."""

    def __init__(
        self,
        cache_manager: CacheManager,
        fetched: FetchedExtents,
        cache: CacheStorage,
        fetcher: Prefetcher,
        log_rescanner: LogRescanner,
        spiller: Spiller,
        read_log: ReadLog,
        refill_bytes_max: int,
    ) -> None:
        self._cache_manager = cache_manager
        self._fetched = fetched
        self._cache = cache
        self._fetcher = fetcher
        self._log_rescanner = log_rescanner
        self._spiller = spiller
        self._read_log = read_log
        self._refill_bytes_max = refill_bytes_max
        self.cache_misses = 0

    async def load(self, place: Place, attempt: Attempt) -> bytes | None:
        """Bytes from the place on, from wherever they are; None if it must be looked up again."""
        if not place.is_missing:
            return await self.load_held(place, attempt)
        segment, _, offset, _ = place
        if attempt.refilled == (segment.segment_id, offset):
            raise not_found_in_log(segment, offset)
        length = min(place.missing_length, self._refill_bytes_max)
        data = await self._log_rescanner.want(segment.segment_id, offset, length)
        if data:
            return data
        attempt.refilled = (segment.segment_id, offset)
        return None

    async def load_held(
        self, place: Place, attempt: Attempt, blocks_max: int = _CACHED_BLOCKS_PER_READ
    ) -> bytes | None:
        """The same of a place that is not missing; at most so many blocks of the cache."""
        pieces = await self.load_pieces(place, attempt, blocks_max)
        if pieces is None:
            return None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def load_pieces(
        self, place: Place, attempt: Attempt, blocks_max: int
    ) -> list[bytes] | None:
        """The same, not joined."""
        segment, index, offset, length = place
        extent = None if index is None else index.find(offset)
        if index is not None and extent is not None:
            if extent.home is not Home.LOGGED:
                return await self._load_cached(index, offset, length, blocks_max)
            return await self._load_logged(index, offset, length, blocks_max)
        data = await self._load_stored(segment, offset, length, attempt)
        return None if data is None else [data]

    async def _load_cached(
        self, index: SegmentReadIndex, offset: int, length: int, blocks_max: int
    ) -> list[bytes] | None:
        run = index.run_of(Home.CACHED, offset, length, blocks_max)
        # Before the await: a merge that is linked meanwhile moves the extents to other offsets.
        skip = offset - run[0].start_offset
        blocks = await self._cache.get([extent.address for extent in run])
        pieces: list[bytes] = []
        for extent, block in zip(run, blocks, strict=True):
            if block is None or len(block) != extent.length:
                self._forget(extent)
                await self._forget_lost()
                break
            # Wanted wholly it is not copied.
            pieces.append(block[skip : skip + length])
            length -= len(pieces[-1])
            skip = 0
        return pieces or None

    async def _load_logged(
        self, index: SegmentReadIndex, offset: int, length: int, blocks_max: int
    ) -> list[bytes] | None:
        run = index.run_of(Home.LOGGED, offset, length, blocks_max)
        wanted = [
            ranges_of(extent, max(offset, extent.start_offset), offset + length) for extent in run
        ]
        found = iter(await self._read_log([each for ranges, _ in wanted for each in ranges]))
        pieces: list[bytes] = []
        whole = True
        for extent, (ranges, before) in zip(run, wanted, strict=True):
            parts = [part for part in islice(found, len(ranges)) if part is not None]
            if len(parts) < len(ranges):
                # All that are lost are forgotten together: one rescan looks for them.
                self._forget(extent)
                whole = False
            elif whole:
                parts[0] = parts[0][before:]
                pieces += parts
        return _cut(pieces, length) or None

    def _forget(self, extent: Extent) -> None:
        self.cache_misses += 1
        if extent.home in (Home.CACHED, Home.LOGGED):
            self._cache_manager.release(extent)

    async def _forget_lost(self) -> None:
        """A loss is rarely alone.

        What is known to be missing is looked for by one rescan, else each by its own.
        """
        while self._cache_manager.release_lost(self._cache.holds):  # noqa: ASYNC110 - a turn for others, no wait
            await asyncio.sleep(0)

    async def _load_stored(
        self, segment: SegmentMetadata, offset: int, length: int, attempt: Attempt
    ) -> bytes | None:
        chunk = segment.find_chunk(offset)
        where = f"segment {segment.name!r} offset {offset}"
        if chunk is None:
            raise DataCorruptionError(
                where, f"below storage length {segment.storage_length}, but in no chunk"
            )
        if chunk == attempt.lost_chunk:
            raise DataCorruptionError(
                f"object {chunk.object_name}", f"it is gone, but {where} is still kept in it"
            )
        try:
            data = await self._fetcher.fetch(segment, chunk, offset, length)
        except ObjectNotFoundError as error:
            # The chunk may have been replaced meanwhile, or before others began this fetch: look it
            # up again.
            if error.name == chunk.object_name:
                attempt.lost_chunk = chunk
            return None
        except InvalidRangeError as error:
            raise DataCorruptionError(
                f"object {chunk.object_name}", f"too short for {where}"
            ) from error
        # After an insert the stock may ask for room in the cache.
        if self._fetched.has_demoted:
            self._spiller.trim()
        return data


def _cut(pieces: list[bytes], length: int) -> list[bytes]:
    """The first `length` bytes of these pieces, of which the last alone may reach further."""
    surplus = sum(map(len, pieces)) - length
    if surplus > 0:
        pieces[-1] = pieces[-1][:-surplus]
    return pieces


def not_found_in_log(segment: SegmentMetadata, offset: int) -> DataCorruptionError:
    """What is neither held, nor in Tier 2, nor found by a rescan."""
    return DataCorruptionError(
        f"segment {segment.name!r} offset {offset}",
        "these bytes are not in Tier 2 yet and a rescan of the log did not find them",
    )
