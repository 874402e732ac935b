"""KeyStore: sorted keys with values, changed in atomic batches, each with a sequence number.

What every implementation promises (proved by tests/contracts/key_store_contract.py):

- a batch and the sequence number it leads to are one: they are seen, and survive, whole or not;
- batches become durable in their order. After a crash, of the process or the machine, the store has
  what was durable when the last `flush` or `checkpoint` returned, and perhaps batches behind it.
  That is a prefix of all batches, and the sequence number of the last of them;
- every answer is of one moment. Bytes that were damaged on disk are an error, never an answer. A
  file that was cut may also bring back the store of an earlier flush, with its sequence number;
- it is of one store and container: the directory of others is refused, as is one in use;
- the first failed change or flush is the last one: every later one fails with the same error, and
  reads go on. Close, and open again: the sequence number says what is there.

What is in it can be rebuilt, so a store that is damaged may be destroyed and made anew.

Keys are 1 to KEY_BYTES_MAX bytes and ordered as bytes. Those that begin with 0 are the store's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store_records import OWN_KEYS_END
from segmentstore.contracts.disk import is_full
from segmentstore.contracts.errors import SelfDescribed

KEY_BYTES_MAX: Final = 2048
PORTION_BYTES_MAX: Final = 1024 * 1024
"""Keys and values of one portion of a scan; a single pair may be larger."""

KeyPair: TypeAlias = tuple[bytes, bytes]
"""A key and its value."""


class KeyStoreError(SelfDescribed, Exception):
    """Base of what a store of keys raises: by itself, an error of the disk that has no class here.

    Close the store and open it again.
    """

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(f"catalog {directory}: {message}")
        self.directory = directory
        self.message = message


class KeyStoreInUseError(KeyStoreError):
    """Another process, or another object of this one, has it open."""


class KeyStoreFullError(KeyStoreError):
    """The disk, or a quota, has no room for it."""


class KeyStoreCorruptError(KeyStoreError):
    """Its files are damaged or missing. Destroy it, and fill a new one."""


class ForeignKeyStoreError(KeyStoreError):
    """It belongs to another store or container, or is of a version that is not known here."""


class KeyStoreClosedError(KeyStoreError):
    """The store, or the snapshot, is not open."""


def error_of_disk(directory: str, error: OSError) -> KeyStoreError:
    """What an error of the disk means to the user of the store in `directory`."""
    if isinstance(error, FileNotFoundError):
        return KeyStoreCorruptError(directory, f"{error.filename} is missing")
    return (KeyStoreFullError if is_full(error) else KeyStoreError)(directory, str(error))


class KeyPortion(NamedTuple):
    """A part of what a scan finds."""

    pairs: list[KeyPair]
    """By key."""
    rest: StoreKeyRange | None
    """Where to go on; None: that was all."""


class CheckpointFile(NamedTuple):
    """A file of a checkpoint, which never changes.

    In two checkpoints of one opening, files of one name and size are the same, but CURRENT and
    MANIFEST.
    """

    name: str
    size: int
    crc32c: int


class KeyStoreCheckpoint(NamedTuple):
    """The whole store in a directory of its own."""

    sequence_number: int
    files: tuple[CheckpointFile, ...]
    """By name: all that an `open` needs."""


class KeyBatch:
    """Changes that are made together, in the order in which they were added."""

    __slots__ = ("_changes", "size")

    def __init__(self) -> None:
        self._changes: list[tuple[bytes, bytes | None, bytes]] = []
        self.size = 0
        """Bytes of all keys and values."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        self.set(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a key, whether it is there or not."""
        self.set(key, None)

    def set(self, key: bytes, value: bytes | None) -> None:
        """Set a value, or remove the key: None."""
        length = len(key)
        if key < OWN_KEYS_END or length > KEY_BYTES_MAX:
            raise _unwritable(key)
        self._changes.append((key, value, b""))
        self.size += length if value is None else length + len(value)

    def delete_range(self, keys: StoreKeyRange) -> None:
        """Remove all keys of a range."""
        start, end = keys
        if start < end:
            if start < OWN_KEYS_END or len(start) > KEY_BYTES_MAX:
                raise _unwritable(start)
            if len(end) > KEY_BYTES_MAX:
                raise ValueError(f"a key of {len(end)} bytes")
            self._changes.append((start, None, end))
            self.size += len(start) + len(end)

    def extend(self, other: KeyBatch) -> None:
        """Add the changes of another one behind these."""
        self._changes += other._changes
        self.size += other.size

    def __len__(self) -> int:
        return len(self._changes)

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None, bytes]]:
        """Key and value; of a deletion None; of a range start, None and end."""
        return iter(self._changes)


