"""ObjectStorage: the few calls an object store must give.

Objects are put once, whole, and never changed.

What every implementation promises (proved by tests/contracts/object_storage_contract.py):

- `put` is put-if-absent: of two puts of one name at most one succeeds, and an object is never seen
  in part;
- `put` has returned => the object survives a crash of any process and of the machine;
- a put whose reply was lost and that is tried again with the same `unique_id` succeeds if the first
  one landed;
- `get_range` gives exactly the bytes asked for or an error, never fewer;
- `delete` of what is absent succeeds; after it returned the object is absent;
- `compose`, where it is offered, keeps what `put` promises: the bytes only come from objects
  instead of the caller.

Listing is for people and for garbage, never needed to be correct (DESIGN 4.3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import SelfDescribed
from tier2.request_statistics import ObjectStorageStatistics


class StoredObject(NamedTuple):
    """An object as the store shows it."""

    name: str
    size: int
    modified_ms: int
    """As the store has it, milliseconds since 1970 UTC; for people and for ages, never for
    order.
    """


class ObjectRange(NamedTuple):
    """Bytes [offset, offset + length) of an object that is there."""

    name: str
    offset: int
    length: int


class UnfinishedUpload(NamedTuple):
    """An upload in parts that was begun and neither completed nor aborted.

    Nobody sees it; its parts are billed.
    """

    name: str
    """Of the object it would have become."""
    upload_id: str
    """The store's own."""
    begun_ms: int
    """As the store has it, milliseconds since 1970 UTC."""


class ObjectStorageError(SelfDescribed, Exception):
    """Base of what an object storage raises. `name` is the object, or the prefix of a listing."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class ObjectNotFoundError(ObjectStorageError):
    """There is no such object."""


class ObjectExistsError(ObjectStorageError):
    """The name is taken by an object with another unique id.

    Names are unique by construction: our bug, or a foreign hand.
    """


class InvalidRangeError(ObjectStorageError):
    """The range reaches beyond the object's end."""


_KINDS_OF_ALL: Final = frozenset(
    (
        *("connection", "timeout", "SlowDown", "502", "504"),
        *(
            "ECONNREFUSED",
            "ECONNRESET",
            "ECONNABORTED",
            "EPIPE",
            "ETIMEDOUT",
            "EHOSTUNREACH",
            "ENETUNREACH",
            "ESTALE",
        ),
        *("ENOSPC", "EDQUOT"),
    )
)


def _never() -> bool:
    return False


class StorageUnavailableError(ObjectStorageError):
    """The store did not answer, or refused for now: try again later with back-off.

    The outcome of a put is unknown.

    `kind` is a short word of a small set, the provider's code where it gave one: errors are counted
    by it.
    """

    def __init__(self, name: str, message: str, kind: str = "unavailable") -> None:
        super().__init__(name, message)
        self.kind = kind
        self.outlived: Callable[[], bool] = _never
        """Whether the provider has since answered another request that reads, or one that writes,
        as this one did.

        Said of failures that are the provider's as a whole (see `is_of_all`), once the counter of
        requests has seen them.
        """

    @property
    def is_of_all(self) -> bool:
        """Whether it would have met any request of its time, whatever object it was about."""
        return self.kind in _KINDS_OF_ALL


class StorageRefusedError(StorageUnavailableError):
    """The store answers, and will refuse until a person changes something: no such bucket, no
    permission, expired or wrong credentials, a clock that is off. The message is one sentence that
    says which, with call and code.

    A kind of unavailable: bytes are kept, and what was refused is tried again, for that person may
    come.
    """


def check_ranges(ranges: Sequence[ObjectRange], bytes_min: int) -> Sequence[ObjectRange]:
    """Return what `compose` was given if it may be composed; ValueError otherwise."""
    if not ranges:
        raise ValueError("an object is composed of at least one range")
    for each in ranges:
        if each.offset < 0 or each.length < 1:
            raise ValueError(f"{each} is not a range")
    for each in ranges[:-1]:
        if each.length < bytes_min:
            raise ValueError(f"{each} is shorter than {bytes_min} bytes and not the last")
    return ranges


