"""Transactions: creates, commits and aborts them, and aborts those whose lease ends.

Rules of this file:

- all transactions that have not ended are in memory and in rows. Changes are written first;
- a ping changes memory alone: a restart gives each open transaction its lease and its age anew;
- commits and aborts are decided by one write, and answered then. The work on segments follows, in
  the order of the commits, and is repeated until it succeeds;
- a transaction's end is a row of its own, written before the other one is removed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from segmentstore.contracts.runtime import Runtime
from segmentstore.controller.controller_rows import (
    ControllerRows,
    FoundRow,
    LoadedStream,
    RowPut,
    ended_key,
    transaction_key,
)
from segmentstore.controller.deadlines import FIRST_S, Deadlines
from segmentstore.controller.name_locks import NameLocks
from segmentstore.controller.names import ScopedName
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.segment_actions import ActionStep, SegmentActions, run_steps
from segmentstore.controller.transaction_model import (
    KEPT_MS,
    LEASE_MAX_MS,
    PingOutcome,
    TransactionRecord,
    TransactionState,
    abort_steps,
    check_lease,
    commit_steps,
    create_steps,
    make_transaction_id,
)

COMPLETED_MAX: Final = 500
"""How many ended transactions are listed."""
_ENDED_AT_ONCE: Final = 100
_PURGE_PERIOD_S: Final = 3600.0
_RANDOM_BITS: Final = 96


@dataclass(slots=True)
class _Running:
    """A transaction that has not ended. Times are of the loop."""

    record: TransactionRecord
    lease_end_s: float
    age_end_s: float


class Transactions:
    """All transactions. `start` before anything else."""

    def __init__(
        self,
        rows: ControllerRows,
        actions: SegmentActions,
        locks: NameLocks,
        deadlines: Deadlines,
        runtime: Runtime,
    ) -> None:
        self._rows = rows
        self._actions = actions
        self._locks = locks
        self._deadlines = deadlines
        self._runtime = runtime
        self._running: dict[ScopedName, dict[int, _Running]] = {}
        self._by_request: dict[tuple[ScopedName, str], int] = {}
        """Those that have not ended, by the stream and the request of their creation."""
        self._orders = itertools.count(1)

    async def start(self) -> None:
        """Read those that have not ended, begin their leases anew, and go on with the others."""
        last_order = 0
        async for row in self._rows.scan("transaction/"):
            stream, transaction_id = _place(row)
            record = TransactionRecord.from_row(row.value)
            self._add(stream, transaction_id, record)
            last_order = max(last_order, record.order)
            if record.state is not TransactionState.OPEN:
                self._settle_soon(stream)
        self._orders = itertools.count(last_order + 1)
        self._deadlines.schedule("purge of transactions", FIRST_S, self._purge)

    # --- of writers -------------------------------------------------------------------------------

    async def create(self, stream: LoadedStream, lease_ms: int, request_id: str = "") -> int:
        """Begin one in the stream's active epoch; give its id. The caller holds the stream.

        The same request has the same one once more, while that is open. Raises
        RefusedRequestError: lease, sealed.
        """
        check_lease(lease_ms)
        record = stream.record
        if record.sealed:
            raise RefusedRequestError(Reason.STREAM_SEALED, f"the stream {stream.name} is sealed")
        transaction_id = self._opened_by(stream.name, request_id)
        if transaction_id is None:
            random_bits = self._runtime.random.getrandbits(_RANDOM_BITS)
            transaction_id = make_transaction_id(record.epoch, random_bits)
            transaction = TransactionRecord(
                segments=tuple(segment.segment_id for segment in record.active),
                lease_ms=lease_ms,
                begun_ms=self._runtime.clock.time_ms(),
                request_id=request_id,
            )
            # Known before it is written: if the outcome of that stays unknown, its lease ends it.
            self._add(stream.name, transaction_id, transaction)
        transaction = self._running[stream.name][transaction_id].record
        key = transaction_key(stream.name, transaction_id)
        await self._rows.put(RowPut(key, transaction.to_row()))
        rollover_bytes = record.configuration.rollover_bytes
        steps = create_steps(stream.name, transaction_id, transaction, rollover_bytes)
        await run_steps(self._actions, steps)
        # A container that moves can take as long as a lease; no client could have extended it.
        self._renew(stream.name, transaction_id, lease_ms)
        return transaction_id

    async def ping(self, stream: ScopedName, transaction_id: int, lease_ms: int) -> PingOutcome:
        """Extend a lease from now on."""
        running = self._find(stream, transaction_id)
        if running is None:
            state = await self._ended_state(stream, transaction_id)
        else:
            state = running.record.state
        match state:
            case TransactionState.COMMITTING | TransactionState.COMMITTED:
                return PingOutcome.COMMITTED
            case TransactionState.ABORTING | TransactionState.ABORTED:
                return PingOutcome.ABORTED
        if running is None:
            return PingOutcome.UNKNOWN
        if not 0 < lease_ms <= LEASE_MAX_MS:
            return PingOutcome.LEASE_TOO_LARGE
        if asyncio.get_running_loop().time() + lease_ms / 1000 > running.age_end_s:
            return PingOutcome.TOO_OLD
        self._renew(stream, transaction_id, lease_ms)
        return PingOutcome.OK

    async def commit(self, stream: ScopedName, transaction_id: int) -> None:
        """Decide for it; the merge follows. Nothing if that was decided before.

        Raises RefusedRequestError: not found, aborted.
        """
        async with self._locks.hold(stream):
            if await self._decidable(stream, transaction_id, TransactionState.COMMITTING):
                record = self._running[stream][transaction_id].record
                await self._write(stream, transaction_id, record.committing(next(self._orders)))
                self._settle_soon(stream)

    async def abort(self, stream: ScopedName, transaction_id: int) -> None:
        """Decide against it; the deletion follows. Nothing if that was decided before.

        Raises RefusedRequestError: not found, committed.
        """
        async with self._locks.hold(stream):
            if await self._decidable(stream, transaction_id, TransactionState.ABORTING):
                record = self._running[stream][transaction_id].record
                await self._write(stream, transaction_id, record.aborting())
                self._settle_soon(stream)

    async def state(self, stream: ScopedName, transaction_id: int) -> TransactionState | None:
        """None: not known, or not any more."""
        running = self._find(stream, transaction_id)
        if running is not None:
            return running.record.state
        return await self._ended_state(stream, transaction_id)

    async def completed(self, stream: ScopedName) -> list[tuple[int, TransactionState]]:
        """Some of those that ended in the last 24 h, by id."""
        rows = await self._rows.page(f"ended/{stream}/", "", COMPLETED_MAX)
        return [(_place(row)[1], TransactionState(row.value["state"])) for row in rows]

    @property
    def open_count(self) -> int:
        """How many have not ended. O(streams with some)."""
        return sum(map(len, self._running.values()))

    # --- of streams -------------------------------------------------------------------------------

    def has_open(self, stream: ScopedName) -> bool:
        return bool(self._running.get(stream))

    async def end_all(self, stream: ScopedName) -> None:
        for transaction_id, running in list(self._running.get(stream, {}).items()):
            if running.record.state is TransactionState.OPEN:
                await self._write(stream, transaction_id, running.record.aborting())
        await self._settle_held(stream)

    # --- the end ----------------------------------------------------------------------------------

    def _add(self, stream: ScopedName, transaction_id: int, record: TransactionRecord) -> None:
        now_s = asyncio.get_running_loop().time()
        age_end_s = now_s + record.age_max_ms / 1000
        running = _Running(record, now_s + record.lease_ms / 1000, age_end_s)
        self._running.setdefault(stream, {})[transaction_id] = running
        if record.request_id:
            self._by_request[stream, record.request_id] = transaction_id
        if record.state is TransactionState.OPEN:
            self._watch(stream, transaction_id, record.lease_ms / 1000)

    def _renew(self, stream: ScopedName, transaction_id: int, lease_ms: int) -> None:
        running = self._running[stream][transaction_id]
        running.lease_end_s = asyncio.get_running_loop().time() + lease_ms / 1000
        self._watch(stream, transaction_id, lease_ms / 1000)

    def _watch(self, stream: ScopedName, transaction_id: int, after_s: float) -> None:
        key = ("lease", stream, transaction_id)
        self._deadlines.schedule(key, after_s, lambda: self._expire(stream, transaction_id))

    async def _expire(self, stream: ScopedName, transaction_id: int) -> None:
        async with self._locks.hold(stream):
            running = self._find(stream, transaction_id)
            if running is None or running.record.state is not TransactionState.OPEN:
                return
            # A ping may have come while the lock was waited for.
            if running.lease_end_s <= asyncio.get_running_loop().time():
                await self._write(stream, transaction_id, running.record.aborting())
                self._settle_soon(stream)

    async def _write(
        self, stream: ScopedName, transaction_id: int, record: TransactionRecord
    ) -> None:
        await self._rows.put(RowPut(transaction_key(stream, transaction_id), record.to_row()))
        self._running[stream][transaction_id].record = record
        self._deadlines.cancel(("lease", stream, transaction_id))

    def _settle_soon(self, stream: ScopedName) -> None:
        self._deadlines.schedule(("settle", stream), 0, lambda: self._settle(stream))

    async def _settle(self, stream: ScopedName) -> None:
        async with self._locks.hold(stream):
            await self._settle_held(stream)

    async def _settle_held(self, stream: ScopedName) -> None:
        """Do what was decided, some transactions at a time. The caller holds the stream."""
        running = self._running.get(stream, {})
        decided = [
            (transaction_id, each.record)
            for transaction_id, each in running.items()
            if each.record.state is not TransactionState.OPEN
        ]
        decided.sort(key=lambda each: each[1].order)
        for start in range(0, len(decided), _ENDED_AT_ONCE):
            portion = decided[start : start + _ENDED_AT_ONCE]
            await run_steps(self._actions, _end_steps(stream, portion))
            await self._end(stream, portion)

    async def _end(
        self, stream: ScopedName, transactions: list[tuple[int, TransactionRecord]]
    ) -> None:
        now_ms = self._runtime.clock.time_ms()
        puts = [
            RowPut(
                ended_key(stream, transaction_id),
                {"state": _end_of(record).value, "ended_ms": now_ms},
            )
            for transaction_id, record in transactions
        ]
        await self._rows.put(*puts)
        await self._rows.remove(transaction_key(stream, each) for each, _ in transactions)
        running = self._running[stream]
        for transaction_id, record in transactions:
            del running[transaction_id]
            if self._by_request.get((stream, record.request_id)) == transaction_id:
                del self._by_request[stream, record.request_id]
        if not running:
            del self._running[stream]

    async def _purge(self) -> None:
        self._deadlines.schedule("purge of transactions", _PURGE_PERIOD_S, self._purge)
        until_ms = self._runtime.clock.time_ms() - KEPT_MS
        old: list[str] = []
        async for row in self._rows.scan("ended/"):
            if row.value["ended_ms"] < until_ms:
                old.append(row.key)
            if len(old) == _ENDED_AT_ONCE:
                await self._rows.remove(old)
                old.clear()
        await self._rows.remove(old)

    # --- helpers ----------------------------------------------------------------------------------

    def _opened_by(self, stream: ScopedName, request_id: str) -> int | None:
        transaction_id = self._by_request.get((stream, request_id))
        if transaction_id is None:
            return None
        state = self._running[stream][transaction_id].record.state
        return transaction_id if state is TransactionState.OPEN else None

    def _find(self, stream: ScopedName, transaction_id: int) -> _Running | None:
        return self._running.get(stream, {}).get(transaction_id)

    async def _ended_state(
        self, stream: ScopedName, transaction_id: int
    ) -> TransactionState | None:
        row = await self._rows.get(ended_key(stream, transaction_id))
        return TransactionState(row.value["state"]) if row else None

    async def _decidable(
        self, stream: ScopedName, transaction_id: int, decision: TransactionState
    ) -> bool:
        """Whether it is open; False if it was decided so before.

        Raises RefusedRequestError: not found, decided otherwise.
        """
        state = await self.state(stream, transaction_id)
        if state is None:
            raise RefusedRequestError(
                Reason.TRANSACTION_NOT_FOUND, f"there is no transaction {transaction_id:032x}"
            )
        if state is TransactionState.OPEN:
            return True
        for_it = (TransactionState.COMMITTING, TransactionState.COMMITTED)
        if (state in for_it) != (decision in for_it):
            raise RefusedRequestError(Reason.TRANSACTION_ENDED, f"the transaction is {state.value}")
        return False


def _place(row: FoundRow) -> tuple[ScopedName, int]:
    _, scope, stream, transaction_id = row.key.split("/")
    return ScopedName(scope, stream), int(transaction_id, 16)


def _end_steps(
    stream: ScopedName, transactions: Iterable[tuple[int, TransactionRecord]]
) -> list[ActionStep]:
    decided = list(transactions)
    committing = [each for each in decided if each[1].state is TransactionState.COMMITTING]
    aborting = [each for each in decided if each[1].state is TransactionState.ABORTING]
    return [*commit_steps(stream, committing), *abort_steps(stream, aborting)]


def _end_of(record: TransactionRecord) -> TransactionState:
    if record.state is TransactionState.COMMITTING:
        return TransactionState.COMMITTED
    return TransactionState.ABORTED
