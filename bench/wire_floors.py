"""The floor of the wire cases, taken right before each round: the disk alone.

One write with fdatasync at a time, of 4 KiB and of 1 MiB.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.child import Measured
from bench.floor import MIB, preallocated, synced_writes
from bench.loads import percentile

_SMALL: Final = 4096
_SMALL_SYNCS: Final = 300
_LARGE_SYNCS: Final = 64


def disk_floor(directory: Path) -> Measured:
    """`bytes_per_s` of 1 MiB writes with fdatasync, and latencies of such writes of 4 KiB."""
    path = directory / "floor"
    length = _LARGE_SYNCS * MIB
    file = preallocated(path, length)
    try:
        large = synced_writes(file, length, MIB, _LARGE_SYNCS)
        small = sorted(synced_writes(file, length, _SMALL, _SMALL_SYNCS))
    finally:
        file.close()
        path.unlink()
    return {
        "bytes_per_s": length / sum(large),
        "p50_ms": percentile(small, 0.5) * 1e3,
        "p99_ms": percentile(small, 0.99) * 1e3,
        "max_ms": small[-1] * 1e3,
    }
