"""What is done about a bookie that does not keep up: its ledgers are reported, until they are
followed, and not too often.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from itertools import pairwise

import pytest

from durablelog.bookkeeper.gateway import bookie_watch
from durablelog.bookkeeper.gateway.add_connection import AddConnection, Beat, GatewayWriter
from durablelog.bookkeeper.gateway.bookie_watch import FIRST_PAUSE_S, PAUSE_S_MAX, BookieWatch

BOOKIES = ("a:1", "b:1", "c:1")


class Watched:
    """A ledger on three of four bookies, of which the first gets no entries; a watch that receives
    that with each beat.
    """

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        ours.settimeout(0)
        self.connection = AddConnection(ours, lambda _reason: None)
        self.writer = GatewayWriter(self.connection, 1, 7, self._seal, BOOKIES)
        self.watch = BookieWatch(lambda: list(self.connection.writers.values()), self._ask)
        self.told: list[str] = []

    async def _seal(self, _handle: int) -> None:
        return

    async def _ask(self, name: str) -> list[str]:
        return ["a:1 4096 3 7000"] if name == "bookies" else [" ".join((*BOOKIES, "d:1"))]

    async def beat(self) -> None:
        self.watch.beat(Beat(1, 1, 0))
        task = self.watch._task
        assert task is not None
        await task

    def close(self) -> None:
        self.watch.close()
        self.connection.close("the test is over")
        self.theirs.close()


def run(scenario: Callable[[Watched], Coroutine[None, None, None]]) -> None:
    async def watched() -> None:
        each = Watched()
        try:
            await scenario(each)
        finally:
            each.close()

    asyncio.run(watched())


def test_a_ledger_that_was_created_ahead_is_reported_when_it_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bookie_watch, "FIRST_PAUSE_S", 0.0)

    async def scenario(it: Watched) -> None:
        await it.beat()  # It has no listener yet.
        it.writer.on_short = it.told.append
        await it.beat()
        assert it.told == ["a:1 does not keep up"]

    run(scenario)


def test_ledgers_that_get_the_same_bookie_again_and_again_follow_each_other_slower_and_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(it: Watched) -> None:
        it.writer.on_short = it.told.append
        loop = asyncio.get_running_loop()
        # Whole seconds: fractions are rounded anew where the number gets another binary digit.
        now_s = float(round(loop.time()))
        times: list[float] = []
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda: now_s)
            for _ in range(3 * int(PAUSE_S_MAX)):
                count = len(it.told)
                await it.beat()
                times += [now_s] * (len(it.told) - count)
                now_s += 1
        pauses = [later - sooner for sooner, later in pairwise(times)]
        assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
        assert pauses[-1] == PAUSE_S_MAX

    run(scenario)
