"""Tier 1 of a simulated world's process on the simulated service."""

from __future__ import annotations

from typing import ClassVar

from durablelog.durable_data_log import DurableDataLog
from durablelog.durable_data_log_factory import DurableDataLogFactory, LogOptions, StoredLogs
from recovery.harness.simulation.ledger import SimulatedLedgerLog, SimulatedLedgerStore
from recovery.harness.simulation.storage_process import StorageProcess
from segmentstore.contracts.errors import ConfigError


class SimulatedLedgerFactory(DurableDataLogFactory):
    """The logs of a store whose identity is in its folder, which all its processes have."""

    place: ClassVar[str] = "in the simulated service"

    def __init__(self, store: SimulatedLedgerStore, process: StorageProcess) -> None:
        self._store = store
        self._process = process

    @property
    def tier1(self) -> str:
        return "file"

    @property
    def url(self) -> str:
        return "the simulated service"

    async def has_logs(self) -> bool:
        return self._store.has_logs

    def make_log(self, container_id: int, store_id: str, options: LogOptions) -> DurableDataLog:
        return SimulatedLedgerLog(
            self._store, container_id, self._process, options.payload_bytes_max
        )

    def make_view(self, container_id: int, store_id: str) -> DurableDataLog:
        raise ConfigError("tier1", "the simulated service has no views")

    async def stored_logs(self, containers: int) -> StoredLogs:
        raise ConfigError("tier1", "the simulated service is not looked at")

    async def check_unused(self) -> None:
        raise ConfigError("tier1", "no store is restored to the simulated service")
