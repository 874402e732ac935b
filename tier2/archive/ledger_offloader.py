"""LedgerOffloader: moves closed ledgers to long-term storage, and reads them back (PIP-17)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.ledgers import ReadHandle
from tier2.object_storage import NO_METADATA


class ArchiveDisabledError(SegmentStoreError):
    """The store has no archive: its setting `archive` names no place.

    The operator's move: set `archive`.
    """

    def __init__(self) -> None:
        super().__init__("the store has no archive: its setting `archive` names no place")


class OffloadRefusedError(SegmentStoreError):
    """A ledger cannot be archived: it is open or empty, has an entry larger than a block, or is not
    what its metadata say. Nothing of it counts as archived.

    Trying again does not help. The caller's move: close the ledger, or set larger blocks.
    """

    def __init__(self, ledger_id: int, reason: str) -> None:
        super().__init__(f"ledger {ledger_id} cannot be archived: {reason}")
        self.ledger_id = ledger_id
        self.reason = reason


class LedgerOffloader(ABC):
    """An archive of ledgers. All calls on one event loop.

    `uid`, 16 bytes, names one attempt. Its caller records it before, so that whatever a crash
    leaves is found by it and deleted; attempts do not disturb each other. Every method raises
    TierUnavailableError (try again later) and InvalidArgumentError.
    """

    @abstractmethod
    async def offload(
        self, handle: ReadHandle, uid: bytes, extra_metadata: Mapping[str, str] = NO_METADATA
    ) -> None:
        """Copy a whole ledger. When it returns, the ledger is in the archive, durably.

        When it raises, or is cancelled, the ledger may be there, in part or whole: the outcome is
        that `uid` is not used again but for `delete_offloaded`. `extra_metadata` are for people who
        inspect the objects: keys of `a-z 0-9 . _ -`, values of printable ASCII, 1 KB in all.

        Raises OffloadRefusedError, and what reading the handle raises.
        """

    @abstractmethod
    async def read_offloaded(self, ledger_id: int, uid: bytes) -> ReadHandle:
        """The ledger, as its own handle would give it; the caller closes it.

        Entries' own checksums are not checked here: what parses the entries does that. Raises
        LedgerNotFoundError, DataCorruptionError.
        """

    @abstractmethod
    async def delete_offloaded(self, ledger_id: int, uid: bytes) -> None:
        """Delete all that an attempt has left, also an unfinished upload; nothing happens if
        there is none. It is missing when this returns.
        """

    @abstractmethod
    async def close(self) -> None:
        """Release what it holds. Idempotent."""


class NullLedgerOffloader(LedgerOffloader):
    """What a store has without an archive: every call but `close` raises ArchiveDisabledError."""

    async def offload(
        self, handle: ReadHandle, uid: bytes, extra_metadata: Mapping[str, str] = NO_METADATA
    ) -> None:
        del handle, uid, extra_metadata
        raise ArchiveDisabledError

    async def read_offloaded(self, ledger_id: int, uid: bytes) -> ReadHandle:
        del ledger_id, uid
        raise ArchiveDisabledError

    async def delete_offloaded(self, ledger_id: int, uid: bytes) -> None:
        del ledger_id, uid
        raise ArchiveDisabledError

    async def close(self) -> None:
        return
