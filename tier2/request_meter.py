"""RequestMeter: what every object storage counts of the requests it sends, and the snapshot of it.

A request is one message to the provider: what it bills and limits. One call of an object storage may be many (a put
in parts) or none. Counted on the event loop only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from tier2.object_storage import StorageUnavailableError

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
"""Kinds of requests. The last six are of uploads in parts; a provider without them never counts any."""

LATENCY_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of a latency histogram; one more bucket is behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStatistics:
    """A snapshot of one kind of requests, since the storage was opened."""

    requests: int
    """Sent, those in flight included."""
    in_flight: int
    retries: int
    """Requests that repeat an earlier one of the same call."""
    bytes_sent: int
    bytes_received: int
    errors: Mapping[str, int]
    """By kind: the provider's code, or the name of what went wrong on the way. Absent objects are answers, not errors."""
    seconds: float
    """Sum of the latencies of all that ended."""
    latency_counts: tuple[int, ...]
    """How many took at most each of LATENCY_BOUNDS_S and more than the bound before it; the last: longer than all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageStatistics:
    """A snapshot of a provider's numbers, since it was opened."""

    operations: Mapping[Operation, OperationStatistics]
    """Of the kinds that occurred."""

    def requests(self, *operations: Operation) -> int:
        """Requests of these kinds; of all kinds if none is named."""
        return sum(each.requests for kind, each in self.operations.items() if not operations or kind in operations)

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


class _Counts:
    __slots__ = ("errors", "in_flight", "latency", "received", "requests", "retries", "seconds", "sent")

    def __init__(self) -> None:
        self.requests = self.in_flight = self.retries = self.sent = self.received = 0
        self.errors: Counter[str] = Counter()
        self.seconds = 0.0
        self.latency = [0] * (len(LATENCY_BOUNDS_S) + 1)


class Request:
    """One request under way; who makes it tells what it carried and how it ended."""

    __slots__ = ("_counts",)

    def __init__(self, counts: _Counts) -> None:
        self._counts = counts

    def sent(self, count: int) -> None:
        """Bytes of an object went to the provider."""
        self._counts.sent += count

    def received(self, count: int) -> None:
        """Bytes of an object came back."""
        self._counts.received += count


class RequestMeter:
    """Counts the requests of one object storage."""

    def __init__(self) -> None:
        self._operations: dict[Operation, _Counts] = {}

    @contextmanager
    def request(self, operation: Operation, *, retry: bool = False) -> Iterator[Request]:
        """One request, from just before it is sent until its outcome is known. A StorageUnavailableError is counted as its failure."""
        counts = self._operations.get(operation)
        if counts is None:
            counts = self._operations[operation] = _Counts()
        loop = asyncio.get_running_loop()
        counts.requests += 1
        counts.retries += retry
        counts.in_flight += 1
        begun = loop.time()
        try:
            yield Request(counts)
        except StorageUnavailableError as error:
            counts.errors[error.kind] += 1
            raise
        finally:
            seconds = loop.time() - begun
            counts.in_flight -= 1
            counts.seconds += seconds
            counts.latency[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1

    def snapshot(self) -> ObjectStorageStatistics:
        """The numbers as of now."""
        return ObjectStorageStatistics(
            operations={
                operation: OperationStatistics(
                    requests=counts.requests,
                    in_flight=counts.in_flight,
                    retries=counts.retries,
                    bytes_sent=counts.sent,
                    bytes_received=counts.received,
                    errors=dict(counts.errors),
                    seconds=counts.seconds,
                    latency_counts=tuple(counts.latency),
                )
                for operation, counts in self._operations.items()
            }
        )
