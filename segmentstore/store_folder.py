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
_NEW = ".new"


def log_directory(location: str, container_id: int) -> str:
    """Where the file log of a container is."""
    return os.path.join(location, "log", str(container_id))


def new_store_id(runtime: Runtime) -> str:
    """A UUID never drawn before, as text."""
    return str(uuid.UUID(int=runtime.random.getrandbits(128), version=4))


def is_left_over(name: str) -> bool:
    """Whether a name in a folder may be of a making of a store that was cut off."""
    return name == LOCK_NAME or (name.startswith(FILE_NAME) and name.endswith(_NEW))


def write_store_file(location: str, store_id: str, config: StoreConfig, runtime: Runtime, tag: str) -> StoreFile:
    """Make the folder a store, durably; what its file says then, which another maker may have written before us.

    The caller holds the folder's lock, and may have lost it without knowing: so `tag`, which no other maker has, names what is
    being written, and who comes second does not replace what the first one goes by. Raises OSError.
    """
    disk = runtime.disk
    text = render_store_file(store_id, config)
    path = os.path.join(location, FILE_NAME)
    written = f"{path}.{tag}{_NEW}"
    for name in disk.list_directory(location):
        if name != LOCK_NAME and is_left_over(name):
            disk.unlink(os.path.join(location, name))
    file = disk.open(written, write=True, create=True)
    try:
        file.pwrite([text.encode()], 0)
        file.sync()
    finally:
        file.close()
    try:
        disk.link(written, path)
    except FileExistsError:
        text = _read(path, runtime)
    disk.unlink(written)
    disk.sync_directory(location)
    return parse_store_file(text)


def _read(path: str, runtime: Runtime) -> str:
    file = runtime.disk.open(path)
    try:
        return file.pread(0, file.size()).decode()
    finally:
        file.close()
