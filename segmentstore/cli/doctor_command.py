"""`segmentstore doctor`: what this machine has of what a store needs, and how to get what is
missing.

It changes nothing and starts nothing but programs that are asked for their version.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from segmentstore.cli import output
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.stores import require_store
from segmentstore.contracts.byte_sizes import format_size
from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.extras import MODULES, missing_modules
from segmentstore.contracts.runtime import Runtime
from segmentstore.settings_sources import merge_settings

if TYPE_CHECKING:
    from durablelog.bookkeeper.bookkeeper_location import BookKeeperLocation

PYTHON_MIN: Final = (3, 11)
FREE_BYTES_MIN: Final = 1024 * 1024 * 1024

EXTRAS: Final = {
    "arrow": "catalog snapshots",
    "bookkeeper": "a log on BookKeeper",
    "harness": "segmentstore crashtest",
    "metrics": "metrics_port and metrics_text()",
    "s3": "objects at s3://",
    "sftp": "objects at sftp://",
    "spark": "the Spark jobs, with Java 17",
}
"""What each is needed for. The command line itself runs: its extra is here."""

_FASTER: Final = frozenset(("class archives", "gateway classes"))
"""A log on BookKeeper starts sooner with them, and does without."""
_CONNECT_S: Final = 3.0
_LOOPBACK: Final = "127.0.0.1"


class Check(NamedTuple):
    """One piece: whether it is there, whether anything stands still without it, and what to do."""

    piece: str
    found: bool
    needed: bool
    detail: str
    remedy: str = ""
    """How to get it, if it is missing."""
    needed_for: str = ""
    """The users of it, where not every store needs it."""


def doctor_command(
    store: Annotated[
        str | None,
        typer.Argument(
            metavar="[STORE]", help="Folder of a store: what that one needs; else everything."
        ),
    ] = None,
    as_json: output.JsonOption = False,
) -> None:
    """Search for what a store needs on this machine, and say how to get what is missing.

    Ends with 1 if something is missing that STORE needs; without STORE, that every store needs.
    """
    checks = list(examine(store))
    ok = all(check.found for check in checks if check.needed)
    if as_json:
        output.print_json({"store": store, "ok": ok, "checks": checks})
    else:
        rows = [
            (check.piece, _state(check), check.detail, "" if check.found else check.remedy)
            for check in checks
        ]
        output.out().print(output.table(None, ("piece", "state", "detail", "how to get it"), rows))
        output.out().print(
            "all that is needed is here" if ok else "something that is needed is missing"
        )
    if not ok:
        raise typer.Exit(ExitCode.REFUSED)


def examine(store: str | None) -> Iterator[Check]:
    """Every piece, for one store or for all that this program can do.

    Raises NotAStoreError and ConfigError.
    """
    place, location, needed = _store(store)
    yield _python()
    yield _disk_space(place, needed=store is not None)
    yield _loopback(needed=location is not None or "metrics" in needed)
    # A store on a log of its own, or at a gateway that another program runs, has no JVM.
    needs_jvm = location is not None and location.gateway is None
    for check in _bookkeeper(needed=needs_jvm):
        helps = check.piece in _FASTER
        yield check if helps else check._replace(needed_for=EXTRAS["bookkeeper"])
    if location is not None:
        yield from _servers(location)
    for extra, needed_for in EXTRAS.items():
        yield _extra(extra, needed_for, needed=extra in needed)
    yield _program("strace", "developers' tests", "install it (Debian: apt-get install strace)")


def _store(store: str | None) -> tuple[Path, BookKeeperLocation | None, set[str]]:
    """The folder whose disk counts, where the log is if it is on BookKeeper, and the extras that
    the store needs.
    """
    # Not at the top: the other commands do not pay for it.
    from durablelog.bookkeeper.bookkeeper_location import (  # noqa: PLC0415
        PREFIX,
        BookKeeperLocation,
    )
    from segmentstore.store_folder import read_store_file  # noqa: PLC0415

    if store is None:
        return Path.cwd(), None, set()
    require_store(store)
    file = read_store_file(store, Runtime())
    assert file is not None, store
    config = merge_settings({}, os.environ, file.settings, existing=True)
    location = BookKeeperLocation.parse(config.tier1) if config.tier1.startswith(PREFIX) else None
    scheme = config.tier2.partition("://")[0].lower()
    needed = {
        "arrow": config.catalog_export_interval_s > 0,
        "bookkeeper": location is not None,
        "metrics": config.metrics_port > 0,
        "s3": scheme == "s3",
        "sftp": scheme in {"sftp", "ssh"},
    }
    return Path(store), location, {extra for extra, wanted in needed.items() if wanted}


def _state(check: Check) -> str:
    if check.found:
        return "found"
    if check.needed:
        return "missing"
    return f"not installed (needed for {check.needed_for})" if check.needed_for else "not here"


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check(
        "Python",
        sys.version_info >= PYTHON_MIN,
        True,
        f"{version}, {sys.executable}",
        "install Python 3.11 or newer",
    )


def _disk_space(place: Path, *, needed: bool) -> Check:
    free = shutil.disk_usage(place).free
    detail = f"{format_size(free)} free at {place}"
    return Check(
        "disk space",
        free >= FREE_BYTES_MIN,
        needed,
        detail,
        f"make room: at least {format_size(FREE_BYTES_MIN)}",
    )


def _loopback(*, needed: bool) -> Check:
    try:
        with socket.socket() as probe:
            probe.bind((_LOOPBACK, 0))
    except OSError as error:
        return Check(
            "loopback",
            False,
            needed,
            f"{_LOOPBACK}: {error.strerror}",
            "bring the network interface lo up",
        )
    return Check("loopback", True, needed, f"ports of {_LOOPBACK} can be had")


def _program(name: str, why: str, remedy: str) -> Check:
    path = shutil.which(name)
    return Check(name, path is not None, False, path or "", remedy, why)


def _extra(extra: str, needed_for: str, *, needed: bool) -> Check:
    missing = missing_modules(extra)
    detail = f"without {', '.join(missing)}" if missing else ", ".join(MODULES[extra])
    return Check(
        f"extra {extra}",
        not missing,
        needed,
        detail,
        f"pip install 'segmentstore[{extra}]'",
        needed_for,
    )


def _bookkeeper(*, needed: bool) -> Iterator[Check]:
    """Java, its compiler, Maven, and what is made by means of them."""
    from durablelog.bookkeeper import installation  # noqa: PLC0415

    folder = installation.jars_folder()
    wrong = installation.damaged_jars(folder)
    try:
        classes = installation.gateway_jar()
        compiled = classes.is_file()
        where = str(classes) if compiled else "compiled when a store on BookKeeper is opened first"
    except ConfigError as error:
        compiled, where = False, error.reason
    yield _java("Java", "java", needed=needed)
    yield _java("Java compiler", "javac", needed=needed and not compiled)
    get_jars = f"run `{installation.INSTALL_COMMAND}`"
    try:
        yield Check("Maven", True, needed and bool(wrong), installation.maven())
    except installation.GatewayMissingError as error:
        yield Check(
            "Maven", False, needed and bool(wrong), "jars are fetched by it", _advice(error.reason)
        )
    if folder.is_dir():
        detail = (
            f"{folder}: {wrong[0]}, and {len(wrong) - 1} more"
            if len(wrong) > 1
            else f"{folder}: {wrong[0]}"
            if wrong
            else str(folder)
        )
        yield Check(
            "BookKeeper's jars", not wrong, needed, detail, f"remove {folder}, then {get_jars}"
        )
    else:
        yield Check("BookKeeper's jars", False, needed, f"not in {folder}", get_jars)
    yield Check("gateway classes", compiled, False, where, get_jars)
    yield _class_archives(get_jars, usable=compiled and folder.is_dir())


def _class_archives(remedy: str, *, usable: bool) -> Check:
    """Java itself is asked, and only where that compiles nothing."""
    from durablelog.bookkeeper import installation  # noqa: PLC0415

    piece = "class archives"
    none = Check(piece, False, False, "Java starts faster with them", remedy)
    try:
        folder = installation.archives_folder()
        if not usable or not folder.is_dir():
            return none
        absent = installation.programs_without_archive()
    except installation.GatewayMissingError:
        return none
    detail = (
        f"{folder}: this machine's Java does not take {', '.join(absent)}"
        if absent
        else str(folder)
    )
    return Check(piece, not absent, False, detail, remedy)


def _java(piece: str, name: str, *, needed: bool) -> Check:
    from durablelog.bookkeeper import installation  # noqa: PLC0415

    try:
        path = installation.java() if name == "java" else installation.javac()
    except installation.GatewayMissingError as error:
        return Check(piece, False, needed, "not found", _advice(error.reason))
    version = installation.java_version(path)
    good = version is not None and version >= installation.JAVA_VERSION_MIN
    remedy = (
        f"install Java {installation.JAVA_VERSION_MIN} or newer (Debian: apt-get install "
        "default-jdk-headless), or set JAVA_HOME"
    )
    return Check(piece, good, needed, f"version {version or 'unknown'}, {path}", remedy)


def _advice(reason: str) -> str:
    return reason.rpartition("was not found: ")[2]


def _servers(location: BookKeeperLocation) -> Iterator[Check]:
    """The store's ZooKeeper, one of whose servers is enough, and a gateway that it names."""
    answers = {host: _connects(host) for host in location.hosts}
    for host, answered in answers.items():
        detail = f"{host} {'takes connections' if answered else 'takes no connection'}"
        yield Check(
            "ZooKeeper",
            answered,
            not any(answers.values()),
            detail,
            "start it, or repair the route to it",
        )
    if location.gateway is not None:
        answered = _connects(location.gateway)
        detail = f"{location.gateway} {'takes connections' if answered else 'takes no connection'}"
        yield Check("gateway", answered, True, detail, "start it, or repair the route to it")


def _connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
            return True
    except OSError:
        return False
