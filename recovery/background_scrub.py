"""BackgroundScrub: the scrub of an open store, pass after pass at a bounded rate; and the file its
state is kept in.

Rules of this file:

- one task, begun by `start` and ended by `stop`; what goes wrong in it is reported by `health` and
  stops nothing else;
- a store that does not answer is tried again with back-off, from where the walk was;
- the state is written every few seconds and at the end: what a crash costs is read again;
- files and checksums are one thread's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from recovery.kept_file import save_text
from recovery.scrub import Live, Scrub
from recovery.scrub_state import ScrubPass, ScrubState, load_state, render_state
from segmentstore.contracts.disk import Disk
from segmentstore.contracts.errors import ConfigError, TierUnavailableError, describe
from segmentstore.contracts.owned_tasks import own_task
from segmentstore.contracts.rate_limiter import RateLimiter
from segmentstore.contracts.runtime import Runtime
from tier2.object_storage import ObjectStorage, StorageUnavailableError

_log = logging.getLogger(__name__)

SAVE_EVERY_S = 10.0
REST_S = 60.0
"""From the end of a pass to the beginning of the next."""
RETRY_MIN_S = 1.0
RETRY_MAX_S = 300.0


class ScrubFile:
    """The state file of the store `store_id`.

    `executor` must be one thread, so that what was written last stays.
    """

    def __init__(self, path: str, disk: Disk, executor: Executor, store_id: str) -> None:
        self._path = path
        self._store_id = store_id
        self._disk = disk
        self._executor = executor
        self._saved_at: float | None = None

    async def load(self) -> ScrubState | None:
        """What is kept; None if nothing is. Raises ConfigError, OSError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, load_state, self._path, self._disk, self._store_id
        )

    async def save(self, state: ScrubState) -> None:
        """Keep the state as it is now. Raises OSError."""
        self._saved_at = asyncio.get_running_loop().time()
        text = render_state(state, self._store_id)
        await asyncio.get_running_loop().run_in_executor(
            self._executor, save_text, self._path, text, self._disk
        )

    @property
    def due(self) -> bool:
        """Whether it is time to save a state that has moved on."""
        return (
            self._saved_at is None
            or asyncio.get_running_loop().time() - self._saved_at >= SAVE_EVERY_S
        )


class ScrubStatistics(NamedTuple):
    """A snapshot of the scrub under way.

    Counts are of the current pass, restarts of the store included.
    """

    bytes_per_s: float
    started_at_ms: int
    container: int | None
    object: str | None
    """Checked last; of `container`."""
    objects: int
    blocks: int
    bytes_read: int
    passed_over: int
    objects_left: int
    """In the container under way; so are `bytes_left`."""
    bytes_left: int
    harmful: int
    notes: int
    unavailable: int
    """Times that Tier 2, or a catalog, did not answer, since the store was opened."""
    previous_finished_at_ms: int | None
    previous_harmful: int


class BackgroundScrub:
    """The scrub of one open store. `path` is of its state file; None: the state is not kept."""

    def __init__(
        self,
        storage: ObjectStorage,
        containers: Mapping[int, Live],
        runtime: Runtime,
        *,
        bytes_per_s: float,
        path: str | None,
        store_id: str = "",
    ) -> None:
        self._clock = runtime.clock
        self._rate = bytes_per_s
        self._executor = runtime.executor("scrub", 1)
        self._file = (
            ScrubFile(path, runtime.disk, self._executor, store_id) if path is not None else None
        )
        self._state = ScrubState(current=ScrubPass(started_at_ms=self._clock.time_ms()))
        self._scrub = Scrub(
            storage,
            containers,
            self._state,
            clock=runtime.clock,
            executor=self._executor,
            limiter=RateLimiter(bytes_per_s),
            moved_on=self._moved_on,
        )
        self._unsaved = False
        self._unavailable = 0
        self._failure: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, or go on where the state file says. Once."""
        assert self._task is None
        self._task = own_task(self._run(), name="scrub")

    async def stop(self) -> None:
        """End, and keep how far it has come. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            await self._save()
        self._executor.shutdown(wait=False)

    def statistics(self) -> ScrubStatistics:
        """Numbers as of now. O(1)."""
        current, previous = self._state.current, self._state.previous
        return ScrubStatistics(
            bytes_per_s=self._rate,
            started_at_ms=current.started_at_ms,
            container=current.position.container_id if current.position is not None else None,
            object=current.position.object_name if current.position is not None else None,
            objects=current.objects,
            blocks=current.blocks,
            bytes_read=current.bytes_read,
            passed_over=current.passed_over,
            objects_left=self._scrub.objects_left,
            bytes_left=self._scrub.bytes_left,
            harmful=current.harmful,
            notes=current.notes,
            unavailable=self._unavailable,
            previous_finished_at_ms=previous.finished_at_ms if previous is not None else None,
            previous_harmful=previous.harmful if previous is not None else 0,
        )

    def health(self) -> list[str]:
        """What is wrong, one sentence each; empty when all is well."""
        found = []
        if self._state.harmful:
            first = self._state.first_harmful
            example = f"; the first: {first.place}: {first.detail}" if first is not None else ""
            found.append(f"scrub: {self._state.harmful:,} harmful findings in Tier 2{example}")
        refused = self._state.refused
        if refused:
            first = refused[0]
            found.append(
                f"scrub: {len(refused):,} objects in tier2 are refused, and nothing is known of "
                f"them; the first: {first.place}: {first.detail}"
            )
        if self._failure is not None:
            found.append(f"scrub has stopped: {describe(self._failure)}")
        return found

    async def _run(self) -> None:
        try:
            await self._resume()
            wait = RETRY_MIN_S
            while True:
                try:
                    await self._scrub.run_pass()
                except (StorageUnavailableError, TierUnavailableError) as error:
                    self._unavailable += 1
                    _log.info("scrub waits: %s", error)
                    await asyncio.sleep(wait)
                    wait = min(RETRY_MAX_S, wait * 2)
                    continue
                wait = RETRY_MIN_S
                await self._save()
                await asyncio.sleep(REST_S)
                self._state.begin(self._clock.time_ms())
        except Exception as error:  # noqa: BLE001
            # Nothing else rests on the scrub: its faults must not take the store along.
            self._failure = error
            _log.exception("scrub has stopped")

    async def _resume(self) -> None:
        if self._file is None:
            return
        try:
            kept = await self._file.load()
        except (ConfigError, OSError) as error:
            _log.warning("scrub begins anew: %s", error)
            return
        if kept is not None:
            self._state.current, self._state.previous = kept.current, kept.previous
            if kept.current.finished_at_ms is not None:
                self._state.begin(self._clock.time_ms())

    async def _moved_on(self) -> None:
        self._unsaved = True
        if self._file is not None and self._file.due:
            await self._save()

    async def _save(self) -> None:
        if self._file is None or not self._unsaved:
            return
        try:
            await self._file.save(self._state)
            # Only now: a stop in the middle of this cancels it, and writes what is unsaved.
            self._unsaved = False
        except OSError as error:
            _log.warning("the state of the scrub is not kept: %s", error)
