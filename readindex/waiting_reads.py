"""WaitingReads: readers at the tail, woken by the next thing that happens to their segment (loop).

A notified reader only checks again: what it finds then, bytes, an end, or no segment at all, is the
truth of that moment. Waiting costs one future and one timer, no task.
"""

from __future__ import annotations

import asyncio


class WaitingReads:
    """Readers by segment, in the order they came."""

    def __init__(self) -> None:
        self._by_segment: dict[int, dict[asyncio.Future[bool], None]] = {}

    @property
    def any(self) -> bool:
        """Whether a reader waits. Mostly none does."""
        return bool(self._by_segment)

    def __len__(self) -> int:
        return sum(map(len, self._by_segment.values()))

    async def wait(self, segment_id: int, seconds: float) -> bool:
        """Wait until the segment changes, at most so long; False if the time passed.

        Cancelling unregisters.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        readers = self._by_segment.setdefault(segment_id, {})
        readers[future] = None
        timer = loop.call_later(seconds, _expire, future)
        try:
            return await future
        finally:
            timer.cancel()
            readers.pop(future, None)
            if not readers and self._by_segment.get(segment_id) is readers:
                del self._by_segment[segment_id]

    def wake(self, segment_id: int) -> None:
        """Wake all readers of a segment to check again. O(readers)."""
        for future in self._by_segment.pop(segment_id, ()):
            if not future.done():
                future.set_result(True)

    def wake_all(self) -> None:
        """Wake every reader to check again."""
        for segment_id in list(self._by_segment):
            self.wake(segment_id)


def _expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
