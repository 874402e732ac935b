"""RocksDbKeyStore: a store of keys in a RocksDB of its own (adapter).

How RocksDB is used, and why:

- no log of its own: what is in it can be made again. A flush writes all batches since the last one
  into one file and then names that in the manifest. RocksDB flushes by itself between two batches
  only, so what is there after a crash is always a prefix of the batches.
- most of its calls hold the interpreter's lock: writes, opening, checkpoints, iterators. Flushes,
  gets of a list and compactions do not. So a flush precedes a write that RocksDB would have to wait
  for, and each checkpoint, whose files are linked here if nothing changes them meanwhile. RocksDB
  may not slow writes down; a flush that finds too many runs compacts them.
- universal compaction: few runs for each look-up, and a file is rewritten rarely, since files are
  uploaded when they are new. Runs have filters, for many look-ups find nothing.
- memory has bounds: CACHE_BYTES for blocks, indexes and filters, WRITE_BUFFER_BYTES and one batch
  for what is not flushed, twice during a flush.
- checksums of all blocks are verified. An iterator that meets a damaged block just ends: its status
  is asked for at each end.
- a snapshot is an iterator that is kept: it is of the moment when it was made. (Iterators of
  rocksdict's snapshots are of the present.) A database is closed when its last iterator is freed,
  so none may be left in a traceback.
- options are given for the column family, too: rocksdict would take those of the file it finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import (
    PORTION_BYTES_MAX,
    CheckpointFile,
    KeyBatch,
    KeyPair,
    KeyPortion,
    KeyStoreCorruptError,
    KeyStoreError,
    KeyStoreFullError,
    KeyStoreInUseError,
)
from durablelog.catalog.key_store_records import KeyStoreIdentity
from durablelog.catalog.threaded_key_store import ThreadedKeyStore
from segmentstore.contracts import forks
from segmentstore.contracts.checksum import crc32c
from segmentstore.contracts.disk import Disk, remove_content
from segmentstore.contracts.rocksdb_process import check_threads, leave_to_parent, rocksdb_birth
from segmentstore.contracts.runtime import Runtime

CACHE_BYTES: Final = 8 * 1024 * 1024
WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
RUNS_MAX: Final = 24
"""Sorted runs that a look-up may have to search."""

_COMPACTION_RUNS = 6
"""From which on RocksDB compacts by itself."""
_FILE_BYTES = 32 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_NEVER = 1 << 30
_SMALL_FILES = ("CURRENT", "MANIFEST-")
_TABLE_SUFFIX = ".sst"
_PREFIX = "segmentstore-"
_MEMORY = "/dev/shm"  # noqa: S108 - each use makes a directory of its own in it
_ERRORS: Final = (
    ("No space left on device", KeyStoreFullError),
    ("Disk quota exceeded", KeyStoreFullError),
    ("/LOCK: ", KeyStoreInUseError),
    ("Corruption: ", KeyStoreCorruptError),
    ("Invalid argument: ", KeyStoreCorruptError),
    ("Not implemented: ", KeyStoreCorruptError),
    ("No such file or directory", KeyStoreCorruptError),
)
"""What RocksDB's messages mean: the first that is in one."""


