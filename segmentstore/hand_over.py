"""HandOver: the calls on their way from callers' threads to the loop of a blocking store, in order.

It is bounded: a thread that hands over appends without waiting for them waits here while the loop
does not keep up.

Callers' threads take no lock but one of their own, and count nothing: an exception of a signal
handler leaves nothing behind. Each step of a caller is one call in C.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_PLACES: Final = 4096
"""Callers wait where so many are taken, and until half of them are free."""

_PLACE_BYTES: Final = 16 * 1024
"""A call takes one place, and another one for each so many bytes."""

_WAIT_S: Final = 5.0
"""Longest wait of a caller, which then goes on all the same. The loop's thread may itself wait in a
done-callback for a lock that this caller holds.
"""


class HandOver(Generic[T]):
    """A queue of items of many threads for one, the taker."""

    def __init__(self) -> None:
        self._places: deque[T | None] = deque()
        """An item, which is not None, and None for each further place it takes."""
        self._waiters: deque[threading.Lock] = deque()
        """Taken; released when there is room."""
        self.closed = False
        """The taker takes nothing that is put here from now on."""

    # --- in the callers' threads ------------------------------------------------------------------

    def wait(self) -> None:
        """Return when there is room, or when it is closed."""
        if len(self._places) < _PLACES:
            return
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        # Room that became free before the waiter was in the queue has not woken this caller.
        if len(self._places) >= _PLACES and not self.closed:
            waiter.acquire(timeout=_WAIT_S)

    def put(self, item: T, size: int) -> None:
        """Put it last, whatever is there; `size` in bytes."""
        if size < _PLACE_BYTES:
            self._places.append(item)
        else:
            # At once: none of another thread comes between an item and its places.
            self._places.extend((item, *(None,) * min(size // _PLACE_BYTES, _PLACES)))

    # --- in the taker's thread --------------------------------------------------------------------

    def take(self) -> T | None:
        """Take the first; None if there is none."""
        places = self._places
        if not places:
            return None
        first = places.popleft()
        while places and places[0] is None:
            places.popleft()
        if self._waiters and len(places) <= _PLACES // 2:
            self._wake()
        return first

    def close(self) -> list[T]:
        """The taker takes no more: from here on no caller waits. Gives what is here."""
        self.closed = True
        self._wake()
        left = []
        while self._places:
            place = self._places.popleft()
            if place is not None:
                left.append(place)
        return left

    def _wake(self) -> None:
        for _ in range(len(self._waiters)):
            self._waiters.popleft().release()
