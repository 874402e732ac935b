"""MemoryKeyStore: a complete store of keys in memory, for tests and the simulated world.

Its files are on the Disk seam, so that a simulated disk loses, tears and refuses them. A flush
writes the changes since the last one into a file of its own, a *run*, then the list of runs beside
the old one, and renames. Rules of this file:

- what a run or the list holds is checked whole, by its checksum, when the store is opened;
- the list is there before the first run is. A run is synced, and so is its name, before the list
  has it; it never changes after that;
- from RUNS_MAX runs on, one with everything takes their place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from sortedcontainers import SortedDict

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import (
    PORTION_BYTES_MAX,
    CheckpointFile,
    KeyBatch,
    KeyPair,
    KeyPortion,
    KeyStoreCorruptError,
)
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.threaded_key_store import LOCK_NAME, ThreadedKeyStore
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.disk import Disk, remove_if_there
from segmentstore.contracts.runtime import Runtime

RUNS_MAX: Final = 8
LIST_NAME: Final = "CURRENT"

_NEW_SUFFIX = ".new"
_RUN_SUFFIX = ".run"
_CHECKSUM = struct.Struct(">I")
_NONE = (1 << 32) - 1
"""Of a deletion, in the place of the value's length."""

Change = tuple[bytes, bytes | None, bytes]
"""As KeyBatch gives them."""
Keys = SortedDict[bytes, bytes]


class MemoryKeyStore(ThreadedKeyStore):
    """A store of keys in `directory`, which belongs to it alone. All of it is in memory."""

    def __init__(self, directory: str, identity: KeyStoreIdentity, runtime: Runtime) -> None:
        super().__init__(directory, identity, runtime)
        self._guard = runtime.lock()
        """Of the keys: reads have other threads than changes."""
        self._keys: Keys = SortedDict()
        self._unflushed: list[Change] = []
        self._runs: list[CheckpointFile] = []
        self._next_run = 1

    def _open_files(self) -> bool:
        names = set(self._disk.list_directory(self._directory)) - {LOCK_NAME}
        if LIST_NAME not in names:
            if any(name.endswith(_RUN_SUFFIX) for name in names):
                raise KeyStoreCorruptError(self._directory, f"{LIST_NAME} is missing")
            self._write_list(self._directory, [])
            return False
        self._open_checkpoint()
        listed = [run.name for run in self._runs]
        for name in names - {LIST_NAME, *listed}:
            # Of a flush that did not come to its end, or replaced by one that did.
            remove_if_there(self._disk, f"{self._directory}/{name}")
        self._next_run = 1 + max((int(name.partition(".")[0]) for name in listed), default=0)
        return listed != []

    def _open_checkpoint(self) -> None:
        for name in self._content_of(LIST_NAME).decode().split():
            content = self._content_of(name)
            _make(self._keys, _decode_changes(content))
            checksum = crc32c(content + _CHECKSUM.pack(crc32c(content)))
            self._runs.append(CheckpointFile(name, len(content) + _CHECKSUM.size, checksum))

    def _close_files(self) -> None:
        self._keys = SortedDict()
        self._unflushed.clear()

    # --- keys -------------------------------------------------------------------------------------

    def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._guard:
            return [self._keys.get(key) for key in keys]

    def _find_last(self, ranges: Sequence[StoreKeyRange]) -> list[KeyPair | None]:
        with self._guard:
            return [_last(self._keys, keys) for keys in ranges]

    def _scan_each(self, ranges: Sequence[StoreKeyRange], limit: int) -> list[KeyPortion]:
        portions, room = [], PORTION_BYTES_MAX
        with self._guard:
            for keys in ranges:
                portion, room = _portion(self._keys, keys, limit, room)
                limit -= len(portion.pairs)
                portions.append(portion)
        return portions

    def _make_snapshot(self) -> Keys:
        return SortedDict(self._keys)

    def _scan_snapshot(self, snapshot: Keys, keys: StoreKeyRange, limit: int) -> KeyPortion:
        return _portion(snapshot, keys, limit, PORTION_BYTES_MAX)[0]

    def _write(self, batch: KeyBatch, own: dict[bytes, bytes]) -> None:
        changes = [*batch, *((key, value, b"") for key, value in own.items())]
        with self._guard:
            _make(self._keys, changes)
        self._unflushed += changes

    # --- files ------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if not self._unflushed:
            return
        merging = len(self._runs) >= RUNS_MAX
        changes = [(*pair, b"") for pair in self._keys.items()] if merging else self._unflushed
        run = self._write_file(_run_name(self._next_run), _encode_changes(changes))
        runs = [run] if merging else [*self._runs, run]
        self._next_run += 1
        self._disk.sync_directory(self._directory)
        self._write_list(self._directory, runs)
        old, self._runs, self._unflushed = self._runs, runs, []
        for file in old if merging else ():
            self._disk.unlink(f"{self._directory}/{file.name}")

    def _checkpoint(self, directory: str) -> tuple[CheckpointFile, ...]:
        for run in self._runs:
            self._disk.link(f"{self._directory}/{run.name}", f"{directory}/{run.name}")
        listed = self._write_list(directory, self._runs)
        # Of what is there, as of RocksDB's files.
        runs = [_checksummed(self._disk, directory, run.name) for run in self._runs]
        return (*runs, listed)

    def _write_list(self, directory: str, runs: Sequence[CheckpointFile]) -> CheckpointFile:
        path = f"{directory}/{LIST_NAME}"
        text = "".join(f"{run.name}\n" for run in runs).encode()
        written = self._write_file(LIST_NAME + _NEW_SUFFIX, text, directory)
        self._disk.rename(path + _NEW_SUFFIX, path)
        self._disk.sync_directory(directory)
        return written._replace(name=LIST_NAME)

    def _write_file(self, name: str, content: bytes, directory: str = "") -> CheckpointFile:
        path = f"{directory or self._directory}/{name}"
        whole = content + _CHECKSUM.pack(crc32c(content))
        file = self._disk.open(path, write=True, create=True)
        try:
            # What is there is written over, as RocksDB does.
            if file.size():
                file.truncate(0)
            file.pwrite([whole], 0)
            file.sync()
        finally:
            file.close()
        return CheckpointFile(name, len(whole), crc32c(whole))

    def _content_of(self, name: str) -> bytes:
        return _read_checked(self._disk, self._directory, name)


