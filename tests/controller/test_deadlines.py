"""Deadlines: what fails is tried again, and named while it fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.controller.deadlines import Deadlines

KEY = ("settle", "s/a")
LONG_S = 1000.0


class Failing:
    """An action that fails while `fails` says so, and counts."""

    def __init__(self) -> None:
        self.fails = True
        self.calls = 0

    async def __call__(self) -> None:
        self.calls += 1
        if self.fails:
            raise TierUnavailableError("tier1", "away")


def succeeds(deadlines: Deadlines, action: Failing) -> None:
    action.fails = False
    deadlines.ensure(KEY, 0, action)


def is_cancelled(deadlines: Deadlines, action: Failing) -> None:
    del action
    deadlines.cancel(KEY)


@pytest.mark.parametrize("ends", [succeeds, is_cancelled])
def test_what_fails_again_and_again_is_named_until_it_succeeds_or_is_cancelled(
    ends: Callable[[Deadlines, Failing], None],
) -> None:
    async def main() -> None:
        deadlines, action = Deadlines(random.Random(1)), Failing()
        deadlines.schedule(KEY, 0, action)
        await asyncio.sleep(0.01)
        # One failure is ordinary while a container is opened anew.
        assert (action.calls, deadlines.failing()) == (1, [])
        await asyncio.sleep(LONG_S)
        assert action.calls > 10
        assert deadlines.failing() == ["settle s/a fails: tier1 is not available: away"]
        ends(deadlines, action)
        await asyncio.sleep(LONG_S)
        assert deadlines.failing() == []
        await deadlines.stop()

    run_virtual(main())


def test_nothing_is_named_once_they_have_stopped() -> None:
    async def main() -> None:
        deadlines, action = Deadlines(random.Random(1)), Failing()
        deadlines.schedule(KEY, 0, action)
        await asyncio.sleep(LONG_S)
        await deadlines.stop()
        assert deadlines.failing() == []

    run_virtual(main())
