"""Ledgers that are closed, and what is read like one: a full file of a log, a part in the archive.

The words are BookKeeper's and Pulsar's (PIP-17): a ledger is an ordered list of entries, 0 to
`last_entry`, that never changes once it is closed. In this engine an entry is one frame of a
container's log, header included, as it was written.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from segmentstore.contracts.errors import InvalidArgumentError, SegmentStoreError


class EntryRangeError(InvalidArgumentError):
    """A ledger has no such entries: not 0 <= first <= last <= its last entry.

    The caller's move: ask for entries that it has.
    """


class LedgerNotFoundError(SegmentStoreError):
    """A ledger, or a part of the archive, is missing: it was deleted, or never there.

    The caller's move: read the log's list of parts again.
    """

    def __init__(self, ledger_id: int, place: str) -> None:
        super().__init__(f"there is no ledger {ledger_id} in {place}")
        self.ledger_id = ledger_id
        self.place = place


class DigestType(enum.IntEnum):
    """How BookKeeper checks an entry; the numbers are those of its metadata."""

    CRC32 = 1
    MAC = 2
    CRC32C = 3
    DUMMY = 4


class Ensemble(NamedTuple):
    """Bookies that hold the entries from one on, up to the next ensemble."""

    first_entry: int
    bookies: tuple[str, ...]


class LedgerMetadata(NamedTuple):
    """What BookKeeper's metadata say of a ledger; never its password."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    length: int
    """Bytes of all entries."""
    last_entry: int
    """-1 of an empty one."""
    closed: bool = True
    digest_type: DigestType | None = DigestType.CRC32C
    created_ms: int = -1
    """Milliseconds since 1970 UTC; -1 if it is not known."""
    ensembles: tuple[Ensemble, ...] = ()
    """By first entry."""
    custom: tuple[tuple[str, bytes], ...] = ()
    """In the ledger's own order: it is part of the archive's bytes."""


class LedgerEntry(NamedTuple):
    """One entry as it was written."""

    entry_id: int
    data: memoryview
    """Valid while it is referenced."""


class ReadHandle(ABC):
    """One closed ledger, read without owning it; all calls on one event loop.

    Wherever the entries lie, in bookies, a file or the archive, it answers the same, and raises the
    same errors at the same places (tests/contracts/read_handle_contract.py). Several handles of one
    ledger, and several readings of one handle, do not disturb each other.
    """

    @property
    @abstractmethod
    def ledger_id(self) -> int:
        """BookKeeper's id; of a file of the log its number."""

    @property
    @abstractmethod
    def metadata(self) -> LedgerMetadata:
        """As of the opening: it does not change any more."""

    @property
    def last_entry(self) -> int:
        """The highest entry id."""
        return self.metadata.last_entry

    @property
    def length(self) -> int:
        """Bytes of all entries."""
        return self.metadata.length

    @abstractmethod
    def read(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        """Entries `first` to `last`, both included, in order, in batches of bounded bytes.

        A caller that leaves before the end closes it. Errors come with its first step or a later
        one. EntryRangeError: not 0 <= first <= last <= last_entry. InvalidArgumentError: behind
        `close`. LedgerNotFoundError: the entries were deleted meanwhile. DataCorruptionError: an
        entry is not whole. TierUnavailableError: try again. Of a part of a log also what ends the
        log: ContainerStoppedError, NotPrimaryError.
        """

    def check_entries(self, first: int, last: int) -> None:
        """Raise EntryRangeError unless these entries are there."""
        if not 0 <= first <= last <= self.last_entry:
            raise EntryRangeError(
                "entries",
                (first, last),
                f"ledger {self.ledger_id} has entries 0 to {self.last_entry}",
            )

    @abstractmethod
    async def close(self) -> None:
        """Release what the handle holds. Idempotent; deletes nothing."""
