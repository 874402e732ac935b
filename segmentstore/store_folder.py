"""What lies where in a store's folder, and how the file that makes it a store is written, read and
undone. Blocking.

- `store.toml`: what was fixed at creation; its presence makes the folder a store;
- `lock`: held by the process that has the store open;
- `log/<id>/`: Tier 1 of each container, where logs are files;
- `cache/`: RocksDB, throw-away;
- `catalog/<id>/`: RocksDB, the metadata of a container that has much of it;
- `tables/`: RocksDB, the indexes of large tables; throw-away;
- `tier2/`: objects, unless `tier2` names another place.
"""

from __future__ import annotations

import os
import pathlib
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress

from durablelog.file.file_log_factory import container_folder
from segmentstore.config import StoreConfig
from segmentstore.contracts.disk import DiskFile, make_directories, remove_if_there
from segmentstore.contracts.errors import ConfigError, NotAStoreError, StoreInUseError
from segmentstore.contracts.lock_owner import owner_of
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.urls import has_secret
from segmentstore.store_file import (
    FILE_NAME,
    StoreFile,
    parse_store_file,
    quoted,
    render_store_file,
)
from tier2.credentials import advice
from tier2.file_urls import printable

LOCK_NAME = "lock"
_NEW = ".new"
_TIER1_LINE = re.compile(r"^tier1[ \t]*=.*$", re.MULTILINE)


def logs_folder(location: str) -> str:
    """Where logs in files are."""
    return os.path.join(location, "log")


def log_directory(location: str, container_id: int) -> str:
    """Where the file log of a container is."""
    return container_folder(logs_folder(location), container_id)


def catalog_directory(location: str, container_id: int) -> str:
    """Where the metadata catalog of a container is."""
    return os.path.join(location, "catalog", str(container_id))


def own_tier2_url(location: str) -> str:
    """Where the objects are unless `tier2` names another place: in the folder."""
    return pathlib.Path(location, "tier2").absolute().as_uri()


def tier2_url(location: str, config: StoreConfig) -> str:
    """Where the objects are, as a URL."""
    return config.tier2 or own_tier2_url(location)


def new_store_id(runtime: Runtime) -> str:
    """A UUID never drawn before, as text."""
    return str(uuid.UUID(int=runtime.random.getrandbits(128), version=4))


def is_left_over(name: str) -> bool:
    """Whether a name in a folder may be of a making of a store that was cut off."""
    return name == LOCK_NAME or (name.startswith(FILE_NAME) and name.endswith(_NEW))


