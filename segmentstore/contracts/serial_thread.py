"""SerialThread: an executor of one thread, which also takes work whose end no caller waits for.

A `Future` of `concurrent.futures` has a lock and a condition, and at a lock two threads of Python
hand the interpreter to each other. For a group of the log that cost as much as its write
(docs/decisions/0087-wake-ups-of-a-group.md). `post` makes none.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeVar

from segmentstore.contracts import forks
from segmentstore.contracts.errors import TierUnavailableError

P = ParamSpec("P")
T = TypeVar("T")


class _Work(NamedTuple):
    """A call, and what its end is reported to."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    future: Future[Any] | None


_threads: dict[threading.Thread, SimpleQueue[_Work | None]] = {}
"""Those that have begun and not ended. None in its queue ends a thread."""
_at_end = False
"""The interpreter is ending: a thread that begins now would do its work no more."""


class SerialThread(Executor):
    """Does what it is given in its order, on a thread that begins and ends with it.

    Raises TierUnavailableError where the system begins no thread. As with a `ThreadPoolExecutor`,
    all of it is done before the interpreter ends, and before a `shutdown` returns that waits. Its
    thread is not in a forked child: ForkedStoreError there.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._birth = forks.Birth()
        self._mutex = threading.Lock()
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._ended = False
        # The thread has no reference to this object: when that is dropped, the thread ends.
        weakref.finalize(self, self._queue.put, None).atexit = False
        # At once: under load, later, the system may have none to give.
        self._thread = None if _at_end else self._begun()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._put(_Work(fn, args, kwargs, future))
        return future

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Do this, too. It must not raise: `threading.excepthook` gets what it does."""
        self._put(_Work(function, arguments, {}, None))

    def _put(self, work: _Work) -> None:
        self._birth.check()
        with self._mutex:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if _at_end:
                raise RuntimeError("cannot schedule new futures after interpreter shutdown")
            self._queue.put(work)

    def _begun(self) -> threading.Thread:
        thread = threading.Thread(
            target=_run, args=(self._queue,), name=f"{self._name}_0", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise no_thread(self._name) from error
        _threads[thread] = self._queue
        return thread

    def shutdown(
        self,
        wait: bool = True,  # noqa: FBT001, FBT002 - Executor's own
        *,
        cancel_futures: bool = False,
    ) -> None:
        if not self._birth.here:
            return
        with self._mutex:
            self._ended = True
            while cancel_futures and not self._queue.empty():
                with suppress(Empty):
                    self._cancel(self._queue.get_nowait())
            self._queue.put(None)
            thread = self._thread
        if wait and thread is not None:
            thread.join()

    @staticmethod
    def _cancel(work: _Work | None) -> None:
        if work is not None and work.future is not None:
            work.future.cancel()


def no_thread(executor: str) -> TierUnavailableError:
    """What an executor raises for which the system begins no thread."""
    tier = executor.partition("-")[0]
    detail = f"no thread for {executor!r}; see RLIMIT_NPROC, and pids.max of the control group"
    return TierUnavailableError(tier if tier in {"tier2", "cache"} else "tier1", detail)


def post(executor: Executor, function: Callable[..., object], *arguments: object) -> None:
    """Have an executor call a function whose end no caller waits for, in its cheapest way."""
    if isinstance(executor, SerialThread):
        executor.post(function, *arguments)
    else:
        executor.submit(function, *arguments)


def _run(queue: SimpleQueue[_Work | None]) -> None:
    while (work := queue.get()) is not None:
        try:
            _do(work)
        except BaseException as error:  # noqa: BLE001 - what follows is another's
            arguments = (type(error), error, error.__traceback__, threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(arguments))
        # Nothing of it is kept while the thread waits.
        del work
    _threads.pop(threading.current_thread(), None)


def _do(work: _Work) -> None:
    function, arguments, keywords, future = work
    if future is None:
        function(*arguments)
    elif future.set_running_or_notify_cancel():
        try:
            result = function(*arguments, **keywords)
        except BaseException as error:  # noqa: BLE001
            # An executor hands on whatever its work raised.
            future.set_exception(error)
        else:
            future.set_result(result)


def _end_all() -> None:
    """At the end of the interpreter."""
    global _at_end  # noqa: PLW0603 - of the process
    _at_end = True
    threads = list(_threads.items())
    for _, queue in threads:
        queue.put(None)
    for thread, _ in threads:
        thread.join()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_threads.clear)
