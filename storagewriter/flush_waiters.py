"""Callers who wait until what they flushed is in Tier 2."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.metadata import ContainerMetadata


class FlushWaiter:
    """One caller. What it waits for is a snapshot of lengths, which may be added to."""

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}
        """Segment ids with the storage length to be reached."""
        self._all_there = False
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, wanted: Mapping[int, int]) -> None:
        """Wait for these as well. Of what changes before, nothing is noticed."""
        self.wanted.update(wanted)

    async def wait(self) -> None:
        """Return when every segment has its storage length or is deleted; raises what
        `FlushWaiters.fail` is given.
        """
        self._all_there = True
        self.check()
        await self.future

    def check(self) -> None:
        """End the wait if there is nothing left to wait for."""
        if self._all_there and not self.wanted and not self.future.done():
            self.future.set_result(None)


class FlushWaiters:
    """Those of one container. A segment that is deleted waits for nothing."""

    def __init__(self) -> None:
        self._waiters: dict[FlushWaiter, None] = {}
        """In the order in which they came."""

    def begin(self) -> FlushWaiter:
        """A caller, until `end`."""
        waiter = FlushWaiter()
        self._waiters[waiter] = None
        return waiter

    def end(self, waiter: FlushWaiter) -> None:
        """The caller waits no more."""
        del self._waiters[waiter]
        future = waiter.future
        if not future.cancel() and not future.cancelled():
            # Else asyncio complains about a failure that was never retrieved.
            future.exception()

    def settle(self, segment_ids: Iterable[int], metadata: ContainerMetadata) -> None:
        """These segments changed. O(segments x waiters)."""
        if not self._waiters:
            return
        ids = list(segment_ids)
        for waiter in self._waiters:
            wanted = waiter.wanted
            for segment_id in ids:
                length = wanted.get(segment_id)
                segment = metadata.segments.get(segment_id)
                if length is not None and (segment is None or segment.storage_length >= length):
                    del wanted[segment_id]
            waiter.check()

    def fail(self, error: SegmentStoreError) -> None:
        """No wait ends in success any more."""
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
