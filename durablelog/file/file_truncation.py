"""FileTruncation: the order in which an open file log leaves files behind, and removes them.

On the event loop; the work is done on the log's executors. Rules of this file:

- the state record, and the second names before it, are written on the writer thread, one change
  behind the other;
- nothing is removed while frames are read in sequence, nor what is read as a part. What stays
  behind goes with the next opening.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from durablelog.durable_data_log import LogAddress, LogFullError
from durablelog.file.file_preparer import FilePreparer
from durablelog.file.log_folder import LogFolder
from durablelog.file.room import NoRoomError
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
    TierUnavailableError,
)

_LOST = (OSError, NotPrimaryError, TierUnavailableError)


class FileTruncation:
    """Of one opening of a log.

    `running` gives the loop, the writer thread and the executor for files, or raises
    ContainerStoppedError. `give_up(doing, error)` ends the log for good, and gives what to raise.
    """

    def __init__(
        self,
        folder: LogFolder,
        preparer: FilePreparer,
        running: Callable[[], tuple[asyncio.AbstractEventLoop, Executor, Executor]],
        give_up: Callable[[str, Exception], SegmentStoreError],
    ) -> None:
        self._folder = folder
        self._preparer = preparer
        self._running = running
        self._give_up = give_up
        self._readings = 0

    async def truncate(self, address: LogAddress, retain_from: int | None) -> None:
        """As `DurableDataLog.truncate`, of a frame behind the truncation point."""
        folder = self._folder
        loop, writer_thread, helper = self._running()
        try:
            try:
                first = await loop.run_in_executor(
                    writer_thread, folder.truncate, address, retain_from
                )
            except NoRoomError:
                await loop.run_in_executor(helper, folder.make_truncation_room)
                first = await loop.run_in_executor(
                    self._running()[1], folder.truncate, address, retain_from
                )
        except NoRoomError as error:
            detail = f"truncating the log in {folder.directory}: {error}"
            self._preparer.put_off(detail)
            raise LogFullError(detail) from error
        except _LOST as error:
            # After an OSError it is unknown which state record counts, and with it whether we are
            # still the owner.
            raise self._give_up("truncating", error) from error
        folder.forget(first)
        await self._remove()

    async def delete_retained(self, below: int | None) -> None:
        """As `DurableDataLog.delete_retained`."""
        loop, writer_thread, _ = self._running()
        try:
            # Another owner may retain what we do not.
            await loop.run_in_executor(writer_thread, self._folder.check_ours)
        except _LOST as error:
            raise self._give_up("deleting files of", error) from error
        self._folder.truncated.delete_retained(below)
        await self._remove()

    def begin_reading(self) -> None:
        """Frames are read in sequence."""
        self._readings += 1

    def end_reading(self) -> None:
        """No more."""
        self._readings -= 1
        self.unpinned()

    def unpinned(self) -> None:
        """A file has lost a reader: remove what has none any more, beside everything else."""
        if self._readings:
            return
        try:
            _, _, helper = self._running()
        except ContainerStoppedError:
            return
        helper.submit(self._folder.discard_truncated, self._folder.truncated.take_removable())

    async def _remove(self) -> None:
        """Discard what has no reader."""
        if self._readings:
            return
        try:
            loop, _, helper = self._running()
        except ContainerStoppedError:
            return
        files = self._folder.truncated.take_removable()
        if files:
            await loop.run_in_executor(helper, self._folder.discard_truncated, files)
        if self._preparer.shortage:
            self._preparer.try_again()
