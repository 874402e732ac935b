"""DurableDataLog: the Tier-1 abstraction. Exclusive, ordered, append-only, fenced.

What every implementation promises (proved by tests/contracts/durable_data_log_contract.py):

- `open` fences: once it has returned, an earlier owner of the same log can never acknowledge
  another append (an unknown outcome counts as fenced, NotPrimaryError). An implementation that can
  know a live owner may refuse instead (StoreInUseError).
- appends are acknowledged in order, and only when they and all before them are durable;
- the first append that fails fails all later ones, for good: there is no retry at this layer;
- each opening has an epoch higher than all before it; each frame has the next frame sequence
  number;
- reading begins at the truncation point and gives every acknowledged frame, once, in order, then
  maybe frames that were written but never acknowledged, without a hole;
- nothing is deleted before the new truncation address is durable;
- *retained* parts lie before the truncation point, and are kept until they are deleted as such. No
  opening reads them.

Addresses are opaque: 64-bit, ordered as the frames are, meaningful to the log that gave them alone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import NamedTuple, NewType

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import SegmentStoreError, TierUnavailableError
from segmentstore.contracts.ledgers import LedgerNotFoundError, ReadHandle

LogAddress = NewType("LogAddress", int)


class LogFullError(TierUnavailableError):
    """The log has no room for this now; nothing was changed, and it goes on. To be tried again."""

    def __init__(self, detail: str) -> None:
        super().__init__("tier1", detail)


class LogFrame(NamedTuple):
    """One frame as read back; its checksums have been verified."""

    address: LogAddress
    sequence: int
    """Frame sequence number: +1 from frame to frame, across epochs."""
    epoch: int
    payload: memoryview
    payload_address: LogAddress | None = None
    """Of the payload's first byte, the others follow; None in logs that never can `read_ranges`."""
    checksum: int | None = None
    """CRC32C of the payload, where it was verified when the frame was read."""


LogRange = tuple[int, int, int]
"""Bytes inside one frame's payload: the address of the first, how many, their CRC32C."""


class DataLogStatistics(NamedTuple):
    """A snapshot of a log's numbers."""

    epoch: int
    frames_in_flight: int
    bytes_in_flight: int
    frames_appended: int
    bytes_appended: int
    syncs: int
    log_bytes: int
    """Bytes between the truncation point and the tail, headers included."""
    files: int
    """Files (or ledgers, or arrays) the log occupies."""
    bookies_behind: int = 0
    """BookKeeper's servers that do not answer, or are slower than the others by more than is kept
    for one.
    """
    bookie_owed_bytes_max: int = 0
    """The most that one of them was sent and has not answered: kept in the gateway's memory."""
    gateway_bytes: int = 0
    """The gateway's memory for entries."""
    held_bytes: int = 0
    """Bytes of truncated parts that are not deleted, for they are being read."""
    retained_bytes: int = 0
    """Bytes of retained parts, headers included."""


def _nothing() -> None:
    """Stands for a listener that is not set."""


def _ignore(_error: SegmentStoreError) -> None:
    """Stands for a listener that is not set."""


class SealedPart(NamedTuple):
    """A part of a log that takes no more frames: a full file, a closed ledger."""

    number: int
    """Grows from part to part, with gaps."""
    ledger_id: int
    """Of the ledger; a file's number. Names the part in the archive."""
    first: LogAddress
    """No frame in it has a lower address."""
    end: LogAddress
    """Every frame behind it has this address at least, and none in it has."""
    length: int
    """Bytes of its entries, headers of frames included."""
    sealed_ms: int
    """When it took its last frame, milliseconds since 1970 UTC, as near as the log knows. A later
    call may know that it was earlier.
    """


