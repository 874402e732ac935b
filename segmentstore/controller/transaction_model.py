"""What the Controller knows of a transaction, and the rules of its lease. Pure.

A transaction has a segment for each active segment of its stream's epoch. Committing appends each
to its parent, aborting deletes them. Rule of this store: a stream does not scale while it has
transactions that have not ended. So their parents are active until then. A transaction ends at the
latest when its lease does.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from segmentstore.controller.names import ScopedName, segment_name, transaction_segment_name
from segmentstore.controller.refusals import Reason, RefusedRequestError
from segmentstore.controller.segment_actions import ActionStep, StepKind

LEASE_MIN_MS: Final = 10_000
LEASE_MAX_MS: Final = 600_000
LEASES_MAX: Final = 1000
"""A transaction ends after so many leases, however often it is pinged."""
AGE_MAX_MS: Final = 24 * 3600 * 1000
"""Or after so long."""
KEPT_MS: Final = 24 * 3600 * 1000
"""How long it is known how a transaction ended."""
_EPOCH_SHIFT: Final = 96
_LOWER_SIGN: Final = 1 << 63


class TransactionState(enum.StrEnum):
    """Where a transaction is. The last two have ended."""

    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


class PingOutcome(enum.Enum):
    """What is answered to the writer that extends a lease."""

    OK = enum.auto()
    LEASE_TOO_LARGE = enum.auto()
    TOO_OLD = enum.auto()
    COMMITTED = enum.auto()
    ABORTED = enum.auto()
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A transaction that has not ended, as its row says."""

    segments: tuple[int, ...]
    """Ids of the parents."""
    lease_ms: int
    begun_ms: int
    state: TransactionState = TransactionState.OPEN
    order: int = 0
    """Place of its commit among those of the process and of those before it."""
    request_id: str = ""
    """Of its creation."""

    @property
    def age_max_ms(self) -> int:
        """How long it may be open."""
        return min(self.lease_ms * LEASES_MAX, AGE_MAX_MS)

    def committing(self, order: int) -> Self:
        return dataclasses.replace(self, state=TransactionState.COMMITTING, order=order)

    def aborting(self) -> Self:
        return dataclasses.replace(self, state=TransactionState.ABORTING)

    def to_row(self) -> dict[str, Any]:
        return {
            "segments": list(self.segments),
            "lease_ms": self.lease_ms,
            "begun_ms": self.begun_ms,
            "state": self.state.value,
            "order": self.order,
            "request": self.request_id,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(
            segments=tuple(row["segments"]),
            lease_ms=row["lease_ms"],
            begun_ms=row["begun_ms"],
            state=TransactionState(row["state"]),
            order=row["order"],
            request_id=row.get("request", ""),
        )


def make_transaction_id(epoch: int, random_bits: int) -> int:
    """128 bits: the epoch, and 95 of 96 bits of randomness.

    The lower half is not negative: the Rust client 0.3.7 extends its sign into the upper half.
    """
    return epoch << _EPOCH_SHIFT | random_bits & ~_LOWER_SIGN


def check_lease(lease_ms: int) -> int:
    """Return it; raise RefusedRequestError outside its bounds."""
    if not LEASE_MIN_MS <= lease_ms <= LEASE_MAX_MS:
        raise RefusedRequestError(
            Reason.BAD_ARGUMENT,
            f"a lease of {lease_ms} ms is outside {LEASE_MIN_MS} to {LEASE_MAX_MS}",
        )
    return lease_ms


def create_steps(
    stream: ScopedName, transaction_id: int, record: TransactionRecord, rollover_bytes: int
) -> list[ActionStep]:
    """The segments of a transaction, made before its creator has an answer."""
    return [
        ActionStep(
            StepKind.CREATE,
            transaction_segment_name(segment_name(stream, each), transaction_id),
            rollover_bytes=rollover_bytes,
        )
        for each in record.segments
    ]


def commit_steps(
    stream: ScopedName, transactions: Iterable[tuple[int, TransactionRecord]]
) -> list[ActionStep]:
    """One merge for each parent, of all transactions in the order of their commits."""
    sources: dict[int, list[str]] = {}
    for transaction_id, record in sorted(transactions, key=lambda each: each[1].order):
        for segment_id in record.segments:
            source = transaction_segment_name(segment_name(stream, segment_id), transaction_id)
            sources.setdefault(segment_id, []).append(source)
    return [
        ActionStep(StepKind.MERGE, segment_name(stream, segment_id), sources=tuple(merged))
        for segment_id, merged in sources.items()
    ]


def abort_steps(
    stream: ScopedName, transactions: Sequence[tuple[int, TransactionRecord]]
) -> list[ActionStep]:
    """The deletion of all their segments."""
    return [
        ActionStep(
            StepKind.DELETE,
            transaction_segment_name(segment_name(stream, segment_id), transaction_id),
        )
        for transaction_id, record in transactions
        for segment_id in record.segments
    ]
