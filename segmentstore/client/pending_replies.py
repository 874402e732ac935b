"""What waits for replies of a store: one request, appends that were joined into one, events.

Pure, but for the futures that it resolves.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from segmentstore.contracts.errors import AppendOutcomeUnknownError, StoreDisconnectedError
from segmentstore.wire.errors import WireError
from segmentstore.wire.store_commands import DUPLICATE, EventToAppend, NumbersGiven


class PendingReply(ABC):
    """Waits for the reply, or the replies, of one request id."""

    size = 0
    """Bytes of data that it keeps on their way."""
    changes = True
    """Without a reply its outcome is unknown."""

    @abstractmethod
    def take(self, reply: Any) -> bool:
        """Resolve by a reply that is no refusal; whether it was the last.

        Raises WireError for a reply of the wrong kind.
        """

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """Resolve what is left: refused."""

    @abstractmethod
    def lose(self, lost: StoreDisconnectedError) -> None:
        """Resolve what is left: the connection has ended."""


class PendingRequest(PendingReply):
    """One request, and its future."""

    def __init__(self, future: asyncio.Future[Any], kind: type, *, changes: bool) -> None:
        """`kind`: of the reply."""
        self._future = future
        self._kind = kind
        self.changes = changes

    def take(self, reply: Any) -> bool:
        if type(reply) is not self._kind:
            raise WireError(f"{type(reply).__name__} is no reply to this request")
        if not self._future.done():
            self._future.set_result(reply)
        return True

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def lose(self, lost: StoreDisconnectedError) -> None:
        self.fail(AppendOutcomeUnknownError(None, lost) if self.changes else lost)


class JoinedAppends(PendingReply):
    """Appends to one segment that go out as one: the engine may place them side by side anyway."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._futures: list[asyncio.Future[int]] = []

    def add(self, data: bytes, future: asyncio.Future[int]) -> None:
        """One more."""
        self._data.append(data)
        self._futures.append(future)
        self.size += len(data)

    def joined(self) -> bytes:
        """All their bytes."""
        return self._data[0] if len(self._data) == 1 else b"".join(self._data)

    def take(self, reply: Any) -> bool:
        (offset,) = _numbers(reply, 1)
        for data, future in zip(self._data, self._futures, strict=True):
            if not future.done():
                future.set_result(offset)
            offset += len(data)
        return True

    def fail(self, error: BaseException) -> None:
        for future in self._futures:
            if not future.done():
                future.set_exception(error)

    def lose(self, lost: StoreDisconnectedError) -> None:
        self.fail(AppendOutcomeUnknownError(None, lost))


class JoinedEvents(PendingReply):
    """Events of one writer that go out as one request. Each has an outcome of its own."""

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self.events: list[EventToAppend] = []
        self._futures: list[asyncio.Future[int | None]] = []
        self._resolved = 0

    def add(self, number: int, data: bytes, future: asyncio.Future[int | None]) -> None:
        """One more."""
        self.events.append(EventToAppend(number, data))
        self._futures.append(future)
        self.size += len(data)

    def take(self, reply: Any) -> bool:
        offsets = _numbers(reply, None)
        first = self._resolved
        if first + len(offsets) > len(self._futures):
            raise WireError(f"{len(offsets)} offsets more for {len(self._futures)} events")
        self._resolved += len(offsets)
        for future, offset in zip(self._futures[first:], offsets, strict=False):
            if not future.done():
                future.set_result(None if offset == DUPLICATE else offset)
        return self._resolved == len(self._futures)

    def fail(self, error: BaseException) -> None:
        for future in self._futures[self._resolved :]:
            if not future.done():
                future.set_exception(error)

    def lose(self, lost: StoreDisconnectedError) -> None:
        self.fail(AppendOutcomeUnknownError(None, lost))


def _numbers(reply: Any, count: int | None) -> tuple[int, ...]:
    if type(reply) is not NumbersGiven or (count is not None and len(reply.numbers) != count):
        raise WireError(f"{type(reply).__name__} is no reply to an append")
    return reply.numbers
