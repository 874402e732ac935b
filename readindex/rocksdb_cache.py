"""RocksDbCache: the cache on local disk (adapter).

How RocksDB is used, and why:

- FIFO compaction: whole files go, oldest first, when all together pass a limit. Blocks are written
  once and read a few times, so nothing is ever rewritten, and a delete costs nothing. The block is
  forgotten by the account here and its bytes leave with their file. FIFO compaction requires every
  table file to stay open, so the number of files is bounded instead. The write buffer, which
  becomes one file, is sized to about 1/64 of the limit.
- the account here, not RocksDB, decides what is there: an address is found only while fewer than
  `window` bytes were inserted after it, a window RocksDB's own limit always covers.
- no log, no compression, small block cache: the pages of the operating system serve hot blocks.
- the account has the length and the CRC32C of each block, so a block is itself or is not there.
  They are not in the value: a block then goes to RocksDB and comes from it without a copy of ours.
  Puts and gets hold the interpreter's lock.
- any error of RocksDB's makes the cache broken: gets find nothing, inserts are refused, and from
  time to time an insert tries to begin afresh in a new directory. The old one is never trusted
  again.
- a child of a process that has used RocksDB has a broken cache (contracts/rocksdb_process.py).
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    FifoCompactOptions,
    Options,
    Rdict,
    WriteOptions,
)

from readindex.cache_storage import CacheStatistics, CacheStorage
from segmentstore.contracts import forks
from segmentstore.contracts.checksum import Buffer, crc32c
from segmentstore.contracts.disk import Disk, make_directories, remove_content
from segmentstore.contracts.rocksdb_process import check_threads, leave_to_parent, rocksdb_birth
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import note_end, outlast

T = TypeVar("T")

_KEY = struct.Struct(">Q")
_OVERHEAD_BYTES = 16
"""What RocksDB needs for a block besides its bytes, about."""

_BLOCK_CACHE_BYTES = 8 * 1024 * 1024
_WRITE_BUFFER_BYTES_MIN = 64 * 1024
_WRITE_BUFFER_BYTES_MAX = 32 * 1024 * 1024
_FILES = 64
_REOPEN_INTERVAL_S = 1.0


class _Block(NamedTuple):
    """What the account has of a block."""

    length: int
    written_before: int
    """Bytes written before it."""
    checksum: int


class RocksDbCache(CacheStorage):
    """A cache in `directory`, which belongs to it alone: what is there is destroyed by `open`.

    `bytes_max` bounds the live blocks; the disk holds at most about 1.5 times as much, and three
    write buffers. Blocks should be 16 to 64 KiB: larger ones hold the interpreter's lock too long
    while they are put.
    """

    def __init__(self, directory: str, runtime: Runtime, bytes_max: int, threads: int = 1) -> None:
        self._directory = directory
        self._disk = runtime.disk
        self._executor: Executor = runtime.executor("cache", threads)
        self._bytes_max = bytes_max
        self._window = bytes_max + bytes_max // 2
        """An address is live while fewer than this many bytes were written after its own."""
        self._database: Rdict | None = None
        self._retired: list[Rdict] = []
        """Broken databases, to be closed when no call is in flight on them."""
        self._path = ""
        self._generation = 0
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._live: OrderedDict[int, _Block] = OrderedDict()
        """By address, in order of insertion."""
        self._lost: OrderedDict[int, None] = OrderedDict()
        self._written = 0
        self._bytes = 0
        self._inserts = 0
        self._hits = 0
        self._misses = 0
        self._reopen_at = 0.0
        self._door = asyncio.Lock()
        """Held while a database is opened or the cache is closed."""
        self._closed = False
        forks.in_child(self, leave_to_parent)

    async def open(self) -> None:
        await self._reopen()

    async def insert(self, blocks: Sequence[tuple[int, Buffer]]) -> bool:
        loop = asyncio.get_running_loop()
        if self._database is None and not self._door.locked() and loop.time() >= self._reopen_at:
            await self._reopen()
        database, generation = self._database, self._generation
        size = sum(len(data) + _OVERHEAD_BYTES for _, data in blocks)
        if database is None or size > self._bytes_max:
            return False
        checksums = await self._run(lambda: _put(database, self._disk, self._path, blocks))
        if checksums is None:
            self._break(generation)
            return False
        if self._generation != generation or self._database is None:
            return False
        for (address, data), checksum in zip(blocks, checksums, strict=True):
            length = len(data)
            self._live[address] = _Block(length, self._written, checksum)
            self._written += length + _OVERHEAD_BYTES
            self._bytes += length
        self._inserts += len(blocks)
        self._evict()
        return True

    async def get(self, addresses: Sequence[int]) -> list[bytes | None]:
        database, generation = self._database, self._generation
        wanted = [
            (address, block)
            for address in addresses
            if (block := self._live.get(address)) is not None
        ]
        found: dict[int, bytes] = {}
        if database is not None and wanted:
            values, sound = await self._run(lambda: _get(database, wanted))
            found = values
            if not sound:
                self._break(generation)
        for address in addresses:
            if address in found:
                self._hits += 1
            elif address in self._live:
                self._misses += 1
                self._forget(address)
            elif address in self._lost:
                self._misses += 1
        return [found.get(address) for address in addresses]

    def holds(self, address: int) -> bool:
        return address in self._live

    def delete(self, addresses: Sequence[int]) -> None:
        for address in addresses:
            self._forget(address)
            self._lost.pop(address, None)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        async with self._door:
            await self._shut()
            # Idle by now: this does not block the loop.
            self._executor.shutdown(wait=True)

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            bytes_stored=self._bytes,
            bytes_max=self._bytes_max,
            blocks=len(self._live),
            inserts=self._inserts,
            hits=self._hits,
            misses=self._misses,
            healthy=self._database is not None,
        )

    def _forget(self, address: int) -> None:
        entry = self._live.pop(address, None)
        if entry is not None:
            self._bytes -= entry.length

    def _evict(self) -> None:
        while self._live:
            address, block = next(iter(self._live.items()))
            if (
                self._bytes <= self._bytes_max
                and self._written - block.written_before <= self._window
            ):
                break
            self._forget(address)
            self._lose(address)

    def _lose(self, address: int) -> None:
        self._lost[address] = None
        # Only for the count of misses: the bound keeps it small where no caller deletes.
        if len(self._lost) > 65536:
            self._lost.popitem(last=False)

    def _break(self, generation: int) -> None:
        """This database is not to be trusted any more."""
        if generation == self._generation and self._database is not None:
            self._retired.append(self._database)
            self._database = None
            for address in list(self._live):
                self._forget(address)
                self._lose(address)

    async def _run(self, work: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self._in_flight.add(future)
        try:
            return await asyncio.shield(future)
        finally:
            if future.done():
                self._in_flight.discard(future)
            else:
                # The caller was cancelled; the thread goes on, and closing must still wait for it.
                future.add_done_callback(self._in_flight.discard)
                future.add_done_callback(note_end)

    async def _shut(self) -> None:
        """Close what is open, once nothing is in flight on it. Nothing is found from here on."""
        self._break(self._generation)
        while self._in_flight:
            await asyncio.wait(set(self._in_flight))
        retired, self._retired = self._retired, []
        for database in retired:
            await self._run(lambda database=database: _close(database))  # type: ignore[misc]

    async def _reopen(self) -> None:
        """Begin afresh in a new directory; without success the cache stays broken until the next
        try.
        """
        async with self._door:
            if self._closed:
                return
            await self._shut()
            self._reopen_at = asyncio.get_running_loop().time() + _REOPEN_INTERVAL_S
            self._generation += 1
            path = f"{self._directory}/{self._generation}"
            self._path = path
            self._written = 0
            opening = asyncio.get_running_loop().run_in_executor(
                self._executor, _open, self._disk, self._directory, path, self._window
            )
            # To its end: a database without an owner would stay open.
            cancelled = await outlast(opening)
            self._database = opening.result()
            if cancelled:
                raise asyncio.CancelledError


# --- on the executor's threads; every error of RocksDB's and of the disk's ends here -------------


def _open(disk: Disk, directory: str, path: str, window: int) -> Rdict | None:
    if not rocksdb_birth().here:
        return None
    try:
        remove_content(disk, directory)
        make_directories(disk, directory)
        check_threads("cache")
        database = Rdict(path, _options(window))
        options = WriteOptions()
        options.disable_wal = True  # type: ignore[method-assign, assignment]
        database.set_write_options(options)
    except Exception:  # noqa: BLE001 -- RocksDB's errors have no class of their own
        return None
    return database


def _options(window: int) -> Options:
    write_buffer = min(max(window // _FILES, _WRITE_BUFFER_BYTES_MIN), _WRITE_BUFFER_BYTES_MAX)
    fifo = FifoCompactOptions()
    # A file more than the window, and some for keys and indexes: RocksDB never drops what the
    # account calls live.
    fifo.max_table_files_size = window + window // 16 + 2 * write_buffer
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    options = Options(raw_mode=True)
    options.create_if_missing(True)  # noqa: FBT003 -- RocksDB's own signature
    options.set_compression_type(DBCompressionType.none())
    options.set_compaction_style(DBCompactionStyle.fifo())
    options.set_fifo_compaction_options(fifo)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(write_buffer)
    options.set_max_write_buffer_number(2)
    options.set_max_open_files(-1)
    # Otherwise 15 threads begin for a moment, and the process ends where the system has fewer.
    options.set_max_file_opening_threads(1)
    options.set_max_background_jobs(2)
    # All files are of level 0 here: their number must not slow writes down.
    options.set_level_zero_slowdown_writes_trigger(1 << 30)
    options.set_level_zero_stop_writes_trigger(1 << 30)
    # RocksDB writes a log file beside the data. It is not counted in the account, so it is kept
    # short.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1024 * 1024)
    options.set_max_manifest_file_size(1024 * 1024)
    return options


def _close(database: Rdict) -> None:
    try:
        database.close()
    except Exception:  # noqa: BLE001, S110 -- it is given up whatever it says
        pass


def _put(
    database: Rdict, disk: Disk, path: str, blocks: Sequence[tuple[int, Buffer]]
) -> list[int] | None:
    """The checksums of the blocks; None if RocksDB did not take them."""
    checksums = []
    try:
        # A database whose files were deleted goes on answering until it needs a new one: check
        # before trusting it.
        if not disk.exists(f"{path}/CURRENT"):
            return None
        for address, data in blocks:
            checksums.append(crc32c(data))
            database.put(_KEY.pack(address), data if isinstance(data, bytes) else bytes(data))
    except Exception:  # noqa: BLE001 -- RocksDB's errors have no class of their own
        return None
    return checksums


def _get(database: Rdict, wanted: Sequence[tuple[int, _Block]]) -> tuple[dict[int, bytes], bool]:
    """The blocks that are there whole, and whether RocksDB answered without an error."""
    try:
        values = database.get([_KEY.pack(address) for address, _ in wanted])
    except Exception:  # noqa: BLE001 -- RocksDB's errors have no class of their own
        return {}, False
    found: dict[int, bytes] = {}
    sound = True
    for (address, block), value in zip(wanted, values or (), strict=False):
        if not isinstance(value, bytes):
            continue
        if (len(value), crc32c(value)) == (block.length, block.checksum):
            found[address] = value
        else:
            sound = False
    return found, sound
