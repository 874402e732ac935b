"""LedgerStore: the few calls a BookKeeper cluster must give, and what every implementation
promises.

A ledger is a row of entries, written by one client, numbered from 0. Proved by
tests/contracts/ledger_store_contract.py:

- entries of one writer get the numbers 0, 1, 2, ... in the order of `append`, and their results
  come in that order;
- an entry whose result is OK is durable on an ack quorum, with all entries before it;
- the first result that is not OK is the ledger's end for its writer: every later result has an
  error too. Of an entry that was not OK nothing is known until the ledger is recovered;
- `recover` fences. Once it has returned, the ledger is closed, its entries are fixed, and no entry
  beyond them is ever OK for any writer, as long as the ledger is there. Everything that was ever OK
  is among them. Recovering a closed ledger changes nothing;
- `delete` does not fence (docs/bookkeeper.md): recover first. Even so the fence may be forgotten
  with the ledger: what a writer gets from then on, OK included, means nothing.

Errors are `LedgerError`s with BookKeeper's own code; what each means to a log is in
failure_codes.py alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.ledgers import DigestType, Ensemble

OK: Final = 0
EMPTY: Final = -1
"""The last entry of a ledger that has none."""


class LedgerError(Exception):
    """A call on ledgers failed; `code` is BookKeeper's return code, `operation` what was asked
    for.
    """

    def __init__(self, code: int, operation: str, detail: str = "") -> None:
        super().__init__(f"{operation}: code {code}{': ' + detail if detail else ''}")
        self.code = code
        self.operation = operation
        self.detail = detail


class Replication(NamedTuple):
    """On how many bookies a ledger lies (`ensemble`), how many get each entry, how many of them
    must have it.
    """

    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2

    def __str__(self) -> str:
        return f"{self.ensemble}/{self.write_quorum}/{self.ack_quorum}"


class LedgerState(Enum):
    """As the cluster's metadata has it."""

    OPEN = "open"
    IN_RECOVERY = "in recovery"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDescription:
    """The metadata of one ledger."""

    ledger_id: int
    state: LedgerState
    last_entry: int
    """EMPTY for none; meaningful when closed."""
    length: int
    """Bytes of its entries; meaningful when closed."""
    replication: Replication
    custom: Mapping[str, bytes] = field(default_factory=dict)
    """In the order in which it was read."""
    ensembles: tuple[Ensemble, ...] = ()
    """By first entry."""
    digest_type: DigestType | None = DigestType.CRC32C
    """None: the metadata do not say."""
    created_ms: int = -1
    """Milliseconds since 1970 UTC; -1 if it is not known."""

    @property
    def bookies(self) -> tuple[str, ...]:
        """Of the last ensemble."""
        return self.ensembles[-1].bookies if self.ensembles else ()


class AddResult(NamedTuple):
    """What became of entries that were appended one after another."""

    code: int
    entry: int
    """The number of the first one; meaningful if `code` is OK."""
    entries: int = 1
    """How many: they have the same code, and if that is OK their numbers follow one another."""


def joined(results: Iterable[AddResult]) -> list[AddResult]:
    """The same, with as few as can be: as the gateway reports them."""
    reported: list[AddResult] = []
    for code, entry, entries in results:
        before = reported[-1] if reported else None
        if (
            before is not None
            and before.code == code
            and (code != OK or before.entry + before.entries == entry)
        ):
            reported[-1] = AddResult(code, before.entry, before.entries + entries)
        else:
            reported.append(AddResult(code, entry, entries))
    return reported


class BookieFigures(NamedTuple):
    """How the bookies are that entries were sent to."""

    behind: int = 0
    """Bookies that do not answer, or are slower than the others by more than is kept for one."""
    owed_bytes_max: int = 0
    """The most that any of them was sent and has not answered: kept in the client's memory."""
    client_bytes: int = 0
    """Memory of the client for entries; 0 if it is not known."""


class LedgerWriter(ABC):
    """The one writer of a ledger that was just created. Used on one event loop."""

    @property
    @abstractmethod
    def ledger_id(self) -> int:
        """Given by the cluster, never given twice."""

    on_results: Callable[[Sequence[AddResult]], None]
    """Called on the loop with results in the order of the appends, many at a time.

    Set before the first append; never called again once `close` was called.
    """

    on_short: Callable[[str], None]
    """Called on the loop with a reason, repeatedly while the state lasts. A bookie of the ledger
    gets no entries, there are enough others for a new one, and this one should be followed. It goes
    on meanwhile. Never called once `close` was called.
    """

    @abstractmethod
    def append(self, parts: Sequence[Buffer]) -> None:
        """Send the concatenation of `parts` as the next entry.

        Never waits, never raises for what goes wrong outside: that comes as a result. The buffers
        must not change until the result is there. The caller bounds what is in flight.
        """

    @abstractmethod
    async def close(self) -> None:
        """Seal the ledger at the last entry that is OK, if that can be done, and release it.

        Idempotent, raises nothing.

        A ledger that could not be sealed is whole all the same: a reader that needs its end
        recovers it. Takes up to a few seconds.
        """


class LedgerStore(ABC):
    """One client of one cluster, with one password.

    All calls on one event loop; many may be in flight.

    Calls take as long as a deadline of the implementation's at most, then LedgerError (timeout).
    """

    @abstractmethod
    async def create(self, replication: Replication, custom: Mapping[str, bytes]) -> LedgerWriter:
        """A new, empty ledger, and its writer. `custom` says whose it is, for ever."""

    @abstractmethod
    async def recover(self, ledger_id: int) -> LedgerDescription:
        """Fence the ledger, find its end, close it there; as it is afterwards."""

    @abstractmethod
    async def describe(self, ledger_id: int) -> LedgerDescription:
        """What the metadata says now. Fences nothing."""

    @abstractmethod
    async def confirmed(self, ledger_id: int) -> int:
        """The last entry of a ledger that is known to have been OK, EMPTY for none; the end of a
        closed one. Fences nothing.

        Of a ledger with a living writer it may be up to a second old; of one whose writer was
        killed, so much behind.
        """

    @abstractmethod
    def read(self, ledger_id: int, first: int, last: int) -> AsyncIterator[Sequence[memoryview]]:
        """Entries `first` to `last`, both included, in order, in batches. None for `first > last`.

        The ledger is closed, or `last` was OK for a writer of this very client, or is `confirmed`.
        Raises LedgerError; the memory stays valid while it is referenced.
        """

    @abstractmethod
    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger and its entries for good; nothing happens if it is missing."""

    @abstractmethod
    async def list_ids(self) -> Sequence[int]:
        """Every ledger of the cluster, ours or not, ascending.

        For people's tools: costs the cluster a walk.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release everything. Writers not closed fail (their ledgers stay open). Idempotent."""

    # Where nothing outlives the event loop, nothing is to do.
    def abandon(self) -> None:  # noqa: B027
        """End the client of an owner whose event loop is closed; it is not used again.

        Blocks as `close` does; on any thread. Idempotent.
        """

    def health(self) -> str | None:
        """What is wrong with the way to the cluster, a sentence for people; None when all is
        well.
        """
        return None

    def bookies(self) -> BookieFigures:
        """How the bookies are, as far as it is known."""
        return BookieFigures()