class DurableDataLog(ABC):
    """One container's log. All methods are called on one event loop."""

    on_settled: Callable[[], None] = staticmethod(_nothing)
    """Called after futures of `append` have been resolved, once for all that were resolved together
    and in the same turn of the loop. The sequencer commits from here, a turn earlier than a
    future's own callbacks would come.
    """

    on_failed: Callable[[SegmentStoreError], None] = staticmethod(_ignore)
    """Called when the log has failed for good, also while nothing is appended: another owner has
    it, for one. Every append fails from then on. Not called when the log is closed.
    """

    on_room: Callable[[], None] = staticmethod(_nothing)
    """Called when `short` has changed, and whenever the log has tried again in vain to find
    room.
    """

    @property
    def short(self) -> bool:
        """There is no room for another file of the log: what can be truncated should be."""
        return False

    @property
    def full(self) -> bool:
        """What room is left is needed for operations that make room: nothing else should be
        appended.
        """
        return False

    @property
    def relief_bytes(self) -> int:
        """While `full`: what deletions and truncations of segments may take.

        The rest is for the engine's own operations.
        """
        return 0

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Of this opening; 1 for the first, more for a log that follows one that was lost.

        Valid after `open`.
        """

    @property
    @abstractmethod
    def payload_bytes_max(self) -> int:
        """The largest payload one append takes."""

    @abstractmethod
    async def open(self) -> None:
        """Take exclusive ownership, fence the owner before, find the end of the log.

        Raises StoreInUseError (a live owner), DataCorruptionError (nothing is changed by it),
        TierUnavailableError (try again). An incomplete tail, which was never acknowledged, is left
        behind.
        """

    @abstractmethod
    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[LogAddress]:
        """Put one frame, the concatenation of `payload`, behind all before it.

        The buffers must not change until the future is done. Does not wait; the caller bounds what
        is in flight. The future fails with NotPrimaryError (fenced), TierUnavailableError (write or
        sync failed: the outcome of the frame is unknown), ContainerStoppedError (closed). Total
        payload must be 1 to `payload_bytes_max` bytes (ValueError at once).
        """

    @abstractmethod
    def read(self, start: LogAddress | None = None) -> AsyncGenerator[Sequence[LogFrame], None]:
        """Frames from `start`, or from the truncation point, to the tail as it is now, in batches.

        May be called while appends go on: gives at least what was acknowledged when it was called.
        A frame's payload stays valid while it is referenced. A caller that leaves before the end
        closes it. Raises DataCorruptionError, naming the place.
        """

    def last_address(self) -> LogAddress | None:
        """In the last acknowledged frame, or of it: a later one has a higher address.

        None if there is none, and of a log that is only viewed.
        """
        return None

    def place_of(self, address: LogAddress) -> str:
        """Where the frame at an address lies, for people; empty where that is nowhere to go to."""
        del address
        return ""

    @property
    def reads_ranges(self) -> bool:
        """Whether `read_ranges` finds bytes as long as the log is not truncated behind them."""
        return False

    def payload_address(self, address: LogAddress) -> LogAddress | None:
        """Of the first payload byte of the frame at `address`, which was appended in this opening;
        the others follow. None in logs that never can `read_ranges`.
        """
        del address
        return None

    async def read_ranges(self, ranges: Sequence[LogRange]) -> list[bytes | None]:
        """The bytes at each place; None for what is not there whole, for whatever reason.

        Raises ContainerStoppedError.
        """
        return [None] * len(ranges)

    @abstractmethod
    async def truncate(self, address: LogAddress, retain_from: int | None = None) -> None:
        """Make the frame at `address` the first of the log: address durable, then what is before it
        deleted.

        Parts that lie wholly before it, of number `retain_from` or higher, are retained instead: at
        any crash they are parts of the log, or retained. What a log has no room for is deleted all
        the same: a full disk, or more ledgers than its record takes. Of None all is deleted. Parts
        that are retained already stay so.

        An address at or below the present truncation point changes nothing. Raises NotPrimaryError,
        TierUnavailableError (the log is given up), LogFullError (it is not).
        """

    @property
    def first_retained(self) -> int | None:
        """The number of the oldest retained part; None if there is none. O(1)."""
        return None

    # Most views retain nothing, nor does a log without parts.
    async def delete_retained(self, below: int | None = None) -> None:  # noqa: B027
        """Delete the retained parts of numbers below `below`, or all: once they have no reader.

        After a crash they may be retained again, so each owner asks again. Raises NotPrimaryError,
        TierUnavailableError (the log is given up).
        """

    @abstractmethod
    async def check_primary(self) -> None:
        """Raise NotPrimaryError if another owner has opened the log by now, TierUnavailableError if
        that cannot be known.

        For a reader that misses an expected frame: it may have been truncated by a new owner. Costs
        a check of the log's state.
        """

    def sealed_parts(self, above: int = 0) -> Sequence[SealedPart]:
        """Parts that are sealed and not deleted, oldest first: the retained ones, then the log's.
        Only those of numbers higher than `above`.

        Every frame of the log is in one of all, or behind the end of the last one. Of a log that
        has no parts: none. Raises ContainerStoppedError unless the log is open. O(those parts).
        """
        del above
        return ()

    def part_of(self, address: LogAddress) -> int:
        """The number of the part that the frame at an address lies in, sealed or not.

        The upper half of the address, unless a log says otherwise. O(log parts) at most.
        """
        return address >> 32

    async def open_part(self, number: int) -> ReadHandle:
        """The sealed part of this number, entry by entry: an entry is a frame with its header.

        Entries below the truncation point are there as long as the part is. Until the handle is
        closed the part is not deleted by this log, whatever is truncated; another owner may delete
        it, and so may the next opening. Raises LedgerNotFoundError, TierUnavailableError,
        DataCorruptionError, NotPrimaryError, ContainerStoppedError.
        """
        raise LedgerNotFoundError(number, "a log without parts")

    # Where nothing keeps others out, there is nothing to do.
    def release_lock(self) -> None:  # noqa: B027
        """Give back what keeps others from opening the log, for an owner whose event loop is
        closed; it is not used again.

        Blocks for a system call at most. Others fence it when they open it, whatever it may still
        do. Raises OSError.
        """

    @abstractmethod
    async def close(self) -> None:
        """Fail what is in flight (ContainerStoppedError), release ownership. Idempotent."""

    @abstractmethod
    def statistics(self) -> DataLogStatistics:
        """Numbers as of now. O(1)."""

    # Most logs have no disk that is theirs.
    def keep_room_for(self, length: int) -> None:  # noqa: B027
        """A checkpoint takes `length` bytes: what a log keeps for times of a full disk must suffice
        for one.
        """

    def health(self) -> str | None:
        """What the log waits for, or what else is not well with it, a sentence for people; None
        when all is well.
        """
        return None
