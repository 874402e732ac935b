"""The servers of a simulated BookKeeper cluster: bookies with their entries, ZooKeeper with the
ledgers' metadata and nodes.

They are right, as BookKeeper is; what goes wrong is on the way (bookkeeper_network.py), or is done
to them here: killed, stopped, wiped. Rules of this file:

- a bookie keeps what it has taken through its own death; fenced, it takes entries of a ledger from
  recovery alone;
- a bookie that was wiped does not say of entries it may have had that they are not there: it cannot
  know. That is kinder than a real one that was started empty under its old id. Such a bookie says
  that they are not there, and so lets a recovery close a ledger before acknowledged entries. An
  operator that follows docs/bookkeeper.md never starts one so; what comes of it is not simulated;
- metadata of ledgers change one request after another, whatever client asks; what is closed stays
  closed where it is;
- a deleted ledger's entries, and with them its fence, are collected a while later.

Simpler than BookKeeper: a ledger keeps the bookies it was made on (no ensemble change: there is no
spare), nothing is replicated again, and entries have no digests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from durablelog.bookkeeper.ledger_store import (
    EMPTY,
    OK,
    LedgerDescription,
    LedgerState,
    Replication,
)
from durablelog.bookkeeper.memory_nodes import NodeTree
from recovery.harness.simulation.bookkeeper_network import NetworkServer, Timeline
from recovery.harness.simulation.clock import BEGINNING_MS
from recovery.harness.simulation.virtual_loop import MICROSECONDS
from segmentstore.contracts.ledgers import Ensemble

READ_FAILED: Final = -1
NOT_ENOUGH_BOOKIES: Final = -6
BOOKIE_AWAY: Final = -8
NO_RECOVERY: Final = -10
CLOSED: Final = -11
NO_ENTRY: Final = -13
GATEWAY_LOST: Final = -19
QUORUM_LATE: Final = -21
TIMED_OUT: Final = -23
NO_LEDGER: Final = -25
FENCED: Final = -101
UNKNOWN_CONTENT: Final = -1000
"""Not one of BookKeeper's: what a wiped bookie answers inside of the cluster."""

SESSION_S: Final = 10.0
"""How long a dead bookie is registered still."""
COLLECTED_S: Final = 60.0
"""From the deletion of a ledger until bookies drop its entries."""


class Entry(NamedTuple):
    """As a bookie has it: with what its writer knew when it was sent."""

    data: bytes
    confirmed: int
    """The last entry that was OK (LAC)."""
    length: int
    """Bytes of the ledger up to this entry, included."""


class BookieAnswer(NamedTuple):
    """Of a bookie."""

    code: int
    confirmed: int = EMPTY
    entries: Mapping[int, Entry] = {}


@dataclass(slots=True)
class Replica:
    """What a bookie has of a ledger."""

    entries: dict[int, Entry] = field(default_factory=dict)
    fenced: bool = False
    wiped: bool = False


