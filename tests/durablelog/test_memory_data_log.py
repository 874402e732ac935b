"""The memory log against the contract, and its hooks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from durablelog.durable_data_log import DurableDataLog
from durablelog.memory_data_log import MemoryDataLog, MemoryLogStore
from segmentstore.contracts.errors import TierUnavailableError
from tests.contracts.durable_data_log_contract import (
    PAYLOAD_BYTES_MAX,
    DurableDataLogContract,
    LogWorld,
    read_payloads,
)


class _MemoryWorld(LogWorld):
    def __init__(self) -> None:
        self.store = MemoryLogStore(part_bytes=4096)

    def make_log(self) -> DurableDataLog:
        return MemoryDataLog(self.store, 0, PAYLOAD_BYTES_MAX)

    def usurp(self) -> None:
        """Nothing shows a live owner in memory."""

    def fail_append_after(self, appends: int) -> None:
        self.store.fail_append_after(appends)


class TestMemoryDataLog(DurableDataLogContract):
    def make_world(self, tmp_path: Path) -> LogWorld:
        return _MemoryWorld()


@pytest.mark.parametrize("keep", [False, True])
def test_a_failed_append_may_be_in_the_log_or_not(keep: bool) -> None:
    async def scenario() -> None:
        store = MemoryLogStore()
        log = MemoryDataLog(store, 3)
        await log.open()
        store.fail_append_after(0, OSError("planned"), container_id=3, keep=keep)
        with pytest.raises(OSError, match="planned"):
            await log.append([b"a"])
        with pytest.raises(OSError, match="planned"):
            await log.append([b"b"])
        again = MemoryDataLog(store, 3)
        await again.open()
        assert await read_payloads(again) == ([b"a"] if keep else [])
        assert [bytes(frame.payload) for frame in store.frames(3)] == ([b"a"] if keep else [])

    asyncio.run(scenario())


def test_containers_are_apart() -> None:
    async def scenario() -> None:
        store = MemoryLogStore()
        logs = [MemoryDataLog(store, container_id) for container_id in (0, 1)]
        for log in logs:
            await log.open()
        store.fail_append_after(0, container_id=1)
        await logs[0].append([b"a"])
        with pytest.raises(TierUnavailableError):
            await logs[1].append([b"b"])
        assert [len(store.frames(container_id)) for container_id in (0, 1)] == [1, 0]

    asyncio.run(scenario())


def test_a_payload_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="payload_bytes_max"):
        MemoryDataLog(MemoryLogStore(), 0, 0)
