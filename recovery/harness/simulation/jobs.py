"""Executors and locks without threads: a job is a greenlet that gives way at each call to the
outside.

What runs in a thread in production runs here in small steps between the callbacks of the event
loop, in an order and at times that the seed decides. So two owners, or the log's writer and its
loop, meet in every way they can. Rules of this file:

- a pool of n "threads" runs at most n jobs at once, first come first served; it belongs to one
  process;
- a job waits with `give_way(loop, seconds)` only; outside of a job that does nothing;
- when its process has died a job is never resumed, as a thread of a killed process is not;
- a world that is over ends its jobs (`end_jobs`): a greenlet that waits holds on to all it ever
  saw, and no collection of garbage finds that out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from recovery.harness.simulation.virtual_loop import VirtualLoop

P = ParamSpec("P")
T = TypeVar("T")

START_S: Final = 0.000_020
"""From handing a job over to its first step."""
UNWINDINGS_MAX: Final = 8
"""A job that tidies up may wait once more, and is ended once more."""


def give_way(loop: VirtualLoop, seconds: float) -> None:
    """Let `seconds` pass for the job that calls; other jobs and the loop go on.

    In no job: at once.
    """
    current = getcurrent()
    hub = current.parent
    if hub is None:
        return
    loop.call_later(seconds, current.switch)
    hub.switch()


def is_job() -> bool:
    """True if it is a job that calls, and not an event loop or the driver."""
    return getcurrent().parent is not None


class SimulatedExecutor(Executor):
    """A pool of `threads` jobs at a time, on the loop of one process.

    `begun` gets those that have begun and not ended.
    """

    def __init__(self, loop: VirtualLoop, threads: int, begun: dict[greenlet, None]) -> None:
        self._loop = loop
        self._free = threads
        self._begun = begun
        self._waiting: deque[Callable[[], None]] = deque()
        self._closed = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()

        def job() -> None:
            try:
                work()
            finally:
                self._begun.pop(getcurrent(), None)

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                self._end()
                return
            try:
                result = function(*args, **kwargs)
            except GreenletExit:
                return
            except BaseException as error:  # noqa: BLE001
                # An executor hands on whatever its work raised.
                if not self._loop.halted:
                    self._end()
                    future.set_exception(error)
                return
            if not self._loop.halted:
                self._end()
                future.set_result(result)

        if self._free:
            self._free -= 1
            self._start(job)
        else:
            self._waiting.append(job)
        return future

    def shutdown(
        self,
        wait: bool = True,  # noqa: FBT001, FBT002 - Executor's own
        *,
        cancel_futures: bool = False,
    ) -> None:
        self._closed = True
        if cancel_futures:
            self._waiting.clear()

    def _start(self, job: Callable[[], None]) -> None:
        self._loop.call_later(START_S, self._run, job)

    def _run(self, job: Callable[[], None]) -> None:
        begun = greenlet(job)
        self._begun[begun] = None
        begun.switch()

    def _end(self) -> None:
        if self._waiting:
            self._start(self._waiting.popleft())
        else:
            self._free += 1


def end_jobs(begun: dict[greenlet, None]) -> None:
    """End jobs in the middle of what they do.

    Their processes are dead, so that nothing comes of how they unwind.
    """
    for job in list(begun):
        for _ in range(UNWINDINGS_MAX):
            if job.dead:
                break
            try:
                job.throw(GreenletExit)
            except BaseException:  # noqa: BLE001, S110
                # What a dead process raises reaches no caller.
                pass
    begun.clear()


class SimulatedLock:
    """A lock between jobs (and the loop, which never waits for one: a loop that would is an
    error).
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._held = False
        self._waiting: deque[greenlet] = deque()

    def __enter__(self) -> Self:
        while self._held:
            current: Any = getcurrent()
            assert current.parent is not None, "the event loop would wait for a job's lock"
            self._waiting.append(current)
            current.parent.switch()
        self._held = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held = False
        if self._waiting:
            self._loop.call_soon(self._waiting.popleft().switch)
