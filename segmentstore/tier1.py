"""The kinds of Tier 1, by the setting `tier1`: the one place that distinguishes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from durablelog.bookkeeper.bookkeeper_url import is_bookkeeper_url
from durablelog.durable_data_log_factory import DurableDataLogFactory, LogOptions
from durablelog.file.file_log_factory import FileLogFactory
from segmentstore.config import StoreConfig
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import redacted
from segmentstore.store_folder import logs_folder

if TYPE_CHECKING:
    from durablelog.bookkeeper.bookkeeper_clients import OpenClients


def make_log_factory(
    tier1: str,
    location: str,
    environment: Mapping[str, str],
    runtime: Runtime,
    *,
    connect: OpenClients | None = None,
) -> DurableDataLogFactory:
    """Tier 1 of the store in a folder, not opened yet.

    `environment` may hold secrets of services, and `connect` connects to BookKeeper, as
    `open_clients` does. Raises ConfigError: the setting names nothing.
    """
    # Not at the top: each kind is loaded by its first store.
    if is_bookkeeper_url(tier1):
        from durablelog.bookkeeper.bookkeeper_clients import open_clients  # noqa: PLC0415
        from durablelog.bookkeeper.bookkeeper_log_factory import (  # noqa: PLC0415
            BookKeeperLogFactory,
        )

        return BookKeeperLogFactory(tier1, environment, runtime, connect=connect or open_clients)
    if tier1 == "file":
        return FileLogFactory(logs_folder(os.path.abspath(location)), runtime)
    if tier1 == "memory":
        from durablelog.memory_data_log import MemoryLogStore  # noqa: PLC0415
        from durablelog.memory_log_factory import MemoryLogFactory  # noqa: PLC0415

        return MemoryLogFactory(MemoryLogStore())
    raise ConfigError(
        "tier1", f'{redacted(tier1)!r} is not "file", "memory" or a bookkeeper:// URL'
    )


def log_options(config: StoreConfig) -> LogOptions:
    """How the logs of a store with these settings are written."""
    return LogOptions(config.frame_bytes_max, config.file_bytes)
