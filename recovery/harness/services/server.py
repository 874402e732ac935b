"""Server: one real server process of the tests, from its start to its end.

Rules of this file:

- it listens on 127.0.0.1, on a port that was free, and keeps its data in the folder it was given;
- it is ready when it answers, and its output is kept: a server that does not come up says why;
- the process that starts it stops it, and all that it started. If that process dies without doing
  so, a watchdog at the other end of a pipe ends the server's process group;
- after `restart` it is at the same address, with whatever it keeps on disk.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from durablelog.bookkeeper.cluster.addresses import (
    LOWEST_PORT,
    first_outgoing_port,
    port_is_free,
)

HOST: Final = "127.0.0.1"

_STOP_S: Final = 10.0
_CHECK_S: Final = 0.02
_PORTS_TRIED: Final = 3
_OUTPUT_MAX: Final = 3000
_WATCHDOG: Final = 'cat >/dev/null; kill -s KILL -- "-$1"'


class ServerFailedError(RuntimeError):
    """A server did not come up, or is not there any more.

    The message has the end of what it wrote.
    """


class Server(ABC):
    """One server and its folder.

    Not started by its constructor; a context manager that starts and stops it.

    Not safe for use by several threads at once, but by one after another.
    """

    name: ClassVar[str]
    """For people."""
    ready_s: ClassVar[float] = 180.0
    """How long a start may take: on a busy machine many times the seconds of a quiet one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        """Its TCP port, from the first start on."""
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and not _has_ended(self._process.pid)

    @property
    def process_id(self) -> int | None:
        """Of its process; None if there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers; nothing happens if it runs.

        Raises ServerFailedError, and ServiceMissingError if it is not installed.
        """
        if self.running:
            return
        self._end(signal.SIGKILL)
        self.folder.mkdir(parents=True, exist_ok=True)
        # The first time a port can be lost to another process between checking and listening;
        # later, others know it.
        for left in reversed(range(1 if self.port else _PORTS_TRIED)):
            port = self.port or free_port()
            try:
                self._launch(port)
            except ServerFailedError:
                if not left:
                    raise
            else:
                self.port = port
                return

    def stop(self) -> None:
        """End it in an orderly way, or after 10 s in any. Nothing happens if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """End it and start it again at the same address."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def wait_for_end(self, seconds: float) -> None:
        """Return when its process has ended by itself, or after so long."""
        if self._process is not None:
            _wait_for_ends([self._process.pid], seconds)

    def output(self) -> str:
        """The end of what it wrote, over all its process runs."""
        path = self.folder / "output.log"
        return (
            path.read_bytes()[-_OUTPUT_MAX:].decode(errors="replace").strip()
            if path.exists()
            else ""
        )

    def descendants(self) -> list[int]:
        """The processes it started, and those that they did; none if it does not run."""
        return descendants_of(self._process.pid) if self._process is not None else []

    @abstractmethod
    def _command(self, port: int) -> Sequence[str]:
        """Write what it needs to find in its folder; the command that runs it in the foreground."""

    def _environment(self) -> Mapping[str, str]:
        """What its process gets besides ours."""
        return {}

    def _answers(self, port: int) -> bool:
        """Whether it takes requests by now. Must not wait long."""
        return _listens(port)

    def _launch(self, port: int) -> None:
        command = self._command(port)
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, **self._environment()},
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until_it_answers(port)
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def _wait_until_it_answers(self, port: int) -> None:
        end = time.monotonic() + self.ready_s
        while not (self.running and self._answers(port) and self.running):
            if self._process is None or not self.running:
                raise ServerFailedError(f"{self.name} ended while starting:\n{self.output()}")
            if time.monotonic() > end:
                raise ServerFailedError(
                    f"{self.name} does not answer after {self.ready_s:.0f} s:\n{self.output()}"
                )
            _wait_for_ends([self._process.pid], _CHECK_S)

    def _end(self, number: signal.Signals) -> None:
        watchdog, self._watchdog = self._watchdog, None
        process, self._process = self._process, None
        if process is None:
            return
        strays = descendants_of(process.pid)
        _signal_all(process.pid, strays, number)
        _wait_for_ends([process.pid], _STOP_S)
        # What did not heed it. Until the server is waited for no other process can have got its
        # process group.
        _signal_all(process.pid, strays, signal.SIGKILL)
        if watchdog is not None:
            watchdog.kill()
            watchdog.communicate()
        # A killed process is there a moment longer, and the port with it; the next start needs it.
        _wait_for_ends([process.pid, *strays], _STOP_S)
        process.wait()
        self._wait_until_port_is_free()

    def _wait_until_port_is_free(self) -> None:
        """A child that was being born when its parent was killed is in no list: the port alone
        reports its end.

        Nothing wakes who waits for a port to be free, so it is checked again and again, for
        _STOP_S at most.
        """
        end = time.monotonic() + _STOP_S
        while self.port and _listens(self.port) and time.monotonic() < end:
            time.sleep(_CHECK_S)


class StorageServer(Server):
    """A server that Tier 2 can be on."""

    keeps: ClassVar[bool]
    """Whether what was stored is there after a kill and a restart."""

    @abstractmethod
    def location(self, space: str, prefix: str = "") -> str:
        """The Tier-2 URL of a bucket (or folder) of its own, and a prefix in it."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that had no listener just now, never the same one twice.

    The system gives it to no outgoing connection. One that it gives out itself it may give to the
    next connection of any process, before a server that takes seconds to start listens on it.
    """
    for port in _PORTS:
        if port_is_free(port):
            return port
    raise ServerFailedError(f"no port of {HOST} is free")


def _ports() -> Iterator[int]:
    """Each once. Processes that check at the same time begin at different places."""
    count = first_outgoing_port() - LOWEST_PORT
    begin = random.SystemRandom().randrange(count)
    return (LOWEST_PORT + (begin + step) % count for step in range(count))


_PORTS: Final = _ports()


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this very interpreter."""
    return [sys.executable, "-m", module, *arguments]


def descendants_of(root: int) -> list[int]:
    """Processes it started that made groups of their own, as sshd's sessions do; they would outlive
    a crash of it.
    """
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(parent: int) -> list[int]:
    """Of all its threads: the kernel lists a child with the thread that started it, and a JVM's is
    rarely the first.
    """
    found: list[int] = []
    # Whatever cannot be read has ended.
    try:
        threads = sorted(path.name for path in Path(f"/proc/{parent}/task").iterdir())
    except OSError:
        return found
    for thread in threads:
        try:
            told = Path(f"/proc/{parent}/task/{thread}/children").read_text(encoding="ascii")
        except OSError:
            continue
        found += map(int, told.split())
    return found


def _signal_all(group: int, strays: Sequence[int], number: signal.Signals) -> None:
    for send, target in ((os.killpg, group), *((os.kill, stray) for stray in strays)):
        try:
            send(target, number)
        except ProcessLookupError:
            pass  # it was faster


def _wait_for_ends(processes: Sequence[int], seconds: float) -> None:
    """Return when all of them have ended, or after so long. Takes none of their exit codes away."""
    end = time.monotonic() + seconds
    for process in processes:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        try:
            select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
        finally:
            os.close(descriptor)


def _has_ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1.0):
            return True
    except OSError:
        return False
