"""The closed ledgers of a log as its parts.

Rules of this file:

- a ledger is a part once the record has its end. What the record says counts: frames behind that
  end, of a fenced owner, are none of the log's;
- metadata are BookKeeper's own. A ledger of an owner that did not close it is recovered first, but
  never for a view;
- a ledger that a reader has open as a part is pinned: `LedgerDeleter` waits with it;
- a reading has a connection to the gateway while it fetches, never while its caller works or waits:
  there are few, and replays need them;
- when a ledger of an earlier owner was sealed is known once BookKeeper was asked when the next one
  was created, which the first call for the parts begins. Until then it is the latest possible time.
  Of retained ledgers it is not needed, and there may be many: BookKeeper is not asked for theirs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from durablelog.bookkeeper.entry_checks import place
from durablelog.bookkeeper.failure_codes import LedgerCall, Reaction, code_text, reaction
from durablelog.bookkeeper.ledger_addresses import make_address
from durablelog.bookkeeper.ledger_calls import wrong_password
from durablelog.bookkeeper.ledger_reading import READ_TRIES, LedgerReader, LedgerStretch
from durablelog.bookkeeper.ledger_store import (
    LedgerDescription,
    LedgerError,
    LedgerState,
    LedgerStore,
)
from durablelog.bookkeeper.log_metadata import LedgerItem, LogMetadata
from durablelog.bookkeeper.waiting import FIRST_S, MOST_S
from durablelog.durable_data_log import SealedPart
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    InvalidArgumentError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.ledgers import (
    LedgerEntry,
    LedgerMetadata,
    LedgerNotFoundError,
    ReadHandle,
)
from segmentstore.contracts.owned_tasks import own_task

STEP_BYTES: Final = 4 * 1024 * 1024
"""Fetched at once, and one batch of the gateway more; each costs an opening of the ledger."""


class _Pin(NamedTuple):
    handles: int
    length: int


def _nothing(_ledger_id: int) -> None:
    """A view deletes no ledger."""


class LedgerParts:
    """For one opening, or view, of a log.

    `record` gives the record as it is known, `check_owner` checks it. `recovers` is False for a
    view.
    """

    on_unpinned: Callable[[int], None] = staticmethod(_nothing)
    """Called with a ledger's id when it has lost its last reader."""

    def __init__(
        self,
        container_id: int,
        ledgers: LedgerStore,
        rng: random.Random,
        *,
        record: Callable[[], LogMetadata],
        check_owner: Callable[[], Awaitable[None]],
        password_from: str,
        recovers: bool,
    ) -> None:
        self._container_id = container_id
        self._ledgers = ledgers
        self._rng = rng
        self._record = record
        self._check_owner = check_owner
        self._password_from = password_from
        self._recovers = recovers
        self._pins: dict[int, _Pin] = {}
        self._created_ms: dict[int, int] = {}
        self._ended_ms: dict[int, int] = {}
        self._opened_ms = 0
        self._open = False
        self._asking: asyncio.Task[None] | None = None

    def begin(self, now_ms: int) -> None:
        """The log is open."""
        self._open, self._opened_ms = True, now_ms

    def ended(self, sequence: int, now_ms: int) -> None:
        """A ledger of this opening took its last frame."""
        self._ended_ms[sequence] = now_ms

    def is_pinned(self, ledger_id: int) -> bool:
        """It is being read."""
        return ledger_id in self._pins

    @property
    def held_bytes(self) -> int:
        """Of pinned ledgers that the record does not list any more."""
        if not self._pins:
            return 0
        listed = {item.ledger_id for item in self._record().parts}
        return sum(pin.length for ledger_id, pin in self._pins.items() if ledger_id not in listed)

    def health(self) -> str | None:
        """A sentence, if what is read takes room that truncation would free."""
        held = self.held_bytes
        return f"{held} bytes of truncated ledgers are kept, for they are read" if held else None

    @property
    def retained_bytes(self) -> int:
        """Of retained ledgers. O(these)."""
        return sum(item.length for item in self._record().retained)

    def sealed(self, above: int = 0) -> list[SealedPart]:
        """Parts of higher numbers. Raises ContainerStoppedError."""
        self.check_open()
        parts: list[SealedPart] = []
        latest_ms = self._opened_ms
        unknown: list[int] = []
        record = self._record()
        for item in reversed(record.parts):
            if item.sequence <= above:
                break
            if item.last_entry is not None and not item.is_empty:
                parts.append(
                    SealedPart(
                        item.sequence,
                        item.ledger_id,
                        make_address(item.sequence, 0),
                        make_address(item.sequence, item.last_entry + 1),
                        item.length,
                        self._ended_ms.get(item.sequence, latest_ms),
                    )
                )
            created_ms = self._created_ms.get(item.ledger_id)
            if created_ms is not None:
                # Ledgers of old clusters may have no time.
                latest_ms = min(latest_ms, created_ms) if created_ms > 0 else latest_ms
            elif (
                item.sequence not in self._ended_ms
                and not item.is_open
                and item.sequence >= record.ledgers[0].sequence
            ):
                unknown.append(item.ledger_id)
        self._forget(record)
        if unknown and self._asking is None:
            self._asking = own_task(self._ask(unknown), name="ask-ledgers")
        parts.reverse()
        return parts

    async def open(self, number: int) -> ReadHandle:
        """One part.

        Raises ContainerStoppedError, LedgerNotFoundError, TierUnavailableError, ConfigError,
        DataCorruptionError, and what `check_owner` raises.
        """
        self.check_open()
        record = self._record()
        item = next((item for item in record.parts if item.sequence == number), None)
        if item is None or item.is_open or item.is_empty:
            raise LedgerNotFoundError(number, f"the log of container {self._container_id}")
        self._pin(item)
        try:
            metadata = await self._metadata(item)
            self.check_open()
        except (Exception, asyncio.CancelledError):
            self.release(item.ledger_id)
            raise
        return _LedgerReadHandle(self, item, metadata)

    def release(self, ledger_id: int) -> None:
        """A handle is closed."""
        pin = self._pins[ledger_id]
        if pin.handles > 1:
            self._pins[ledger_id] = pin._replace(handles=pin.handles - 1)
            return
        del self._pins[ledger_id]
        self.on_unpinned(ledger_id)

    def check_open(self) -> None:
        """Raise ContainerStoppedError unless the log is open."""
        if not self._open:
            raise ContainerStoppedError(self._container_id)

    async def close(self) -> None:
        """Read no more. Idempotent."""
        self._open = False
        task, self._asking = self._asking, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def entries(
        self, item: LedgerItem, first: int, last: int
    ) -> AsyncGenerator[Sequence[memoryview], None]:
        """These entries, in batches. Raises as ReadHandle.read does."""
        reader = LedgerReader(
            self._ledgers,
            self._container_id,
            self._rng,
            password_from=self._password_from,
            check_owner=self._check_owner,
            fail=_ignore,
        )
        reader.sealed(item.ledger_id)
        assert item.last_entry is not None
        step = max(1, STEP_BYTES * (item.last_entry + 1) // max(1, item.length))
        while first <= last:
            try:
                stretch = LedgerStretch(item, first, min(last, first + step - 1))
                fetched = await _fetched(reader, stretch)
            except DataCorruptionError as error:
                if await self._is_missing(item.ledger_id):
                    raise LedgerNotFoundError(item.ledger_id, "the cluster") from error
                raise
            yield fetched
            self.check_open()
            first += len(fetched)

    def _pin(self, item: LedgerItem) -> None:
        pin = self._pins.get(item.ledger_id, _Pin(0, item.length))
        self._pins[item.ledger_id] = pin._replace(handles=pin.handles + 1)

    def _forget(self, record: LogMetadata) -> None:
        """What is known of ledgers that are no part of the log any more."""
        ids = {item.ledger_id for item in record.parts}
        sequences = {item.sequence for item in record.parts}
        for known in [known for known in self._created_ms if known not in ids]:
            del self._created_ms[known]
        for ended in [ended for ended in self._ended_ms if ended not in sequences]:
            del self._ended_ms[ended]

    async def _ask(self, unknown: Sequence[int]) -> None:
        """When ledgers were created; what cannot be had now is asked for with another call."""
        try:
            for ledger_id in unknown:
                description = await self._ledgers.describe(ledger_id)
                self._created_ms[ledger_id] = description.created_ms
        except LedgerError:
            pass
        finally:
            self._asking = None

    async def _metadata(self, item: LedgerItem) -> LedgerMetadata:
        described = await self._described(item)
        assert item.last_entry is not None
        if described.state is LedgerState.CLOSED and described.last_entry < item.last_entry:
            await self._check_owner()
            raise DataCorruptionError(
                place(item, described.last_entry + 1),
                f"it ends at entry {described.last_entry}, the record says {item.last_entry}",
            )
        return LedgerMetadata(
            ensemble_size=described.replication.ensemble,
            write_quorum=described.replication.write_quorum,
            ack_quorum=described.replication.ack_quorum,
            length=item.length,
            last_entry=item.last_entry,
            digest_type=described.digest_type,
            created_ms=described.created_ms,
            ensembles=described.ensembles,
            custom=tuple(described.custom.items()),
        )

    async def _described(self, item: LedgerItem) -> LedgerDescription:
        backoff = Backoff(self._rng, min_s=FIRST_S, max_s=MOST_S)
        while True:
            try:
                described = await self._ledgers.describe(item.ledger_id)
                if self._recovers and described.state is not LedgerState.CLOSED:
                    described = await self._ledgers.recover(item.ledger_id)
                return described
            except LedgerError as error:
                what = f"{place(item, 0)}: {code_text(error.code)}"
                answer = reaction(LedgerCall.READ, error.code)
                if answer is Reaction.NO_LEDGER:
                    await self._check_owner()
                    raise LedgerNotFoundError(item.ledger_id, "the cluster") from error
                if answer is Reaction.REFUSED:
                    raise wrong_password(what, self._password_from, code=error.code) from error
                pause_s = backoff.next_s()
                if answer is Reaction.FATAL or backoff.failures >= READ_TRIES:
                    raise TierUnavailableError("tier1", what) from error
            await asyncio.sleep(pause_s)
            self.check_open()

    async def _is_missing(self, ledger_id: int) -> bool:
        try:
            await self._ledgers.describe(ledger_id)
        except LedgerError as error:
            return reaction(LedgerCall.READ, error.code) is Reaction.NO_LEDGER
        return False


async def _fetched(reader: LedgerReader, stretch: LedgerStretch) -> list[memoryview]:
    """Entries from the first of a stretch on, STEP_BYTES or to its end."""
    fetched: list[memoryview] = []
    room = STEP_BYTES
    # Not within `aclosing`: an error ends the generator, and where this coroutine is destroyed with
    # its loop, there is none to wait in.
    batches = reader.entries(stretch)
    async for batch in batches:
        fetched += batch
        room -= sum(map(len, batch))
        if room <= 0:
            break
    await batches.aclose()
    return fetched


class _LedgerReadHandle(ReadHandle):
    def __init__(self, parts: LedgerParts, item: LedgerItem, metadata: LedgerMetadata) -> None:
        self._parts = parts
        self._item = item
        self._metadata = metadata
        self._closed = False

    @property
    def ledger_id(self) -> int:
        return self._item.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    async def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        self._check_usable()
        self.check_entries(first, last)
        number = first
        async with aclosing(self._parts.entries(self._item, first, last)) as batches:
            async for batch in batches:
                yield [LedgerEntry(number + index, data) for index, data in enumerate(batch)]
                number += len(batch)
                self._check_usable()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._parts.release(self._item.ledger_id)

    def _check_usable(self) -> None:
        if self._closed:
            raise InvalidArgumentError("handle", self.ledger_id, "it is closed")
        self._parts.check_open()


def _ignore(_error: SegmentStoreError) -> None:
    """A part that cannot be read ends its reading, not the log."""
