"""Pulsar's own offloader (PIP-17), a witness of archived ledgers: its jar by Maven, a small program
of ours around it, one process that takes commands.

Rules of this file:

- the jar is the released one: its sum is pinned. It has its dependencies inside, and only those
  that are loaded are kept (20 of 79 MB);
- it runs in a process of its own, for its BookKeeper and Netty are not ours, and reaches nothing
  but this machine: no other name resolves there;
- a command that has no answer in time ends the process: its reader can be in a loop that nothing
  ends.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from durablelog.bookkeeper.installation import javac, maven
from durablelog.bookkeeper.installation.jars import alone, digest
from durablelog.bookkeeper.installation.programs import run
from recovery.harness.services.installing import (
    INSTALL_COMMAND,
    ServiceMissingError,
    java,
    services_folder,
)

SOURCES: Final = Path(__file__).resolve().parent / "pulsar"
PROGRAM: Final = "PulsarOffloader"
JAR_SHA256: Final = "557cdc6d05b2f2317384f857d57bbe7c71d544037c9d56513ef0107f15e2fa3c"
ANSWER_S: Final = 240.0

_BUNDLED: Final = "META-INF/bundled-dependencies/"
_LOADED: Final = (
    *("jclouds-shaded-", "jclouds-slf4j-", "netty-common-", "netty-buffer-", "guava-31"),
    *("failureaccess-", "protobuf-java-3", "bookkeeper-server-", "bookkeeper-proto-"),
    *("bookkeeper-common-", "bookkeeper-stats-api-", "managed-ledger-", "pulsar-common-"),
    *("aws-java-sdk-core-", "jaxb-api-", "commons-lang3-", "commons-lang-", "slf4j-api-"),
)
_MAVEN_S: Final = 600.0
_COMPILE_S: Final = 120.0


class WitnessError(RuntimeError):
    """Pulsar's offloader refused a command, or did not answer."""


def install_pulsar_offloader(say: Callable[[str], None]) -> Path:
    """The folder of its classes, made if it is not there. Raises GatewayMissingError,
    ServiceMissingError.
    """
    target = _folder()
    if target.is_dir():
        return target
    with alone(services_folder(), "pulsar.lock") as folder:
        if not target.is_dir():
            say("installing Pulsar's offloader (75 MB)")
            made = Path(tempfile.mkdtemp(dir=folder))
            try:
                _unpack(_jar(made / "jar"), made / "classes")
                _compile(made / "classes")
                (made / "classes").rename(target)
            finally:
                shutil.rmtree(made, ignore_errors=True)
    return target


class PulsarOffloader:
    """Pulsar's offloader for one bucket. A context manager that starts and stops its process."""

    def __init__(self, endpoint: str, bucket: str, access_key: str, secret: str) -> None:
        """Raises ServiceMissingError."""
        self._classes = _folder()
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
                *("-cp", f"{self._classes}:{self._classes}/{_BUNDLED}*", PROGRAM),
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


def _folder() -> Path:
    content = [JAR_SHA256.encode(), *(path.read_bytes() for path in sorted(SOURCES.iterdir()))]
    return services_folder() / f"pulsar-offloader-{digest(b''.join(content))}"


def _jar(folder: Path) -> Path:
    pom = str(SOURCES / "pom.xml")
    command = [maven(), "-q", "-B", "-f", pom, "dependency:copy-dependencies"]
    run([*command, f"-DoutputDirectory={folder}"], "fetching Pulsar's offloader", seconds=_MAVEN_S)
    (jar,) = folder.glob("*.jar")
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != JAR_SHA256:
        raise ServiceMissingError(
            f"the jar of Pulsar's offloader has the sum {found}, not {JAR_SHA256}"
        )
    return jar


def _unpack(jar: Path, target: Path) -> None:
    with zipfile.ZipFile(jar) as packed:
        for name in packed.namelist():
            if not name.startswith(_BUNDLED) or name.removeprefix(_BUNDLED).startswith(_LOADED):
                packed.extract(name, target)
    (target / "hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")


def _compile(classes: Path) -> None:
    command = [javac(), "-proc:none", "-encoding", "UTF-8", "-d", str(classes)]
    path = f"{classes}:{classes}/{_BUNDLED}*"
    run(
        [*command, "-cp", path, str(SOURCES / f"{PROGRAM}.java")],
        "compiling the program around Pulsar's offloader",
        seconds=_COMPILE_S,
    )
