"""Where the benches work: a throw-away folder on a real disk, under the current folder's var/bench.

A memory file system is refused: an fdatasync there costs nothing and every ratio would be a lie.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})


class BenchError(Exception):
    """A case cannot be measured here; the message says why."""


@contextmanager
def work_folder(parent: Path | None = None) -> Iterator[Path]:
    """A fresh folder under `parent` (default var/bench of the current folder), removed at the end,
    come what may.

    Raises BenchError on a memory file system.
    """
    parent = (Path("var") / "bench" if parent is None else parent).absolute()
    parent.mkdir(parents=True, exist_ok=True)
    kind = file_system_of(parent)
    if kind in _MEMORY_FILE_SYSTEMS:
        message = f"{parent} is on {kind}: run the benches in a folder on a disk"
        raise BenchError(message)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def subfolder(parent: Path, name: str) -> Iterator[Path]:
    """A new folder `name` in `parent`, removed at the end; what earlier work left dirty is written
    out first.
    """
    folder = parent / name
    folder.mkdir()
    # Dirty pages of the round before would otherwise be written during this one and charged to it.
    os.sync()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_store(source: Path, target: Path) -> None:
    """Copy the folder of a store whose process ended without closing it, into a new or an empty
    folder.

    The socket that such a process leaves behind cannot be copied, and stays.
    """

    def sockets(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if (Path(folder) / name).is_socket()]

    shutil.copytree(source, target, dirs_exist_ok=True, ignore=sockets)


def file_system_of(path: Path) -> str:
    """Type of the file system `path` lies on, as the kernel's mount table has it; "unknown" without
    one.
    """
    try:
        table = Path("/proc/mounts").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    best, kind = Path("/"), "unknown"
    resolved = path.resolve()
    for line in table.splitlines():
        _, mount, mounted_kind, *_ = line.split()
        point = Path(mount.replace("\\040", " "))
        if resolved.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, mounted_kind
    return kind


def require_free_bytes(path: Path, needed: int) -> None:
    """Raise BenchError if the disk under `path` has less than `needed` bytes free."""
    free = shutil.disk_usage(path).free
    if free < needed:
        message = f"the case needs {needed >> 20:,} MiB of disk, {free >> 20:,} MiB are free"
        raise BenchError(message)
