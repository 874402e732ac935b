"""A process of the memory world: the clients of ledgers and nodes in it share one lifetime.

It can end, or fall asleep, in any call.

For tests of crash windows: count the calls of a run, then repeat the run once per call and let the
process stop there. Rules:

- a dead process does nothing any more: its calls neither happen nor return;
- a sleeping one does nothing until it is woken: its requests happen then, and it receives its
  replies then;
- the call it stops in happens first or not, as planned; it does not return either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class MemoryProcess:
    """The calling process. Immortal and awake unless set otherwise."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """What was called so far, for tests that go through all of it."""
        self.dead = False
        self._stops_in: int | None = None
        self._happens = False
        self._sleeps = False
        self._asleep: asyncio.Event | None = None
        self._put_off: list[Callable[[], object]] = []
        self._never: list[asyncio.Future[None]] = []  # what calls of the dead wait for

    def die_in(self, call: int, *, happens: bool) -> None:
        """Let the process end in its call number `call`, from 0, counted from its beginning."""
        self._stops_in, self._happens, self._sleeps = call, happens, False

    def sleep_in(self, call: int, *, happens: bool) -> None:
        """Let it fall asleep there."""
        self._stops_in, self._happens, self._sleeps = call, happens, True

    def die(self) -> None:
        """End it now."""
        self.dead = True

    def sleep(self) -> None:
        """Let it fall asleep now."""
        if not self.stopped:
            self._asleep = asyncio.Event()

    @property
    def stopped(self) -> bool:
        """Dead or asleep."""
        return self.dead or self._asleep is not None

    def wake(self) -> None:
        """Let a sleeping process go on."""
        asleep, self._asleep = self._asleep, None
        put_off, self._put_off = self._put_off, []
        for callback in put_off:
            asyncio.get_running_loop().call_soon(callback)
        if asleep is not None:
            asleep.set()

    def begin(self, name: str) -> bool:
        """A call that does not wait begins.

        False if it must not happen now: never, or `soon` says when.
        """
        if self.stopped:
            return False
        self.calls.append(name)
        if self._stops_in != len(self.calls) - 1:
            return True
        if self._sleeps:
            self._asleep = asyncio.Event()
        else:
            self.dead = True
        return self._happens

    def soon(self, callback: Callable[[], object]) -> None:
        """In a later turn of the loop, or when the process wakes up; never in a dead one."""
        if self._asleep is not None:
            self._put_off.append(callback)
        elif not self.dead:
            asyncio.get_running_loop().call_soon(callback)

    async def enter(self, name: str) -> None:
        """A call begins, a turn of the loop after it was made. Returns when it may happen."""
        await asyncio.sleep(0)
        await self._awake()
        if not self.begin(name):
            await self._awake()

    async def leave(self) -> None:
        """The call has happened, and its reply is on its way. Returns when it is there."""
        await asyncio.sleep(0)
        await self._awake()

    async def _awake(self) -> None:
        if self.dead:
            self._never.append(asyncio.get_running_loop().create_future())
            await self._never[-1]
        while self._asleep is not None:
            await self._asleep.wait()