def _read_checked(disk: Disk, directory: str, name: str) -> bytes:
    """What a file holds."""
    file = disk.open(f"{directory}/{name}")
    try:
        whole = file.pread(0, file.size())
    finally:
        file.close()
    content, checksum = whole[: -_CHECKSUM.size], whole[-_CHECKSUM.size :]
    if checksum != _CHECKSUM.pack(crc32c(content)):
        raise KeyStoreCorruptError(directory, f"{name} has another checksum")
    return content


def _checksummed(disk: Disk, directory: str, name: str) -> CheckpointFile:
    file = disk.open(f"{directory}/{name}")
    try:
        whole = file.pread(0, file.size())
    finally:
        file.close()
    return CheckpointFile(name, len(whole), crc32c(whole))


def _make(there: Keys, changes: Iterable[Change]) -> None:
    for key, value, end in changes:
        if value is not None:
            there[key] = value
        elif end:
            for found in list(there.irange(key, end, inclusive=(True, False))):
                del there[found]
        else:
            there.pop(key, None)


def _run_name(number: int) -> str:
    return f"{number:08}{_RUN_SUFFIX}"


def _last(there: Keys, keys: StoreKeyRange) -> KeyPair | None:
    for key in there.irange(keys.start, keys.end, inclusive=(True, False), reverse=True):
        return key, there[key]
    return None


def _portion(there: Keys, keys: StoreKeyRange, limit: int, room: int) -> tuple[KeyPortion, int]:
    """At most `limit` pairs, and what they leave of `room`, in bytes.

    A pair that is larger than all room there ever is takes all of it.
    """
    if limit <= 0 or room <= 0:
        return KeyPortion([], keys), room
    pairs: list[KeyPair] = []
    for key in there.irange(keys.start, keys.end, inclusive=(True, False)):
        value = there[key]
        size = len(key) + len(value)
        if len(pairs) == limit or room < min(size, PORTION_BYTES_MAX):
            return KeyPortion(pairs, StoreKeyRange(key, keys.end)), room
        pairs.append((key, value))
        room -= size
    return KeyPortion(pairs, None), room


def _encode_changes(changes: Iterable[Change]) -> bytes:
    parts: list[bytes] = []
    for key, value, end in changes:
        more = end if value is None else value
        head = struct.pack(">III", len(key), _NONE if value is None else len(value), len(end))
        parts += (head, key, more)
    return b"".join(parts)


def _decode_changes(content: bytes) -> Iterable[Change]:
    position = 0
    while position < len(content):
        key_length, length, end_length = struct.unpack_from(">III", content, position)
        position += 12
        key = content[position : position + key_length]
        position += key_length
        more = content[position : position + (end_length if length == _NONE else length)]
        position += len(more)
        yield (key, None, more) if length == _NONE else (key, more, b"")
