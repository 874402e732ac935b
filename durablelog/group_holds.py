"""GroupHolds: the time for which appends are gathered behind a frame, as `GroupPace` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from durablelog.group_pace import GroupPace

PART_FILLED_IN_FLIGHT_MAX: Final = 2
"""Behind so many frames part-filled ones are kept back (docs/decisions/0004)."""
GATHERED_BYTES: Final = 16 * 1024
"""So much that waits is a group worth its sync, with what each request counts besides its data."""


class GroupHolds:
    """Of one processor. `on_over()` is called when a hold has passed; `queued()` counts what was
    ever queued.
    """

    def __init__(self, on_over: Callable[[], None], queued: Callable[[], int]) -> None:
        self._on_over = on_over
        self._queued = queued
        self._loop = asyncio.get_running_loop()
        self._pace = GroupPace()
        self._timer: asyncio.Handle | None = None
        """uvloop has no timers below half a millisecond: it gives a handle without a time."""
        self._over_s = 0.0
        """When the hold has passed."""
        self._mark_timer: asyncio.Handle | None = None
        self._mark: int | None = None
        """What had been queued when callers had replied to the last acknowledgement."""
        self._company = False

    def holds(self, waiting_bytes: int, on_its_way: int) -> bool:
        """Whether an append with so many bytes before it, and frames on their way, stays in the
        queue.

        It does until the hold has passed, or until a frame is durable, if none may go before. To be
        called when the first append of a turn comes.
        """
        if self._timer is None and on_its_way:
            now = self._loop.time()
            if self._pace.is_right_behind(now):
                self._company = True
            if on_its_way < PART_FILLED_IN_FLIGHT_MAX:
                return False
            self._pace.arrived(now)
        elif self._timer is None:
            return False
        return waiting_bytes < GATHERED_BYTES

    @property
    def in_progress(self) -> bool:
        """Whether one has begun, and not passed."""
        return self._timer is not None

    @property
    def gathers(self) -> bool:
        """Whether an append goes with those of the same turn, though nothing is on its way: the
        last ones came in company.
        """
        return self._company or self._timer is not None

    def begin_pump(self, waiting: int, *, idle: bool) -> None:
        """So many requests go now, or other parts hold them; `idle`: nothing is on its way.

        Ends the hold, if there is one.
        """
        held = self._timer is not None
        if held:
            self.end()
        if not waiting:
            return
        now = self._loop.time()
        if held or idle:
            self._company = waiting > 1
        if not held and not idle:
            self._pace.arrived(now)

    def shipped(self, requests: int, *, may_hold: bool) -> None:
        """A part-filled frame goes: begin a hold behind it, if it is one to wait for."""
        now = self._loop.time()
        hold_s = self._pace.shipped(now, requests)
        if hold_s and may_hold and self._timer is None:
            self._over_s = now + hold_s
            self._timer = self._loop.call_at(self._over_s, self._on_over)

    def acknowledged(self, shipped_s: float, requests: int) -> None:
        """A frame is durable."""
        self._pace.acknowledged(self._loop.time(), shipped_s, requests)
        if self._timer is not None and self._pace.calm_s < self._over_s:
            if self._mark_timer is not None:
                self._mark_timer.cancel()
            self._mark = None
            self._mark_timer = self._loop.call_at(self._pace.calm_s, self._take_mark)

    def end(self) -> None:
        """End the hold, if there is one: what was gathered goes now."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        now = self._loop.time()
        if self._mark is not None and self._queued() > self._mark:
            self._pace.arrived(now)
        self._pace.held(now - self._over_s)
        self._mark = None

    def _take_mark(self) -> None:
        self._mark = self._queued()
