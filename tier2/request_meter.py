"""RequestMeter: what every object storage counts of the requests it sends.

A request is one message to the provider: what it bills and limits. One call of an object storage
may be many (a put in parts) or none. Counted on the event loop only.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from tier2.object_storage import ObjectStorageError, StorageUnavailableError
from tier2.request_statistics import (
    LATENCY_BOUNDS_S,
    ObjectStorageStatistics,
    Operation,
    OperationStatistics,
)

_READS: Final = frozenset(("get", "head", "list", "list_uploads"))


class _Counts:
    __slots__ = (
        "errors", "hedges", "hedges_won", "in_flight", "latency", "received", "requests",
        "retries", "seconds", "sent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = self.in_flight = self.retries = self.sent = self.received = 0
        self.hedges = self.hedges_won = 0
        self.errors: Counter[str] = Counter()
        self.seconds = 0.0
        self.latency = [0] * (len(LATENCY_BOUNDS_S) + 1)


class _Answers:
    """How often the provider has answered requests that read, or requests that write: one may work
    without the other.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def more_than(self, count: int) -> bool:
        return self.count > count


class MeteredRequest:
    """One request under way; its sender reports what it carried and how it ended."""

    __slots__ = ("_answers", "_begun", "_counts", "_loop")

    def __init__(self, counts: _Counts, answers: _Answers) -> None:
        self._counts = counts
        self._answers = answers
        # Kept: a request whose program has ended ends without a running loop.
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()

    def sent(self, count: int) -> None:
        """Bytes of an object went to the provider."""
        self._counts.sent += count

    def received(self, count: int) -> None:
        """Bytes of an object came back."""
        self._counts.received += count

    def won(self) -> None:
        """A second request had the answer first."""
        self._counts.hedges_won += 1

    def ended(self, error: BaseException | None) -> float:
        """Its outcome is known; the seconds it took.

        A StorageUnavailableError is counted as its failure. Once.
        """
        counts = self._counts
        if isinstance(error, StorageUnavailableError):
            counts.errors[error.kind] += 1
            if error.is_of_all:
                error.outlived = partial(self._answers.more_than, self._answers.count)
        elif error is None or isinstance(error, ObjectStorageError):
            self._answers.count += 1
        seconds = self._loop.time() - self._begun
        counts.in_flight -= 1
        counts.seconds += seconds
        counts.latency[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        return seconds


class RequestMeter:
    """Counts the requests of one object storage."""

    def __init__(self) -> None:
        self._operations: dict[Operation, _Counts] = {}
        self._of_reads, self._of_writes = _Answers(), _Answers()

    def begin(
        self, operation: Operation, *, retry: bool = False, hedge: bool = False
    ) -> MeteredRequest:
        """One request, which is sent now.

        The sender calls `ended` when its outcome is known.
        """
        counts = self._operations.get(operation)
        if counts is None:
            counts = self._operations[operation] = _Counts()
        counts.requests += 1
        counts.retries += retry or hedge
        counts.hedges += hedge
        counts.in_flight += 1
        answers = self._of_reads if operation in _READS else self._of_writes
        return MeteredRequest(counts, answers)

    @contextmanager
    def request(self, operation: Operation, *, retry: bool = False) -> Iterator[MeteredRequest]:
        """One request, from just before it is sent until its outcome is known.

        A StorageUnavailableError is counted as its failure.
        """
        request = self.begin(operation, retry=retry)
        error: BaseException | None = None
        try:
            yield request
        except BaseException as raised:
            error = raised
            raise
        finally:
            request.ended(error)

    def snapshot(self) -> ObjectStorageStatistics:
        """The numbers as of now."""
        return ObjectStorageStatistics(
            operations={
                operation: OperationStatistics(
                    requests=counts.requests,
                    in_flight=counts.in_flight,
                    retries=counts.retries,
                    hedges=counts.hedges,
                    hedges_won=counts.hedges_won,
                    bytes_sent=counts.sent,
                    bytes_received=counts.received,
                    errors=dict(counts.errors),
                    seconds=counts.seconds,
                    latency_counts=tuple(counts.latency),
                )
                for operation, counts in self._operations.items()
            }
        )
