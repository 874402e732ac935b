"""The gateway's Java classes: compiled by `javac` from the sources in this package, once for every
state of them.

The jar's name is made of the sources and of the jars, so that a changed source is compiled again,
and a jar that has its name is whole. Several processes may ask at once: one compiles, the others
wait for it. It is a jar and no folder, because a JVM makes no class archive of what it loaded from
a folder.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.installation.jars import (
    POM,
    SUMS,
    alone,
    cluster_classpath,
    digest,
    installation_folder,
    sync,
)
from durablelog.bookkeeper.installation.programs import (
    JAVA_VERSION_MIN,
    GatewayMissingError,
    javac,
    require_java_version,
    run,
)

SOURCES_FOLDER: Final = Path(__file__).resolve().parents[1] / "gateway" / "java"

_COMPILE_S: Final = 300.0
_KEPT: Final = 8
"""Jars: a gateway that is just being started may be about to open an older one."""


def gateway_classpath(
    say: Callable[[str], None] | None = None, *, sources: Path = SOURCES_FOLDER
) -> str:
    """What the gateway runs from.

    Compiles it if need be (2 to 7 s, `say` is notified of it), but fetches nothing.

    Raises GatewayMissingError.
    """
    jars = cluster_classpath()
    target = gateway_jar(sources)
    if not target.is_file():
        with alone(installation_folder()) as folder:
            if not target.is_file():
                if say is not None:
                    say("compiling the gateway to BookKeeper")
                _compile(sources, jars, folder, target)
    return f"{target}:{jars}"


def gateway_jar(sources: Path = SOURCES_FOLDER) -> Path:
    """Where the classes of the sources as they are now are, or would be.

    Raises GatewayMissingError without sources.
    """
    return installation_folder() / f"gateway-{gateway_digest(sources)}.jar"


def gateway_digest(sources: Path = SOURCES_FOLDER) -> str:
    """A short name for all that the gateway is made of.

    Raises GatewayMissingError without sources.
    """
    content = [POM.read_bytes(), SUMS.read_bytes()]
    for path in java_sources(sources):
        content += [path.relative_to(sources).as_posix().encode(), path.read_bytes()]
    return digest(b"".join(b"%d:%b" % (len(part), part) for part in content))


def java_sources(sources: Path) -> list[Path]:
    """The files to compile, sorted. Raises GatewayMissingError if there are none."""
    found = sorted(sources.rglob("*.java"))
    if not found:
        raise GatewayMissingError(
            f"the gateway's Java sources are not in {sources}: this installation is not whole"
        )
    return found


def _compile(sources: Path, jars: str, folder: Path, target: Path) -> None:
    compiler = javac()
    require_java_version(compiler)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=folder) as made:
        classes = Path(made) / "classes"
        options = [
            "-encoding",
            "UTF-8",
            "--release",
            str(JAVA_VERSION_MIN),
            "-cp",
            jars,
            "-d",
            str(classes),
        ]
        files = [str(path) for path in java_sources(sources)]
        # The jars' own annotations are of no use here, and searching for their processors takes a
        # second.
        run(
            [compiler, "-proc:none", *options, *files],
            "compiling the gateway to BookKeeper",
            seconds=_COMPILE_S,
        )
        jar = Path(made) / target.name
        _pack(classes, jar)
        sync(jar)
        jar.rename(target)
    newest_first = sorted(
        folder.glob("gateway-*.jar"), key=lambda path: path.stat().st_mtime_ns, reverse=True
    )
    for old in newest_first[_KEPT:]:
        old.unlink()


def _pack(classes: Path, jar: Path) -> None:
    with zipfile.ZipFile(jar, "w") as packed:
        for path in sorted(classes.rglob("*.class")):
            # Without the time of day: the same classes are the same jar.
            packed.writestr(
                zipfile.ZipInfo(path.relative_to(classes).as_posix()), path.read_bytes()
            )
