"""Which requests go on while the throttle holds callers back: those of segments that use little.

Pure.

Back-pressure is of the whole container, but mostly one segment's doing. Requests that wait are
sorted then: those of segments far below the mean of un-flushed bytes are admitted, the others are
set aside until the throttle lets them through. Rules of this file:

- requests of one segment stay in the order of their calls: behind one that is set aside all of its
  segment are;
- a merge is of both its segments; a creation stays behind every operation that is set aside, for it
  may need its name;
- admitted bytes of segments that use little never exceed the room that is left below the bound;
- operations without data are admitted; where the log has no room, only those that release data,
  within a bound;
- work is for each request: O(1) when it comes, and at most `CHECKS_MAX` requests again at the begin
  of a pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from durablelog.frame_requests import Request
from durablelog.operations import (
    CreateOperation,
    DeleteOperation,
    MergeOperation,
    TruncateOperation,
)

CHECKS_MAX: Final = 1024
"""Requests set aside, the oldest, that are checked again when a pause begins: their segments may
use little by now.
"""

RELIEF_BYTES: Final = 256
"""What a deletion or a truncation takes of the log at most, alone in its frame."""


class FairAdmission:
    """Sorts what waits.

    `unflushed_of(segment_id)` is the bytes of a segment that are not in Tier 2.
    """

    def __init__(self, unflushed_of: Callable[[int], int]) -> None:
        self._unflushed_of = unflushed_of
        self.admitted: deque[Request] = deque()
        """To be packed next, in this order."""
        self.deferred: deque[Request] = deque()
        """Held back, in the order of the calls."""
        self._counts: dict[int, int] = {}
        """Requests in `deferred` by segment."""
        self._operations = 0
        """Requests in `deferred` that are no appends."""
        self._spent: dict[int, int] = {}
        """Bytes admitted by segment since the pause began."""
        self._room = self._fair = 0
        self._relief: int | None = None
        self._moving: list[Request] = []
        """On their way within `begin`: what raises there, such as a signal handler, loses none."""

    def __len__(self) -> int:
        return len(self.admitted) + len(self.deferred)

    def begin(self, room_bytes: int, fair_bytes: int, relief_bytes: int | None = None) -> None:
        """A pause begins: `room_bytes` may be admitted in all, `fair_bytes` of a segment, what is
        un-flushed included.

        `relief_bytes`: the log has no room, and deletions and truncations may take so much of it,
        all else nothing.
        """
        self._room, self._fair, self._relief = room_bytes, fair_bytes, relief_bytes
        self._spent.clear()
        oldest = self._moving = list(islice(self.deferred, CHECKS_MAX))
        for _ in oldest:
            self.deferred.popleft()
        kept: list[Request] = []
        blocked: set[int] = set()
        operations = 0
        for request in oldest:
            segments = _segments(request)
            follows = not blocked.isdisjoint(segments) or (operations > 0 and _is_creation(request))
            if not follows and self._admits(request):
                self._forget(request)
                self.admitted.append(request)
                continue
            kept.append(request)
            blocked.update(segments)
            operations += not isinstance(request, tuple)
        self.deferred.extendleft(reversed(kept))
        self._moving = []

    def sort(self, queue: deque[Request]) -> int:
        """Take all that waits in `queue`: it is admitted or set aside. Gives the bytes admitted.

        Between `begin` and the end of the pause.
        """
        counts, room = self._counts, self._room
        while queue:
            request = queue[0]
            segments = _segments(request)
            follows = any(segment_id in counts for segment_id in segments)
            follows |= self._operations > 0 and _is_creation(request)
            # It leaves the queue last: what raises before loses none.
            if not follows and self._admits(request):
                self.admitted.append(request)
                queue.popleft()
                continue
            self.deferred.append(request)
            queue.popleft()
            self._operations += not isinstance(request, tuple)
            for segment_id in segments:
                counts[segment_id] = counts.get(segment_id, 0) + 1
        return room - self._room

    def release(self, length: float) -> int:
        """The throttle lets a round through: admit the oldest that are set aside, until they have
        `length` bytes. Gives the bytes they have.

        Those whose callers were cancelled cost nothing.
        """
        released = 0
        while self.deferred and released < length:
            request = self.deferred[0]
            self._forget(request)
            self.admitted.append(request)
            self.deferred.popleft()
            if isinstance(request, tuple) and not request[2].done():
                released += len(request[1])
        self._room -= released
        return released

    def take_all(self) -> list[Request]:
        """Give back everything, and be empty."""
        requests = [*self.admitted, *self._moving, *self.deferred]
        self.admitted.clear()
        self.deferred.clear()
        self._counts.clear()
        self._operations = 0
        return requests

    def _admits(self, request: Request) -> bool:
        if self._relief is not None:
            return self._lowers_pressure(request)
        if not isinstance(request, tuple):
            # Without data: it takes no room, and some of these make room.
            return True
        segment_id, size = request[0], len(request[1])
        spent = self._spent.get(segment_id, 0) + size
        if size > self._room or self._unflushed_of(segment_id) + spent > self._fair:
            return False
        self._spent[segment_id] = spent
        self._room -= size
        return True

    def _lowers_pressure(self, request: Request) -> bool:
        """With a log that has no room: whether the operation releases data, and has its place."""
        assert self._relief is not None
        makes_room = not isinstance(request, tuple) and isinstance(
            request.operation, DeleteOperation | TruncateOperation
        )
        if not makes_room or self._relief < RELIEF_BYTES:
            return False
        self._relief -= RELIEF_BYTES
        return True

    def _forget(self, request: Request) -> None:
        """It is in `deferred` no longer."""
        self._operations -= not isinstance(request, tuple)
        for segment_id in _segments(request):
            left = self._counts[segment_id] - 1
            if left:
                self._counts[segment_id] = left
            else:
                del self._counts[segment_id]


def _segments(request: Request) -> tuple[int, ...]:
    if isinstance(request, tuple):
        return (request[0],)
    operation = request.operation
    if isinstance(operation, MergeOperation):
        return (operation.target_id, operation.source_id)
    segment_id = getattr(operation, "segment_id", None)
    # Of a creation it is not known yet.
    return (
        (segment_id,)
        if segment_id is not None and not isinstance(operation, CreateOperation)
        else ()
    )


def _is_creation(request: Request) -> bool:
    return not isinstance(request, tuple) and isinstance(request.operation, CreateOperation)
