"""DurableDataLog: the Tier-1 abstraction. Exclusive, ordered, append-only, fenced.

What every implementation promises (proved by tests/contracts/durable_data_log_contract.py):

- `open` fences: once it has returned, an earlier owner of the same log can never acknowledge another
  append ("cannot tell" counts as fenced, NotPrimaryError). An implementation that can tell a live
  owner may refuse instead (StoreInUseError).
- appends are acknowledged in order, and only when they and all before them are durable;
- the first append that fails fails all later ones, for good: there is no retry at this layer;
- each opening has an epoch higher than all before it; each frame has the next frame sequence number;
- reading begins at the truncation point and gives every acknowledged frame, once, in order, then maybe
  frames that were written but never acknowledged, without a hole;
- nothing is deleted before the new truncation address is durable.

Addresses are opaque: 64-bit, ordered as the frames are, meaningful to the log that gave them alone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

from segmentstore.contracts.checksum import Buffer

LogAddress = NewType("LogAddress", int)


class LogFrame(NamedTuple):
    """One frame as read back; its checksums have been verified."""

    address: LogAddress
    sequence: int
    """Frame sequence number: +1 from frame to frame, across epochs."""
    epoch: int
    payload: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLogStatistics:
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


def _nothing() -> None:
    """What is called when nobody listens."""


class DurableDataLog(ABC):
    """One container's log. All methods are called on one event loop."""

    on_settled: Callable[[], None] = staticmethod(_nothing)
    """Called after futures of `append` have been resolved, once for all that were resolved together and in the same
    turn of the loop: the sequencer commits from here, a turn earlier than a future's own callbacks would come."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Of this opening; 1 for the first, more for a log that follows one that was lost. Valid after `open`."""

    @property
    @abstractmethod
    def payload_bytes_max(self) -> int:
        """The largest payload one append takes."""

    @abstractmethod
    async def open(self) -> None:
        """Take exclusive ownership, fence whoever had it, find the end of the log.

        Raises StoreInUseError (a live owner), DataCorruptionError (nothing is changed by it),
        TierUnavailableError (try again). An incomplete tail that nobody was promised is left behind.
        """

    @abstractmethod
    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[LogAddress]:
        """Put one frame, the concatenation of `payload`, behind all before it.

        The buffers must not change until the future is done. Does not wait; the caller bounds what is
        in flight. The future fails with NotPrimaryError (fenced), TierUnavailableError (write or sync
        failed: the outcome of the frame is unknown), ContainerStoppedError (closed). Total payload
        must be 1 to `payload_bytes_max` bytes (ValueError at once).
        """

    @abstractmethod
    def read(self, start: LogAddress | None = None) -> AsyncIterator[Sequence[LogFrame]]:
        """Frames from `start`, or from the truncation point, to the tail as it is now, in batches.

        May be called while appends go on: gives at least what was acknowledged when it was called.
        A frame's payload stays valid while it is referenced. Raises DataCorruptionError, naming the place.
        """

    @abstractmethod
    async def truncate(self, address: LogAddress) -> None:
        """Make the frame at `address` the first of the log: address durable, then what is before it deleted.

        An address at or below the present truncation point changes nothing.
        """

    @abstractmethod
    async def check_primary(self) -> None:
        """Raise NotPrimaryError if another owner has opened the log by now, TierUnavailableError if that cannot be told.

        For who misses something he should have found: it may have been truncated by a new owner. Costs a look at the log's state.
        """

    @abstractmethod
    async def close(self) -> None:
        """Fail what is in flight (ContainerStoppedError), release ownership. Idempotent."""

    @abstractmethod
    def statistics(self) -> DataLogStatistics:
        """Numbers as of now. O(1)."""

    def health(self) -> str | None:
        """What the log waits for, or what else is not well with it, a sentence for people; None when all is well."""
        return None
