"""The floor: what the disk gives to a plain loop of write + fdatasync, or of preads, with nothing
of ours in between.

The file is preallocated by writing zeros and then recycled. Extending a file, or writing into
extents that were never written, makes each fdatasync pay for file system metadata and would make
the floor look slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from segmentstore.contracts.disk import DiskFile, OsDisk

MIB = 1 << 20
FILE_BYTES = 256 * MIB
"""Default size of a preallocated file; large enough that no device cache holds all of it."""


def preallocated(path: Path, length: int = FILE_BYTES) -> DiskFile:
    """Make `path` with `length` bytes of written zeros, durable, and open it for writing.

    About 1 s a GiB.
    """
    disk = OsDisk()
    file = disk.open(str(path), write=True, create=True)
    zeros = bytes(MIB)
    for offset in range(0, length, MIB):
        file.pwrite([zeros[: min(MIB, length - offset)]], offset)
    file.sync()
    disk.sync_directory(str(path.parent))
    return file


def synced_writes(file: DiskFile, file_bytes: int, piece_bytes: int, count: int) -> list[float]:
    """Seconds of each of `count` write + fdatasync of `piece_bytes`, one behind the other, wrapping
    at the end.
    """
    piece = os.urandom(piece_bytes)
    seconds = []
    offset = 0
    for _ in range(count):
        if offset + piece_bytes > file_bytes:
            offset = 0
        begun = time.perf_counter()
        file.pwrite([piece], offset)
        file.sync()
        seconds.append(time.perf_counter() - begun)
        offset += piece_bytes
    return seconds


def synced_write_rate(
    directory: Path, piece_bytes: int, total_bytes: int, file_bytes: int = FILE_BYTES
) -> float:
    """Bytes per second of sequential write + fdatasync in pieces of `piece_bytes`, over about
    `total_bytes`.
    """
    file_bytes = max(file_bytes, piece_bytes)
    file = preallocated(directory / "floor", file_bytes)
    try:
        count = max(1, total_bytes // piece_bytes)
        return count * piece_bytes / sum(synced_writes(file, file_bytes, piece_bytes, count))
    finally:
        file.close()


def evict(paths: Sequence[Path]) -> None:
    """Ask the kernel to forget the pages of `paths`, so that the next read goes to the disk.

    Only clean pages go: the files must have been synced. Without the call (not Linux) nothing
    happens.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def files_under(directory: Path, smallest: int = 1) -> list[Path]:
    """Regular files below `directory` of at least `smallest` bytes, sorted by path."""
    return sorted(
        path for path in directory.rglob("*") if path.is_file() and path.stat().st_size >= smallest
    )


def read_rate(paths: Sequence[Path], piece_bytes: int) -> tuple[int, float]:
    """Bytes and seconds of reading `paths` whole, one after another, in preads of `piece_bytes`."""
    total = 0
    begun = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            offset = 0
            while data := os.pread(descriptor, piece_bytes, offset):
                offset += len(data)
            total += offset
        finally:
            os.close(descriptor)
    return total, time.perf_counter() - begun
