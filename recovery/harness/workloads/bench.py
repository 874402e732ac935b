"""Bench: what a client works at.

Its recorded store, its share of chance, names, and how much it is to do.

Also here: the window of answers a client waits for, and the errors that every client meets with
patience.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from recovery.harness.history import Update
from recovery.harness.recorder import RecordedStore
from recovery.harness.records import HEADER_BYTES
from recovery.harness.workloads.stage import Stage
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentExistsError,
    TierUnavailableError,
)

if TYPE_CHECKING:
    # Loaded only where there is one.
    from recovery.harness.workloads.wire_service import WireService

STOPPED: Final = (ContainerStoppedError, NotPrimaryError, AppendOutcomeUnknownError)
"""The store has stopped: a client's work is over."""

_LONG_RECORD: Final = 3000
_BACK_OFF_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class ClientBench:
    """One client's place of work in one process run."""

    store: RecordedStore
    random: random.Random
    stage: Stage
    process_run: int
    index: int
    """Its number among all clients of the process run."""
    place: int
    """Its number among the clients of its kind: what it goes on with from process run to process
    run.
    """
    operations: int
    """Calls it is to make, about."""
    segments: Mapping[str, Sequence[str]]
    """Shared segments by role."""
    append_bytes_max: int
    pace: float
    """Factor on all pauses: 1 in virtual time, small where time is real."""
    server: WireService | None = None
    """Of a workload that is served."""
    created: int = 0
    """Segments of its own that it has made."""

    @property
    def service(self) -> WireService:
        """The server of a workload that is served."""
        assert self.server is not None
        return self.server

    def goes_on(self) -> bool:
        """True while there is something left to do."""
        return self.store.calls_begun < self.operations

    def rng(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def length(self) -> int:
        """Filler of one record: mostly tens of bytes, sometimes none, sometimes more than a frame
        or an extent holds.
        """
        kind = self.random.random()
        if kind < 0.9:
            return 2 + int(self.random.random() * 91)
        if kind < 0.94:
            return 0
        longest = min(_LONG_RECORD, self.append_bytes_max - HEADER_BYTES)
        return int(self.random.random() * (600 if kind < 0.985 else longest)) % (longest + 1)

    def lengths(self) -> tuple[int, ...]:
        """Fillers of a batch that fits into one append."""
        chosen: list[int] = []
        room = self.append_bytes_max
        for _ in range(self.random.randrange(2, 7)):
            length = self.length()
            room -= HEADER_BYTES + length
            if room < 0:
                break
            chosen.append(length)
        return tuple(chosen)

    def segment(self, role: str) -> str:
        """One of the shared segments of a role."""
        return self.random.choice(self.segments[role])

    def any_segment(self) -> str:
        """One of all shared segments."""
        return self.segment(self.random.choice(list(self.segments)))

    async def pause(self, seconds_max: float) -> None:
        """Let time pass, up to so many seconds."""
        await asyncio.sleep(self.random.uniform(0.0, seconds_max) * self.pace)

    async def back_off(self) -> None:
        """Wait after a tier was not available."""
        await self.pause(_BACK_OFF_S)

    async def try_to(self, asked: Awaitable[object], *tolerated: type[Exception]) -> bool:
        """Wait for an answer; False if it is one of the tolerated errors, or a tier that is away
        for now.
        """
        try:
            await asked
        except TierUnavailableError:
            await self.back_off()
            return False
        except tolerated:
            return False
        return True

    async def make_segment(self, role: str, *updates: Update) -> str | None:
        """Make a segment of its own; None if that failed."""
        name = self.stage.own(role, self.process_run, self.index, self.created)
        self.created += 1
        return (
            name
            if await self.try_to(self.store.create(name, updates), SegmentExistsError)
            else None
        )

    async def together(
        self, *calls: Coroutine[Any, Any, object], tolerated: tuple[type[Exception], ...] = ()
    ) -> None:
        """Make several calls at the same time and wait for all.

        Raises the first error that is not tolerated.
        """
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, (TierUnavailableError, *tolerated)
            ):
                raise outcome


ClientFunction = Callable[[ClientBench], Coroutine[Any, Any, None]]


class Window:
    """Answers a client waits for, in the order of its calls, at most `size` at a time."""

    def __init__(self, bench: ClientBench, size: int, *tolerated: type[Exception]) -> None:
        self._bench = bench
        self._size = size
        self._tolerated = tolerated
        self._waiting: deque[asyncio.Future[Any]] = deque()

    async def admit(self, future: asyncio.Future[Any]) -> None:
        """Add one; waits for the oldest while the window is full.

        Raises what an answer raises, but for the tolerated.
        """
        self._waiting.append(future)
        while len(self._waiting) >= self._size:
            await self._next()

    async def drain(self) -> None:
        """Wait for all."""
        while self._waiting:
            await self._next()

    async def _next(self) -> None:
        future = self._waiting.popleft()
        try:
            await future
        except TierUnavailableError:
            await self._bench.back_off()
        except self._tolerated:
            pass  # the client expects it