def exact_range(name: str, data: bytes, offset: int, length: int) -> bytes:
    """Bytes of an object held as a whole, as `get_range` gives them. Raises InvalidRangeError."""
    if offset + length > len(data):
        raise InvalidRangeError(name, f"bytes {offset} to {offset + length} of {len(data)}")
    return data[offset : offset + length]


class ObjectStorage(ABC):
    """One bucket (or folder) and prefix. Calls are made on one event loop; many may be in flight.

    Object names: 1 to 512 characters of `a-z A-Z 0-9 - _ .` and `/` between non-empty parts, no
    part being `.` or `..` (ValueError otherwise). Every method may raise StorageUnavailableError.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where this is, for messages."""

    @abstractmethod
    async def put(self, name: str, parts: Sequence[Buffer], unique_id: bytes) -> None:
        """Store the concatenation of `parts` under `name`, if the name is free.

        `unique_id` is 16 bytes, different for each object ever put. It is kept with the object and
        distinguishes one's own object, whose reply was lost, from another's (ObjectExistsError).
        Not empty (ValueError).
        """

    @property
    def get_bytes_best(self) -> int:
        """The length of one `get_range` from which longer ones bring little more: what read-ahead
        asks for at most.

        A request to a folder costs little, and what is read ahead there only costs memory that is
        not in the processor's cache any more.
        """
        return 512 * 1024

    @property
    def compose_bytes_min(self) -> int | None:
        """The least length of a range that `compose` takes, but for the last; None: this store
        offers no `compose`.
        """
        return None

    async def compose(self, name: str, ranges: Sequence[ObjectRange], unique_id: bytes) -> None:
        """As `put`, of the concatenation of ranges of other objects, copied by the store itself.

        Every range but the last has at least `compose_bytes_min` bytes (ValueError, also from a
        store that offers no `compose`). Also raises ObjectNotFoundError and InvalidRangeError,
        about a source; nothing was stored then.
        """
        del ranges, unique_id
        raise ValueError(f"{self.url} copies nothing by itself: {name} must be put")

    @abstractmethod
    async def get_range(self, name: str, offset: int, length: int) -> bytes:
        """Exactly `length` >= 1 bytes from `offset`.

        Raises ObjectNotFoundError, InvalidRangeError.
        """

    @abstractmethod
    async def head(self, name: str) -> StoredObject | None:
        """What the store knows of an object; None if there is none."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Remove an object; nothing happens if it is absent. Durable when it returns."""

    @abstractmethod
    def list(
        self, prefix: str = "", start_after: str = ""
    ) -> AsyncIterator[Sequence[StoredObject]]:
        """Objects whose names begin with `prefix` and sort behind `start_after`, by name in code
        point order, in pages.
        """

    async def list_unfinished(self, prefix: str = "") -> Sequence[UnfinishedUpload]:
        """Uploads in parts that nobody finished, of names beginning with `prefix`: at most 1,000.

        None where there are no parts.
        """
        del prefix
        return ()

    async def abort_unfinished(self, upload: UnfinishedUpload) -> None:
        """Give up an upload and what it holds; nothing happens if it is missing, or became an
        object meanwhile.
        """
        del upload  # where there are no parts none is ever there

    async def check(self) -> None:  # noqa: B027 - nothing to check is the default
        """Write, read, list and delete a probe, and whatever else this store must be able to.

        For the creation of a store: raises StorageRefusedError if it cannot keep the
        promises above, in one sentence; StorageUnavailableError if it does not answer. A store that
        is private to this process checks nothing.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let what runs end, release threads. Idempotent."""

    @abstractmethod
    def statistics(self) -> ObjectStorageStatistics:
        """Numbers as of now. O(1)."""
