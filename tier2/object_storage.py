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
  instead of the caller. So does `upload`, whose bytes come one part after another.

Listing is for people and for garbage, never needed to be correct (DESIGN 4.3).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import SelfDescribed
from tier2.request_statistics import ObjectStorageStatistics

NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})
METADATA_BYTES_MAX: Final = 1900
"""Of keys and values: S3 takes 2 KB, with what we add."""
PARTS_MAX: Final = 10_000
"""Of one upload, on every storage: S3 takes no more."""

_METADATA_KEY: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
_METADATA_VALUE: Final = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")


class StoredObject(NamedTuple):
    """An object as the store shows it."""

    name: str
    size: int
    modified_ms: int
    """As the store has it, milliseconds since 1970 UTC; for people and for ages, never for
    order.
    """
    metadata: Mapping[str, str] = NO_METADATA
    """What it was put with, keys in lower case; a listing does not give it."""


class WholeObject(NamedTuple):
    """A small object, read at once."""

    data: bytes
    metadata: Mapping[str, str]


class ObjectRange(NamedTuple):
    """Bytes [offset, offset + length) of an object that is there."""

    name: str
    offset: int
    length: int


class UnfinishedUpload(NamedTuple):
    """An upload in parts that was begun and neither completed nor aborted.

    No read or listing of objects shows it; its parts are billed.
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


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """A copy of what an object is put with if every storage can keep it; ValueError otherwise.

    Keys are of `a-z 0-9 . _ -`, values are printable ASCII without spaces at their ends, all
    together at most METADATA_BYTES_MAX. The key `unique-id` is ours.
    """
    for key, value in metadata.items():
        if _METADATA_KEY.fullmatch(key) is None or key == "unique-id":
            raise ValueError(f"{key!r} is no key of an object's metadata")
        if _METADATA_VALUE.fullmatch(value) is None:
            raise ValueError(f"{value!r} is no value of an object's metadata")
    size = sum(len(key) + len(value) for key, value in metadata.items())
    if size > METADATA_BYTES_MAX:
        raise ValueError(f"{size} bytes of metadata are more than {METADATA_BYTES_MAX}")
    return dict(metadata)


class PartSizes:
    """Checks the parts of one upload: none empty, none short but the last, not too many."""

    def __init__(self, name: str, bytes_min: int) -> None:
        self._name = name
        self._bytes_min = bytes_min
        self.count = self.total = 0
        self._last = bytes_min

    def add(self, size: int) -> None:
        """One more part of `size` bytes. ValueError if it may not follow."""
        if not size:
            raise ValueError(f"a part of {self._name} is empty")
        if self._last < self._bytes_min:
            raise ValueError(f"a part of {self._last} bytes of {self._name} is not the last")
        if self.count == PARTS_MAX:
            raise ValueError(f"{self._name} has more than {PARTS_MAX} parts")
        self.count += 1
        self.total += size
        self._last = size

    def end(self) -> None:
        """There is no further part. ValueError if there was none."""
        if not self.count:
            raise ValueError(f"object {self._name} would be empty")


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

    @property
    def is_local(self) -> bool:
        """Whether objects are on a disk of this machine: uploads beside each other are no faster
        there, and the log has less of it.
        """
        return False

    @abstractmethod
    async def put(
        self,
        name: str,
        parts: Sequence[Buffer],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        """Store the concatenation of `parts` under `name`, if the name is free.

        `unique_id` is 16 bytes, different for each object ever put. It is kept with the object and
        distinguishes one's own object, whose reply was lost, from another's (ObjectExistsError).
        Not empty (ValueError). `metadata` are kept with the object, within the bounds of
        `check_metadata`.
        """

    @property
    def upload_bytes_min(self) -> int:
        """The least length of a part of `upload`, but for the last."""
        return 1

    @abstractmethod
    async def upload(
        self,
        name: str,
        parts: AsyncGenerator[Buffer, None],
        unique_id: bytes,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        """As `put`, of parts that come one after another: at most 10,000, each but the last of at
        least `upload_bytes_min` bytes, none empty (ValueError).

        At most two are held at a time: one that is sent, and the next, which is awaited meanwhile.
        A part must not be changed behind. What `parts` raises ends the upload and is raised; it is
        closed in any case. Of an upload that failed or was cancelled nothing is seen; of one whose
        process died, what `list_unfinished` shows at most.

        One that is tried again with the same `unique_id` and bytes succeeds or raises
        ObjectExistsError.
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

    async def get_whole(self, name: str, bytes_max: int) -> WholeObject:
        """All bytes of an object of at most `bytes_max`, and its metadata. One request on S3.

        Raises ObjectNotFoundError, InvalidRangeError for a larger one.
        """
        there = await self.head(name)
        if there is None:
            raise ObjectNotFoundError(name, "no such object")
        if there.size > bytes_max:
            raise InvalidRangeError(name, f"{there.size} bytes are more than {bytes_max}")
        # None of ours is empty, but a foreign hand may have left one.
        data = await self.get_range(name, 0, there.size) if there.size else b""
        return WholeObject(data, there.metadata)

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
        """All unfinished uploads in parts, of names beginning with `prefix`.

        None where there are no parts. One request for 1,000 of them.
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

    def health(self) -> Sequence[str]:
        """What requests wait for that may never come, and is no failure yet: a sentence each.

        What fails is reported by its caller.
        """
        return ()

    @abstractmethod
    def statistics(self) -> ObjectStorageStatistics:
        """Numbers as of now. O(1)."""
