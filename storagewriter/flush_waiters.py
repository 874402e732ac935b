"""Callers who wait until what they flushed is in Tier 2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.metadata import ContainerMetadata


class FlushWaiters:
    """Each waits for a snapshot of lengths, taken when it called; a segment that is deleted waits
    for nothing.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], dict[int, int]] = {}

    async def wait(self, wanted: dict[int, int]) -> None:
        """Return when every segment of `wanted` has that storage length or is deleted; raises what
        `fail` is given.
        """
        if not wanted:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiters[future] = wanted
        try:
            await future
        finally:
            self._waiters.pop(future, None)

    def settle(self, segment_ids: Iterable[int], metadata: ContainerMetadata) -> None:
        """These segments changed. O(segments x waiters)."""
        if not self._waiters:
            return
        ids = list(segment_ids)
        for future, wanted in list(self._waiters.items()):
            for segment_id in ids:
                length = wanted.get(segment_id)
                segment = metadata.segments.get(segment_id)
                if length is not None and (segment is None or segment.storage_length >= length):
                    del wanted[segment_id]
            if not wanted and not future.done():
                future.set_result(None)

    def fail(self, error: SegmentStoreError) -> None:
        """Nobody is served any more."""
        for future in self._waiters:
            if not future.done():
                future.set_exception(error)
