"""Deletion watch: whether garbage goes neither before its lag nor never, checked by the true time
of the world.

It stands in the way of an owner's deletions, and takes note of when its metadata released an
object. Rules of this file:

- the wall clock is not checked: true is the time that passes in the world;
- an object that the metadata of an owner had already when it was opened has waited since then at
  the latest. If an earlier owner knew it as garbage, it has waited since that one did;
- an owner that ends in the middle of its opening may have done so: a container of it may have begun
  to count, and the reading is in the log. It cannot be watched: what is found behind it has waited
  since that opening began;
- only garbage is checked: what else is deleted (copies of metadata, probes, mail) has rules of its
  own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from recovery.harness.history import Violation
from recovery.harness.simulation.virtual_loop import VirtualTime
from segmentstore.contracts.object_states import GarbageObject
from segmentstore.service import SegmentStore

NAME: Final = "deletion"
_SLACK: Final = 1.1
"""Of the lag: what readings of the deletion clock may cost when owners follow each other."""
_PASSES_S: Final = 200.0


class _Garbage(dict[str, GarbageObject]):
    """A container's garbage, that says what comes into it."""

    def __init__(self, before: dict[str, GarbageObject], noted: Callable[[str], None]) -> None:
        super().__init__(before)
        self._noted = noted

    def __setitem__(self, name: str, garbage: GarbageObject) -> None:
        self._noted(name)
        super().__setitem__(name, garbage)


class DeletionWatch:
    """Of one world, for all its owners."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._since_us: dict[str, int] = {}
        self._opening_us: int | None = None
        """When the first opening began, of those since a store was open."""
        self.violations: list[Violation] = []
        self.deletions = 0

    def opening(self) -> None:
        """An owner begins to open the store."""
        if self._opening_us is None:
            self._opening_us = self._time.now_us

    def attach(self, store: SegmentStore, opened_us: int) -> None:
        """Watch a store that has just been opened; `opened_us` is when its opening began."""
        if self._opening_us is not None:
            opened_us = min(opened_us, self._opening_us)
            self._opening_us = None
        parts = store._parts  # noqa: SLF001 - what an owner deletes, and why, is not public
        for container in parts.containers:
            metadata = container.metadata
            for name in metadata.garbage:
                self._since_us.setdefault(name, opened_us)
            metadata.garbage = _Garbage(metadata.garbage, self._note)
        lag_us = int(parts.config.writer.deletion_lag_s * 1_000_000)
        delete = parts.storage.delete

        async def watched(name: str) -> None:
            self._check_lag(name, lag_us)
            await delete(name)

        parts.storage.delete = watched  # type: ignore[method-assign]

    def _note(self, name: str) -> None:
        self._since_us.setdefault(name, self._time.now_us)

    def _check_lag(self, name: str, lag_us: int) -> None:
        since_us = self._since_us.get(name)
        if since_us is None:
            return
        self.deletions += 1
        waited_us = self._time.now_us - since_us
        # Ages are counted in whole milliseconds.
        if waited_us + 2000 < lag_us:
            detail = f"{name} goes after {waited_us / 1e6} s of its lag of {lag_us / 1e6} s"
            self.violations.append(Violation(NAME, detail))


async def outlast_the_lag(store: SegmentStore) -> list[Violation]:
    """Let the lag pass for a store that nothing disturbs: what of its garbage is there still is
    kept for ever.
    """
    before = set(_waiting(store))
    await asyncio.sleep(store.config.writer.deletion_lag_s * _SLACK + _PASSES_S)
    return [
        Violation(NAME, f"{name} is garbage for longer than the deletion lag, and Tier 2 answers")
        for name in sorted(before.intersection(_waiting(store)))
    ]


def _waiting(store: SegmentStore) -> Iterator[str]:
    for container in store._parts.containers:  # noqa: SLF001
        yield from container.garbage_names()
