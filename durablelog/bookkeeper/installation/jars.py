"""BookKeeper's jars: fetched by Maven in the versions of pom.xml, checked against jars.sha256, kept
in a folder.

Rules of this file:

- fetching is a step of its own (`install`): opening a store never downloads;
- `install` may be called again at any time, by several processes at once. What is there is not
  touched, and the folder gets its name only when it is whole and every jar has its sum. The name is
  made of pom.xml and jars.sha256, so that another version is another folder;
- a jar that differs from the one with the recorded sum is refused, whatever its source.

The folder is `var/bookkeeper` beside the code in a checkout, the user's cache folder elsewhere, or
what SEGMENTSTORE_BOOKKEEPER_JARS names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from durablelog.bookkeeper.installation.programs import (
    INSTALL_COMMAND,
    GatewayMissingError,
    java,
    maven,
    require_java_version,
    run,
)
from segmentstore.contracts import forks

FOLDER_VARIABLE: Final = "SEGMENTSTORE_BOOKKEEPER_JARS"
POM: Final = Path(__file__).resolve().parent / "pom.xml"
SUMS: Final = Path(__file__).resolve().parent / "jars.sha256"
INSTALLING: Final = "installing.lock"

_FETCH_S: Final = 1200.0
"""The error says so when the network hangs."""
_SHOWN_MAX: Final = 5


def installation_folder() -> Path:
    """Where jars and compiled classes are kept; not made here."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).absolute()
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").is_file():
        return checkout / "var" / "bookkeeper"
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "segmentstore"
        / "bookkeeper"
    )


def jars_folder() -> Path:
    """Where the jars of this version are, or would be."""
    return installation_folder() / f"jars-{digest(POM.read_bytes() + SUMS.read_bytes())}"


def install(say: Callable[[str], None]) -> None:
    """Make sure of the jars; `say` gets what is done, a line at a time.

    Some 20 s the first time, 95 MB.

    Raises GatewayMissingError.
    """
    require_java_version(java())
    target = jars_folder()
    if target.is_dir():
        return
    with alone(installation_folder()) as folder:
        if target.is_dir():
            return
        say("installing BookKeeper (71 jars, 95 MB)")
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder) as made:
            fetched = Path(made) / "jars"
            _fetch(fetched)
            wrong = damaged_jars(fetched)
            if wrong:
                shown = "; ".join(wrong[:_SHOWN_MAX]) + ("; ..." if len(wrong) > _SHOWN_MAX else "")
                raise GatewayMissingError(
                    f"the jars that Maven brought are not those of {SUMS.name}, and were "
                    f"thrown away: {shown}"
                )
            fetched.rename(target)


def cluster_classpath() -> str:
    """What ZooKeeper and a bookie run from.

    Raises GatewayMissingError if the jars are not installed.
    """
    folder = jars_folder()
    if not folder.is_dir():
        raise GatewayMissingError(f"BookKeeper's jars are not in {folder}: run `{INSTALL_COMMAND}`")
    return f"{folder}/*"


def damaged_jars(folder: Path) -> list[str]:
    """What is wrong with a folder of jars, each in a few words, the worst first; empty if it is
    whole. Reads all of it.
    """
    wanted = pinned_sums()
    found = {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
    wrong = []
    for name, path in found.items():
        if name not in wanted:
            wrong.append(f"{name} is not expected")
            continue
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != wanted[name]:
                wrong.append(f"{name} has another SHA-256 sum")
    return wrong + [f"{name} is missing" for name in sorted(wanted.keys() - found.keys())]


def pinned_sums() -> Mapping[str, str]:
    """The SHA-256 sum of every jar, by its file's name."""
    lines = (line.split() for line in SUMS.read_text(encoding="ascii").splitlines())
    return {name: checksum for checksum, name in lines}


def digest(content: bytes) -> str:
    """A short name for something of this content."""
    return hashlib.sha256(content).hexdigest()[:12]


def sync(path: Path) -> None:
    """Bring a file to the disk before it gets its name: after a loss of power a name must not stand
    for less.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def alone(folder: Path, lock_file: str = INSTALLING) -> Iterator[Path]:
    """The folder, made if need be, for one process at a time.

    Waits. Raises GatewayMissingError if it cannot be had.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / lock_file).open("w")
    except OSError as error:
        raise GatewayMissingError(
            f"{folder}, for BookKeeper's jars, cannot be written ({error.strerror}): set "
            f"{FOLDER_VARIABLE} to another"
        ) from error
    with lock:
        forks.in_child(lock, _close_copy)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            # Said, and not left to the closing: a forked child may have the file open, too.
            fcntl.flock(lock, fcntl.LOCK_UN)


def _close_copy(lock: TextIO) -> None:
    lock.close()


def _fetch(target: Path) -> None:
    command = [
        maven(),
        "-q",
        "-B",
        "--strict-checksums",
        "-f",
        str(POM),
        "dependency:copy-dependencies",
    ]
    options = [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    run([*command, *options], "fetching BookKeeper's jars", seconds=_FETCH_S)
