"""AioSyncs: syncs by the kernel's own workers (the FDSYNC of Linux AIO), which no thread of this
process waits for.

A thread of Python waits for the interpreter lock behind each system call. For a small group of the
log these waits cost more than its write and sync (docs/decisions/0092-syncs-by-the-kernel.md). Here
the event loop submits a sync, and an eventfd reports its end. Rules of this file:

- all logs of one event loop share one context: the kernel has 65,536 requests for all processes of
  the machine (/proc/sys/fs/aio-max-nr), and one wake-up serves all syncs that have ended;
- the loop keeps its context until it is closed itself. The kernel takes some 30 ms to end one, and
  the package keeps the interpreter lock meanwhile: every thread would stand still;
- what has ended is noted by code that no signal handler can interrupt, and forgotten behind its
  report. So each is reported; twice, if a handler raises in the midst of that;
- whatever interrupts a wake-up, the loop is asked for another: the eventfd may be read already.
"""

from __future__ import annotations

import asyncio
import errno
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segmentstore.contracts import forks

if TYPE_CHECKING:
    from caio.linux_aio import Context

REQUESTS_MAX: Final = 128
"""Syncs under way on one event loop. What comes beyond them is left to the caller's thread."""
_REFUSALS: Final = (OSError, SystemError, OverflowError, ValueError, NotImplementedError)
"""What the package raises of the kernel's errors, and loops that watch no descriptor."""


@dataclass(eq=False, slots=True)
class _Begun:
    """A sync under way, which equals no other. The kernel's answer comes into `answers`."""

    answers: list[int]
    done: Callable[[OSError | None], None]


class _Context:
    """The requests of one event loop, which has the only lasting reference: its reader's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        """Raises what is in `_REFUSALS`."""
        self._context = context
        self._birth = forks.Birth()
        self._begun: list[_Begun] = []
        # A sync under way at the end of the loop keeps its requests taken.
        weakref.finalize(self, _collect, context).atexit = False
        os.set_inheritable(context.fileno, False)  # noqa: FBT003 - it has no keyword
        loop.add_reader(context.fileno, self._run)

    @property
    def ready(self) -> bool:
        return len(self._begun) < REQUESTS_MAX and self._birth.here

    def begin(self, descriptor: int, done: Callable[[OSError | None], None]) -> bool:
        from caio.linux_aio import Operation  # noqa: PLC0415 - of an extra

        begun = _Begun([], done)
        operation = Operation.fdsync(descriptor)
        operation.set_callback(begun.answers.append)
        self._begun.append(begun)
        taken = False
        try:
            taken = self._context.submit(operation) == 1
        except _REFUSALS:
            pass
        finally:
            # A signal handler's error may come behind the call: the caller has given up then, and
            # gets no report.
            if not taken:
                self._begun.remove(begun)
        return taken

    def _run(self) -> None:
        if not self._birth.here:
            # The eventfd is the parent's, too.
            return
        try:
            # First: what ends later wakes the loop again.
            try:
                self._context.poll()
            except BlockingIOError:
                pass
            while self._context.process_events(REQUESTS_MAX) == REQUESTS_MAX:
                pass
            for begun in [begun for begun in self._begun if begun.answers]:
                begun.done(_error(begun.answers[0]))
                self._begun.remove(begun)
        except BaseException as error:
            # A report's, or a signal handler's from anywhere in here; the loop's exception handler
            # gets it, or whatever runs the loop.
            # A call of the loop's could be lost in the loop itself.
            os.eventfd_write(self._context.fileno, 1)
            if not (isinstance(error, SystemError) and error.args[:1] == (errno.EINTR,)):
                raise


def _collect(context: Context) -> None:
    """Take what has ended; no caller waits for it."""
    with suppress(*_REFUSALS):
        context.process_events(REQUESTS_MAX)


_contexts: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Context]] = (
    weakref.WeakKeyDictionary()
)
"""A loop that is closed drops its own, though it may be referred to for long."""


class AioSyncs:
    """The KernelSyncs of one log, whose files have descriptors."""

    def __init__(self) -> None:
        self._make: Callable[[int], Context] | None = None
        self._context: _Context | None = None
        self._birth = forks.Birth()

    def load(self) -> None:
        # Without the extra `fast`, or on another system, there is none.
        with suppress(ImportError):
            from caio.linux_aio import Context  # noqa: PLC0415 - of an extra

            self._make = Context

    @property
    def ready(self) -> bool:
        context, make = self._context, self._make
        if context is None and make is not None and self._birth.here:
            context = self._context = self._attached(make)
        return context is not None and context.ready

    def begin(self, file: object, done: Callable[[OSError | None], None]) -> bool:
        assert hasattr(file, "fileno")
        return self._context is not None and self._context.begin(file.fileno(), done)

    def _attached(self, make: Callable[[int], Context]) -> _Context | None:
        loop = asyncio.get_running_loop()
        there = _contexts.get(loop)
        context = there() if there is not None else None
        if context is None:
            try:
                context = _Context(loop, make(REQUESTS_MAX))
            except _REFUSALS:
                # The container or the loop has none, or others have all of them.
                self._make = None
                return None
            # In one step: loops of other threads have theirs here, too.
            _contexts[loop] = weakref.ref(context)
        return context

    def close(self) -> None:
        self._context = self._make = None


def _error(answer: int) -> OSError | None:
    """Of what the package reports: the kernel's answer as a number without sign."""
    code = (1 << 64) - answer if answer >> 63 else 0
    return OSError(code, os.strerror(code)) if code else None
