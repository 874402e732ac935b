"""RocksDB's threads.

They belong to the process, not to a database, and a forked child has none of them: what it begins
there waits for ever. So RocksDB is used by one process of a family, the first that does.
"""

from __future__ import annotations

import ctypes
from typing import Final

from segmentstore.contracts import forks
from segmentstore.contracts.serial_thread import SerialThread

_THREADS: Final = 3
"""For flushes, for compactions, and a timer. A process has them from its first database on, but the
timer: that ends with the last database.
"""

_birth: forks.Birth | None = None
"""Of the process that used RocksDB first."""
_has_threads = False
"""Those for flushes and compactions."""


def rocksdb_birth() -> forks.Birth:
    """The process that may use RocksDB: this one, if none of its ancestors has used it.

    Called before each use that may be the first.
    """
    global _birth  # noqa: PLW0603 - of a process there is one
    _birth = _birth or forks.Birth()
    return _birth


def check_threads(purpose: str) -> None:
    """Raise TierUnavailableError where the system would not begin RocksDB's threads, before a
    database is opened: RocksDB ends the process there.

    Some 0.5 ms for the first database of a process, and 0.2 ms later. It asks for twice as many:
    one that has ended counts for a moment.
    """
    global _has_threads  # noqa: PLW0603 - of a process
    begun: list[SerialThread] = []
    try:
        for _ in range(2 if _has_threads else 2 * _THREADS):
            begun.append(SerialThread(purpose))  # noqa: PERF401 - those before a failure are ended
    finally:
        for each in begun:
            each.shutdown()
    _has_threads = True


def leave_to_parent(owner: object) -> None:
    """In a forked child, for an owner of a database (`forks.in_child`): a database that is
    collected, and RocksDB at the child's exit, would wait for its threads.
    """
    forks.keep_for_ever(owner)
    library = ctypes.CDLL(None)
    # Runs before whatever was registered before it: C's exit ends here, after Python has ended in
    # good order.
    library.on_exit(library._exit, None)  # noqa: SLF001 - it is called that
