"""RocksDB and forked children.

RocksDB's threads belong to the process, not to a database, and a forked child has none of them:
what it begins there waits for ever. So RocksDB is used by one process of a family, the first that
does.
"""

from __future__ import annotations

import ctypes

from segmentstore.contracts import forks

_birth: forks.Birth | None = None
"""Of the process that used RocksDB first."""


def rocksdb_birth() -> forks.Birth:
    """The process that may use RocksDB: this one, if none of its ancestors has used it.

    Called before each use that may be the first.
    """
    global _birth  # noqa: PLW0603 - of a process there is one
    _birth = _birth or forks.Birth()
    return _birth


def leave_to_parent(owner: object) -> None:
    """In a forked child, for an owner of a database (`forks.in_child`): a database that is
    collected, and RocksDB at the child's exit, would wait for its threads.
    """
    forks.keep_for_ever(owner)
    library = ctypes.CDLL(None)
    # Runs before whatever was registered before it: C's exit ends here, after Python has ended in
    # good order.
    library.on_exit(library._exit, None)  # noqa: SLF001 - it is called that