def _unwritable(key: bytes) -> ValueError:
    return ValueError(f"{key[:40]!r} of {len(key)} bytes cannot be a key")


def check_limit(limit: int) -> None:
    """Raise ValueError if a scan cannot find so few."""
    if limit < 1:
        raise ValueError(f"limit={limit}: it must be positive")


class KeySnapshot(ABC):
    """The store as it was when the snapshot was made. It keeps old files until it is closed."""

    @property
    @abstractmethod
    def sequence_number(self) -> int:
        """Of that moment."""

    @abstractmethod
    async def scan(self, keys: StoreKeyRange, limit: int) -> KeyPortion:
        """As KeyStore.scan."""

    @abstractmethod
    async def close(self) -> None:
        """Release it. Idempotent; closing the store does it, too."""


class KeyStore(ABC):
    """A store of keys in a directory. Opened once; calls come from one event loop.

    Each call that waits runs in a thread, reads beside changes. Besides the errors named, each
    raises KeyStoreError, KeyStoreCorruptError, KeyStoreClosedError, and ForkedStoreError in a
    forked child.
    """

    @abstractmethod
    async def open(self) -> None:
        """Open what is in the directory, a checkpoint too; a new store if it is empty or absent.

        Raises KeyStoreInUseError, KeyStoreFullError, ForeignKeyStoreError.
        """

    @abstractmethod
    async def open_read_only(self) -> None:
        """Open a checkpoint's directory, writing and locking nothing there: its disk may be full.

        No process may change it until `close`; a change by this store raises KeyStoreError. Raises
        KeyStoreCorruptError if nothing is there, ForeignKeyStoreError.
        """

    @property
    @abstractmethod
    def sequence_number(self) -> int:
        """Of the last batch; 0 of a new store. O(1), without waiting."""

    @abstractmethod
    async def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, in their order; None where there is none."""

    @abstractmethod
    async def find_last(self, ranges: Sequence[StoreKeyRange]) -> list[KeyPair | None]:
        """The last key of each range, and its value; None where the range has none."""

    @abstractmethod
    async def scan(self, keys: StoreKeyRange, limit: int) -> KeyPortion:
        """The first `limit` pairs of a range, or fewer: PORTION_BYTES_MAX."""

    @abstractmethod
    async def scan_each(self, ranges: Sequence[StoreKeyRange], limit: int) -> list[KeyPortion]:
        """A portion of each range, in their order, of one moment: what is theirs among the first
        `limit` pairs of all ranges together, or fewer: PORTION_BYTES_MAX.

        A range that was not reached is its own rest.
        """

    @abstractmethod
    async def snapshot(self) -> KeySnapshot:
        """The store as it is now, for scans of several calls. Its caller closes it."""

    @abstractmethod
    async def apply(self, batch: KeyBatch, sequence_number: int) -> None:
        """Make all changes of a batch and set the sequence number, which never falls (ValueError).

        Not durable before the next `flush` or `checkpoint`. Raises KeyStoreFullError.
        """

    @abstractmethod
    async def flush(self) -> int:
        """Make what was applied durable; its sequence number. Raises KeyStoreFullError."""

    @abstractmethod
    async def checkpoint(self, directory: str) -> KeyStoreCheckpoint:
        """Flush, and put the whole store into `directory`, sharing files that do not change.

        What the directory has is removed first. It must be on the same file system. A failure that
        is not the flush's leaves the store as it is. Raises KeyStoreFullError.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close its snapshots and release the files; what was not flushed may be lost.

        Idempotent, and raises no error of the disk's.
        """

    @abstractmethod
    async def destroy(self) -> None:
        """Close it, and remove what is in its directory. A new object may then open it.

        It may never have been opened, or have failed to. Raises KeyStoreInUseError.
        """
