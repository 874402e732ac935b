"""A complete LedgerStore in memory, for tests.

The `MemoryCluster` plays the bookies and outlives its clients. Fencing is real, between clients and
within one. Rules:

- an entry is stored a turn of the loop after it was sent, and its result comes a turn later: in
  between, a recovery of the ledger finds it;
- parts are joined when the entry is stored, so who changes a buffer too early is found out;
- a fence is forgotten with the ledger that is deleted, as bookies that were started again do: a
  writer that continues gets OK;
- planted failures are used up in the order they were planted, each by the next call it is meant
  for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from durablelog.bookkeeper.ledger_store import (
    OK,
    AddResult,
    LedgerDescription,
    LedgerError,
    LedgerState,
    LedgerStore,
    LedgerWriter,
    Replication,
    joined,
)
from durablelog.bookkeeper.memory_process import MemoryProcess
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.ledgers import Ensemble

LedgerCallName = Literal["create", "recover", "describe", "confirmed", "read", "delete", "list"]

_NO_LEDGER: Final = -25
_NOT_ENOUGH_BOOKIES: Final = -6
_UNRECOVERABLE: Final = -10
_LEDGER_CLOSED: Final = -11
_FENCED: Final = -101
_CLIENT_CLOSED: Final = -19
_NO_SUCH_ENTRY: Final = -13
_NOT_CONFIRMED: Final = -1
_UNAUTHORIZED: Final = -102


@dataclass(slots=True)
class MemoryLedger:
    """One ledger as the bookies hold it. Tests may change `entries` to play damage."""

    ledger_id: int
    replication: Replication
    custom: Mapping[str, bytes]
    bookies: tuple[str, ...]
    entries: list[bytes] = field(default_factory=list)
    closed: bool = False
    confirmed: int = 0
    """How many entries were OK to the writer."""
    password: bytes = field(default=b"", repr=False)

    def describe(self) -> LedgerDescription:
        """Its metadata."""
        return LedgerDescription(
            ledger_id=self.ledger_id,
            state=LedgerState.CLOSED if self.closed else LedgerState.OPEN,
            last_entry=len(self.entries) - 1,
            length=sum(map(len, self.entries)),
            replication=self.replication,
            custom=dict(self.custom),
            ensembles=(Ensemble(0, self.bookies),),
            created_ms=self.ledger_id,
        )


@dataclass(slots=True)
class _Planted:
    call: LedgerCallName
    code: int
    happens: bool
    times: int


@dataclass(slots=True)
class _PlantedAdd:
    code: int
    after: int
    kept: int


class MemoryCluster:
    """The ledgers, and what shall go wrong with them. Belongs to one thread at a time."""

    def __init__(self, bookies: int = 3) -> None:
        self.ledgers: dict[int, MemoryLedger] = {}
        self.bookies = bookies
        self.bookies_up = bookies
        """How many serve.

        Too few fail creates (-6), adds (-6) and the recovery of open ledgers (-10).
        """
        self.fenced_code = _FENCED
        """What a fenced writer gets first; a real one may get -11."""
        self.read_batch = 16
        self._next_id = 1
        self._planted: list[_Planted] = []
        self._planted_adds: list[_PlantedAdd] = []

    def fail(
        self, call: LedgerCallName, code: int, *, times: int = 1, happens: bool = False
    ) -> None:
        """Let the next `times` such calls end with this code; with `happens` they were done all the
        same.
        """
        self._planted.append(_Planted(call, code, happens, times))

    def fail_add(self, code: int, *, after: int = 0, kept: int = 0) -> None:
        """Let `after` further entries be stored, and the next one fail with this code, and its
        writer with it.

        `kept`: so many of the entries on their way, the failed one first, are stored all the same.
        """
        self._planted_adds.append(_PlantedAdd(code, after, kept))

    def planted(self, call: LedgerCallName) -> _Planted | None:
        """The failure meant for this call, used up by it."""
        for planted in self._planted:
            if planted.call == call:
                planted.times -= 1
                if not planted.times:
                    self._planted.remove(planted)
                return planted
        return None

    def planted_add(self) -> _PlantedAdd | None:
        """The failure meant for this entry, used up by it."""
        if not self._planted_adds:
            return None
        if self._planted_adds[0].after:
            self._planted_adds[0].after -= 1
            return None
        return self._planted_adds.pop(0)

    def ledger(self, ledger_id: int, operation: str) -> MemoryLedger:
        """Raises LedgerError if there is none."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise LedgerError(_NO_LEDGER, operation, f"ledger {ledger_id}")
        return ledger

    def make(
        self, replication: Replication, custom: Mapping[str, bytes], password: bytes = b""
    ) -> MemoryLedger:
        """A new ledger, with an id that was never used. Raises LedgerError."""
        if replication.ensemble > self.bookies_up:
            detail = f"{self.bookies_up} of {replication.ensemble} bookies"
            raise LedgerError(_NOT_ENOUGH_BOOKIES, "create", detail)
        bookies = tuple(f"memory:{number}" for number in range(replication.ensemble))
        ledger = MemoryLedger(self._next_id, replication, dict(custom), bookies, password=password)
        self.ledgers[ledger.ledger_id] = ledger
        self._next_id += 1
        return ledger

    def drop(self, ledger_id: int) -> None:
        """Delete a ledger.

        For its writer it is as if it were new: unless its client knows better, it takes entries.
        """
        ledger = self.ledgers.pop(ledger_id, None)
        if ledger is not None:
            ledger.closed = False
            ledger.entries = []
            ledger.confirmed = 0

    def fence(self, ledger_id: int) -> LedgerDescription:
        """Recover a ledger. Raises LedgerError."""
        ledger = self.ledger(ledger_id, "recover")
        replication = ledger.replication
        down = self.bookies - self.bookies_up
        if not ledger.closed and down >= replication.ack_quorum:
            raise LedgerError(
                _UNRECOVERABLE, "recover", f"ledger {ledger_id}: {down} bookies do not answer"
            )
        ledger.closed = True
        return ledger.describe()


