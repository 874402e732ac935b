"""MemoryLogFactory: the logs of a store that may forget, as long as a `MemoryLogStore` lives."""

from __future__ import annotations

from typing import ClassVar

from durablelog.durable_data_log import DurableDataLog
from durablelog.durable_data_log_factory import DurableDataLogFactory, LogOptions, StoredLogs
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from segmentstore.contracts.errors import ConfigError


class MemoryLogFactory(DurableDataLogFactory):
    """Logs in `store`, which nothing but its process can read."""

    is_durable: ClassVar[bool] = False
    place: ClassVar[str] = "in memory"

    def __init__(self, store: MemoryLogStore) -> None:
        self._store = store

    @property
    def tier1(self) -> str:
        return "memory"

    @property
    def url(self) -> str:
        return "memory"

    async def has_logs(self) -> bool:
        return self._store.has_logs

    def make_log(self, container_id: int, store_id: str, options: LogOptions) -> DurableDataLog:
        return MemoryDataLog(
            self._store,
            container_id,
            options.payload_bytes_max,
            epoch_min=options.epoch_min,
        )

    def make_view(self, container_id: int, store_id: str) -> DurableDataLog:
        raise ConfigError(
            "tier1", "the log is in memory: only the process that has it open can read it"
        )

    async def stored_logs(self, containers: int) -> StoredLogs:
        raise ConfigError("tier1", "a log in memory leaves nothing that could be read afterwards")

    async def check_unused(self) -> None:
        raise ConfigError("tier1", "a log in memory would be lost with this process")
