"""What the storage writer may ask of the container it works for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from durablelog.metadata_needs import ChunkNeed
from durablelog.operations import OwnersOperation
from segmentstore.contracts.chunks import ChunkRecord
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentTruncatedError
from segmentstore.contracts.metadata import ContainerMetadata


class WriterDataSource(Protocol):
    """The container, seen from the storage writer. Everything on the container's event loop."""

    @property
    def metadata(self) -> ContainerMetadata:
        """The committed metadata, without the idle segments; read only."""

    @property
    def store_id(self) -> str:
        """Of the store, a UUID: its tag is in the name of everything that is written to Tier 2."""

    @property
    def epoch(self) -> int:
        """Of the container's log; stamped on everything written to Tier 2."""

    async def read_unflushed(
        self, ranges: Sequence[tuple[int, int, int]]
    ) -> Sequence[Sequence[bytes] | SegmentNotFoundError | SegmentTruncatedError]:
        """For each (segment id, offset, length) exactly these committed bytes, from wherever they
        lie, in pieces.

        May take a rescan of the log, one for all of them. Where the segment has changed meanwhile
        the error stands in the place of its bytes. Raises TierUnavailableError if the log does not
        answer: nothing has been read then.
        """

    async def commit(self, operation: OwnersOperation) -> None:
        """Put an operation through the log; returns when it is committed to the metadata.

        Raises ContainerStoppedError, AppendOutcomeUnknownError, NotPrimaryError: the writer stops
        then.
        """

    def held(
        self, ids: Iterable[int], chunks: Iterable[ChunkNeed] = ()
    ) -> AbstractAsyncContextManager[None]:
        """Those of the segments that there are, in memory meanwhile: in `metadata`, which lacks
        idle ones. Of long ones, these chunks: others may not be in memory.

        Entering it may read the catalog. Raises TierUnavailableError, DataCorruptionError.
        """

    async def chunks_in(self, names: Collection[str]) -> dict[int, list[ChunkRecord]]:
        """The chunks in the objects, in order of offset by segment, of active and of idle segments.

        Gathered in slices: a chunk that is moved or removed meanwhile may be among them or not.
        O(active chunks + chunks in the objects). Raises TierUnavailableError, DataCorruptionError.
        """

    async def names_of(self, ids: Collection[int]) -> dict[int, str]:
        """The names of those of the segments that there are, active and idle; idle ones stay idle.

        Raises TierUnavailableError, DataCorruptionError.
        """

    async def check_primary(self) -> None:
        """Raise NotPrimaryError if another owner has opened the log by now, TierUnavailableError if
        that cannot be known.

        For a caller that is about to report something that no operation reports. A container that
        learns it here stops.
        """

    def object_in_use(self, name: str) -> bool:
        """True while a read, or a consolidation, has this object open, or an upload of it is not
        all committed.
        """


async def nothing() -> None:
    """Where no other store is to know of this one."""


async def no_other_store() -> str | None:
    """The answer where no other store has its objects."""
    return None


class OtherStores(NamedTuple):
    """What a storage writer knows of other stores in the same place.

    StorageUnavailableError of either call is as of what it comes before.
    """

    mark: Callable[[], Awaitable[None]] = nothing
    """Makes this store known there; done before each object is sent."""
    shared_with: Callable[[], Awaitable[str | None]] = no_other_store
    """Names another one in words, None if there is none; asked before deletions."""
    is_meant: bool = False
    """They are there by intention: orphans with the tag of this store are searched for all the
    same.
    """


NO_OTHER_STORES: Final = OtherStores()
