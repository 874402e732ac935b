"""SegmentStore: the Python API.

Checks the arguments, finds the container of a name, and calls it.

`append` enqueues at once and returns a future: a caller can have thousands in flight without a task
each. Appends to a segment are applied in the order of the calls. Under back-pressure alone, appends
to a segment that uses little may be applied before earlier ones to another. Everything else is a
coroutine.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from segmentstore.arguments import (
    checked_data,
    checked_ids,
    checked_offset,
    checked_updates,
    checked_wait,
    failed_future,
    running_loop,
)
from segmentstore.block_writer import BlockWriter
from segmentstore.config import StoreConfig
from segmentstore.container import SegmentContainer
from segmentstore.contracts import forks
from segmentstore.contracts.attributes import AttributeKey, AttributeUpdate, KeyedUpdate, next_key
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    ContainerMismatchError,
    InvalidArgumentError,
    InvalidNameError,
    SegmentStoreError,
    WrongEventLoopError,
)
from segmentstore.contracts.owned_tasks import gather_outcomes
from segmentstore.contracts.segment_mapper import container_of
from segmentstore.contracts.segments import (
    Merged,
    SegmentInfo,
    check_segment_name,
    may_be_stored,
)
from segmentstore.segment_listing import listed_segments, segment_info
from segmentstore.sessions import (
    AttributeIterator,
    SegmentReader,
    SegmentWriter,
)
from segmentstore.store_archive import StoreArchive
from segmentstore.store_containers import StoreContainers
from segmentstore.store_inspection import StoreInspection
from segmentstore.store_parts import StoreParts
from segmentstore.store_status import StoreStatus

if TYPE_CHECKING:
    from segmentstore.contracts.reports import CatalogExport

_NO_ATTRIBUTES: Final = ()
_HOMES_MAX = 100_000
_ATTRIBUTES_AT_ONCE = 1_000


class SegmentStore(StoreInspection, StoreArchive, StoreContainers, StoreStatus):
    """An open store. Created by `segmentstore.open`; used on the event loop that opened it.

    Every call raises WrongEventLoopError elsewhere. It may raise ContainerStoppedError (the
    container was closed, or failed: `cause` has the reason) or NotPrimaryError (another owner has
    the log; its kind ContainerNotServedError: the container is not served here). A change in flight
    when that happens raises AppendOutcomeUnknownError. In a forked child every call raises
    ForkedStoreError but `close`, which has nothing to release there and does nothing.

    A program that cancels all tasks of the loop closes the store by it, as `close()` does; so does
    the end of `asyncio.run`.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._config = parts.config
        self._append_bytes_max = parts.config.append_bytes_max
        self._homes = parts.registry.homes
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._birth = forks.Birth()
        forks.in_child(self, SegmentStore._begin_child)

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
        """Make accepted changes durable, resolve all waiting calls, release the store. Idempotent.

        Does not flush to Tier 2: what is not there yet is in the log and is recovered from it.
        """
        if self._birth.here:
            self._check_loop()
            await self._parts.close()

    @property
    def config(self) -> StoreConfig:
        """The settings in force."""
        return self._config

    @property
    def store_id(self) -> str:
        """The store's id: a restored store has another one."""
        return self._parts.store_id

    # --- appends ----------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        data: Buffer,
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = _NO_ATTRIBUTES,
    ) -> asyncio.Future[int]:
        """Append bytes; gives the offset at which they begin once they are durable.

        Enqueued by the call itself. Whole and contiguous or not at all; may be empty. With
        `expected_offset` only if the segment's length is that (BadOffsetError); with `attributes`
        only if all their conditions hold (BadAttributeUpdateError, checked first). Also
        TooManyAttributesError, SegmentNotFoundError, SegmentSealedError, AppendTooLargeError
        (above `append_bytes_max`), TierUnavailableError (too much waits already: nothing was
        taken). All errors come through the future, but WrongEventLoopError. Cost: a few
        microseconds and a share of one sync.
        """
        # A loop that runs in this thread is the running one, and asyncio asks the operating system
        # for the process's id before it says which. A forked child remembers no name (`_home`).
        if get_ident() != self._thread or not self._loop.is_running():
            self._check_loop()
            self._thread = get_ident()  # A program may go on with its loop in another thread.
        try:
            try:
                home = self._homes[name]
            except (KeyError, TypeError):
                home = None
            if home is None:
                # Not in the handler: its refusal would name a KeyError as its cause.
                home = self._home(name)
            payload = data
            if type(payload) is not bytes or len(payload) > self._append_bytes_max:
                payload = checked_data(data, self._append_bytes_max)
            updates: tuple[KeyedUpdate, ...] | None = None
            if attributes is not _NO_ATTRIBUTES:
                updates = checked_updates(attributes) or None
            if expected_offset is not None:
                checked_offset("expected_offset", expected_offset)
            # The future has None only for events.
            return home.append(  # type: ignore[return-value]
                name, payload, expected_offset, updates
            )
        except SegmentStoreError as error:
            return failed_future(error)

    def append_batch(
        self,
        name: str,
        items: Iterable[Buffer],
        expected_offset: int | None = None,
        attributes: Sequence[AttributeUpdate] = _NO_ATTRIBUTES,
    ) -> asyncio.Future[int]:
        """Append several byte strings as one: atomic and contiguous.

        Gives the offset of the first; otherwise as `append`.
        """
        try:
            data = b"".join(items)
        except TypeError:
            detail = "a batch is an iterable of bytes, bytearray or memoryview"
            return failed_future(InvalidArgumentError("items", type(items).__name__, detail))
        return self.append(name, data, expected_offset, attributes)

    def writer(self, name: str, writer_id: uuid.UUID) -> SegmentWriter:
        """An exactly-once writer session: `async with store.writer(name, id) as writer`.

        Raises SegmentNotFoundError: at once, or for an idle segment where the session is entered.
        """
        if not isinstance(writer_id, uuid.UUID):
            raise InvalidArgumentError("writer_id", writer_id, "a writer's id is a uuid.UUID")
        return SegmentWriter(self._home(name), name, writer_id, self._append_bytes_max, self)

    def block_writer(self, name: str, writer_id: uuid.UUID, count_id: uuid.UUID) -> BlockWriter:
        """Appends of a writer's blocks of events, for a server; `count_id` is the attribute that
        counts the segment's events.

        Raises SegmentNotFoundError: at once, or for an idle segment by its calls.
        """
        return BlockWriter(self._home(name), name, writer_id, count_id, self._append_bytes_max)

    def room(self, name: str, length: int) -> asyncio.Future[None] | None:
        """None: as far as what waits already, an append of `length` bytes is taken now.

        Otherwise a future that is done once it is, first come, first served. Append in a callback
        of it, or right behind its `await`: until then the room is reserved. The future raises why
        the container stops. O(1).
        """
        home = self._home(name)
        checked_offset("length", length)
        # A larger append is refused, whatever waits.
        return None if length > self._append_bytes_max else home.room(length)

    # --- reads ------------------------------------------------------------------------------------

    async def read(
        self, name: str, offset: int, max_length: int, wait: float | None = None
    ) -> bytes:
        """At least one and at most `max_length` bytes from `offset`, from wherever they lie.

        At the tail of an open segment: b"" at once, or after up to `wait` seconds without data.
        Raises EndOfSegmentError at the end of a sealed one, SegmentTruncatedError below the start
        offset, BadOffsetError beyond the length, SegmentNotFoundError, DataCorruptionError,
        TierUnavailableError.
        """
        home = self._home(name)
        checked_offset("offset", offset)
        checked_offset("max_length", max_length, low=1)
        checked_wait(wait)
        return await home.read(name, offset, max_length, wait)

    async def read_held(self, name: str, segment_id: int, offset: int, max_length: int) -> bytes:
        """What memory has from `offset` of the segment with this id: see `ReadIndex.read_held`."""
        return await self._home(name).read_held(segment_id, offset, max_length)

    def reader(self, name: str, offset: int = 0, *, follow: bool = False) -> SegmentReader:
        """An async iterator of chunks from `offset`; with `follow` it waits for more until the
        segment is sealed.

        Raises SegmentNotFoundError: at once, or for an idle segment with the first chunk.
        """
        checked_offset("offset", offset)
        return SegmentReader(
            self._home(name),
            name,
            offset,
            self._config.read_index.piece_bytes,
            follow=follow,
            keeps=self,
        )

    # --- segments ---------------------------------------------------------------------------------

    async def create_segment(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentInfo:
        """Make an empty segment.

        Raises SegmentExistsError, InvalidNameError, BadAttributeUpdateError,
        TooManyAttributesError.
        """
        home = self._home(name)
        if name not in self._homes:
            # One that no segment may be created with, though there may be one.
            check_segment_name(name)
        segment = await home.create_segment(name, checked_updates(attributes))
        return segment_info(segment, home.container_id)

    async def get_info(self, name: str) -> SegmentInfo:
        """The segment's properties, as acknowledged. O(1)."""
        home = self._home(name)
        async with home.segment(name) as segment:
            return segment_info(segment, home.container_id)

    async def list_segments(self, prefix: str = "") -> AsyncGenerator[SegmentInfo, None]:
        """Segments whose names begin with `prefix` at the start, by name; each as it is when given.

        Idle segments stay idle. O(n log n) of the n active ones, and O(names with the prefix), in
        slices between which other calls go on. Raises TierUnavailableError, DataCorruptionError.
        """
        self._check_running()
        if not isinstance(prefix, str):
            raise InvalidArgumentError("prefix", prefix, "a prefix is a str")
        async with aclosing(listed_segments(self._containers, prefix)) as listed:
            async for segment, container in listed:
                yield segment_info(segment, container.container_id)

    async def seal(self, name: str) -> int:
        """Allow no more appends, ever.

        Gives the final length. Raises SegmentSealedError if it is sealed already.
        """
        return await self._home(name).seal(name)

    async def truncate(self, name: str, offset: int) -> None:
        """Drop the bytes below `offset`: at once for readers, later from Tier 2.

        Raises BadOffsetError outside the segment.
        """
        home = self._home(name)
        checked_offset("offset", offset)
        await home.truncate(name, offset)

    async def merge(
        self, target: str, source: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> Merged:
        """Append the whole source to the target and delete the source, as one step.

        The source is sealed by it if it is not yet; its bytes are readable through the target at
        once. `attributes` are updates on the target: refused, they refuse the merge. Gives the
        offset in the target at which the source begins, and the target's length behind it. Raises
        ContainerMismatchError (the two live in different containers), SegmentSealedError (the
        target), SegmentTruncatedError (the source), BadAttributeUpdateError,
        TooManyAttributesError.
        """
        home, source_home = self._home(target), self._home(source)
        if target == source:
            raise InvalidArgumentError("source", source, "a segment cannot be merged into itself")
        updates = checked_updates(attributes)
        if home is not source_home:
            async with home.segment(target), source_home.segment(source):
                pass
            raise ContainerMismatchError(
                target, source, home.container_id, source_home.container_id
            )
        return await home.merge(target, source, updates)

    async def merge_batch(self, target: str, sources: Sequence[str]) -> list[int]:
        """Merge several segments into one, in their order; gives the target's length behind each.

        A source that does not exist counts as merged, so a batch whose outcome is unknown may be
        repeated. It is not one step: those before one that is refused are merged. Nothing comes
        between two that both exist, of each `active_segments_max` / 2 sources in turn. Raises
        SegmentNotFoundError (the target), and as `merge`.
        """
        home = self._home(target)
        if isinstance(sources, str) or not isinstance(sources, Sequence):
            raise InvalidArgumentError("sources", sources, "it is a sequence of names")
        for source in sources:
            source_home = self._home(source)
            if source == target:
                raise InvalidArgumentError("sources", source, "the target is none of them")
            if home is not source_home:
                raise ContainerMismatchError(
                    target, source, home.container_id, source_home.container_id
                )
        return await home.merge_batch(target, sources)

    async def delete(self, name: str) -> None:
        """Remove the segment and all its bytes; the name is free again, its id is not."""
        await self._home(name).delete(name)

    # --- attributes -------------------------------------------------------------------------------

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> None:
        """Update attributes, all or none.

        Raises BadAttributeUpdateError, TooManyAttributesError, SegmentSealedError.
        """
        home = self._home(name)
        keyed = checked_updates(updates)
        if keyed:
            await home.update_attributes(name, keyed)
        else:
            async with home.segment(name):
                pass

    async def get_attributes(
        self, name: str, ids: Iterable[uuid.UUID] | None = None
    ) -> dict[uuid.UUID, int]:
        """The segment's attributes in order of id, or those of `ids` that have a value.

        Without `ids` it costs the event loop about 2 ms for each 1,000 attributes, in one piece:
        `iterate_attributes` is for segments that have many. Of those that are not all in memory it
        reads parts, each as of its moment. Raises SegmentNotFoundError.
        """
        home = self._home(name)
        wanted = None if ids is None else checked_ids(ids)
        async with home.segment(name) as segment:
            if wanted is not None:
                found = await home.attributes(segment, [each.bytes for each in wanted])
                return {each: found[each.bytes] for each in wanted if each.bytes in found}
            values: dict[uuid.UUID, int] = {}
            start: AttributeKey | None = bytes(16)
            while start is not None:
                items, last = await home.attributes_from(segment, start, _ATTRIBUTES_AT_ONCE)
                values.update((uuid.UUID(bytes=key), value) for key, value in items)
                start = None if last is None else next_key(last)
            return values

    def iterate_attributes(
        self, name: str, from_id: uuid.UUID | None = None, to_id: uuid.UUID | None = None
    ) -> AttributeIterator:
        """The segment's attributes with ids from `from_id` to `to_id`, both included, by id.

        `async for attribute_id, value in store.iterate_attributes(name)`. None means no bound. It
        works in slices of some hundred attributes, and others on the loop have a turn in between.
        Each slice shows what is acknowledged by then. An attribute that is there all the time is
        given exactly once, with a value that it had meanwhile. One that is added or removed
        meanwhile is given once or not at all.

        Raises SegmentNotFoundError: at once, or for an idle segment with the first attribute; later
        also if the segment is deleted or merged away meanwhile.
        Cost: O(log attributes) for each slice, and about 2 us for each attribute.
        """
        home = self._home(name)
        home.check_running()
        for argument, bound in (("from_id", from_id), ("to_id", to_id)):
            if bound is not None and not isinstance(bound, uuid.UUID):
                raise InvalidArgumentError(argument, bound, "it is None or a uuid.UUID")
        return AttributeIterator(home, name, from_id, to_id, self)

    # --- the store --------------------------------------------------------------------------------

    async def flush(self, name: str | None = None) -> None:
        """Move everything acknowledged so far (of one segment, or of all) to Tier 2.

        Waits while Tier 2 is away.
        """
        if name is not None:
            await self._home(name).flush(name)
            return
        self._check_loop()
        # One that was taken over keeps its siblings from nothing.
        flushes = (container.flush() for container in self._containers)
        outcomes = await gather_outcomes(*flushes, name="flush")
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def checkpoint(self) -> None:
        """Write a metadata checkpoint in every container, then truncate the logs behind what Tier 2
        holds.

        While Tier 2 is away the logs stay as they are, and health says so. Checkpoints that name
        snapshots cannot follow one whose snapshot fails: TierUnavailableError says why; the store
        tries again by itself.
        """
        self._check_loop()
        failures: list[SegmentStoreError] = []
        for container in self._containers:
            try:
                await container.checkpoint()
            except SegmentStoreError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def export_catalog(self) -> list[CatalogExport]:
        """Put a snapshot of the catalog of each container served here into Tier 2, for jobs
        (docs/formats/catalog.md).

        Each is consistent as of one sequence number. Raises MissingExtraError if pyarrow is
        missing, TierUnavailableError, DataCorruptionError. Costs a checkpoint, a pass over the
        catalog in a thread, and some requests for each container.
        """
        self._birth.check()
        self._check_loop()
        assert self._parts.exporter is not None
        return await self._parts.exporter.export_all()

    async def process_mailbox(self) -> int:
        """Answer what jobs ask of the containers served here, now; give the number of answers
        (docs/formats/mailbox.md).

        The store does so by itself, every `mailbox_poll_interval_s`; this is for a
        caller that does not want to wait.
        Raises TierUnavailableError; what was answered by then is answered. Costs a listing of each
        container's mailbox.
        """
        self._check_loop()
        answered = 0
        for container in self._containers:
            answered += await container.process_mailbox()
        return answered

    def wake_mailbox(self) -> None:
        """Have the containers served here poll their mailboxes now, for a client that has put
        messages there. O(containers).

        Does not wait; costs a poll of each, at most four a second however often it is called.
        Nothing where `mailbox_poll_interval_s` is 0.
        """
        self._check_loop()
        for container in self._containers:
            container.wake_mailbox()

    def container_epoch(self, name: str) -> int:
        """The epoch of the log that holds the segment of this name: what was learnt of it under
        another one may not be so any more.
        """
        return self._home(name).epoch

    # --- helpers ----------------------------------------------------------------------------------

    def _begin_child(self) -> None:
        """In a forked child: the store is the parent's, and not even to be collected here."""
        forks.keep_for_ever(self)
        self._homes.clear()
        for container in self._containers:
            container.forked(self._birth.process_id)

    def _check_loop(self) -> None:
        """The door of every call. Raises WrongEventLoopError, ForkedStoreError."""
        if running_loop() is not self._loop:
            self._birth.check()
            raise WrongEventLoopError

    def _check_running(self) -> None:
        """The door of calls for the whole store. Raises as `_check_loop`, and if it is closed."""
        self._check_loop()
        for container in self._containers:
            container.check_running()
        self._parts.registry.check_open()

    def _home(self, name: object) -> SegmentContainer:
        """The container a name lives in.

        Raises InvalidNameError, ContainerNotServedError, WrongEventLoopError.
        """
        self._check_loop()
        home = self._homes.get(name) if isinstance(name, str) else None
        if home is None:
            # A forked child remembers no name: so it is found out here, and costs an append
            # nothing.
            self._birth.check()
            try:
                name, is_valid = check_segment_name(name), True
            except InvalidNameError:
                # A restore of an earlier version may have made such a segment: it can be read, and
                # deleted.
                if not (isinstance(name, str) and may_be_stored(name)) or not any(
                    container.may_be(name) for container in self._containers
                ):
                    raise
                is_valid = False
            home = self._parts.registry.home(container_of(name, self._config.containers))
            if not is_valid:
                return home
            if len(self._homes) >= _HOMES_MAX:
                self._homes.clear()
            self._homes[name] = home
        return home
