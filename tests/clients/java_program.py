"""Our program on Pravega's Java client. Its jars come by Maven into `var/services`, once, and its
classes are compiled once for each state of its sources.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from durablelog.bookkeeper.installation import java
from durablelog.bookkeeper.installation.jars import digest
from durablelog.bookkeeper.installation.programs import javac, run
from recovery.harness.services.installing import UNVERIFIED
from recovery.harness.services.pravega_jars import kept_folder, pravega_jars

SOURCES: Final = Path(__file__).with_name("java")
POM: Final = SOURCES / "pom.xml"
OPENED: Final = (
    "java.lang",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "jdk.internal.misc",
    "sun.nio.ch",
)
"""Packages of the JDK that the client's Netty reaches into."""
PROGRAM_S: Final = 600.0
"""All steps together take some 20 s, and some 30 s on BookKeeper; several times that on a busy
machine.
"""
_COMPILE_S: Final = 600.0


class ServedClients(Protocol):
    """What serves the program."""

    @property
    def uri(self) -> str:
        """Of the Controller."""

    def client_environment(self) -> Mapping[str, str]:
        """What the process of a client who may do all finds in its environment."""

    def condition(self) -> str:
        """For a test that fails."""


def jars_folder() -> Path:
    """The client's jars: 46 of them, 33 MB, half a minute if they are not there.

    Raises GatewayMissingError, which says what to install.
    """
    return pravega_jars("pravega-client", POM)


def classes_folder() -> Path:
    """The compiled program; some seconds if it is not there.

    Raises GatewayMissingError.
    """
    jars = jars_folder()
    sources = sorted(SOURCES.rglob("*.java"))

    def compile_all(folder: Path) -> None:
        command = [javac(), "-nowarn", "-proc:none", "-cp", f"{jars}/*", "-d", str(folder)]
        run([*command, *map(str, sources)], "compiling the program", seconds=_COMPILE_S)

    content = b"".join(path.read_bytes() for path in (POM, *sources))
    return kept_folder(f"pravega-client-program-{digest(content)}", compile_all)


@contextmanager
def started_program(server: ServedClients, *steps: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program, on its way; killed at the end. Its standard error is in its output."""
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    command = [
        java(),
        *UNVERIFIED,
        *opened,
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-cp",
        f"{classes_folder()}:{jars_folder()}/*",
        "clients.ClientProgram",
        server.uri,
        *steps,
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **server.client_environment()},
        # Lines that were not asked for yet stay in the pipe, where `communicate` finds them.
        bufsize=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def passed_steps(server: ServedClients, process: subprocess.Popen[bytes]) -> set[str]:
    """The steps that passed. Fails with the output, and with all stacks of a program that hangs."""
    try:
        out, _ = process.communicate(timeout=PROGRAM_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGQUIT)
        try:
            out, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
    text = out.decode(errors="replace")
    assert process.returncode == 0, f"{text}\n{server.condition()}"
    return {line.split()[1] for line in text.splitlines() if line.startswith("passed ")}
