"""The identity of the store in a folder: kept with the logs where they are shared, else in
store.toml.

Rules of this file:

- the identity that is kept with shared logs is the only authority: a store.toml or an option that
  differs from it is refused;
- store.toml is written after the identity is agreed. The store is confirmed later, when its Tier 2
  has passed its check: until then its maker may withdraw it.
"""

from __future__ import annotations

from typing import NamedTuple

from durablelog.durable_data_log_factory import DurableDataLogFactory, StoreIdentity
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import (
    ConfigError,
    DataCorruptionError,
    NotAStoreError,
    StoreInUseError,
)
from segmentstore.contracts.urls import redacted
from segmentstore.locked_folder import LockedFolder, Requested, on_disk
from segmentstore.store_file import FILE_NAME, StoreFile
from segmentstore.store_folder import change_tier1, new_store_id, tier2_url, write_store_file
from tier2.credentials import stands_for
from tier2.locations import check_object_storage_url


class AgreedStore(NamedTuple):
    """The store that a folder belongs to."""

    file: StoreFile
    identity: StoreIdentity
    config: StoreConfig
    created: bool
    """This opening made the store."""
    new: bool
    """This opening wrote the folder's store.toml: it made the store or joined it."""


async def agree_on_identity(folder: LockedFolder, requested: Requested) -> AgreedStore:
    """Agree with Tier 1, which is open, on the store of a locked folder; a new folder makes a store
    or joins one.

    Durable when this returns. Raises ConfigError (the folder is of another store),
    DataCorruptionError (the identity is missing), StoreInUseError (another process was first),
    TierUnavailableError, ReadOnlyFileSystemError.
    """
    runtime, location, logs = requested.runtime, folder.location, folder.logs
    if folder.file is not None:
        return await _known_store(folder, folder.file, requested)
    wished = StoreIdentity(
        new_store_id(runtime),
        folder.config.containers,
        tier2_url(location, folder.config),
        folder.config.shared_tier2,
    )
    identity, created = await logs.make_or_join_store(wished)
    if logs.is_shared:
        fixed = {"tier1": logs.tier1, **_fixed_settings(identity)}
        config = requested.without_own_tier2().merged(fixed, existing=True)
        check_object_storage_url(config.tier2)
    else:
        config = requested.merged({}, existing=False)
    file = await on_disk(
        runtime,
        location,
        write_store_file,
        location,
        identity.store_id,
        config,
        runtime,
        wished.store_id,
    )
    if file.store_id != identity.store_id:
        # This process lost the lock without noticing, and another process was first.
        if not logs.is_shared and file.settings["tier1"] != logs.tier1:
            # Its logs are elsewhere: those here would be a second log of the same store.
            raise StoreInUseError(
                location, "another process has just made the store: open it again"
            )
        return await _known_store(folder, file, requested)
    return AgreedStore(file, identity, config, created=created, new=True)


async def _known_store(folder: LockedFolder, file: StoreFile, requested: Requested) -> AgreedStore:
    location, runtime = folder.location, requested.runtime
    identity = await check_identity(folder.logs, file, location)
    if folder.logs.is_shared:
        requested = requested.without_own_tier2()
    config = requested.merged(file.settings, existing=True)
    check_object_storage_url(tier2_url(location, config))
    if file.settings["tier1"] != config.tier1:
        # Another URL of the same store: its id is kept there.
        file = await on_disk(runtime, location, change_tier1, location, file, config.tier1, runtime)
    return AgreedStore(file, identity, config, created=False, new=False)


def _fixed_settings(identity: StoreIdentity) -> dict[str, object]:
    """The settings that are fixed with the store."""
    return {
        "containers": identity.containers,
        "tier2": identity.tier2,
        "shared_tier2": identity.shared_tier2,
    }


async def check_identity(
    logs: DurableDataLogFactory, file: StoreFile | None, location: str
) -> StoreIdentity:
    """The identity of the store in a folder; changes nothing. `file` is its store.toml, None if it
    has none.

    Raises NotAStoreError (neither the folder nor Tier 1 has a store), ConfigError (the folder
    belongs to another store), DataCorruptionError (the identity is lost), TierUnavailableError.
    """
    identity = await logs.read_identity()
    if not logs.is_shared:
        if file is None:
            raise NotAStoreError(location, f"it has no {FILE_NAME}")
        return _identity_in(file)
    if file is None:
        if identity is None:
            raise NotAStoreError(logs.url, "its node is absent, or empty")
        return identity
    if identity is None:
        detail = (
            f"it is missing, or empty, and {FILE_NAME} says that store {file.store_id} was "
            "made: nothing was changed"
        )
        raise DataCorruptionError(f"the node of {logs.url}", detail)
    _check_same(_identity_in(file), identity, logs.url)
    return identity


def _identity_in(file: StoreFile) -> StoreIdentity:
    settings = file.settings
    return StoreIdentity(file.store_id, int(str(settings["containers"])), str(settings["tier2"]))


def _check_same(here: StoreIdentity, there: StoreIdentity, url: str) -> None:
    """Raise ConfigError unless a folder's store.toml agrees with the identity kept at `url`."""
    if here.store_id != there.store_id:
        detail = f"the folder is of store {here.store_id}, and {url} holds store {there.store_id}"
        raise ConfigError(FILE_NAME, detail)
    if here.containers != there.containers:
        raise ConfigError("containers", _differs(here.containers, there.containers))
    if not stands_for(here.tier2, there.tier2):
        raise ConfigError("tier2", _differs(redacted(here.tier2), redacted(there.tier2)))


def _differs(here: object, there: object) -> str:
    return f"{FILE_NAME} says {here!r}, but the store was made with {there!r}"
