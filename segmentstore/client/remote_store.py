"""RemoteStore: a store that another process has open, with the API of an embedded one."""

from __future__ import annotations

import asyncio
import uuid
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self, cast

from segmentstore.arguments import (
    check_loop,
    checked_data,
    checked_ids,
    checked_offset,
    checked_updates,
    checked_wait,
    failed_future,
)
from segmentstore.client.client_connection import ClientConnection
from segmentstore.client.remote_listings import listed_rows
from segmentstore.client.remote_sessions import (
    RemoteAttributes,
    RemoteReader,
    RemoteWriter,
)
from segmentstore.contracts import forks
from segmentstore.contracts.attributes import AttributeUpdate
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    InvalidArgumentError,
    SegmentStoreError,
)
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.health_tree import StoreHealth
from segmentstore.contracts.owned_tasks import own_task
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
from segmentstore.contracts.segments import (
    NAME_BYTES_MAX,
    Merged,
    SegmentInfo,
    check_segment_name,
)
from segmentstore.stats_types import StoreStats
from segmentstore.wire.commands import Request
from segmentstore.wire.store_commands import (
    ANY_SEGMENT,
    DELETE,
    FLUSH,
    NO_LIMIT,
    SEAL,
    TRUNCATE,
    AppendBytes,
    AttributesGiven,
    BytesGiven,
    ChangeSegment,
    DescribeHosts,
    DescribeSegment,
    DescribeStore,
    HostsDescribed,
    ListAttributes,
    ListSegments,
    MakeSegment,
    ManageStore,
    MergeSegment,
    MergeSegmentList,
    NumbersGiven,
    ReadAttributes,
    ReadBytes,
    SegmentsGiven,
    StoreDescribed,
    UpdateAttributes,
)
from segmentstore.wire.store_documents import (
    ARCHIVED,
    BLOCKS,
    CHECKPOINT,
    COLLECTED,
    DRAIN,
    EXPORT_CATALOG,
    FLUSH_ALL,
    FRAMES,
    GARBAGE,
    HEALTH,
    METRICS,
    OFFLOADED,
    OPERATIONS,
    PROCESS_MAILBOX,
    REMOVED,
    STATS,
    WAKE_MAILBOX,
    decode_exports,
    decode_health,
    decode_number,
    decode_numbers,
    decode_stats,
    encode_numbers_or_none,
)
from segmentstore.wire.store_values import segment_info, update_entries

_SOURCES_MAX: Final = 1_000
"""Of one request of `merge_batch`."""
_IDS_MAX: Final = 65_536


