"""Reading a finished checkpoint of a stopped store, which may be on a read-only file system.

Nothing is written in the catalog's directory, and nothing there is locked. All calls of
CheckpointReader block; CheckpointSnapshot makes them in a thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from types import TracebackType
from typing import Final, Self, TypeAlias

from durablelog.catalog.catalog_keys import MetadataFormatError
from durablelog.catalog.checkpoint_files import CheckpointFiles
from durablelog.catalog.key_ranges import StoreKeyRange
from durablelog.catalog.key_store import (
    ForeignKeyStoreError,
    KeyPair,
    KeyPortion,
    KeySnapshot,
    KeyStoreCorruptError,
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
)
from segmentstore.contracts.disk import Disk

PAIRS_AT_ONCE: Final = 1000


class CheckpointReader(ABC):
    """The key store in a checkpoint's directory, open for reading. Raises KeyStoreError."""

    @abstractmethod
    def portion(self, keys: StoreKeyRange, limit: int) -> KeyPortion:
        """As `scan`, of the store's own keys too."""

    @abstractmethod
    def close(self) -> None:
        """Release it. Idempotent."""

    def scan(self, keys: StoreKeyRange, limit: int) -> KeyPortion:
        """The first `limit` pairs of a range, or fewer: PORTION_BYTES_MAX."""
        check_limit(limit)
        return self.portion(StoreKeyRange(max(keys.start, OWN_KEYS_END), keys.end), limit)

    def pairs(self, keys: StoreKeyRange) -> Iterator[KeyPair]:
        """All pairs of a range, by key."""
        rest: StoreKeyRange | None = keys
        while rest is not None:
            found, rest = self.scan(rest, PAIRS_AT_ONCE)
            yield from found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


OpenReader: TypeAlias = Callable[[str, Disk], CheckpointReader]
"""Of a checkpoint's directory."""


def open_checkpoint_read_only(
    directory: str,
    identity: KeyStoreIdentity,
    sequence_number: int,
    disk: Disk,
    open_reader: OpenReader,
) -> CheckpointReader:
    """The checkpoint of a sequence number in the catalog's directory. Reads all its files.

    Raises KeyStoreCorruptError if there is none, or it is damaged, ForeignKeyStoreError.
    """
    files = CheckpointFiles(directory, identity, disk)
    try:
        damage = files.damage(sequence_number)
    except OSError as error:
        raise error_of_disk(directory, error) from error
    if damage is None:
        raise KeyStoreCorruptError(directory, f"there is no checkpoint of {sequence_number}")
    if damage:
        raise KeyStoreCorruptError(directory, damage)
    reader = open_reader(files.path(sequence_number), disk)
    try:
        _check_own(reader, directory, identity, sequence_number)
    except BaseException:
        reader.close()
        raise
    return reader


def _check_own(
    reader: CheckpointReader, directory: str, identity: KeyStoreIdentity, sequence_number: int
) -> None:
    own = dict(reader.portion(StoreKeyRange(b"", OWN_KEYS_END), PAIRS_AT_ONCE).pairs)
    try:
        there = decode_identity(own.get(IDENTITY_KEY, b""))
        number = decode_sequence_number(own.get(SEQUENCE_NUMBER_KEY, b""))
    except MetadataFormatError as error:
        raise KeyStoreCorruptError(directory, str(error)) from error
    if there != identity:
        raise ForeignKeyStoreError(directory, f"it is of {there}, not {identity}")
    if number != sequence_number:
        words = f"the checkpoint of {sequence_number} has the state of {number}"
        raise KeyStoreCorruptError(directory, words)


class CheckpointSnapshot(KeySnapshot):
    """A checkpoint that is read from an event loop; `executor` remains its owner's."""

    def __init__(self, reader: CheckpointReader, sequence_number: int, executor: Executor) -> None:
        self._reader = reader
        self._sequence_number = sequence_number
        self._executor = executor

    @property
    def sequence_number(self) -> int:
        return self._sequence_number

    async def scan(self, keys: StoreKeyRange, limit: int) -> KeyPortion:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: self._reader.scan(keys, limit))

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self._reader.close)
