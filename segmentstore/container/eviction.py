"""Eviction: has segments leave memory that no call uses, so that others find room.

A segment may leave when the catalog has all there is of it: it is flushed, and did not change since
what was last written into the catalog. Rules of this file:

- one that is pinned stays: a call has found it and works on it;
- the first that came is the first to leave, but one that was used since it was last considered is
  passed over (second chance, a clock);
- where none may leave, a flush and a checkpoint are requested, for they let segments leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from durablelog.metadata_updater import MetadataUpdater
from segmentstore.contracts.errors import TooManyActiveSegmentsError
from segmentstore.contracts.metadata import SegmentMetadata

CONSIDERED_IN_A_TURN: Final = 512
"""Segments that are considered without letting others run: about 1 ms."""
ROUNDS_OF_A_TRIM: Final = 8
SPARE_MAX: Final = 256
"""Segments that leave beyond those that must, while some leave anyway."""
FLUSH_WAIT_S: Final = 5.0
"""Of a flush that takes longer, what Tier 2 has by then may leave before the rest is there."""
ROOM_TIMEOUT_S: Final = 30.0
"""A caller is refused after so long a time in which nothing brought a segment nearer to leaving."""
ROOM_TIMEOUT_MAX_S: Final = 120.0
"""And after so long a time in which no segment left, whatever was flushed."""


class Eviction:
    """Of one container; everything on its event loop.

    `active_max` is the largest number of segments in memory; None: there is no bound.
    `request_room(unflushed, unwritten)` says what keeps segments from leaving: bytes that are not
    in Tier 2, changes that are not in the catalog. `on_evicted(segment)` follows each eviction.
    """

    def __init__(
        self,
        updater: MetadataUpdater,
        active_max: int | None,
        request_room: Callable[[bool, bool], None],
        on_evicted: Callable[[SegmentMetadata], None],
    ) -> None:
        self._updater = updater
        self._metadata = updater.metadata
        self.active_max = active_max
        self._request_room = request_room
        self._on_evicted = on_evicted
        self.pins: dict[int, int] = {}
        """Segment id to the number of those who work on the segment."""
        self.creating: dict[str, int] = {}
        """Names of segments that are being created: that they are free is known."""
        self.recent: set[int] = set()
        """Used since they were last considered."""
        self._reserved = 0
        """Room for segments that are being created."""
        self._held = 0
        """Segments in memory and reserved ones, when a call last found that there is no room."""
        self._waiting = 0
        self._returning = False
        """Whether the engine is one of them: a replay left more than the bound."""
        self._turn = asyncio.Lock()
        """One at a time makes room, for all."""
        self._changed = asyncio.Event()
        self._prepared = False
        """Whether room was asked for early, and nothing has been written since."""
        self._unflushed = self._unwritten = 0
        """Segments that the last round met and that cannot leave: their bytes are not in Tier 2, or
        their changes not in the catalog.
        """
        self._in_use = False
        """Whether the last round met one that could leave, but for a pin."""
        self._passed_over = False
        """Whether it met one that could leave, and was used."""
        self._last_left = 0.0
        """When segments last left memory to make room for a call."""
        self._last_advance = 0.0
        """When what kept segments in memory became less: bytes not in Tier 2, or changes not in the
        catalog.
        """
        self._round: list[int] = []
        """Ids of the segments as they were when this round over them began."""
        self._place = 0
        """Of the next one in it."""
        self.evictions = 0

    def pin(self, segment_id: int) -> None:
        """Keep the segment in memory until it is unpinned as often."""
        self.pins[segment_id] = self.pins.get(segment_id, 0) + 1

    def unpin(self, segment_id: int) -> None:
        """End a `pin`; the segment was used."""
        count = self.pins[segment_id] - 1
        if count:
            self.pins[segment_id] = count
            return
        del self.pins[segment_id]
        if segment_id in self._metadata.segments:
            self.recent.add(segment_id)
        if self._in_use:
            self._in_use = False
            self._changed.set()

    def reserve(self) -> None:
        """Count a segment that is being created, behind `make_room`."""
        self._reserved += 1

    def release(self) -> None:
        """End a `reserve`: the segment is there, or was refused."""
        self._reserved -= 1
        # One that is there takes the room that was reserved: no caller gets more room by that.
        if self._waiting and (self._in_use or not self._reserved or self._count < self._held):
            self._changed.set()

    def changed(self) -> None:
        """Segments may leave that could not before. O(1)."""
        self._changed.set()

    def storage_advanced(self, segments_due: int) -> None:
        """Segments have been flushed: a checkpoint lets them leave, if a call waits for room. O(1).

        It is requested when few of the others are due, or on their way. For it would write the
        records of all, and those of the others had to be written once more.
        """
        if self._waiting and self._unflushed:
            self._last_advance = asyncio.get_running_loop().time()
            if segments_due <= self.share(8):
                self._unwritten += self._unflushed
                self._unflushed = 0
                self._request_room(False, True)  # noqa: FBT003

    def written(self) -> None:
        """What changed until the last checkpoint is in the catalog."""
        self._prepared = False
        if self._waiting and self._unwritten:
            self._last_advance = asyncio.get_running_loop().time()
        self.recent.intersection_update(self._metadata.segments)
        self.changed()
        self.trim()

    def evict(self, count: int) -> int:
        """Have at most so many segments leave memory, of the next CONSIDERED_IN_A_TURN; the number
        that did.
        """
        return 0 if self.active_max is None else self._evict_some(count)

    def close(self) -> None:
        """No call waits for room any more, and nothing leaves: the container is about to end."""
        self.active_max = None
        self.changed()

    def lacks(self, count: int) -> bool:
        """Whether segments must leave before `count` more are in memory. O(1)."""
        return self._excess(count) > 0

    def prepare(self) -> None:
        """Have a checkpoint let segments leave before room is needed: there is little. O(1)."""
        if not self._prepared and self._excess(self.share(4)) > 0:
            self._prepared = True
            self._request_room(False, True)  # noqa: FBT003

    async def make_room(
        self, count: int, *, whole: bool = False, begun: float | None = None
    ) -> int:
        """Return when `count` segments more may be in memory, or as many as may be now, one at the
        least; that number. `whole`: fewer only if others wait behind this call. `begun`: since when
        it waits, by the loop's time, if it has waited for something else before.

        For a merge keeps the segments in memory that it has, and waits for room for one more.

        Raises TooManyActiveSegmentsError when none could leave in a while: ROOM_TIMEOUT_S, longer
        as long as a flush advances.
        """
        if not self._waiting and self._evict_for(count):
            return count
        return await self._wait_for_room(count, begun, whole=whole)

    async def return_to_bound(self) -> None:
        """Have the segments leave that a replay left above the bound: nothing else would, in a
        store that takes no calls. Returns when they have left, or none could in a while.
        """
        self._returning = True
        try:
            await self._wait_for_room(0, None, whole=True)
        except TooManyActiveSegmentsError:
            pass  # A call that needs room goes on with it.
        finally:
            self._returning = False

    async def _wait_for_room(self, count: int, begun: float | None, *, whole: bool) -> int:
        self._waiting += 1
        if begun is None:
            begun = asyncio.get_running_loop().time()
        if self._turn.locked() and not self.lacks(1):
            self._changed.set()
        try:
            async with self._turn:
                return await self._make_room(count, begun, whole=whole)
        finally:
            self._waiting -= 1

    def _evict_for(self, count: int) -> bool:
        """Have segments leave of those that are considered next; whether that makes the room."""
        if self._evict_some(self._excess(count) + self._spare):
            self._last_left = asyncio.get_running_loop().time()
        return self._excess(count) <= 0

    async def _make_room(self, count: int, begun: float, *, whole: bool) -> int:
        loop = asyncio.get_running_loop()
        considered = 0
        while (excess := self._excess(count)) > 0:
            if not considered:
                if not self._reserved and loop.time() >= self._deadline(begun):
                    raise self._too_many()
                self._changed.clear()
                self._unflushed = self._unwritten = 0
                self._in_use = self._passed_over = False
            # Twice if the first time found some that were used.
            there = len(self._metadata.segments)
            if considered < (2 * there if self._passed_over else there):
                considered += min(there, CONSIDERED_IN_A_TURN)
                if self._evict_some(excess + self._spare):
                    considered, self._last_left = 0, loop.time()
                await asyncio.sleep(0)
                continue
            considered = 0
            if count > excess and (not whole or self._waiting > 1):
                return count - excess
            # What is being made has an end, which is waited for.
            left_s = ROOM_TIMEOUT_S if self._reserved else self._deadline(begun) - loop.time()
            await self._wait(max(0.0, left_s))
        return count

    def _deadline(self, begun: float) -> float:
        last = max(begun, self._last_left)
        return min(max(last, self._last_advance) + ROOM_TIMEOUT_S, last + ROOM_TIMEOUT_MAX_S)

    def trim(self) -> None:
        """Have some of the segments above the bound leave, if they may. O(1)."""
        for _ in range(ROUNDS_OF_A_TRIM):
            excess = self._excess(0)
            if excess > 0:
                self._evict_some(excess + self._spare)

    def describe(self) -> str | None:
        """One sentence while a call waits for room; None otherwise."""
        if self._waiting == self._returning:
            return None
        return f"{self._too_many()}; calls wait for room"

    def _excess(self, count: int) -> int:
        if self.active_max is None:
            return 0
        return self._count + count - self.active_max

    @property
    def _count(self) -> int:
        return len(self._metadata.segments) + self._reserved

    @property
    def _spare(self) -> int:
        return min(SPARE_MAX, self.share(8))

    def share(self, part: int) -> int:
        """One part of so many of the bound; 0: there is no bound."""
        return (self.active_max or 0) // part

    async def _wait(self, timeout_s: float) -> None:
        self._held = self._count
        # What is being flushed is written behind that, and not before it as well.
        self._request_room(self._unflushed > 0, self._unwritten > self._unflushed)
        try:
            async with asyncio.timeout(min(timeout_s, FLUSH_WAIT_S)):
                await self._changed.wait()
        except TimeoutError:
            if self._unwritten:
                self._request_room(False, True)  # noqa: FBT003

    def _evict_some(self, count: int) -> int:
        """Consider the next segments; the number of those that left."""
        segments, evicted = self._metadata.segments, 0
        written = self._updater.changes.written_generation
        for _ in range(CONSIDERED_IN_A_TURN):
            if evicted == count:
                break
            if self._place == len(self._round):
                self._round, self._place = list(segments), 0
                if not self._round:
                    break
            segment = segments.get(self._round[self._place])
            self._place += 1
            if segment is None:
                continue
            if segment.generation > written:
                # Most of them, while many are appended to: how they were used is of no interest
                # before they are written.
                if segment.flushed:
                    self._unwritten += 1
                else:
                    self._unflushed += 1
            elif self._may_leave(segment):
                self._updater.evict(segment)
                self._on_evicted(segment)
                evicted += 1
        self.evictions += evicted
        return evicted

    def _may_leave(self, segment: SegmentMetadata) -> bool:
        if not segment.flushed:
            self._unflushed += 1
            return False
        segment_id = segment.segment_id
        if segment_id in self.recent:
            self.recent.discard(segment_id)
            self._passed_over = True
            return False
        if not self._updater.may_evict(segment):
            self._unwritten += 1
            return False
        if segment_id in self.pins or segment.name in self.creating:
            self._in_use = True
            return False
        return True

    def _too_many(self) -> TooManyActiveSegmentsError:
        count = len(self._metadata.segments)
        return TooManyActiveSegmentsError(self._metadata.container_id, count, self.active_max or 0)