class RemoteStore:
    """A connection to an open store. Made by `segmentstore.connect`; used on the event loop that
    made it.

    Every call means what that of `segmentstore.SegmentStore` means, and raises the same errors.
    Besides, it raises StoreDisconnectedError once the connection has ended; a change in flight then
    raises AppendOutcomeUnknownError. Appends that the store has not answered are at most 64 MiB
    (TierUnavailableError).
    """

    def __init__(self, connection: ClientConnection, described: StoreDescribed) -> None:
        self._connection = connection
        self._store_id = described.store_id
        self._append_bytes_max = described.append_bytes_max
        self._containers = described.containers
        self._served = described.served
        self._loop = asyncio.get_running_loop()
        self._birth = forks.Birth()
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for what was sent to be answered, and close the connection. Idempotent.

        The store stays open. In a forked child it does nothing.
        """
        if self._birth.here:
            self._check_loop()
            if self._closing is None:
                self._closing = own_task(self._connection.close(), name="close connection")
            await asyncio.shield(self._closing)

    def abort(self) -> None:
        """Close the connection at once: what was sent and has no reply is of unknown outcome.

        Idempotent. In a forked child it does nothing.
        """
        if self._birth.here:
            self._check_loop()
            self._connection.close_now()

    @property
    def connection(self) -> ClientConnection:
        """What it asks through."""
        return self._connection

    @property
    def store_id(self) -> str:
        """The store's id: a restored store has another one."""
        return self._store_id

    @property
    def append_bytes_max(self) -> int:
        """The largest append or batch that the store takes."""
        return self._append_bytes_max

    @property
    def not_served(self) -> list[int]:
        """The containers of the store that its process does not serve."""
        return sorted(set(range(self._containers)).difference(self._served))

    # --- hosts ------------------------------------------------------------------------------------

    async def fetch_hosts(self) -> HostsDescribed:
        """Which process serves which container of the store, as this one knows it."""
        request_id = self._connection.next_id()
        return await self._connection.ask(DescribeHosts(request_id), request_id, HostsDescribed)

    async def fetch_served(self) -> set[int]:
        """The containers that the process serves now."""
        request_id = self._connection.next_id()
        command = DescribeStore(request_id)
        return set((await self._connection.ask(command, request_id, StoreDescribed)).served)

    def probe(self) -> None:
        """Have the process send something, if it is there."""
        request_id = self._connection.next_id()
        reply = self._connection.ask(DescribeStore(request_id), request_id, StoreDescribed)
        reply.add_done_callback(asyncio.Future.exception)

    # --- appends ----------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        data: Buffer,
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> asyncio.Future[int]:
        """Append bytes; see `segmentstore.SegmentStore.append`."""
        self._check_loop()
        try:
            checked_name(name)
            payload = checked_data(data, self._append_bytes_max)
            if expected_offset is None and attributes == ():
                return self._connection.append(name, payload)
            updates = update_entries(checked_updates(attributes))
            expected = NO_LIMIT
            if expected_offset is not None:
                checked_offset("expected_offset", expected_offset)
                expected = expected_offset
            request_id = self._connection.next_id()
            return self._connection.append_if(
                AppendBytes(request_id, expected, name, updates, payload)
            )
        except SegmentStoreError as error:
            return failed_future(error)

    def append_batch(
        self,
        name: str,
        items: Iterable[Buffer],
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = (),
    ) -> asyncio.Future[int]:
        """Append several byte strings as one: atomic and contiguous."""
        try:
            data = b"".join(items)
        except TypeError:
            detail = "a batch is an iterable of bytes, bytearray or memoryview"
            return failed_future(InvalidArgumentError("items", type(items).__name__, detail))
        return self.append(name, data, expected_offset, attributes)

    def writer(self, name: str, writer_id: uuid.UUID) -> RemoteWriter:
        """An exactly-once writer session: `async with store.writer(name, id) as writer`."""
        self._check(name)
        if not isinstance(writer_id, uuid.UUID):
            raise InvalidArgumentError("writer_id", writer_id, "a writer's id is a uuid.UUID")
        return RemoteWriter(self._connection, name, self, writer_id)

    # --- reads ------------------------------------------------------------------------------------

    async def read(
        self, name: str, offset: int, max_length: int, wait: float | None = None
    ) -> bytes:
        """At least one and at most `max_length` bytes from `offset`, and 4 MiB at most."""
        self._check(name)
        checked_offset("offset", offset)
        checked_offset("max_length", max_length, low=1)
        checked_wait(wait)
        return await self.read_by_id(name, ANY_SEGMENT, offset, max_length, wait)

    async def read_by_id(
        self, name: str, segment_id: int, offset: int, length_max: int, wait: float | None
    ) -> bytes:
        """As `read`, but only if the segment has this id; ANY_SEGMENT: whichever has the name.

        Cancelled, the store stops waiting for bytes, too.
        """
        connection = self._connection
        request_id = connection.next_id()
        wait_ms = NO_LIMIT if wait is None else int(min(wait * 1000, 2.0**53))
        command = ReadBytes(request_id, segment_id, offset, length_max, wait_ms, name)
        try:
            reply = await connection.ask(command, request_id, BytesGiven)
        except asyncio.CancelledError:
            connection.cancel_read(request_id)
            raise
        return bytes(reply.data)

    def reader(self, name: str, offset: int = 0, *, follow: bool = False) -> RemoteReader:
        """An async iterator of chunks from `offset`; with `follow` it waits for more until the
        segment is sealed.

        SegmentNotFoundError comes with the first chunk.
        """
        self._check(name)
        checked_offset("offset", offset)
        return RemoteReader(self.read_by_id, name, self._id_of, self, offset, follow=follow)

    # --- segments ---------------------------------------------------------------------------------

    async def create_segment(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentInfo:
        """Make an empty segment."""
        self._check(name)
        updates = update_entries(checked_updates(attributes))
        request_id = self._connection.next_id()
        command = MakeSegment(request_id, check_segment_name(name), updates)
        reply = await self._connection.ask(command, request_id, SegmentsGiven, changes=True)
        return segment_info(reply.segments[0])

    async def get_info(self, name: str) -> SegmentInfo:
        """The segment's properties, as acknowledged."""
        self._check(name)
        request_id = self._connection.next_id()
        command = DescribeSegment(request_id, name)
        reply = await self._connection.ask(command, request_id, SegmentsGiven)
        return segment_info(reply.segments[0])

    async def list_segments(self, prefix: str = "") -> AsyncGenerator[SegmentInfo, None]:
        """Segments whose names begin with `prefix`, by name; each as it is when its part of the
        listing is read, about 1 MiB at a time.
        """
        self._check_loop()
        if not isinstance(prefix, str):
            raise InvalidArgumentError("prefix", prefix, "a prefix is a str")
        if len(prefix) > NAME_BYTES_MAX:
            return
        after, more = "", True
        while more:
            infos, more = await self.list_part(prefix, after)
            for info in infos:
                yield info
            after = infos[-1].name if more else ""

    async def list_part(self, prefix: str, after: str) -> tuple[list[SegmentInfo], bool]:
        """The segments behind a name, about 1 MiB of them, and whether there are more."""
        request_id = self._connection.next_id()
        command = ListSegments(request_id, prefix, after)
        reply = await self._connection.ask(command, request_id, SegmentsGiven)
        return [*map(segment_info, reply.segments)], reply.more and bool(reply.segments)

    async def seal(self, name: str) -> int:
        """Allow no more appends, ever; gives the final length."""
        return (await self._change(SEAL, name))[0]

    async def truncate(self, name: str, offset: int) -> None:
        """Drop the bytes below `offset`."""
        self._check(name)
        checked_offset("offset", offset)
        await self._change(TRUNCATE, name, offset)

    async def merge(
        self, target: str, source: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> Merged:
        """Append the whole source to the target and delete the source, as one step."""
        self._check(target)
        checked_name(source)
        updates = update_entries(checked_updates(attributes))
        request_id = self._connection.next_id()
        command = MergeSegment(request_id, target, source, updates)
        return Merged(*await self._numbers(command, request_id))

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge several segments into one, in their order; gives the target's length behind each.

        It is not one step, nor in pieces of more than 1,000 sources.
        """
        self._check(target)
        if isinstance(sources, str) or not isinstance(sources, Sequence):
            raise InvalidArgumentError("sources", sources, "it is a sequence of names")
        for source in sources:
            checked_name(source)
        lengths: list[int] = []
        for first in range(0, max(len(sources), 1), _SOURCES_MAX):
            request_id = self._connection.next_id()
            part = tuple(sources[first : first + _SOURCES_MAX])
            command = MergeSegmentList(request_id, target, part)
            lengths += await self._numbers(command, request_id)
        return lengths

    async def delete(self, name: str) -> None:
        """Remove the segment and all its bytes."""
        await self._change(DELETE, name)

    # --- attributes -------------------------------------------------------------------------------

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes, all or none."""
        self._check(name)
        entries = update_entries(checked_updates(updates))
        request_id = self._connection.next_id()
        await self._numbers(UpdateAttributes(request_id, name, entries), request_id)

    async def get_attributes(
        self, name: str, ids: Iterable[uuid.UUID] | None = None
    ) -> dict[uuid.UUID, int]:
        """The segment's attributes in order of id, or those of `ids` that have a value."""
        if ids is None:
            return {key: value async for key, value in self.iterate_attributes(name)}
        self._check(name)
        wanted = [each.bytes for each in checked_ids(ids)]
        values: dict[uuid.UUID, int] = {}
        for first in range(0, max(len(wanted), 1), _IDS_MAX):
            request_id = self._connection.next_id()
            command = ReadAttributes(request_id, name, tuple(wanted[first : first + _IDS_MAX]))
            reply = await self._connection.ask(command, request_id, AttributesGiven)
            values.update((uuid.UUID(bytes=key), value) for key, value in reply.attributes)
        return values

    def iterate_attributes(
        self, name: str, from_id: uuid.UUID | None = None, to_id: uuid.UUID | None = None
    ) -> RemoteAttributes:
        """The segment's attributes with ids from `from_id` to `to_id`, both included, by id.

        SegmentNotFoundError comes with the first attribute.
        """
        self._check(name)
        self._connection.check()
        for argument, bound in (("from_id", from_id), ("to_id", to_id)):
            if bound is not None and not isinstance(bound, uuid.UUID):
                raise InvalidArgumentError(argument, bound, "it is None or a uuid.UUID")
        return RemoteAttributes(self.list_by_id, name, self._id_of, self, from_id, to_id)

    async def list_by_id(
        self, name: str, segment_id: int, start: bytes, last: bytes
    ) -> list[tuple[uuid.UUID, int]]:
        """Attributes from `start` to `last` of the segment of this id, a slice of them."""
        request_id = self._connection.next_id()
        command = ListAttributes(request_id, segment_id, start, last, name)
        reply = await self._connection.ask(command, request_id, AttributesGiven)
        return [(uuid.UUID(bytes=key), value) for key, value in reply.attributes]

    # --- the store --------------------------------------------------------------------------------

    async def flush(self, name: str | None = None) -> None:
        """Move everything acknowledged so far (of one segment, or of all) to Tier 2."""
        if name is None:
            await self._manage(FLUSH_ALL)
        else:
            await self._change(FLUSH, name)

    async def checkpoint(self) -> None:
        """Write a metadata checkpoint in every container, then truncate the logs."""
        await self._manage(CHECKPOINT)

    def list_frames(self) -> AsyncGenerator[FrameEntry, None]:
        """The frames of the logs up to now, container by container."""
        self._check_loop()
        return listed_rows(self._connection, FRAMES)

    def list_operations(self) -> AsyncGenerator[OperationEntry, None]:
        """The operations in the logs up to now."""
        self._check_loop()
        return listed_rows(self._connection, OPERATIONS)

    def list_blocks(self, segment: str | None = None) -> AsyncGenerator[BlockEntry, None]:
        """What is in Tier 2 of a segment, or of all, and objects that wait for their deletion."""
        self._check_loop()
        if segment is not None:
            checked_name(segment)
        return listed_rows(self._connection, BLOCKS, segment or "")

    def find_garbage(self) -> AsyncGenerator[GarbageItem | Finding, None]:
        """What `collect_garbage` would find now, in no order; changes nothing."""
        self._check_loop()
        return listed_rows(self._connection, GARBAGE)

    async def collect_garbage(self) -> GarbageReport:
        """Search all of Tier 2 for orphans and garbage now, and delete what is due."""
        self._check_loop()
        found = [each async for each in listed_rows(self._connection, COLLECTED)]
        return GarbageReport.of(found)

    async def offload_prefix(
        self, before: int | None = None, container: int | None = None
    ) -> list[OffloadReport]:
        """Archive sealed parts of the logs now."""
        self._check_loop()
        chosen = encode_numbers_or_none(before, container)
        return [each async for each in listed_rows(self._connection, OFFLOADED, chosen)]

    def list_archived_parts(self) -> AsyncGenerator[ArchivedEntry, None]:
        """The parts in the archive, container by container, oldest first."""
        self._check_loop()
        return listed_rows(self._connection, ARCHIVED)

    async def remove_archived_parts(self, before: int, container: int) -> RemovedParts:
        """Take parts of a container's log out of the archive."""
        self._check_loop()
        chosen = encode_numbers_or_none(before, container)
        (removed,) = [each async for each in listed_rows(self._connection, REMOVED, chosen)]
        assert isinstance(removed, RemovedParts)
        return removed

    async def export_catalog(self) -> list[CatalogExport]:
        """Put a snapshot of the catalog of each container of the process into Tier 2."""
        return decode_exports(await self._manage(EXPORT_CATALOG))

    async def process_mailbox(self) -> int:
        """Answer what jobs ask, now; gives the number of answers."""
        return decode_number(await self._manage(PROCESS_MAILBOX))

    def wake_mailbox(self) -> None:
        """Have the mailboxes polled now, and wait for nothing."""
        self._check_loop()
        self._connection.check()
        self._connection.tell(ManageStore(self._connection.next_id(), WAKE_MAILBOX))

    async def fetch_stats(self) -> StoreStats:
        """Numbers by container and part."""
        return cast("StoreStats", decode_stats(await self._manage(STATS)))

    async def fetch_health(self) -> StoreHealth:
        """How host, containers and parts are, and whether all that is assigned is served."""
        return decode_health(await self._manage(HEALTH))

    async def drain(self) -> list[int]:
        """Have the other hosts of the cluster take over what this process serves; what is left."""
        return decode_numbers(await self._manage(DRAIN))

    async def fetch_metrics_text(self) -> bytes:
        """The same as Prometheus reads it."""
        return bytes(await self._manage(METRICS))

    def watch(self, used: object, close: Callable[[], object]) -> None:
        """When `used`, by which the program has the store, is collected: warn, and call `close`."""
        # At the end of the process everything is released.
        weakref.finalize(used, self._connection.drop, close).atexit = False

    # --- helpers ----------------------------------------------------------------------------------

    def _check_loop(self) -> None:
        check_loop(self._loop, self._birth)

    def _check(self, name: object) -> None:
        self._check_loop()
        checked_name(name)

    async def _id_of(self, name: str) -> int:
        return (await self.get_info(name)).segment_id

    async def _change(self, change: int, name: str, offset: int = 0) -> Sequence[int]:
        self._check(name)
        request_id = self._connection.next_id()
        return await self._numbers(ChangeSegment(request_id, change, offset, name), request_id)

    async def _numbers(self, command: Request, request_id: int) -> Sequence[int]:
        reply = await self._connection.ask(command, request_id, NumbersGiven, changes=True)
        return reply.numbers

    async def _manage(self, action: str) -> Buffer:
        self._check_loop()
        request_id = self._connection.next_id()
        command = ManageStore(request_id, action)
        return (await self._connection.ask(command, request_id, BytesGiven)).data


def checked_name(name: object) -> str:
    """Raise InvalidNameError for what cannot be sent; the store decides what a name is."""
    if isinstance(name, str) and 1 <= len(name) <= NAME_BYTES_MAX:
        return name
    return check_segment_name(name)