def _ignore(_reported: object) -> None:
    """Before there is a listener."""


class _MemoryWriter(LedgerWriter):
    def __init__(
        self, cluster: MemoryCluster, ledger: MemoryLedger, process: MemoryProcess
    ) -> None:
        self.on_results = _ignore
        self.on_short = _ignore
        self._cluster = cluster
        self._ledger = ledger
        self._process = process
        self._put_off: deque[Sequence[Buffer]] = deque()  # by a process that stopped
        self._sent: list[Sequence[Buffer]] = []
        self._next_entry = 0
        self._failed: int | None = None
        self._closed = False

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    def append(self, parts: Sequence[Buffer]) -> None:
        if self._closed:
            return
        self._put_off.append(parts)
        if len(self._put_off) == 1:
            self._send()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._process.enter("close a ledger")
        self._put_off.clear()
        self._sent.clear()
        if self._failed is None:
            self._ledger.closed = True
        await self._process.leave()

    def fail(self, code: int) -> None:
        """Nothing more is stored."""
        if self._failed is None:
            self._failed = code

    def _send(self) -> None:
        while self._put_off:
            if not self._process.begin("add"):
                self._process.soon(self._send)
                return
            self._sent.append(self._put_off.popleft())
            if len(self._sent) == 1:
                asyncio.get_running_loop().call_soon(self._store)

    def _store(self) -> None:
        sent, self._sent = self._sent, []
        results = [self._store_one(sent, place) for place in range(len(sent))]
        if results:
            self._process.soon(lambda: self._deliver(results))

    def _store_one(self, sent: Sequence[Sequence[Buffer]], place: int) -> AddResult:
        if self._failed is not None:
            return AddResult(self._failed, -1)
        code, kept = self._fault()
        if code == OK:
            self._keep(sent[place])
            self._next_entry += 1
            self._ledger.confirmed = self._next_entry
            return AddResult(OK, self._next_entry - 1)
        for parts in sent[place : place + kept]:
            self._keep(parts)
        self.fail(_LEDGER_CLOSED)
        return AddResult(code, -1)

    def _fault(self) -> tuple[int, int]:
        if self._ledger.closed:
            return self._cluster.fenced_code, 0
        if self._cluster.bookies_up < self._ledger.replication.ack_quorum:
            return _NOT_ENOUGH_BOOKIES, self._cluster.bookies_up
        planted = self._cluster.planted_add()
        return (planted.code, planted.kept) if planted is not None else (OK, 0)

    def _keep(self, parts: Sequence[Buffer]) -> None:
        self._ledger.entries.append(b"".join(parts))

    def _deliver(self, results: list[AddResult]) -> None:
        if self._process.stopped:
            self._process.soon(lambda: self._deliver(results))
        elif not self._closed:
            self.on_results(joined(results))


