"""Class archives: what a JVM keeps of the classes it loaded, so that the next one need not read and
check them anew.

Rules of this file:

- an archive makes a start quicker and is never needed: one that is not there, not whole, or not of
  this JVM is left out;
- its name has its size in it. A JVM that maps a file shorter than its header says dies of SIGBUS,
  so the length is checked here. Other damage the JVM finds by its own sums
  (-XX:+VerifySharedSpaces, 20 ms), and loads the classes itself;
- whether an archive fits is asked of the JVM that is to use it: it knows its own version, and which
  jars it compares;
- how archives are made is no business of this room: a cluster is needed for it
  (durablelog/bookkeeper/archiving).

    archives-<digest>/gateway-<bytes>.jsa ... of one state of the jars and of the gateway's sources
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from durablelog.bookkeeper.installation.gateway_classes import gateway_classpath, gateway_digest
from durablelog.bookkeeper.installation.jars import cluster_classpath, installation_folder, sync
from durablelog.bookkeeper.installation.programs import GatewayMissingError, java, run
from segmentstore.contracts.errors import SegmentStoreError

_KEPT: Final = 2
"""Folders of archives, 115 MB each: for a checkout that goes to and fro."""
_CHECK_S: Final = 60.0
_QUIETLY: Final = ("-Xlog:cds*=off",)
"""To leave out an archive does no harm, and the JVM reports it where programs write for people."""
_IF_IT_CRASHES: Final = ("-XX:-CreateCoredumpOnCrash", "-XX:ErrorFile=/dev/null")


class JavaProgram(StrEnum):
    """The Java processes that are started here; each loads classes of its own."""

    GATEWAY = "gateway"
    ZOOKEEPER = "zookeeper"
    BOOKIE = "bookie"
    SHELL = "shell"
    """BookieShell: it formats a cluster."""


class NoArchivesError(SegmentStoreError):
    """Archives could not be made. Everything works without."""


def archives_folder() -> Path:
    """Where the archives of this version are, or would be.

    Raises GatewayMissingError without the gateway's sources.
    """
    return installation_folder() / f"archives-{gateway_digest()}"


def archive_options(program: JavaProgram, folder: Path | None = None) -> Sequence[str]:
    """Options of Java by which a program starts from its archive in the folder (that of this
    version); none without.
    """
    archive = _whole(program, folder or archives_folder())
    return [*_using(archive), *_QUIETLY] if archive is not None else []


def recording_options(program: JavaProgram, folder: Path) -> Sequence[str]:
    """Options of Java by which a program leaves an archive in the folder when it ends, which takes
    it seconds more.
    """
    return [f"-XX:ArchiveClassesAtExit={_recorded(program, folder)}"]


def programs_without_archive(folder: Path | None = None) -> list[JavaProgram]:
    """Those whose archive in the folder (that of this version) is not there or not taken by this
    machine's Java.

    Starts Java for each: 0.1 s. Raises GatewayMissingError.
    """
    where = folder or archives_folder()
    if not where.is_dir():
        return list(JavaProgram)
    return [program for program in JavaProgram if not _fits(program, _whole(program, where))]


def keep_archives(recorded: Path) -> None:
    """Make a folder in which each program left its archive that of this version; one process at a
    time does it.

    The caller owns and removes the folder above it: what was there before is left in it.

    Raises NoArchivesError unless all are whole; GatewayMissingError, OSError.
    """
    for program in JavaProgram:
        archive = _recorded(program, recorded)
        if not archive.is_file():
            raise NoArchivesError(f"Java left no archive of {program}")
        if not _fits(program, archive):
            raise NoArchivesError(f"Java does not take the archive that it left of {program}")
        sync(archive)
        archive.rename(recorded / f"{program}-{archive.stat().st_size}.jsa")
    target = archives_folder()
    if target.exists():
        # What maps these files keeps them. They go with the folder that was recorded in.
        target.rename(recorded.parent / "replaced")
    recorded.rename(target)
    newest_first = sorted(
        target.parent.glob("archives-*"),
        key=lambda path: (path == target, path.stat().st_mtime_ns),
        reverse=True,
    )
    for old in newest_first[_KEPT:]:
        shutil.rmtree(old)


def _recorded(program: JavaProgram, folder: Path) -> Path:
    return folder / f"{program}.jsa"


def _whole(program: JavaProgram, folder: Path) -> Path | None:
    try:
        for archive in folder.glob(f"{program}-*.jsa"):
            if archive.stem == f"{program}-{archive.stat().st_size}":
                return archive
    except OSError:
        pass  # just replaced by another process, or not ours to read
    return None


def _fits(program: JavaProgram, archive: Path | None) -> bool:
    if archive is None:
        return False
    classpath = gateway_classpath() if program is JavaProgram.GATEWAY else cluster_classpath()
    command = [
        java(),
        "-Xshare:on",
        *_using(archive),
        *_IF_IT_CRASHES,
        "-cp",
        classpath,
        "-version",
    ]
    try:
        run(command, f"asking Java whether it takes {archive}", seconds=_CHECK_S)
    except GatewayMissingError:
        return False
    return True


def _using(archive: Path) -> Sequence[str]:
    return [f"-XX:SharedArchiveFile={archive}", "-XX:+VerifySharedSpaces"]
