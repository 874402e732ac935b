"""What a reader must know of the machine before comparing two runs."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from bench.floor import MIB, preallocated, synced_writes
from bench.loads import percentile
from bench.workspace import file_system_of

_SYNCS = 200
_PIECE_BYTES = 4096


def facts(directory: Path) -> dict[str, object]:
    """Cores, Python, kernel, file system, and the fdatasync of 4 KiB in `directory` right now.

    About 0.1 s on an SSD.
    """
    path = directory / "machine"
    file = preallocated(path, MIB)
    try:
        seconds = sorted(synced_writes(file, MIB, _PIECE_BYTES, _SYNCS))
    finally:
        file.close()
        path.unlink()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "kernel": platform.release(),
        "file_system": file_system_of(directory),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB,
        "fdatasync_p50_ms": round(percentile(seconds, 0.5) * 1e3, 4),
        "fdatasync_p99_ms": round(percentile(seconds, 0.99) * 1e3, 4),
    }
