"""A driver of Spark as a process of its own: started with a terminal, listened to, and killed with
what it has started.
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from recovery.harness.services.server import descendants_of
from tests.support.processes import is_alive

WAIT_S = 250.0
LISTEN_S = 10.0


class Driver:
    """A process that speaks to Spark, with a terminal for its output: so verbs show their progress.

    What it starts is in its session, so that a test can see it all end. Killed where the `with`
    ends, if it runs still.
    """

    def __init__(self, *command: str, environment: dict[str, str], cwd: Path) -> None:
        terminal, its_end = pty.openpty()
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=its_end,
            start_new_session=True,
        )
        os.close(its_end)
        self._output = bytearray()
        self._listener = threading.Thread(target=self._listen, args=(terminal,))
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # With its JVM, and with Spark's Python workers: they have a group of their own, and would
        # go on writing until they see that the JVM has ended.
        started = self.started()
        for kill, target in ((os.killpg, self.process.pid), *((os.kill, each) for each in started)):
            try:
                kill(target, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended
        self.process.communicate()
        self._listener.join()
        wait_for_ends(started)

    def started(self) -> list[int]:
        """Its JVM, and what that has started, now."""
        return descendants_of(self.process.pid)

    def end(self, code: int = 0) -> str:
        """What it printed; fails unless it ends with this code."""
        out, _ = self.process.communicate(timeout=WAIT_S)
        # So that `told` has all of it; what it has started may have the terminal for a moment more.
        self._listener.join(LISTEN_S)
        assert self.process.returncode == code, (
            f"{self.process.returncode}\n{out.decode()}\n{self.told()[-6000:]}"
        )
        return out.decode()

    def told(self) -> str:
        """What stood on its terminal so far, drawn over or not."""
        return self._output.decode(errors="replace")

    def wait_for(self, what: Callable[[], object], *, interval_s: float = 0.05) -> None:
        """Until `what` is true; fails if the process ends before, or after WAIT_S."""
        end = time.monotonic() + WAIT_S
        while not what():
            assert self.process.poll() is None, self.end()
            assert time.monotonic() < end, f"it did not come to that\n{self.told()[-6000:]}"
            time.sleep(interval_s)

    def _listen(self, terminal: int) -> None:
        with open(terminal, "rb", buffering=0) as file:
            try:
                while data := file.read(65536):
                    self._output += data
            except OSError:
                pass  # how a terminal says that its other end is closed


def wait_for_ends(processes: Sequence[int]) -> None:
    """Until none of them is alive; fails after WAIT_S."""
    end = time.monotonic() + WAIT_S
    while left := [process for process in processes if is_alive(process)]:
        assert time.monotonic() < end, f"these run on: {left}"
        time.sleep(0.05)


def module(name: str, *words: object, environment: dict[str, str], cwd: Path) -> Driver:
    """A driver that is one of our modules."""
    return Driver(sys.executable, "-m", name, *map(str, words), environment=environment, cwd=cwd)
