"""What lies where in a store's folder, and how the file that makes it a store is written, read and taken back.

The folder's description is in segmentstore/store_files.py, which opens stores; this is what the making of one shares
with it. Blocking.
"""

from __future__ import annotations

import os
import uuid

from segmentstore.config import FILE_NAME, StoreConfig, StoreFile, parse_store_file, render_store_file
from segmentstore.contracts.disk import remove_if_there
from segmentstore.contracts.errors import ConfigError, NotAStoreError, StoreInUseError
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
    being written, and who comes second does not replace what the first one goes by. Raises StoreInUseError, OSError.
    """
    disk = runtime.disk
    text = render_store_file(store_id, config)
    path = os.path.join(location, FILE_NAME)
    written = f"{path}.{tag}{_NEW}"
    for name in disk.list_directory(location):
        if name != LOCK_NAME and is_left_over(name):
            remove_if_there(disk, os.path.join(location, name))
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
    except FileNotFoundError:
        # Another maker tidied up what it took for left over: the lock is not ours any more.
        raise StoreInUseError(location, "another process is making the store") from None
    remove_if_there(disk, written)
    disk.sync_directory(location)
    return parse_store_file(text)


def read_store_file(location: str, runtime: Runtime) -> StoreFile | None:
    """What `store.toml` says; None if the folder is empty or absent. Raises NotAStoreError, ConfigError.

    A folder that holds nothing but our own lock (a creation that was interrupted) counts as empty.
    """
    disk = runtime.disk
    path = os.path.join(location, FILE_NAME)
    while True:
        if not disk.exists(path):
            there = _what_is_there(location, runtime)
            # A maker may have come between the looks: store.toml is there before anything that an owner makes.
            if not there or not disk.exists(path):
                foreign = [name for name in there if name != FILE_NAME]
                if foreign:
                    raise NotAStoreError(location, f"the folder has no {FILE_NAME} and is not empty ({foreign[0]})")
                return None
        try:
            file = disk.open(path)
        except FileNotFoundError:
            continue  # its maker has taken it back: what is the folder now?
        try:
            return parse_store_file(file.pread(0, file.size()).decode())
        except UnicodeDecodeError:
            raise ConfigError(FILE_NAME, "not UTF-8 text") from None
        finally:
            file.close()


def _what_is_there(location: str, runtime: Runtime) -> list[str]:
    """What is in a folder, if there is one, but for what a making of a store leaves there. Raises NotAStoreError: it is none."""
    disk = runtime.disk
    if not disk.exists(location):
        return []
    if not disk.is_directory(location) and disk.exists(location):
        raise NotAStoreError(location, "it is not a folder")
    try:
        return [name for name in disk.list_directory(location) if not is_left_over(name)]
    except FileNotFoundError:
        return []


def unmake_store_file(location: str, store_id: str, config: StoreConfig, runtime: Runtime) -> None:
    """Make the folder one that is no store's yet, unless somebody has begun to use it. Raises OSError.

    First away with the file, then the look at what is there, while who opens the store makes its own first and then looks for
    the file (`keep_store_file`): so one of the two sees the other, and puts it back.
    """
    runtime.disk.unlink(os.path.join(location, FILE_NAME))
    if _what_is_there(location, runtime):
        keep_store_file(location, store_id, config, runtime)
    else:
        runtime.disk.sync_directory(location)


def keep_store_file(location: str, store_id: str, config: StoreConfig, runtime: Runtime) -> None:
    """Put the file back if who made the store has taken it away meanwhile. Raises OSError."""
    if not runtime.disk.exists(os.path.join(location, FILE_NAME)):
        write_store_file(location, store_id, config, runtime, new_store_id(runtime))


def _read(path: str, runtime: Runtime) -> str:
    file = runtime.disk.open(path)
    try:
        return file.pread(0, file.size()).decode()
    finally:
        file.close()
