"""ClusterStore: a store that several hosts serve between them, with the API of an embedded one.

Which call is made again after which failure: docs/decisions/0071-retries-of-a-cluster-client.md.
"""

from __future__ import annotations

import asyncio
import random
import uuid
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from segmentstore.arguments import (
    check_loop,
    checked_data,
    checked_ids,
    checked_offset,
    checked_updates,
    checked_wait,
    failed_future,
)
from segmentstore.client.cluster_calls import ClusterCalls
from segmentstore.client.cluster_listing import listed_segments
from segmentstore.client.cluster_writer import ClusterWriter
from segmentstore.client.container_appends import ContainerAppends
from segmentstore.client.host_connections import HostConnections, Reach
from segmentstore.client.merged_metrics import merged_metrics
from segmentstore.client.merged_stats import merged_stats
from segmentstore.client.owner_lookup import OwnerLookup, Search
from segmentstore.client.remote_sessions import RemoteAttributes, RemoteReader
from segmentstore.client.remote_store import RemoteStore, checked_name
from segmentstore.client.store_addresses import StoreAddress
from segmentstore.client.unanswered_bytes import UnansweredBytes
from segmentstore.contracts import forks
from segmentstore.contracts.attributes import AttributeUpdate
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    AppendOutcomeUnknownError,
    BadOffsetError,
    ContainerMismatchError,
    InvalidArgumentError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentSealedError,
    SegmentStoreError,
)
from segmentstore.contracts.findings import Finding
from segmentstore.contracts.health_tree import StoreHealth, joined_health
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
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.contracts.segments import NAME_BYTES_MAX, Merged, SegmentInfo
from segmentstore.stats_types import StoreStats
from segmentstore.wire.store_commands import ANY_SEGMENT

T = TypeVar("T")

_NAMES_MAX: Final = 100_000


