"""C's allocator, in a process that moves much data through buffers of megabytes.

glibc's malloc gives freed memory back to the system once some megabytes of it are at the end of a
heap. Each page that comes back is a page fault. A cold read had one for half of its pages, and they
were nearly half of the kernel's time (docs/decisions/0088).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

KEPT_BYTES: Final = 32 << 20
"""Freed memory that stays at the end of each heap, and the least block with a mapping of its own:
the largest number that glibc takes for it.
"""
ARENAS_MAX: Final = 2
"""Heaps that threads share; glibc would have eight for each core. The interpreter lets one thread
at a time allocate, but for those of RocksDB.
"""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Of glibc's `malloc.h`."""


def tune_malloc() -> None:
    """Have malloc keep the memory that buffers of megabytes free, and use two heaps at most.

    For a program that mostly serves a store; the command line does it. It holds for the whole
    process, which keeps up to 64 MiB more for it. To be called before there are threads: a heap
    that a thread has stays its own. Does nothing without glibc, or where the environment has
    settings of its own for malloc. O(1).
    """
    if not _is_glibc() or _is_set_up(os.environ):
        return
    library = ctypes.CDLL(None)
    for parameter, value in (
        (_TRIM_THRESHOLD, KEPT_BYTES),
        (_MMAP_THRESHOLD, KEPT_BYTES),
        (_ARENA_MAX, ARENAS_MAX),
    ):
        library.mallopt(parameter, value)


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except ValueError:
        return False


def _is_set_up(environment: os._Environ[str]) -> bool:
    tunables = environment.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(name.startswith("MALLOC_") for name in environment)