def write_store_file(
    location: str, store_id: str, config: StoreConfig, runtime: Runtime, tag: str
) -> StoreFile:
    """Make the folder a store, durably; what its file says then, which another creator may have
    written before.

    The caller holds the folder's lock, and may have lost it without knowing. So `tag`, which no
    other creator has, names what is being written, and a second creator does not replace what the
    first one relies on. Raises StoreInUseError, OSError.
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
        # Before anything stands in it.
        disk.make_private(written)
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
    """What `store.toml` says; None if the folder is empty or absent.

    Raises NotAStoreError, ConfigError.

    A folder that holds nothing but our own lock (a creation that was interrupted) counts as empty.
    """
    disk = runtime.disk
    path = os.path.join(location, FILE_NAME)
    while True:
        if not disk.exists(path):
            there = _what_is_there(location, runtime)
            # A maker may have come between the checks: store.toml is there before anything that an
            # owner makes.
            if not there or not disk.exists(path):
                foreign = [name for name in there if name != FILE_NAME]
                if foreign:
                    raise NotAStoreError(
                        location, f"the folder has no {FILE_NAME} and is not empty ({foreign[0]})"
                    )
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
    """What is in a folder, if there is one, but for what a making of a store leaves there.

    Raises NotAStoreError: it is none.
    """
    disk = runtime.disk
    if not disk.exists(location):
        return []
    if not disk.is_directory(location) and disk.exists(location):
        raise NotAStoreError(location, "it is not a folder")
    try:
        return [name for name in disk.list_directory(location) if not is_left_over(name)]
    except FileNotFoundError:
        return []


def unmake_store_file(location: str, store_id: str, config: StoreConfig, runtime: Runtime) -> bool:
    """Make the folder one that is no store's yet, unless an opening has begun to use it; whether
    it is none now.

    Raises OSError.

    The file is removed first, then the check of what is there; an opening of the store creates its
    own first and then searches for the file (`keep_store_file`). So one of the two sees the other,
    and puts it back.
    """
    runtime.disk.unlink(os.path.join(location, FILE_NAME))
    if _what_is_there(location, runtime):
        keep_store_file(location, store_id, config, runtime)
        return False
    runtime.disk.sync_directory(location)
    return True


def missing_folders(location: str, runtime: Runtime) -> list[str]:
    """The folders that are not there yet, of a path: the lowest first."""
    missing = []
    while not runtime.disk.exists(location):
        missing.append(location)
        location = os.path.dirname(location)
    return missing


def lock_folder(location: str, runtime: Runtime) -> tuple[Sequence[str], DiskFile]:
    """Make the folder if it is absent, and lock it; which folders were made for that, the lowest
    first. Blocking.

    Raises StoreInUseError, OSError.
    """
    disk = runtime.disk
    for left in (1, 0):
        created = missing_folders(location, runtime)
        make_directories(disk, location)
        try:
            return created, disk.lock(os.path.join(location, LOCK_NAME))
        except BlockingIOError as error:
            raise StoreInUseError(location, owner_of(error)) from None
        except FileNotFoundError:
            # A maker that failed took the folder away again.
            if not left:
                raise
        except BaseException:
            leave_nothing(location, None, created, runtime)
            raise
    raise AssertionError(location)


def leave_nothing(
    location: str, lock: DiskFile | None, created: Sequence[str], runtime: Runtime
) -> None:
    """Take away what a making of a store that failed leaves: its lock, and the folders it made,
    `created`, the lowest first.

    Nothing happens if the folder is a store's, or holds anything else. `lock` is still held, and
    its caller closes it: a process that opened the file meanwhile finds that it has no name any
    more (`Disk.lock`). Blocking; what fails stays, for a folder with a lock alone counts as empty.
    """
    disk = runtime.disk
    with suppress(OSError):
        there = disk.list_directory(location)
        if not all(map(is_left_over, there)):
            return
        if lock is not None and not lock.is_at(os.path.join(location, LOCK_NAME)):
            return
        for name in sorted(there, key=LOCK_NAME.__eq__):
            if name != LOCK_NAME or lock is not None:
                remove_if_there(disk, os.path.join(location, name))
        for folder in created:
            disk.remove_directory(folder)
        disk.sync_directory(os.path.dirname(created[-1]) if created else location)


def keep_store_file(location: str, store_id: str, config: StoreConfig, runtime: Runtime) -> bool:
    """Put the file back if the store's creator has removed it meanwhile; whether it had.

    Raises OSError.
    """
    if runtime.disk.exists(os.path.join(location, FILE_NAME)):
        return False
    write_store_file(location, store_id, config, runtime, new_store_id(runtime))
    return True


def change_tier1(location: str, file: StoreFile, tier1: str, runtime: Runtime) -> StoreFile:
    """Let a store's `store.toml` name another URL of the same store, durably; everything else in it
    stays as it is.

    The caller holds the folder's lock. Raises ConfigError (the line cannot be found: a person's
    move), OSError.
    """
    disk, path = runtime.disk, os.path.join(location, FILE_NAME)
    text = _read(path, runtime)
    line = f"tier1 = {quoted(tier1)}"
    changed, count = _TIER1_LINE.subn(lambda _: line, text, count=1)
    if count != 1 or parse_store_file(changed).settings != {**file.settings, "tier1": tier1}:
        raise ConfigError(
            "tier1", f"{path} has no line of its own for tier1: write there by hand {line}"
        )
    written = f"{path}.{new_store_id(runtime)}{_NEW}"
    target = disk.open(written, write=True, create=True)
    try:
        disk.make_private(written)
        target.pwrite([changed.encode()], 0)
        target.sync()
    finally:
        target.close()
    disk.rename(written, path)
    disk.sync_directory(location)
    return parse_store_file(changed)


def keep_to_ourselves(location: str, file: StoreFile, runtime: Runtime) -> None:
    """Close a store.toml that holds a secret to others, as well as that can be done."""
    if has_secret(str(file.settings["tier2"])):
        with suppress(OSError):
            runtime.disk.make_private(os.path.join(location, FILE_NAME))


def kept_secrets(file: StoreFile | None, tier2_of_node: str | None) -> list[str]:
    """Where a URL with a secret is kept, from times when that was taken, and how to get it out; for
    people.
    """
    kept = {} if file is None else {FILE_NAME: str(file.settings["tier2"])}
    if tier2_of_node is not None:
        kept["the store's node in ZooKeeper"] = tier2_of_node
    return [found for where, url in kept.items() if (found := advice(url, where)) is not None]


def _read(path: str, runtime: Runtime) -> str:
    file = runtime.disk.open(path)
    try:
        return file.pread(0, file.size()).decode()
    finally:
        file.close()


def refuse_log_in_files(location: str, runtime: Runtime) -> None:
    """Raise ConfigError if the folder has the log of this store, whose store.toml says otherwise.

    Blocking. For a log that begins empty at each opening: what is acknowledged would not be seen,
    and its objects in Tier 2 would be deleted as orphans.
    """
    logs = logs_folder(location)
    if runtime.disk.exists(logs):
        detail = (
            f"{FILE_NAME} says that the log is in memory, and {printable(logs)} has the log of "
            f'this store: nothing was changed. Write tier1 = "file" into {FILE_NAME} again'
        )
        raise ConfigError("tier1", detail)


def check_tier2_is_not_misplaced(location: str, runtime: Runtime) -> None:
    """Raise ConfigError if an earlier version put the objects of this store into another folder.

    Blocking.

    It decoded the bytes of a name that is not UTF-8 as text.
    """
    mistaken = os.fsencode(location).decode("utf-8", "replace")
    if mistaken == location:
        return
    own, other = os.path.join(location, "tier2"), os.path.join(mistaken, "tier2")
    if not runtime.disk.exists(own) and runtime.disk.exists(other):
        detail = (
            f"an earlier version put the objects of {printable(location)} into {printable(other)}"
        )
        raise ConfigError(
            "tier2", f"{detail}: copy that folder to {printable(own)}, and open the store again"
        )
