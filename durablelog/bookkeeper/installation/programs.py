"""The programs that BookKeeper needs, as they are on this machine: Java, its compiler, Maven; and
running one of them.

What is missing is one sentence that says what a person has to install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from segmentstore.contracts.errors import ConfigError

INSTALL_COMMAND: Final = "segmentstore bookkeeper install"
JAVA_VERSION_MIN: Final = 17
LATE_OPTIMIZATION: Final = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""Options of a Java process that serves for long: its second compiler (C2) begins with what has run
ten times as often as Java's defaults say.

By those a take-over, which reads a log once, compiled for longer than it read: 5.4 of 12 s of CPU
were the compiler's in gateways and bookies. The rate under load is the same.
"""
JAVA_ENVIRONMENT: Final[Mapping[str, str]] = {"LC_ALL": "C.UTF-8"}
"""Of every Java process, added to ours. By the locale Java decodes names of files, arguments and
variables; in that of cron and of many services all but ASCII becomes question marks.
"""

_VERSION_S: Final = 60.0
_OUTPUT_MAX: Final = 2000


class GatewayMissingError(ConfigError):
    """A piece that a log on BookKeeper needs is not on this machine.

    The message says which, and how to get it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("tier1", reason)


def java() -> str:
    """The program that runs Java classes: of JAVA_HOME, else of PATH.

    Raises GatewayMissingError.
    """
    return _of_java("java", "BookKeeper's client runs on it", "default-jre-headless")


def javac() -> str:
    """The Java compiler. Raises GatewayMissingError."""
    return _of_java("javac", "the gateway to BookKeeper is compiled by it", "default-jdk-headless")


def maven() -> str:
    """The program that fetches jars. Raises GatewayMissingError."""
    found = shutil.which("mvn")
    if found is None:
        raise GatewayMissingError(
            "mvn is needed (BookKeeper's jars come by it) and was not found: install "
            "Maven (Debian: apt-get install maven)"
        )
    return found


def java_version(program: str) -> int | None:
    """The major version of `java` or `javac`, e.g. 17; None if it does not say. Starts it: some 0.1
    s.
    """
    try:
        said = run([program, "-version"], "asking for its version", seconds=_VERSION_S)
    except GatewayMissingError:
        return None
    found = re.search(r'(?:version "|javac )(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def require_java_version(program: str) -> None:
    """Raises GatewayMissingError if a program of Java's is older than what everything here
    needs.
    """
    version = java_version(program)
    if version is None or version < JAVA_VERSION_MIN:
        said = "of an unknown version" if version is None else f"version {version}"
        raise GatewayMissingError(
            f"{program} is {said}, and Java {JAVA_VERSION_MIN} or newer is needed: "
            "install it (Debian: apt-get install default-jdk-headless) or set JAVA_HOME"
        )


def run(
    command: Sequence[str],
    purpose: str,
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end; all that it wrote.

    Raises GatewayMissingError with the end of that if it failed.

    `environment` is added to this process's own.
    """
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **JAVA_ENVIRONMENT, **(environment or {})},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise GatewayMissingError(
            f"{purpose} took more than {seconds:.0f} s: {' '.join(command)}"
        ) from None
    except OSError as error:
        raise GatewayMissingError(
            f"{purpose} failed: {command[0]} could not be started ({error})"
        ) from error
    told = ended.stdout.decode(errors="replace").strip()
    if ended.returncode:
        # The cause stands above long advice, so both ends are worth keeping.
        shown = (
            told
            if len(told) <= 2 * _OUTPUT_MAX
            else f"{told[:_OUTPUT_MAX]}\n[...]\n{told[-_OUTPUT_MAX:]}"
        )
        raise GatewayMissingError(f"{purpose} failed by `{' '.join(command)}`:\n{shown}")
    return told


def _of_java(name: str, why: str, package: str) -> str:
    home = os.environ.get("JAVA_HOME")
    if home:
        program = Path(home) / "bin" / name
        if program.is_file():
            return str(program)
    found = shutil.which(name)
    if found is None:
        raise GatewayMissingError(
            f"{name} is needed ({why}) and was not found: "
            f"install Java {JAVA_VERSION_MIN} or newer (Debian: apt-get install "
            f"{package}), or set JAVA_HOME"
        )
    return found
