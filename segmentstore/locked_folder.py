"""A store's folder, locked: what its store.toml says, what was asked for, and where the logs are.

The folder may be a store's already, or become one by this opening (segmentstore/store_identity.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from durablelog.durable_data_log_factory import DurableDataLogFactory
from segmentstore.config import StoreConfig
from segmentstore.contracts.disk import DiskFile, is_read_only
from segmentstore.contracts.errors import ReadOnlyFileSystemError, TierUnavailableError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import outlast
from segmentstore.settings_sources import ENVIRONMENT_PREFIX, merge_settings
from segmentstore.store_adapters import StoreAdapters
from segmentstore.store_file import StoreFile
from segmentstore.store_folder import (
    check_tier2_is_not_misplaced,
    keep_to_ourselves,
    leave_nothing,
    lock_folder,
    read_store_file,
    refuse_log_in_files,
    tier2_url,
)
from tier2.locations import check_archive_url, check_object_storage_url

T = TypeVar("T")


class Requested(NamedTuple):
    """What an opening was called with."""

    location: str
    """An absolute path."""
    options: Mapping[str, object]
    environment: Mapping[str, str]
    runtime: Runtime
    adapters: StoreAdapters

    def without(self, name: str) -> Requested:
        """With nothing said about one setting."""
        variable = ENVIRONMENT_PREFIX + name.upper()
        return self._replace(
            options={key: value for key, value in self.options.items() if key != name},
            environment={key: value for key, value in self.environment.items() if key != variable},
        )

    def without_own_tier2(self) -> Requested:
        """Without a `tier2` that says "the default": of a store whose logs are shared it is where
        the store was made.
        """
        given = self.options.get("tier2", self.environment.get(ENVIRONMENT_PREFIX + "TIER2"))
        return self.without("tier2") if given == "" else self

    def merged(self, settings: Mapping[str, object], *, existing: bool) -> StoreConfig:
        """The settings, over those of a store that is there. Raises ConfigError."""
        return merge_settings(self.options, self.environment, settings, existing=existing)

    def logs(self, tier1: str) -> DurableDataLogFactory:
        """Tier 1 by its setting, not opened yet. Raises ConfigError."""
        return self.adapters.logs(tier1, self.location, self.environment, self.runtime)


@dataclass(slots=True, kw_only=True)
class LockedFolder:
    """A folder that this process has locked."""

    location: str
    lock: DiskFile
    file: StoreFile | None
    """None of a folder that is no store yet."""
    config: StoreConfig
    """As far as it is known before Tier 1 was asked for the store's identity."""
    logs: DurableDataLogFactory
    """Not opened yet."""
    identity: tuple[int, int]
    """Device and inode, whatever the path is called."""
    created_folders: Sequence[str]
    """Those that were made for it, the lowest first."""
    runtime: Runtime
    is_store: bool = False
    """The store was opened: `release` leaves the folder as it is."""

    async def release(self) -> None:
        """Release the lock; a folder that did not become a store is left empty, or removed."""
        try:
            if self.file is None and not self.is_store:
                files = self.runtime.executor("open", 1)
                await asyncio.get_running_loop().run_in_executor(
                    files,
                    leave_nothing,
                    self.location,
                    self.lock,
                    self.created_folders,
                    self.runtime,
                )
                files.shutdown(wait=False)
        finally:
            self.lock.close()


def lock_store_folder(requested: Requested) -> LockedFolder:
    """Lock the folder, which is made if it is absent, and read its store.toml.

    Blocking. Raises StoreInUseError, NotAStoreError, ConfigError, OSError; then the folder is as it
    was.
    """
    location, runtime = requested.location, requested.runtime
    disk = runtime.disk
    file = read_store_file(location, runtime)
    config, logs = _known_settings(requested, file)
    # Before store.toml keeps it for ever: a store with a tier2 that cannot be opened could never be
    # repaired.
    check_object_storage_url(tier2_url(location, config), new=file is None)
    if config.archiving.place:
        check_archive_url(config.archiving.place, tier2_url(location, config))
    if file is not None and not config.tier2:
        check_tier2_is_not_misplaced(location, runtime)
    created_folders, lock = lock_folder(location, runtime)
    try:
        # Checked again under the lock: two processes may be making the same store.
        file = read_store_file(location, runtime)
        if file is not None:
            config, logs = _known_settings(requested, file)
            if not logs.is_durable:
                refuse_log_in_files(location, runtime)
            keep_to_ourselves(location, file, runtime)
            # Its writer may have died after the rename and before the folder's sync.
            disk.sync_directory(location)
        identity = disk.identity(location)
    except BaseException:
        leave_nothing(location, lock, created_folders, runtime)
        lock.close()
        raise
    return LockedFolder(
        location=location,
        lock=lock,
        file=file,
        config=config,
        logs=logs,
        identity=identity,
        created_folders=created_folders,
        runtime=runtime,
    )


def _known_settings(
    requested: Requested, file: StoreFile | None
) -> tuple[StoreConfig, DurableDataLogFactory]:
    """What the folder and the caller say, before Tier 1 is asked."""
    if file is None:
        # `serve` is checked later: Tier 1 may know how many containers there are.
        config = requested.without("serve").merged({}, existing=False)
    else:
        if requested.logs(str(file.settings["tier1"])).is_shared:
            requested = requested.without_own_tier2()
        config = requested.merged(file.settings, existing=True)
    return config, requested.logs(config.tier1)


async def on_disk(
    runtime: Runtime,
    location: str,
    call: Callable[..., T],
    *arguments: object,
    on_result: Callable[[T], object] | None = None,
) -> T:
    """Run a blocking call in a thread. `on_result` gets its result, even if this is cancelled.

    Cancelled, it ends when the call has ended. Raises ReadOnlyFileSystemError or
    TierUnavailableError for an OSError, and what else the call raises.
    """
    files = runtime.executor("open", 1)
    calling = asyncio.get_running_loop().run_in_executor(files, call, *arguments)
    cancelled = await outlast(calling)
    files.shutdown(wait=False)
    try:
        result = calling.result()
    except OSError as error:
        if is_read_only(error):
            raise ReadOnlyFileSystemError(location) from error
        raise TierUnavailableError("tier1", f"{location}: {error}") from error
    if on_result is not None:
        on_result(result)
    if cancelled:
        raise asyncio.CancelledError
    return result
