"""What lies where in a store's folder, and how the file that makes it a store is written.

The folder's description is in segmentstore/store_files.py, which opens stores; this is what the making of one shares
with it. Blocking.
"""

from __future__ import annotations

import os
import uuid

from segmentstore.config import FILE_NAME, StoreConfig, StoreFile, parse_store_file, render_store_file
from segmentstore.contracts.runtime import Runtime

LOCK_NAME = "lock"


def log_directory(location: str, container_id: int) -> str:
    """Where the file log of a container is."""
    return os.path.join(location, "log", str(container_id))


def new_store_id(runtime: Runtime) -> str:
    """A UUID never drawn before, as text."""
    return str(uuid.UUID(int=runtime.random.getrandbits(128), version=4))


def write_store_file(location: str, store_id: str, config: StoreConfig, runtime: Runtime) -> StoreFile:
    """Make the folder a store, durably; the caller holds its lock. Raises OSError."""
    disk = runtime.disk
    text = render_store_file(store_id, config)
    path = os.path.join(location, FILE_NAME)
    file = disk.open(path + ".new", write=True, create=True)
    try:
        file.truncate(0)
        file.pwrite([text.encode()], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(path + ".new", path)
    disk.sync_directory(location)
    return parse_store_file(text)
