"""MailboxPace: when a container's mailbox is checked next, and which events bring the check
forward.

Theory of operation. An owner checks now and then, because listings cost; often after something was
found, because more will come; and at once when the sender of a message asks for it. Rules:

- a check that was asked for begins no sooner than WAKE_INTERVAL_S after the last one: however many
  ask, the requests are bounded;
- a request is owed a complete check: one that fails, or was under way at the request, does not
  count. The next begins when the tier has been left alone for as long as it wants;
- jobs ask all containers of a store together. So the first container that finds something wakes the
  others of its process, but none that checks often already: they never wake each other in turn.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

QUICK_POLL_S: Final = 1.0
QUICK_FOR_S: Final = 300.0
"""How often it checks, and for how long, after something was found: more will come."""
WAKE_INTERVAL_S: Final = 0.25
"""Least time from the beginning of one check to one that was asked for."""


class MailboxPace:
    """The pace of one container's checks; on its event loop."""

    def __init__(
        self, poll_interval_s: float, container_id: int, group: MailboxGroup | None = None
    ) -> None:
        self._poll_interval_s = poll_interval_s
        # The first check of each container comes at another time, or all of a store would check
        # once.
        self.delay_s = poll_interval_s * (1 + container_id % 16) / 16
        """Until the next check."""
        self._woken = asyncio.Event()
        self._quick_until: float | None = None
        self._polled_at: float | None = None
        self._not_before = 0.0
        """An earlier request waits until then."""
        self.group = group or MailboxGroup()
        """With the store's other containers in this process."""
        self.group.join(self)

    def wake(self) -> None:
        """A message has been put: check once, and often for a while.

        O(1); nothing where checking is off.
        """
        self._woken.set()

    async def until_due(self) -> None:
        """Wait for the next check, which begins when this returns."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.delay_s):
                await self._woken.wait()
        if self._woken.is_set():
            self._quick_until = loop.time() + QUICK_FOR_S
            spaced = self._polled_at + WAKE_INTERVAL_S if self._polled_at is not None else 0.0
            await asyncio.sleep(max(spaced, self._not_before) - loop.time())
        self._woken.clear()  # A request from here on asks for another check.
        self._polled_at = loop.time()

    def polled(self, answered: int) -> None:
        """A check has ended, with so many answers given.

        A job that asked for one thing will ask for more.
        """
        self.delay_s = self._pause(answered)

    def failed(self, wait_s: float, answered: int = 0) -> None:
        """A check has failed, after so many answers, and the tier wants to be left alone for so
        long.
        """
        self._not_before = asyncio.get_running_loop().time() + wait_s
        self.delay_s = max(self._pause(answered), wait_s)

    def _pause(self, answered: int) -> float:
        now = asyncio.get_running_loop().time()
        if answered:
            self._quick_until = now + QUICK_FOR_S
            self.group.wake_others(self, now)
        return (
            min(QUICK_POLL_S, self._poll_interval_s)
            if self.is_quick(now)
            else self._poll_interval_s
        )

    def is_quick(self, now_s: float) -> bool:
        """Whether it checks often at this time of the loop."""
        return self._quick_until is not None and now_s < self._quick_until


class MailboxGroup:
    """The mailboxes of one store's containers in a process: what one finds wakes the others."""

    def __init__(self) -> None:
        self._paces: list[MailboxPace] = []

    def join(self, pace: MailboxPace) -> None:
        """One more mailbox."""
        self._paces.append(pace)

    def leave(self, pace: MailboxPace) -> None:
        """One less; nothing if it has left before."""
        if pace in self._paces:
            self._paces.remove(pace)

    def wake_others(self, pace: MailboxPace, now_s: float) -> None:
        """Wake all but this one, and but those that check often at this time of the loop."""
        for each in self._paces:
            if each is not pace and not each.is_quick(now_s):
                each.wake()
