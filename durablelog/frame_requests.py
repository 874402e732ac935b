"""What the packer takes, and what it gives: requests and packed frames."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice

from durablelog.durable_data_log import LogAddress
from durablelog.operations import AppendOperation, Operation
from durablelog.pending_segment import Event
from segmentstore.contracts.attributes import KeyedUpdate
from segmentstore.contracts.checksum import Buffer

AppendRequest = tuple[
    int, bytes, "asyncio.Future[int | None]", int | None, Sequence[KeyedUpdate] | None, Event | None
]
"""(segment id, data, future, expected offset, attribute updates, event): a tuple because one is
made per append.
"""


def refuse(request: AppendRequest, error: BaseException) -> None:
    """Fail an append, and those behind it of its writer's session."""
    _, _, future, _, _, event = request
    if event is not None:
        event[2].refusal = event[2].refusal or error
    if not future.done():
        future.set_exception(error)


class OperationRequest:
    """An operation that is not an append, and the future of its caller."""

    __slots__ = ("future", "operation", "queued_bytes")

    def __init__(
        self, operation: Operation, future: asyncio.Future[object], queued_bytes: int = 0
    ) -> None:
        self.operation = operation
        self.future = future
        self.queued_bytes = queued_bytes
        """What it counts in the bounded queue; 0 for the engine's own."""


Request = AppendRequest | OperationRequest

REQUEST_BYTES = 256
"""What a request that waits takes in memory beside its data, about."""
LARGE_APPEND_BYTES = 16 * 1024
"""From here on an append is an operation of its own."""


def next_of(queue: deque[Request], count: int) -> tuple[Request, ...]:
    """The first `count` of a queue. O(count)."""
    while True:
        try:
            return tuple(islice(queue, count))
        except RuntimeError:
            # A collection of garbage has run in it, and a signal handler that appends in that.
            continue


class PackedFrame:
    """One frame's payload, the operations that end in it, and the futures it resolves."""

    __slots__ = (
        "acknowledged",
        "futures",
        "length",
        "operations",
        "payload",
        "placed",
        "shipped_s",
        "starts_checkpoint",
        "values",
    )

    def __init__(self) -> None:
        self.payload: list[Buffer] = []
        self.length = 0
        self.operations: list[Operation] = []
        self.futures: list[asyncio.Future[object]] = []
        self.values: list[object] = []
        """What each future is resolved with."""
        self.placed: list[tuple[AppendOperation, int, int]] = []
        """Of large appends in it: position in the payload and length of what it has of each."""
        self.starts_checkpoint = False
        """The first record in it is a checkpoint: a legal truncation point once that is
        committed.
        """
        self.acknowledged: asyncio.Future[LogAddress] | None = None
        """Of the log; from when it was handed to it, at `shipped_s` of the loop's clock."""
        self.shipped_s = 0.0

    def note_places(self, payload_address: LogAddress) -> None:
        """It is in the log: its large appends are found there from now on."""
        for operation, position, length in self.placed:
            operation.places += ((LogAddress(payload_address + position), length),)
