"""LogView: what views of a log have in common: they read without owning, and change nothing."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence

from durablelog.durable_data_log import DataLogStatistics, DurableDataLog, LogAddress
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import TierUnavailableError


class LogChangedError(TierUnavailableError):
    """An owner elsewhere opened or truncated the log while it was viewed: nothing more can be read.

    The caller's move: view it again. All that was in it is in the log, or in its archive.
    """

    def __init__(self, detail: str) -> None:
        super().__init__("tier1", f"{detail}: try again")
        self.is_final = False
        """It was viewed again for a while, and each view came to this."""


class LogView(DurableDataLog):
    """A log as it stands.

    Appends and truncations are refused with TierUnavailableError. Its epoch is that of the last
    owner. Where an owner changes the log meanwhile, reading raises LogChangedError.
    """

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the log is, for people."""

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """Bytes of the log, and the files or ledgers that they are in."""

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[LogAddress]:
        del payload
        future: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
        future.set_exception(self._refusal())
        return future

    async def truncate(self, address: LogAddress, retain_from: int | None = None) -> None:
        del address, retain_from
        raise self._refusal()

    async def delete_retained(self, below: int | None = None) -> None:
        del below
        raise self._refusal()

    def statistics(self) -> DataLogStatistics:
        log_bytes, files = self.size
        return DataLogStatistics(
            epoch=self.epoch,
            frames_in_flight=0,
            bytes_in_flight=0,
            frames_appended=0,
            bytes_appended=0,
            syncs=0,
            log_bytes=log_bytes,
            files=files,
        )

    def _refusal(self) -> TierUnavailableError:
        return TierUnavailableError("tier1", f"the log {self.place} is only viewed, not owned")
