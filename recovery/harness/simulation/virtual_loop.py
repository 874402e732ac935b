"""An event loop in virtual time: hours pass in milliseconds, repeatably, without threads, sockets
or real clocks.

Alone (`run_virtual`) it moves its own clock: when nothing is ready the clock jumps to the next
timer. When there is no timer either, nothing can ever happen again: `DeadlockError` instead of a
hang. In a simulated world several loops share one clock, and the world decides which of them runs
(`run_ready`). Rules of this file:

- time is counted in whole microseconds, so that sums do not depend on the order they were made in;
- nothing here depends on addresses of objects: tasks and futures hash by a number of their own,
  because asyncio keeps them in sets and goes through these when it cancels.

It builds on asyncio's own `BaseEventLoop`, whose two queues (`_ready`, `_scheduled`) it works off
itself.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import sys
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import Context
from typing import Any, ParamSpec, TypeVar, TypeVarTuple
from weakref import WeakSet

from segmentstore.contracts.owned_tasks import owned_tasks

P = ParamSpec("P")
T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")

MICROSECONDS = 1_000_000


STANDING_TURNS_MAX = 200_000
"""Turns of a loop without a wait between them; more is no work but a circle."""

ALONE_END_US = 100 * 24 * 3600 * MICROSECONDS
"""Where the time of a loop that runs by itself ends: 100 days, past every lag there is.

