"""HostSupervisor: runs several hosts on this machine, each a process of `segmentstore serve`, and
starts again those that end (loop).

Rules of this file:

- it knows nothing of containers, ledgers or clients: a host is a process that says one line when it
  serves;
- a host that ends by itself before it has ever served ends all of them, with its exit code: a
  person has to act. Others are started again, after an ever longer pause;
- what it says itself, and what hosts say, waits for no reader of stdout and stderr: one that is
  stopped would stop them all. Each host writes to pipes of its own, which are read here at all
  times, and passed on by whole lines;
- a signal that asks for the end (end_signals.py) is passed on, once, as SIGTERM. Hosts have a
  session of their own, so that a terminal's Ctrl-C, or its end, does not reach them as well;
- the gateway is kept until the last host has ended, for hosts close their logs through it;
- when this process is killed, the system kills the hosts, and the gateway ends by itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Protocol

from segmentstore.cli.end_signals import asked_to_end
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.host_plans import HostPlan
from segmentstore.cli.line_relay import LineJoiner, LineRelay, RelayedPipe
from segmentstore.cli.output import error_line
from segmentstore.contracts.backoff import Backoff
from segmentstore.contracts.runtime import Runtime

_AGAIN_S_MIN: Final = 1.0
_AGAIN_S_MAX: Final = 30.0
_STEADY_S: Final = 60.0
"""A host that served for so long is started again as after its first end."""
_READ_BYTES: Final = 64 << 10
_KILLED: Final = 128
"""As shells report it: this and the signal's number."""
_ASKED: Final = (ExitCode.DONE, _KILLED + signal.SIGTERM)
"""How a host ends that is asked to. The signal itself ends one that has not begun to open its
store.
"""


class KeptGateway(Protocol):
    """What all hosts share: `HostGateway`."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What a host needs to find it."""

    async def start(self) -> None:
        """Return when it is there."""

    async def keep(self) -> None:
        """Return behind `end`."""

    def end(self) -> None:
        """No host needs it any more."""


class HostSupervisor:
    """Runs the hosts of `plans`, once."""

    def __init__(self, plans: Sequence[HostPlan], gateway: KeptGateway, runtime: Runtime) -> None:
        self._plans = plans
        self._gateway = gateway
        self._runtime = runtime
        self._ending = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._out: LineRelay | None = None
        self._err: LineRelay | None = None
        self._failure = int(ExitCode.DONE)
        """Exit code of the first host that ended before it had ever served."""

    async def run(self) -> int:
        """Return when all hosts have ended, after a signal; the exit code of the first one that did
        not end in order.

        Raises what the start of the gateway raises.
        """
        with asked_to_end(self.end):
            self._out, self._err = LineRelay(sys.stdout.fileno()), LineRelay(sys.stderr.fileno())
            try:
                await self._gateway.start()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._gateway.keep())
                    hosts = [group.create_task(self._keep(plan)) for plan in self._plans]
                    await asyncio.wait(hosts)
                    self._gateway.end()
                codes = (self._failure, *(host.result() for host in hosts))
                return next(filter(None, codes), ExitCode.DONE)
            finally:
                self._err.close()
                self._out.close()
                self._err = self._out = None

    def say(self, message: str) -> None:
        """One sentence on stderr, while it runs."""
        if self._err is not None:
            self._err.put(error_line(message).encode(errors="backslashreplace"))

    def end(self) -> None:
        """Have all hosts drain and end. Idempotent."""
        if self._ending.is_set():
            return
        self._ending.set()
        for process in self._running.values():
            _terminate(process)

    async def _keep(self, plan: HostPlan) -> int:
        """Run one host, again and again; its exit code behind `end`."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._runtime.random, min_s=_AGAIN_S_MIN, max_s=_AGAIN_S_MAX)
        has_served = False
        while not self._ending.is_set():
            began = loop.time()
            code, serves = await self._run(plan)
            has_served |= serves
            if self._ending.is_set():
                return ExitCode.DONE if code in _ASKED else code
            if not has_served and code not in _ASKED:
                self.say(f"host {plan.host_id} ended with {code} before it served")
                self._failure = self._failure or code
                self.end()
                return code
            if loop.time() - began >= _STEADY_S:
                backoff.reset()
            again_s = backoff.next_s()
            self.say(f"host {plan.host_id} ended with {code}: starting it again in {again_s:.1f} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(again_s):
                    await self._ending.wait()
        return ExitCode.DONE

    async def _run(self, plan: HostPlan) -> tuple[int, bool]:
        """One process of a host, to its end: its exit code, and whether it served."""
        assert self._out is not None
        assert self._err is not None
        with ExitStack() as opened:
            try:
                errors = RelayedPipe(self._err)
                # What it said is passed on before anything is said of its end.
                opened.callback(errors.close)
                process = await asyncio.create_subprocess_exec(
                    *plan.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors.writing,
                    env={**os.environ, **plan.environment, **self._gateway.environment},
                    start_new_session=True,
                )
            except OSError as error:
                self.say(f"host {plan.host_id} cannot be started: {error}")
                return ExitCode.UNAVAILABLE, False
            self._running[plan.host_id] = process
            if self._ending.is_set():
                _terminate(process)
            serves = await _relay(process, LineJoiner(self._out))
            code = _exit_code(await process.wait())
            del self._running[plan.host_id]
            return code, serves


def _terminate(process: asyncio.subprocess.Process) -> None:
    # Not by `process.terminate`: Popen reaps a process there that has just ended, and asyncio's
    # thread that waits for it, too, reports 255 then instead of the exit code (CPython 3.11).
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


async def _relay(process: asyncio.subprocess.Process, lines: LineJoiner) -> bool:
    """Pass on what it prints, until it ends; whether that was anything, which means that it
    served.
    """
    assert process.stdout is not None
    has_printed = False
    # Not by line: a reader of lines fails over a long one.
    while data := await process.stdout.read(_READ_BYTES):
        has_printed = True
        lines.feed(data)
    lines.end()
    return has_printed


def _exit_code(returned: int) -> int:
    return returned if returned >= 0 else _KILLED - returned
