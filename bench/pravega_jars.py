"""Pravega's own programs and our loads on its Java client: jars by Maven, classes by javac.

Both come once into `var/services`, and anew when `bench/pravega` changes. The jars are 308, 158 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.workspace import BenchError
from durablelog.bookkeeper.installation import GatewayMissingError, java, javac
from durablelog.bookkeeper.installation.jars import digest
from durablelog.bookkeeper.installation.programs import run
from recovery.harness.services.pravega_jars import FETCH_S, kept_folder, pravega_jars

SOURCES: Final = Path(__file__).with_name("pravega")
POM: Final = SOURCES / "pom.xml"
LOGGING: Final = SOURCES / "logback.xml"
OPENED: Final = (
    "java.lang",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "jdk.internal.misc",
    "sun.nio.ch",
)
"""Packages of the JDK that Pravega's Netty reaches into."""


def java_command(program: str, *options: str) -> list[str]:
    """Runs a class of Pravega's, or `load.WireLoad`; `options` are Java's.

    Fetches and compiles what is not there. Raises BenchError, which says what to install.
    """
    try:
        classpath = f"{_classes_folder()}:{_jars_folder()}/*"
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        usual = ["-Dio.netty.tryReflectionSetAccessible=true"]
        usual.append(f"-Dlogback.configurationFile={LOGGING}")
        return [java(), *opened, *usual, *options, "-cp", classpath, program]
    except GatewayMissingError as error:
        raise BenchError(error.reason) from error


def _jars_folder() -> Path:
    return pravega_jars("pravega-peer", POM)


def _classes_folder() -> Path:
    jars = _jars_folder()
    sources = sorted((SOURCES / "java").rglob("*.java"))

    def compile_all(folder: Path) -> None:
        command: Sequence[str] = (javac(), "-nowarn", "-proc:none", "-cp", f"{jars}/*")
        run([*command, "-d", str(folder), *map(str, sources)], "compiling", seconds=FETCH_S)

    content = b"".join(path.read_bytes() for path in (POM, *sources))
    return kept_folder(f"pravega-load-{digest(content)}", compile_all)
