"""What is done about a Tier 2 that others can see when a store opens: it is looked over, and the store makes itself known there.

Rules of this file:

- a store is made only on a Tier 2 that passed its check: nothing is acknowledged yet, so nothing is lost by refusing;
- a store that was made before opens whatever Tier 2 does: appends need the log alone. The check runs beside it then,
  and what is wrong shows in `health` until a check has passed;
- the marker (tier2/store_markers.py) is there before the store's first object: uploads see to it too, for a store that
  was just restored has none yet, and opens as one that was there before.
"""

from __future__ import annotations

import asyncio

from segmentstore.contracts.errors import ConfigError, TierUnavailableError
from tier2.object_storage import ObjectStorage, ObjectStorageError, StorageRefusedError, StorageUnavailableError
from tier2.store_markers import StoreMarkers

AGAIN_S = 60.0
"""From a check that failed to the next."""
LATER_S = 5.0
"""From the opening to the check of a store that was there: who only looks in costs no requests, and leaves no probe."""
PATIENCE_S = 2.0
"""How long a close lets a check come to its end: cut off, it may leave its probe behind."""


class Tier2Start:
    """The beginning of one store's life with its Tier 2."""

    def __init__(self, storage: ObjectStorage, markers: StoreMarkers) -> None:
        self._storage = storage
        self._markers = markers
        self._task: asyncio.Task[None] | None = None
        self._finding = ""
        self._checking = False

    async def insist(self) -> None:
        """For a store being made. Raises ConfigError (it cannot be its Tier 2, and why), TierUnavailableError."""
        try:
            await self._storage.check()
            await self._markers.ensure()
        except StorageUnavailableError as error:
            if not isinstance(error, StorageRefusedError):
                raise TierUnavailableError("tier2", str(error)) from error
            raise ConfigError("tier2", str(error)) from error
        except ObjectStorageError as error:
            # What was just put is absent, or another's: nothing that could be Tier 2.
            raise ConfigError("tier2", str(error)) from error

    def begin(self) -> None:
        """For a store that was there: check in the background until a check has passed."""
        self._task = asyncio.create_task(self._keep_trying(), name="tier2 check")

    async def stop(self) -> None:
        """End what runs and wait for it. Idempotent."""
        if self._task is not None:
            if self._checking:
                await asyncio.wait((self._task,), timeout=PATIENCE_S)
            while not self._task.done():
                # Again and again: a check that is cut off deletes its probe first, and may wait for that.
                self._task.cancel()
                await asyncio.wait((self._task,), timeout=PATIENCE_S)

    def health(self) -> list[str]:
        """What the last check found; nothing once one has passed."""
        return [f"tier2 failed its check at the start: {self._finding}"] if self._finding else []

    async def _keep_trying(self) -> None:
        pause = LATER_S
        while True:
            await asyncio.sleep(pause)
            self._checking = True
            try:
                # Not behind the check: what fails it may take objects all the same.
                await self._markers.ensure()
                await self._storage.check()
            except ObjectStorageError as error:
                self._finding = str(error)
                pause = AGAIN_S
            else:
                self._finding = ""
                return
            finally:
                self._checking = False
