"""ThreadedKeyStore: what the stores of keys share: threads, lock, identity, and the first failure.

Changes have one thread, so they are made in the order of their calls; reads have others. A class
below it has the work itself, in methods whose names say so, which threads call.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import (
    CheckpointFile,
    ForeignKeyStoreError,
    KeyBatch,
    KeyPair,
    KeyPortion,
    KeySnapshot,
    KeyStore,
    KeyStoreCheckpoint,
    KeyStoreClosedError,
    KeyStoreCorruptError,
    KeyStoreError,
    KeyStoreInUseError,
    check_limit,
    error_of_disk,
)
from durablelog.catalog.key_store_records import (
    IDENTITY_KEY,
    OWN_KEYS_END,
    SEQUENCE_NUMBER_KEY,
    KeyStoreIdentity,
    decode_identity,
    decode_sequence_number,
    encode_identity,
    encode_sequence_number,
)
from segmentstore.contracts import forks
from segmentstore.contracts.disk import (
    DiskFile,
    make_directories,
    remove_content,
)
from segmentstore.contracts.lock_owner import owner_of
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import note_end, outlast

T = TypeVar("T")

READ_THREADS = 2
LOCK_NAME = "lock"


class ThreadedKeyStore(KeyStore):
    """A store of keys in `directory`, which belongs to it alone."""

    def __init__(self, directory: str, identity: KeyStoreIdentity, runtime: Runtime) -> None:
        self._directory = directory
        self._identity = identity
        self._runtime = runtime
        self._disk = runtime.disk
        self._birth = forks.Birth()
        self._changes: Executor | None = None
        self._reads: Executor | None = None
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._door = asyncio.Lock()
        """Held while the store is opened or closed."""
        self._state = "not open"
        self._read_only = False
        self._lock: DiskFile | None = None
        self._failure: KeyStoreError | None = None
        """Why there are no more changes."""
        self._sequence_number = 0
        self._snapshots: set[ThreadedSnapshot] = set()

    # --- the work, on threads ---------------------------------------------------------------------

    @abstractmethod
    def _open_files(self) -> bool:
        """Open what is there; False if that was nothing, and a new store was made."""

    @abstractmethod
    def _open_checkpoint(self) -> None:
        """Open what is there, for reading, and change nothing there."""

    @abstractmethod
    def _close_files(self) -> None:
        """Close what is open, if anything is. Raises nothing that `_error_of` knows."""

    @abstractmethod
    def _get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    @abstractmethod
    def _find_last(self, ranges: Sequence[StoreKeyRange]) -> list[KeyPair | None]: ...

    @abstractmethod
    def _scan_each(self, ranges: Sequence[StoreKeyRange], limit: int) -> list[KeyPortion]: ...

    @abstractmethod
    def _make_snapshot(self) -> Any:
        """Of the moment; `_scan_snapshot` gets it."""

    @abstractmethod
    def _scan_snapshot(self, snapshot: Any, keys: StoreKeyRange, limit: int) -> KeyPortion: ...

    @abstractmethod
    def _write(self, batch: KeyBatch, own: dict[bytes, bytes]) -> None:
        """Make the changes, and set the store's own keys."""

    @abstractmethod
    def _flush(self) -> None: ...

    @abstractmethod
    def _checkpoint(self, directory: str) -> tuple[CheckpointFile, ...]:
        """Put what was just flushed into an empty directory; its files, by name."""

    def _error_of(self, error: Exception) -> KeyStoreError | None:
        """What it means to the caller; None if it is none of the store's."""
        if isinstance(error, KeyStoreError):
            return error
        if isinstance(error, MetadataFormatError):
            return KeyStoreCorruptError(self._directory, str(error))
        return error_of_disk(self._directory, error) if isinstance(error, OSError) else None

    # --- opening and closing ----------------------------------------------------------------------

    @property
    def sequence_number(self) -> int:
        return self._sequence_number

    async def open(self) -> None:
        await self._begin(self._open)

    async def open_read_only(self) -> None:
        self._read_only = True
        await self._begin(self._open_read_only)

    async def _begin(self, work: Callable[[], None]) -> None:
        async with self._door:
            if self._state != "not open":
                raise KeyStoreClosedError(self._directory, "it is opened once")
            self._state = "opening"
            opening = self._on(self._change_thread(), work)
            cancelled = await outlast(opening)
            if not cancelled and opening.exception() is None:
                self._state = "open"
                return
            await self._end(self._release)
            opening.result()
        raise asyncio.CancelledError

    async def close(self) -> None:
        async with self._door:
            await self._end(self._release)

    async def destroy(self) -> None:
        async with self._door:
            await self._end(self._remove)

    async def _end(self, work: Callable[[], None]) -> None:
        """To its end, however often it is cancelled. The door is held."""
        self._state = "closed"
        cancelled = False
        for future in tuple(self._in_flight):
            cancelled |= await outlast(future)
        ending = self._on(self._change_thread(), work)
        cancelled |= await outlast(ending)
        for executor in (self._changes, self._reads):
            if executor is not None:
                # Idle by now: this does not block the loop.
                executor.shutdown(wait=True)
        self._changes = self._reads = None
        ending.result()
        if cancelled:
            raise asyncio.CancelledError

    def _open(self) -> None:
        with self._known_errors():
            self._take_lock()
            if not self._open_files():
                own = {IDENTITY_KEY: encode_identity(self._identity)}
                own[SEQUENCE_NUMBER_KEY] = encode_sequence_number(0)
                self._write(KeyBatch(), own)
                self._flush()
            self._sequence_number = self._read_own()

    def _open_read_only(self) -> None:
        with self._known_errors():
            self._open_checkpoint()
            self._sequence_number = self._read_own()

    def _read_own(self) -> int:
        """Check whose the store is; its sequence number."""
        identity, number = self._get([IDENTITY_KEY, SEQUENCE_NUMBER_KEY])
        if identity is None or number is None:
            raise KeyStoreCorruptError(self._directory, "it does not say whose it is")
        there = decode_identity(identity)
        if there != self._identity:
            raise ForeignKeyStoreError(self._directory, f"it is of {there}, not {self._identity}")
        return decode_sequence_number(number)

    def _take_lock(self) -> None:
        if self._lock is None:
            make_directories(self._disk, self._directory)
            try:
                self._lock = self._disk.lock(f"{self._directory}/{LOCK_NAME}")
            except BlockingIOError as error:
                raise KeyStoreInUseError(self._directory, owner_of(error)) from error

    def _release(self) -> None:
        self._close_all()
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.close()

    def _close_all(self) -> None:
        for snapshot in tuple(self._snapshots):
            snapshot.handle = None
        self._snapshots.clear()
        self._close_files()

    def _remove(self) -> None:
        try:
            with self._known_errors():
                self._check_changing()
                self._take_lock()
                self._close_all()
                remove_content(self._disk, self._directory)
                self._disk.sync_directory(self._directory)
        finally:
            self._release()

    # --- calls ------------------------------------------------------------------------------------

    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        for key in keys:
            if key < OWN_KEYS_END:
                raise ValueError(f"{key!r} cannot be a key")
        return await self._read(lambda: self._get(keys))

    async def find_last(self, ranges: Sequence[StoreKeyRange]) -> list[KeyPair | None]:
        return await self._read(lambda: self._find_last([_visible(keys) for keys in ranges]))

    async def scan(self, keys: StoreKeyRange, limit: int) -> KeyPortion:
        (portion,) = await self.scan_each([keys], limit)
        return portion

    async def scan_each(self, ranges: Sequence[StoreKeyRange], limit: int) -> list[KeyPortion]:
        check_limit(limit)
        return await self._read(lambda: self._scan_each([_visible(keys) for keys in ranges], limit))

    async def snapshot(self) -> KeySnapshot:
        return await self._run(self._change_thread, self._begin_snapshot)

    def _begin_snapshot(self) -> ThreadedSnapshot:
        handle, number = self._make_snapshot(), self._sequence_number
        snapshot = ThreadedSnapshot(self, handle, number, self._runtime.lock())
        self._snapshots.add(snapshot)
        return snapshot

    async def apply(self, batch: KeyBatch, sequence_number: int) -> None:
        await self._run(self._change_thread, lambda: self._apply(batch, sequence_number))

    def _apply(self, batch: KeyBatch, sequence_number: int) -> None:
        if sequence_number < self._sequence_number:
            raise ValueError(f"{sequence_number} is below {self._sequence_number}")
        with self._changing():
            self._write(batch, {SEQUENCE_NUMBER_KEY: encode_sequence_number(sequence_number)})
        self._sequence_number = sequence_number

    async def flush(self) -> int:
        return await self._run(self._change_thread, self._flush_all)

    def _flush_all(self) -> int:
        with self._changing():
            self._flush()
        return self._sequence_number

    async def checkpoint(self, directory: str) -> KeyStoreCheckpoint:
        return await self._run(self._change_thread, lambda: self._make_checkpoint(directory))

    def _make_checkpoint(self, directory: str) -> KeyStoreCheckpoint:
        number = self._flush_all()
        make_directories(self._disk, directory)
        remove_content(self._disk, directory)
        return KeyStoreCheckpoint(number, self._checkpoint(directory))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What fails here makes this the last change."""
        if self._failure is not None:
            raise self._failure
        self._check_changing()
        try:
            with self._known_errors():
                yield
        except KeyStoreError as error:
            # Another one: this has its traceback, and what is in that.
            self._failure = type(error)(self._directory, error.message)
            raise

    def _check_changing(self) -> None:
        if self._read_only:
            raise KeyStoreError(self._directory, "it is open for reading only")

    # --- threads ----------------------------------------------------------------------------------

    async def scan_snapshot(
        self, snapshot: ThreadedSnapshot, keys: StoreKeyRange, limit: int
    ) -> KeyPortion:
        """For the store's snapshots."""
        check_limit(limit)

        def work() -> KeyPortion:
            with snapshot.lock:
                if snapshot.handle is None:
                    raise KeyStoreClosedError(self._directory, "the snapshot is closed")
                return self._scan_snapshot(snapshot.handle, _visible(keys), limit)

        return await self._read(work)

    async def close_snapshot(self, snapshot: ThreadedSnapshot) -> None:
        """For the store's snapshots."""

        def work() -> None:
            with snapshot.lock:
                snapshot.handle = None

        if self._state == "open" and snapshot in self._snapshots:
            self._snapshots.discard(snapshot)
            await self._run(self._read_threads, work)

    async def _read(self, work: Callable[[], T]) -> T:
        return await self._run(self._read_threads, work)

    async def _run(self, thread: Callable[[], Executor], work: Callable[[], T]) -> T:
        if self._state != "open":
            raise KeyStoreClosedError(self._directory, f"it is {self._state}")

        def guarded() -> T:
            with self._known_errors():
                return work()

        return await asyncio.shield(self._on(thread(), guarded))

    def _on(self, executor: Executor, work: Callable[[], T]) -> asyncio.Future[T]:
        """Closing waits for it, whether or not its caller still does."""
        self._birth.check()
        future = asyncio.get_running_loop().run_in_executor(executor, work)
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        future.add_done_callback(note_end)
        return future

    @contextmanager
    def _known_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            known = self._error_of(error)
            if known is None or known is error:
                raise
            raise known from error

    def _change_thread(self) -> Executor:
        if self._changes is None:
            container_id = self._identity.container_id
            self._changes = self._runtime.executor(f"keys-{container_id}", 1)
        return self._changes

    def _read_threads(self) -> Executor:
        if self._reads is None:
            container_id = self._identity.container_id
            self._reads = self._runtime.executor(f"keys-{container_id}-reads", READ_THREADS)
        return self._reads


class ThreadedSnapshot(KeySnapshot):
    """A snapshot of a ThreadedKeyStore."""

    def __init__(
        self,
        store: ThreadedKeyStore,
        handle: Any,
        sequence_number: int,
        lock: AbstractContextManager[object],
    ) -> None:
        self._store = store
        self._sequence_number = sequence_number
        self.handle = handle
        """What the store scans; None when it is closed."""
        self.lock = lock
        """Of the handle, which one thread uses at a time."""

    @property
    def sequence_number(self) -> int:
        return self._sequence_number

    async def scan(self, keys: StoreKeyRange, limit: int) -> KeyPortion:
        return await self._store.scan_snapshot(self, keys, limit)

    async def close(self) -> None:
        await self._store.close_snapshot(self)


def _visible(keys: StoreKeyRange) -> StoreKeyRange:
    """Without the store's own."""
    return StoreKeyRange(max(keys.start, OWN_KEYS_END), keys.end)
