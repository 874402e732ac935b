"""Where a running store's socket is, and how a path is used that is longer than the operating
system takes.

A Unix socket's path has at most 107 bytes. A longer one is reached through the open folder it is in
(`/proc/self/fd`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

STORE_SOCKET_NAME: Final = "store.sock"
_PATH_BYTES_MAX: Final = 107


@contextmanager
def socket_address(folder: str) -> Iterator[str]:
    """The address to bind or connect to, valid inside the block.

    Raises OSError if the folder cannot be opened.
    """
    path = Path(folder).absolute() / STORE_SOCKET_NAME
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{STORE_SOCKET_NAME}"
    finally:
        os.close(descriptor)