class ClusterStore:
    """A store on a cluster. Made by `segmentstore.connect`; used on the event loop that made it.

    Every call means what that of `segmentstore.SegmentStore` means. A call goes to the host that
    serves the container of its segment, and follows the container when it moves. It is made again
    as long as it had no effect, for `retry_s`; then the last error is raised. A change whose
    outcome is unknown raises AppendOutcomeUnknownError; exactly-once writers send it again.
    """

    def __init__(
        self, lookup: OwnerLookup, hosts: HostConnections, rng: random.Random, retry_s: float
    ) -> None:
        """`lookup` has a map."""
        self._lookup = lookup
        self._hosts = hosts
        self._calls = ClusterCalls(lookup, hosts, rng, retry_s)
        self._room = UnansweredBytes()
        self._appends: dict[int, ContainerAppends] = {}
        self._homes: dict[str, int] = {}
        """The containers of names that were used."""
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
        """Wait for what was sent to be answered, and close the connections. Idempotent.

        The store stays open. In a forked child it does nothing.
        """
        if self._birth.here:
            self._check_loop()
            if self._closing is None:
                self._closing = own_task(self._calls.close(), name="close connections")
            await asyncio.shield(self._closing)

    @property
    def store_id(self) -> str:
        """The store's id: a restored store has another one."""
        return self._lookup.map.store_id

    @property
    def append_bytes_max(self) -> int:
        """The largest append or batch that the store takes."""
        return self._lookup.map.append_bytes_max

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
            container = self._home(name)
            payload = checked_data(data, self.append_bytes_max)
            if attributes != ():
                checked_updates(attributes)
                attributes = tuple(attributes)
            if expected_offset is not None:
                checked_offset("expected_offset", expected_offset)
            appends = self._appends.get(container)
            if appends is None:
                appends = ContainerAppends(container, self._calls, self._room)
                self._appends[container] = appends
            return appends.append(name, payload, expected_offset, attributes)
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

    def writer(self, name: str, writer_id: uuid.UUID) -> ClusterWriter:
        """An exactly-once writer session: `async with store.writer(name, id) as writer`."""
        container = self._checked_home(name)
        if not isinstance(writer_id, uuid.UUID):
            raise InvalidArgumentError("writer_id", writer_id, "a writer's id is a uuid.UUID")
        return ClusterWriter(self._calls, self._room, container, name, writer_id, self)

    # --- reads ------------------------------------------------------------------------------------

    async def read(
        self, name: str, offset: int, max_length: int, wait: float | None = None
    ) -> bytes:
        """At least one and at most `max_length` bytes from `offset`, and 4 MiB at most."""
        self._checked_home(name)
        checked_offset("offset", offset)
        checked_offset("max_length", max_length, low=1)
        checked_wait(wait)
        return await self._read(name, ANY_SEGMENT, offset, max_length, wait)

    async def _read(
        self, name: str, segment_id: int, offset: int, length_max: int, wait: float | None
    ) -> bytes:
        until_s = None if wait is None else self._loop.time() + wait

        async def read(store: RemoteStore) -> bytes:
            left = None if until_s is None else max(until_s - self._loop.time(), 0.0)
            return await store.read_by_id(name, segment_id, offset, length_max, left)

        return await self._call(name, read)

    def reader(self, name: str, offset: int = 0, *, follow: bool = False) -> RemoteReader:
        """An async iterator of chunks from `offset`; with `follow` it waits for more until the
        segment is sealed. It goes on at its offset on the new owner of a container that moves.

        SegmentNotFoundError comes with the first chunk.
        """
        self._checked_home(name)
        checked_offset("offset", offset)
        return RemoteReader(self._read, name, self._id_of, self, offset, follow=follow)

    # --- segments ---------------------------------------------------------------------------------

    async def create_segment(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentInfo:
        """Make an empty segment."""

        async def create(store: RemoteStore) -> SegmentInfo:
            return await store.create_segment(name, attributes)

        async def again(store: RemoteStore, lost: AppendOutcomeUnknownError) -> SegmentInfo:
            try:
                return await create(store)
            except SegmentExistsError:
                raise lost from None  # created by this client, or by another

        return await self._call(name, create, again)

    async def get_info(self, name: str) -> SegmentInfo:
        """The segment's properties, as acknowledged."""
        return await self._call(name, lambda store: store.get_info(name))

    async def list_segments(self, prefix: str = "") -> AsyncGenerator[SegmentInfo, None]:
        """Segments whose names begin with `prefix`, by name; each as it is when its part of the
        listing is read, about 1 MiB of each host at a time.
        """
        self._check_open()
        if not isinstance(prefix, str):
            raise InvalidArgumentError("prefix", prefix, "a prefix is a str")
        if len(prefix) > NAME_BYTES_MAX:
            return
        async with aclosing(listed_segments(self._calls, prefix)) as listed:
            async for info in listed:
                yield info

    async def seal(self, name: str) -> int:
        """Allow no more appends, ever; gives the final length."""

        async def again(store: RemoteStore, _lost: AppendOutcomeUnknownError) -> int:
            try:
                return await store.seal(name)
            except SegmentSealedError:
                return (await store.get_info(name)).length

        return await self._call(name, lambda store: store.seal(name), again)

    async def truncate(self, name: str, offset: int) -> None:
        """Drop the bytes below `offset`."""
        self._checked_home(name)
        checked_offset("offset", offset)

        async def again(store: RemoteStore, _lost: AppendOutcomeUnknownError) -> None:
            try:
                await store.truncate(name, offset)
            except BadOffsetError:
                if (await store.get_info(name)).start_offset < offset:
                    raise

        await self._call(name, lambda store: store.truncate(name, offset), again)

    async def merge(
        self, target: str, source: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> Merged:
        """Append the whole source to the target and delete the source, as one step."""
        container, of_source = self._checked_home(target), self._checked_home(source)
        checked_updates(attributes)
        if container != of_source:
            await self.get_info(target)
            await self.get_info(source)
            raise ContainerMismatchError(target, source, container, of_source)
        return await self._call(target, lambda store: store.merge(target, source, attributes))

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge several segments into one, in their order; gives the target's length behind each.

        It is not one step, nor in pieces of more than 1,000 sources.
        """
        container = self._checked_home(target)
        if isinstance(sources, str) or not isinstance(sources, Sequence):
            raise InvalidArgumentError("sources", sources, "it is a sequence of names")
        for source in sources:
            if container != (of_source := self._checked_home(source)):
                raise ContainerMismatchError(target, source, container, of_source)
        return await self._call(target, lambda store: store.merge_batch(target, sources))

    async def delete(self, name: str) -> None:
        """Remove the segment and all its bytes."""

        async def again(store: RemoteStore, lost: AppendOutcomeUnknownError) -> None:
            # It is not deleted again: it may have been made anew.
            try:
                await store.get_info(name)
            except SegmentNotFoundError:
                return
            raise lost

        await self._call(name, lambda store: store.delete(name), again)

    # --- attributes -------------------------------------------------------------------------------

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes, all or none."""
        await self._call(name, lambda store: store.update_attributes(name, updates))

    async def get_attributes(
        self, name: str, ids: Iterable[uuid.UUID] | None = None
    ) -> dict[uuid.UUID, int]:
        """The segment's attributes in order of id, or those of `ids` that have a value."""
        if ids is None:
            return {key: value async for key, value in self.iterate_attributes(name)}
        wanted = checked_ids(ids)
        return await self._call(name, lambda store: store.get_attributes(name, wanted))

    def iterate_attributes(
        self, name: str, from_id: uuid.UUID | None = None, to_id: uuid.UUID | None = None
    ) -> RemoteAttributes:
        """The segment's attributes with ids from `from_id` to `to_id`, both included, by id.

        SegmentNotFoundError comes with the first attribute.
        """
        self._checked_home(name)
        for argument, bound in (("from_id", from_id), ("to_id", to_id)):
            if bound is not None and not isinstance(bound, uuid.UUID):
                raise InvalidArgumentError(argument, bound, "it is None or a uuid.UUID")
        return RemoteAttributes(self._attributes, name, self._id_of, self, from_id, to_id)

    async def _attributes(
        self, name: str, segment_id: int, start: bytes, last: bytes
    ) -> list[tuple[uuid.UUID, int]]:
        return await self._call(name, lambda store: store.list_by_id(name, segment_id, start, last))

    # --- the store --------------------------------------------------------------------------------

    async def flush(self, name: str | None = None) -> None:
        """Move everything acknowledged so far (of one segment, or of all) to Tier 2."""
        if name is None:
            await self._each_owner(RemoteStore.flush)
            return

        async def again(store: RemoteStore, _lost: AppendOutcomeUnknownError) -> None:
            await store.flush(name)

        await self._call(name, lambda store: store.flush(name), again)

    async def checkpoint(self) -> None:
        """Write a metadata checkpoint in every container, then truncate the logs."""
        await self._each_owner(RemoteStore.checkpoint)

    def list_frames(self) -> AsyncGenerator[FrameEntry, None]:
        """The frames of the logs up to now, host by host; it does not follow a move."""
        return self._of_each_host(RemoteStore.list_frames)

    def list_operations(self) -> AsyncGenerator[OperationEntry, None]:
        """The operations in the logs up to now, host by host; it does not follow a move."""
        return self._of_each_host(RemoteStore.list_operations)

    def list_blocks(self, segment: str | None = None) -> AsyncGenerator[BlockEntry, None]:
        """What is in Tier 2 of a segment, or of all, and objects that wait for their deletion; host
        by host, and it does not follow a move.
        """
        if segment is not None:
            self._checked_home(segment)
        return self._of_each_host(lambda store: store.list_blocks(segment))

    def find_garbage(self) -> AsyncGenerator[GarbageItem | Finding, None]:
        """What `collect_garbage` would find now, in no order; changes nothing."""
        return self._of_each_host(RemoteStore.find_garbage)

    async def collect_garbage(self) -> GarbageReport:
        """Search all of Tier 2 for orphans and garbage now, and delete what is due."""
        reports = await self._each_owner(RemoteStore.collect_garbage)
        found: dict[GarbageItem | Finding, None] = {}
        for report in reports:
            found.update(dict.fromkeys(report.items))
            found.update(dict.fromkeys(report.findings))
        return GarbageReport.of(found)

    async def offload_prefix(
        self, before: int | None = None, container: int | None = None
    ) -> list[OffloadReport]:
        """Archive sealed parts of the logs now."""
        if container is not None:
            return await self._of_container(
                container, lambda store: store.offload_prefix(before, container)
            )
        reports = await self._each_owner(lambda store: store.offload_prefix(before))
        return sorted((each for some in reports for each in some), key=_container_id)

    def list_archived_parts(self) -> AsyncGenerator[ArchivedEntry, None]:
        """The parts in the archive, host by host; it does not follow a move."""
        return self._of_each_host(RemoteStore.list_archived_parts)

    async def remove_archived_parts(self, before: int, container: int) -> RemovedParts:
        """Take parts of a container's log out of the archive."""
        return await self._of_container(
            container, lambda store: store.remove_archived_parts(before, container)
        )

    async def export_catalog(self) -> list[CatalogExport]:
        """Put a snapshot of the catalog of each container into Tier 2."""
        exports = await self._each_owner(RemoteStore.export_catalog)
        return sorted((each for some in exports for each in some), key=_container_id)

    async def process_mailbox(self) -> int:
        """Answer what jobs ask, now; gives the number of answers."""
        return sum(await self._each_owner(RemoteStore.process_mailbox))

    def wake_mailbox(self) -> None:
        """Have the mailboxes of the connected hosts polled now, and wait for nothing."""
        self._check_open()
        for address in self._lookup.map.hosts:
            if (store := self._hosts.connected(address)) is not None:
                store.wake_mailbox()

    async def fetch_stats(self) -> StoreStats:
        """Numbers by container and part, of all hosts that answer now."""
        self._check_open()
        return merged_stats(await self._calls.each_host(RemoteStore.fetch_stats))

    async def fetch_health(self) -> StoreHealth:
        """How the hosts that answer now are, with their containers and parts."""
        self._check_open()
        return joined_health(await self._calls.each_host(RemoteStore.fetch_health))

    async def fetch_metrics_text(self) -> bytes:
        """The numbers of all hosts that answer now as Prometheus reads them, by host."""
        self._check_open()

        async def fetch(store: RemoteStore) -> tuple[str, bytes]:
            return store.connection.location, await store.fetch_metrics_text()

        return merged_metrics(await self._calls.each_host(fetch))

    def watch(self, used: object, close: Callable[[], object]) -> None:
        """When `used`, by which the program has the store, is collected: warn, and call `close`."""
        # At the end of the process everything is released.
        weakref.finalize(used, self._hosts.drop, close).atexit = False

    # --- helpers ----------------------------------------------------------------------------------

    def _check_loop(self) -> None:
        check_loop(self._loop, self._birth)

    def _check_open(self) -> None:
        self._check_loop()
        self._calls.check_open()

    def _home(self, name: object) -> int:
        """The container of a name. Raises InvalidNameError."""
        home = self._homes.get(name) if isinstance(name, str) else None
        if home is None:
            name = checked_name(name)
            home = container_of(name, self._lookup.map.containers)
            if len(self._homes) >= _NAMES_MAX:
                self._homes.clear()
            self._homes[name] = home
        return home

    def _checked_home(self, name: object) -> int:
        """The same at the door of a call. Raises StoreClosedError, WrongEventLoopError, too."""
        self._check_open()
        return self._home(name)

    async def _id_of(self, name: str) -> int:
        return (await self.get_info(name)).segment_id

    async def _call(
        self,
        name: str,
        work: Callable[[RemoteStore], Awaitable[T]],
        again: Callable[[RemoteStore, AppendOutcomeUnknownError], Awaitable[T]] | None = None,
    ) -> T:
        return await self._calls.call(self._checked_home(name), work, again)

    async def _of_container(self, container: int, work: Callable[[RemoteStore], Awaitable[T]]) -> T:
        self._check_open()
        if not (type(container) is int and 0 <= container < self._lookup.map.containers):
            raise InvalidArgumentError("container", container, "it is a container of the store")

        async def again(store: RemoteStore, _lost: AppendOutcomeUnknownError) -> T:
            return await work(store)

        return await self._calls.call(container, work, again)

    async def _each_owner(self, work: Callable[[RemoteStore], Awaitable[T]]) -> list[T]:
        self._check_open()
        return await self._calls.each_owner(work)

    async def _of_each_host(
        self, listing: Callable[[RemoteStore], AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        self._check_open()
        for address in sorted(set(self._lookup.map.owners.values())):
            store = await self._hosts.store(address)
            async with aclosing(listing(store)) as rows:
                async for row in rows:
                    yield row


def _container_id(export: CatalogExport | OffloadReport) -> int:
    return export.container_id


async def cluster_store(
    location: str,
    seeds: Sequence[StoreAddress],
    reach: Reach,
    rng: random.Random,
    retry_s: float,
    search: Search | None = None,
    store_id: str | None = None,
) -> ClusterStore:
    """The store of the cluster that the hosts at these addresses belong to.

    With `search` the addresses, and the id of the store, are what it has just found. It is done
    again when they are of no use any more. Raises StoreUnreachableError, AccessRefusedError.
    """
    hosts = HostConnections(location, reach, store_id)
    lookup = OwnerLookup(seeds, hosts, rng, search)
    try:
        await lookup.renew(lookup.generation)
        store = ClusterStore(lookup, hosts, rng, retry_s)
    except BaseException:
        lookup.abort()
        hosts.abort()
        raise
    # At the end of the process everything is released.
    weakref.finalize(store, hosts.drop).atexit = False
    return store
