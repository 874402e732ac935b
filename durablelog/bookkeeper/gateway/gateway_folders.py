"""The folders of gateways, in the system's temporary one: each has its maker's name, and goes with
it.

A gateway clears up when it ends, or its parent does. Killed together with its parent it cannot: the
process that creates the next folder removes those without a process. A name says which process made
the folder: where its number means it, the number, and its start. The temporary folder may be shared
by containers and by hosts, whose processes cannot be seen from here: the host's boot is part of the
name. Folders of another boot are removed only where that can only be an earlier boot of this host.
They must be older than this boot, on a file system that no two hosts can have at a time. Elsewhere
it is left to the system's cleaning of the temporary folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from segmentstore.contracts.errors import ConfigError
from segmentstore.contracts.file_systems import is_of_one_host

_PREFIX: Final = "segmentstore-gateway-"
_NAME: Final = re.compile(_PREFIX + r"([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-\w+")
_PATH_BYTES_MAX: Final = 107 - 8 - 5
"""A Unix socket's path has room for 107 bytes: mkdtemp adds 8, the socket's own name is 5.

A longer name says no maker.
"""
_PROC: Final = Path("/proc")


class _Place(NamedTuple):
    boot: str
    """Of one host."""
    namespace: str
    """Of processes, there."""


def make_folder() -> Path:
    """A new folder of this process, for its user alone; those of processes that have ended are
    removed. Raises OSError, ConfigError (no room for a socket's path).
    """
    where, prefix = Path(tempfile.gettempdir()), _prefix()
    if len(os.fsencode(where / prefix)) > _PATH_BYTES_MAX:
        prefix = _PREFIX
    if len(os.fsencode(where / prefix)) > _PATH_BYTES_MAX:
        raise ConfigError(
            "tier1",
            f"the gateway to BookKeeper has its socket in the temporary folder, and {where} is too"
            f" long for that: at most {_PATH_BYTES_MAX - len(_PREFIX) - 1} bytes. Set TMPDIR to a"
            " shorter one",
        )
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    _sweep(where)
    return folder


def _prefix() -> str:
    """Where the system does not say how processes are distinguished, a folder says nothing, and is
    never swept.
    """
    here, process = _place(), os.getpid()
    start = _start(process)
    if here is None or start is None:
        return _PREFIX
    return f"{_PREFIX}{here.boot}-{here.namespace}-{process:x}-{start:x}-"


def _sweep(where: Path) -> None:
    here = _place()
    if here is None:
        return
    booted_s = _booted_s() if is_of_one_host(str(where), _PROC) else None
    for folder in where.glob(_PREFIX + "*"):
        maker = _NAME.fullmatch(folder.name)
        if maker is None:
            continue
        try:
            status = folder.lstat()
        except FileNotFoundError:
            continue
        if maker[1] == here.boot:
            left = maker[2] == here.namespace and _start(int(maker[3], 16)) != int(maker[4], 16)
        else:
            # Containers may report a boot of their own: theirs are not from before this one.
            left = booted_s is not None and max(status.st_mtime, status.st_ctime) < booted_s
        if left and status.st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)


def _booted_s() -> float | None:
    """When the system was started, by the wall clock; None if it does not say."""
    try:
        text = (_PROC / "stat").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^btime (\d+)$", text, re.MULTILINE)
    return float(found[1]) if found is not None else None


def _place() -> _Place | None:
    """Where process numbers mean the same; None if that is unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_bytes()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None
    return _Place(hashlib.blake2b(boot.strip(), digest_size=6).hexdigest(), f"{namespace:x}")


def _start(process: int) -> int | None:
    """When a process was started, in the system's ticks; None if there is none."""
    try:
        text = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in it may hold anything, brackets too.
    return int(text.rpartition(")")[2].split()[19])
