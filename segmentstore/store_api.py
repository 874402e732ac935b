"""What a program does with a store, wherever it is: one Protocol, which the embedded store
(`segmentstore.open`) and a store in another process (`segmentstore.connect`) satisfy.

`segmentstore.service.SegmentStore` says what each call means.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self

from segmentstore.contracts.attributes import AttributeUpdate
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.health_tree import StoreHealth
from segmentstore.contracts.reports import (
    ArchivedEntry,
    BlockEntry,
    CatalogExport,
    FrameEntry,
    GarbageItem,
    GarbageReport,
    OffloadReport,
    OperationEntry,
    RemovedParts,
)
from segmentstore.contracts.segments import Merged, SegmentInfo
from segmentstore.stats_types import StoreStats


class StoreReader(Protocol):
    """See `segmentstore.SegmentReader`."""

    offset: int
    """Where the next chunk begins."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> bytes: ...

    async def fetch(self, offset: int) -> bytes:
        """The chunk that begins at an offset; b"" at the end. Moves nothing."""


class StoreWriter(Protocol):
    """See `segmentstore.SegmentWriter`."""

    writer_id: uuid.UUID

    async def open(self) -> Self:
        """Find the writer's last event. Idempotent."""

    @property
    def last_event_number(self) -> int:
        """The highest event number stored or sent; -1 for none."""

    def append(self, data: Buffer, event_number: int | None = None) -> asyncio.Future[int | None]:
        """Append one event, enqueued when called."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class StoreAttributes(Protocol):
    """See `segmentstore.SegmentStore.iterate_attributes`."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> tuple[uuid.UUID, int]: ...

    async def fetch(self, behind: uuid.UUID | None) -> list[tuple[uuid.UUID, int]]:
        """The slice behind an attribute, of None the first; empty at the end. Moves nothing."""


class StoreApi(Protocol):
    """A store. Every call raises errors of `segmentstore.contracts.errors`."""

    @property
    def store_id(self) -> str:
        """The store's id: a restored store has another one."""

    async def close(self) -> None:
        """Resolve all waiting calls, release what is held. Idempotent."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def append(
        self,
        name: str,
        data: Buffer,
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> asyncio.Future[int]:
        """Append bytes, enqueued when called; gives the offset once they are durable."""

    def append_batch(
        self,
        name: str,
        items: Iterable[Buffer],
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> asyncio.Future[int]:
        """Append several byte strings as one."""

    def writer(self, name: str, writer_id: uuid.UUID) -> StoreWriter:
        """An exactly-once writer session."""

    async def read(
        self, name: str, offset: int, max_length: int, wait: float | None = None
    ) -> bytes:
        """At least one and at most `max_length` bytes from `offset`."""

    def reader(self, name: str, offset: int = 0, *, follow: bool = False) -> StoreReader:
        """An async iterator of chunks from `offset`."""

    async def create_segment(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentInfo:
        """Make an empty segment."""

    async def get_info(self, name: str) -> SegmentInfo:
        """The segment's properties, as acknowledged."""

    def list_segments(self, prefix: str = "") -> AsyncGenerator[SegmentInfo, None]:
        """Segments whose names begin with `prefix`, by name."""

    async def seal(self, name: str) -> int:
        """Allow no more appends; gives the final length."""

    async def truncate(self, name: str, offset: int) -> None:
        """Drop the bytes below `offset`."""

    async def merge(
        self, target: str, source: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> Merged:
        """Append the whole source to the target and delete the source, as one step."""

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge several segments into one; gives the target's length behind each."""

    async def delete(self, name: str) -> None:
        """Remove the segment and all its bytes."""

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes, all or none."""

    async def get_attributes(
        self, name: str, ids: Iterable[uuid.UUID] | None = None
    ) -> dict[uuid.UUID, int]:
        """The segment's attributes, or those of `ids` that have a value."""

    def iterate_attributes(
        self, name: str, from_id: uuid.UUID | None = None, to_id: uuid.UUID | None = None
    ) -> StoreAttributes:
        """The segment's attributes with ids from `from_id` to `to_id`, by id."""

    async def flush(self, name: str | None = None) -> None:
        """Move everything acknowledged so far (of one segment, or of all) to Tier 2."""

    async def checkpoint(self) -> None:
        """Write a metadata checkpoint in every container, and truncate the logs."""

    async def collect_garbage(self) -> GarbageReport:
        """Search all of Tier 2 for orphans and garbage, and delete what is due."""

    def list_frames(self) -> AsyncGenerator[FrameEntry, None]:
        """The frames of the logs up to now, container by container."""

    def list_operations(self) -> AsyncGenerator[OperationEntry, None]:
        """The operations in the logs up to now."""

    def list_blocks(self, segment: str | None = None) -> AsyncGenerator[BlockEntry, None]:
        """What is in Tier 2 of a segment, or of all, and objects that wait for their deletion."""

    def find_garbage(self) -> AsyncGenerator[GarbageItem | Finding, None]:
        """What `collect_garbage` would find now, in no order; changes nothing."""

    async def offload_prefix(
        self, before: int | None = None, container: int | None = None
    ) -> list[OffloadReport]:
        """Archive sealed parts of the logs now."""

    def list_archived_parts(self) -> AsyncGenerator[ArchivedEntry, None]:
        """The parts in the archive, container by container, oldest first."""

    async def remove_archived_parts(self, before: int, container: int) -> RemovedParts:
        """Take parts of a container's log out of the archive."""

    async def export_catalog(self) -> list[CatalogExport]:
        """Put a snapshot of the catalog of each container into Tier 2."""

    async def process_mailbox(self) -> int:
        """Answer what jobs ask, now; gives the number of answers."""

    def wake_mailbox(self) -> None:
        """Have the mailboxes polled now, and wait for nothing."""

    async def fetch_stats(self) -> StoreStats:
        """Numbers by container and part."""

    async def fetch_health(self) -> StoreHealth:
        """How host, containers and parts are, and whether all that is assigned is served."""

    async def fetch_metrics_text(self) -> bytes:
        """The same as Prometheus reads it."""
