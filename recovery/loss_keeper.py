"""LossKeeper: losses in Tier 2 that reads of an open store found: kept in a file, reported in
health, and checked again (loop).

Rules of this file:

- one task, begun by `start` and ended by `stop`; nothing else rests on it;
- while nothing is lost it waits, and sends no requests;
- a place is checked again by fetching just those bytes, PLACES_A_ROUND in a round, RECHECK_S
  apart. Whether it is still wanted is asked before, of idle segments only then;
- a tier that answers no request ends the round; what it refuses for one object holds up no
  other;
- any other error is our bug: it is reported in health and checked past, ever more rarely, for
  nothing may rest on it;
- the file is written after a change, SAVE_AFTER_S later, and at the end. Places of containers that
  are not served here stay in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from recovery.kept_file import save_text
from recovery.loss_file import Places, load_losses, render_losses
from recovery.seen_losses import LostPlace, SeenLosses
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import (
    ConfigError,
    DataCorruptionError,
    TierUnavailableError,
    describe,
)
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.runtime import Runtime
from tier2.block_reader import BlockReader
from tier2.object_storage import (
    InvalidRangeError,
    ObjectNotFoundError,
    ObjectStorage,
    StorageUnavailableError,
)

if TYPE_CHECKING:
    from recovery.open_container import OpenContainer

_log = logging.getLogger(__name__)

SAVE_AFTER_S: Final = 1.0
FIRST_RECHECK_S: Final = 5.0
"""From a loss that was just seen to the first check."""
RECHECK_S: Final = 60.0
RECHECK_MAX_S: Final = 3600.0
"""After unexpected errors, one after the other."""
PLACES_A_ROUND: Final = 32
FAILURES_IN_A_ROW: Final = 3
"""After so many that are not the tier's as a whole, a container's turn is over."""


class LossStatistics(NamedTuple):
    """A snapshot of what reads found lost."""

    objects: int
    """In Tier 2, missing or damaged, and wanted: at least that many."""
    places: int
    """Stretches of segments that lie in them and were asked for."""
    seen: int
    """Fetches that failed for it since the store was opened."""


class ContainerWatch:
    """Receives the fetches of one container's read index. Cheap while nothing is lost."""

    def __init__(self, losses: SeenLosses, keeper: LossKeeper) -> None:
        self._losses = losses
        self._keeper = keeper

    def failed(
        self,
        segment_id: int,
        chunk: ChunkRecord,
        start_offset: int,
        end_offset: int,
        error: Exception,
    ) -> None:
        """A fetch has failed."""
        known = len(self._losses.places)
        if self._losses.lost(
            segment_id, chunk, start_offset, end_offset, error, self._keeper.now_ms()
        ):
            # A reader that goes on reading known losses brings no check forward.
            self._keeper.changed(first_check=len(self._losses.places) > known)

    def fetched(self, chunk: ChunkRecord, start_offset: int, end_offset: int) -> None:
        """A fetch has succeeded."""
        if self._losses.places and self._losses.found(chunk, start_offset, end_offset):
            self._keeper.changed()


