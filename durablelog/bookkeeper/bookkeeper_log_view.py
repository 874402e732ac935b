"""BookKeeperLogView: a log on BookKeeper as it stands, read without owning it: nothing is claimed,
fenced or written.

The owner of the log is not disturbed. Rules of this file:

- what is shown was acknowledged: closed ledgers to their ends, the open one up to what its writer
  has confirmed to the bookies (LedgerStore.confirmed). Of a writer that was killed the last frames
  may be missing until the log is opened;
- what is shown begins with a whole record, the checkpoint, which was acknowledged before its owner
  truncated at it. Bookies may know of its first frames alone: the others are read all the same;
- a ledger is never recovered from here, whatever its state;
- what is missing is corruption only if the record is still the one that was read: its owner may
  have truncated meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_addresses import split_address
from durablelog.bookkeeper.ledger_calls import wrong_password
from durablelog.bookkeeper.ledger_parts import LedgerParts
from durablelog.bookkeeper.ledger_reading import LedgerReader, LedgerStretch, stretches_of
from durablelog.bookkeeper.ledger_store import LedgerError, LedgerStore
from durablelog.bookkeeper.log_metadata import LedgerItem, LogMetadata, decode_record
from durablelog.bookkeeper.log_options import BookKeeperLogOptions
from durablelog.bookkeeper.metadata_node import (
    MetadataNodes,
    NodeRefusedError,
    NodeUnavailableError,
)
from durablelog.bookkeeper.waiting import Waiting
from durablelog.data_frame_reader import DataFrameReader
from durablelog.durable_data_log import LogAddress, LogFrame, SealedPart
from durablelog.log_view import LogChangedError, LogView
from segmentstore.contracts.errors import (
    ConfigError,
    ContainerStoppedError,
    DataCorruptionError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.health import HealthNotes
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.runtime import Runtime

_PAYLOAD_BYTES_MAX: Final = 1024 * 1024 - 1024


class BookKeeperLogView(LogView):
    """The log whose record is the node at `path`; absent, it is empty.

    What an owner appends after `open` is not seen; if it truncates meanwhile, a reading may end
    with LogChangedError. `open` raises ConfigError besides (another store's record,
    no rights, another password).
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
        self._rng = runtime.random
        self._ledgers = ledgers
        self._nodes = nodes
        self._path = path
        self._options = options
        self._nothing = LogMetadata(store_id=store_id, container_id=container_id)
        self.record = self._nothing
        """As it was when this was opened."""
        self._ends: dict[int, int] = {}
        """The last entry to show, by the ledger's sequence in the log."""
        self._reader = LedgerReader(
            ledgers,
            container_id,
            runtime.random,
            password_from=options.password_from,
            check_owner=self._check_unchanged,
            fail=_ignore,
        )
        self._clock = runtime.clock
        self._parts = LedgerParts(
            container_id,
            ledgers,
            runtime.random,
            record=lambda: self.record,
            check_owner=self._check_unchanged,
            password_from=options.password_from,
            recovers=False,
        )
        self._opened = False
        self._closed = False

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def payload_bytes_max(self) -> int:
        return _PAYLOAD_BYTES_MAX

    @property
    def place(self) -> str:
        return self._path

    @property
    def size(self) -> tuple[int, int]:
        return sum(item.length for item in self.record.ledgers), len(self.record.ledgers)

    async def open(self) -> None:
        if self._closed or self._opened:
            raise ContainerStoppedError(self._container_id)
        self._opened = True
        deadline = asyncio.get_running_loop().time() + self._options.open_timeout_s
        waiting = Waiting(self._rng, HealthNotes(), "viewing", deadline=deadline)
        self.record = await waiting.for_node(self._read_record)
        first, entry = split_address(self.record.truncation_address)
        for item in self.record.ledgers:
            # The truncation point is an acknowledged frame, whatever was confirmed to bookies yet.
            self._ends[item.sequence] = max(
                await self._end_of(item, waiting), entry if item.sequence == first else -1
            )
            self._reader.sealed(item.ledger_id)
        await self._begin_whole()
        self._parts.begin(self._clock.time_ms())

    def read(self, start: LogAddress | None = None) -> AsyncGenerator[Sequence[LogFrame], None]:
        return self._read(start)

    def sealed_parts(self, above: int = 0) -> Sequence[SealedPart]:
        return self._parts.sealed(above)

    async def open_part(self, number: int) -> ReadHandle:
        return await self._parts.open(number)

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
        await self._parts.close()

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
                if answer is Reaction.NO_LEDGER:
                    await waiting.for_node(self._check_unchanged)
                    raise DataCorruptionError(
                        f"ledger {item.ledger_id}", "it is missing, the record lists it"
                    ) from error
                if answer is Reaction.FATAL:
                    raise TierUnavailableError("tier1", what) from error
                await waiting.again(what)
        return item.last_entry

    async def _begin_whole(self) -> None:
        """Show the record at the truncation point to its end.

        Reads its frames, if the last ledger is being written.
        """
        record = self.record
        if (
            not record.truncation_address
            or not record.ledgers
            or record.ledgers[-1].last_entry is not None
        ):
            return
        head = DataFrameReader()
        if await self._completes(head, self._stretches(None)):
            return
        open_one = record.ledgers[-1]
        while True:
            last = self._ends[open_one.sequence] + 1
            whole = await self._completes(head, [LedgerStretch(open_one, last, last)])
            self._ends[open_one.sequence] = last
            if whole:
                return

    async def _completes(self, head: DataFrameReader, stretches: Sequence[LedgerStretch]) -> bool:
        """Whether a record ends there, or what cannot be one, which its reader will say."""
        async with aclosing(self._reader.read(stretches)) as reading:
            async for frames in reading:
                try:
                    if any(head.feed(frame) for frame in frames):
                        return True
                except DataCorruptionError:
                    return True
        return False

    def _stretches(self, start: LogAddress | None) -> list[LedgerStretch]:
        return stretches_of(self.record, start, lambda item: self._ends[item.sequence])

    async def _read(self, start: LogAddress | None) -> AsyncGenerator[Sequence[LogFrame], None]:
        if self._closed or not self._opened:
            raise ContainerStoppedError(self._container_id)
        async with aclosing(self._reader.read(self._stretches(start))) as reading:
            async for frames in reading:
                if self._closed:
                    raise ContainerStoppedError(self._container_id)
                yield frames

    async def _read_record(self) -> LogMetadata:
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
        """Raises LogChangedError, and NodeUnavailableError."""
        record = await self._read_record()
        before = self.record
        if (record.epoch, record.truncation_address) != (before.epoch, before.truncation_address):
            raise LogChangedError(f"the log {self._path} was opened or truncated while it was read")


def _ignore(_error: SegmentStoreError) -> None:
    """A view that cannot be read ends with its reader."""
