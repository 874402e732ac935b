"""Pulsar's own offloader (PIP-17), a witness of archived ledgers: one process that takes commands.

Rules of this file:

- it runs in a process of its own, for its BookKeeper and Netty are not ours, and reaches nothing
  but this machine: no other name resolves there;
- a command that has no answer in time ends the process: its reader can be in a loop that nothing
  ends.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Final, Self

from recovery.harness.services.installing import (
    INSTALL_COMMAND,
    ServiceMissingError,
    java,
    services_folder,
)
from recovery.harness.services.pulsar_jar import BUNDLED, PROGRAM, pulsar_folder

ANSWER_S: Final = 240.0


class WitnessError(RuntimeError):
    """Pulsar's offloader refused a command, or did not answer."""


class PulsarOffloader:
    """Pulsar's offloader for one bucket. A context manager that starts and stops its process."""

    def __init__(self, endpoint: str, bucket: str, access_key: str, secret: str) -> None:
        """Raises ServiceMissingError."""
        self._classes = pulsar_folder(services_folder())
        if not self._classes.is_dir():
            raise ServiceMissingError(
                f"Pulsar's offloader is not installed: run `{INSTALL_COMMAND}`"
            )
        self._place = (endpoint, bucket, access_key, secret)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        hosts = self._classes / "hosts"
        self._process = subprocess.Popen(
            [
                *(java(), "-Xmx256m", f"-Djdk.net.hosts.file={hosts}"),
                *("-cp", f"{self._classes}:{self._classes}/{BUNDLED}*", PROGRAM),
                *self._place,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self._answer("ready")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        # Not asked to end: a thread of it may never.
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()

    def ask(self, *words: object) -> Sequence[str]:
        """The words of the answer to one command. Raises WitnessError."""
        assert self._process is not None
        stdin: IO[bytes] | None = self._process.stdin
        assert stdin is not None
        stdin.write(" ".join(map(str, words)).encode() + b"\n")
        return self._answer("ok")

    def _answer(self, expected: str) -> Sequence[str]:
        assert self._process is not None
        stdout = self._process.stdout
        assert stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], ANSWER_S)
            got = os.read(stdout.fileno(), 65_536) if ready else b""
            if not got:
                self._process.kill()
                why = "ended" if ready else f"did not answer in {ANSWER_S:.0f} s"
                raise WitnessError(f"Pulsar's offloader {why}")
            line += got
        first, *words = line.decode().split()
        if first != expected:
            raise WitnessError(" ".join(words))
        return words
