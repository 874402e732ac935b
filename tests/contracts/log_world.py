"""What outlives the logs of a contract, and what its tests do with logs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from durablelog.durable_data_log import DurableDataLog, LogAddress, LogFrame

PAYLOAD_BYTES_MAX = 400
"""Small, so that a few dozen frames roll over files or ledgers."""


class LogWorld(ABC):
    """What outlives the logs opened on it."""

    container_id: int = 0

    @abstractmethod
    def make_log(self) -> DurableDataLog:
        """A log not yet opened, with payloads up to PAYLOAD_BYTES_MAX."""

    @abstractmethod
    def usurp(self) -> None:
        """Make it possible to open a second log while the first is open, if the implementation can
        know a live owner.
        """

    @abstractmethod
    def fail_append_after(self, appends: int) -> None:
        """Let so many appends (each waited for) succeed and the next one fail."""


async def read_all(log: DurableDataLog, start: LogAddress | None = None) -> list[LogFrame]:
    return [frame async for batch in log.read(start) for frame in batch]


async def read_payloads(log: DurableDataLog, start: LogAddress | None = None) -> list[bytes]:
    return [bytes(frame.payload) for frame in await read_all(log, start)]


def payload(number: int, length: int = 120) -> bytes:
    return f"{number:06d}".encode().ljust(length, b".")


async def append_all(log: DurableDataLog, numbers: range) -> list[LogAddress]:
    return list(await asyncio.gather(*[log.append([payload(number)]) for number in numbers]))
