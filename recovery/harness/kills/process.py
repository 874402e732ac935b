"""A child process as its parent has it: what it has reported so far, and the signals it gets.
Linux.

Rules of this file: every wait for what a child may fail to do is bounded. A child that has been
silent for too long is asked for its stacks (SIGABRT) and is a finding. The code that starts a child
stops it in a `finally`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from recovery.harness.history_codec import Event, parse_event
from recovery.harness.kills.orders import Orders, shared_clock_ns

SILENT_S: Final = 60.0
"""A child that reports nothing for so long, and is not done, hangs."""
_ENDING_S: Final = 20.0
_STACKS_S: Final = 30.0
_SECOND_NS: Final = 1_000_000_000
_PIECE: Final = 1 << 16
_ERRORS_MAX: Final = 8000


class ChildHungError(RuntimeError):
    """A child does not go on. Its message has the stacks of its threads."""


class Child:
    """One process run of a store in a process of its own; `tracer` is the command that watches over
    it, if any.
    """

    def __init__(self, orders: Orders, tracer: Sequence[str] = ()) -> None:
        self.orders = orders
        self.events: list[Event] = []
        """All its reports."""
        self.said: dict[str, int] = {}
        """How many of each kind these are."""
        self.ended = False
        """True when it will report nothing more."""
        self._pid = 0
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        module = "recovery.harness.kills.child"
        # This very program, from a list of arguments.
        self._process = subprocess.Popen(  # noqa: S603
            [*tracer, sys.executable, "-m", module, orders.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    @property
    def idle(self) -> bool:
        """True when it has nothing left to do, or has ended."""
        return self.ended or "done" in self.said or "failed" in self.said

    @property
    def has_parted(self) -> bool:
        """True if it reported why it ends."""
        return "over" in self.said or "failed" in self.said

    @property
    def was_killed(self) -> bool:
        """True if it was ended by a SIGKILL, whatever process sent it; of a child that has been
        waited for.
        """
        return self._process.returncode == -signal.SIGKILL

    @property
    def used_calls(self) -> int:
        """How many call numbers it has used, counted from its first one."""
        numbers = [int(event.fields["call"]) for event in self.events if event.what == "begun"]
        return numbers[-1] + 1 - self.orders.first_call if numbers else 0

    def receive(self) -> None:
        """Take in what there is to read; blocks if there is nothing."""
        piece = os.read(self.output, _PIECE)
        self.ended = not piece
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            event = parse_event(line)
            if event.what == "born":
                self._pid = int(event.fields["pid"])
            self.events.append(event)
            self.said[event.what] = self.said.get(event.what, 0) + 1

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to the child and to all it has started, which have its group."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass  # all of them were faster

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child itself, not to the process that watches over it.

        Nothing happens if it is missing.
        """
        try:
            os.kill(self._pid or self._process.pid, number)
        except ProcessLookupError:
            pass  # it was faster

    def stop(self) -> bool:
        """SIGSTOP, until no thread of it runs, and read its reports; False if it has ended.

        Not under a tracer.
        """
        self.signal(signal.SIGSTOP)
        state = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        while select.select([self.output], [], [], 0.0)[0] and not self.ended:
            self.receive()
        return state is not None and state.si_code == os.CLD_STOPPED

    def kill(self) -> Event:
        """SIGKILL, and wait until it has ended and all its reports are read; the end of its process
        run.
        """
        if self._process.poll() is None and self._pid:
            self.signal(signal.SIGKILL)
            try:
                self._process.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                pass  # the tracer does not release it
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_ENDING_S)
        attend([self], lambda: self.ended, _ENDING_S)
        return Event("over", shared_clock_ns(), self.orders.process_run, {"ending": "killed"})

    def wait(self) -> Event:
        """Wait for its own end. Raises ChildHungError."""
        attend([self], lambda: self.ended)
        return self.kill()

    def errors(self) -> str:
        """The end of what it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-_ERRORS_MAX:]

    def stacks(self) -> str:
        """Request its threads' stacks; it ends by that."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGABRT)
        try:
            self._process.wait(_STACKS_S)
        except subprocess.TimeoutExpired:
            pass  # not even that
        return self.errors()


def attend(
    children: Sequence[Child], until: Callable[[], bool], seconds: float | None = None
) -> None:
    """Listen to children until something is so, all have ended, or so much time has passed.

    Raises ChildHungError if they have been silent for SILENT_S, and no time was given.
    """
    end = shared_clock_ns() + int((SILENT_S if seconds is None else seconds) * _SECOND_NS)
    while not until():
        speaking = {child.output: child for child in children if not child.ended}
        if not speaking:
            return
        left = (end - shared_clock_ns()) / _SECOND_NS
        if left <= 0 and seconds is not None:
            return
        if left <= 0:
            raise ChildHungError("\n".join(child.stacks() for child in speaking.values()))
        ready = select.select(list(speaking), [], [], left)[0]
        for output in ready:
            speaking[output].receive()
        if ready and seconds is None:
            end = shared_clock_ns() + int(SILENT_S * _SECOND_NS)