class MemoryLedgerStore(LedgerStore):
    """One client of a cluster; `process` is its process, an immortal one of its own by default."""

    def __init__(
        self, cluster: MemoryCluster, process: MemoryProcess | None = None, *, password: bytes = b""
    ) -> None:
        self._cluster = cluster
        self._password = password
        self._process = process or MemoryProcess()
        self._writers: dict[int, _MemoryWriter] = {}
        self._closed = False

    async def create(self, replication: Replication, custom: Mapping[str, bytes]) -> LedgerWriter:
        planted = await self._begin("create")
        ledger = self._cluster.make(replication, custom, self._password)
        await self._end(planted)
        writer = _MemoryWriter(self._cluster, ledger, self._process)
        self._writers[ledger.ledger_id] = writer
        return writer

    async def recover(self, ledger_id: int) -> LedgerDescription:
        planted = await self._begin("recover")
        self._unlock(ledger_id, "recover")
        description = self._cluster.fence(ledger_id)
        await self._end(planted)
        return description

    async def describe(self, ledger_id: int) -> LedgerDescription:
        planted = await self._begin("describe")
        description = self._cluster.ledger(ledger_id, "describe").describe()
        await self._end(planted)
        return description

    async def confirmed(self, ledger_id: int) -> int:
        planted = await self._begin("confirmed")
        ledger = self._unlock(ledger_id, "confirmed")
        last = (len(ledger.entries) if ledger.closed else ledger.confirmed) - 1
        await self._end(planted)
        return last

    def read(self, ledger_id: int, first: int, last: int) -> AsyncIterator[Sequence[memoryview]]:
        return self._read(ledger_id, first, last)

    async def _read(
        self, ledger_id: int, first: int, last: int
    ) -> AsyncIterator[Sequence[memoryview]]:
        while first <= last:
            planted = await self._begin("read")
            ledger = self._unlock(ledger_id, "read")
            if not ledger.closed and last >= ledger.confirmed:
                raise LedgerError(_NOT_CONFIRMED, "read", f"entry {last} of ledger {ledger_id}")
            if last >= len(ledger.entries):
                raise LedgerError(_NO_SUCH_ENTRY, "read", f"entry {last} of ledger {ledger_id}")
            end = min(last + 1, first + self._cluster.read_batch)
            batch = [memoryview(entry) for entry in ledger.entries[first:end]]
            await self._end(planted)
            yield batch
            first = end

    async def delete(self, ledger_id: int) -> None:
        planted = await self._begin("delete")
        self._cluster.drop(ledger_id)
        self._writers.pop(ledger_id, None)
        await self._end(planted)

    async def list_ids(self) -> Sequence[int]:
        planted = await self._begin("list")
        ids = sorted(self._cluster.ledgers)
        await self._end(planted)
        return ids

    async def close(self) -> None:
        self._closed = True
        for writer in self._writers.values():
            writer.fail(_CLIENT_CLOSED)

    def health(self) -> str | None:
        down = self._cluster.bookies - self._cluster.bookies_up
        return f"{down} of {self._cluster.bookies} bookies are down" if down else None

    def _unlock(self, ledger_id: int, call: LedgerCallName) -> MemoryLedger:
        """As a real client, which compares passwords by itself; describing and deleting want
        none.
        """
        ledger = self._cluster.ledger(ledger_id, call)
        if ledger.password != self._password:
            raise LedgerError(_UNAUTHORIZED, call, f"ledger {ledger_id}")
        return ledger

    async def _begin(self, call: LedgerCallName) -> _Planted | None:
        """Returns when the call may happen."""
        await self._process.enter(f"ledger {call}")
        if self._closed:
            raise LedgerError(_CLIENT_CLOSED, call)
        planted = self._cluster.planted(call)
        if planted is not None and not planted.happens:
            raise LedgerError(planted.code, call, "made to fail")
        return planted

    async def _end(self, planted: _Planted | None) -> None:
        """The call has happened: the reply, or its loss."""
        await self._process.leave()
        if planted is not None:
            raise LedgerError(planted.code, planted.call, "the reply was lost")
