"""StoreThread: the background thread of a blocking store, and its event loop, from the opening to
the end of the close.

Rules of this file:

- an exception that is raised in a caller's thread (KeyboardInterrupt, a signal handler that raises)
  interrupts that caller alone. Opening and close run on the loop, and the thread ends itself;
- a caller's thread holds no lock where a signal handler may run: one that raises would leave it
  taken, one that calls the store would wait for it;
- every call is answered, truthfully: what was never begun had no effect; a change that was begun
  and has no answer when the loop ends is of unknown outcome;
- a done-callback may raise what it likes, SystemExit too: every other callback is called, every
  thread that waits is woken, and the loop's thread goes on;
- no loop runs any more when the interpreter is torn down. A timer of uvloop that comes due then
  ends the process by a signal: it makes a thread's state in an interpreter that is not there.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from segmentstore.contracts import forks
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    StoreClosedError,
    WrongThreadError,
)
from segmentstore.contracts.event_loops import new_event_loop
from segmentstore.contracts.serial_thread import no_thread
from segmentstore.contracts.waiting import outlast
from segmentstore.hand_over import HandOver

if TYPE_CHECKING:
    from segmentstore.store_api import StoreApi

T = TypeVar("T")

_log = logging.getLogger(__name__)
_callbacks_log = logging.getLogger("concurrent.futures")
"""Where futures of the standard library log what a done-callback raises."""

_LEFTOVERS_S: Final = 1.0
"""Longest that tasks may take to end for which no caller waits any more."""

_STOP_S: Final = 5.0
"""Longest that the end of the interpreter waits for a loop to stop: a callback of a caller's may
never return.
"""

_START_POLL_S: Final = 0.001
"""Between two checks whether an interrupted start has begun the thread."""


_running: dict[StoreThread, None] = {}
"""Those whose loop has begun and has not ended."""
_at_end = False
"""The interpreter is ending: a loop that begins now stops at once."""


class _SignalSafeCondition(threading.Condition):
    """A condition whose lock an exception of a signal handler cannot leave taken.

    `threading.Condition` enters and leaves in Python, where a handler may run after the lock was
    taken and before the block began. Then the loop's thread would wait for it for ever. Looked up
    as properties, the methods are the lock's own, in C, where no handler runs.
    """

    __enter__ = property(lambda self: self._lock.__enter__)
    __exit__ = property(lambda self: self._lock.__exit__)

    def __init__(self) -> None:
        super().__init__()
        self.sleepers: list[threading.Lock] = []
        """Taken by threads that wait until it is released."""

    def notify_all(self) -> None:
        """Called again, it wakes those that an exception in the first call has left asleep."""
        super().notify_all()
        for sleeper in self.sleepers:
            if sleeper.locked():
                sleeper.release()


class _Outcome(concurrent.futures.Future[T]):
    """A future that may be waited for where signal handlers raise."""

    def __init__(self) -> None:
        super().__init__()
        condition = _SignalSafeCondition()
        self._condition = condition
        self._sleepers = condition.sleepers

    def result(self, timeout: float | None = None) -> T:
        if timeout is None:
            self._wait()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if timeout is None:
            self._wait()
        return super().exception(timeout)

    def _wait(self) -> None:
        """Wait without the condition's own wait, which is not safe either: by a lock that no other
        thread takes.

        Nor by a done-callback: of those, one that raises may keep others from being called.
        """
        if self.done():
            return
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        # An answer between the first check and the line above has not woken this thread.
        if not self.done():
            sleeper.acquire()


class StoreFuture(_Outcome[T]):
    """The answer to one call.

    `cancel` succeeds only before the call is begun: then it has no effect.

    Raises WrongThreadError instead of waiting on the store's own thread, where a done-callback
    runs.
    """

    def __init__(self, thread: StoreThread, *, change: bool) -> None:
        super().__init__()
        self._store_thread = thread
        self.change = change
        """The call may change the store."""
        self.taken = False
        """It is no longer among those that are handed over."""
        self.work: asyncio.Future[T] | None = None
        """What runs on the loop, once it is begun."""

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            self._store_thread.check_caller()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            self._store_thread.check_caller()
        return super().exception(timeout)

    def _invoke_callbacks(self) -> None:
        """Call them all, whatever one of them raises.

        The store's own thread logs that. A caller's thread, which cancels the call, raises it in
        the end unless it is an Exception: it may be a signal handler's.
        """
        kept: BaseException | None = None
        for callback in self._done_callbacks:  # type: ignore[attr-defined]
            try:
                self._call_back(callback)
            except BaseException as error:  # noqa: BLE001 - raised below
                kept = kept or error
        if kept is not None and not self._store_thread.is_current():
            raise kept

    def _call_back(self, callback: Callable[[Self], object]) -> None:
        try:
            callback(self)
        except BaseException as error:
            if not (isinstance(error, Exception) or self._store_thread.is_current()):
                raise
            _callbacks_log.exception("exception calling callback for %r", self)

    def set_running_or_notify_cancel(self) -> bool:
        if super().set_running_or_notify_cancel():
            return True
        # The thread that cancelled it may have been interrupted before it woke others.
        with self._condition:
            self._condition.notify_all()
        return False

    def leave(self) -> None:
        """Answer a call that the loop will not answer any more."""
        unknown = self.change and self.running()
        try:
            self.set_exception(AppendOutcomeUnknownError(None) if unknown else _closed())
        except concurrent.futures.InvalidStateError:
            if self._state == "CANCELLED":
                # Else `concurrent.futures.wait` would wait for it for ever.
                self.set_running_or_notify_cancel()


class StoreThread:
    """One event loop in one daemon thread, which opens a store, serves calls on it, and closes
    it.
    """

    def __init__(self, open_store: Callable[[], Awaitable[StoreApi]]) -> None:
        self._open_store = open_store
        self.birth = forks.Birth()
        self._thread = threading.Thread(target=self._main, name="segmentstore", daemon=True)
        self._ident: int | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        """Once the thread has begun."""
        self._opening: asyncio.Future[StoreApi] | None = None
        self._end_wanted = False
        self._end = asyncio.Event()
        self._opened: _Outcome[StoreApi] = _Outcome()
        self._ended: _Outcome[None] = _Outcome()
        self._handed: HandOver[tuple[StoreFuture[Any], Callable[[], Awaitable[Any]]]] = HandOver()
        """Not begun yet, each with what begins it."""
        self._calls: set[StoreFuture[Any]] = set()
        """Begun and not answered yet."""
        self._leaving = False
        """The store is closed: the loop begins no more calls."""
        self._stop_wanted = self._stopped = False
        self._out_of_loop = threading.Event()

    # --- in the callers' threads ------------------------------------------------------------------

    def open(self) -> StoreApi:
        """Begin the thread and wait for the store. Whatever this raises, `end` is to be called."""
        try:
            self._thread.start()
        except KeyError as error:
            # Python 3.11, interrupted behind the start, forgets a thread that runs already.
            if error.__context__ is None:
                raise
            raise error.__context__ from None
        except RuntimeError as error:
            if type(error) is not RuntimeError or self._thread.ident is not None:
                raise  # a signal handler's
            raise no_thread("segmentstore") from error
        return self._opened.result()

    def end(self) -> None:
        """Close the store, or give up its opening; wait for that and for the thread's end.

        Raises what the close raised; StoreClosedError when the interpreter's end came first.

        Interrupted, it goes on by itself; called again, it waits for the same end. Nothing happens
        in a forked child.
        """
        if not self.birth.here:
            return
        self.check_caller()
        self.begin_end()
        if self._thread.ident is not None:
            # Else the start was interrupted: if there will be a thread, it finds that it is not
            # wanted.
            while self._ident is None and self._thread.is_alive():
                time.sleep(_START_POLL_S)
            if self._ident is None:
                # Forgotten in its start (Python 3.11), it ended before `_main`; or it is about to
                # find that it is not wanted.
                return
            self._ended.exception()
            if self._stopped:
                self._ended.result()
            # Not before: a join that is interrupted takes a thread that runs for one that has
            # ended.
            self._thread.join()
            self._ended.result()

    def begin_end(self) -> None:
        """As `end`, and wait for nothing; in any thread, whatever it was about."""
        self._end_wanted = True
        if self.loop is not None:
            with suppress(RuntimeError):  # it is closed: the thread is about to end
                self.loop.call_soon_threadsafe(self._ask_end)

    def begin_stop(self) -> None:
        """At the end of the interpreter: stop the loop where it is. The store is left as a killed
        process leaves it, and every call is answered.
        """
        self._stop_wanted = True
        if self.loop is not None:
            with suppress(RuntimeError):  # it is closed
                self.loop.call_soon_threadsafe(self.loop.stop)

    def wait_stopped(self, timeout_s: float) -> None:
        """Return when the loop runs no more, or after so long."""
        self._out_of_loop.wait(timeout_s)

    def submit_bounded(self, make: Callable[[], Awaitable[T]], data: object) -> StoreFuture[T]:
        """As `submit`, for a change that takes `data` and whose caller may go on without its
        answer.

        Waits while too much is handed over; on the loop's thread, which would never end that, it
        does not.
        """
        self.birth.check()
        if not self.is_current():
            self._handed.wait()
        return self.submit(make, change=True, size=len(data) if isinstance(data, bytes) else 0)

    def submit(
        self, make: Callable[[], Awaitable[T]], *, change: bool, size: int = 0
    ) -> StoreFuture[T]:
        """Call `make` on the loop, in the order of submission, and follow what it returns."""
        self.birth.check()
        call: StoreFuture[T] = StoreFuture(self, change=change)
        if self._handed.closed:
            call.leave()
            return call
        assert self.loop is not None
        try:
            # Before the loop is asked: the loop's end answers whatever is here then.
            self._handed.put((call, make), size)
        finally:
            # Interrupted behind it, the call goes on.
            try:
                self.loop.call_soon_threadsafe(self._begin_through, call)
            except RuntimeError:
                if not self.loop.is_closed():
                    raise  # a signal handler's
                call.leave()
        if self._stopped:
            call.leave()
        return call

    def run(self, make: Callable[[], Awaitable[T]], *, change: bool = False) -> T:
        """Call `make` on the loop and wait.

        Interrupted, a change goes on and anything else is cancelled.
        """
        self.check_caller()
        call = self.submit(make, change=change)
        try:
            return call.result()
        except BaseException:
            if not (call.done() or call.cancel() or change):
                with suppress(RuntimeError):
                    # There is one.
                    self.loop.call_soon_threadsafe(_give_up, call)  # type: ignore[union-attr]
            raise

    def check_caller(self) -> None:
        """Raise where a wait would never end: WrongThreadError on the loop's thread,
        ForkedStoreError in a forked child.
        """
        self.birth.check()
        if self.is_current():
            raise WrongThreadError

    def is_current(self) -> bool:
        """The caller runs on the loop's thread."""
        # A later thread may have the same number.
        return threading.get_ident() == self._ident and threading.current_thread() is self._thread

    # --- in the loop's thread ---------------------------------------------------------------------

    def _begin_through(self, call: StoreFuture[Any]) -> None:
        """Begin a call, and those before it, unless another thread was faster to ask for it."""
        while not call.taken and (handed := self._handed.take()) is not None:
            handed[0].taken = True
            self._begin(*handed)

    def _begin(self, call: StoreFuture[T], make: Callable[[], Awaitable[T]]) -> None:
        if self._leaving:
            call.leave()
            return
        if not call.set_running_or_notify_cancel():
            return
        try:
            call.work = asyncio.ensure_future(make())
        except BaseException as error:  # noqa: BLE001 - the caller's thread gets whatever it was
            call.set_exception(error)
            return
        self._calls.add(call)
        call.work.add_done_callback(partial(self._pass_on, call))

    def _pass_on(self, call: StoreFuture[T], done: asyncio.Future[T]) -> None:
        self._calls.discard(call)
        if done.cancelled():
            call.leave()
            return
        error = done.exception()
        if error is not None:
            call.set_exception(error)
        else:
            call.set_result(done.result())

    def _ask_end(self) -> None:
        self._end.set()
        if self._opening is not None:
            self._opening.cancel()  # nothing happens once it is open

    def _main(self) -> None:
        self._ident = threading.get_ident()
        failure: BaseException | None = None
        try:
            loop = new_event_loop()
            _running[self] = None
            try:
                self.loop = loop
                if self._end_wanted:
                    self._end.set()
                if _at_end:
                    self.begin_stop()
                living = loop.create_task(self._live(), name="blocking store")
                self._run(loop, living)
                self._leaving = True
                if not self._stopped:
                    failure = living.exception()
                    self._run(loop, loop.create_task(_end_leftovers(loop)))
            finally:
                if not self._stopped:
                    loop.close()
                _running.pop(self, None)
                self._out_of_loop.set()
        except BaseException as error:  # noqa: BLE001 - waiting callers get it, whatever it was
            failure = error
        if self._stopped:
            # A caller that closes it now must not take it for closed.
            failure = _closed()
        self._answer_all(failure)
        if self._stopped:
            # Not the thread's end: what the loop had begun would be destroyed, with a warning each.
            threading.Event().wait()

    def _run(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        """Run the loop until the task is done, whatever a callback of it raises, or until the
        interpreter ends.
        """
        while not (task.done() or self._stopped):
            try:
                loop.run_until_complete(task)
            except BaseException:  # noqa: BLE001
                # SystemExit in a task, say: the loop lets it through.
                self._stopped = self._stop_wanted and not task.done()
                if not (task.done() or self._stopped):
                    _log.exception(
                        "a callback ended the loop of a blocking store; the loop goes on"
                    )

    def _answer_all(self, failure: BaseException | None) -> None:
        """The loop takes no more calls: what is known now is all there will be."""
        for handed, _ in self._handed.close():
            handed.leave()
        while self._calls:
            self._calls.pop().leave()
        if not self._opened.done():
            self._opened.set_exception(failure or _closed())
        if failure is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(failure)

    async def _live(self) -> None:
        if self._end.is_set():
            return
        self._opening = asyncio.ensure_future(self._open_store())
        await outlast(self._opening)
        if self._opening.cancelled():
            return
        error = self._opening.exception()
        if error is not None:
            self._opened.set_exception(error)
            return
        store = self._opening.result()
        self._opened.set_result(store)
        while not self._end.is_set():
            await outlast(asyncio.ensure_future(self._end.wait()))
        closing = asyncio.ensure_future(store.close())
        await outlast(closing)
        closing.result()


def _stop_all() -> None:
    """At the end of the interpreter, before the threads of executors end."""
    global _at_end  # noqa: PLW0603 - of the process
    _at_end = True
    threads = list(_running)
    for thread in threads:
        thread.begin_stop()
    until = time.monotonic() + _STOP_S
    for thread in threads:
        thread.wait_stopped(max(0.0, until - time.monotonic()))


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_running.clear)


async def _end_leftovers(loop: asyncio.AbstractEventLoop) -> None:
    until = loop.time() + _LEFTOVERS_S
    # A task that ends may begin others.
    while tasks := asyncio.all_tasks(loop) - {asyncio.current_task(loop)}:
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=max(0.0, until - loop.time()))
        if pending:
            break
    await loop.shutdown_asyncgens()


def _closed() -> StoreClosedError:
    if _at_end:
        return StoreClosedError(
            "the interpreter is ending, and the store was left open until then: no call is "
            "answered any more"
        )
    return StoreClosedError()


def _give_up(call: StoreFuture[Any]) -> None:
    if call.work is not None:
        call.work.cancel()
