"""Controller: the parts of it, joined; started and stopped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from segmentstore.contracts.runtime import Runtime
from segmentstore.controller.controller_rows import ControllerRows
from segmentstore.controller.deadlines import Deadlines
from segmentstore.controller.host_map import SegmentHosts
from segmentstore.controller.key_value_tables import PENDING_TABLE, KeyValueTables
from segmentstore.controller.metadata_tables import MetadataTables
from segmentstore.controller.name_locks import NameLocks
from segmentstore.controller.names import ScopedName
from segmentstore.controller.reader_groups import PENDING_GROUP, ReaderGroups
from segmentstore.controller.request_ids import RequestIds
from segmentstore.controller.scopes import PENDING_SCOPE, Scopes
from segmentstore.controller.segment_actions import SegmentActions
from segmentstore.controller.stream_model import StreamSegment
from segmentstore.controller.stream_retention import PERIOD_S, RetentionTask
from segmentstore.controller.streams import FINISH_REPEATED_S, PENDING_STREAM, Streams
from segmentstore.controller.transactions import Transactions


class Controller:
    """An open Controller.

    One process at a time has it: the one that serves the container of `names.ROOT_TABLE`. The log
    of that container fences the others: their writes fail with NotPrimaryError.
    """

    def __init__(
        self,
        tables: MetadataTables,
        actions: SegmentActions,
        hosts: SegmentHosts,
        runtime: Runtime,
        retention_period_s: float = PERIOD_S,
    ) -> None:
        """`hosts` says where segments are, and Controllers."""
        self.hosts = hosts
        self.deadlines = Deadlines(runtime.random)
        self._rows = ControllerRows(tables)
        locks = NameLocks()
        self._requests = RequestIds(self._rows, self.deadlines, runtime.clock)
        self.transactions = Transactions(self._rows, actions, locks, self.deadlines, runtime)
        parts = (locks, self.deadlines, self._requests)
        self.streams = Streams(self._rows, actions, self.transactions, *parts, runtime.clock)
        self.groups = ReaderGroups(self._rows, self.streams, *parts)
        self.key_value_tables = KeyValueTables(self._rows, actions, self.streams, *parts)
        self.scopes = Scopes(self._rows, self.streams, self.groups, self.key_value_tables, *parts)
        self.retention = RetentionTask(
            self._rows,
            self.streams,
            self.groups,
            self.deadlines,
            runtime,
            retention_period_s,
        )

    async def start(self) -> None:
        """Read what is there, and finish what was left. Raises SegmentStoreError.

        A change that cannot be finished now is tried again, and keeps the others from nothing. A
        creation waits for its client, which calls again.
        """
        await self._rows.open()
        await self.transactions.start()
        async for row in self._rows.scan("pending/"):
            _, kind, scope, name = row.key.split("/")
            left = ScopedName(scope, name)
            finish, after_s = self._finisher(kind, left), await self._finish_after_s(kind, left)
            self.deadlines.schedule(("pending", kind, scope, name), after_s, finish)
        self.retention.start()
        self._requests.start()

    async def stop(self) -> None:
        """Begin nothing more, and wait for what has begun by itself. Rows say what is left."""
        await self.deadlines.stop()

    def cut_off(self) -> None:
        """Cancel what has begun by itself, and begin nothing more: the next Controller finishes it.
        `stop` then waits for the end of it.
        """
        self.deadlines.cut_off()

    async def confirm(self) -> None:
        """Return when no other Controller can have written a row before this call.

        Raises NotPrimaryError, AppendOutcomeUnknownError and others: there may be one.
        """
        await self._rows.confirm()

    async def create_transaction(
        self, stream: ScopedName, lease_ms: int, request_id: str = ""
    ) -> tuple[int, tuple[StreamSegment, ...]]:
        """Give its id and the segments that it writes beside.

        Raises RefusedRequestError: no stream, sealed, lease.
        """
        async with self.streams.existing(stream) as found:
            transaction_id = await self.transactions.create(found, lease_ms, request_id)
            return transaction_id, found.record.active

    def _finisher(self, kind: str, name: ScopedName) -> Callable[[], Awaitable[None]]:
        if kind == PENDING_SCOPE:
            return partial(self.scopes.finish, name.scope)
        finishers = {
            PENDING_STREAM: self.streams.finish,
            PENDING_GROUP: self.groups.finish,
            PENDING_TABLE: self.key_value_tables.finish,
        }
        return partial(finishers[kind], name)

    async def _finish_after_s(self, kind: str, name: ScopedName) -> float:
        if kind == PENDING_STREAM:
            return await self.streams.finish_after_s(name)
        if kind == PENDING_GROUP:
            return await self.groups.finish_after_s(name)
        if kind == PENDING_TABLE:
            return await self.key_value_tables.finish_after_s(name)
        return FINISH_REPEATED_S  # What is left of a scope is its deletion.