class LossKeeper:
    """The losses of one open store.

    `path` is of the file; `check` is awaited after a loss, to see whether the marker is there.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        runtime: Runtime,
        *,
        path: str,
        store_id: str,
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self._storage = storage
        self._runtime = runtime
        self._path = path
        self._store_id = store_id
        self._check = check
        self._losses: dict[int, SeenLosses] = {}
        self._elsewhere: dict[int, list[LostPlace]] = {}
        """Of containers that are not served here."""
        self._seen_before = 0
        """By containers that are not served here any more."""
        self._executor = runtime.executor("losses", 1)
        self._changed = asyncio.Event()
        self._version = self._saved = 0
        self._check_at_s: float | None = None
        self._recheck_s = RECHECK_S
        self._trouble = ""
        """The unexpected error that ended the last round."""
        self._task: asyncio.Task[None] | None = None

    def attach(self, container_id: int, container: OpenContainer) -> ContainerWatch:
        """A container serves here from now on: take up what was lost of it, for the read index
        gives what it fetches to the result. Behind `start`; O(places).
        """
        losses = self._losses[container_id] = SeenLosses(container)
        for place in self._elsewhere.pop(container_id, ()):
            losses.keep(place)
        losses.prune()
        if losses.places:
            self._check_within(FIRST_RECHECK_S)
            self._changed.set()
        return ContainerWatch(losses, self)

    def detach(self, container_id: int) -> None:
        """A container does not serve here any more: what is lost of it is only kept."""
        losses = self._losses.pop(container_id)
        self._seen_before += losses.seen
        if losses.places:
            self._elsewhere[container_id] = list(losses.places.values())

    async def start(self) -> None:
        """Read what earlier owners have seen. Once."""
        assert self._task is None
        loop = asyncio.get_running_loop()
        disk = self._runtime.disk
        try:
            kept = await loop.run_in_executor(
                self._executor, load_losses, self._path, disk, self._store_id
            )
        except (ConfigError, OSError) as error:
            _log.warning("what reads had found lost is not known any more: %s", error)
            kept = {}
        self._elsewhere.update(kept)
        self._task = own_task(self._run(), name="losses")

    async def stop(self) -> None:
        """End, and keep what is known. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            await self._save()
        self._executor.shutdown(wait=False)

    def now_ms(self) -> int:
        """The wall clock."""
        return self._runtime.clock.time_ms()

    def changed(self, *, first_check: bool = False) -> None:
        """What is known has changed; after a new loss a check is due soon."""
        self._version += 1
        if first_check:
            self._check_within(FIRST_RECHECK_S)
        self._changed.set()

    def statistics(self) -> LossStatistics:
        """Numbers as of now. O(places)."""
        self._prune()
        losses = self._losses.values()
        return LossStatistics(
            objects=sum(len(each.objects) for each in losses),
            places=self._count(),
            seen=self._seen_before + sum(each.seen for each in losses),
        )

    def health(self) -> list[str]:
        """What is lost, one sentence for each container; empty when nothing is known to be."""
        self._prune()
        told = []
        for container_id, losses in self._losses.items():
            if losses.places:
                examples = "; ".join(losses.examples())
                count = f"{len(losses.objects):,} objects in tier2 that are lost or damaged"
                told.append(f"container {container_id}: reads found {count}, e.g. {examples}")
        if told and self._trouble:
            told.append(
                f"whether what is lost in tier2 is there again cannot be seen: {self._trouble}"
            )
        return told

    def _count(self) -> int:
        return sum(len(each.places) for each in self._losses.values())

    def _prune(self) -> None:
        for losses in self._losses.values():
            if losses.places and losses.prune():
                self.changed()

    def _check_within(self, seconds: float) -> None:
        at_s = asyncio.get_running_loop().time() + seconds
        self._check_at_s = at_s if self._check_at_s is None else min(at_s, self._check_at_s)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._check_at_s):
                    await self._changed.wait()
            self._changed.clear()
            if self._check_at_s is not None and loop.time() >= self._check_at_s:
                self._check_at_s = None
                await self._check_again()
                if self._count():
                    self._check_within(self._recheck_s)
            await asyncio.sleep(SAVE_AFTER_S)
            await self._save()

    async def _check_again(self) -> None:
        """Whether what was lost is there again: one round, each step of which may fail and hold up
        no other.
        """
        self._prune()
        self._trouble = ""
        for losses in list(self._losses.values()):
            if losses.places:
                await self._attempt(self._settle(losses))
        answers = await self._attempt(self._check_marker())
        for container_id, losses in list(self._losses.items()):
            some = list(losses.places.values())[:PLACES_A_ROUND]
            if some and answers:
                answers = await self._attempt(self._fetch_again(container_id, losses, some))
        self._recheck_s = min(2 * self._recheck_s, RECHECK_MAX_S) if self._trouble else RECHECK_S

    async def _attempt(self, step: Coroutine[Any, Any, bool]) -> bool:
        """What the step says: False once the tier answers no request."""
        try:
            return await step
        except Exception as error:  # noqa: BLE001
            # Nothing rests on it, and what is lost must stay known.
            self._trouble = self._trouble or describe(error)
            _log.warning("what is lost could not be checked again", exc_info=error)
            return True

    async def _settle(self, losses: SeenLosses) -> bool:
        try:
            self._version += await losses.settle()
        except TierUnavailableError as error:
            _log.info("whether what is lost is still wanted is checked again later: %s", error)
        return True

    async def _check_marker(self) -> bool:
        try:
            await self._check()
        except StorageUnavailableError as error:
            _log.info("the marker of the store is checked again later: %s", error)
            return not error.is_of_all
        return True

    async def _fetch_again(
        self, container_id: int, losses: SeenLosses, places: list[LostPlace]
    ) -> bool:
        """Fetch these places; False once the tier answers no request."""
        reader = BlockReader(self._storage, container_id, self._runtime)
        failures = 0
        try:
            for place in places:
                if losses.places.pop(place.key, None) is None:
                    continue  # Read or pruned meanwhile.
                losses.places[place.key] = (
                    place  # Behind the others: their turn is next, whatever comes of this one.
                )
                try:
                    await reader.read(
                        place.chunk, place.start_offset, place.end_offset - place.start_offset
                    )
                except (DataCorruptionError, ObjectNotFoundError, InvalidRangeError):
                    failures = 0
                except StorageUnavailableError as error:
                    _log.info("what is lost is checked again later: %s", error)
                    failures += 1
                    if error.is_of_all or failures == FAILURES_IN_A_ROW:
                        return not error.is_of_all
                else:
                    failures = 0
                    losses.found(place.chunk, place.start_offset, place.end_offset)
                    self._version += 1
        finally:
            await reader.close()
        return True

    async def _save(self) -> None:
        version = self._version
        if version == self._saved:
            return
        known: Places = {
            **self._elsewhere,
            **{
                each: list(losses.places.values())
                for each, losses in self._losses.items()
                if losses.places
            },
        }
        try:
            text = render_losses(known, self._store_id)
            await asyncio.get_running_loop().run_in_executor(
                self._executor, save_text, self._path, text, self._runtime.disk
            )
        except Exception as error:  # noqa: BLE001
            # Neither the task nor the close behind it rests on this file.
            _log.warning("what reads found lost is not kept: %s", describe(error))
        else:
            self._saved = version
