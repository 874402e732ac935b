"""ObjectStorage: the few calls an object store must give. Objects are put once, whole, and never changed.

What every implementation promises (proved by tests/contracts/object_storage_contract.py):

- `put` is put-if-absent: of two puts of one name at most one succeeds, and an object is never seen in part;
- `put` has returned => the object survives a crash of any process and of the machine;
- a put whose reply was lost and that is tried again with the same `unique_id` succeeds if the first one landed;
- `get_range` gives exactly the bytes asked for or an error, never fewer;
- `delete` of what is absent succeeds; after it returned the object is gone.

Listing is for people and for garbage, never needed to be correct (DESIGN 4.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from segmentstore.contracts.checksum import Buffer


class StoredObject(NamedTuple):
    """An object as the store shows it."""

    name: str
    size: int
    modified_ms: int
    """As the store has it, milliseconds since 1970 UTC; for people and for ages, never for order."""


class ObjectStorageError(Exception):
    """Base of what an object storage raises. `name` is the object, or the prefix of a listing."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class ObjectNotFoundError(ObjectStorageError):
    """There is no such object."""


class ObjectExistsError(ObjectStorageError):
    """The name is taken by an object with another unique id. Names are unique by construction: our bug, or a foreign hand."""


class InvalidRangeError(ObjectStorageError):
    """The range reaches beyond the object's end."""


class StorageUnavailableError(ObjectStorageError):
    """The store did not answer, or refused for now: try again later with back-off. The outcome of a put is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStorageStatistics:
    """A snapshot of a provider's numbers, since it was opened."""

    puts: int
    gets: int
    heads: int
    lists: int
    deletes: int
    bytes_put: int
    bytes_got: int
    errors: int


class ObjectStorage(ABC):
    """One bucket (or folder) and prefix. Calls are made on one event loop; many may be in flight.

    Object names: 1 to 512 characters of `a-z A-Z 0-9 - _ .` and `/` between non-empty parts, no part being
    `.` or `..` (ValueError otherwise). Every method may raise StorageUnavailableError.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where this is, for messages."""

    @abstractmethod
    async def put(self, name: str, parts: Sequence[Buffer], unique_id: bytes) -> None:
        """Store the concatenation of `parts` under `name`, if the name is free.

        `unique_id` is 16 bytes, different for each object ever put; it is kept with the object and tells
        one's own object, whose reply was lost, from another's (ObjectExistsError). Not empty (ValueError).
        """

    @abstractmethod
    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Exactly `length` >= 1 bytes from `offset`. Raises ObjectNotFoundError, InvalidRangeError."""

    @abstractmethod
    async def head(self, name: str) -> StoredObject | None:
        """What the store knows of an object; None if there is none."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Remove an object; nothing happens if it is absent. Durable when it returns."""

    @abstractmethod
    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """Objects whose names begin with `prefix` and sort behind `start_after`, by name in code point order, in pages."""

    @abstractmethod
    async def close(self) -> None:
        """Let what runs end, release threads. Idempotent."""

    @abstractmethod
    def statistics(self) -> ObjectStorageStatistics:
        """Numbers as of now. O(1)."""