What polls for ever would never end.
"""


class DeadlockError(Exception):
    """Everything waits and nothing will come."""


class WedgedError(Exception):
    """Virtual hours have passed and what is waited for has not come; or time stands still, and a
    task runs in a circle.
    """


class VirtualTime:
    """The clock all loops of a world share, in microseconds since its beginning."""

    __slots__ = ("now_us",)

    def __init__(self) -> None:
        self.now_us = 0


class _NumberedTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on where it lies in memory."""

    _number: int | None = None

    def __hash__(self) -> int:
        if self._number is None:
            loop = self.get_loop()
            assert isinstance(loop, VirtualLoop)
            self._number = loop.next_number()
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _NumberedFuture(asyncio.Future[T]):
    """A future, likewise."""

    _number: int | None = None

    def __hash__(self) -> int:
        if self._number is None:
            loop = self.get_loop()
            assert isinstance(loop, VirtualLoop)
            self._number = loop.next_number()
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop whose `time()` is virtual.

    `halted` stops it between two callbacks, for good; `interrupted` for a while.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int
    _asyncgen_firstiter_hook: Callable[[AsyncGenerator[Any, Any]], None]
    _asyncgen_finalizer_hook: Callable[[AsyncGenerator[Any, Any]], None]

    def __init__(self, time: VirtualTime | None = None) -> None:
        super().__init__()
        self.virtual_time = time if time is not None else VirtualTime()
        self.halted = False
        self.interrupted = False
        self._numbers = 0
        # Of this loop alone: asyncio's own register has the tasks of every dead world that is not
        # collected yet.
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.set_task_factory(_make_task)

    def next_number(self) -> int:
        """Numbers objects of this loop in the order they are asked for."""
        self._numbers += 1
        return self._numbers

    def time(self) -> float:
        return self.virtual_time.now_us / MICROSECONDS

    def create_future(self) -> asyncio.Future[Any]:
        return _NumberedFuture(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        if self.is_closed():
            # A dead process unwinds, and would tidy up: that never runs, and must not be warned of.
            coro.close()
        return super().create_task(coro, name=name, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def next_due_us(self) -> int | None:
        """When something can run next, now at the earliest; None if nothing waits for a time."""
        return self.virtual_time.now_us if self._ready else self.next_timer_us()

    def next_timer_us(self) -> int | None:
        """When the next timer is due, not before now; None if there is none."""
        scheduled = self._scheduled
        while scheduled and scheduled[0].cancelled():
            # As BaseEventLoop does.
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1
        if not scheduled:
            return None
        return max(_microseconds(scheduled[0].when()), self.virtual_time.now_us)

    def run_ready(self) -> None:
        """Run what is ready now, timers that are due included; what that makes ready waits for the
        next call.
        """
        with self._entered():
            self._run_due()

    def run_alone(self, until: Callable[[], bool], end_us: int) -> bool:
        """Run turn after turn, moving the clock, until it holds (True) or the loop is halted or
        interrupted (False).

        Raises DeadlockError, or WedgedError beyond `end_us`. For a loop that has the world to
        itself.
        """
        turns_left = STANDING_TURNS_MAX
        with self._entered():
            while not until():
                if self.halted or self.interrupted:
                    return False
                if not self._ready:
                    self._jump(end_us)
                    turns_left = STANDING_TURNS_MAX
                turns_left -= 1
                if not turns_left:
                    raise WedgedError(f"busy for ever at {self.time():.6f} s")
                self._run_due()
        return True

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """This loop is the running one."""
        asyncio._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(
            firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook
        )
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)

    def _jump(self, end_us: int) -> None:
        """Nothing is ready: let time pass up to the next timer."""
        timer = self.next_timer_us()
        if timer is None:
            raise DeadlockError(f"nothing is ready and no timer is set at {self.time():.6f} s")
        if timer > end_us:
            raise WedgedError(f"not come about until {self.time():.6f} s")
        self.virtual_time.now_us = timer

    def discard(self) -> None:
        """End a loop in the middle of everything, as a crash does: nothing that waited goes on."""
        self.halted = True
        self.set_exception_handler(_ignore)
        with warnings.catch_warnings():
            # Of a coroutine that was given to a task which never ran.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            self._end_tasks()
        if asyncio._get_running_loop() is not self:
            self._end()

    def _end(self) -> None:
        self._scheduled.clear()
        if not self.is_running():
            self.close()

    def _end_tasks(self) -> None:
        ended: set[asyncio.Task[Any]] = set()
        # What is closed may begin tasks to tidy up; they never run either.
        while tasks := [
            task for task in sorted(self._tasks, key=hash) if not task.done() and task not in ended
        ]:
            ended.update(tasks)
            for task in tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine: Any = task.get_coro()
                for given in _given_in_vain(coroutine):
                    given.close()
                try:
                    coroutine.close()
                except BaseException:  # noqa: BLE001, S110
                    # What a dead process raises reaches no caller. Mostly it awaits while it is
                    # closed, or it is the one that runs, or it meets that it is dead.
                    pass
        self._ready.clear()

    # --- as a loop of its own ---------------------------------------------------------------------

    def _run_once(self) -> None:
        """One turn of `run_forever`: what is ready, or the jump to the next timer."""
        if not self._ready:
            self._jump(ALONE_END_US)
        self._run_due()

    def _run_due(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if scheduled:
            now_us = self.virtual_time.now_us
            while scheduled and _microseconds(scheduled[0].when()) <= now_us:
                timer = heapq.heappop(scheduled)
                timer._scheduled = False  # type: ignore[attr-defined]
                if timer.cancelled():
                    self._timer_cancelled_count -= 1
                else:
                    ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
            # A traceback has this frame, and the handle its task: kept here both would be a cycle.
            del handle
            if self.halted:
                # What ran has unwound by now, and may have begun tasks to tidy up. Before that, the
                # loop is not closed: what unwinds on it sets timers and fails futures.
                self._end_tasks()
                self._end()
                return

    def _process_events(self, event_list: object) -> None:
        """There are no events from outside."""


def _given_in_vain(coroutine: Any) -> list[Coroutine[Any, Any, Any]]:
    """What one that never ran was to await: it would complain when it is collected."""
    # Of a native one, or of what wraps one (`timed_steps`).
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None or inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED:
        return []
    return [given for given in frame.f_locals.values() if inspect.iscoroutine(given)]


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
    **options: Any,
) -> asyncio.Task[T]:
    task = _NumberedTask(coro, loop=loop, **options)
    assert isinstance(loop, VirtualLoop)
    loop._tasks.add(task)
    return task


def _microseconds(seconds: float) -> int:
    """The first microsecond at which `time()` is not below `seconds`: a timer never comes early,
    not by a rounding.
    """
    microseconds = int(seconds * MICROSECONDS)
    return microseconds if microseconds / MICROSECONDS >= seconds else microseconds + 1


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Complaints of a loop that was ended on purpose."""


class InlineExecutor(Executor):
    """Runs what it is given before `submit` returns."""

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001
            # An executor hands on whatever its work raised.
            future.set_exception(error)
        return future


def inline_executor(name: str, threads: int) -> Executor:
    """What `Runtime.executor` is in a test without threads and without a world."""
    return InlineExecutor()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time.

    Raises DeadlockError, or WedgedError at the end of time, after 100 days.

    Tasks of the engine that are left are cancelled as `asyncio.run` cancels those that a loop
    lists.
    """

    async def to_the_end() -> T:
        try:
            return await main
        finally:
            while left := owned_tasks():
                for task in sorted(left, key=hash):
                    task.cancel()
                await asyncio.wait(left)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(to_the_end())
