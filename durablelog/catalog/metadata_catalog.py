"""MetadataCatalog: a container's catalog on local disk: a key store, and checkpoints of it.

In its directory are `working-<token>/`, the key store that is changed, and `<S as 16 hex digits>/`
for each checkpoint, which never changes when it is finished; `checkpoint_files.py` says when that
is. Rules of this file:

- the working store is of this process: it is made anew, empty or of links to a checkpoint's files.
  What an earlier run left may be ahead of the log's beginning;
- a change that is not made whole is the last: what was to be written is known to the caller alone.
  `destroy_working`, and begin anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable
from concurrent.futures import Executor
from typing import Any, TypeAlias, TypeVar

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.checkpoint_files import CheckpointFiles
from durablelog.catalog.key_store import (
    CheckpointFile,
    KeyBatch,
    KeyStore,
    KeyStoreCheckpoint,
    KeyStoreClosedError,
    KeyStoreCorruptError,
    KeyStoreError,
    error_of_disk,
)
from durablelog.catalog.key_store_records import KeyStoreIdentity
from segmentstore.contracts import forks
from segmentstore.contracts.disk import DiskFile
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import note_end, outlast

T = TypeVar("T")

MakeKeyStore: TypeAlias = Callable[[str, KeyStoreIdentity, Runtime], KeyStore]
"""Of a directory, not opened."""


class MetadataCatalog:
    """The catalog of one container in a directory that belongs to it alone.

    Calls come from one event loop; all that wait but `read` and `keep_from` come one after another.
    Each raises KeyStoreError: KeyStoreFullError if the disk is full, KeyStoreClosedError after
    `close`, and KeyStoreInUseError if another catalog has the directory. ForeignKeyStoreError
    says that the directory is of another store or container; nothing is changed then. The first
    call that waits makes the directory, and locks it until `close`.
    """

    def __init__(
        self,
        directory: str,
        identity: KeyStoreIdentity,
        runtime: Runtime,
        make_store: MakeKeyStore,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._runtime = runtime
        self._make_store = make_store
        self._files = CheckpointFiles(directory, identity, runtime.disk)
        self._birth = forks.Birth()
        self._thread: Executor | None = None
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._lock: DiskFile | None = None
        self._closed = False
        self._opened = False
        """Whether a working store was made."""
        self._working: str | None = None
        """The directory of the working store, or what is left of it."""
        self._store: KeyStore | None = None
        self._written: int | None = None
        """Of the write that is going on, or was not finished."""
        self.damage: str | None = None
        """Why the last `has_checkpoint` was False; None: there was none."""

    @property
    def store(self) -> KeyStore:
        """The working store, to read from. Raises KeyStoreClosedError if none is open."""
        if self._store is None:
            raise KeyStoreClosedError(self._directory, "the working store is not open")
        return self._store

    def checkpoint_directory(self, sequence_number: int) -> str:
        """Where the checkpoint of a sequence number is, or will be downloaded to."""
        return self._files.path(sequence_number)

    # --- checkpoints ------------------------------------------------------------------------------

    async def has_checkpoint(self, sequence_number: int) -> bool:
        """Whether a checkpoint is there and whole: reads all its files.

        A damaged one, and one that was not finished, is removed; `damage` says why.
        """
        files = self._files

        def check() -> str | None:
            damage = files.damage(sequence_number)
            if damage != "":
                files.remove([sequence_number])
            return damage

        damage = await self._blocking(check)
        self.damage = damage or None
        return damage == ""

    async def remove_checkpoint(self, sequence_number: int) -> None:
        """Remove a checkpoint, whole or not; nothing if there is none."""
        await self._blocking(lambda: self._files.remove([sequence_number]))

    async def adopt_download(self, sequence_number: int, files: Iterable[CheckpointFile]) -> None:
        """Finish a checkpoint whose files were put into its directory, checked and durable."""
        listed = tuple(files)
        await self._blocking(lambda: self._files.finish(sequence_number, listed))

    async def read(self, sequence_number: int, name: str, offset: int, length: int) -> bytes:
        """A part of a file of a finished checkpoint; fewer bytes only at its end."""
        return await self._blocking(
            lambda: self._files.read_piece(sequence_number, name, offset, length)
        )

    async def keep_from(self, sequence_number: int) -> None:
        """Remove the checkpoints before a sequence number, and what is no finished checkpoint.

        A download that is going on would be lost; what is being written stays.
        """

        def remove() -> None:
            self._files.remove(self._files.stale(sequence_number, self._written))

        await self._blocking(remove)

    # --- the working store ------------------------------------------------------------------------

    async def open_at(self, sequence_number: int) -> None:
        """Make the working store what a finished checkpoint is.

        Raises KeyStoreCorruptError, too, if the key store has not exactly this sequence number.
        """
        await self._open(sequence_number)

    async def open_checkpoint(self, sequence_number: int) -> KeyStore:
        """A finished checkpoint, open for reading; its caller closes it. Needs no room on the disk.

        Raises KeyStoreCorruptError, too, if it has not exactly this sequence number.
        """
        # The lock, and whether the process was forked.
        await self._blocking(lambda: None)
        path = self._files.path(sequence_number)
        store = self._make_store(path, self._identity, self._runtime)
        await store.open_read_only()
        if store.sequence_number != sequence_number:
            await store.close()
            raise self._other_state(sequence_number, store.sequence_number)
        return store

    async def begin_empty(self) -> None:
        """Make a new working store."""
        await self._open(None)

    async def _open(self, sequence_number: int | None) -> None:
        await self.destroy_working()
        if not self._opened:
            # What earlier runs left. Later on another process may have taken over.
            await self._blocking(self._files.remove_working)
            self._opened = True
        working = self._working = self._files.working(self._runtime.random.getrandbits(64))
        await self._blocking(lambda: self._fill(working, sequence_number))
        store = self._make_store(working, self._identity, self._runtime)
        await store.open()
        if self._closed:
            await store.close()
            raise KeyStoreClosedError(self._directory, "it was closed meanwhile")
        self._store = store
        found, wanted = store.sequence_number, sequence_number or 0
        if found != wanted:
            await self.destroy_working()
            raise self._other_state(wanted, found)

    def _other_state(self, wanted: int, found: int) -> KeyStoreCorruptError:
        words = f"the checkpoint of {wanted} has the state of {found}"
        return KeyStoreCorruptError(self._directory, words)

    def _fill(self, working: str, sequence_number: int | None) -> None:
        self._files.claim_working(working, sequence_number or 0)
        if sequence_number is not None:
            self._files.link_into_working(working, sequence_number)

    async def write(
        self, batches: AsyncIterable[KeyBatch] | Iterable[KeyBatch], sequence_number: int
    ) -> KeyStoreCheckpoint:
        """Make all changes, in their order, and a checkpoint of what there is then.

        It is finished and durable when this returns. Raises ValueError for a sequence number below
        the working store's.
        """
        store = self.store
        if self._written is not None:
            words = f"the checkpoint of {self._written} was not finished"
            raise KeyStoreError(self._directory, words)
        if sequence_number < store.sequence_number:
            raise ValueError(f"{sequence_number} is below {store.sequence_number}")
        self._written = sequence_number
        # The number is reached with the last change. No state between is ever used: if not all of
        # them are made there is no checkpoint, and the working store is discarded.
        if isinstance(batches, AsyncIterable):
            async for batch in batches:
                await store.apply(batch, store.sequence_number)
        else:
            for batch in batches:
                await store.apply(batch, store.sequence_number)
        await store.apply(KeyBatch(), sequence_number)
        await self._blocking(lambda: self._files.begin(sequence_number))
        made = await store.checkpoint(self._files.path(sequence_number))
        await self._blocking(lambda: self._files.finish(sequence_number, made.files))
        self._written = None
        return made

    # --- ends -------------------------------------------------------------------------------------

    async def destroy_working(self) -> None:
        """Close the working store and remove it, with a checkpoint that was not finished.

        Checkpoints stay. `open_at` or `begin_empty` may follow.
        """
        await self._blocking(lambda: None)
        store, self._store = self._store, None
        if store is not None:
            await store.destroy()
        working = self._working
        if working is not None:
            await self._blocking(lambda: self._files.remove_working(working))
            self._working = None
        written, self._written = self._written, None
        if written is not None:
            await self._blocking(lambda: self._files.remove_unfinished(written))

    async def destroy(self) -> None:
        """Remove all working stores and checkpoints, and close."""
        await self.destroy_working()
        await self._blocking(self._files.remove_working)
        await self._blocking(self._files.remove_all)
        await self.close()

    async def close(self) -> None:
        """Close the working store; what is running comes to its end first.

        Idempotent, and raises no error of the disk's.
        """
        self._closed = True
        cancelled = False
        for future in tuple(self._in_flight):
            cancelled |= await outlast(future)
        store, self._store = self._store, None
        try:
            if store is not None:
                await store.close()
        finally:
            # The next one to get the lock finds nothing open.
            cancelled |= await self._unlock()
        if cancelled:
            raise asyncio.CancelledError

    async def _unlock(self) -> bool:
        """And end the thread; True if the caller was cancelled meanwhile."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        cancelled = False
        lock, self._lock = self._lock, None
        if lock is not None:
            loop = asyncio.get_running_loop()
            cancelled = await outlast(loop.run_in_executor(thread, lock.close))
        # Idle by now: this does not block the loop.
        thread.shutdown(wait=True)
        return cancelled

    # --- the thread -------------------------------------------------------------------------------

    async def _blocking(self, work: Callable[[], T]) -> T:
        """In one thread, in the order of the calls. A cancelled caller's work goes on."""
        if self._closed:
            raise KeyStoreClosedError(self._directory, "it is closed")
        self._birth.check()
        if self._thread is None:
            container_id = self._identity.container_id
            self._thread = self._runtime.executor(f"keys-{container_id}-checkpoints", 1)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, lambda: self._translated(work))
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        future.add_done_callback(note_end)
        return await asyncio.shield(future)

    def _translated(self, work: Callable[[], T]) -> T:
        try:
            if self._lock is None:
                self._lock = self._files.claim()
            return work()
        except MetadataFormatError as error:
            raise KeyStoreCorruptError(self._directory, str(error)) from error
        except OSError as error:
            raise error_of_disk(self._directory, error) from error
