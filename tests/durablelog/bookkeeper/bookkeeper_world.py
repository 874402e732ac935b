"""One cluster and one tree of nodes in memory, and logs of one container on them, each in a process
of its own.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

from durablelog.bookkeeper.bookkeeper_log import BookKeeperLog
from durablelog.bookkeeper.log_metadata import LogMetadata, decode_record, encode_record
from durablelog.bookkeeper.log_options import BookKeeperLogOptions
from durablelog.bookkeeper.memory_nodes import MemoryNodes, NodeTree
from durablelog.bookkeeper.memory_process import MemoryProcess
from recovery.harness.simulation.virtual_loop import run_virtual
from segmentstore.contracts.runtime import Runtime
from tests.contracts.durable_data_log_contract import PAYLOAD_BYTES_MAX
from tests.durablelog.bookkeeper.memory_ledgers import MemoryCluster, MemoryLedgerStore
from tests.support.loop_clock import LoopClock

PATH = "/store/containers/3"
STORE_ID = "5d0c"
LEDGER_BYTES = 2000
"""A dozen frames of the contract's."""


def options(**changes: Any) -> BookKeeperLogOptions:
    return BookKeeperLogOptions(**{"ledger_bytes": LEDGER_BYTES, **changes})


class BookKeeperWorld:
    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.tree = NodeTree()
        self.rng = random.Random(6)

    def log(
        self,
        process: MemoryProcess | None = None,
        *,
        log_options: BookKeeperLogOptions | None = None,
        epoch_min: int = 1,
        store_id: str = STORE_ID,
    ) -> BookKeeperLog:
        process = process or MemoryProcess()
        return BookKeeperLog(
            3,
            Runtime(clock=LoopClock(), random=self.rng),
            MemoryLedgerStore(self.cluster, process),
            MemoryNodes(self.tree, process),
            PATH,
            store_id=store_id,
            options=log_options or options(),
            payload_bytes_max=PAYLOAD_BYTES_MAX,
            epoch_min=epoch_min,
        )

    async def opened(self, process: MemoryProcess | None = None, **changes: Any) -> BookKeeperLog:
        log = self.log(process, log_options=options(**changes))
        await log.open()
        return log

    @property
    def record(self) -> LogMetadata:
        content = self.tree.content(PATH)
        assert content is not None
        return decode_record(content.data, PATH)

    def put_record(self, record: LogMetadata) -> None:
        """As a tool would."""
        self.tree.put(PATH, encode_record(record))

    def ids_listed(self) -> list[int]:
        return [item.ledger_id for item in self.record.ledgers]

    def ids_removing(self) -> list[int]:
        return [each.ledger_id for each in self.record.removing]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    run_virtual(coroutine)
