"""The log on BookKeeper against the contract of logs, on ledgers and nodes in memory."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from durablelog.durable_data_log import DurableDataLog
from tests.contracts.durable_data_log_contract import DurableDataLogContract, LogWorld
from tests.durablelog.bookkeeper.bookkeeper_world import BookKeeperWorld, run


class _World(LogWorld):
    container_id = 3

    def __init__(self) -> None:
        self.inner = BookKeeperWorld()

    def make_log(self) -> DurableDataLog:
        return self.inner.log()

    def usurp(self) -> None:
        """Nothing here shows a live owner on BookKeeper."""

    def fail_append_after(self, appends: int) -> None:
        self.inner.cluster.fail_add(-999, after=appends)


class TestBookKeeperLog(DurableDataLogContract):
    def make_world(self, tmp_path: Path) -> LogWorld:
        return _World()

    @staticmethod
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        run(coroutine)
