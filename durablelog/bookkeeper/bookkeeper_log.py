"""The log on BookKeeper: Tier 1 on one ledger after another (docs/formats/bookkeeper-log.md).

The parts: the *store* has the record, the *lease* knows when the record was last confirmed as ours.
The *pipeline* has the frames in flight, the *rollover* changes from ledger to ledger, the *deleter*
removes truncated ledgers, `ListedLedgers` finds those that a tool deleted. All on one event loop,
no thread of our own. How an append goes: `append` numbers the frame and sends it, unless the ledger
is being changed; results come in batches and resolve futures in order.

Rules of this file:

- the record alone says which process owns the log; no failure code is taken for an answer to that;
- the first failure that is for good fails all in flight and all that comes; everything else is
  waited out, and `health` says for what;
- `close` works at any moment, and ends every task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Final

from durablelog.bookkeeper.frame_pipeline import FramePipeline, WrittenLedger
from durablelog.bookkeeper.ledger_addresses import address_text, make_address, split_address
from durablelog.bookkeeper.ledger_calls import LedgerCalls, custom_metadata
from durablelog.bookkeeper.ledger_deleter import LedgerDeleter
from durablelog.bookkeeper.ledger_opening import fence, list_ledger
from durablelog.bookkeeper.ledger_parts import LedgerParts
from durablelog.bookkeeper.ledger_reading import LedgerReader, stretches_of
from durablelog.bookkeeper.ledger_rollover import LedgerRollover
from durablelog.bookkeeper.ledger_store import EMPTY, LedgerStore
from durablelog.bookkeeper.listed_ledgers import ListedLedgers
from durablelog.bookkeeper.log_metadata import LedgerItem, LogMetadata
from durablelog.bookkeeper.log_metadata_size import OPENING_BYTES_MAX, note_size
from durablelog.bookkeeper.log_metadata_store import LogMetadataStore
from durablelog.bookkeeper.log_options import BookKeeperLogOptions
from durablelog.bookkeeper.metadata_node import MetadataNodes, NodeUnavailableError
from durablelog.bookkeeper.owner_presence import OwnerPresence
from durablelog.bookkeeper.ownership_lease import OwnershipLease
from durablelog.bookkeeper.waiting import Waiting
from durablelog.durable_data_log import (
    DataLogStatistics,
    DurableDataLog,
    LogAddress,
    LogFrame,
    SealedPart,
)
from segmentstore.contracts.checksum import Buffer
from segmentstore.contracts.errors import (
    ConfigError,
    ContainerStoppedError,
    NotPrimaryError,
    SegmentStoreError,
    TierUnavailableError,
)
from segmentstore.contracts.health import HealthNotes
from segmentstore.contracts.ledgers import ReadHandle
from segmentstore.contracts.owned_tasks import gather_owned, own_task
from segmentstore.contracts.runtime import Runtime
from segmentstore.contracts.waiting import outlast

PAYLOAD_BYTES_MAX: Final = 1024 * 1024 - 1024
"""With its header an entry stays below 1 MiB."""
_LEAVE_S: Final = 2.0
"""How long a close waits for the record to say so. Without that ledgers are only deleted later."""


class BookKeeperLog(DurableDataLog):
    """One opening of the log whose record is the node at `path`; it is made if it is not there.

    `presence` announces the opening owner, and checks for a living owner before the log is taken
    from it (ContainerOwnedError); None does neither. `ledgers` and `nodes` are shared by the
    containers of a store: the log closes neither. `payload_bytes_max`: 1 to PAYLOAD_BYTES_MAX
    (ConfigError). `epoch_min`: the least epoch of this opening, for a log that follows one that was
    lost. An object is opened once; after `close` make a new one. Beside what the contract says,
    `open` raises LogDisabledError and ConfigError (another store's node, a newer format, no rights,
    another password).
    """

    def __init__(
        self,
        container_id: int,
        runtime: Runtime,
        ledgers: LedgerStore,
        nodes: MetadataNodes,
        path: str,
        *,
        store_id: str,
        options: BookKeeperLogOptions,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX,
        epoch_min: int = 1,
        presence: OwnerPresence | None = None,
    ) -> None:
        if not 1 <= payload_bytes_max <= PAYLOAD_BYTES_MAX:
            raise ConfigError(
                "frame_bytes_max", f"{payload_bytes_max}: BookKeeper takes 1 to {PAYLOAD_BYTES_MAX}"
            )
        self._container_id = container_id
        self._rng = runtime.random
        self._clock = runtime.clock
        self._ledgers = ledgers
        self._nodes = nodes
        self._options = options
        self._payload_bytes_max = payload_bytes_max
        self._epoch_min = epoch_min
        self._notes = HealthNotes()
        self._presence = presence
        self._tag = f"{runtime.random.getrandbits(64):016x}"
        self._keeper = LogMetadataStore(nodes, path, store_id, container_id, self._tag)
        self._calls = LedgerCalls(ledgers, options)
        self._reader = LedgerReader(
            ledgers,
            container_id,
            runtime.random,
            password_from=options.password_from,
            check_owner=self._check_owner,
            fail=self._fail,
        )
        self._pipeline = FramePipeline(
            container_id,
            options.ledger_bytes,
            is_valid=self._is_lease_valid,
            finished=self._ledger_finished,
            nearly_full=self._ledger_nearly_full,
            settled=self._futures_settled,
        )
        self._lease = OwnershipLease(
            self._keeper,
            runtime.random,
            self._notes,
            release=self._pipeline.acknowledge_held,
            fail=self._fail,
        )
        self._parts = LedgerParts(
            container_id,
            ledgers,
            runtime.random,
            record=lambda: self._keeper.record,
            check_owner=self.check_primary,
            password_from=options.password_from,
            recovers=True,
        )
        self._remover = LedgerDeleter(ledgers, runtime.random, self._notes, self._parts.is_pinned)
        self._parts.on_unpinned = self._remover.unpinned
        self._rollover = LedgerRollover(
            calls=self._calls,
            keeper=self._keeper,
            pipeline=self._pipeline,
            reader=self._reader,
            remover=self._remover,
            notes=self._notes,
            replication=options.replication,
            waiting=self._waiting,
            fail=self._fail,
        )
        self._listed = ListedLedgers(
            ledgers,
            self._notes,
            record=lambda: self._keeper.record,
            check_owner=self._check_owner,
            follow=self._pipeline.leave,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Callable[[], SegmentStoreError] | None = self._stopped
        self._failed = False
        self._opened = False
        self._closed = False
        self._closing = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}

    @property
    def epoch(self) -> int:
        return self._keeper.record.epoch

    @property
    def payload_bytes_max(self) -> int:
        return self._payload_bytes_max

    async def open(self) -> None:
        if self._closed or self._opened:
            raise ContainerStoppedError(self._container_id)
        self._opened = True
        self._loop = asyncio.get_running_loop()
        try:
            await self._owned(self._open())
        except (Exception, asyncio.CancelledError):
            await self.close()
            raise

    def append(self, payload: Sequence[Buffer]) -> asyncio.Future[LogAddress]:
        length = sum(map(len, payload))
        if not 1 <= length <= self._payload_bytes_max:
            raise ValueError(
                f"a payload of {length} bytes: it must be 1 to {self._payload_bytes_max}"
            )
        loop = self._loop or asyncio.get_running_loop()
        future: asyncio.Future[LogAddress] = loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure())
        else:
            self._pipeline.append(future, payload, length)
        return future

    def read(self, start: LogAddress | None = None) -> AsyncGenerator[Sequence[LogFrame], None]:
        return self._read(start)

    def last_address(self) -> LogAddress | None:
        for item in reversed(self._keeper.record.ledgers):
            last = self._last_entry(item)
            if last != EMPTY:
                return make_address(item.sequence, last)
        return None

    def place_of(self, address: LogAddress) -> str:
        sequence, entry = split_address(address)
        item = self._keeper.record.item(sequence)
        return "" if item is None else f"ledger {item.ledger_id} entry {entry}"

    async def truncate(self, address: LogAddress, retain_from: int | None = None) -> None:
        if address <= self._keeper.record.truncation_address:
            return
        if self._failure is not None:
            raise self._failure()
        if not self._holds(address):
            raise ValueError(
                f"{address_text(address)} is no frame of the log, or behind the last "
                "acknowledged one"
            )
        await self._owned(
            self._delete(
                lambda record: (
                    record.truncated(address, retain_from)
                    if address > record.truncation_address
                    else record
                )
            )
        )

    @property
    def first_retained(self) -> int | None:
        retained = self._keeper.record.retained
        return retained[0].sequence if retained else None

    async def delete_retained(self, below: int | None = None) -> None:
        if self._failure is not None:
            raise self._failure()
        if self.first_retained is not None:
            await self._owned(self._delete(lambda record: record.released(below)))

    async def check_primary(self) -> None:
        if self._closed or not self._pipeline.begun:
            raise self._stopped()
        try:
            await self._check_owner()
        except NodeUnavailableError as error:
            raise TierUnavailableError(
                "tier1", f"the log's record does not answer: {error}"
            ) from error

    def sealed_parts(self, above: int = 0) -> Sequence[SealedPart]:
        return self._parts.sealed(above)

    async def open_part(self, number: int) -> ReadHandle:
        return await self._parts.open(number)

    async def close(self) -> None:
        self._closed = True
        self._failure = self._stopped
        self._pipeline.fail_all(self._stopped)
        async with self._closing:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            await self._parts.close()
            await self._listed.close()
            await self._lease.close()
            # Before the remover: a move to the next ledger that is under way hands it what goes.
            await self._rollover.close(
                self._pipeline.ledger.writer if self._pipeline.begun else None
            )
            await self._remover.close()
            leaving = [self._leave()]
            if self._presence is not None and self._opened:
                leaving.append(self._presence.leave(self._container_id, self._tag))
            # The record first, for one session's changes are done in order; yet both wait for a
            # service that is away at the same time.
            await gather_owned(*leaving, name="leave-log")

    async def _leave(self) -> None:
        """Have the record say that we acknowledge nothing any more. Raises nothing."""
        if self._failed or not self._keeper.size:
            return
        remover = self._remover

        def edit(record: LogMetadata) -> LogMetadata:
            return record.without(remover.deleted).left(settled=remover.settled)

        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._keeper.change(edit)
        except (SegmentStoreError, NodeUnavailableError, TimeoutError):
            pass

    def statistics(self) -> DataLogStatistics:
        pipeline = self._pipeline
        bookies = self._ledgers.bookies()
        return DataLogStatistics(
            epoch=self.epoch,
            frames_in_flight=pipeline.frames_in_flight,
            bytes_in_flight=pipeline.bytes_in_flight,
            frames_appended=pipeline.frames_appended,
            bytes_appended=pipeline.bytes_appended,
            syncs=pipeline.batches,
            log_bytes=self._log_bytes(),
            files=len(self._keeper.record.parts),
            bookies_behind=bookies.behind,
            bookie_owed_bytes_max=bookies.owed_bytes_max,
            gateway_bytes=bookies.client_bytes,
            held_bytes=self._parts.held_bytes,
            retained_bytes=self._parts.retained_bytes,
        )

    def health(self) -> str | None:
        if self._closed:
            return None
        return (
            self._notes.describe()
            or self._ledgers.health()
            or self._nodes.health()
            or self._parts.health()
        )

    # --- what the pipeline reports ----------------------------------------------------------------

    def _is_lease_valid(self) -> bool:
        return self._lease.is_valid()

    def _ledger_finished(self) -> None:
        if self._failure is None:
            self._parts.ended(self._pipeline.ledger.item.sequence, self._clock.time_ms())
            self._rollover.finished()

    def _ledger_nearly_full(self) -> None:
        self._rollover.prepare()

    def _futures_settled(self) -> None:
        self.on_settled()

    # --- opening and truncating -------------------------------------------------------------------

    async def _open(self) -> None:
        assert self._loop is not None
        deadline = self._loop.time() + self._options.open_timeout_s
        keeper = self._keeper
        claiming = Waiting(self._rng, self._notes, "opening", deadline=deadline)
        if (presence := self._presence) is None:
            await claiming.for_node(lambda: keeper.claim(self._epoch_min))
        else:
            # Announced before the claim, so that no process takes the new owner for a dead one.
            owner = await claiming.for_node(
                lambda: presence.announce(self._container_id, self._tag)
            )
            await claiming.for_node(lambda: keeper.claim(self._epoch_min, owner, presence.ask))
        self._remover.begin()

        def waiting_for(topic: str) -> Waiting:
            return Waiting(self._rng, self._notes, topic, deadline=deadline, check=keeper.check)

        record, waiting = keeper.record, waiting_for("opening")
        custom = custom_metadata(record.store_id, record.container_id, record.epoch)
        # Beside the fencing, for it writes nothing: what makes it ours is the list of the record.
        creating = own_task(
            self._calls.create(custom, waiting_for("next ledger")),
            name=f"begin-ledger-{self._container_id}",
        )
        try:
            found = await fence(keeper, self._calls, self._reader, waiting, self._container_id)
            begun = await creating
        except (Exception, asyncio.CancelledError):
            creating.cancel()
            await outlast(creating)
            if not creating.cancelled() and creating.exception() is None:
                # It was never listed.
                self._rollover.release(self._calls.discard(creating.result().writer))
            raise
        try:
            item = await list_ledger(
                keeper, begun, found.ends, (), waiting, record_bytes_max=OPENING_BYTES_MAX
            )
        except NotPrimaryError:
            unlisted = keeper.surely_unlisted(begun.writer.ledger_id)
            self._rollover.release(
                self._calls.discard(begun.writer) if unlisted else begun.writer.close()
            )
            raise
        except (Exception, asyncio.CancelledError):
            self._rollover.release(begun.writer.close())
            raise
        ledger = WrittenLedger(item, begun.writer)
        self._failure = None
        self._remover.take(keeper.record)
        note_size(keeper.record, keeper.size, self._notes)
        self._pipeline.begin(keeper.record.epoch, found.last_sequence, ledger)
        self._rollover.begin(ledger)
        self._lease.begin()
        self._listed.begin()
        self._parts.begin(self._clock.time_ms())

    async def _delete(self, change: Callable[[LogMetadata], LogMetadata]) -> None:
        """Have the record list less, and delete what it names then."""

        def edit(record: LogMetadata) -> LogMetadata:
            wanted = change(record)
            return wanted if wanted is record else wanted.without(self._remover.deleted)

        try:
            await self._waiting("truncation").for_node(lambda: self._keeper.change(edit))
        except SegmentStoreError as error:
            self._fail(error)
            raise
        record = self._keeper.record
        self._pipeline.forget_below(split_address(record.truncation_address)[0])
        self._reader.keep({item.ledger_id for item in record.ledgers})
        self._remover.take(record)
        self._listed.note()
        note_size(record, self._keeper.size, self._notes)

    async def _owned(self, work: Coroutine[Any, Any, None]) -> None:
        """Done in a task that `close` ends; the caller gets ContainerStoppedError then."""
        task = own_task(work, name=f"log-{self._container_id}")
        self._tasks[task] = None
        try:
            await task
        except asyncio.CancelledError:
            task.cancel()
            if self._closed:
                raise self._stopped() from None
            raise
        finally:
            self._tasks.pop(task, None)

    # --- reading ----------------------------------------------------------------------------------

    async def _read(self, start: LogAddress | None) -> AsyncGenerator[Sequence[LogFrame], None]:
        if self._closed or not self._pipeline.begun:
            raise self._stopped()
        self._remover.hold()
        try:
            # What there is to read now.
            stretches = stretches_of(self._keeper.record, start, self._last_entry)
            async with aclosing(self._reader.read(stretches)) as reading:
                async for frames in reading:
                    if self._closed:
                        raise self._stopped()
                    yield frames
        finally:
            self._remover.release()

    def _last_entry(self, item: LedgerItem) -> int:
        """As far as acknowledged."""
        if item.last_entry is not None:
            return item.last_entry
        written = self._pipeline.written.get(item.sequence)
        return written.acknowledged - 1 if written is not None else EMPTY

    def _holds(self, address: LogAddress) -> bool:
        """An acknowledged frame has this address."""
        sequence, entry = split_address(address)
        item = self._keeper.record.item(sequence)
        return item is not None and entry <= self._last_entry(item)

    # --- numbers, and the end ---------------------------------------------------------------------

    def _log_bytes(self) -> int:
        record = self._keeper.record
        total = sum(self._ledger_bytes(item) for item in record.ledgers)
        sequence, entry = split_address(record.truncation_address)
        if not entry or not record.ledgers:
            return total
        written = self._pipeline.written.get(sequence)
        if written is not None:
            return total - written.ends[entry - 1]
        # Recovered: where its entries begin is not known, so they count as equally long.
        first = record.ledgers[0]
        return total - first.length * entry // (self._last_entry(first) + 1)

    def _ledger_bytes(self, item: LedgerItem) -> int:
        written = self._pipeline.written.get(item.sequence)
        return written.acknowledged_bytes if written is not None else item.length

    async def _check_owner(self) -> None:
        """Check the record; also before the log is open.

        Raises NodeUnavailableError; anything else is for good.
        """
        try:
            await self._keeper.check()
        except SegmentStoreError as error:
            self._fail(error)
            raise

    def _waiting(self, topic: str) -> Waiting:
        """A running log waits as long as it takes."""
        return Waiting(self._rng, self._notes, topic, check=self._keeper.check)

    def _fail(self, error: SegmentStoreError) -> None:
        """For good: nothing is written any more."""
        if self._failure is None:
            self._failure, self._failed = lambda: error, True
            self._lease.stop()
            self._listed.stop()
            self._rollover.stop()
            self._remover.stop()
            self._pipeline.fail_all(self._failure)
            self.on_failed(error)

    def _stopped(self) -> ContainerStoppedError:
        return ContainerStoppedError(self._container_id)
