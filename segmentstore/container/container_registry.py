"""ContainerRegistry: the containers of an open store in this process. Each is started, stopped and
started again by itself, while its neighbours go on (loop).

An opening starts those that `serve` names, and a close stops all; in between callers start and stop
single ones. Rules of this file, which are Pravega's:

- no success before it is true: a start returns when the container serves, a stop when what was
  taken is durable and all of the container is released;
- one that a failure stops is reported with its cause, and stays stopped until it is asked for;
- at most STARTS_AT_ONCE start at one time;
- each start makes the container anew: nothing of the one before is used again;
- the containers present share the cache: each from the request for its start until all of it is
  released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

from segmentstore.container.container_state import ContainerState
from segmentstore.container.container_status import (
    PRESENT,
    STOPPED_ON_REQUEST,
    ContainerStatus,
    HostState,
    refusal,
)
from segmentstore.container.segment_container import SegmentContainer
from segmentstore.contracts.errors import (
    ContainerNotServedError,
    ContainerStoppedError,
    InvalidArgumentError,
    StoreClosedError,
    describe,
)
from segmentstore.contracts.owned_tasks import gather_outcomes, own_task
from segmentstore.contracts.runtime import Clock
from segmentstore.contracts.waiting import outlast

_log = logging.getLogger(__name__)

STARTS_AT_ONCE: Final = 2
SETTLE_S: Final = 5.0
"""Longest that a container which another owner waits for goes on serving."""

OnFailure = Callable[[SegmentContainer], None]
MakeContainer = Callable[[int, int, OnFailure], SegmentContainer]
"""A container of this number, not started, with so many bytes of the cache."""


class _Start:
    """One start, for which callers wait."""

    __slots__ = ("cancelled", "task", "waiting")

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.waiting = 0
        self.cancelled = False
        """No caller joins it any more."""

    async def cancel(self) -> None:
        """Return when nothing of it is left, or it has succeeded all the same."""
        self.cancelled = True
        # Its first step has been taken, for a loop is first in, first out: it undoes what it did.
        self.task.cancel()
        await outlast(self.task)
        if not self.task.cancelled():
            self.task.exception()  # callers that wait for it get it, if there are any


class _Entry:
    """What is known of one container that was asked for."""

    __slots__ = ("container", "number", "start", "status", "stop")

    def __init__(self, number: int, status: ContainerStatus) -> None:
        self.number = number
        self.status = status
        self.container: SegmentContainer | None = None
        """Of the last start, until it is released."""
        self.start: _Start | None = None
        self.stop: asyncio.Task[None] | None = None


class ContainerRegistry:
    """Of one store, which has `count` containers; everything on its event loop.

    `begin` starts a container that `make` made. `share` gives the bytes of the cache that each has
    when so many are present. `serve` is the setting, for messages.
    """

    def __init__(
        self,
        count: int,
        serve: str,
        *,
        make: MakeContainer,
        begin: Callable[[SegmentContainer], Awaitable[None]],
        share: Callable[[int], int],
        clock: Clock,
    ) -> None:
        self.containers: tuple[SegmentContainer, ...] = ()
        """Those that serve, and those that a failure has stopped since; ascending. Replaced at each
        change, so that none disturbs a pass over it.
        """
        self.homes: dict[str, SegmentContainer] = {}
        """What callers remember of where names are alive; emptied when a container leaves."""
        self._count = count
        self._serve = serve
        self._make = make
        self._begin = begin
        self._share = share
        self._clock = clock
        self._entries: dict[int, _Entry] = {}
        self._by_id: dict[int, SegmentContainer] = {}
        self._turns = asyncio.Semaphore(STARTS_AT_ONCE)
        self._releasing: set[asyncio.Task[None]] = set()
        self.on_change: Callable[[], object] = _nothing
        """Called behind each change of a status, on the loop."""
        self._watchers: list[
            tuple[Callable[[SegmentContainer], object], Callable[[int], object]]
        ] = []
        self._closed = False

    def watch(
        self, on_start: Callable[[SegmentContainer], object], on_stop: Callable[[int], object]
    ) -> None:
        """Call `on_start` with each container that serves, now and later, in the turn in which it
        begins to; `on_stop` with the number of one that was withdrawn since.
        """
        self._watchers.append((on_start, on_stop))
        for container in self.containers:
            on_start(container)

    # --- what there is ----------------------------------------------------------------------------

    @property
    def served(self) -> list[int]:
        """Numbers of the containers that serve now, ascending."""
        return [
            each.number for each in self._sorted_entries() if each.status.state is HostState.RUNNING
        ]

    def running(self, number: int) -> SegmentContainer | None:
        """The container, if it serves now."""
        container = self._by_id.get(number)
        serves = container is not None and container.state is ContainerState.RUNNING
        return container if serves else None

    @property
    def numbers(self) -> Collection[int]:
        """Those of `containers`. A live view."""
        return self._by_id.keys()

    def statuses(self) -> dict[int, ContainerStatus]:
        """Of each container that was asked for since the opening, by number."""
        return {each.number: each.status for each in self._sorted_entries()}

    def home(self, number: int) -> SegmentContainer:
        """The container, if it is one of `containers`.

        Raises ContainerNotServedError, ContainerStoppedError (its start failed), StoreClosedError.
        """
        container = self._by_id.get(number)
        if container is not None:
            return container
        self.check_open()
        entry = self._entries.get(number)
        if entry is None:
            raise ContainerNotServedError(number, f"serve={self._serve!r}")
        raise refusal(number, entry.status)

    def check_open(self) -> None:
        """Raise StoreClosedError once it is closed."""
        if self._closed:
            raise StoreClosedError

    def health(self) -> list[str]:
        """A sentence for each container whose start or stop failed.

        Those that failed while they served say so themselves.
        """
        return [
            f"container {number} has failed: {describe(status.cause)}"
            for number, status in self.statuses().items()
            if status.cause is not None and number not in self._by_id
        ]

    # --- starts -----------------------------------------------------------------------------------

    async def start_all(self, numbers: Collection[int]) -> None:
        """Start these. Raises what the first one fails with, when all serve or have failed."""
        for number in numbers:
            # All at once: the share of the first is not to shrink with each that follows.
            self._set(self._entry(number), HostState.STARTING)
        outcomes = await gather_outcomes(*map(self.start, numbers), name="start container")
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def start(self, number: int) -> None:
        """Return when the container serves; at once if it does. A failed one is started again.

        Behind a stop on its way it begins when that has ended; two callers wait for one start.
        Cancelled, it ends when what it had opened is released, unless others wait, too. Raises what
        the start fails with; ContainerNotServedError (it was stopped meanwhile), StoreClosedError,
        InvalidArgumentError. Costs the replay of the container's log.
        """
        entry = self._entry(number)
        while True:
            self.check_open()
            start = entry.start
            if entry.stop is not None:
                await asyncio.wait((entry.stop,))
            elif start is not None and start.cancelled:
                await asyncio.wait((start.task,))
            elif start is not None:
                return await self._join(entry, start)
            elif entry.status.state is HostState.RUNNING:
                return None
            else:
                self._withdraw(entry)
                self._set(entry, HostState.STARTING)
                task = own_task(
                    self._start(entry), name=f"start-{number}", on_failure=_already_logged
                )
                entry.start = _Start(task)

    async def _join(self, entry: _Entry, start: _Start) -> None:
        start.waiting += 1
        try:
            await asyncio.wait((start.task,))
        except asyncio.CancelledError:
            if start.waiting == 1 and not start.task.done():
                await start.cancel()
            raise
        finally:
            start.waiting -= 1
        if start.cancelled and (start.task.cancelled() or start.task.exception() is None):
            self.check_open()
            raise ContainerNotServedError(entry.number, "it was stopped while it was being started")
        start.task.result()

    async def _start(self, entry: _Entry) -> None:
        failure: BaseException | None = None
        try:
            await self._release(entry)  # One that has failed.
            async with self._turns:
                while self._resize():  # noqa: ASYNC110 - a turn for others, no wait
                    await asyncio.sleep(0)
                container = self._make(entry.number, self._bytes_each(), self._failed)
                entry.container = container
                await self._begin(container)
                # A part may have failed in the very turn in which it began.
                failure = container.failure
        except GeneratorExit:
            raise  # the event loop was closed: nothing can be awaited any more
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        if failure is not None:
            # In a task of its own: a second cancellation here must not leave half of it open.
            await outlast(own_task(self._release(entry), name=f"stop-{entry.number}"))
        entry.start = None
        if entry.stop is None and not self._closed:
            if failure is None:
                self._publish(entry)
            elif isinstance(failure, asyncio.CancelledError):
                self._set(entry, HostState.STOPPED)
            else:
                self._set(entry, HostState.FAILED, failure)
                _log.error("container %d does not start: %s", entry.number, describe(failure))
        if failure is not None:
            raise failure

    def _publish(self, entry: _Entry) -> None:
        assert entry.container is not None
        self._by_id[entry.number] = entry.container
        self._list()
        self._set(entry, HostState.RUNNING)
        for on_start, _ in self._watchers:
            on_start(entry.container)

    # --- stops ------------------------------------------------------------------------------------

    async def hand_over(self, number: int, is_wanted: Callable[[], bool]) -> None:
        """As `stop`, for another owner that waits. First all is prepared while the container still
        serves, SETTLE_S at most, so that it is soon opened again. Then `is_wanted` is asked.
        """
        container = self.running(number)
        if container is not None:
            await container.settle(SETTLE_S)
        if is_wanted():
            await self._stopped(number, hand_over=True)

    def confirm(self, number: int) -> None:
        """As `SegmentContainer.confirm_owner`, of a container that serves."""
        container = self.running(number)
        if container is not None:
            container.confirm_owner()

    async def stop(self, number: int) -> None:
        """Return when the container is stopped, and all of it is released; at once if it is.

        What was taken becomes durable and is acknowledged, uploads on their way end. Later calls,
        and reads that wait, get ContainerNotServedError. A start on its way is cancelled. A failed
        container becomes a stopped one. Cancelled, the stop goes on.

        Raises ContainerStoppedError if a failure prevented that: `cause` has it;
        StoreClosedError, InvalidArgumentError.
        """
        await self._stopped(number, hand_over=False)

    async def _stopped(self, number: int, *, hand_over: bool) -> None:
        self._check(number)
        self.check_open()
        entry = self._entries.get(number)
        if entry is None or entry.status.state is HostState.STOPPED:
            return
        if entry.stop is None:
            self._withdraw(entry)
            # Of one that has failed nothing is left that another owner would wait for. It stays
            # failed until it is released, which may take a while where its log cannot be reached.
            if entry.status.state is not HostState.FAILED:
                self._set(entry, HostState.STOPPING)
            entry.stop = own_task(
                self._stop(entry, hand_over=hand_over),
                name=f"stop-{number}",
                on_failure=_already_logged,
            )
        await asyncio.shield(entry.stop)

    async def _stop(self, entry: _Entry, *, hand_over: bool) -> None:
        if entry.start is not None:
            await entry.start.cancel()
        failure: BaseException | None = None
        container = entry.container
        if container is not None:
            had_failed = container.failure is not None
            container.announce_stop(ContainerNotServedError(entry.number, STOPPED_ON_REQUEST))
            failure = await self._release(entry, hand_over=hand_over)
            if failure is None and not had_failed:
                failure = container.failure
        entry.stop = None
        if failure is None:
            self._set(entry, HostState.STOPPED)
            return
        self._set(entry, HostState.FAILED, failure)
        _log.error("container %d does not stop in order: %s", entry.number, describe(failure))
        raise ContainerStoppedError(entry.number, failure)

    async def close(self) -> None:
        """Cancel what starts, stop all; `containers` stay, and say why.

        Raises what the first one fails with, when all have stopped.
        """
        self._closed = True
        outcomes = await gather_outcomes(
            *map(self._end, self._entries.values()), name="stop container"
        )
        while self._releasing:
            await asyncio.wait(self._releasing)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _end(self, entry: _Entry) -> None:
        if entry.stop is not None:
            await asyncio.wait((entry.stop,))
        if entry.start is not None:
            await entry.start.cancel()
        try:
            if entry.container is not None:
                await entry.container.stop()
        finally:
            if entry.status.state in PRESENT:
                self._set(entry, HostState.STOPPED)

    def release_logs(self) -> None:
        """Release the logs of all containers, for an owner whose event loop is closed."""
        for entry in self._entries.values():
            if entry.container is not None:
                with suppress(OSError):
                    entry.container.release_log()

    # --- failures ---------------------------------------------------------------------------------

    def _failed(self, container: SegmentContainer) -> None:
        """Something has stopped a container unasked. Called on the loop, from anywhere."""
        entry = self._entries[container.container_id]
        if entry.container is not container or entry.status.state is not HostState.RUNNING:
            return  # a start or a stop is on its way, and reports it
        self._set(entry, HostState.FAILED, container.failure)
        report = partial(_log_end, entry.number)
        task = own_task(_release(container), name=f"stop-{entry.number}", on_failure=report)
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    # --- inside -----------------------------------------------------------------------------------

    def _check(self, number: int) -> None:
        if type(number) is not int or not 0 <= number < self._count:
            detail = f"a container is a number from 0 to {self._count - 1}"
            raise InvalidArgumentError("number", number, detail)

    def _entry(self, number: int) -> _Entry:
        self._check(number)
        entry = self._entries.get(number)
        if entry is None:
            status = ContainerStatus(HostState.STOPPED, self._clock.time_ms())
            entry = self._entries[number] = _Entry(number, status)
        return entry

    def _sorted_entries(self) -> list[_Entry]:
        return [self._entries[number] for number in sorted(self._entries)]

    def _set(self, entry: _Entry, state: HostState, cause: BaseException | None = None) -> None:
        grows = entry.status.state in PRESENT and state not in PRESENT
        entry.status = ContainerStatus(state, self._clock.time_ms(), cause)
        if grows and not self._closed:
            self._resize()
        self.on_change()

    def _withdraw(self, entry: _Entry) -> None:
        """No call finds it from now on."""
        if self._by_id.pop(entry.number, None) is not None:
            self._list()
            for _, on_stop in self._watchers:
                on_stop(entry.number)

    def _list(self) -> None:
        self.homes.clear()
        self.containers = tuple(self._by_id[number] for number in sorted(self._by_id))

    def _bytes_each(self) -> int:
        return self._share(sum(each.status.state in PRESENT for each in self._entries.values()))

    def _resize(self) -> bool:
        """Have every container take its share; True if a turn was not enough for that."""
        bytes_each = self._bytes_each()
        present = [
            each.container
            for each in self._entries.values()
            if each.container is not None and each.status.state in PRESENT
        ]
        left = [container.resize_cache(bytes_each) for container in present]
        return any(left)

    async def _release(self, entry: _Entry, *, hand_over: bool = False) -> Exception | None:
        """Stop what the entry has; what that failed with, when nothing is left of it."""
        if entry.container is None:
            return None
        failure = None
        try:
            await _release(entry.container, hand_over=hand_over)
        except Exception as error:  # noqa: BLE001 - the caller reports it
            failure = error
        entry.container = None
        return failure


async def _release(container: SegmentContainer, *, hand_over: bool = False) -> None:
    """Stop a container, and give back its share of the cache: its neighbours have use for it."""
    try:
        await container.stop(hand_over=hand_over)
    finally:
        while container.resize_cache(0):  # noqa: ASYNC110 - a turn for others, no wait
            await asyncio.sleep(0)


def _nothing(*_: object) -> None:
    pass


def _already_logged(_: BaseException) -> None:
    """There may be no caller left that waits for it."""


def _log_end(number: int, error: BaseException) -> None:
    _log.warning("container %d failed, and was not all released: %s", number, describe(error))
