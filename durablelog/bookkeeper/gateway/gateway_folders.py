"""The folders of gateways, in the system's temporary one: each has its maker's name, and goes with
it.

A gateway clears up when it ends, or its parent does. Killed together with its parent it cannot:
whoever makes the next folder removes what belongs to nobody. A name says which process made the
folder: where its number means it, the number, and its start. The temporary folder may be shared by
containers and by hosts, whose processes cannot be seen from here: the host's boot is part of the
name, and what is left from before one is for whoever clears up the temporary folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "segmentstore-gateway-"
_NAME: Final = re.compile(_PREFIX + r"([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)-\w+")
_PATH_BYTES_MAX: Final = 92
"""A Unix socket's path has room for 107 bytes: mkdtemp adds 8, the socket's own name is 5.

A longer name says no maker.
"""
_PROC: Final = Path("/proc")


def make_folder() -> Path:
    """A new folder of this process, for its user alone; those of processes that are gone are
    removed. Raises OSError.
    """
    where, prefix = Path(tempfile.gettempdir()), _prefix()
    if len(os.fsencode(where / prefix)) > _PATH_BYTES_MAX:
        prefix = _PREFIX
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    _sweep(where)
    return folder


def _prefix() -> str:
    """Where the system does not tell how processes are told apart, a folder says nothing, and is
    never swept.
    """
    here, process = _place(), os.getpid()
    start = _start(process)
    if not here or start is None:
        return _PREFIX
    return f"{_PREFIX}{here}-{process:x}-{start:x}-"


def _sweep(where: Path) -> None:
    here = _place()
    for folder in where.glob(_PREFIX + "*"):
        maker = _NAME.fullmatch(folder.name)
        if maker is None or maker[1] != here:
            continue
        try:
            ours = folder.lstat().st_uid == os.getuid()
        except FileNotFoundError:
            continue
        if ours and _start(int(maker[2], 16)) != int(maker[3], 16):
            shutil.rmtree(folder, ignore_errors=True)


def _place() -> str:
    """Where process numbers mean the same: one boot of one host, and one namespace there.

    Empty if that is not told.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_bytes()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return hashlib.blake2b(b"%b %d" % (boot.strip(), namespace), digest_size=8).hexdigest()


def _start(process: int) -> int | None:
    """When a process was started, in the system's ticks; None if there is none."""
    try:
        text = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in it may hold anything, brackets too.
    return int(text.rpartition(")")[2].split()[19])