class RocksDbKeyStore(ThreadedKeyStore):
    """A store of keys in `directory`, which belongs to it alone."""

    def __init__(
        self,
        directory: str,
        identity: KeyStoreIdentity,
        runtime: Runtime,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        super().__init__(directory, identity, runtime)
        self._cache_bytes = cache_bytes
        self._database: Rdict | None = None
        self._paths = _RocksDbPaths(directory)
        self._tables: dict[str, CheckpointFile] = {}
        """Of the last checkpoint: they need not be read again."""
        forks.in_child(self, leave_to_parent)

    def _error_of(self, error: Exception) -> KeyStoreError | None:
        return _rocksdb_error(self._directory, error) or super()._error_of(error)

    def _open_files(self) -> bool:
        rocksdb_birth().check()
        check_threads("keys")
        names = self._disk.list_directory(self._directory)
        new = not any(name.startswith(_SMALL_FILES) or _is_table(name) for name in names)
        if not new and "CURRENT" not in names:
            raise KeyStoreCorruptError(self._directory, "CURRENT is missing")
        options = _options(self._cache_bytes, create=new)
        path = self._paths.path(self._directory)
        self._database = Rdict(path, options, {"default": options})
        writing = WriteOptions()
        writing.disable_wal = True  # type: ignore[method-assign, assignment]
        self._database.set_write_options(writing)
        # Nothing at all: its maker died before the first flush.
        return not new and self._scan_each([StoreKeyRange(b"", b"\xff")], 1)[0].pairs != []

    def _open_checkpoint(self) -> None:
        rocksdb_birth().check()
        check_threads("keys")
        names = self._disk.list_directory(self._directory)
        files = [name for name in names if name.startswith(_SMALL_FILES) or _is_table(name)]
        options = _options(self._cache_bytes, create=False)
        try:
            self._database = Rdict(
                self._paths.links(self._directory, files),
                options,
                {"default": options},
                AccessType.read_only(),
            )
        finally:
            # All files are open by then. A process that is killed leaves no links.
            self._paths.close()

    def _close_files(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            try:
                # RocksDB would do it while it is closed, with the interpreter's lock held.
                database.flush()
            except Exception:  # noqa: BLE001, S110 -- nothing was promised of it
                pass
            try:
                database.close()
            except Exception:  # noqa: BLE001, S110 -- that it could not flush; it is closed
                pass
        self._paths.close()

    @property
    def _open_database(self) -> Rdict:
        assert self._database is not None
        return self._database

    def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        # Always a list, even of one key: only these gets release the interpreter's lock.
        values = self._open_database.get(list(keys))
        assert isinstance(values, list)
        return values

    def _find_last(self, ranges: Sequence[StoreKeyRange]) -> list[KeyPair | None]:
        iterator = self._open_database.iter()
        try:
            return [_last(iterator, keys) for keys in ranges]
        finally:
            del iterator

    def _scan_each(self, ranges: Sequence[StoreKeyRange], limit: int) -> list[KeyPortion]:
        portions, room = [], PORTION_BYTES_MAX
        # One for all ranges: it is of the moment when it was made.
        iterator = self._open_database.iter()
        try:
            for keys in ranges:
                portion, room = _portion(iterator, keys, limit, room)
                limit -= len(portion.pairs)
                portions.append(portion)
            return portions
        finally:
            del iterator

    def _make_snapshot(self) -> RdictIter:
        return self._open_database.iter()

    def _scan_snapshot(self, snapshot: RdictIter, keys: StoreKeyRange, limit: int) -> KeyPortion:
        try:
            return _portion(snapshot, keys, limit, PORTION_BYTES_MAX)[0]
        finally:
            del snapshot

    def _write(self, batch: KeyBatch, own: dict[bytes, bytes]) -> None:
        database = self._open_database
        if (database.property_int_value("rocksdb.cur-size-all-mem-tables") or 0) + batch.size > (
            WRITE_BUFFER_BYTES
        ):
            self._flush()
        changes = WriteBatch(raw_mode=True)
        for key, value, end in batch:
            if value is not None:
                changes.put(key, value)
            elif end:
                changes.delete_range(key, end)
            else:
                changes.delete(key)
        for key, value in own.items():
            changes.put(key, value)
        database.write(changes)

    def _flush(self) -> None:
        database = self._open_database
        # One whose files were deleted goes on answering until it needs a new one.
        if not self._disk.exists(f"{self._directory}/CURRENT"):
            raise KeyStoreCorruptError(self._directory, "CURRENT is missing")
        database.flush()
        if (database.property_int_value("rocksdb.num-files-at-level0") or 0) > RUNS_MAX:
            database.compact_range(None, None)

    def _checkpoint(self, directory: str) -> tuple[CheckpointFile, ...]:
        if not self._link_files(directory):
            remove_content(self._disk, directory)
            self._disk.remove_directory(directory)
            path = self._paths.path(directory)
            Checkpoint(self._open_database).create_checkpoint(path)
        files = []
        live = self._open_database.live_files()
        written = {str(file["name"]).lstrip("/"): int(file["size"]) for file in live}
        for name in self._disk.list_directory(directory):
            path = f"{directory}/{name}"
            if not name.startswith(_SMALL_FILES) and not _is_table(name):
                self._disk.unlink(path)
                continue
            size = self._disk.size(path)
            if size != written.get(name, size):
                # What is uploaded from here is all that recovery will have.
                words = f"{name} has {size:,} bytes, where {written[name]:,} were written"
                raise KeyStoreCorruptError(self._directory, words)
            files.append(self._tables.get(name) or _checksummed(self._disk, path, name))
        self._disk.sync_directory(directory)
        self._tables = {file.name: file for file in files if _is_table(file.name)}
        return tuple(files)

    def _link_files(self, directory: str) -> bool:
        """Do what RocksDB's checkpoint does, without the interpreter's lock held during its syncs.

        False if files are being changed, or are kept for a snapshot. While the manifest stays as it
        is, so do the files that it names. If no others are there, those that are there are these.
        """
        disk, folder = self._disk, self._directory
        manifest = self._manifest()
        tables = [name for name in disk.list_directory(folder) if _is_table(name)]
        live = (str(file["name"]).lstrip("/") for file in self._open_database.live_files())
        if tables != sorted(live):
            return False
        try:
            for name in tables:
                disk.link(f"{folder}/{name}", f"{directory}/{name}")
        except FileNotFoundError:
            return False
        name, size = manifest
        content = _read(disk, f"{folder}/{name}")[:size]
        if self._manifest() != manifest:
            return False
        _write(disk, f"{directory}/{name}", content)
        _write(disk, f"{directory}/CURRENT", f"{name}\n".encode())
        return True

    def _manifest(self) -> tuple[str, int]:
        """Name and length of the list of changes of files."""
        name = _read(self._disk, f"{self._directory}/CURRENT").decode().strip()
        return name, self._disk.size(f"{self._directory}/{name}")


class _RocksDbPaths:
    """Paths as rocksdict takes them: in UTF-8. Others go by a link to their parent directory, in
    a folder for temporary files. Raises KeyStoreError if none can be made: nothing is damaged.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._links: str | None = None
        """No TemporaryDirectory: a forked child would remove it at its end."""
        self._link_of: dict[str, str] = {}
        """By parent directory."""

    def path(self, path: str) -> str:
        """The same file under a name in UTF-8, if its own name is."""
        try:
            path.encode()
        except UnicodeEncodeError:
            parent, name = os.path.split(os.path.abspath(path))
            return f"{self._link(parent)}/{name}"
        return path

    def links(self, directory: str, names: Iterable[str]) -> str:
        """A directory of links to these files of another one, to open for reading: rocksdict writes
        a file of its own into each directory that it opens.
        """
        with self._own_errors():
            made = f"{self._folder}/files"
            os.mkdir(made)
            for name in names:
                os.symlink(os.path.abspath(f"{directory}/{name}"), f"{made}/{name}")
            return made

    def _link(self, parent: str) -> str:
        link = self._link_of.get(parent)
        if link is None:
            with self._own_errors():
                link = f"{self._folder}/{len(self._link_of)}"
                os.symlink(parent, link)
            self._link_of[parent] = link
        return link

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KeyStoreError(self._directory, f"no temporary directory: {error}") from error

    @property
    def _folder(self) -> str:
        if self._links is None:
            self._links = _temporary_directory()
        return self._links

    def close(self) -> None:
        """Remove the links. Idempotent; `path` may be used again."""
        links, self._links, self._link_of = self._links, None, {}
        if links is not None:
            # Not at the top, as in `_temporary_directory`.
            import shutil  # noqa: PLC0415

            shutil.rmtree(links, ignore_errors=True)


def _temporary_directory() -> str:
    """In memory where the system offers that: the disk may be full."""
    # Not at the top: few stores ever need one.
    import tempfile  # noqa: PLC0415

    with suppress(OSError):
        return tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY)
    return tempfile.mkdtemp(prefix=_PREFIX)


def _rocksdb_error(directory: str, error: Exception) -> KeyStoreError | None:
    """None if it is none of RocksDB's, which have no class of their own."""
    if type(error) is not Exception:
        return None
    text = str(error)
    kind = next((kind for part, kind in _ERRORS if part in text), KeyStoreError)
    return kind(directory, text)


def _is_table(name: str) -> bool:
    return name.endswith(_TABLE_SUFFIX)


def _read(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.pread(0, file.size())
    finally:
        file.close()


def _write(disk: Disk, path: str, content: bytes) -> None:
    file = disk.open(path, write=True, create=True, exclusive=True)
    try:
        file.pwrite([content], 0)
        file.sync()
    finally:
        file.close()


def _checksummed(disk: Disk, path: str, name: str) -> CheckpointFile:
    file = disk.open(path)
    try:
        size, checksum = file.size(), 0
        for offset in range(0, size, _READ_BYTES):
            checksum = crc32c(file.pread(offset, min(_READ_BYTES, size - offset)), checksum)
    finally:
        file.close()
    return CheckpointFile(name, size, checksum)


def _last(iterator: RdictIter, keys: StoreKeyRange) -> KeyPair | None:
    try:
        iterator.seek_for_prev(keys.end)
        if iterator.valid() and iterator.key() == keys.end:
            iterator.prev()
        if not iterator.valid():
            iterator.status()
            return None
        key = iterator.key()
        return (key, iterator.value()) if key >= keys.start else None
    finally:
        del iterator


def _portion(
    iterator: RdictIter, keys: StoreKeyRange, limit: int, room: int
) -> tuple[KeyPortion, int]:
    """At most `limit` pairs, and what they leave of `room`, in bytes.

    A pair that is larger than all room there ever is takes all of it.
    """
    if limit <= 0 or room <= 0:
        return KeyPortion([], keys), room
    pairs: list[KeyPair] = []
    try:
        iterator.seek(keys.start)
        while iterator.valid():
            key = iterator.key()
            if key >= keys.end:
                return KeyPortion(pairs, None), room
            value = iterator.value()
            size = len(key) + len(value)
            if len(pairs) == limit or room < min(size, PORTION_BYTES_MAX):
                return KeyPortion(pairs, StoreKeyRange(key, keys.end)), room
            pairs.append((key, value))
            room -= size
            iterator.next()
        iterator.status()
        return KeyPortion(pairs, None), room
    finally:
        del iterator


def _options(cache_bytes: int, *, create: bool) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(Cache(cache_bytes))
    table.set_bloom_filter(10, block_based=False)
    # Indexes and filters are in the cache by parts, not whole beside it.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_cache_index_and_filter_blocks(True)
    table.set_format_version(6)
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_paranoid_checks(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(_COMPACTION_RUNS)
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_target_file_size_base(_FILE_BYTES)
    options.set_compaction_readahead_size(256 * 1024)
    # Four times what is flushed at: RocksDB itself has no need to flush, and no caller waits.
    options.set_write_buffer_size(4 * WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_open_files(-1)
    # Otherwise 15 threads begin for a moment, and the process ends where the system has fewer.
    options.set_max_file_opening_threads(1)
    options.set_max_background_jobs(2)
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1024 * 1024)
    options.set_max_manifest_file_size(256 * 1024)
    options.set_manifest_preallocation_size(64 * 1024)
    return options
