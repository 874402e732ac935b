"""What an object storage reports about the requests it sent: a snapshot of its numbers.

Beside the counting (`request_meter`), so that the interface of object storages can name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Operation = Literal[
    "put",
    "get",
    "head",
    "list",
    "delete",
    "begin_upload",
    "put_part",
    "copy_part",
    "complete_upload",
    "abort_upload",
    "list_uploads",
]
"""Kinds of requests.

The last six are of uploads in parts; a provider without them never counts any.
"""

LATENCY_BOUNDS_S: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of the buckets of a latency histogram; one more bucket is behind the last."""


class OperationStatistics(NamedTuple):
    """A snapshot of one kind of requests, since the storage was opened."""

    requests: int
    """Sent, those in flight included."""
    in_flight: int
    retries: int
    """Requests that repeat an earlier one of the same call."""
    hedges: int
    """Of these, second requests sent beside a first one that was late."""
    hedges_won: int
    """Of these, those that had the answer first."""
    bytes_sent: int
    bytes_received: int
    errors: Mapping[str, int]
    """By kind: the provider's code, or the name of what went wrong on the way.

    Absent objects are answers, not errors.
    """
    seconds: float
    """Sum of the latencies of all that ended."""
    latency_counts: tuple[int, ...]
    """How many took at most each of LATENCY_BOUNDS_S and more than the bound before it; the last:
    longer than all.
    """


class ObjectStorageStatistics(NamedTuple):
    """A snapshot of a provider's numbers, since it was opened."""

    operations: Mapping[Operation, OperationStatistics]
    """Of the kinds that occurred."""

    def requests(self, *operations: Operation) -> int:
        """Requests of these kinds; of all kinds if none is named."""
        return sum(
            each.requests
            for kind, each in self.operations.items()
            if not operations or kind in operations
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes of objects, in successful requests."""
        return sum(each.bytes_sent for each in self.operations.values())

    @property
    def bytes_received(self) -> int:
        """Bytes of objects, in successful requests."""
        return sum(each.bytes_received for each in self.operations.values())

    @property
    def errors(self) -> int:
        """Requests that failed: the store's fault or the network's, not an answer."""
        return sum(sum(each.errors.values()) for each in self.operations.values())
