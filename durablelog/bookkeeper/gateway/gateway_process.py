"""One Java process of ours. Everything here blocks; call it from an executor.

It says its port in the one line it ever writes to standard output. It keeps its socket, its log and
its temporary files in a folder of its own. It ends when its standard input does: a parent that
dies, in whatever way, takes it along.
"""

from __future__ import annotations

import io
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.gateway.gateway_control import GatewayControl
from durablelog.bookkeeper.gateway.gateway_folders import make_folder
from durablelog.bookkeeper.gateway.gateway_settings import (
    GATEWAY_CLOSED,
    LOG_VARIABLE,
    TOKEN_VARIABLE,
)
from durablelog.bookkeeper.installation import (
    JAVA_ENVIRONMENT,
    LATE_OPTIMIZATION,
    JavaProgram,
    archive_options,
    gateway_classpath,
    java,
)
from durablelog.bookkeeper.ledger_store import LedgerError
from segmentstore.contracts import forks

HOST: Final = "127.0.0.1"

_HEAP_MIB: Final = 256
_DIRECT_MIB: Final = 768
"""Entries live outside the heap: 64 MiB of a store's window, and four readings with four parts
each.
"""
_HEAP_MIB_EACH: Final = 64
_DIRECT_MIB_EACH: Final = 128
"""More for each further store. 64 MiB of entries have 64 Ki of them at most, with 1 KiB each in the
heap (`AddConnection.java`).
"""
_START_S: Final = 60.0
_STOP_S: Final = 3.0
_LOG_BYTES_SHOWN: Final = 2000
_LOGGING: Final = Path(__file__).resolve().parent / "java" / "log4j2.properties"
_SAYS_NOTHING: Final = ("-Xlog:disable", "-Xlog:all=warning:stderr", "-XX:+DisplayVMOutputToStderr")
"""Else the JVM's own warnings, of whatever it meets on a machine, stand where the port is
expected.
"""


class GatewayProcess:
    """A gateway that was started, and runs until it is stopped or dies."""

    def __init__(
        self,
        token: str,
        port: int = 0,
        *,
        archive: Sequence[str] | None = None,
        timeout_s: float = _STOP_S,
        stores: int = 1,
        apart: bool = False,
    ) -> None:
        """Start one; ready when this returns: about 1 s, more on a busy machine.

        `archive` are other options of Java about class archives than those that use what is there,
        `timeout_s` is how long `stop` waits for an orderly end. Memory is allowed for so many
        `stores` under full load. `apart`: in a process group of its own, which a terminal's Ctrl-C
        does not reach. Raises LedgerError, GatewayMissingError, OSError (no room for its folder, no
        process more).
        """
        classpath = gateway_classpath()
        program = java()
        if archive is None:
            archive = archive_options(JavaProgram.GATEWAY)
        self._timeout_s = timeout_s
        self.died = False
        """Once it was stopped: it had ended by itself, or was killed."""
        # A short path: a Unix socket's name has room for 107 characters.
        self._folder = make_folder()
        try:
            # What Java unpacks, native libraries of the client's, goes with the gateway, too.
            (self._folder / "tmp").mkdir()
            logs = os.environ.get(LOG_VARIABLE)
            self._logs = (
                Path(tempfile.mkdtemp(prefix="gateway-", dir=logs)) if logs else self._folder
            )
            command = [
                program,
                *self._options(stores),
                *archive,
                "-cp",
                classpath,
                "segmentstore.Gateway",
            ]
            with (self._logs / "stderr.log").open("wb") as errors, forks.no_fork():
                self._process = subprocess.Popen(
                    [*command, str(self._folder), str(port), str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, **JAVA_ENVIRONMENT, TOKEN_VARIABLE: token},
                    process_group=0 if apart else None,
                )
                # A forked child that kept the other end of its input would keep it alive.
                forks.in_child(self, _keep_from_child)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        try:
            self.port = self._await_port()
            self.control = GatewayControl(HOST, self.port, token)
        except BaseException:
            self._end()
            raise
        try:
            (self.data_socket,) = self.control.call("dataSocket")
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended yet; a process that hangs lives."""
        return self._process.poll() is None

    def wait(self) -> int:
        """Wait until it ends; its exit code."""
        return self._process.wait()

    def log_end(self) -> str:
        """The last of what it wrote to its logs, for an error message."""
        shown = []
        for name in ("gateway.log", "stderr.log"):
            try:
                shown.append(
                    (self._logs / name)
                    .read_bytes()[-_LOG_BYTES_SHOWN:]
                    .decode(errors="replace")
                    .strip()
                )
            except OSError:
                pass  # it did not get that far
        return "\n".join(text for text in shown if text)

    def stop(self) -> None:
        """End it: kindly first, for `timeout_s` at most.

        The outcome of what is in flight is unknown then. Idempotent, raises nothing.
        """
        self.control.close()
        self._end()

    def kill(self) -> None:
        """End it at once, as for one that hangs; `stop` clears up behind it."""
        self._process.kill()

    def _options(self, stores: int) -> list[str]:
        few = (os.cpu_count() or 1) <= 2
        return [
            *_SAYS_NOTHING,
            f"-Xmx{_HEAP_MIB + _HEAP_MIB_EACH * (stores - 1)}m",
            f"-XX:MaxDirectMemorySize={_DIRECT_MIB + _DIRECT_MIB_EACH * (stores - 1)}m",
            *(["-XX:+UseSerialGC"] if few else []),
            *LATE_OPTIMIZATION,
            "-XX:+ExitOnOutOfMemoryError",
            f"-XX:ErrorFile={self._logs / 'crash.log'}",
            f"-Djava.io.tmpdir={self._folder / 'tmp'}",
            f"-Dsegmentstore.gateway.folder={self._logs}",
            f"-Dlog4j2.configurationFile={_LOGGING}",
        ]

    def _await_port(self) -> int:
        output = self._process.stdout
        assert output is not None
        with output:
            ready, _, _ = select.select([output], [], [], _START_S)
            line = output.readline().decode() if ready else ""
        word, _, number = line.strip().partition(" ")
        if word != "port":
            how = "said nothing" if self.alive else f"ended with code {self._process.wait()}"
            raise LedgerError(GATEWAY_CLOSED, "start", f"the gateway {how}: {self.log_end()}")
        return int(number)

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            # Its orderly end is 0 (Parent.java).
            self.died = self._process.wait(self._timeout_s) != 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _keep_from_child(gateway: GatewayProcess) -> None:
    # A connection of py4j's that is collected is shut down, the parent's end of it too.
    forks.keep_for_ever(gateway)
    stdin = gateway._process.stdin  # noqa: SLF001 - of this module
    assert isinstance(stdin, io.BufferedWriter)
    # Without the buffer's lock, which another thread of the parent may have had.
    stdin.raw.close()
