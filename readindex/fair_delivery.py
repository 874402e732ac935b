"""FairDelivery: fetched bytes are handed out in portions, so that appends get their turns of the
loop (loop).

A reader that goes through fetched bytes finds them all in memory and would run on without ever
giving the loop away. 64 MiB of copies are a pause of 10 ms for every append. And where the loop
never rests, the threads that write the log wait for the interpreter lock. Rules:

- delivered bytes are counted; a reader that takes more than what is left of a turn's portion waits,
  first come first served;
- each turn admits as many as make up a portion, so many readers advance alike;
- while appends arrive (their number has grown since a moment ago), the next portion comes only
  after a pause as long as the last one took, at least `PAUSE_S`. Readers then have at most half of
  the loop, however slow the machine, and the rest is a real pause;
- a reader waits for nothing but turns and that pause, and closing admits all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

PAUSE_S = 0.001
"""The resolution of an event loop's timer."""
WRITING_S = 0.1
"""Appends go on if there was one within this time."""
_READS_PER_TURN = 64
"""A read counts at least as this part of a portion: small reads cost by the call."""


class FairDelivery:
    """`turn_bytes` are handed out in a turn. `appended()` grows with every append."""

    def __init__(self, turn_bytes: int, appended: Callable[[], int]) -> None:
        self._turn_bytes = turn_bytes
        self._least = max(1, turn_bytes // _READS_PER_TURN)
        self._appended = appended
        self._appended_last = 0
        self._written_s = self._asked_s = float("-inf")
        self._spent = 0
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._next: asyncio.Handle | None = None
        self._begun_s = 0.0
        self._closed = False
        self.pauses = 0

    def spend(self, count: int) -> bool:
        """Count bytes that are handed out now; True if their reader has to `give_way` before it
        goes on.
        """
        if self._closed:
            return False
        self._taken = max(count, self._least)
        self._spent += self._taken
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)
        return self._spent > self._turn_bytes or bool(self._waiting)

    async def give_way(self) -> None:
        """Wait for a turn with room; to be awaited right after the `spend` that asked for it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, self._taken))
        self.pauses += 1
        await future

    def close(self) -> None:
        """Resume all readers that wait. Idempotent."""
        self._closed = True
        if self._next is not None:
            self._next.cancel()
            self._next = None
        while self._waiting:
            _resume(self._waiting.popleft()[0])

    def _turn(self) -> None:
        """Hand out a portion; what has been spent without asking is forgiven."""
        loop = asyncio.get_running_loop()
        self._spent = 0
        self._begun_s = loop.time()
        if not self._waiting:
            self._next = None
            return
        released = 0
        while self._waiting and released < self._turn_bytes:
            future, count = self._waiting.popleft()
            if not future.done():
                released += count
                self._spent += count
            _resume(future)
        # Behind those just woken in the same turn: when it runs they have done what they do with
        # their bytes.
        self._next = loop.call_soon(self._handed_out)

    def _handed_out(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        appended = self._appended()
        if appended != self._appended_last:
            self._appended_last = appended
            if now_s - self._asked_s <= WRITING_S:
                # Appends since an older check may be over by now.
                self._written_s = now_s
        self._asked_s = now_s
        if now_s - self._written_s <= WRITING_S:
            self._next = loop.call_later(max(PAUSE_S, now_s - self._begun_s), self._turn)
        else:
            self._next = loop.call_soon(self._turn)


def _resume(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
