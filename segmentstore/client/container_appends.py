"""ContainerAppends: plain appends to the segments of one container, over its moves.

Rules of this file:

- appends go out in the order of the calls. Once one was refused because the container moves, the
  later ones wait behind it; all go out again when those on their way have an answer;
- an append whose outcome is unknown is not sent again, unless its condition makes that harmless:
  with an expected offset, and some bytes, it takes effect once at most.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Sequence

from segmentstore.client.cluster_calls import ClusterCalls
from segmentstore.client.remote_store import RemoteStore
from segmentstore.client.retry_rules import RetrySpan, was_not_taken
from segmentstore.client.unanswered_bytes import UnansweredBytes
from segmentstore.contracts.attributes import AttributeUpdate
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    BadOffsetError,
    SegmentStoreError,
)


class _Append:
    """One append, until it has an answer."""

    __slots__ = ("attributes", "data", "expected", "future", "give_up_s", "lost", "name", "number")

    def __init__(
        self,
        number: int,
        name: str,
        data: bytes,
        expected: int | None,
        attributes: Sequence[AttributeUpdate],
        future: asyncio.Future[int],
    ) -> None:
        self.number = number
        self.name = name
        self.data = data
        self.expected = expected
        self.attributes = attributes
        self.future = future
        self.give_up_s: float | None = None
        """Set by its first failure."""
        self.lost: AppendOutcomeUnknownError | None = None
        """It may be there already."""

    def __lt__(self, other: _Append) -> bool:
        return self.number < other.number

    def outcome(self, error: BaseException) -> BaseException:
        """What the caller gets for a refusal."""
        if self.lost is None:
            return error
        if isinstance(
            error, BadOffsetError
        ) and error.expected < error.actual < error.expected + len(self.data):
            return error  # had it taken effect, the segment would be longer
        return self.lost


class ContainerAppends:
    """Of one container."""

    def __init__(self, container: int, calls: ClusterCalls, room: UnansweredBytes) -> None:
        self._container = container
        self._calls = calls
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._numbers = 0
        self._on_their_way = 0
        self._quiet: asyncio.Future[None] | None = None
        self._waiting: list[_Append] = []
        """In the order of the calls."""
        self._is_sending = False
        """A task sends what waits."""
        self._failure: SegmentStoreError | None = None
        """Why the last one was refused; None once one was taken."""
        self._pace: RetrySpan | None = None
        self._seen = 0
        """The generation of the map by which was sent."""

    def append(
        self,
        name: str,
        data: bytes,
        expected: int | None,
        attributes: Sequence[AttributeUpdate],
    ) -> asyncio.Future[int]:
        """Append; all arguments are checked. Raises TierUnavailableError, StoreClosedError."""
        self._calls.check_open()
        self._room.take(len(data))
        self._numbers += 1
        future: asyncio.Future[int] = self._loop.create_future()
        append = _Append(self._numbers, name, data, expected, attributes, future)
        store = None if self._is_sending else self._calls.lookup.connected(self._container)
        if store is not None:
            self._send(store, append)
        else:
            self._wait(append)
        return future

    def _send(self, store: RemoteStore, append: _Append) -> None:
        self._on_their_way += 1
        self._seen = self._calls.lookup.generation
        answer = store.append(append.name, append.data, append.expected, append.attributes)
        answer.add_done_callback(lambda done: self._settled(append, done))

    # --- answers ----------------------------------------------------------------------------------

    def _settled(self, append: _Append, answer: asyncio.Future[int]) -> None:
        self._on_their_way -= 1
        error = answer.exception()
        if error is None:
            self._failure = self._pace = None
            self._finish(append, answer.result())
        elif self._may_repeat(append, error) and self._has_time(append):
            assert isinstance(error, SegmentStoreError)
            self._failure = error
            self._wait(append)
        else:
            if not (was_not_taken(error) or isinstance(error, AppendOutcomeUnknownError)):
                self._failure = self._pace = None  # the host serves, and refuses this one
            self._finish(append, append.outcome(error))
        if self._quiet is not None and not self._on_their_way:
            self._quiet.set_result(None)
            self._quiet = None

    def _may_repeat(self, append: _Append, error: BaseException) -> bool:
        if not self._calls.is_open:
            return False
        if isinstance(error, AppendOutcomeUnknownError):
            if append.expected is None or not append.data:
                return False
            append.lost = error
            return True
        return was_not_taken(error)

    def _has_time(self, append: _Append) -> bool:
        now_s = self._loop.time()
        if append.give_up_s is None:
            append.give_up_s = now_s + self._calls.retry_s
        return now_s < append.give_up_s

    def _finish(self, append: _Append, result: int | BaseException) -> None:
        self._room.give_back(len(append.data))
        if not append.future.done():
            if isinstance(result, int):
                append.future.set_result(result)
            else:
                append.future.set_exception(result)

    # --- what waits -------------------------------------------------------------------------------

    def _wait(self, append: _Append) -> None:
        insort(self._waiting, append)
        if not self._is_sending:
            self._is_sending = True
            self._calls.begin(self._send_waiting(), f"appends-of-{self._container}")

    async def _send_waiting(self) -> None:
        try:
            store = await self._owner()
            while self._failure is not None and len(self._waiting) > 1:
                # It, or the host before, has refused: the first one shows whether it serves by now.
                self._send_if_wanted(store, self._waiting.pop(0))
                store = await self._owner()
        except SegmentStoreError as error:
            # None is sent from here on, and those called later begin anew.
            self._is_sending = False
            waiting, self._waiting = self._waiting, []
            for append in waiting:
                self._finish(append, append.outcome(error))
            return
        # Nothing is awaited from here on: what is called later is sent behind.
        self._is_sending = False
        waiting, self._waiting = self._waiting, []
        for append in waiting:
            self._send_if_wanted(store, append)

    def _send_if_wanted(self, store: RemoteStore, append: _Append) -> None:
        if append.future.cancelled() and append.lost is None:
            self._room.give_back(len(append.data))
        else:
            self._send(store, append)

    async def _owner(self) -> RemoteStore:
        """The owner, connected, when all that was sent has an answer; at once or after a pause.

        Raises what is no reason to try again, StoreClosedError, the last failure if nothing waits
        any more.
        """
        lookup = self._calls.lookup
        address = lookup.map.owners.get(self._container)
        while True:
            if self._on_their_way:
                self._quiet = self._loop.create_future()
                await asyncio.wait((self._quiet,))
            if self._failure is not None:
                if self._pace is None:
                    self._pace = self._calls.pace()
                await self._calls.pause(
                    self._pace, self._failure, self._container, self._seen, address
                )
            self._seen, address = lookup.generation, lookup.map.owners.get(self._container)
            try:
                return await lookup.owner(self._container)
            except SegmentStoreError as error:
                if not was_not_taken(error) or not self._calls.is_open:
                    raise
                self._failure = error
                self._drop_late(error)
                if not self._waiting:
                    raise

    def _drop_late(self, error: SegmentStoreError) -> None:
        waiting, self._waiting = self._waiting, []
        for append in waiting:
            if self._has_time(append):
                self._waiting.append(append)
            else:
                self._finish(append, append.outcome(error))
