"""A load on a cluster of this machine: appends at a fixed rate through `connect`, spread over a
segment of each container, and when each was acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from segmentstore.contracts.errors import SegmentExistsError
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.store_api import StoreApi

ANSWER_S: Final = 60.0
_BYTES: Final = 100


class Pause(NamedTuple):
    """Between two acknowledgements of one container, in seconds of the monotonic clock."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.end - self.begin


class PacedAppends:
    """Appends to one segment of each of `containers`, `rate` a second in all."""

    def __init__(self, store: StoreApi, containers: int, rate: int) -> None:
        self._store = store
        self._rate = rate
        self._names = segment_names(containers)
        self.acknowledged: dict[int, list[float]] = {number: [] for number in self._names}
        """When, by container."""
        self.errors: list[BaseException] = []
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._ends = False

    async def create(self) -> None:
        """The segments, unless they are there."""
        for name in self._names.values():
            with suppress(SegmentExistsError):
                await self._store.create_segment(name)

    async def run(self) -> None:
        """Append until `end`."""
        loop = asyncio.get_running_loop()
        begun, sent = loop.time(), 0
        numbers = list(self._names)
        while not self._ends:
            due = int((loop.time() - begun) * self._rate)
            for index in range(sent, due):
                number = numbers[index % len(numbers)]
                future = self._store.append(self._names[number], bytes(_BYTES))
                self._unanswered += 1
                self._all_answered.clear()
                future.add_done_callback(partial(self._done, number))
            sent = max(sent, due)
            await asyncio.sleep(0.001)

    def end(self) -> None:
        """Send no more."""
        self._ends = True

    async def answered(self) -> None:
        """Wait for what was sent, ANSWER_S at most: a container may be on its way to a host."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._all_answered.wait()

    def _done(self, number: int, future: asyncio.Future[int]) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._all_answered.set()
        if (error := future.exception()) is not None:
            self.errors.append(error)
        else:
            self.acknowledged[number].append(time.monotonic())

    def longest_pause(self, number: int, begin: float, end: float) -> Pause:
        """Of those that ended behind `begin`, and began before `end`."""
        gaps = [
            Pause(before, after)
            for before, after in itertools.pairwise(self.acknowledged[number])
            if begin <= after and before <= end
        ]
        return max(gaps, key=lambda each: each.seconds, default=Pause(begin, end))

    def per_second(self, begin: float, end: float) -> float:
        """Acknowledgements a second of all containers in this time."""
        given = sum(begin <= each < end for times in self.acknowledged.values() for each in times)
        return given / (end - begin)


def segment_names(containers: int) -> dict[int, str]:
    """A segment's name for each container, by number."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < containers:
        name = f"bench-{number}"
        found.setdefault(container_of(name, containers), name)
        number += 1
    return dict(sorted(found.items()))
