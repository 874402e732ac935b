"""What is done about Tier 2 when a store opens: it is checked over, and the store makes itself
known there.

Rules of this file:

- a store is made only on a Tier 2 that passed its check: nothing is acknowledged yet, so nothing is
  lost by refusing;
- a store that was made before opens whatever Tier 2 does: appends need the log alone. The check
  runs beside it then, and what is wrong shows in `health` until a check has passed;
- the marker (tier2/store_markers.py) is there before the store's first object. Uploads make sure of
  it too, for a store that was just restored has none yet, and opens as one that was there before;
- where another store has its marker and this one has none, it is refused unless `shared_tier2` says
  that it is meant. A store that was there is asked about this in one listing beside its recovery,
  and opens if Tier 2 does not answer soon. Then its uploads wait for the same check;
- a marker that is missing, though this store has objects there, is put back, at the opening and
  later: one check in CHECK_INTERVAL_S;
- the store's own folder is not checked, but marked like any other place: another store may name it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from segmentstore.contracts.owned_tasks import own_task
from tier2.object_storage import (
    ObjectStorage,
    ObjectStorageError,
    StorageRefusedError,
    StorageUnavailableError,
)
from tier2.store_markers import PlaceTakenError, StoreMarkers

AGAIN_S = 60.0
"""From a check that failed to the next, at most; the first ones come sooner, from AGAIN_MIN_S
on.
"""
AGAIN_MIN_S = 5.0
LATER_S = 5.0
"""From the opening to the check of a store that was there: a reopening costs one listing, and
leaves no probe.
"""
CHECK_INTERVAL_S = 600.0
"""Between two searches for the marker while the store is open."""
CHECK_TIMEOUT_S = 2.0
"""How long an opening waits for the listing of the markers."""
TIMEOUT_S = 2.0
"""How long a close lets a check come to its end: cut off, it may leave its probe behind."""


def _never() -> bool:
    return False


class Tier2Start:
    """The beginning of one store's lifetime with its Tier 2."""

    def __init__(
        self, storage: ObjectStorage, markers: StoreMarkers, *, is_own_folder: bool = False
    ) -> None:
        self._storage = storage
        self._is_own_folder = is_own_folder
        self._markers = markers
        self._task: asyncio.Task[None] | None = None
        self._check: asyncio.Task[bool] | None = None
        self._finding = ""
        self._outlived: Callable[[], bool] = _never
        self._checking = False

    async def require_answer(self) -> None:
        """For a store being made.

        Raises ConfigError (it cannot be its Tier 2, and why), TierUnavailableError.
        """
        try:
            known = await self._markers.is_known(begun=False)
            await self._storage.check()
            if not known:
                await self._markers.make()
        except StorageUnavailableError as error:
            if not isinstance(error, StorageRefusedError):
                raise TierUnavailableError("tier2", str(error)) from error
            raise ConfigError("tier2", str(error)) from error
        except ObjectStorageError as error:
            # What was just put is absent, or another's: nothing that could be Tier 2.
            raise ConfigError("tier2", str(error)) from error

    def begin(self) -> None:
        """For a store that was there, or is in its own folder: check in the background until a
        check has passed.
        """
        self._check = own_task(self._markers.is_known(), name="tier2 markers")
        self._check.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._task = own_task(self._keep_trying(), name="tier2 check")

    async def checked(self, has_objects: Callable[[], bool], *, created: bool) -> None:
        """The end of the check that `begin` has begun.

        Raises ConfigError: another store is there, and this one is not known.

        The marker is put back if `has_objects` says that this store has put objects there. It is
        put at once if the store was just `created`: in its own folder, where that costs next to
        nothing.
        """
        if self._check is None:
            return
        await asyncio.wait((self._check,), timeout=CHECK_TIMEOUT_S)
        if not self._check.done():
            return
        try:
            if not self._check.result():
                if created:
                    await self._markers.ensure()
                elif has_objects():
                    await self._markers.restore()
        except PlaceTakenError as error:
            raise ConfigError("tier2", str(error)) from error
        except ObjectStorageError:
            pass  # The check says so in health.

    async def stop(self) -> None:
        """End what runs and wait for it. Idempotent."""
        if self._check is not None and not self._check.done():
            self._check.cancel()
            await asyncio.wait((self._check,))
        if self._task is not None:
            if self._checking:
                await asyncio.wait((self._task,), timeout=TIMEOUT_S)
            while not self._task.done():
                # Again and again: a check that is cut off deletes its probe first, and may wait for
                # that.
                self._task.cancel()
                await asyncio.wait((self._task,), timeout=TIMEOUT_S)

    def health(self) -> list[str]:
        """What requests wait for, and what the last check found. Of that nothing once one has
        passed, or the provider that did not answer has answered others.
        """
        waiting = [f"tier2 {self._storage.url} waits: {each}" for each in self._storage.health()]
        found = self._finding and not self._outlived()
        failed = f"tier2 failed its check at the start: {self._finding}"
        return [*waiting, failed] if found else waiting

    async def _keep_trying(self) -> None:
        pause, again = LATER_S, AGAIN_MIN_S
        while True:
            await asyncio.sleep(pause)
            self._checking = True
            try:
                # Not behind the check: what fails it may take objects all the same.
                await self._markers.ensure()
                await self._markers.shared_with()
                if not self._is_own_folder:
                    await self._storage.check()
            except Exception as error:  # noqa: BLE001
                # Whatever it is: without the check nothing else would report it.
                self._finding = str(error) or repr(error)
                self._outlived = (
                    error.outlived if isinstance(error, StorageUnavailableError) else _never
                )
                pause, again = again, min(2 * again, AGAIN_S)
            else:
                self._finding = ""
                break
            finally:
                self._checking = False
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            with suppress(StorageUnavailableError):
                await self._markers.shared_with()
