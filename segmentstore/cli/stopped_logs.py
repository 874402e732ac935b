"""The logs of a stopped store, read without changing them: one interface, wherever they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Protocol, Self

from durablelog.durable_data_log import LogAddress
from durablelog.durable_data_log_factory import OrphanSearch, StoredLogs
from durablelog.file.frame_reports import FrameReport, read_only_frames
from durablelog.file.log_state import lock_log, read_state
from segmentstore.cli.bookkeeper_store import BookKeeperStore
from segmentstore.cli.exit_codes import CommandError
from segmentstore.contracts.errors import TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from segmentstore.store_folder import log_directory
from segmentstore.tier1 import make_log_factory


class StoppedLogs(Protocol):
    """The logs of all containers; a context manager that keeps owners out, where that is
    possible.
    """

    @property
    def position_unit(self) -> str:
        """What the position of a frame's report counts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def frames(self, container_id: int, start: LogAddress | None = None) -> Iterator[FrameReport]:
        """Every frame, good or bad, from the truncation point or from `start`."""

    def last_epoch(self, container_id: int) -> int | None:
        """Of the container's last owner; None if it never had one."""

    def stored_logs(self) -> StoredLogs:
        """The logs as `check_store` takes them."""

    def orphans(self) -> OrphanSearch:
        """What no log lists. Raises TierUnavailableError."""

    def check_undisturbed(self) -> None:
        """Raise StoreInUseError if an owner opened a log since its frames were read."""


class StoppedFileLogs:
    """Logs in the store's folder, each of them locked."""

    position_unit = "offset"

    def __init__(self, location: str, container_ids: Collection[int], runtime: Runtime) -> None:
        self._folders = {each: log_directory(location, each) for each in container_ids}
        self._disk = runtime.disk
        self._locks = ExitStack()

    def __enter__(self) -> Self:
        try:
            for folder in self._folders.values():
                if self._is_there(folder):
                    self._locks.callback(lock_log(folder, self._disk).close)
        except BaseException:
            self._locks.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    def frames(self, container_id: int, start: LogAddress | None = None) -> Iterator[FrameReport]:
        folder = self._folders[container_id]
        if self._is_there(folder) and read_state(folder, self._disk) is not None:
            yield from read_only_frames(folder, self._disk, start=start)

    def last_epoch(self, container_id: int) -> int | None:
        folder = self._folders[container_id]
        state = read_state(folder, self._disk) if self._is_there(folder) else None
        return state.epoch if state is not None else None

    def stored_logs(self) -> StoredLogs:
        return dict(self._folders)

    def orphans(self) -> OrphanSearch:
        return OrphanSearch()

    def check_undisturbed(self) -> None:
        """No owner can: the logs are locked."""

    def _is_there(self, folder: str) -> bool:
        """False: the container has no log yet."""
        try:
            return self._disk.is_directory(folder)
        except OSError as error:
            raise TierUnavailableError("tier1", str(error)) from error


def open_stopped_logs(
    location: str,
    tier1: str,
    container_ids: Collection[int],
    runtime: Runtime,
    shared: Callable[[str], StoppedLogs] = BookKeeperStore,
) -> StoppedLogs:
    """The logs of the store in a folder, which is locked; `shared` makes those that many folders
    open.

    Raises CommandError: they ended with the process that wrote them.
    """
    logs = make_log_factory(tier1, location, os.environ, runtime)
    if logs.is_shared:
        return shared(location)
    if not logs.is_durable:
        raise CommandError(f"the log of {location} is {logs.place}: there is none on disk to read")
    return StoppedFileLogs(location, container_ids, runtime)
