"""BookKeeperLogView: a log on BookKeeper as it stands, read without owning it: nothing is claimed,
fenced or written.

Whoever owns the log goes on undisturbed. Rules of this file:

- what is shown was acknowledged: closed ledgers to their ends, the one that is written up to what
  its writer has told the bookies (LedgerStore.confirmed). Of a writer that was killed the last
  frames may be missing until the log is opened;
- a ledger is never recovered from here, whatever its state;
- what is missing is corruption only if the record is still the one that was read: its owner may
  have truncated meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_addresses import split_address
from durablelog.bookkeeper.ledger_calls import wrong_password
from durablelog.bookkeeper.ledger_reading import LedgerReader, Stretch
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerStore
from durablelog.bookkeeper.log_options import BookKeeperLogOptions
from durablelog.bookkeeper.log_record import LedgerItem, LogRecord, decode_record
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.waiting import HealthNotes, Waiting
from durablelog.durable_data_log import DataLogStatistics, DurableDataLog, LogAddress, LogFrame
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    ConfigError,
    ContainerStoppedError,
    DataCorruptionError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.runtime import Runtime

_PAYLOAD_BYTES_MAX: Final = 1024 * 1024 - 1024


class BookKeeperLogView(DurableDataLog):
    """The log whose record is the node at `path`; absent, it is empty.

    Appends and truncations are refused (TierUnavailableError).

    Its epoch is that of the last owner. What an owner appends after `open` is not seen; if it
    truncates meanwhile, a reading may end with TierUnavailableError: try again. `open` raises
    ConfigError besides (another store's record, no rights, another password).
    """

    def __init__(
        self,
        container_id: int,
        runtime: Runtime,
        ledgers: LedgerStore,
        nodes: MetadataNodes,
        path: str,
        *,
        store_id: str,
        options: BookKeeperLogOptions,
    ) -> None:
        self._container_id = container_id
        self._chance = runtime.random
        self._ledgers = ledgers
        self._nodes = nodes
        self._path = path
        self._options = options
        self._nothing = LogRecord(store_id=store_id, container_id=container_id)
        self.record = self._nothing
        """As it was when this was opened."""
        self._stretches: list[Stretch] = []
        self._reader = LedgerReader(
            ledgers,
            container_id,
            runtime.random,
            password_from=options.password_from,
            check_owner=self._check_unchanged,
            fail=_ignore,
        )
        self._opened = False
        self._closed = False

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def payload_bytes_max(self) -> int:
        return _PAYLOAD_BYTES_MAX

    async def open(self) -> None:
        if self._closed or self._opened:
            raise ContainerStoppedError(self._container_id)
        self._opened = True
        deadline = asyncio.get_running_loop().time() + self._options.open_patience_s
        waiting = Waiting(self._chance, HealthNotes(), "viewing", deadline=deadline)
        self.record = await waiting.for_node(self._read_record)
        first, entry = split_address(self.record.truncation_address)
        for item in self.record.ledgers:
            begin = entry if item.sequence == first else 0
            # The truncation point is an acknowledged frame, whatever bookies have been told yet.
            last = max(await self._end_of(item, waiting), entry if item.sequence == first else -1)
            self._reader.sealed(item.ledger_id)
            self._stretches.append(Stretch(item, begin, last))

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[LogAddress]:
        del payload
        future: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
        future.set_exception(self._refusal())
        return future

    def read(self, start: LogAddress | None = None) -> AsyncIterator[Sequence[LogFrame]]:
        return self._read(start)

    async def truncate(self, address: LogAddress) -> None:
        del address
        raise self._refusal()

    async def check_primary(self) -> None:
        """Raise TierUnavailableError if the log was opened or truncated since this was opened."""
        try:
            await self._check_unchanged()
        except NodeUnavailableError as error:
            raise TierUnavailableError(
                "tier1", f"the log's record does not answer: {error}"
            ) from error

    async def close(self) -> None:
        self._closed = True

    def statistics(self) -> DataLogStatistics:
        return DataLogStatistics(
            epoch=self.record.epoch,
            frames_in_flight=0,
            bytes_in_flight=0,
            frames_appended=0,
            bytes_appended=0,
            syncs=0,
            log_bytes=sum(item.length for item in self.record.ledgers),
            files=len(self.record.ledgers),
        )

    def health(self) -> str | None:
        return None if self._closed else self._ledgers.health() or self._nodes.health()

    async def _end_of(self, item: LedgerItem, waiting: Waiting) -> int:
        """The last entry to show."""
        while item.last_entry is None:
            try:
                return await self._ledgers.confirmed(item.ledger_id)
            except LedgerError as error:
                what = (
                    f"ledger {item.ledger_id}: "
                    f"{code_text(error.code)}{': ' + error.detail if error.detail else ''}"
                )
                answer = reaction(LedgerCall.READ, error.code)
                if answer is Reaction.REFUSED:
                    raise wrong_password(
                        what, self._options.password_from, code=error.code
                    ) from error
                if answer is Reaction.GONE:
                    await waiting.for_node(self._check_unchanged)
                    raise DataCorruptionError(
                        f"ledger {item.ledger_id}", "it is gone, the record lists it"
                    ) from error
                if answer is Reaction.FATAL:
                    raise TierUnavailableError("tier1", what) from error
                await waiting.again(what)
        return item.last_entry

    async def _read(self, start: LogAddress | None) -> AsyncIterator[Sequence[LogFrame]]:
        if self._closed or not self._opened:
            raise ContainerStoppedError(self._container_id)
        sequence, entry = split_address(max(start or LogAddress(0), self.record.truncation_address))
        stretches = [
            each._replace(first=entry) if each.item.sequence == sequence else each
            for each in self._stretches
            if each.item.sequence >= sequence
        ]
        async for frames in self._reader.read(stretches):
            if self._closed:
                raise ContainerStoppedError(self._container_id)
            yield frames

    async def _read_record(self) -> LogRecord:
        try:
            content = await self._nodes.read(self._path)
        except NodeRefusedError as error:
            raise ConfigError("tier1", f"the record {self._path}: {error.detail}") from error
        if content is None:
            return self._nothing
        record = decode_record(content.data, self._path)
        if (record.store_id, record.container_id) != (self._nothing.store_id, self._container_id):
            theirs = f"container {record.container_id} of store {record.store_id}"
            raise ConfigError("tier1", f"{self._path} holds the log of {theirs}")
        return record

    async def _check_unchanged(self) -> None:
        """Raises TierUnavailableError, and NodeUnavailableError."""
        record = await self._read_record()
        before = self.record
        if (record.epoch, record.truncation_address) != (before.epoch, before.truncation_address):
            raise TierUnavailableError(
                "tier1",
                f"the log {self._path} was opened or truncated while it was read: try again",
            )

    def _refusal(self) -> TierUnavailableError:
        return TierUnavailableError("tier1", f"the log {self._path} is only viewed, not owned")


def _ignore(_error: SegmentStoreError) -> None:
    """A view that cannot be read ends with its reader."""
