"""Loader: bytes that are not in memory, from the cache, Tier 2 or Tier 1 (loop).

It gives bytes, or None where the place must be determined again: the bytes may be evicted by the
time it answers.
"""

from __future__ import annotations

from readindex.cached_blocks import CachedBlocks
from readindex.extent import Home
from readindex.fetched_extents import FetchedExtents
from readindex.log_rescanner import LogRescanner
from readindex.logged_bytes import LoggedBytes
from readindex.places import Place
from readindex.prefetcher import KnowChunk, Prefetcher
from readindex.spiller import Spiller
from segmentstore.contracts.chunk_list import UnknownChunksError
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.metadata import SegmentMetadata
from tier2.object_storage import InvalidRangeError, ObjectNotFoundError

_CACHED_BLOCKS_PER_READ = 16
CACHED_BLOCKS_PER_UPLOAD = 128
"""The same for a reader that wants very many: each request to the cache is a way to another thread
and back.
"""


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
        cached: CachedBlocks,
        logged: LoggedBytes,
        fetched: FetchedExtents,
        fetcher: Prefetcher,
        log_rescanner: LogRescanner,
        spiller: Spiller,
        refill_bytes_max: int,
        know_chunk: KnowChunk,
    ) -> None:
        self._cached = cached
        self._logged = logged
        self._fetched = fetched
        self._fetcher = fetcher
        self._log_rescanner = log_rescanner
        self._spiller = spiller
        self._refill_bytes_max = refill_bytes_max
        self._know_chunk = know_chunk

    async def load(self, place: Place, attempt: Attempt) -> bytes | None:
        """Bytes from the place on, from wherever they are; None if the place must be determined
        again.
        """
        if place.is_missing:
            return await self._rescan(place, attempt)
        pieces = await self.load_pieces(place, attempt, _CACHED_BLOCKS_PER_READ)
        if pieces is None:
            return None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def load_pieces(
        self, place: Place, attempt: Attempt, blocks_max: int
    ) -> list[bytes] | None:
        """The same of a place that is not missing, not joined; at most so many blocks of the
        cache.
        """
        segment, index, extent, offset, length = place
        if index is None or extent is None:
            data = await self._load_stored(segment, offset, length, attempt)
            return None if data is None else [data]
        residence = self._logged if extent.home is Home.LOGGED else self._cached
        return await residence.read(index, offset, length, blocks_max)

    async def _rescan(self, place: Place, attempt: Attempt) -> bytes | None:
        segment, offset = place.segment, place.offset
        if attempt.refilled == (segment.segment_id, offset):
            raise not_found_in_log(segment, offset)
        length = min(place.missing_length, self._refill_bytes_max)
        data = await self._log_rescanner.want(segment.segment_id, offset, length)
        if data:
            return data
        attempt.refilled = (segment.segment_id, offset)
        return None

    async def _load_stored(
        self, segment: SegmentMetadata, offset: int, length: int, attempt: Attempt
    ) -> bytes | None:
        try:
            chunk = segment.find_chunk(offset)
        except UnknownChunksError:
            await self._know_chunk(segment.segment_id, offset)
            return None
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
            # The chunk may have been replaced meanwhile, or before others began this fetch: find it
            # again.
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


def not_found_in_log(segment: SegmentMetadata, offset: int) -> DataCorruptionError:
    """What is neither held, nor in Tier 2, nor found by a rescan."""
    return DataCorruptionError(
        f"segment {segment.name!r} offset {offset}",
        "these bytes are not in Tier 2 yet and a rescan of the log did not find them",
    )