class Bookie(NetworkServer):
    """One bookie. All calls are what a request does when it is there; O(1) but for reads."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.replicas: dict[int, Replica] = {}

    def is_registered(self, now_us: int) -> bool:
        """True as long as ZooKeeper takes it for alive."""
        return self.is_up(now_us) or now_us < self.down_from_us + round(SESSION_S * MICROSECONDS)

    def replica(self, ledger_id: int) -> Replica:
        return self.replicas.setdefault(ledger_id, Replica())

    def add(
        self, ledger_id: int, number: int, entry: Entry, *, recovering: bool = False
    ) -> BookieAnswer:
        """Keep an entry, unless the ledger is fenced."""
        replica = self.replica(ledger_id)
        if replica.fenced and not recovering:
            return BookieAnswer(FENCED)
        replica.entries[number] = entry
        return BookieAnswer(OK)

    def fence(self, ledger_id: int) -> BookieAnswer:
        """Take no more entries of its writer; what of the ledger is known here to be OK."""
        replica = self.replica(ledger_id)
        replica.fenced = True
        if replica.wiped:
            return BookieAnswer(UNKNOWN_CONTENT)
        return BookieAnswer(
            OK, max((entry.confirmed for entry in replica.entries.values()), default=EMPTY)
        )

    def read(self, ledger_id: int, first: int, last: int) -> BookieAnswer:
        """What is here of a range."""
        replica = self.replica(ledger_id)
        found = {
            number: replica.entries[number]
            for number in range(first, last + 1)
            if number in replica.entries
        }
        complete = len(found) == last - first + 1
        return BookieAnswer(UNKNOWN_CONTENT if replica.wiped and not complete else OK, EMPTY, found)

    def wipe(self) -> None:
        """Everything is lost but that there was something."""
        for replica in self.replicas.values():
            replica.entries.clear()
            replica.wiped = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """Metadata of a ledger, as ZooKeeper has them."""

    replication: Replication
    custom: Mapping[str, bytes]
    bookies: tuple[int, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = EMPTY
    length: int = 0
    created_ms: int = -1

    def write_set(self, entry: int) -> tuple[int, ...]:
        """The bookies that get an entry."""
        size = len(self.bookies)
        return tuple(
            self.bookies[(entry + step) % size] for step in range(self.replication.write_quorum)
        )


class LedgerTeller(Protocol):
    """A writer that reports to bookies by itself what is OK, once it is idle."""

    def announced(self, now_us: int) -> int:
        """The last entry that it has confirmed to them by now."""


class BookKeeperServers:
    """The whole cluster: bookies, ZooKeeper, and the timeline of what is on its way to them.

    One for a world.
    """

    def __init__(self, bookies: int = 3) -> None:
        self.timeline = Timeline()
        self.bookies = tuple(Bookie(f"bookie-{number}") for number in range(bookies))
        self.zookeeper = NetworkServer("zookeeper")
        self.records: dict[int, LedgerRecord] = {}
        self.tree = NodeTree()
        self.writers: dict[int, LedgerTeller] = {}
        """By ledger: its present or last writer."""
        self._ledgers_created = 0

    @property
    def servers(self) -> tuple[NetworkServer, ...]:
        """Bookies by their numbers, then ZooKeeper."""
        return (*self.bookies, self.zookeeper)

    def heal(self) -> None:
        """All are up and running, those too that were wiped."""
        for server in self.servers:
            server.heal()

    def create(
        self, now_us: int, turn: int, replication: Replication, custom: Mapping[str, bytes]
    ) -> tuple[int, LedgerRecord] | int:
        """Make a ledger on registered bookies, beginning with the one whose turn it is; its id, or
        a code.
        """
        count = len(self.bookies)
        order = [(turn + step) % count for step in range(count)]
        chosen = [number for number in order if self.bookies[number].is_registered(now_us)][
            : replication.ensemble
        ]
        if len(chosen) < replication.ensemble:
            return NOT_ENOUGH_BOOKIES
        ledger_id = self._ledgers_created
        self._ledgers_created += 1
        record = LedgerRecord(
            replication=replication,
            custom=dict(custom),
            bookies=tuple(chosen),
            created_ms=BEGINNING_MS + now_us // 1000,
        )
        self.records[ledger_id] = record
        return ledger_id, record

    def begin_recovery(self, ledger_id: int) -> LedgerRecord | int:
        """Mark a ledger as being recovered; as it is then, which may be closed."""
        record = self.records.get(ledger_id)
        if record is None:
            return NO_LEDGER
        if record.state is LedgerState.OPEN:
            record = self.records[ledger_id] = replace(record, state=LedgerState.IN_RECOVERY)
        return record

    def close_ledger(self, ledger_id: int, last_entry: int, length: int) -> LedgerRecord | int:
        """Close a ledger at an entry, if it is not closed yet; as it is then.

        Its writer may do so while another client recovers it: both know all that was OK, and the
        first one decides where.
        """
        record = self.records.get(ledger_id)
        if record is None:
            return NO_LEDGER
        if record.state is LedgerState.CLOSED:
            return record
        record = replace(record, state=LedgerState.CLOSED, last_entry=last_entry, length=length)
        self.records[ledger_id] = record
        return record

    def delete(self, now_us: int, ledger_id: int) -> None:
        """Drop the metadata now, the entries later. Nothing happens if it is missing."""
        if self.records.pop(ledger_id, None) is not None:
            self.timeline.at(
                now_us + round(COLLECTED_S * MICROSECONDS), lambda: self._collect(ledger_id)
            )

    def describe(self, ledger_id: int) -> LedgerDescription | int:
        """The metadata of a ledger, or NO_LEDGER."""
        record = self.records.get(ledger_id)
        return NO_LEDGER if record is None else self.description(ledger_id, record)

    def confirmed(self, now_us: int, ledger_id: int) -> tuple[int] | int:
        """The last entry that is known to be OK, alone, or a code.

        Bookies that are down are asked as well.
        """
        record = self.records.get(ledger_id)
        if record is None:
            return NO_LEDGER
        if record.state is LedgerState.CLOSED:
            return (record.last_entry,)
        replicas = [self.bookies[number].replica(ledger_id) for number in record.bookies]
        announced = max(
            (entry.confirmed for each in replicas for entry in each.entries.values()), default=EMPTY
        )
        writer = self.writers.get(ledger_id)
        return (max(announced, writer.announced(now_us)) if writer is not None else announced,)

    def description(self, ledger_id: int, record: LedgerRecord) -> LedgerDescription:
        """Metadata in the words of the interface."""
        return LedgerDescription(
            ledger_id=ledger_id,
            state=record.state,
            last_entry=record.last_entry,
            length=record.length,
            replication=record.replication,
            custom=dict(record.custom),
            ensembles=(Ensemble(0, tuple(self.bookies[number].name for number in record.bookies)),),
            created_ms=record.created_ms,
        )

    def _collect(self, ledger_id: int) -> None:
        for bookie in self.bookies:
            bookie.replicas.pop(ledger_id, None)
