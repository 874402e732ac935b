"""Trying again: how long a log waits in between, what it says meanwhile, and when it gives up.

Rules of this file:

- every wait says why: `health` has the sentence until what was waited for has come;
- a log that opens gives up after its timeout. A running one never does, but checks its record each
  time, because a process that took the log over has no reason to wait for it;
- a call that leaves something behind each time it is made (a new ledger) is not made again before
  such a check has succeeded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from durablelog.bookkeeper.metadata_node import NodeUnavailableError
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.health import HealthNotes

T = TypeVar("T")

FIRST_S: Final = 0.05
MOST_S: Final = 5.0
"""Of the back-off between tries."""


async def _check_nothing() -> None:
    """Where there is nothing to check."""


async def pause(news: asyncio.Event, seconds: float) -> None:
    """Return when there is news, after so long at the latest."""
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass


class Waiting:
    """One row of tries at one thing; `topic` is its place in the notes.

    `check` is called after each pause and may raise. A node that does not answer is no reason to
    stop waiting, and none to delay the next try, unless `again` is set. `deadline`: loop time at
    which TierUnavailableError is raised instead of waiting on; None for never.
    """

    def __init__(
        self,
        rng: random.Random,
        notes: HealthNotes,
        topic: str,
        *,
        deadline: float | None = None,
        check: Callable[[], Awaitable[None]] = _check_nothing,
    ) -> None:
        self._backoff = Backoff(rng, min_s=FIRST_S, max_s=MOST_S)
        self._notes = notes
        self._topic = topic
        self._deadline = deadline
        self._check = check

    async def again(self, why: str, *, after_a_check: bool = False) -> None:
        """Returns when it is time for the next try, with `after_a_check` not before a check has
        succeeded.

        Raises TierUnavailableError, and whatever `check` does.
        """
        said = why
        while True:
            self._notes.set(self._topic, said)
            pause_s = self._backoff.next_s()
            if (
                self._deadline is not None
                and asyncio.get_running_loop().time() + pause_s > self._deadline
            ):
                raise TierUnavailableError("tier1", said)
            await asyncio.sleep(pause_s)
            try:
                await self._check()
            except NodeUnavailableError as error:
                if after_a_check:
                    said = f"{why}; and the log's record does not answer: {error}"
                    continue
            return

    def over(self) -> None:
        """It has come."""
        self._notes.clear(self._topic)

    async def for_node(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of `call`, made again while the node does not answer."""
        while True:
            try:
                result = await call()
            except NodeUnavailableError as error:
                await self.again(f"the log's record does not answer: {error}")
            else:
                self.over()
                return result
